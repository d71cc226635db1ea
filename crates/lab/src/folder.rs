//! The study folder: its layout, and files that are never half written.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::iter;
use std::path::{Path, PathBuf};

use paceline_record::log::{LAUNCHER_FILE, LauncherLog};
use paceline_record::{LayerTime, Outcome};
use serde::Deserialize;

use crate::origin::Origin;
use crate::{
    CaseReport, LabError, Planned, Report, Run, SCHEMA, Study, csv, html, markdown, tensorboard, timeline,
};

const STUDY: &str = "study.json";
const REPORT: &str = "report.json";
/// What numbered folders of studies are called.
const STUDIES: &str = "study";
/// The time of each layer, in the folder of a run that was profiled.
const LAYERS: &str = "layers.json";

mod collected;

pub use self::collected::{Followed, Placed};

/// What to do with a study that is already in the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Continue it, if it asks for the same cases.
    Resume,
    /// Replace it.
    Replace,
}

/// A study's folder.
#[derive(Debug)]
pub struct StudyFolder {
    path: PathBuf,
    /// The folder itself, locked by the process that writes in it.
    lock: Option<File>,
    /// `study.json`, locked by the process that runs the study.
    study: Option<File>,
}

/// The logs of one case, with all repeats that have begun.
#[derive(Debug)]
pub struct CaseLogs<'a> {
    /// Repeats that have begun, with their logs.
    begun: Vec<(&'a Planned, Result<Run, LabError>)>,
    /// Origin of the first repeat, if it was imported.
    origin: Result<Option<Origin>, LabError>,
    /// Number of repeats that have not begun.
    missing: usize,
    /// Files of the repeats that have begun, relative to the study's folder.
    files: Vec<String>,
    /// The profile of the first repeat, if it has one.
    layers: Result<Vec<LayerTime>, LabError>,
}

impl CaseLogs<'_> {
    /// The numbers of one repeat alone; `None` if it has not begun, or its logs cannot be read.
    pub fn report_repeat(&self, repeat: u32) -> Option<CaseReport> {
        let (_, run) = self.begun.iter().find(|(planned, _)| planned.repeat == repeat)?;
        Some(CaseReport::of(std::slice::from_ref(run.as_ref().ok()?)))
    }

    /// The numbers of the case. Unreadable logs fail the case, not the study.
    pub fn report(self) -> CaseReport {
        let case = self.begun[0].0.case.clone();
        let repeats = self.begun.len() + self.missing;
        let (runs, damaged): (Vec<_>, Vec<_>) =
            self.begun.into_iter().map(|(_, run)| run).partition(Result::is_ok);
        let runs: Vec<Run> = runs.into_iter().filter_map(Result::ok).collect();
        let logged = self.origin.as_ref().ok().and_then(|origin| origin.as_ref()?.progress.as_ref());
        // Where a log is all there is, no rank has one.
        let error = damaged.into_iter().find_map(Result::err).filter(|_| logged.is_none());
        let mut report = match (logged, &runs[..], &error) {
            (Some(progress), ..) => CaseReport::logged(&case, progress),
            (None, [], Some(error)) => CaseReport::unreadable(&case, error),
            _ => CaseReport::of(&runs),
        };
        if let (Some(error), true) = (error, report.reason.is_none()) {
            report.reason = Some(format!("the logs of some repeats were skipped: {error}"));
        } else if self.missing > 0 && report.reason.is_none() {
            report.reason = Some(format!("{} of {repeats} repeats have not run", self.missing));
        }
        report.files = self.files;
        match self.layers {
            Ok(layers) => report.layers = layers,
            Err(error) if report.reason.is_none() => report.reason = Some(error.to_string()),
            Err(_) => {}
        }
        match self.origin {
            Ok(Some(origin)) => report.imported_from(origin),
            Err(error) if report.reason.is_none() => {
                report.reason = Some(format!("origin.json was skipped: {error}"));
            }
            _ => {}
        }
        report
    }
}

impl StudyFolder {
    /// Makes a new folder `study-<number>` in `parent`, with the number after the last.
    pub fn numbered(parent: &Path) -> Result<PathBuf, LabError> {
        Self::numbered_as(parent, STUDIES)
    }

