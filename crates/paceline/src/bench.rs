//! `paceline bench`: plan the runs, do them one after another, report them.

mod config;
mod options;
mod plan;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result};
use paceline_lab::{
    CaseReport, Held, Key, LabError, Planned, Report, SCHEMA, Study, StudyFolder, sections, words,
};
use paceline_record::{Case, LayerTime, Nanos, date};
use paceline_system::clock;
use paceline_train::hosts::Meeting;
use paceline_train::launcher::{Surroundings, launch};
use paceline_train::{Engines, Job, Length, Prepared, TrainError, devices, worker};

pub use options::Options;
use options::{LayerRows, StudyOptions};
use plan::{PlannedJob, plan};

use crate::load::Watch;
use crate::outcome::{self, Show, print, say};
use crate::progress::{Progress, estimate};
use crate::{hosts, machine, report};

/// Runs the study. What cannot be run is refused before anything starts.
pub fn run(options: &Options) -> Result<()> {
    let mut options = options.clone();
    if let Some(path) = options.config.clone() {
        config::fill(&mut options, &path)?;
    }
    let place = options.settings.hosts.begin()?;
    let mut runs = plan(&options)?;
    place.check_cores(runs.iter().map(|run| &run.job))?;
    let (meeting, _note) = options.settings.hosts.meet(place)?.unzip();
    if let Some(meeting) = meeting.as_ref().filter(|meeting| !meeting.is_first()) {
        let jobs = runs.into_iter().map(|run| run.job);
        return hosts::join_study(jobs, meeting, options.study.out.as_deref());
    }
    let options = &options.study;
    let show = Show::json(options.json);
    outcome::check_name(options.out.as_deref())?;
    let prepared = prepare(&runs)?;
    warn(runs.iter().filter(|run| run.planned.repeat == 1).map(|run| &run.job).collect());
    let study = describe(runs.iter().map(|run| run.planned.clone()).collect(), prepared.values());
    let folder = start(options, &study)?;
    // Of a study that is resumed, what was written down when it began.
    let (_, study) = StudyFolder::open(folder.path())?;
    for run in &mut runs {
        run.job.folder = folder.path().join(&run.planned.folder);
    }
    let bench = Bench { options, study: &study, folder: &folder, prepared, meeting };
    let (report, written) = bench.run_all(&runs)?;
    // What was measured is shown even where it cannot be written.
    report::print_report(&report, show)?;
    written?;
    folder.write_pages(&study, &report)?;
    report::point_to(&folder, show)?;
    Ok(outcome::check_done(&report)?)
}

/// Says what would make numbers other than they seem.
pub fn warn(jobs: Vec<&Job>) {
    let cores = machine::cores();
    let real = jobs.iter().filter(|job| job.engine != "simulated");
    let busiest = real.map(|job| job.workers as usize * job.threads).max().unwrap_or(0);
    if busiest > cores {
        say(&format!(
            "warning: {busiest} threads on {} take turns: step times then measure the sharing of cores, \
             waiting for late ranks grows, and speed-ups beyond {cores} are not to be expected",
            words::cores(cores as u32)
        ));
    }
    if let Some(job) = jobs.iter().filter(|job| job.share_gpu).max_by_key(|job| job.workers)
        && let Ok(devices) = devices()
        && job.workers as usize > devices
    {
        let gpus = if devices == 1 { "one GPU".to_owned() } else { format!("{devices} GPUs") };
        say(&format!(
            "warning: {} workers share {gpus} and exchange through the host: a test of the machinery, not a measurement of \
             what more GPUs would give",
            job.workers
        ));
    }
    for job in jobs {
        let seen = job.steps * job.global_batch();
        if let Length::Examples(examples) = job.length
            && examples != seen
        {
            say(&format!(
                "warning: {} on {} workers sees {seen} examples in whole steps, not {examples}",
                job.model, job.workers
            ));
        }
    }
}

/// What is known about each case before it runs, by its place. A case that cannot run is refused.
fn prepare(runs: &[PlannedJob]) -> Result<BTreeMap<usize, Prepared>, TrainError> {
    let mut engines = Engines::default();
    let first = runs.iter().filter(|run| run.planned.repeat == 1);
    first.map(|run| Ok((run.planned.place, run.job.prepare(&mut engines)?))).collect()
}

/// The date of a study that never took place: the beginning of the year 2000.
const SIMULATED: Nanos = Nanos(946_684_800_000_000_000);

/// The study as it will be written down.
pub fn describe<'a>(cases: Vec<Planned>, prepared: impl IntoIterator<Item = &'a Prepared>) -> Study {
    let mut engines: Vec<&str> = Vec::new();
    for Prepared { engine, .. } in prepared {
        if !engines.contains(&engine.as_str()) {
            engines.push(engine);
        }
    }
    let simulated = cases.iter().all(|planned| planned.case.engine.as_deref() == Some("simulated"));
    Study {
        schema: SCHEMA,
        program: env!("CARGO_PKG_VERSION").into(),
        command: std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect(),
        date: Some(date(if simulated { SIMULATED } else { clock::started().unix })),
        host: if simulated { None } else { machine::host() },
        machine: machine::describe(engines.join("; ")),
        cases,
    }
}

