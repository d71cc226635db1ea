//! What can go wrong in an engine, grouped by what the caller can do.

/// Why an engine refused or failed.
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
        /// The batch or tensor.
        what: &'static str,
        /// Its length.
        expected: usize,
        /// The length that was given.
        got: usize,
    },
    /// Reject the input: a label that the network has no class for.
    #[error("sample {sample} has label {label}, but the network has {classes} classes")]
    BadLabel {
        /// The sample's number in the batch.
        sample: usize,
        /// The sample's label.
        label: u32,
        /// Classes of the network.
        classes: usize,
    },
    /// Go on without it: the system refused memory or threads.
    #[error("the system refused {what}: {source}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Go on without it: a library that the engine needs is missing or too old.
    #[error("{library} {}; {needed} or later is needed{hint}", found.as_ref().map_or("was not found".to_owned(), |found| format!("{found} was found")))]
    Library {
        /// The library.
        library: &'static str,
        /// Its version, where it was found.
        found: Option<String>,
        /// The oldest version that works.
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
        /// The call.
        call: String,
        /// The library's error.
        answer: String,
    },
}
