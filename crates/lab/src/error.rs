//! Errors of reading and writing studies.

use std::io;
use std::path::PathBuf;

use paceline_record::LogError;

/// A study that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Reject the input: a log is missing or damaged.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Reject the input: the logs of a case contradict each other.
    #[error("{folder}: {why}", folder = folder.display())]
    Contradiction {
        /// The case's folder.
        folder: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// Reject the input: the folder holds something, but no study.
    #[error("{path} is not empty and has no study.json; choose another --out", path = path.display())]
    NotAStudy {
        /// The folder.
        path: PathBuf,
    },
    /// Reject the input: there is no study in the folder.
    #[error("{path} is not a study: it has no study.json", path = path.display())]
    NoStudy {
        /// The folder.
        path: PathBuf,
    },
    /// Reject the input: the folder holds a different study, and `--fresh` was not given.
    #[error(
        "{path} holds a different study (other cases, another machine or another version of this program); use --fresh to replace \
         it, or choose another --out",
        path = path.display()
    )]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// Retry later: another process works in the folder.
    #[error("another process is using {path}; wait for it, or choose another --out", path = path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// Reject the input: a file that is not what its name says.
    #[error("{path} is not a valid study file: {why}", path = path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Reject the input: a study with an unknown schema version.
    #[error("{path} has schema version {found}, but this program reads {known}; use the version that wrote it, or another folder", path = path.display(), known = crate::SCHEMA)]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The system refused: see the cause.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    Io {
        /// The verb.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl LabError {
    /// What the system answered when a file could not be read or written.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}
