//! `checkpoint.json`: the job, where it stands, and what the other files must be.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    Checkpoint, CheckpointError, MANIFEST_FILE, Position, STATE_FILE, WEIGHTS_FILE, Weights, disk, tensors,
};
use crate::data::Data;
use crate::learning::OptimizerRecord;
use crate::{Job, Numerics};

const FORMAT: &str = "paceline-checkpoint";

/// The version that this program writes and reads.
const VERSION: u32 = 2;

/// What a file must be.
#[derive(Debug, Serialize, Deserialize)]
struct Seal {
    bytes: u64,
    sha256: String,
}

impl Seal {
    fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, sha256: hash(bytes) }
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, CheckpointError> {
        // The length comes first: a file that has grown is not read.
        let found = disk::length(path)?;
        if found != self.bytes {
            return Err(CheckpointError::damaged(path, format!("it has {found} bytes, not {}", self.bytes)));
        }
        let bytes = disk::read(path)?;
        if hash(&bytes) != self.sha256 {
            return Err(CheckpointError::damaged(path, "its SHA-256 is not the one that was written"));
        }
        Ok(bytes)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Files {
    weights: Seal,
    state: Seal,
}

/// Where the data is, and what it is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Place {
    /// Its name with a path from the checkpoint's folder, for a folder that moves with its data; the job has an absolute
    /// one.
    relative: Option<String>,
    pub(super) fingerprint: String,
}

/// The contents of `checkpoint.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: String,
    version: u32,
    pub(super) job: Job,
    pub(super) numerics: Numerics,
    optimizer: OptimizerRecord,
    pub(super) data: Place,
    pub(super) position: Position,
    files: Files,
    /// Of the file with an empty `sha256`.
    sha256: String,
}

#[derive(Deserialize)]
struct Stamp {
    format: String,
    version: u32,
}

impl Manifest {
    /// Of a checkpoint that will be in `folder`.
    pub(super) fn new(checkpoint: &Checkpoint, folder: &Path, weights: &[u8], state: &[u8]) -> Self {
        let Checkpoint { job, numerics, fingerprint, position, .. } = checkpoint;
        let relative = job.data.parse().ok().and_then(|data: Data| data.relative_to(folder));
        let mut manifest = Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            job: job.without_places(),
            numerics: numerics.clone(),
            optimizer: job.learning.record(),
            data: Place { relative, fingerprint: fingerprint.clone() },
            position: position.clone(),
            files: Files { weights: Seal::of(weights), state: Seal::of(state) },
            sha256: String::new(),
        };
        manifest.sha256 = hash(&manifest.render());
        manifest
    }

    pub(super) fn render(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("invariant: a manifest is plain data");
        bytes.push(b'\n');
        bytes
    }

    pub(super) fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(MANIFEST_FILE);
        let damaged = |why: String| CheckpointError::damaged(&path, why);
        let bytes = disk::read(&path)?;
        let stamp: Stamp = serde_json::from_slice(&bytes)
            .map_err(|error| damaged(format!("it is not a manifest ({error})")))?;
        if stamp.format != FORMAT {
            return Err(CheckpointError::foreign(&path, format!("its format is '{}'", stamp.format)));
        }
        if stamp.version != VERSION {
            let why = format!(
                "it has version {}, and this program reads version {VERSION}; use the version of Paceline that wrote it",
                stamp.version
            );
            return Err(CheckpointError::foreign(&path, why));
        }
        let mut manifest: Self = serde_json::from_slice(&bytes)
            .map_err(|error| damaged(format!("it is not a manifest ({error})")))?;
        if !manifest.is_sealed(&bytes) {
            return Err(damaged("its SHA-256 is not the one that was written".into()));
        }
        let record = manifest.job.learning.record();
        if manifest.optimizer != record {
            let why = format!("its optimizer was {:?}, and this program's is {record:?}", manifest.optimizer);
            return Err(CheckpointError::foreign(&path, why));
        }
        if let Some(found) = manifest.data.relative.as_deref().and_then(|name| Data::found_from(folder, name))
        {
            manifest.job.data = found;
        }
        Ok(manifest)
    }

    /// Whether the file is as it was written: its hash is that of the file without the hash.
    fn is_sealed(&self, bytes: &[u8]) -> bool {
        let line = format!("\"sha256\": \"{}\"\n}}\n", self.sha256);
        let empty = b"\"sha256\": \"\"\n}\n";
        let whole = bytes.strip_suffix(line.as_bytes()).map(|start| [start, empty].concat());
        whole.is_some_and(|whole| hash(&whole) == self.sha256)
    }

    pub(super) fn read_weights(&self, folder: &Path) -> Result<Weights, CheckpointError> {
        let path = folder.join(WEIGHTS_FILE);
        tensors::unpack(&self.files.weights.read(&path)?, &path)
    }

    pub(super) fn read_state(&self, folder: &Path) -> Result<Vec<u8>, CheckpointError> {
        self.files.state.read(&folder.join(STATE_FILE))
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("invariant: a string takes all that is written to it");
        hex
    })
}