/// Finds the study's folder: the one that was named, the unfinished one here, or a new one.
fn start(options: &StudyOptions, study: &Study) -> Result<StudyFolder, LabError> {
    let held = if options.fresh { Held::Replace } else { Held::Resume };
    let path = match (&options.out, StudyFolder::unfinished(Path::new(""), study)) {
        (Some(path), _) => path.clone(),
        (None, Some(path)) => path,
        (None, None) => StudyFolder::numbered(Path::new(""))?,
    };
    StudyFolder::start(&path, study, held)
}

/// A study that is about to run.
struct Bench<'a> {
    options: &'a StudyOptions,
    study: &'a Study,
    folder: &'a StudyFolder,
    prepared: BTreeMap<usize, Prepared>,
    meeting: Option<Meeting>,
}

impl Bench<'_> {
    /// Does run after run and saves the report after each; what is done already is not done again. An interruption ends
    /// the study; a failure only its case. What cannot be written ends the study too, and comes back beside the report.
    fn run_all(&self, runs: &[PlannedJob]) -> Result<(Report, Result<(), LabError>)> {
        let Self { study, folder, .. } = self;
        let program = outcome::own_program()?;
        let interrupted = outcome::watch_interrupts()?;
        let left: Vec<&PlannedJob> = runs.iter().filter(|run| !folder.is_done(&run.planned)).collect();
        announce(folder, runs.len(), left.len());
        let mut cases: Vec<Option<CaseReport>> =
            (0..study.places()).map(|place| Some(folder.read_case(study, place)?.report())).collect();
        let seconds = |run: &PlannedJob| estimate(&run.job, self.prepared_for(run));
        let ahead = left.iter().map(|run| seconds(run)).collect();
        let mut progress = Progress::start(ahead, runs.len(), Instant::now());
        let mut watch = Watch::default();
        let mut written = Ok(());
        for (place, &run) in left.iter().enumerate() {
            let PlannedJob { job, planned } = run;
            folder.create_case(planned)?;
            progress.begin(job, name(planned, study), Instant::now());
            let (load, warning) = watch.look(job);
            warning.iter().for_each(|warning| progress.tell(warning));
            let surroundings = Surroundings {
                program: program.clone(),
                interrupted: &interrupted,
                load,
                meeting: self
                    .meeting
                    .clone()
                    .map(|meeting| Meeting { is_last: place + 1 == left.len(), ..meeting }),
                progress: &mut |glance| progress.show(job, glance, Instant::now()),
            };
            let result = launch(job, self.prepared_for(run), surroundings);
            let mut alone = None;
            if let Some(logs) = folder.read_case(study, planned.place) {
                written = folder.write_tensorboard(&logs);
                alone = logs.report_repeat(planned.repeat);
                cases[planned.place] = Some(logs.report());
            }
            let report = Report::new(study, cases.iter().flatten().cloned().collect());
            written = written.and_then(|()| folder.write_report(&report));
            if let Some(run) = alone.as_ref().or(cases[planned.place].as_ref()) {
                progress.end(run, Instant::now());
            }
            if result.is_ok() && written.is_ok() && job.profile {
                self.show_layers(job)?;
            }
            let stopped =
                interrupted.load(Ordering::Relaxed) || matches!(result, Err(TrainError::Interrupted));
            if stopped || written.is_err() {
                break;
            }
        }
        progress.clear();
        Ok((Report::new(study, cases.into_iter().flatten().collect()), written))
    }

    fn prepared_for(&self, run: &PlannedJob) -> &Prepared {
        &self.prepared[&run.planned.place]
    }

    /// Prints the time of each layer; beside JSON, to standard error.
    fn show_layers(&self, job: &Job) -> Result<()> {
        let Some(LayerRows(rows)) = self.options.profile else {
            return Ok(());
        };
        let path = job.folder.join(worker::LAYERS_FILE);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let layers: Vec<LayerTime> =
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
        let table = format!("{}\n{}\n", job.model, sections::layers(&layers, rows));
        match Show::json(self.options.json) {
            Show::Json => {
                say(&table);
                Ok(())
            }
            Show::Text => print(&table),
        }
    }
}

/// What tells a run from the others of its study.
fn name(planned: &Planned, study: &Study) -> String {
    let Planned { place, repeat, case, .. } = planned;
    let all: Vec<&Case> = study.cases.iter().map(|planned| &planned.case).collect();
    let repeats = study.cases.iter().filter(|planned| planned.place == *place).count();
    let repeat = if repeats > 1 { format!(", repeat {repeat} of {repeats}") } else { String::new() };
    format!("{} on {}{repeat}", Key::new(case, &all).label(), words::workers(case.workers))
}

/// Says which runs of a resumed study are left.
fn announce(folder: &StudyFolder, runs: usize, left: usize) {
    let path = folder.path().display();
    match left {
        0 => say(&format!("{path}: all {runs} runs are done already; --fresh runs them again")),
        _ if left < runs => {
            say(&format!("{path}: {} of {runs} runs are done already, {left} are left", runs - left))
        }
        _ => {}
    }
}
