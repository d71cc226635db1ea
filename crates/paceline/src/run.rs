//! `paceline run`: somebody's command, followed from outside, and a report of where its ranks' time went.
//!
//! The command must not notice: what it prints, the signals it gets and how it ends are its own. So whatever goes wrong with measuring is
//! a warning, once the command has been started.

mod command;
mod follower;
mod logs;
mod sweep;

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write, stderr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use paceline_lab::{Followed, LabError, Machine, Placed, Report, SCHEMA, Study, StudyFolder, terminal};
use paceline_record::{Exit, date};
use paceline_system::tree::Tree;
use paceline_system::{clock, load};

use self::command::{Ended, Relay, end_as};
use self::follower::{Follower, Task};
use self::logs::{Surroundings, Training};
use crate::outcome::{self, Usage, say};
use crate::screen::error_screen;
use crate::{machine, report};

/// What folders are called if nobody names one.
const RUNS: &str = "run";

/// Options of `paceline run`.
#[derive(Args)]
pub struct Options {
    /// Folder of the study; runs into the same folder are collected, and one of an equal case is replaced [default: run-N here]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run the command once for each of these numbers of workers, which take the place of {workers} in it, or of torchrun's
    /// --nproc-per-node, accelerate's --num_processes, or mpirun's -np
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65536))]
    workers_sweep: Option<Vec<u32>>,
    /// Run it so many times; repeats of a case are pooled
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Measure the phases of one step in so many, for steps of a few milliseconds
    #[arg(long, value_name = "1/N", default_value = "1/1", value_parser = parse_sample)]
    sample: u32,
    /// What to call the network, instead of the name of its class
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Samples a step on each worker, where the data does not tell
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    batch: Option<u64>,
    /// Write report.json only, and print no report
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn parse_sample(text: &str) -> Result<u32, String> {
    let parsed = text.strip_prefix("1/").and_then(|number| number.parse().ok());
    parsed.filter(|number| (1..=1_000_000).contains(number)).ok_or_else(|| "as 1/10".into())
}

/// Runs the command as often as is asked for, and reports. Ends as the command did; of several, as the first that failed.
pub fn run(options: &Options) -> Result<()> {
    let commands = commands(options)?;
    outcome::check_name(options.out.as_deref())?;
    if let Some(out) = &options.out {
        check_folder(out)?;
    }
    let relay = Relay::start()?;
    let mut desk = Desk::open(options)
        .inspect_err(|error| say(&format!("warning: the command is not followed: {error:#}")))
        .ok();
    let mut exit = Exit::Code(0);
    'all: for repeat in 1..=options.repeat {
        for words in &commands {
            let ended = match run_one(&relay, desk.as_mut(), words, repeat) {
                Ok(ended) => ended,
                Err(error) => {
                    if let Some(desk) = desk {
                        desk.tidy();
                    }
                    say(&format!("error: cannot run {}: {error}", words[0].display()));
                    end_as(Exit::Code(if error.kind() == ErrorKind::NotFound { 127 } else { 126 }));
                }
            };
            if exit.is_success() {
                exit = ended.exit;
            }
            if ended.asked.is_some() || ended.exit == Exit::Signal(2) {
                break 'all;
            }
        }
    }
    if let Some(desk) = desk {
        desk.close().unwrap_or_else(|error| say(&format!("warning: cannot report the run: {error:#}")));
    }
    end_as(exit)
}

/// The command, once for each number of workers.
fn commands(options: &Options) -> Result<Vec<Vec<OsString>>, Usage> {
    let Some(numbers) = &options.workers_sweep else { return Ok(vec![options.command.clone()]) };
    let mut known = Vec::new();
    for &number in numbers {
        if known.contains(&number) {
            return Err(Usage::new(format!("--workers-sweep names {number} twice")));
        }
        known.push(number);
    }
    numbers.iter().map(|&workers| sweep::with_workers(&options.command, workers)).collect()
}

/// Refuses a folder that holds something else than runs like these.
fn check_folder(path: &Path) -> Result<()> {
    match StudyFolder::open(path) {
        Ok((_, study)) if study.command.first().is_some_and(|command| command == "run") => Ok(()),
        Ok(_) => {
            let why = format!(
                "{} holds a study that `paceline run` did not make; choose another --out",
                path.display()
            );
            Err(Usage::new(why).into())
        }
        Err(LabError::NoStudy { .. }) => match fs::read_dir(path) {
            Ok(mut entries) => match entries.any(|entry| entry.is_ok_and(|it| !is_ours(&it))) {
                true => Err(LabError::NotAStudy { path: path.into() }.into()),
                false => Ok(()),
            },
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(LabError::io("read", path)(error).into())
            }
            _ => Ok(()),
        },
        Err(error) => Err(error.into()),
    }
}

/// Whether something in a folder is what a run there writes before it ends.
fn is_ours(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_str().is_some_and(|name| name.starts_with(".run-"))
}

/// Runs a command once. What goes wrong with its logs is a warning.
fn run_one(
    relay: &Relay,
    desk: Option<&mut Desk<'_>>,
    words: &[OsString],
    repeat: u32,
) -> std::io::Result<Ended> {
    let Some(desk) = desk else { return relay.run(words, &[]) };
    let load = load::measure(&Tree::new("/"));
    let started = clock::started();
    let staging = desk.stage();
    let environment = desk.environment(&staging).unwrap_or_else(|error| {
        say(&format!("warning: the command is not followed: {error:#}"));
        Vec::new()
    });
    let ended = relay.run(words, &environment)?;
    let around = Surroundings { exit: ended.exit, started, load };
    if let Err(error) = desk.collect(&staging, &ended, around, repeat) {
        say(&format!("warning: cannot make a report of the logs in {}: {error:#}", staging.display()));
    }
    Ok(ended)
}

