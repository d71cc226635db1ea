//! `paceline explain`: what somebody else's numbers mean.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use paceline_import::ranks::Told;
use paceline_import::source;
use paceline_import::trace::Trace;
use paceline_import::{chrome, nvidia_smi, open, profile, timeline, unknown, write};
use paceline_lab::explain::{self, Meaning, Work};
use paceline_lab::origin::Format;
use paceline_lab::{Held, StudyFolder};

use crate::outcome::{self, Show, Usage, print};
use crate::report;

/// Options of `paceline explain`.
#[derive(Args)]
pub struct Options {
    /// A study, a trace or a profile (or a folder with those of all ranks), a log that `import` reads, or a file with tables:
    /// HTML, Markdown, CSV or TSV, or a whole page; - reads standard input
    #[arg(value_name = "PATH")]
    file: PathBuf,
    /// Only the table that begins on this line; may be given again
    #[arg(long, value_name = "LINE")]
    table: Vec<usize>,
    /// What a column means, such as `speed=rate-global`; an unknown meaning lists them all; may be given again
    #[arg(long, value_name = "COLUMN=MEANING", value_parser = parse_map)]
    map: Vec<(String, Meaning)>,
    /// Steps of a run
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Examples of a run
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    examples: Option<u64>,
    /// Examples of a step of one worker
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batch: Option<u64>,
    /// Epochs of a run
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Whether steps are divided among the workers, or each worker does all of them
    #[arg(long)]
    work: Option<WorkOption>,
    /// Of a profile: only what comes after so many seconds
    #[arg(long, value_name = "SECONDS")]
    from: Option<f64>,
    /// Of a profile: only what comes before so many seconds
    #[arg(long, value_name = "SECONDS")]
    to: Option<f64>,
    /// Of a profile: only while a range of this name is open
    #[arg(long, value_name = "NAME")]
    range: Option<String>,
    /// Of a profile: write a timeline for Perfetto
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Print JSON to standard output, and nothing else
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum WorkOption {
    Divided,
    PerWorker,
}

fn parse_map(text: &str) -> Result<(String, Meaning), String> {
    // Headings may hold `=`, meanings do not.
    let (column, meaning) = text.rsplit_once('=').ok_or("wanted: COLUMN=MEANING")?;
    Ok((column.trim().into(), meaning.trim().parse()?))
}

impl Options {
    /// Refuses what only tables take, where there are none.
    fn refuse_tables(&self) -> Result<&Self, Usage> {
        let given = [
            (!self.table.is_empty(), "--table"),
            (!self.map.is_empty(), "--map"),
            (self.steps.is_some(), "--steps"),
            (self.examples.is_some(), "--examples"),
            (self.epochs.is_some(), "--epochs"),
            (self.work.is_some(), "--work"),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            Some((_, name)) => {
                Err(Usage::new(format!("{name} is for tables; {} is something else", self.file.display())))
            }
            None => Ok(self),
        }
    }

