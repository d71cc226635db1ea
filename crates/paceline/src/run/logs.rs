//! What a command left behind: the logs of its ranks, which become cases once it is known how it ended.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use paceline_lab::words;
use paceline_record::log::{LauncherWriter, RankLog, WorkerHeader, rank_file};
use paceline_record::{Case, Exit, LauncherEvent, LauncherHeader, Load, Nanos, Outcome, Rank, Started};

use super::command::Ended;

/// Names the training in a case's settings where a command has several, one after the other.
const TRAINING: &str = "training";

/// Most lost ranks that are named.
const NAMED: usize = 4;

/// The ranks of one training that ran here.
pub struct Training {
    /// Folder of its logs.
    pub folder: PathBuf,
    /// What it trained.
    pub case: Case,
    /// Its logs.
    pub ranks: BTreeMap<Rank, RankLog>,
    /// Of ranks whose logs cannot be read, a sentence each.
    pub damaged: Vec<String>,
}

/// The trainings of a command, in the order in which they began: the first in the folder itself, the others in `2`, `3`, ... within,
/// which are moved beside it, so that each can go where it belongs.
pub fn read(folder: &Path) -> Result<Vec<Training>> {
    let mut all = vec![(1, folder.to_owned())];
    for number in 2.. {
        let within = folder.join(number.to_string());
        if !within.is_dir() {
            break;
        }
        let mut beside = folder.as_os_str().to_owned();
        beside.push(format!("-{number}"));
        fs::rename(&within, &beside).with_context(|| format!("cannot move {}", within.display()))?;
        all.push((number, beside.into()));
    }
    Ok(all.into_iter().filter_map(|(number, folder)| Training::read(folder, number)).collect())
}

/// Whether a rank began to train, even if it wrote nothing.
pub fn has_begun(folder: &Path) -> bool {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.to_str().is_some_and(|name| name.starts_with("rank-")))
}

impl Training {
    /// `None` if no rank wrote anything that can be read.
    fn read(folder: PathBuf, number: u32) -> Option<Self> {
        let names = fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.file_name());
        let rank = |name: std::ffi::OsString| -> Option<u32> {
            name.to_str()?.strip_prefix("rank-")?.strip_suffix(".jsonl")?.parse().ok()
        };
        let (mut ranks, mut damaged) = (BTreeMap::new(), Vec::new());
        for rank in names.filter_map(rank).map(Rank) {
            match RankLog::read(&folder, rank) {
                Ok(log) => drop(ranks.insert(rank, log)),
                // Whoever is lost within its first steps has written nothing yet.
                Err(_) if is_empty(&folder, rank) => {
                    damaged.push(format!("rank {rank} was lost in its first steps"));
                }
                Err(_) => damaged.push(format!("rank {rank} left a log that cannot be read")),
            }
        }
        let WorkerHeader::Rank(first) = &ranks.values().next()?.header else { return None };
        let mut case = first.case.as_deref().cloned().unwrap_or_default();
        case.workers = first.world;
        if number > 1 {
            case.settings.insert(TRAINING.into(), number.to_string());
        }
        Some(Self { folder, case, ranks, damaged })
    }

    /// Steps that every rank here did.
    pub fn steps(&self) -> u64 {
        self.ranks.values().map(|log| log.steps.len() as u64).min().unwrap_or(0)
    }

    fn first_main(&self) -> Option<Nanos> {
        self.ranks.values().filter_map(|log| log.main).min()
    }

    /// When its last rank had nothing left to do; `None` unless all told.
    fn done(&self) -> Option<Nanos> {
        let ends: Option<Vec<Nanos>> = self.ranks.values().map(|log| log.done).collect();
        ends?.into_iter().max()
    }
}

fn is_empty(folder: &Path, rank: Rank) -> bool {
    fs::metadata(folder.join(rank_file(rank))).is_ok_and(|file| file.len() == 0)
}

/// When each training ran, and how it ended.
pub struct Course {
    spawn: Nanos,
    reap: Nanos,
    outcome: Outcome,
    reason: Option<String>,
}

