//! A log of the samples that were handed out, for debugging: a line `epoch step shard index index ...` for each batch, or
//! several where a batch reaches into the next epoch.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::order::{Drawn, Turn};
use crate::TrainError;

/// Appends to a file.
pub struct SampleLog {
    path: PathBuf,
    file: File,
    lines: String,
}

impl SampleLog {
    pub fn open(path: &Path) -> Result<Self, TrainError> {
        let file = File::options()
            .append(true)
            .create(true)
            .open(path)
            .map_err(TrainError::system(format!("write {}", path.display())))?;
        Ok(Self { path: path.into(), file, lines: String::new() })
    }

    /// Writes the lines of a batch.
    pub fn append(&mut self, turn: Turn, drawn: impl Iterator<Item = Drawn>) -> Result<(), TrainError> {
        self.lines.clear();
        let mut open = None;
        for Drawn { epoch, index } in drawn {
            if open.replace(epoch) != Some(epoch) {
                self.lines.push_str(if self.lines.is_empty() { "" } else { "\n" });
                let _ = write!(self.lines, "{epoch} {} {}", turn.step, turn.shard);
            }
            let _ = write!(self.lines, " {index}");
        }
        self.lines.push('\n');
        let written = self.file.write_all(self.lines.as_bytes());
        written.map_err(TrainError::system(format!("write {}", self.path.display())))
    }
}