    /// Refuses what only a profile takes, where there is none.
    fn refuse_cuts(&self) -> Result<&Self, Usage> {
        let cuts = self.from.is_some() || self.to.is_some() || self.range.is_some();
        match cuts || self.timeline.is_some() {
            true => Err(Usage::new(
                "--from, --to, --range and --timeline are for one profile: a PyTorch trace with a device, nvprof's, \
                 Nsight Systems', JAX's or TensorFlow's file",
            )),
            false => Ok(self),
        }
    }
}

/// Explains a file, by what it holds.
pub fn run(options: &Options) -> Result<()> {
    let path = &options.file;
    if path.join("study.json").exists() {
        options.refuse_tables()?.refuse_cuts()?;
        let (folder, study) = StudyFolder::open(path)?;
        return report::print_report(&folder.analyse(&study), Show::json(options.json));
    }
    let profile = if path.is_file() { source::read_profile(path)? } else { None };
    if let Some(traces) = profile {
        options.refuse_tables()?;
        return explain_profile(&traces, options);
    }
    options.refuse_cuts()?;
    let format = if path.is_file() { source::recognise(path)? } else { None };
    if format.is_some() || path.is_dir() {
        options.refuse_tables()?;
    }
    match format {
        Some(Format::NvidiaSmi) => {
            let monitor = nvidia_smi::read(path)?;
            return match options.json {
                true => outcome::print_json(&monitor),
                false => print(&monitor.render()),
            };
        }
        Some(Format::Chrome) => {
            let timeline = chrome::read(path)?;
            return match options.json {
                true => outcome::print_json(&timeline),
                false => print(&timeline.render()),
            };
        }
        Some(_) => return explain_runs(options),
        None if path.is_dir() => return explain_runs(options),
        None => {}
    }
    let bytes = read(&options.file)?;
    if let Some(what) = unknown::describe(&bytes) {
        return Err(Usage::new(format!("{}: {what}", path.display())).into());
    }
    explain_tables(&String::from_utf8_lossy(&bytes), options)
}

/// One screen on each profile in a file.
fn explain_profile(traces: &[Trace], options: &Options) -> Result<()> {
    let same = |path: &PathBuf| {
        path.canonicalize().is_ok_and(|path| options.file.canonicalize().is_ok_and(|file| file == path))
    };
    if options.timeline.as_ref().is_some_and(same) {
        return Err(Usage::new("--timeline would write over the profile").into());
    }
    if traces.len() > 1 && options.timeline.is_some() {
        let reason = format!("the file holds {} processes or devices; --timeline writes one", traces.len());
        return Err(Usage::new(reason).into());
    }
    let mut profiles = Vec::new();
    for trace in traces {
        let cut = profile::Cut { from: options.from, to: options.to, range: options.range.as_deref() };
        let profile = profile::summarise(trace, &cut)
            .map_err(|why| Usage::new(format!("{}: {why}", options.file.display())))?;
        if let Some(path) = &options.timeline {
            timeline::write_trace(trace, &profile.window, path)?;
        }
        profiles.push(profile);
    }
    if options.json {
        return outcome::print_json(&profiles);
    }
    profiles.iter().try_for_each(|profile| print(&profile::render(profile)))
}

/// Runs of other programs, as a study that is not kept.
fn explain_runs(options: &Options) -> Result<()> {
    let told = Told { model: "imported".into(), batch: options.batch };
    let runs = source::import(std::slice::from_ref(&options.file), &told)?;
    let scratch = std::env::temp_dir().join(format!("paceline-explain-{}", std::process::id()));
    let explained = write::write(&runs, &[], &scratch, Held::Replace)
        .map_err(anyhow::Error::from)
        .and_then(|(folder, study)| report::print_report(&folder.analyse(&study), Show::json(options.json)));
    // Whatever happened, nothing is to be left behind; what happened comes first.
    let removed = std::fs::remove_dir_all(&scratch);
    explained?;
    Ok(removed?)
}

fn explain_tables(text: &str, options: &Options) -> Result<()> {
    let Options { table, map, steps, examples, batch, epochs, .. } = options;
    let work = options.work.map(|work| match work {
        WorkOption::Divided => Work::Divided,
        WorkOption::PerWorker => Work::PerWorker,
    });
    let context =
        explain::series::Context { steps: *steps, batch: *batch, epochs: *epochs, examples: *examples };
    let told = explain::Options { tables: table.clone(), map: map.clone(), context, work };
    let found = explain::explain_text(text, &told);
    let found = found.map_err(|error| Usage::because(options.file.display().to_string(), error))?;
    if options.json {
        return outcome::print_json(&found);
    }
    print(&explain::render(&found))
}

/// A file's bytes, up to one more than a table may have.
fn read(path: &Path) -> Result<Vec<u8>> {
    let most = explain::LONGEST as u64 + 1;
    let mut bytes = Vec::new();
    let file = if path == Path::new("-") { open::plain(io::stdin()) } else { open::open(path)? };
    let done = file.take(most).read_to_end(&mut bytes);
    match done {
        Err(error) if open::is_damage(&error) => Err(Usage::because(path.display().to_string(), error))?,
        done => done.with_context(|| format!("cannot read {}", path.display()))?,
    };
    Ok(bytes)
}
