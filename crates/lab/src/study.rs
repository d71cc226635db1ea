//! What was asked, and on what machine: what `study.json` holds.

use paceline_record::{Bytes, Case};
use serde::{Deserialize, Serialize};

/// A study as it was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// Version of this format.
    pub schema: u32,
    /// Version of the program.
    pub program: String,
    /// The command line, the program's name left out.
    pub command: Vec<String>,
    /// When it was started, in UTC, as `2026-11-16T08:33:34Z`.
    #[serde(default)]
    pub date: Option<String>,
    /// The name of the host that it was started on.
    #[serde(default)]
    pub host: Option<String>,
    /// Where it ran.
    pub machine: Machine,
    /// The runs, in the order in which they take place.
    pub cases: Vec<Planned>,
}

/// One run of a study: a case, or one of its repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// Its folder in the study's.
    pub folder: String,
    /// Place of its case in the report.
    pub place: usize,
    /// Which repeat of its case it is, from 1.
    pub repeat: u32,
    /// What to run.
    #[serde(flatten)]
    pub case: Case,
    /// Steps of each worker.
    pub steps: u64,
}

/// The machine a study ran on. What could not be found out is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: Option<String>,
    /// Cores that the program may use.
    pub cores: Option<u32>,
    /// Memory.
    pub memory: Option<Bytes>,
    /// Version of the system's kernel.
    pub kernel: Option<String>,
    /// What the engine found to run on, in words.
    pub engine: Option<String>,
}

impl Study {
    /// Cases, each counted once however often it is repeated.
    pub fn places(&self) -> usize {
        self.cases.iter().map(|planned| planned.place + 1).max().unwrap_or(0)
    }

    /// Whether another study asks for the same runs on the same machine by the same program, whenever and under whatever
    /// name of the machine.
    pub fn asks_the_same_as(&self, other: &Self) -> bool {
        (self.schema, &self.program, &self.machine, &self.cases)
            == (other.schema, &other.program, &other.machine, &other.cases)
    }
}
