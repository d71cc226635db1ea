//! `paceline train`: one training, with its tests, its checkpoints and its report.

mod options;
mod progress;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use paceline_lab::{Held, Planned, Study, StudyFolder, words};
use paceline_train::checkpoint::{self, Checkpoint, CheckpointError, OnNumerics, Recut};
use paceline_train::hosts::{Meeting, Role};
use paceline_train::launcher::{Surroundings, launch};
use paceline_train::{Engines, Job, Prepared, TrainError, awaits_test, describe};

pub use options::Options;
use progress::Progress;

use crate::load::Watch;
use crate::outcome::{self, Show, Unfinished, Usage, say};
use crate::settings::Limit;
use crate::{bench, hosts, machine, report};

/// Trains. What cannot be run is refused before anything starts.
pub fn run(options: &Options) -> Result<()> {
    outcome::check_name(options.out.as_deref())?;
    let numerics = if options.new_numerics { OnNumerics::Renew } else { OnNumerics::Keep };
    let origin = options.resume.as_deref().map(|path| Origin::read(path, numerics)).transpose()?;
    let mut options = options.clone();
    let place = options.settings.hosts.begin()?;
    let options = &options;
    let mut job = job(options, origin.as_ref())?;
    if let Some(origin) = &origin
        && origin.is_done(&job)?
    {
        return origin.publish(options.out.as_deref(), &job);
    }
    place.check_cores([&job])?;
    let (meeting, _note) = options.settings.hosts.meet(place)?.unzip();
    if let Some(meeting) = meeting.as_ref().filter(|meeting| !meeting.is_first()) {
        return hosts::join_training(&mut job, meeting, options.out.as_deref());
    }
    let prepared = job.prepare(&mut Engines::default())?;
    bench::warn(vec![&job]);
    if let Some(Recut { steps, from, to }) = job.milestones.recut {
        say(&format!(
            "from step {steps} on, each step is cut into {} instead of {from}, with the same global batch of {}: the weights will \
             differ from those that the training would have had with {from}",
            if to == 1 { "1 shard".into() } else { format!("{to} shards") },
            job.global_batch()
        ));
    }
    let run = Run::start(options, origin.as_ref(), &mut job, &prepared)?;
    run.train(&job, &prepared, meeting)
}

/// Reports a training that this host has led at last, in the folder that it kept its logs in: the host that was first was lost.
pub fn conclude_lead(job: &Job, folder: &Path, result: Result<(), TrainError>) -> Result<()> {
    let planned =
        Planned { folder: hosts::RUN.into(), place: 0, repeat: 1, case: job.case(), steps: job.steps };
    let study = bench::describe(vec![planned.clone()], [&job.prepare(&mut Engines::default())?]);
    let run = Run { folder: StudyFolder::adopt(folder, &study)?, study, planned, show: Show::json(false) };
    let reported = run.report();
    run.conclude(result, job)?;
    run.publish_weights()?;
    reported
}

/// A checkpoint that a training resumes from.
struct Origin {
    path: PathBuf,
    checkpoint: Checkpoint,
    numerics: OnNumerics,
}

impl Origin {
    fn read(path: &Path, numerics: OnNumerics) -> Result<Self, TrainError> {
        let path = checkpoint::locate(path)?;
        Ok(Self { checkpoint: Checkpoint::read(&path)?, path, numerics })
    }

    /// The folder of the training: `DIR` of `DIR/checkpoints/step-390`.
    fn home(&self) -> Option<PathBuf> {
        Some(self.path.parent()?.parent()?.to_owned())
    }

    /// Whether the job has nothing left to do.
    fn is_done(&self, job: &Job) -> Result<bool, TrainError> {
        let position = &self.checkpoint.position;
        Ok(position.steps >= job.steps && !awaits_test(job, position)?)
    }

    /// Puts the weights of a training that was ended after its last step where they belong.
    fn publish(&self, out: Option<&Path>, job: &Job) -> Result<()> {
        let folder = out.map(Path::to_owned).or_else(|| self.home());
        let Some(folder) = folder.filter(|folder| !folder.join(checkpoint::WEIGHTS_FILE).exists()) else {
            return Err(Usage::new(format!(
                "{} has done {} of {} steps: nothing is left to do; ask for more with --epochs or --steps",
                self.path.display(),
                self.checkpoint.position.steps,
                job.steps
            ))
            .into());
        };
        say(&format!("{} has done all of {} steps", self.path.display(), job.steps));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        publish_weights(&self.path, &folder)
    }
}

