//! What can be wrong with a checkpoint, and what to do then.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::{Checkpoint, disk};

/// A checkpoint that cannot be written, or must not be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Report the failure: the system refused.
    #[error("cannot {what} {path}: {source}{}", if is_full(.source) { "; free some space on its disk" } else { "" })]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Reject the input: there is none.
    #[error(
        "no checkpoint in {path}; give a run's folder, its checkpoints, one of them, or a safetensors file"
    )]
    Missing {
        /// Where it was sought.
        path: PathBuf,
    },
    /// Reject the input: it is not what was written.
    #[error("{path} is damaged: {why}{}", Instead(.instead.as_deref()))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
        /// A checkpoint beside it that is good.
        instead: Option<PathBuf>,
    },
    /// Reject the input: something else wrote it.
    #[error("cannot use {path}: {why}{}", Instead(.instead.as_deref()))]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        why: String,
        /// A checkpoint beside it that can be used.
        instead: Option<PathBuf>,
    },
    /// Reject the input: it was trained with other settings.
    #[error(
        "cannot resume {path}: it was trained with {differences}; leave these options out, or start a new training without --resume"
    )]
    OtherJob {
        /// The checkpoint.
        path: PathBuf,
        /// Option by option.
        differences: String,
    },
    /// Reject the input: its steps cannot be cut into so many shards.
    #[error(
        "cannot resume {path} with {shards} shards: its global batch of {global_batch} cannot be divided equally among them; {}",
        .instead.map_or_else(|| format!("use at most {global_batch}"), |shards| format!("use --shards {shards}"))
    )]
    Uncuttable {
        /// The checkpoint.
        path: PathBuf,
        /// Shards that were asked for, or that so many workers need.
        shards: u32,
        /// Samples of a step.
        global_batch: usize,
        /// The next larger number of shards that would do.
        instead: Option<usize>,
    },
    /// Reject the input: its last digits cannot be computed here.
    #[error(
        "cannot resume {path} with the same bits: it was computed with {what} {recorded}, and this machine has {here}; \
         --new-numerics goes on with this machine's own (weights then differ in the last digits)"
    )]
    OtherNumerics {
        /// The checkpoint.
        path: PathBuf,
        /// What is different.
        what: &'static str,
        /// What it was.
        recorded: String,
        /// What it is here.
        here: String,
    },
    /// Reject the input: the same bits need the instruction set that the training began with.
    #[error(
        "cannot resume {path} with --instructions {asked}: it was computed with {recorded}; leave the option out, or go on with other bits by \
         --new-numerics (weights then differ in the last digits)"
    )]
    OtherInstructions {
        /// The checkpoint.
        path: PathBuf,
        /// What it was.
        recorded: String,
        /// What was asked for.
        asked: String,
    },
    /// Reject the input: the weights are of another network.
    #[error("{path} does not fit {model} at {}x{} with {classes} classes: {why}", .input.0, .input.1)]
    OtherNetwork {
        /// The file.
        path: PathBuf,
        /// The network.
        model: String,
        /// Height and width of its images.
        input: (usize, usize),
        /// Its classes.
        classes: usize,
        /// What does not fit.
        why: String,
    },
}

/// Whether room is what was missing.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What to do about a checkpoint that cannot be used.
struct Instead<'a>(Option<&'a Path>);

impl fmt::Display for Instead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(path) => write!(f, "; this one is good: --resume {}", path.display()),
            None => f.write_str(
                "; there is no good checkpoint beside it: use a good copy, or start a new training",
            ),
        }
    }
}

impl CheckpointError {
    /// Whether the user must name another checkpoint, or ask for something else.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Io { .. })
    }

    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }

    pub(super) fn damaged(path: &Path, why: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), why: why.into(), instead: None }
    }

    pub(super) fn foreign(path: &Path, why: impl Into<String>) -> Self {
        Self::Foreign { path: path.to_owned(), why: why.into(), instead: None }
    }

    /// Adds the newest good checkpoint beside `folder`, if there is one.
    pub(super) fn name_good_one(mut self, folder: &Path) -> Self {
        if let Self::Damaged { instead, .. } | Self::Foreign { instead, .. } = &mut self
            && let Some(root) = folder.parent()
        {
            let others = disk::list(root).unwrap_or_default().into_iter().rev().map(|(_, path)| path);
            *instead = others.filter(|path| path != folder).find(|path| Checkpoint::load(path).is_ok());
        }
        self
    }
}
