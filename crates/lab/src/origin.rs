//! Where an imported run comes from, and what its source says beyond its steps: `origin.json`, next to the run's logs.
//!
//! It is written together with them, so it is complete or absent. Our own runs have none.

mod alignment;
mod devices;
mod format;
mod progress;
mod traced;

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use paceline_record::Phase;
use serde::{Deserialize, Serialize};

pub use self::alignment::{Alignment, Common};
pub use self::devices::DeviceUse;
pub use self::format::Format;
pub use self::progress::{LogPoint, Progress};
pub use self::traced::{LateStep, Top, TopCollective, Traced};
use crate::{LabError, Table};

/// Name of the file in a case's folder.
pub const ORIGIN_FILE: &str = "origin.json";

/// Version of the file.
const VERSION: u32 = 1;

/// The longest file that is read, in bytes.
const LONGEST: u64 = 16 << 20;

/// Where an imported run comes from, and what its source says beyond its steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Version of the file.
    pub version: u32,
    /// The format of the source.
    pub format: Option<Format>,
    /// Phases that the source can show; others are unknown, not zero.
    pub phases: Vec<Phase>,
    /// What was salvaged, guessed or skipped, one sentence each.
    pub notes: Vec<String>,
    /// Details that only traces have.
    pub traced: Option<Traced>,
    /// How devices were used during the run.
    pub devices: Vec<DeviceUse>,
    /// The points of a log that recorded no steps; the run has no logs of ranks then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// How many ranks a run had, where its source shows some and does not say.
pub const UNKNOWN_RANKS: &str = "an unknown number";

impl Origin {
    /// An origin without any details.
    pub fn new(format: Option<Format>) -> Self {
        Self {
            version: VERSION,
            format,
            phases: Vec::new(),
            notes: Vec::new(),
            traced: None,
            devices: Vec::new(),
            progress: None,
        }
    }

    /// Reads the origin of a case; `None` if it has none.
    pub fn read(folder: &Path) -> Result<Option<Self>, LabError> {
        let path = folder.join(ORIGIN_FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(LabError::io("read", path)(error)),
        };
        let bad = |why: String| LabError::BadFile { path: path.clone(), why };
        let mut bytes = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(LabError::io("read", &path))?;
        if bytes.len() as u64 > LONGEST {
            return Err(bad(format!("it is longer than {LONGEST} bytes")));
        }
        let origin: Self = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        match origin.version {
            VERSION => Ok(Some(origin)),
            other => {
                Err(bad(format!("it has version {other}, but this program reads {VERSION}: import again")))
            }
        }
    }

    /// The file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("invariant: plain data");
        text.push(b'\n');
        text
    }

    /// Whether the source can show the time of a phase.
    pub fn knows(&self, phase: Phase) -> bool {
        self.phases.contains(&phase)
    }

    /// Whether it shows work, so that time without work is meaningful.
    pub fn shows_work(&self) -> bool {
        self.traced.is_some() && self.knows(Phase::Compute)
    }

    /// Its content as sentences, without the notes, for any report format.
    pub fn sentences(&self) -> Vec<String> {
        self.traced.iter().flat_map(Traced::sentences).collect()
    }

    /// Its content as tables, for any report format.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = self.traced.iter().flat_map(Traced::tables).collect();
        tables.extend(DeviceUse::table(&self.devices));
        tables
    }
}