/// The job that options ask for: a new one, or a checkpoint's with what options change.
fn job(options: &Options, origin: Option<&Origin>) -> Result<Job> {
    let model = options.model.as_deref();
    let base = match origin {
        Some(Origin { path, checkpoint, numerics }) => {
            let mut job = checkpoint.resume(path, *numerics)?;
            job.model = model.map_or(job.model, Into::into);
            job
        }
        None => Job::training(model.expect("invariant: clap wants a network or a checkpoint")),
    };
    let work = &options.settings.work;
    let sizes = [work.weak_sizes(), work.strong_sizes()];
    if sizes.iter().all(|sizes| !sizes.is_empty()) {
        return Err(Usage::new("--batch cannot be used with --global-batch; give one of them").into());
    }
    let mut jobs = options.settings.apply(vec![base], &sizes.concat(), Limit::One)?;
    let mut job = jobs.pop().expect("invariant: one value each makes one job");
    options.set_milestones(&mut job);
    if let Some(Origin { path, checkpoint, .. }) = origin {
        let asked = work.shards.as_ref().and(job.shards);
        checkpoint.recut(path, &mut job, asked)?;
    }
    job.settle(machine::granted())?;
    check(&job, origin)?;
    Ok(job)
}

/// Refuses a job that does not train one network, or not the one to resume.
fn check(job: &Job, origin: Option<&Origin>) -> Result<()> {
    if !job.plan().exchanges() && job.workers > 1 {
        return Err(Usage::new(
            "independent workers train a network each, and none of them is the result; use `paceline bench` to measure them",
        )
        .into());
    }
    if job.engine == "simulated" {
        return Err(
            Usage::new("a simulated engine learns nothing; use `paceline bench --engine simulated`").into()
        );
    }
    if let Some(Origin { path, checkpoint, numerics }) = origin {
        checkpoint.check_job(path, job, *numerics)?;
    }
    Ok(())
}

/// A run of a training, in the folder of a study.
struct Run {
    folder: StudyFolder,
    study: Study,
    planned: Planned,
    show: Show,
}

impl Run {
    /// Finds the folder and notes the run in it: a new study, or one more run of the study that is resumed.
    fn start(options: &Options, origin: Option<&Origin>, job: &mut Job, prepared: &Prepared) -> Result<Self> {
        // A checkpoint that another host than the first has saved is in no study.
        let home = || origin?.home().filter(|home| home.join("study.json").exists());
        let path = match options.out.clone().or_else(home) {
            Some(path) => path,
            None => StudyFolder::numbered(Path::new(""))?,
        };
        let mut name = format!("{}-w{}", job.model, job.all_workers());
        if let Some(steps) = job.milestones.resumed_at {
            name.push_str(&format!("-from-{steps}"));
        }
        let mut planned = Planned { folder: name, place: 0, repeat: 1, case: job.case(), steps: job.steps };
        let (folder, study) = match origin {
            Some(_) if path.join("study.json").exists() => StudyFolder::append(&path, &mut planned)?,
            _ => {
                let study = bench::describe(vec![planned.clone()], [prepared]);
                let held = if options.fresh { Held::Replace } else { Held::Resume };
                (start_over(&path, &study, held)?, study)
            }
        };
        let saving = job.milestones.saving.as_mut().expect("invariant: a training is saved");
        saving.folder = folder.path().join(checkpoint::FOLDER);
        if let Some(steps) = job.milestones.resumed_at {
            Checkpoint::abandon_later(&saving.folder, steps)?;
        }
        job.folder = folder.path().join(&planned.folder);
        Ok(Self { folder, study, planned, show: Show::json(options.json) })
    }