    /// The same with another name than `study`.
    pub fn numbered_as(parent: &Path, name: &str) -> Result<PathBuf, LabError> {
        for number in last_number(parent, name) + 1.. {
            let path = parent.join(format!("{name}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(LabError::io("create", path)(error)),
            }
        }
        unreachable!("no folder holds four billion studies")
    }

    /// Whether a folder holds a study.
    pub fn is_study(path: &Path) -> bool {
        path.join(STUDY).exists()
    }

    /// The last numbered study in `parent`, if any.
    pub fn latest(parent: &Path) -> Option<PathBuf> {
        let studies =
            (1..=last_number(parent, STUDIES)).rev().map(|number| parent.join(format!("{STUDIES}-{number}")));
        studies.into_iter().find(|path| Self::is_study(path))
    }

    /// The last numbered study in `parent`, if it asks for the same as `study` and is unfinished.
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
            Ok(bytes) => {
                Ok((Self { path: path.into(), lock: None, study: None }, parse_study(&file, &bytes)?))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(LabError::NoStudy { path: path.into() })
            }
            Err(error) => Err(LabError::io("read", file)(error)),
        }
    }

    /// Starts a study in a folder that is new, empty, or holds a study.
    pub fn start(path: &Path, study: &Study, held: Held) -> Result<Self, LabError> {
        fs::create_dir_all(path).map_err(LabError::io("create", path))?;
        let mut folder = Self { path: path.into(), lock: None, study: None };
        folder.lock()?;
        match Self::open(path) {
            Ok((_, old)) if held == Held::Resume => {
                if !study.asks_the_same_as(&old) {
                    return Err(LabError::Exists { path: folder.path });
                }
                folder.hold_study()?;
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
        folder.hold_study()?;
        Ok(folder)
    }

    /// Makes a study of a folder whose runs were done before anybody knew that it would be one.
    pub fn adopt(path: &Path, study: &Study) -> Result<Self, LabError> {
        let mut folder = Self { path: path.into(), lock: None, study: None };
        folder.lock()?;
        folder.write_json(STUDY, study)?;
        folder.hold_study()?;
        Ok(folder)
    }

    /// Adds a run to the study in a folder, as a new case with an unused name.
    pub fn append(path: &Path, planned: &mut Planned) -> Result<(Self, Study), LabError> {
        let (mut folder, mut study) = Self::open(path)?;
        folder.lock()?;
        let name = planned.folder.clone();
        let taken = |name: &str| study.cases.iter().any(|planned| planned.folder == name);
        let mut numbers = 2..;
        while taken(&planned.folder) {
            planned.folder =
                format!("{name}-{}", numbers.next().expect("invariant: there is always a next number"));
        }
        planned.place = study.places();
        study.cases.push(planned.clone());
        folder.write_json(STUDY, &study)?;
        folder.hold_study()?;
        Ok((folder, study))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the report.
    pub fn report_path(&self) -> PathBuf {
        self.path.join(REPORT)
    }

    /// Creates the folder of a run, removing what an unfinished run left.
    pub fn create_case(&self, planned: &Planned) -> Result<PathBuf, LabError> {
        let path = self.path.join(&planned.folder);
        self.remove_case(planned)?;
        fs::create_dir_all(&path).map_err(LabError::io("create", &path))?;
        Ok(path)
    }

    /// Whether a run finished successfully.
    pub fn is_done(&self, planned: &Planned) -> bool {
        let log = LauncherLog::read(&self.path.join(&planned.folder));
        log.is_ok_and(|log| log.outcome() == Outcome::Done)
    }

    /// Keeps other processes from working in the folder for as long as this lives.
    pub fn lock(&mut self) -> Result<(), LabError> {
        let folder = File::open(&self.path).map_err(LabError::io("open", &self.path))?;
        match folder.try_lock() {
            Ok(()) => self.lock = Some(folder),
            Err(TryLockError::WouldBlock) => return Err(LabError::Busy { path: self.path.clone() }),
            Err(TryLockError::Error(error)) => return Err(LabError::io("lock", &self.path)(error)),
        }
        Ok(())
    }

    /// Reads the logs of one case; `None` if no repeat has begun.
    pub fn read_case<'a>(&self, study: &'a Study, place: usize) -> Option<CaseLogs<'a>> {
        let all = study.cases.iter().filter(|planned| planned.place == place);
        let (begun, missing): (Vec<&Planned>, Vec<&Planned>) =
            all.partition(|planned| self.has_begun(planned));
        let read = |planned: &'a Planned| {
            let run = Run::read(&self.path.join(&planned.folder));
            (planned, run.map(|run| Run { asked: Some(planned.steps), ..run }))
        };
        let begun: Vec<_> = begun.into_iter().map(read).collect();
        let first = &begun.first()?.0.folder;
        let origin = Origin::read(&self.path.join(first));
        let layers = read_layers(&self.path.join(first));
        let files = begun.iter().flat_map(|(planned, _)| list_files(&self.path, &planned.folder)).collect();
        Some(CaseLogs { begun, origin, missing: missing.len(), files, layers })
    }

    fn has_begun(&self, planned: &Planned) -> bool {
        self.path.join(&planned.folder).join(LAUNCHER_FILE).exists()
    }

    /// Reads the logs of a study and compares its cases.
    pub fn analyse(&self, study: &Study) -> Report {
        let cases = (0..study.places()).filter_map(|place| self.read_case(study, place));
        let mut report = Report::new(study, cases.map(|logs| logs.report()).collect());
        // Between two cases none is running, but the study is.
        report.running |= self.is_running();
        report
    }

    /// Whether another process is running the study.
    fn is_running(&self) -> bool {
        let held = |study: File| matches!(study.try_lock_shared(), Err(TryLockError::WouldBlock));
        self.study.is_none() && File::open(self.path.join(STUDY)).is_ok_and(held)
    }

    /// Lets others know, for as long as this lives, that the study is running: they may write no report, but read one.
    fn hold_study(&mut self) -> Result<(), LabError> {
        let path = self.path.join(STUDY);
        let study = File::open(&path).map_err(LabError::io("open", path))?;
        // On a file system without locks nobody can know; that is no reason not to run.
        let _ = study.lock();
        self.study = Some(study);
        Ok(())
    }

    /// Writes `report.json`.
    pub fn write_report(&self, report: &Report) -> Result<(), LabError> {
        self.write_json(REPORT, report)
    }

    /// Writes TensorBoard's event files of a case.
    pub fn write_tensorboard(&self, logs: &CaseLogs<'_>) -> Result<(), LabError> {
        for (planned, run) in
            logs.begun.iter().filter_map(|(planned, run)| Some((planned, run.as_ref().ok()?)))
        {
            for rank in &run.ranks {
                let who = run.name(rank.header.who());
                let name = tensorboard::file_name(&planned.folder, &who, run.launcher.header.started);
                let path = self.path.join(&name);
                let folder = path.parent().expect("invariant: it lies in a folder");
                fs::create_dir_all(folder).map_err(LabError::io("create", folder))?;
                self.write(&name, &tensorboard::render_rank(run, rank))?;
            }
        }
        Ok(())
    }

    /// Writes the report in all other formats, and the timeline.
    pub fn write_pages(&self, study: &Study, report: &Report) -> Result<(), LabError> {
        self.write_report(report)?;
        self.write(Path::new("report.html"), html::render(report).as_bytes())?;
        self.write(Path::new("report.md"), markdown::render(report).as_bytes())?;
        self.write(Path::new("report.csv"), csv::render(report).as_bytes())?;
        let begun = study.cases.iter().filter(|planned| self.has_begun(planned));
        let cases: Vec<(String, PathBuf)> =
            begun.map(|planned| (planned.folder.clone(), self.path.join(&planned.folder))).collect();
        self.write_with(Path::new("timeline.json"), |out| timeline::write(&cases, out))
    }

    /// Removes the files of an older study, and nothing else.
    fn clear(&self, old: &Study) -> Result<(), LabError> {
        for planned in &old.cases {
            self.remove_case(planned)?;
        }
        for name in [REPORT, "report.html", "report.md", "report.csv", "timeline.json"] {
            remove(&self.path.join(name), |path| fs::remove_file(path))?;
        }
        Ok(())
    }

    /// Removes a run's folder, if it is one, and its event files.
    fn remove_case(&self, planned: &Planned) -> Result<(), LabError> {
        if !self.has_begun(planned) {
            return Ok(());
        }
        remove(&self.path.join(tensorboard::folder_name(&planned.folder)), |path| fs::remove_dir_all(path))?;
        remove(&self.path.join(&planned.folder), |path| fs::remove_dir_all(path))
    }

    fn write_json<T: serde::Serialize>(&self, name: &str, value: &T) -> Result<(), LabError> {
        let mut text = serde_json::to_vec_pretty(value).expect("invariant: plain data");
        text.push(b'\n');
        self.write(Path::new(name), &text)
    }

    fn write(&self, name: &Path, bytes: &[u8]) -> Result<(), LabError> {
        let path = self.path.join(name);
        self.write_with(name, |out| out.write_all(bytes).map_err(LabError::io("write", path)))
    }

    fn write_with(
        &self,
        name: &Path,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        write_draft(&self.path.join(".draft"), &self.path.join(name), fill)
    }
}

