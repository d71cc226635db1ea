//! `checkpoint.json`: where the training stands, and what the other files must be.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    Checkpoint, CheckpointError, Description, MANIFEST_FILE, Position, STATE_FILE, WEIGHTS_FILE, disk,
};

const FORMAT: &str = "paceline-checkpoint";

/// The version that this program writes and reads.
const VERSION: u32 = 1;

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

/// The contents of `checkpoint.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: String,
    version: u32,
    pub(super) network: Description,
    pub(super) position: Position,
    files: Files,
    /// Of all this with an empty `sha256`.
    sha256: String,
}

#[derive(Deserialize)]
struct Stamp {
    format: String,
    version: u32,
}

impl Manifest {
    pub(super) fn new(checkpoint: &Checkpoint, weights: &[u8], state: &[u8]) -> Self {
        let mut manifest = Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            network: checkpoint.network.clone(),
            position: checkpoint.position.clone(),
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
        let bytes = disk::read(&path)?;
        let stamp: Stamp = serde_json::from_slice(&bytes)
            .map_err(|error| CheckpointError::damaged(&path, format!("it is no manifest ({error})")))?;
        if stamp.format != FORMAT {
            return Err(CheckpointError::foreign(&path, format!("its format is '{}'", stamp.format)));
        }
        if stamp.version != VERSION {
            let why = format!("it is of version {}, and this program reads {VERSION}", stamp.version);
            return Err(CheckpointError::foreign(&path, why));
        }
        let mut manifest: Self = serde_json::from_slice(&bytes)
            .map_err(|error| CheckpointError::damaged(&path, format!("it is no manifest ({error})")))?;
        let rendered = manifest.render();
        let sha256 = std::mem::take(&mut manifest.sha256);
        if rendered != bytes || hash(&manifest.render()) != sha256 {
            return Err(CheckpointError::damaged(&path, "its SHA-256 is not the one that was written"));
        }
        Ok(manifest)
    }

    pub(super) fn read_weights(&self, folder: &Path) -> Result<Vec<u8>, CheckpointError> {
        self.files.weights.read(&folder.join(WEIGHTS_FILE))
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
