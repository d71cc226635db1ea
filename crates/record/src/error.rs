//! What can be wrong with a log.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A log that could not be written or read; each names the file, and the line where there is one.
#[derive(Debug)]
pub enum LogError {
    /// The system refused: see the cause.
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Reject the file: no whole header line.
    NoHeader {
        /// The file.
        path: PathBuf,
    },
    /// Reject the file: written in a version that this program does not read.
    Version {
        /// The file.
        path: PathBuf,
        /// The version it has.
        found: u32,
    },
    /// Reject the file: a whole line that is not an event.
    Garbage {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, .. } => write!(f, "cannot read or write {}", path.display()),
            Self::NoHeader { path } => {
                write!(f, "{} is not a run log: it has no header line", path.display())
            }
            Self::Version { path, found } => write!(
                f,
                "{} is a run log of version {found}, and this program reads versions 1 to {}; use a later release",
                path.display(),
                crate::log::VERSION
            ),
            Self::Garbage { path, line, why } => {
                write!(f, "{} line {line} is damaged: {why}", path.display())
            }
        }
    }
}

impl std::error::Error for LogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