/// Writes a file of a user's own choice whole or not at all. Its draft bears its name: other files there are not ours.
pub fn write_whole(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), LabError> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".draft");
    write_draft(&path.with_file_name(name), path, |out| fill(out).map_err(LabError::io("write", path)))
}

/// Writes a draft, and renames it once it is on disk.
fn write_draft(
    draft: &Path,
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let write = || -> Result<(), LabError> {
        let mut out = BufWriter::new(File::create(draft).map_err(LabError::io("create", path))?);
        fill(&mut out)?;
        let move_there = || -> io::Result<()> {
            out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
            fs::rename(draft, path)?;
            File::open(folder)?.sync_all()
        };
        move_there().map_err(LabError::io("write", path))
    };
    write().inspect_err(|_| {
        // The draft may not exist; report the first error.
        let _ = fs::remove_file(draft);
    })
}

/// The times of a run's layers; none if it was not profiled.
fn read_layers(folder: &Path) -> Result<Vec<LayerTime>, LabError> {
    let path = folder.join(LAYERS);
    match fs::read(&path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|error| LabError::BadFile { path, why: error.to_string() })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(LabError::io("read", path)(error)),
    }
}

/// The files in a run's folder and in those of its other hosts, relative to the study's; those that cannot be listed are not linked.
fn list_files(study: &Path, folder: &str) -> Vec<String> {
    let entries = |folder: &str| fs::read_dir(study.join(folder)).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
    let hosts = entries(folder).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let hosts = hosts.filter_map(name).filter(|name| name.starts_with("host-"));
    let folders = iter::once(folder.to_owned()).chain(hosts.map(|host| format!("{folder}/{host}")));
    let files = |folder: String| {
        let files = entries(&folder).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        files.filter_map(name).map(move |name| format!("{folder}/{name}"))
    };
    let mut files: Vec<String> = folders.flat_map(files).collect();
    // What a worker said last is what a reader of a failed case looks for.
    files.sort_by_key(|file| (!file.ends_with(".stderr"), file.clone()));
    files
}

/// Removes a file or folder, if it exists.
fn remove(path: &Path, how: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), LabError> {
    match how(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LabError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The highest number of a folder of this name; 0 if there is none.
fn last_number(parent: &Path, name: &str) -> u32 {
    let here = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let names = fs::read_dir(here).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let number = |entry: OsString| entry.to_str()?.strip_prefix(name)?.strip_prefix('-')?.parse().ok();
    // A folder with an unreasonably large number is not ours.
    names.filter_map(number).filter(|&number: &u32| number < 1_000_000).max().unwrap_or(0)
}

/// Whether a name read from a file stays inside the folder.
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
    let refuse = |why: String| Err(LabError::BadFile { path: path.into(), why });
    for planned in &study.cases {
        if !is_plain_name(&planned.folder) {
            return refuse(format!("'{}' is not a valid name for a case folder", planned.folder));
        }
        if planned.place >= study.cases.len() {
            return refuse(format!(
                "{} has index {} of {}",
                planned.folder,
                planned.place,
                study.cases.len()
            ));
        }
    }
    Ok(study)
}

#[cfg(test)]
mod tests;
