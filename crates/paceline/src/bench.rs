//! `paceline bench`: plan the runs, do them one after another, report them.

mod config;
mod options;
mod plan;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::ArgMatches;
use paceline_lab::{CaseReport, Held, LabError, Report, SCHEMA, Study, StudyFolder, terminal};
use paceline_record::{LayerTime, Outcome};
use paceline_train::launcher::{Surroundings, launch};
use paceline_train::{Job, TrainError, devices, worker};

pub use options::{Options, parse_choice};
pub use plan::{PlannedJob, plan};

use crate::machine;
use crate::outcome::{Unfinished, Usage, print, say};
use crate::progress::Progress;
use crate::report;

/// Runs the study. What cannot be run is refused before anything starts.
pub fn run(options: &Options, matches: &ArgMatches) -> Result<()> {
    let options = match &options.config {
        // The program and `bench` are not options.
        Some(path) => &config::read(path, matches, std::env::args_os().skip(2))?,
        None => options,
    };
    if options.out.as_ref().is_some_and(|path| path.to_str().is_none()) {
        return Err(Usage::new("the name of --out is not valid UTF-8; choose another").into());
    }
    let mut runs = plan(options)?;
    let jobs = || runs.iter().filter(|run| run.planned.repeat == 1).map(|run| &run.job);
    for job in jobs() {
        job.check().map_err(Usage::new)?;
    }
    warn(jobs().collect());
    let study = describe(&runs)?;
    let folder = start(options, &study).map_err(Usage::new)?;
    for run in &mut runs {
        run.job.folder = folder.path().join(&run.planned.folder);
    }
    let report = run_all(options, &study, &runs, &folder)?;
    report::print_report(&report, options.json)?;
    folder.write_pages(&study, &report)?;
    report::point_to(&folder, options.json)?;
    if report.missing > 0
        || report.cases.iter().any(|case| case.status != Outcome::Done || case.reason.is_some())
    {
        return Err(Unfinished.into());
    }
    Ok(())
}

/// Says what would make numbers other than they seem.
pub fn warn(jobs: Vec<&Job>) {
    let cores = machine::cores();
    let real = jobs.iter().filter(|job| job.engine != "simulated");
    let busiest = real.map(|job| job.workers as usize * job.threads).max().unwrap_or(0);
    if busiest > cores {
        say(&format!(
            "warning: {busiest} threads on {cores} cores take turns: step times then measure the sharing of cores, \
             waiting for late ranks grows, and speed-ups beyond {cores} are not to be expected"
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
        if let Some(examples) = job.examples.filter(|&examples| examples != seen) {
            say(&format!(
                "warning: {} on {} workers sees {seen} examples in whole steps, not {examples}",
                job.model, job.workers
            ));
        }
    }
}

/// The study as it will be written down.
pub fn describe(runs: &[PlannedJob]) -> Result<Study, Usage> {
    let mut engines: Vec<String> = Vec::new();
    for run in runs {
        let engine = run.job.describe_engine().map_err(Usage::new)?;
        if !engines.contains(&engine) {
            engines.push(engine);
        }
    }
    Ok(Study {
        schema: SCHEMA,
        program: env!("CARGO_PKG_VERSION").into(),
        command: std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect(),
        machine: machine::describe(engines.join("; ")),
        cases: runs.iter().map(|run| run.planned.clone()).collect(),
    })
}

/// Finds the study's folder: the one that was named, one that was left unfinished here, or a new one.
fn start(options: &Options, study: &Study) -> Result<StudyFolder, LabError> {
    let held = if options.fresh { Held::Replace } else { Held::Resume };
    let path = match (&options.out, StudyFolder::unfinished(Path::new(""), study)) {
        (Some(path), _) => path.clone(),
        (None, Some(path)) => path,
        (None, None) => StudyFolder::numbered(Path::new(""))?,
    };
    StudyFolder::start(&path, study, held)
}

/// Does run after run and saves the report after each; what is done already is not done again. An interruption ends the
/// study; a failure only its case.
fn run_all(options: &Options, study: &Study, runs: &[PlannedJob], folder: &StudyFolder) -> Result<Report> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).context("cannot watch for Ctrl-C")?;
    }
    let left: Vec<&PlannedJob> = runs.iter().filter(|run| !folder.is_done(&run.planned)).collect();
    announce(folder, runs.len(), left.len());
    let mut cases: Vec<Option<CaseReport>> =
        (0..study.places()).map(|place| Some(folder.read_case(study, place)?.report())).collect();
    let mut progress = Progress::start(&left.iter().map(|run| &run.job).collect::<Vec<_>>(), runs.len());
    for &PlannedJob { job, planned } in &left {
        folder.create_case(planned)?;
        progress.begin(job);
        let surroundings = Surroundings {
            program: program.clone(),
            interrupted: &interrupted,
            progress: &mut |glance| progress.show(job, glance.steps),
        };
        let result = launch(job, surroundings);
        if let Some(logs) = folder.read_case(study, planned.place) {
            folder.write_tensorboard(&logs)?;
            cases[planned.place] = Some(logs.report());
        }
        let report = Report::new(study, cases.iter().flatten().cloned().collect());
        folder.write_report(&report)?;
        if let Some(case) = &cases[planned.place] {
            progress.end(job, case);
        }
        if result.is_ok() && job.profile {
            show_layers(options, job)?;
        }
        if interrupted.load(Ordering::Relaxed) || matches!(result, Err(TrainError::Interrupted)) {
            break;
        }
    }
    progress.clear();
    Ok(Report::new(study, cases.into_iter().flatten().collect()))
}

/// Says that a study goes on, where it does.
fn announce(folder: &StudyFolder, runs: usize, left: usize) {
    let path = folder.path().display();
    match left {
        0 => say(&format!("{path}: all {runs} runs are done already; --fresh does them anew")),
        _ if left < runs => {
            say(&format!("{path}: {} of {runs} runs are done already, {left} are left", runs - left))
        }
        _ => {}
    }
}

/// Prints the time of each layer; beside JSON, to standard error.
fn show_layers(options: &Options, job: &Job) -> Result<()> {
    let Some(rows) = options.profile else {
        return Ok(());
    };
    let path = job.folder.join(worker::LAYERS_FILE);
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let layers: Vec<LayerTime> =
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
    let table = format!("{}\n{}\n", job.model, terminal::render_layers(&layers, rows));
    if options.json {
        say(&table);
        return Ok(());
    }
    print(&table)
}
