//! What `paceline train` can be asked for.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};
use paceline_engine::{Layout, Precision};
use paceline_train::checkpoint::{self, Checkpoint};
use paceline_train::data::Data;
use paceline_train::schedule::Rule;
use paceline_train::{Compress, Job, Strategy};

use crate::bench;
use crate::learning::{LearningOptions, parse_epochs, parse_length, parse_rate};
use crate::machine;
use crate::outcome::Usage;
use crate::size::{self, Size};

/// Options of `paceline train`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The network (see `paceline models`)
    #[arg(value_name = "MODEL", required_unless_present = "resume")]
    model: Option<String>,
    /// synthetic:cifar10, synthetic:imagenet, synthetic:HxWxC, cifar10:DIR (see `paceline data`) or images:DIR (a folder
    /// for each class)
    #[arg(long, default_value = "synthetic:cifar10")]
    data: String,
    /// Worker processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: u32,
    /// Passes over the data
    #[arg(long, value_name = "E", default_value_t = 5.0, value_parser = parse_length)]
    epochs: f64,
    /// Instead of --epochs: steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), conflicts_with = "epochs")]
    steps: Option<u64>,
    /// Samples a step on each worker [default: 64]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with = "global_batch")]
    batch: Option<u32>,
    /// Instead of --batch: samples a step on all workers together
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    global_batch: Option<u32>,
    /// Shards that each step is cut into, each with batch norm of its own: the same number gives the same weights on any
    /// number of workers up to it; more than workers makes batch norm see fewer samples [default: the workers]
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u32).range(1..=4096))]
    shards: Option<u32>,
    /// Seed of weights, order, and augmentation
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 0.01, allow_negative_numbers = true, value_parser = parse_rate)]
    lr: f32,
    /// How the learning rate follows the global batch: none, or linear (Goyal et al. 2017), see --lr-batch
    #[arg(long, value_name = "none|linear", default_value = "none")]
    lr_rule: Rule,
    /// How workers share what they learn: allreduce, sharded, replicated, ps-cpu or ps-gpu
    #[arg(long, value_name = "STRATEGY", default_value = "allreduce")]
    update: Strategy,
    #[command(flatten)]
    pub learning: LearningOptions,
    /// Write a checkpoint after every so many epochs, and at the end; 0 for the end alone
    #[arg(long, value_name = "E", default_value_t = 1.0, value_parser = parse_epochs)]
    pub checkpoint_every: f64,
    /// Keep the last so many checkpoints
    #[arg(long, value_name = "K", default_value = "3")]
    pub keep: NonZeroUsize,
    /// Go on from a checkpoint, or from the newest of a training's folder: what is not said anew is as it was, but the
    /// number of workers may change
    #[arg(long, value_name = "PATH", conflicts_with = "fresh")]
    resume: Option<PathBuf>,
    /// Folder of the run [default: study-N here; with --resume, where the checkpoint lies]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Start over: replace what the folder holds
    #[arg(long)]
    pub fresh: bool,
    /// Print report.json to standard output, and nothing else
    #[arg(long)]
    pub json: bool,
    /// Threads in each worker [default: cores / workers]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Computing")]
    threads: Option<u32>,
    /// Size of the pictures [default: the data's]
    #[arg(long, value_name = "HxW", value_parser = size::parse, help_heading = "Computing")]
    input: Option<Size>,
    /// Classes [default: the data's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Computing")]
    classes: Option<u32>,
    /// What computes: cpu or cuda
    #[arg(long, default_value = "cpu", help_heading = "Computing")]
    engine: String,
    /// Let several workers use one GPU and exchange through the host, for testing
    #[arg(long, help_heading = "Computing")]
    share_gpu: bool,
    /// Order of dimensions: nhwc or nchw
    #[arg(long, default_value = "nhwc", help_heading = "Computing")]
    layout: Layout,
    /// Number format: fp32; with --engine cuda also tf32 and bf16
    #[arg(long, default_value = "fp32", help_heading = "Computing")]
    precision: Precision,
    /// Passes of each shard whose gradients are added up before one exchange
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = "Computing")]
    accumulate: u32,
    /// Number format of gradients on their way, with --update allreduce: none, fp16 or bf16
    #[arg(long, value_name = "FORMAT", default_value = "none", help_heading = "Computing")]
    compress: Compress,
    /// Whether each worker keeps to cores of its own: yes or no
    #[arg(long, value_name = "yes|no", default_value = "yes", action = clap::ArgAction::Set, value_parser = bench::parse_choice, help_heading = "Computing")]
    pin: bool,
}

/// Options of one run, which no other inherits.
const OF_THE_RUN: [&str; 5] = ["model", "resume", "out", "fresh", "json"];

/// Options that mean the same thing.
const INSTEAD: [&[&str]; 2] = [&["steps", "epochs"], &["batch", "global-batch"]];

/// A checkpoint, and where it lies.
pub type Found = (PathBuf, Checkpoint);

