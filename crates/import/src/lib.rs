//! Other people's runs: foreign logs and traces become run logs.
//!
//! ```text
//! files -> recognise (by content) -> read (one module per format) -> Imported -> run logs -> the same report as our own
//! ```

pub mod align;
mod batch;
pub mod chrome;
pub mod collectives;
pub mod events;
pub mod horovod;
pub mod idle;
pub mod kineto;
mod lines;
pub mod meaning;
pub mod metric_log;
mod named;
mod nsys;
pub mod nvidia_smi;
mod nvprof;
pub mod open;
pub mod operations;
pub mod profile;
pub mod ranks;
#[cfg(test)]
mod sample;
pub mod series;
pub mod source;
pub mod spans;
pub mod split;
pub mod sqlite;
mod steps;
pub mod tf_cnn;
pub mod timeline;
pub mod top;
pub mod trace;
pub mod unknown;
pub mod write;
pub mod xplane;

use std::io;
use std::path::PathBuf;

use paceline_lab::origin::{DeviceUse, Format, Origin, Progress, Traced};
use paceline_record::{Bytes, Case, Phase, Rank, StepRecord};

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
    /// Reject the input: the file is damaged, hostile, or in an unsupported format.
    #[error("{path}: {why}", path = path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong, where, and what to do.
        why: String,
    },
    /// Reject the input: the files can be read, but do not form one run.
    #[error("these traces do not form one run: {why}")]
    Apart {
        /// What does not fit, and what to do.
        why: String,
    },
}

impl ImportError {
    /// A file that cannot be understood.
    pub fn bad(path: impl Into<PathBuf>, why: impl Into<String>) -> Self {
        Self::Bad { path: path.into(), why: why.into() }
    }
}

/// A run recorded by another program.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// What was run, as far as the source says.
    pub case: Case,
    /// The ranks.
    pub ranks: Vec<ImportedRank>,
    /// What was salvaged, guessed or skipped, one sentence each.
    pub warnings: Vec<String>,
    /// Details that only traces have.
    pub traced: Option<Traced>,
    /// The format of the source.
    pub format: Option<Format>,
    /// Phases that the source can show, even if they took no time.
    pub tells: Vec<Phase>,
    /// How devices were used during the run.
    pub devices: Vec<DeviceUse>,
    /// The points of a log that recorded no steps; there are no ranks then.
    pub progress: Option<Progress>,
}

impl Imported {
    /// What is kept about the source beside the run log.
    pub fn origin(&self) -> Origin {
        let steps = || self.ranks.iter().flat_map(|rank| &rank.steps);
        let occurs = |phase: Phase| steps().any(|step| !step.phases[phase].is_zero());
        // `other` and `tail` are always known.
        let known = |phase: &Phase| {
            matches!(phase, Phase::Tail | Phase::Other) || self.tells.contains(phase) || occurs(*phase)
        };
        Origin {
            phases: Phase::ALL.into_iter().filter(|phase| !self.ranks.is_empty() && known(phase)).collect(),
            notes: self.warnings.clone(),
            traced: self.traced.clone(),
            devices: self.devices.clone(),
            progress: self.progress.clone(),
            ..Origin::new(self.format)
        }
    }
}

/// One rank of an imported run.
#[derive(Clone, Debug, Default)]
pub struct ImportedRank {
    /// Its number.
    pub rank: Rank,
    /// Its steps, one after the other on a clock that all ranks of the run share.
    pub steps: Vec<StepRecord>,
    /// Peak device memory.
    pub peak_device: Option<Bytes>,
}
