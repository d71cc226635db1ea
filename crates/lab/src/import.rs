//! Other people's runs: foreign logs and traces become run logs.
//!
//! ```text
//! files -> recognise (by content) -> read (one format a file) -> Imported -> run logs -> the same report as our own
//! ```

pub mod align;
pub mod collectives;
pub mod events;
pub mod horovod;
pub mod idle;
pub mod kineto;
mod lines;
pub mod metric_log;
#[cfg(test)]
mod mutation;
mod nsys;
pub mod nvidia_smi;
mod nvprof;
pub mod open;
pub mod profile;
mod protobuf;
pub mod ranks;
pub mod series;
pub mod source;
pub mod spans;
pub mod split;
pub mod sqlite;
pub mod tf_cnn;
pub mod top;
pub mod write;

use std::io;
use std::path::PathBuf;

use paceline_record::{Bytes, Case, Rank, StepRecord};

use self::align::Alignment;
use self::collectives::LateStep;
use self::top::Top;
use crate::{Align, Table};

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
    /// Reject the input: the files can be read, but make no run together.
    #[error("these traces make no run together: {why}")]
    Apart {
        /// What does not fit, and what to do.
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
    /// What only traces tell.
    pub traced: Option<Traced>,
}

/// What traces tell of a run beside its steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traced {
    /// How the ranks came to one clock.
    pub alignment: Alignment,
    /// Kernels, or operators where there is no device, those that took most first.
    pub kernels: Vec<Top>,
    /// Collectives by operation, those that took most first.
    pub collectives: Vec<Top>,
    /// Steps in which ranks waited for a late one, those with most waiting first.
    pub late: Vec<LateStep>,
}

impl Traced {
    /// On a screen: the clock, and the first rows of each list.
    pub fn render(&self, most: usize) -> String {
        let mut text = format!("{}\n", self.alignment);
        for (what, top) in [("kernels and operators", &self.kernels), ("collectives", &self.collectives)] {
            let mut table = Table::new([
                (what, Align::Left),
                ("count", Align::Right),
                ("total ms", Align::Right),
                ("mean us", Align::Right),
                ("share %", Align::Right),
            ]);
            for Top { name, count, total, mean_s, share } in top.iter().take(most) {
                // Names of kernels run to hundreds of characters.
                let short: String = name.chars().take(60).collect();
                table.row([
                    short,
                    count.to_string(),
                    format!("{:.3}", 1e3 * total.seconds()),
                    format!("{:.1}", 1e6 * mean_s),
                    format!("{:.1}", 100.0 * share),
                ]);
            }
            if !top.is_empty() {
                text.push_str(&format!("\n{table}"));
            }
        }
        for LateStep { step, rank, waited } in self.late.iter().take(most.min(3)) {
            let ms = 1e3 * waited.seconds();
            text.push_str(&format!("\nin step {step} the others waited {ms:.1} ms for rank {rank}"));
        }
        text.push('\n');
        text
    }
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
