//! Other people's runs: foreign logs and traces become run logs.
//!
//! ```text
//! files -> recognise (by content) -> read (one format a file) -> Imported -> run logs -> the same report as our own
//! ```

mod nsys;
mod nvprof;
pub mod profile;
pub mod sqlite;

use std::io;
use std::path::PathBuf;

use paceline_record::{Bytes, Case, Rank, StepRecord};

/// A foreign file that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The system refused: see the cause.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Reject the input: the file is damaged, hostile, or in a form that is not read.
    #[error("{path}: {why}", path = path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong, where, and what to do.
        why: String,
    },
}

impl ImportError {
    /// A file that cannot be made sense of.
    pub fn bad(path: impl Into<PathBuf>, why: impl Into<String>) -> Self {
        Self::Bad { path: path.into(), why: why.into() }
    }
}

/// A run that somebody else's program left traces of.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// What was run, as far as the source tells.
    pub case: Case,
    /// What each rank told.
    pub ranks: Vec<ImportedRank>,
    /// What was salvaged, guessed or left out: a sentence each.
    pub warnings: Vec<String>,
}

/// One rank of an imported run.
#[derive(Clone, Debug, Default)]
pub struct ImportedRank {
    /// Which.
    pub rank: Rank,
    /// Its steps, one after the other on a clock that all ranks of the run share.
    pub steps: Vec<StepRecord>,
    /// The most memory of a device that it held.
    pub peak_device: Option<Bytes>,
}
