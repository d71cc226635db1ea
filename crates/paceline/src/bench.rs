//! `paceline bench`: plan the cases, run them one after another, report them.

mod options;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use paceline_lab::{LabError, Planned, Report, SCHEMA, Study, StudyFolder, terminal};
use paceline_record::{LayerTime, Outcome};
use paceline_train::launcher::{Surroundings, launch};
use paceline_train::{Job, Strategy, TrainError, worker};

pub use options::{Options, parse_choice};

use crate::machine;
use crate::outcome::{Unfinished, Usage, print, say};
use crate::progress::Progress;

/// Runs the study. What cannot be run is refused before anything starts.
pub fn run(options: &Options) -> Result<()> {
    if options.out.as_ref().is_some_and(|path| path.to_str().is_none()) {
        return Err(Usage::new("the name of --out is not valid UTF-8; choose another").into());
    }
    let mut jobs = options.jobs()?;
    for job in &jobs {
        job.check().map_err(Usage::new)?;
    }
    warn_if_crowded(&jobs);
    let engine = jobs[0].describe_engine().map_err(Usage::new)?;
    let folder = start_study(options, &mut jobs, engine).map_err(Usage::new)?;
    let report = run_cases(options, &jobs, &folder)?;
    if options.json {
        let text = fs::read_to_string(folder.report_path()).context("cannot read the report")?;
        print(&text)?;
    } else {
        print(&terminal::render_report(&report))?;
        print(&format!("\nThe report lies in {}\n", folder.path().display()))?;
    }
    let done = report.cases.iter().filter(|case| case.status == Outcome::Done);
    if done.count() < jobs.len() {
        return Err(Unfinished.into());
    }
    Ok(())
}

/// Says what more workers than cores do to the numbers.
fn warn_if_crowded(jobs: &[Job]) {
    let cores = machine::cores();
    let real = jobs.iter().filter(|job| job.engine != "simulated");
    let busiest = real.map(|job| job.workers as usize * job.threads).max().unwrap_or(0);
    if busiest > cores {
        say(&format!(
            "warning: {busiest} threads on {cores} cores take turns: step times then measure the sharing of cores, \
             waiting for late ranks grows, and speed-ups beyond {cores} are not to be expected"
        ));
    }
}

/// Makes the study's folder and tells the jobs where their logs go.
fn start_study(options: &Options, jobs: &mut [Job], engine: String) -> Result<StudyFolder, LabError> {
    let planned = |job: &Job| Planned {
        folder: case_name(job),
        case: job.case(),
        steps: job.steps,
        data: job.data.clone(),
        seed: job.seed,
        learning_rate: job.learning_rate,
    };
    let study = Study {
        schema: SCHEMA,
        program: env!("CARGO_PKG_VERSION").into(),
        command: std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect(),
        machine: machine::describe(engine),
        cases: jobs.iter().map(planned).collect(),
    };
    let path = match &options.out {
        Some(path) => path.clone(),
        None => StudyFolder::numbered(Path::new(""))?,
    };
    let folder = StudyFolder::start(&path, &study, options.fresh)?;
    for job in jobs {
        job.folder = folder.create_case(&case_name(job))?;
    }
    Ok(folder)
}

fn case_name(job: &Job) -> String {
    match job.update {
        Strategy::AllReduce => format!("{}-w{}", job.model, job.workers),
        update => format!("{}-{update}-w{}", job.model, job.workers),
    }
}

/// Runs case after case and saves the report after each. An interruption ends the study; a failure only its case.
fn run_cases(options: &Options, jobs: &[Job], folder: &StudyFolder) -> Result<Report> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).context("cannot watch for Ctrl-C")?;
    }
    let mut names = Vec::new();
    let mut report = Report::new(Vec::new());
    for job in jobs {
        let progress = Progress::start(job);
        let surroundings = Surroundings {
            program: program.clone(),
            interrupted: &interrupted,
            progress: &mut |steps| progress.show(steps),
        };
        let result = launch(job, surroundings);
        names.push(case_name(job));
        report = folder.analyse(names.iter().map(String::as_str))?;
        folder.write_report(&report)?;
        if let Some(case) = report.cases.last() {
            progress.end(case);
        }
        if result.is_ok() && job.profile {
            show_layers(options, job)?;
        }
        if interrupted.load(Ordering::Relaxed) || matches!(result, Err(TrainError::Interrupted)) {
            break;
        }
    }
    Ok(report)
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
