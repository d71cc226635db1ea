//! A host that is not the first: it takes part in what the first runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use paceline_lab::words;
use paceline_train::hosts::{Admission, Meeting};
use paceline_train::launcher::{Logs, Surroundings, follow};
use paceline_train::{Engines, Job, Prepared, TrainError, checkpoint, describe};

use super::launched::Launched;
use super::{RUN, alone};
use crate::outcome::{self, Unfinished, say};
use crate::train;

/// Whether this host was asked to end. Before it is taken in it has nothing to save or to tell, and just ends.
#[derive(Default)]
struct Interrupts {
    flag: Arc<AtomicBool>,
    is_watched: bool,
}

impl Interrupts {
    fn watch(&mut self) -> Result<(), TrainError> {
        if !std::mem::replace(&mut self.is_watched, true) {
            let refused = |source| TrainError::System { what: "watch for Ctrl-C".into(), source };
            outcome::watch_interrupts_for(&self.flag).map_err(refused)?;
        }
        Ok(())
    }
}

/// Runs one job as a host that is not the first: what became of its logs.
fn take_part(
    job: &mut Job,
    meeting: &Meeting,
    folder: &Path,
    interrupts: &mut Interrupts,
) -> Result<(Result<(), TrainError>, Logs)> {
    let prepared: Prepared = job.prepare(&mut Engines::default())?;
    let run = folder.join(RUN);
    let what =
        format!("{} of {}", if job.milestones.saving.is_some() { "training" } else { "run" }, job.model);
    job.folder.clone_from(&run);
    if let Some(saving) = &mut job.milestones.saving {
        saving.folder = folder.join(checkpoint::FOLDER);
    }
    let interrupted = interrupts.flag.clone();
    let surroundings = Surroundings {
        program: outcome::own_program()?,
        interrupted: &interrupted,
        load: None,
        meeting: Some(meeting.clone()),
        progress: &mut |glance| glance.said.iter().for_each(|line| say(line)),
    };
    let mut is_begun = false;
    let mut admitted = |admission: &Admission| {
        interrupts.watch()?;
        // The first host has its own by now, which may be the same.
        check_new(folder)?;
        let refused = |source| TrainError::System { what: format!("create {}", run.display()), source };
        fs::create_dir_all(&run).map_err(refused)?;
        is_begun = true;
        let Admission { host, first } = admission;
        say(&format!("{}: host {host} in the {what} that {first} leads", meeting.name));
        Ok(())
    };
    let (result, logs) = follow(job, &prepared, surroundings, &mut admitted);
    let is_stored = matches!(logs, Logs::Stored { .. });
    if is_begun && (is_stored || !run.join(paceline_record::log::LAUNCHER_FILE).exists()) {
        // Its logs are with the first host, or there are none.
        let _ = fs::remove_dir_all(&run);
        // Where nothing is left in it.
        let _ = fs::remove_dir(folder);
    } else if is_begun && logs == Logs::Kept {
        say(&format!("the first host has not taken this host's logs; they stay in {}", run.display()));
    }
    Ok((result, logs))
}

/// Takes part in a training as a host that is not the first.
pub fn join_training(job: &mut Job, meeting: &Meeting, out: Option<&Path>) -> Result<()> {
    let folder = own_folder(out);
    check_new(&folder)?;
    let (result, logs) = take_part(job, meeting, &folder, &mut Interrupts::default())?;
    if logs == Logs::Gathered {
        return train::conclude_lead(job, &folder, result);
    }
    let Err(reason) = result else {
        say("done; the report and the weights are with the first host");
        return Ok(());
    };
    if reason.is_usage() {
        return Err(reason.into());
    }
    say(&format!("error: {}", describe(&reason)));
    if let Some(newest) = checkpoint::Checkpoint::newest(&folder.join(checkpoint::FOLDER)).ok().flatten() {
        let command = ["train", "--resume", &newest.to_string_lossy()].map(Into::into);
        say(&format!(
            "this host has saved {}; to resume from it {}: {}",
            newest.display(),
            alone(),
            words::command(&command)
        ));
    }
    Err(Unfinished.into())
}

/// Where a host keeps its logs until the first has them, and a checkpoint if it comes to that. Where mpirun or srun starts all of them
/// with the same command, what it names is the first host's.
fn own_folder(out: Option<&Path>) -> PathBuf {
    match (out, Launched::here()) {
        (None, _) => PathBuf::from(format!("host-{}", std::process::id())),
        (Some(out), None) => out.to_owned(),
        (Some(out), Some(launched)) => {
            let named = |number: u32| {
                let mut name = out.as_os_str().to_owned();
                name.push(format!("-host-{}", launched.rank));
                name.push(if number == 1 { String::new() } else { format!(".{number}") });
                PathBuf::from(name)
            };
            (1..).map(named).find(|path| !path.exists()).expect("invariant: one of so many is free")
        }
    }
}

/// Refuses a folder that something else is in.
fn check_new(folder: &Path) -> Result<(), TrainError> {
    let is_empty = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    match folder.exists() && !is_empty(folder) {
        true => Err(TrainError::Taken(folder.to_owned())),
        false => Ok(()),
    }
}

/// Takes part in a study as a host that is not the first, run after run, as the first asks for them.
pub fn join_study(jobs: impl Iterator<Item = Job>, meeting: &Meeting, out: Option<&Path>) -> Result<()> {
    let mut interrupts = Interrupts::default();
    let folder = own_folder(out);
    check_new(&folder)?;
    let (mut refused, mut has_failed) = (None, false);
    for mut job in jobs {
        match take_part(&mut job, meeting, &folder, &mut interrupts)? {
            (Ok(()), Logs::Stored { is_last: false }) => refused = None,
            (Ok(()), _) => {
                refused = None;
                break;
            }
            // It may have been done before.
            (Err(error @ TrainError::AnotherJob { .. }), _) => refused = Some(error),
            // As on the first host, a failure is that of its case alone.
            (Err(error), Logs::Stored { is_last: false }) if error.is_of_a_case() => {
                say(&format!("error: {}; the study goes on with its next case", describe(&error)));
                (refused, has_failed) = (None, true);
            }
            (Err(error), _) => return Err(error.into()),
        }
    }
    match refused {
        Some(error) => Err(error.into()),
        None if has_failed => {
            say("the study is over, and not all of its cases were done; the report is with the first host");
            Err(Unfinished.into())
        }
        None => {
            say("done; the report is with the first host");
            Ok(())
        }
    }
}

/// The life of a host that another one of this machine has started.
pub fn run_local(job: Job, meeting: &Meeting) -> Result<()> {
    // Ctrl-C, and an end that the whole group is asked for, are the first host's to answer.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::default()).context("cannot watch for signals")?;
    }
    let interrupted = AtomicBool::new(false);
    let prepared = job.prepare(&mut Engines::default())?;
    let surroundings = Surroundings {
        program: outcome::own_program()?,
        interrupted: &interrupted,
        load: None,
        meeting: Some(meeting.clone()),
        progress: &mut |_| {},
    };
    let (result, _) = follow(&job, &prepared, surroundings, &mut |_| Ok(()));
    Ok(result?)
}
