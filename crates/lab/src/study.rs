//! What was asked, and on what machine: what `study.json` holds.

use paceline_record::{Bytes, Case};
use serde::{Deserialize, Serialize};

/// A study as it was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// Version of this form.
    pub schema: u32,
    /// Version of the program.
    pub program: String,
    /// The command line, the program's name left out.
    pub command: Vec<String>,
    /// Where it ran.
    pub machine: Machine,
    /// The cases, in the order in which they run.
    pub cases: Vec<Planned>,
}

/// One case of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// Its folder in the study's.
    pub folder: String,
    /// What to run.
    #[serde(flatten)]
    pub case: Case,
    /// Steps of each worker.
    pub steps: u64,
    /// The data, as the command line names it.
    pub data: String,
    /// Seed of weights and data.
    pub seed: u64,
    /// Learning rate.
    pub learning_rate: f32,
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
