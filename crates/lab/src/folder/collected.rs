//! A study that is collected run by run: each takes the place of an equal one, and machines of one run bring their parts.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use paceline_record::log::{LauncherLog, launcher_file, rank_file};
use paceline_record::{Case, Nanos, Rank};

use super::{StudyFolder, remove};
use crate::{LabError, Planned, Study};

/// How long the end of another run in the same folder is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run that was followed on this machine: its logs, ready to become a case.
#[derive(Clone, Debug)]
pub struct Followed<'a> {
    /// The folder that holds them, in that of the study.
    pub from: &'a Path,
    /// What was run.
    pub case: Case,
    /// Which repeat it is, from 1; the first takes the place of all that were there before.
    pub repeat: u32,
    /// Steps of each rank.
    pub steps: u64,
    /// The ranks that ran here.
    pub ranks: Vec<Rank>,
}

/// Where a run went, and which of its ranks are still to come from other machines.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its folder in the study's.
    pub folder: String,
    /// Ranks whose logs are not there.
    pub missing: Vec<Rank>,
}

impl StudyFolder {
    /// Puts a run that was followed into the study of its folder, which `study` becomes if there is none.
    pub fn collect(
        path: &Path,
        study: &Study,
        run: &Followed<'_>,
    ) -> Result<(Self, Study, Placed), LabError> {
        let mut folder = Self { path: path.into(), lock: None, study: None };
        folder.lock_patiently()?;
        let mut study = match Self::open(path) {
            Ok((_, held)) => Study { command: study.command.clone(), ..held },
            Err(LabError::NoStudy { .. }) => study.clone(),
            Err(error) => return Err(error),
        };
        // Threads follow from how a script is started, and may differ from machine to machine.
        let is_same =
            |planned: &Planned| Case { threads: run.case.threads, ..planned.case.clone() } == run.case;
        let place = study.cases.iter().find(|planned| is_same(planned)).map(|planned| planned.place);
        let held =
            study.cases.iter().find(|planned| is_same(planned) && planned.repeat == run.repeat).cloned();
        let joined = held.filter(|planned| folder.is_other_part(planned, run));
        let name = match &joined {
            Some(planned) => planned.folder.clone(),
            None => {
                let replaced =
                    |planned: &Planned| is_same(planned) && (run.repeat == 1 || planned.repeat == run.repeat);
                for planned in study.cases.iter().filter(|planned| replaced(planned)) {
                    folder.remove_followed(planned)?;
                }
                study.cases.retain(|planned| !replaced(planned));
                folder.free_name(&study, run)
            }
        };
        folder.take(run, &name)?;
        if joined.is_none() {
            let planned = Planned {
                folder: name.clone(),
                place: place.unwrap_or_else(|| study.places()),
                repeat: run.repeat,
                case: run.case.clone(),
                steps: run.steps,
            };
            study.cases.push(planned);
            study.cases.sort_by_key(|planned| (planned.place, planned.repeat));
        }
        folder.write_json(super::STUDY, &study)?;
        let there = |rank: &Rank| folder.path.join(&name).join(rank_file(*rank)).exists();
        let missing = (0..run.case.workers).map(Rank).filter(|rank| !there(rank)).collect();
        Ok((folder, study, Placed { folder: name, missing }))
    }

    /// Waits until nobody else is at work in the folder, as another run into it that ends at the same time.
    pub fn lock_patiently(&mut self) -> Result<(), LabError> {
        let began = Instant::now();
        loop {
            match self.lock() {
                Err(LabError::Busy { .. }) if began.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(50));
                }
                locked => return locked,
            }
        }
    }

    /// Whether what is there are other ranks of the same run: none of them is here, and both ran at the same time.
    fn is_other_part(&self, planned: &Planned, run: &Followed<'_>) -> bool {
        let there = self.path.join(&planned.folder);
        if run.ranks.iter().any(|&rank| there.join(rank_file(rank)).exists()) {
            return false;
        }
        let firsts = (0..planned.case.workers).map(Rank);
        let launchers =
            firsts.filter_map(|first| LauncherLog::read_file(&there.join(launcher_file(first))).ok());
        let own = run
            .ranks
            .first()
            .and_then(|&first| span(&LauncherLog::read_file(&run.from.join(launcher_file(first))).ok()?));
        let overlaps = |other: (i128, i128)| own.is_some_and(|own| own.0 <= other.1 && other.0 <= own.1);
        launchers.filter_map(|launcher| span(&launcher)).any(overlaps)
    }

    fn remove_followed(&self, planned: &Planned) -> Result<(), LabError> {
        // A machine without rank 0 leaves no launcher.jsonl, by which other cases are known.
        let events = self.path.join(crate::tensorboard::folder_name(&planned.folder));
        remove(&events, |path| fs::remove_dir_all(path))?;
        remove(&self.path.join(&planned.folder), |path| fs::remove_dir_all(path))
    }

    /// A name for a case's folder that no other has.
    fn free_name(&self, study: &Study, run: &Followed<'_>) -> String {
        let plain = |letter: char| {
            if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' }
        };
        let model: String = run.case.model.chars().map(plain).take(100).collect();
        let model = model.trim_start_matches('.');
        let model = if model.is_empty() { "run" } else { model };
        let mut name = format!("{model}-w{}", run.case.workers);
        if run.repeat > 1 {
            name = format!("{name}-repeat-{}", run.repeat);
        }
        let is_free = |name: &String| {
            study.cases.iter().all(|planned| planned.folder != *name) && !self.path.join(name).exists()
        };
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let mut names = [name.clone()].into_iter().chain(numbered);
        names.find(is_free).expect("invariant: there is always a next number")
    }

    /// Moves the logs to where they belong: all at once, or beside those of another machine.
    fn take(&self, run: &Followed<'_>, name: &str) -> Result<(), LabError> {
        let to = self.path.join(name);
        if !to.exists() {
            return fs::rename(run.from, &to).map_err(LabError::io("move the logs to", &to));
        }
        let entries = fs::read_dir(run.from).map_err(LabError::io("read", run.from))?;
        for entry in entries {
            let entry = entry.map_err(LabError::io("read", run.from))?;
            let file = to.join(entry.file_name());
            fs::rename(entry.path(), &file).map_err(LabError::io("move a log to", &file))?;
        }
        fs::remove_dir(run.from).map_err(LabError::io("remove", run.from))
    }
}

/// When a launcher's run began and ended, since 1970.
fn span(launcher: &LauncherLog) -> Option<(i128, i128)> {
    let started = launcher.header.started?;
    let date = |at: Nanos| i128::from(started.unix.0) + i128::from(at.0) - i128::from(started.at.0);
    Some((date(launcher.first_spawn?), date(launcher.last_reap?)))
}
