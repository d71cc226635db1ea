//! What can go wrong in an engine, grouped by what the caller can do.

/// An engine's refusal or failure.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Reject the input: the request cannot be met as it stands.
    #[error("{0}")]
    Unsupported(String),
    /// Reject the input: the plan is larger than the machine.
    #[error(
        "{model} at batch {batch} needs {needed_mb} MB, and {available_mb} MB are available; use a smaller --batch or --input"
    )]
    TooLarge {
        /// The network.
        model: String,
        /// Samples a step.
        batch: usize,
        /// Planned bytes, in MB.
        needed_mb: u64,
        /// What the machine has left, in MB.
        available_mb: u64,
    },
    /// Reject the input: a batch or a tensor of the wrong size or content.
    #[error("{what}: expected {expected} values, got {got}")]
    WrongLength {
        /// Which one.
        what: &'static str,
        /// Values that were needed.
        expected: usize,
        /// Values that came.
        got: usize,
    },
    /// Reject the input: a label that the network has no class for.
    #[error("sample {sample} has label {label}, but the network has {classes} classes")]
    BadLabel {
        /// Its place in the batch.
        sample: usize,
        /// Its label.
        label: u32,
        /// What the head has.
        classes: usize,
    },
    /// Go on without it: the system refused memory or threads.
    #[error("the system refused {what}: {source}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// Go on without it: a library that the engine needs is missing or too old.
    #[error("{library} {}; {needed} or later is needed{hint}", found.as_ref().map_or("was not found".to_owned(), |found| format!("{found} was found")))]
    Library {
        /// The library.
        library: &'static str,
        /// Its version, where it was found.
        found: Option<String>,
        /// The oldest version that will do.
        needed: String,
        /// What to do about it.
        hint: String,
    },
    /// Go on without it: the driver has no GPU for this process.
    #[error("{0}; is a GPU visible to this process? see nvidia-smi, CUDA_VISIBLE_DEVICES")]
    NoGpu(String),
    /// Go on without them: the exchange with other devices failed.
    #[error("{0}")]
    Exchange(String),
    /// Go on without it: a device or one of its libraries refused a call.
    #[error("{call} failed: {answer}")]
    Device {
        /// What was asked of it.
        call: String,
        /// Its answer.
        answer: String,
    },
}
