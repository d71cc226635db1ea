//! The study's folder: what lies where, and files that are never half written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use paceline_record::Outcome;
use paceline_record::log::{LAUNCHER_FILE, LauncherLog};
use serde::Deserialize;

use crate::{CaseReport, LabError, Planned, Report, Run, SCHEMA, Study};

const STUDY: &str = "study.json";
const REPORT: &str = "report.json";

/// What becomes of a study that a folder holds already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It is gone on with, if it asks for the same.
    Resume,
    /// It is replaced.
    Replace,
}

/// A study's folder.
#[derive(Clone, Debug)]
pub struct StudyFolder {
    path: PathBuf,
}

impl StudyFolder {
    /// Makes a new folder `study-<number>` in `parent`, with the lowest number that is free.
    pub fn numbered(parent: &Path) -> Result<PathBuf, LabError> {
        for number in 1u32.. {
            let path = numbered(parent, number);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(LabError::io("create", path)(error)),
            }
        }
        unreachable!("no folder holds four billion studies")
    }

    /// The last of the numbered studies in `parent`, where there is one.
    pub fn latest(parent: &Path) -> Option<PathBuf> {
        let studies = (1u32..).map(|number| numbered(parent, number));
        studies.take_while(|path| path.exists()).filter(|path| path.join(STUDY).exists()).last()
    }

    /// The last numbered study in `parent`, if it asks for the same as `study` and has not come to its end.
    pub fn unfinished(parent: &Path, study: &Study) -> Option<PathBuf> {
        let path = Self::latest(parent)?;
        let (folder, held) = Self::open(&path).ok()?;
        let unfinished = held.cases.iter().any(|planned| !folder.is_done(planned));
        (study.asks_the_same_as(&held) && unfinished).then_some(path)
    }

    /// Opens the folder of a study, and reads what was asked.
    pub fn open(path: &Path) -> Result<(Self, Study), LabError> {
        let file = path.join(STUDY);
        match fs::read(&file) {
            Ok(bytes) => Ok((Self { path: path.into() }, parse_study(&file, &bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(LabError::NoStudy { path: path.into() })
            }
            Err(error) => Err(LabError::io("read", file)(error)),
        }
    }

    /// Starts a study in a folder: a new one, an empty one, or one that holds a study.
    pub fn start(path: &Path, study: &Study, held: Held) -> Result<Self, LabError> {
        fs::create_dir_all(path).map_err(LabError::io("create", path))?;
        let folder = Self { path: path.into() };
        match Self::open(path) {
            Ok((_, old)) if held == Held::Resume => {
                if !study.asks_the_same_as(&old) {
                    return Err(LabError::Exists { path: folder.path });
                }
                return Ok(folder);
            }
            Ok((_, old)) => folder.clear(&old)?,
            Err(LabError::NoStudy { path }) => {
                let mut entries = fs::read_dir(&path).map_err(LabError::io("read", &path))?;
                if entries.next().is_some() {
                    return Err(LabError::NotAStudy { path });
                }
            }
            Err(error) => return Err(error),
        }
        folder.write_json(STUDY, study)?;
        Ok(folder)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the report lies.
    pub fn report_path(&self) -> PathBuf {
        self.path.join(REPORT)
    }

    /// Makes the folder of a run anew: what an unfinished one left is removed.
    pub fn create_case(&self, planned: &Planned) -> Result<PathBuf, LabError> {
        let path = self.path.join(&planned.folder);
        self.remove_case(planned)?;
        fs::create_dir_all(&path).map_err(LabError::io("create", &path))?;
        Ok(path)
    }

    /// Whether a run came to its end, all well.
    pub fn is_done(&self, planned: &Planned) -> bool {
        let log = LauncherLog::read(&self.path.join(&planned.folder));
        log.is_ok_and(|log| log.outcome() == Outcome::Done)
    }

    /// The numbers of one case, from the logs of its repeats; `None` where none of them has begun. Logs that cannot be
    /// read are a failure of their case, not of the study.
    pub fn analyse_case(&self, study: &Study, place: usize) -> Option<CaseReport> {
        let begun = |planned: &&Planned| {
            planned.place == place && self.path.join(&planned.folder).join(LAUNCHER_FILE).exists()
        };
        let begun: Vec<&Planned> = study.cases.iter().filter(begun).collect();
        let runs: Result<Vec<Run>, LabError> =
            begun.iter().map(|planned| Run::read(&self.path.join(&planned.folder))).collect();
        let first = begun.first()?;
        Some(match runs {
            Ok(runs) => CaseReport::of(&runs),
            Err(error) => CaseReport::unreadable(&first.case, &error),
        })
    }

    /// Reads the logs of a study and sets its cases side by side.
    pub fn analyse(&self, study: &Study) -> Report {
        let cases = (0..study.places()).filter_map(|place| self.analyse_case(study, place));
        Report::new(study, cases.collect())
    }

    /// Writes `report.json`.
    pub fn write_report(&self, report: &Report) -> Result<(), LabError> {
        self.write_json(REPORT, report)
    }

    /// Writes every file of a report.
    pub fn write_all(&self, study: &Study, report: &Report) -> Result<(), LabError> {
        let _ = study;
        self.write_report(report)
    }

    /// Removes what an older study left, and nothing else.
    fn clear(&self, old: &Study) -> Result<(), LabError> {
        for planned in &old.cases {
            self.remove_case(planned)?;
        }
        match fs::remove_file(self.report_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LabError::io("remove", self.report_path())(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes a run's folder, if it is one.
    fn remove_case(&self, planned: &Planned) -> Result<(), LabError> {
        let folder = self.path.join(&planned.folder);
        if !is_plain_name(&planned.folder) || !folder.join(LAUNCHER_FILE).exists() {
            return Ok(());
        }
        fs::remove_dir_all(&folder).map_err(LabError::io("remove", folder))
    }

    fn write_json<T: serde::Serialize>(&self, name: &str, value: &T) -> Result<(), LabError> {
        let mut text = serde_json::to_vec_pretty(value).expect("invariant: plain data");
        text.push(b'\n');
        self.write(name, &text)
    }

    /// Writes a file beside its place, and moves it there once it is on the disk.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), LabError> {
        let path = self.path.join(name);
        let draft = self.path.join(format!(".{name}.draft"));
        let write = || -> io::Result<()> {
            let mut file = File::create(&draft)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|error| {
            // The draft may not even exist; the first error is the one to tell.
            let _ = fs::remove_file(&draft);
            LabError::io("write", path.clone())(error)
        })
    }
}

fn numbered(parent: &Path, number: u32) -> PathBuf {
    parent.join(format!("study-{number}"))
}

/// Whether a name from a file can only mean something inside of the folder.
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(std::path::Component::Normal(_))) && parts.next().is_none()
}

fn parse_study(path: &Path, bytes: &[u8]) -> Result<Study, LabError> {
    #[derive(Deserialize)]
    struct Versioned {
        schema: u32,
    }
    let bad = |error: serde_json::Error| LabError::BadFile { path: path.into(), why: error.to_string() };
    let Versioned { schema } = serde_json::from_slice(bytes).map_err(bad)?;
    if schema != SCHEMA {
        return Err(LabError::Schema { path: path.into(), found: schema });
    }
    let study: Study = serde_json::from_slice(bytes).map_err(bad)?;
    match study.cases.iter().find(|planned| !is_plain_name(&planned.folder)) {
        Some(planned) => {
            let why = format!("'{}' is no name of a case's folder", planned.folder);
            Err(LabError::BadFile { path: path.into(), why })
        }
        None => Ok(study),
    }
}

#[cfg(test)]
mod tests;