/// The courses of the trainings of a command. One that had ended before the next began has an end of its own; the last ends with the
/// command.
pub fn courses(trainings: &[Training], ended: &Ended) -> Vec<Course> {
    let mut spawn = ended.spawn;
    let course = |(place, training): (usize, &Training)| {
        let next = trainings.get(place + 1).and_then(Training::first_main);
        let over = training.done().zip(next).filter(|(done, next)| done <= next).map(|(done, _)| done);
        let (outcome, reason) = match over {
            Some(_) => (Outcome::Done, None),
            None => judge(training, ended),
        };
        let reap = over.unwrap_or(ended.reap);
        // The clock that tells when a process started is coarse, and the command was told a moment before it was started.
        let begun = training.first_main().map_or(spawn, |main| main.min(spawn));
        spawn = over.unwrap_or(spawn);
        Course { spawn: begun, reap, outcome, reason }
    };
    trainings.iter().enumerate().map(course).collect()
}

/// How a training ended that ended with its command.
fn judge(training: &Training, ended: &Ended) -> (Outcome, Option<String>) {
    let mut lost: Vec<String> = training
        .ranks
        .iter()
        .filter(|(_, log)| log.done.is_none())
        .map(|(rank, log)| format!("rank {rank} failed or was killed after {} logged steps", log.steps.len()))
        .collect();
    let more = lost.len().saturating_sub(NAMED);
    lost.truncate(NAMED);
    lost.extend((more > 0).then(|| format!("and so were {more} more")));
    let how = match (ended.exit, ended.asked) {
        (Exit::Code(0), _) => None,
        (_, Some(signal)) => Some((Outcome::Interrupted, format!("stopped by {}", Exit::Signal(signal)))),
        (Exit::Signal(2), None) => Some((Outcome::Interrupted, format!("stopped by {}", ended.exit))),
        (Exit::Code(_), None) => Some((Outcome::Failed, format!("the command ended with {}", ended.exit))),
        (Exit::Signal(_), None) => {
            Some((Outcome::Failed, format!("the command was ended by {}", ended.exit)))
        }
    };
    let told = lost.into_iter().chain(training.damaged.iter().cloned());
    match how {
        Some((outcome, how)) => (outcome, Some([how].into_iter().chain(told).collect::<Vec<_>>().join("; "))),
        None => {
            let told: Vec<String> = told.collect();
            match told.is_empty() {
                true => (Outcome::Done, None),
                false => (
                    Outcome::Failed,
                    Some(format!("{}, although the command ended with exit code 0", told.join("; "))),
                ),
            }
        }
    }
}

/// What is known about a command beside its trainings.
#[derive(Clone, Copy)]
pub struct Surroundings {
    /// How it ended.
    pub exit: Exit,
    /// The date of the clock.
    pub started: Started,
    /// What else the machine did just before.
    pub load: Option<Load>,
}

/// Writes what the launcher of this machine has to say of a training, beside the logs of its ranks.
pub fn write_launcher(training: &Training, course: &Course, around: Surroundings) -> Result<()> {
    let Surroundings { exit, started, load } = around;
    let first = *training.ranks.keys().next().context("a training has a rank")?;
    let header =
        LauncherHeader { started: Some(started), load, ..LauncherHeader::new(training.case.clone()) };
    let mut log = LauncherWriter::create_of_machine(&training.folder, first, &header)?;
    for &rank in training.ranks.keys() {
        log.append(&LauncherEvent::Spawn { rank, at: course.spawn })?;
    }
    for &rank in training.ranks.keys() {
        let exit = if course.outcome == Outcome::Done { Exit::Code(0) } else { exit };
        log.append(&LauncherEvent::Reap { rank, at: course.reap, exit })?;
    }
    log.append(&LauncherEvent::Over { outcome: course.outcome, reason: course.reason.clone() })?;
    Ok(())
}

/// What a user should know of ranks that are elsewhere.
pub fn say_missing(case: &Case, missing: &[Rank], folder: &Path) -> Option<String> {
    let named: Vec<String> = missing.iter().take(8).map(ToString::to_string).collect();
    let more = if missing.len() > 8 { ", ..." } else { "" };
    let ranks = if missing.len() == 1 { "rank" } else { "ranks" };
    (!missing.is_empty()).then(|| {
        format!(
            "{} of {} ran here; the logs of {ranks} {}{more} are missing. If they ran on other machines: where {} is a folder that all \
             share, the report comes with the last of them; else copy theirs into it and run `paceline report`",
            case.workers as usize - missing.len(),
            words::workers(case.workers),
            named.join(", "),
            folder.display()
        )
    })
}