    /// Runs the job, writes its weights, and reports the study.
    fn train(&self, job: &Job, prepared: &Prepared, meeting: Option<Meeting>) -> Result<()> {
        let kept = meeting.clone();
        let program = outcome::own_program()?;
        let interrupted = outcome::watch_interrupts()?;
        self.folder.create_case(&self.planned)?;
        let mut progress = Progress::start(job, Instant::now())?;
        let (load, warning) = Watch::default().look(job);
        warning.iter().for_each(|warning| say(warning));
        let surroundings = Surroundings {
            program,
            interrupted: &interrupted,
            load,
            meeting,
            progress: &mut |glance| {
                if interrupted.load(Ordering::Relaxed) {
                    progress.say_that_it_stops();
                }
                progress.show(glance, Instant::now());
            },
        };
        let result = launch(job, prepared, surroundings);
        progress.clear();
        // Of an MPI job, others wait to leave it with this one. Where it is being ended, the user comes first.
        let kept = kept.filter(|_| result.is_err());
        let is_mpi = kept.as_ref().is_some_and(|meeting| matches!(meeting.role, Role::Rank(_)));
        let (concluded, reported) = if is_mpi {
            // mpirun may leave it a second: how to go on comes before the report.
            (self.conclude(result, job), self.report())
        } else {
            let reported = self.report();
            // How the run ended comes first: what could not be written may only follow from it.
            (self.conclude(result, job), reported)
        };
        concluded?;
        self.publish_weights()?;
        reported
    }

    fn newest_checkpoint(&self) -> Result<Option<PathBuf>, CheckpointError> {
        Checkpoint::newest(&self.folder.path().join(checkpoint::FOLDER))
    }

    /// Reports the study.
    fn report(&self) -> Result<()> {
        let Self { folder, study, show, .. } = self;
        report::render(folder, study, *show).map(drop)
    }

    /// Puts the weights of a run that ended well beside its report, and says where they are.
    fn publish_weights(&self) -> Result<()> {
        match self.newest_checkpoint()? {
            Some(newest) => publish_weights(&newest, self.folder.path()),
            None => Ok(()),
        }
    }

    /// Says how the run ended, and how to resume it.
    fn conclude(&self, result: Result<(), TrainError>, job: &Job) -> Result<()> {
        let folder = self.folder.path();
        let Err(error) = result else { return Ok(()) };
        match error {
            error if error.is_interruption() => say(&describe(&error)),
            error => say(&format!("error: {}", describe(&error))),
        }
        match self.newest_checkpoint().ok().flatten() {
            Some(newest) => say(&format!(
                "To resume from {}{}: {}",
                newest.file_name().unwrap_or_default().to_string_lossy(),
                job.hosts.map_or_else(String::new, |_| format!(" {}", hosts::alone())),
                words::command(&["train", "--resume", &folder.to_string_lossy()].map(Into::into))
            )),
            None => say("there is no checkpoint to resume from"),
        }
        Err(Unfinished.into())
    }
}

/// Starts a study in a folder that holds none, or whose study is to be replaced.
fn start_over(path: &Path, study: &Study, held: Held) -> Result<StudyFolder> {
    let is_taken = StudyFolder::open(path).is_ok();
    if is_taken && held == Held::Resume {
        return Err(Usage::new(format!(
            "{0} holds a study; --resume {0} resumes a training, --fresh starts over",
            path.display()
        ))
        .into());
    }
    let folder = StudyFolder::start(path, study, Held::Replace)?;
    if is_taken {
        remove_training(path)?;
    }
    Ok(folder)
}

/// Removes the checkpoints and weights of a training that is started over.
fn remove_training(path: &Path) -> Result<()> {
    let remove = |result: io::Result<()>, name: &str| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.join(name).display()))
        }
        _ => Ok(()),
    };
    remove(fs::remove_dir_all(path.join(checkpoint::FOLDER)), checkpoint::FOLDER)?;
    remove(fs::remove_file(path.join(checkpoint::WEIGHTS_FILE)), checkpoint::WEIGHTS_FILE)
}

/// Puts the weights of a checkpoint into a training's folder, and says where they are.
fn publish_weights(checkpoint: &Path, folder: &Path) -> Result<()> {
    let kept = checkpoint.join(checkpoint::WEIGHTS_FILE);
    let path = folder.join(checkpoint::WEIGHTS_FILE);
    match copy_weights(&kept, &path) {
        Ok(()) => say(&format!("Weights: {}", path.display())),
        Err(error) => bail!(
            "cannot write {}: {error}; the same weights are in {}: make room, and copy them",
            path.display(),
            kept.display()
        ),
    }
    Ok(())
}

/// Copies weights, whole or not at all.
fn copy_weights(from: &Path, to: &Path) -> io::Result<()> {
    let draft = to.with_file_name(".weights");
    let put = || {
        fs::copy(from, &draft)?;
        fs::File::open(&draft)?.sync_all()?;
        fs::rename(&draft, to)
    };
    put().inspect_err(|_| {
        // A full disk gets its room back. The draft may not exist; report the first error.
        let _ = fs::remove_file(&draft);
    })
}
