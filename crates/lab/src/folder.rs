//! The study's folder: what lies where, and files that are never half written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{CaseReport, LabError, Report, Run, SCHEMA, Study};

const STUDY: &str = "study.json";
const REPORT: &str = "report.json";

/// A study's folder.
#[derive(Clone, Debug)]
pub struct StudyFolder {
    path: PathBuf,
}

impl StudyFolder {
    /// Makes a new folder `study-<number>` in `parent`, with the lowest number that is free.
    pub fn numbered(parent: &Path) -> Result<PathBuf, LabError> {
        for number in 1u32.. {
            let path = parent.join(format!("study-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(LabError::io("create", path)(error)),
            }
        }
        unreachable!("no folder holds four billion studies")
    }

    /// Starts a study in a folder: a new one, an empty one, or, on request, one that holds a study to be replaced.
    pub fn start(path: &Path, study: &Study, replace: bool) -> Result<Self, LabError> {
        fs::create_dir_all(path).map_err(LabError::io("create", path))?;
        let folder = Self { path: path.into() };
        if folder.path.join(STUDY).exists() && !replace {
            return Err(LabError::Exists { path: folder.path });
        }
        folder.clear()?;
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

    /// Makes the folder of a case.
    pub fn create_case(&self, name: &str) -> Result<PathBuf, LabError> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(LabError::io("create", &path))?;
        Ok(path)
    }

    /// Reads the logs of some cases and sets their numbers side by side.
    pub fn analyse<'a>(&self, cases: impl IntoIterator<Item = &'a str>) -> Result<Report, LabError> {
        let runs = cases.into_iter().map(|case| Ok(CaseReport::of(&Run::read(&self.path.join(case))?)));
        Ok(Report::new(runs.collect::<Result<_, LabError>>()?))
    }

    /// Writes `report.json`.
    pub fn write_report(&self, report: &Report) -> Result<(), LabError> {
        self.write_json(REPORT, report)
    }

    /// Removes what an older study left; refuses to touch a folder that holds anything else.
    fn clear(&self) -> Result<(), LabError> {
        let study = self.path.join(STUDY);
        let bytes = match fs::read(&study) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut entries = fs::read_dir(&self.path).map_err(LabError::io("read", &self.path))?;
                return match entries.next() {
                    None => Ok(()),
                    Some(_) => Err(LabError::NotAStudy { path: self.path.clone() }),
                };
            }
            Err(error) => return Err(LabError::io("read", study)(error)),
        };
        for case in parse_study(&study, &bytes)?.cases {
            let folder = self.path.join(&case.folder);
            if is_plain_name(&case.folder) && folder.join(paceline_record::log::LAUNCHER_FILE).exists() {
                fs::remove_dir_all(&folder).map_err(LabError::io("remove", folder))?;
            }
        }
        match fs::remove_file(self.report_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LabError::io("remove", self.report_path())(error))
            }
            _ => Ok(()),
        }
    }

    /// Writes a file beside its place, and moves it there once it is on the disk.
    fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), LabError> {
        let path = self.path.join(name);
        let draft = self.path.join(format!(".{name}.draft"));
        let write = || -> io::Result<()> {
            let mut file = File::create(&draft)?;
            let mut text = serde_json::to_vec_pretty(value)?;
            text.push(b'\n');
            file.write_all(&text)?;
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
    serde_json::from_slice(bytes).map_err(bad)
}

#[cfg(test)]
mod tests {
    use paceline_record::log::LauncherWriter;
    use paceline_record::{Case, LauncherHeader};

    use super::*;
    use crate::study::Planned;
    use crate::{Machine, report::tests::case};

    fn study(cases: &[&str]) -> Study {
        let planned = |folder: &&str| Planned {
            folder: (*folder).into(),
            case: Case::default(),
            steps: 1,
            data: "synthetic:cifar10".into(),
            seed: 0,
            learning_rate: 0.1,
        };
        Study {
            schema: SCHEMA,
            program: "0.1.0".into(),
            command: vec!["bench".into()],
            machine: Machine::default(),
            cases: cases.iter().map(planned).collect(),
        }
    }

    #[test]
    fn a_folder_with_something_else_in_it_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("thesis.tex"), "years of work").expect("a file");
        let error = StudyFolder::start(folder.path(), &study(&[]), true).expect_err("not a study");
        assert!(matches!(error, LabError::NotAStudy { .. }), "{error}");
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1);
    }

    #[test]
    fn an_older_study_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let old = StudyFolder::start(folder.path(), &study(&["a-w1", "../b"]), false).expect("new");
        let logged = old.create_case("a-w1").expect("a case");
        let header = LauncherHeader { case: Case::default() };
        LauncherWriter::create(&logged, &header).expect("a log");
        old.create_case("notes").expect("something of the user's");
        old.write_report(&Report::new(vec![case(1, 1.0, 1.0)])).expect("a report");
        let kept = StudyFolder::start(folder.path(), &study(&["c-w1"]), false).expect_err("nobody asked");
        assert!(kept.to_string().contains("--fresh"), "{kept}");
        let new = StudyFolder::start(folder.path(), &study(&["c-w1"]), true).expect("a study");
        assert!(!logged.exists() && !new.report_path().exists());
        assert!(folder.path().join("notes").exists());
    }

    #[test]
    fn a_study_of_another_schema_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join(STUDY), r#"{"schema": 99}"#).expect("a file");
        let error = StudyFolder::start(folder.path(), &study(&[]), true).expect_err("other schema");
        assert!(error.to_string().contains("schema version 99"), "{error}");
    }

    #[test]
    fn numbered_folders_do_not_meet() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let first = StudyFolder::numbered(parent.path()).expect("room");
        let second = StudyFolder::numbered(parent.path()).expect("room");
        assert!(first.ends_with("study-1") && second.ends_with("study-2"));
    }

    #[test]
    fn a_written_report_leaves_no_draft() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let started = StudyFolder::start(folder.path(), &study(&[]), true).expect("a study");
        started.write_report(&Report::new(Vec::new())).expect("a report");
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["report.json", "study.json"]);
    }
}