/// Where the runs of this command are kept.
struct Desk<'a> {
    options: &'a Options,
    follower: Follower,
    path: PathBuf,
    is_new: bool,
    staged: u32,
    /// Whether ranks were lost before any had logged a step.
    lost_early: bool,
    /// Where runs went, and their cases.
    placed: Vec<(Placed, paceline_record::Case)>,
}

impl<'a> Desk<'a> {
    fn open(options: &'a Options) -> Result<Self> {
        let follower = Follower::write().context("cannot write down what Python needs")?;
        let is_new = options.out.as_ref().is_none_or(|out| !out.exists());
        let path = match &options.out {
            Some(out) => {
                fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
                out.clone()
            }
            None => StudyFolder::numbered_as(Path::new(""), RUNS)?,
        };
        Ok(Self { options, follower, path, is_new, staged: 0, lost_early: false, placed: Vec::new() })
    }

    /// A folder for the logs of one run that nobody else has.
    fn stage(&mut self) -> PathBuf {
        self.staged += 1;
        let host = machine::host().unwrap_or_default();
        let host: String = host.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = format!(".run-{host}-{}-{}", std::process::id(), self.staged);
        self.path.join(name)
    }

    /// Makes the folder for the logs, and what the command is told of it.
    fn environment(&self, staging: &Path) -> Result<Vec<(&'static str, OsString)>> {
        let unmade = || format!("cannot create {}", staging.display());
        fs::create_dir(staging).with_context(unmade)?;
        let out = fs::canonicalize(staging).with_context(unmade)?;
        let Options { sample, model, batch, .. } = self.options;
        let (sample, model, batch, spawn) = (*sample, model.as_deref(), *batch, clock::now());
        let unsaid = || format!("the path {} is no text", out.display());
        self.follower.environment(&Task { out: &out, spawn, sample, model, batch }).with_context(unsaid)
    }

    /// Makes cases of the logs that a command left.
    fn collect(&mut self, staging: &Path, ended: &Ended, around: Surroundings, repeat: u32) -> Result<()> {
        let trainings = logs::read(staging)?;
        self.lost_early |= trainings.is_empty() && logs::has_begun(staging);
        let courses = logs::courses(&trainings, ended);
        for (training, course) in trainings.iter().zip(&courses) {
            logs::write_launcher(training, course, around)?;
            let run = Followed {
                from: &training.folder,
                case: training.case.clone(),
                repeat,
                steps: training.steps(),
                ranks: training.ranks.keys().copied().collect(),
            };
            let (_, _, placed) = StudyFolder::collect(&self.path, &describe(training), &run)?;
            self.placed.push((placed, run.case));
        }
        // What is left holds no log that can be read.
        let name = staging.file_name().unwrap_or_default().to_owned();
        for entry in fs::read_dir(&self.path)?.flatten() {
            let left = entry.file_name();
            let is_its = left.as_encoded_bytes().starts_with(name.as_encoded_bytes());
            if is_its && is_ours(&entry) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Removes what was made for a run that did not come to be.
    fn tidy(self) {
        if self.is_new && self.placed.is_empty() {
            // What somebody else has put there stays.
            let _ = fs::read_dir(&self.path).map(|entries| {
                entries.flatten().filter(is_ours).for_each(|entry| drop(fs::remove_dir_all(entry.path())));
            });
            let _ = fs::remove_dir(&self.path);
        }
    }

    /// Reports what has been collected.
    fn close(self) -> Result<()> {
        if self.placed.is_empty() {
            say(match self.lost_early {
                true => {
                    "paceline: ranks began to train, and were lost in their first steps: there is nothing to report"
                }
                false => {
                    "paceline: nothing was followed: no process of the command made a step of a PyTorch optimizer, or its Python did \
                     not look at PYTHONPATH (python -I or -E, another machine, a container)"
                }
            });
            self.tidy();
            return Ok(());
        }
        let Self { options, follower, path, placed, .. } = self;
        drop(follower);
        for (Placed { missing, .. }, case) in &placed {
            if let Some(sentence) = logs::say_missing(case, missing, &path) {
                say(&format!("paceline: {sentence}"));
                return Ok(());
            }
        }
        let (mut folder, study) = StudyFolder::open(&path)?;
        folder.lock_patiently()?;
        if options.json {
            folder.write_report(&folder.analyse(&study))?;
            return Ok(());
        }
        let (report, written) = report::analyse(&folder, &study);
        print(&report);
        written?;
        folder.write_pages(&study, &report)?;
        say(&format!("\nReport: {}", report::page(&folder).display()));
        Ok(())
    }
}

/// A study that begins with this training.
fn describe(training: &Training) -> Study {
    let engine = training.case.settings.get("torch").map(|version| format!("PyTorch {version}"));
    Study {
        schema: SCHEMA,
        program: env!("CARGO_PKG_VERSION").into(),
        command: std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect(),
        date: Some(date(clock::started().unix)),
        host: machine::host(),
        machine: Machine { engine, ..machine::describe(String::new()) },
        cases: Vec::new(),
    }
}

/// Prints a report to standard error: standard output is the command's.
fn print(report: &Report) {
    let text = terminal::render_report(report, error_screen());
    // If even that fails, there is nobody to tell.
    let _ = writeln!(stderr(), "\n{}", text.trim_end());
}
