//! What `paceline bench` can be asked for.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use paceline_engine::{Layout, Precision};
use paceline_lab::terminal::Rows;
use paceline_train::schedule::Rule;
use paceline_train::{Compress, Simulation, Strategy, devices};

use crate::learning::{LearningOptions, parse_length, parse_rate};
use crate::machine;
use crate::size::{self, Size};

/// Options of `paceline bench`. Several values with commas between them make several cases, and several such options the
/// product of all.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Networks (see `paceline models`)
    #[arg(value_name = "MODEL", default_values = ["mobilenet_v2", "resnet50"])]
    pub models: Vec<String>,
    /// Worker processes, as 1,2,4 [default: 1, 2, 4 ... up to the cores, or the GPUs]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: Vec<u32>,
    /// How workers share what they learn: allreduce, sharded, replicated, ps-cpu, ps-gpu or independent
    #[arg(long, value_name = "STRATEGY", value_delimiter = ',', default_value = "allreduce")]
    pub update: Vec<Strategy>,
    /// What stays fixed when workers are added: weak, --batch on each worker; strong, --global-batch on all together
    /// [default: strong if --global-batch is given, else weak]
    #[arg(long, value_name = "weak|strong", value_delimiter = ',')]
    pub scaling: Vec<ScalingKind>,
    /// Samples a step on each worker, with weak scaling [default: 64]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batch: Vec<u32>,
    /// Samples a step on all workers together, shared out equally, with strong scaling [default: 64 times the most workers]
    #[arg(long, value_name = "G", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub global_batch: Vec<u32>,
    /// Steps of each worker
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "60", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub steps: Vec<u64>,
    /// Instead of --steps: samples that every case sees, its steps divided among its workers
    #[arg(long, value_name = "E", value_delimiter = ',', conflicts_with = "steps", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub examples: Vec<u64>,
    /// Instead of --steps: passes over the data; the network is tested after each, and the report tells its accuracy
    #[arg(long, value_name = "E", value_delimiter = ',', conflicts_with_all = ["steps", "examples"], value_parser = parse_length)]
    pub epochs: Vec<f64>,
    /// Shards that each step is cut into, each with batch norm of its own: the same number gives the same weights on any
    /// number of workers up to it; more than workers makes batch norm see fewer samples [default: the workers]
    #[arg(long, value_name = "V", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub shards: Vec<u32>,
    /// Run each case so many times, all runs in an order drawn from --seed
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
    /// Threads in each worker [default: cores / the most workers, the same for every case]
    #[arg(long, value_name = "T", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// Size of the pictures [default: the data's]
    #[arg(long, value_name = "HxW", value_delimiter = ',', value_parser = size::parse)]
    pub input: Vec<Size>,
    /// Classes [default: the data's]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub classes: Vec<u32>,
    /// synthetic:cifar10, synthetic:imagenet, synthetic:HxWxC, cifar10:DIR (see `paceline data`) or images:DIR (a folder
    /// for each class)
    #[arg(long, value_delimiter = ',', default_value = "synthetic:cifar10")]
    pub data: Vec<String>,
    /// What computes: cpu, cuda, or simulated for a machine that --simulate describes
    #[arg(long, value_delimiter = ',', default_value = "cpu")]
    pub engine: Vec<String>,
    /// The machine of --engine simulated, as straggler=1:1.5,bandwidth=2; an unknown key is answered with all of them
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub simulate: Option<Simulation>,
    /// Order of dimensions: nhwc or nchw
    #[arg(long, value_delimiter = ',', default_value = "nhwc")]
    pub layout: Vec<Layout>,
    /// Number format: fp32; with --engine cuda also tf32 and bf16
    #[arg(long, value_delimiter = ',', default_value = "fp32")]
    pub precision: Vec<Precision>,
    /// Gradients are handed over in buckets of about so many MB, the first and the last of about 1 MB
    #[arg(long, value_name = "MB", value_delimiter = ',', default_value = "25", value_parser = parse_bucket)]
    pub bucket_mb: Vec<f64>,
    /// Whether gradients are exchanged while backward goes on: yes or no
    #[arg(long, value_name = "yes|no", value_delimiter = ',', default_value = "yes", value_parser = parse_choice)]
    pub overlap: Vec<bool>,
    /// Let one worker exchange with itself, to see what the exchange costs before there is anybody to wait for
    #[arg(long)]
    pub exchange_alone: bool,
    /// Let several workers use one GPU and exchange through the host, for testing
    #[arg(long)]
    pub share_gpu: bool,
    /// Number format of gradients on their way, with --update allreduce: none, fp16 or bf16
    #[arg(long, value_name = "FORMAT", value_delimiter = ',', default_value = "none")]
    pub compress: Vec<Compress>,
    /// Passes of each worker whose gradients are added up before one exchange
    #[arg(long, value_name = "K", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub accumulate: Vec<u32>,
    /// Whether each worker keeps to cores of its own: yes or no
    #[arg(long, value_name = "yes|no", value_delimiter = ',', default_value = "yes", value_parser = parse_choice)]
    pub pin: Vec<bool>,
    /// Seed of weights, data and the order of repeats
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub seed: Vec<u64>,
    /// Learning rate
    #[arg(long, value_name = "RATE", value_delimiter = ',', default_value = "0.01", allow_negative_numbers = true, value_parser = parse_rate)]
    pub lr: Vec<f32>,
    /// How the learning rate follows the global batch: none, or linear (Goyal et al. 2017), see --lr-batch
    #[arg(long, value_name = "none|linear", value_delimiter = ',', default_value = "none")]
    pub lr_rule: Vec<Rule>,
    #[command(flatten)]
    pub learning: LearningOptions,
    /// A file that says the same as these options, as `workers = [1, 2]`; options given here win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder of the study; one that was interrupted goes on there [default: study-N here]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Start over: replace the study that the folder holds
    #[arg(long)]
    pub fresh: bool,
    /// Print report.json to standard output, and nothing else
    #[arg(long)]
    pub json: bool,
    /// Time each layer and print the slowest, or all of them
    #[arg(long, value_name = "ROWS|all", num_args = 0..=1, require_equals = true, default_missing_value = "20", value_parser = parse_rows)]
    pub profile: Option<Rows>,
}

/// What stays fixed when workers are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalingKind {
    /// The batch of each worker.
    Weak,
    /// The batch of all together.
    Strong,
}

impl FromStr for ScalingKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "weak" => Ok(Self::Weak),
            "strong" => Ok(Self::Strong),
            _ => Err("use weak or strong".into()),
        }
    }
}

impl Options {
    /// Numbers of workers: those asked for, or the powers of two up to the cores; where only GPUs compute, up to those.
    pub fn worker_counts(&self) -> Vec<u32> {
        if !self.workers.is_empty() {
            return self.workers.clone();
        }
        let most = match self.engine == ["cuda"] {
            // A machine without any is told so when the engine is opened.
            true => devices().unwrap_or(1).max(1),
            false => machine::cores(),
        };
        (0..10).map(|power| 1 << power).take_while(|&workers| workers as usize <= most).collect()
    }
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
