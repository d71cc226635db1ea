//! `paceline train`: one training, with its tests, its checkpoints and its report.

mod options;
mod progress;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::ArgMatches;
use paceline_lab::{Held, Planned, Report, Study, StudyFolder};
use paceline_train::checkpoint::{self, Checkpoint};
use paceline_train::launcher::{Surroundings, launch};
use paceline_train::{Every, Job, Saving, TrainError};

pub use options::Options;
use progress::Progress;

use crate::outcome::{Unfinished, Usage, say};
use crate::{bench, report};

/// Trains. What cannot be run is refused before anything starts.
pub fn run(options: &Options, matches: &ArgMatches) -> Result<()> {
    let (options, asked, from) = options.gone_on_with(matches)?;
    let mut job = options.job()?;
    job.asked = asked;
    let folder = options.folder(from.as_ref())?;
    let root = folder.clone().unwrap_or_default().join(checkpoint::FOLDER);
    job.milestones.eval = Some(Every(options.learning.eval_every));
    job.milestones.saving =
        Some(Saving { every: Every(options.checkpoint_every), keep: options.keep, folder: root });
    if let Some((path, checkpoint)) = &from {
        let settings = job.fixed_settings().map_err(Usage::new)?;
        checkpoint.check_job(path, &settings).map_err(Usage::new)?;
        let steps = checkpoint.position.steps;
        if steps >= job.steps {
            return Err(Usage::new(format!(
                "{} has done {steps} of {} steps: nothing is left to do; ask for more with --epochs or --steps",
                path.display(),
                job.steps
            ))
            .into());
        }
        job.milestones.resume = Some(path.clone());
        job.milestones.resumed_at = Some(steps);
    }
    job.check().map_err(Usage::new)?;
    bench::warn(vec![&job]);
    let (folder, study, planned) = start(&options, folder, &mut job)?;
    train(&options, &job, (&folder, &study, &planned))
}

/// Finds the folder and notes the run in it: a new study, or one more run of the study that is gone on with.
fn start(options: &Options, path: Option<PathBuf>, job: &mut Job) -> Result<(StudyFolder, Study, Planned)> {
    let path = match path {
        Some(path) => path,
        None => StudyFolder::numbered(Path::new(""))?,
    };
    let mut name = format!("{}-w{}", job.model, job.workers);
    if let Some(steps) = job.milestones.resumed_at {
        name.push_str(&format!("-from-{steps}"));
    }
    let mut planned = Planned { folder: name, place: 0, repeat: 1, case: job.case(), steps: job.steps };
    let study = bench::describe(&[bench::PlannedJob { job: job.clone(), planned: planned.clone() }])?;
    let (folder, study) = match job.milestones.resumed_at {
        Some(_) if path.join("study.json").exists() => {
            let (folder, study) = StudyFolder::append(&path, &mut planned).map_err(Usage::new)?;
            (folder, study)
        }
        _ => {
            let is_taken = StudyFolder::open(&path).is_ok();
            if is_taken && !options.fresh {
                return Err(Usage::new(format!(
                    "{0} holds a study; --resume {0} goes on with a training, --fresh starts over",
                    path.display()
                ))
                .into());
            }
            let folder = StudyFolder::start(&path, &study, Held::Replace).map_err(Usage::new)?;
            if is_taken {
                remove_training(&path)?;
            }
            (folder, study)
        }
    };
    let saving = job.milestones.saving.as_mut().expect("invariant: a training is saved");
    saving.folder = folder.path().join(checkpoint::FOLDER);
    if let Some(steps) = job.milestones.resumed_at {
        Checkpoint::abandon_later(&saving.folder, steps)?;
    }
    job.folder = folder.path().join(&planned.folder);
    Ok((folder, study, planned))
}

/// Removes what a training that is started over has left.
fn remove_training(path: &Path) -> Result<()> {
    let remove = |result: std::io::Result<()>, name: &str| match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.join(name).display()))
        }
        _ => Ok(()),
    };
    remove(fs::remove_dir_all(path.join(checkpoint::FOLDER)), checkpoint::FOLDER)?;
    remove(fs::remove_file(path.join(checkpoint::WEIGHTS_FILE)), checkpoint::WEIGHTS_FILE)
}

/// Runs the job, leaves its weights, and reports the study.
fn train(
    options: &Options,
    job: &Job,
    (folder, study, planned): (&StudyFolder, &Study, &Planned),
) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).context("cannot watch for Ctrl-C")?;
    }
    folder.create_case(planned)?;
    let mut progress = Progress::start(job)?;
    let surroundings =
        Surroundings { program, interrupted: &interrupted, progress: &mut |glance| progress.show(glance) };
    let result = launch(job, surroundings);
    progress.clear();
    let written = publish(options, &result, (folder, study));
    let newest = Checkpoint::newest(&folder.path().join(checkpoint::FOLDER));
    // How the run ended comes first: what could not be written may only follow from it.
    conclude(result, newest.ok().flatten().as_deref(), folder).and(written)
}

/// Leaves the weights of a run that ended well, and reports the study.
fn publish(
    options: &Options,
    result: &Result<(), TrainError>,
    (folder, study): (&StudyFolder, &Study),
) -> Result<()> {
    let mut cases = Vec::new();
    for logs in (0..study.places()).filter_map(|place| folder.read_case(study, place)) {
        folder.write_tensorboard(&logs)?;
        cases.push(logs.report());
    }
    let report = Report::new(study, cases);
    report::print_report(&report, options.json)?;
    folder.write_pages(study, &report)?;
    if let (Ok(()), Some(newest)) = (result, Checkpoint::newest(&folder.path().join(checkpoint::FOLDER))?) {
        leave_weights(&newest, folder.path())?;
    }
    report::point_to(folder, options.json)
}

/// Puts the weights of a checkpoint into the run's folder, whole or not at all.
fn leave_weights(checkpoint: &Path, folder: &Path) -> Result<()> {
    let (from, to) = (checkpoint.join(checkpoint::WEIGHTS_FILE), folder.join(checkpoint::WEIGHTS_FILE));
    let draft = folder.join(".weights");
    let put = || -> std::io::Result<()> {
        fs::copy(&from, &draft)?;
        fs::File::open(&draft)?.sync_all()?;
        fs::rename(&draft, &to)
    };
    put().with_context(|| format!("cannot write {}", to.display()))
}

/// Says how the run ended, and how to go on with it.
fn conclude(result: Result<(), TrainError>, newest: Option<&Path>, folder: &StudyFolder) -> Result<()> {
    let Err(error) = result else {
        say(&format!("The weights lie in {}", folder.path().join(checkpoint::WEIGHTS_FILE).display()));
        return Ok(());
    };
    match error {
        TrainError::Interrupted => say("interrupted"),
        error => say(&format!("error: {error}")),
    }
    match newest {
        Some(newest) => say(&format!(
            "`paceline train --resume {}` goes on from {}",
            folder.path().display(),
            newest.file_name().unwrap_or_default().to_string_lossy()
        )),
        None => say("no checkpoint was written yet; see --checkpoint-every"),
    }
    Err(Unfinished.into())
}
