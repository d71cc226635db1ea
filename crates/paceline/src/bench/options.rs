//! What `paceline bench` can be asked for, and the jobs that follow from it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use paceline_engine::{Layout, Precision};
use paceline_lab::terminal::Rows;
use paceline_train::data::Data;
use paceline_train::{Compress, ExchangeOptions, Job, Simulation, Strategy};

use crate::machine;
use crate::outcome::Usage;
use crate::size::{self, Size};

/// Options of `paceline bench`.
#[derive(Args)]
pub struct Options {
    /// Networks, each a case of the study (see `paceline models`)
    #[arg(value_name = "MODEL", default_values = ["mobilenet_v2", "resnet50"])]
    models: Vec<String>,
    /// Worker processes; several numbers, as 1,2,4, make several cases
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: Vec<u32>,
    /// How workers share what they learn: allreduce, sharded, replicated, ps-cpu or independent; several make several
    /// cases
    #[arg(long, value_name = "STRATEGY", value_delimiter = ',', default_value = "allreduce")]
    update: Vec<Strategy>,
    /// Gradients are handed over in buckets of about so many MB, the first and the last of about 1 MB
    #[arg(long, value_name = "MB", default_value_t = 25.0, value_parser = parse_bucket)]
    bucket_mb: f64,
    /// Whether gradients are exchanged while backward goes on: yes or no
    #[arg(long, value_name = "yes|no", default_value = "yes", value_parser = parse_choice, action = clap::ArgAction::Set)]
    overlap: bool,
    /// Number format of gradients on their way, with --update allreduce: none, fp16 or bf16
    #[arg(long, value_name = "FORMAT", default_value_t = Compress::None)]
    compress: Compress,
    /// Passes of each worker whose gradients are added up before one exchange
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    accumulate: u32,
    /// Whether each worker keeps to cores of its own: yes or no
    #[arg(long, value_name = "yes|no", default_value = "yes", value_parser = parse_choice, action = clap::ArgAction::Set)]
    pin: bool,
    /// Threads in each worker [default: cores / the largest number of workers]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Samples a step on each worker
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// Size of the pictures [default: the data's]
    #[arg(long, value_name = "HxW", value_parser = size::parse)]
    input: Option<Size>,
    /// Classes [default: the data's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    classes: Option<u32>,
    /// What computes: cpu, or simulated for a machine that --simulate describes
    #[arg(long, default_value = "cpu")]
    pub engine: String,
    /// The machine of --engine simulated, as straggler=1:1.5,bandwidth=2; an unknown key is answered with all of them
    #[arg(long, value_name = "KEY=VALUE,...")]
    simulate: Option<Simulation>,
    /// Order of dimensions: nhwc or nchw
    #[arg(long, default_value_t = Layout::Nhwc)]
    layout: Layout,
    /// Number format: fp32
    #[arg(long, default_value_t = Precision::Fp32)]
    precision: Precision,
    /// Steps of each worker
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    steps: u64,
    /// Seed of weights and data
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 0.01, allow_negative_numbers = true, value_parser = parse_rate)]
    lr: f32,
    /// synthetic:cifar10, synthetic:imagenet or synthetic:HxWxC
    #[arg(long, default_value = "synthetic:cifar10")]
    data: String,
    /// Folder of the study [default: a new study-N here]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the study that --out holds
    #[arg(long)]
    pub fresh: bool,
    /// Print report.json to standard output, and nothing else
    #[arg(long)]
    pub json: bool,
    /// Time each layer and print the slowest, or all of them
    #[arg(long, value_name = "ROWS|all", num_args = 0..=1, require_equals = true, default_missing_value = "20", value_parser = parse_rows)]
    pub profile: Option<Rows>,
}

impl Options {
    /// Threads in each worker.
    pub fn threads(&self) -> usize {
        let most = self.workers.iter().copied().max().unwrap_or(1).max(1);
        self.threads.map_or_else(|| (machine::cores() / most as usize).max(1), |threads| threads as usize)
    }

    /// The cases, in the order in which they run. Their folders are not known yet.
    pub fn jobs(&self) -> Result<Vec<Job>> {
        let data: Data = self.data.parse().map_err(Usage::new)?;
        if self.compress != Compress::None && self.update.iter().any(|&update| update != Strategy::AllReduce)
        {
            let reason = "gradients travel in 16 bits with --update allreduce only; leave --compress out";
            return Err(Usage::new(reason).into());
        }
        if self.simulate.is_some() && self.engine != "simulated" {
            return Err(Usage::new("--simulate describes the machine of --engine simulated").into());
        }
        let bucket_bytes = (self.bucket_mb * f64::from(1 << 20)) as usize;
        let exchange = ExchangeOptions {
            bucket_bytes,
            first_bucket_bytes: bucket_bytes.min(1 << 20),
            overlap: self.overlap,
            compress: self.compress,
        };
        let mut jobs: Vec<Job> = Vec::new();
        for model in &self.models {
            for &update in &self.update {
                for &workers in &self.workers {
                    let job = Job {
                        model: model.clone(),
                        engine: self.engine.clone(),
                        layout: self.layout,
                        precision: self.precision,
                        workers,
                        batch: self.batch as usize,
                        threads: self.threads(),
                        input: self.input.unwrap_or((data.shape.h, data.shape.w)),
                        classes: self.classes.map_or(data.classes, |classes| classes as usize),
                        data: self.data.clone(),
                        steps: self.steps,
                        seed: self.seed,
                        learning_rate: self.lr,
                        update,
                        exchange,
                        accumulate: self.accumulate as usize,
                        pin: self.pin,
                        profile: self.profile.is_some(),
                        simulation: self.simulate.clone().unwrap_or_default(),
                        folder: PathBuf::new(),
                    };
                    if !jobs.contains(&job) {
                        jobs.push(job);
                    }
                }
            }
        }
        Ok(jobs)
    }
}

fn parse_rate(text: &str) -> Result<f32, String> {
    let rate: Option<f32> = text.parse().ok();
    rate.filter(|rate| rate.is_finite() && *rate >= 0.0)
        .ok_or_else(|| "a learning rate is a number from 0 up, as 0.01".into())
}

fn parse_bucket(text: &str) -> Result<f64, String> {
    let size: Option<f64> = text.parse().ok();
    size.filter(|size| size.is_finite() && *size > 0.0 && *size <= 1e6)
        .ok_or_else(|| "a bucket is a number of MB above 0, as 25".into())
}

/// Reads yes or no.
pub fn parse_choice(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("use yes or no".into()),
    }
}

fn parse_rows(text: &str) -> Result<Rows, String> {
    match text {
        "all" => Ok(Rows::All),
        _ => text.parse().map(Rows::Top).map_err(|_| "use a number of layers, or all".into()),
    }
}