impl Options {
    /// The options, their words for a later run, and the checkpoint they go on from. With one, what is not said anew is
    /// as its training had it.
    pub fn gone_on_with(&self, matches: &ArgMatches) -> Result<(Self, Vec<String>, Option<Found>), Usage> {
        let command = Self::augment_args(Command::new("train").args_override_self(true));
        let mut words = said(&command, matches);
        let Some(path) = &self.resume else {
            return Ok((self.clone(), words, None));
        };
        let path = checkpoint::locate(path).map_err(Usage::new)?;
        let checkpoint = Checkpoint::read(&path).map_err(Usage::new)?;
        let fixed = |name: &str| checkpoint.position.job.get(name).cloned().unwrap_or_default();
        let mut all = checkpoint.position.asked.clone();
        all.extend(["shards", "global-batch"].map(|name| format!("--{name}={}", fixed(name))));
        // One that is said instead of another takes its place.
        for group in INSTEAD {
            let names = |word: &String, name: &&str| word.starts_with(&format!("--{name}="));
            let of_group = |word: &String| group.iter().any(|name| names(word, name));
            match words.iter().any(of_group) {
                true => all.retain(|word| !of_group(word)),
                false => {
                    let last = all.iter().rfind(|word| of_group(word)).cloned();
                    all.retain(|word| !of_group(word));
                    all.extend(last);
                }
            }
        }
        all.append(&mut words);
        let model = self.model.clone().unwrap_or_else(|| fixed("model"));
        let line = ["train".to_owned(), model].into_iter().chain(all.iter().cloned());
        let parsed = command.try_get_matches_from(line).and_then(|matches| Self::from_arg_matches(&matches));
        let options = parsed.map_err(|error| {
            Usage::new(format!(
                "{}: its training was asked for in words of another version: {error}",
                path.display()
            ))
        })?;
        let Self { out, json, .. } = self.clone();
        Ok((Self { out, json, fresh: false, ..options }, all, Some((path, checkpoint))))
    }

    /// Where the run goes: `None` for a new folder.
    pub fn folder(&self, from: Option<&Found>) -> Result<Option<PathBuf>, Usage> {
        if self.out.as_ref().is_some_and(|path| path.to_str().is_none()) {
            return Err(Usage::new("the name of --out is not valid UTF-8; choose another"));
        }
        // DIR/checkpoints/step-390
        let home = from.and_then(|(path, _)| Some(path.parent()?.parent()?.to_owned()));
        Ok(self.out.clone().or(home))
    }

    /// The job, but for when it stops to test and save.
    pub fn job(&self) -> Result<Job, anyhow::Error> {
        if self.update == Strategy::Independent && self.workers > 1 {
            return Err(Usage::new(
                "independent workers train a network each, of which none is the result; use `paceline bench` to measure them",
            )
            .into());
        }
        let model = self.model.clone().expect("invariant: clap wants a network");
        let matches = bench::Options::augment_args(Command::new("bench")).get_matches_from(["bench", &model]);
        let defaults = bench::Options::from_arg_matches(&matches).map_err(Usage::new)?;
        let many = |value: Option<u32>| value.into_iter().collect::<Vec<u32>>();
        let threads = self.threads.unwrap_or((machine::cores() as u32 / self.workers).max(1));
        let options = bench::Options {
            data: vec![self.data.clone()],
            workers: vec![self.workers],
            epochs: if self.steps.is_none() { vec![self.epochs] } else { Vec::new() },
            steps: vec![self.steps.unwrap_or(1)],
            batch: many(self.batch),
            global_batch: many(self.global_batch),
            shards: many(self.shards),
            seed: vec![self.seed],
            lr: vec![self.lr],
            lr_rule: vec![self.lr_rule],
            update: vec![self.update],
            learning: self.learning.clone(),
            threads: vec![threads],
            input: self.input.into_iter().collect(),
            classes: many(self.classes),
            engine: vec![self.engine.clone()],
            layout: vec![self.layout],
            precision: vec![self.precision],
            accumulate: vec![self.accumulate],
            compress: vec![self.compress],
            pin: vec![self.pin],
            share_gpu: self.share_gpu,
            ..defaults
        };
        if self.engine == "simulated" {
            return Err(Usage::new(
                "a simulated engine learns nothing; use `paceline bench --engine simulated`",
            )
            .into());
        }
        let [run] =
            <[_; 1]>::try_from(bench::plan(&options)?).expect("invariant: one value each makes one run");
        Ok(run.job)
    }
}

/// What was said on the command line, but for what concerns one run only.
fn said(command: &Command, matches: &ArgMatches) -> Vec<String> {
    let mut words = Vec::new();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let Some(long) = argument.get_long().filter(|_| !OF_THE_RUN.contains(&id)) else { continue };
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        match argument.get_action() {
            ArgAction::SetTrue => words.push(format!("--{long}")),
            _ => {
                let mut values =
                    matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy());
                words.extend(values.next_back().map(|value| match (id, value.parse::<Data>()) {
                    // It must hold wherever the training goes on.
                    ("data", Ok(data)) => format!("--data={}", data.absolute()),
                    _ => format!("--{long}={value}"),
                }));
            }
        }
    }
    words
}
