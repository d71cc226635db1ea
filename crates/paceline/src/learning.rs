//! What `bench` and `train` can be asked for alike: how weights follow gradients.

use clap::Args;
use paceline_train::data::Augment;
use paceline_train::schedule::{Kind, Schedule};
use paceline_train::{Every, Job, OptimizerKind};

use crate::outcome::Usage;

/// Options of a training.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Training")]
pub struct LearningOptions {
    /// The update rule: sgd, nesterov or adam (betas 0.9 and 0.999, epsilon 1e-8)
    #[arg(long, value_name = "RULE", default_value = "sgd")]
    pub optimizer: OptimizerKind,
    /// How the learning rate goes on: constant; step, a tenth after half of the steps and again after three quarters; or
    /// cosine, down to 0 at the end
    #[arg(long, value_name = "KIND", default_value = "constant")]
    pub schedule: Kind,
    /// Epochs in which the learning rate rises to its full height; with --lr-rule linear from --lr on
    #[arg(long, value_name = "E", default_value_t = 0.0, value_parser = parse_epochs)]
    pub warmup_epochs: f64,
    /// The global batch that --lr is right for, with --lr-rule linear
    #[arg(long, value_name = "G", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub lr_batch: u64,
    /// Fraction of the old velocity that each update keeps, with sgd and nesterov
    #[arg(long, default_value_t = 0.9, allow_negative_numbers = true, value_parser = parse_fraction)]
    pub momentum: f32,
    /// L2 penalty on all trained values
    #[arg(long, value_name = "L2", default_value_t = 0.0, allow_negative_numbers = true, value_parser = parse_rate)]
    pub weight_decay: f32,
    /// Part of each label that is spread over all classes
    #[arg(long, value_name = "PART", default_value_t = 0.0, allow_negative_numbers = true, value_parser = parse_fraction)]
    pub label_smoothing: f32,
    /// Fraction of batch norm's old running statistics that each step keeps, once there are enough [default: the network's
    /// own, as 0.999 for mobilenet_v2]
    #[arg(long, value_name = "PART", allow_negative_numbers = true, value_parser = parse_fraction)]
    pub bn_momentum: Option<f32>,
    /// What is done to pictures so that no epoch is like another: standard (CIFAR-10: pad, crop, flip; images: random
    /// resized crop, flip) or none
    #[arg(long, value_name = "KIND", default_value = "standard")]
    pub augment: Augment,
    /// Test the network after every so many epochs, and at the end; 0 for the end alone
    #[arg(long, value_name = "E", default_value_t = 1.0, value_parser = parse_epochs)]
    pub eval_every: f64,
    /// Leave the numbers of the samples that each worker was given, as samples-RANK.txt
    #[arg(long)]
    pub log_samples: bool,
}

impl LearningOptions {
    /// Settles how a job learns, once its batch is known: its steps, where it goes by epochs, and its learning rates.
    pub fn settle(&self, job: &mut Job) -> Result<(), Usage> {
        let by_epochs = job.epochs.is_some() || self.warmup_epochs > 0.0;
        let samples = if by_epochs { job.epoch_len().map_err(Usage::new)? as f64 } else { 0.0 };
        let in_a_step = job.global_batch() as f64;
        let steps = |epochs: f64| (epochs * samples / in_a_step - 1e-9).ceil() as u64;
        if let Some(epochs) = job.epochs {
            job.steps = steps(epochs).max(1);
        }
        let schedule = job.learning.schedule;
        job.learning.schedule = Schedule {
            kind: self.schedule,
            global_batch: job.global_batch(),
            reference_batch: self.lr_batch,
            warmup_steps: steps(self.warmup_epochs),
            total_steps: job.steps,
            ..schedule
        };
        job.learning.optimizer = self.optimizer;
        job.learning.warmup_epochs = self.warmup_epochs;
        job.learning.bn_momentum = self.bn_momentum;
        job.learning.momentum = self.momentum;
        job.learning.weight_decay = self.weight_decay;
        job.learning.label_smoothing = self.label_smoothing;
        job.augment = self.augment;
        job.log_samples = self.log_samples;
        if job.epochs.is_some() {
            job.milestones.eval = Some(Every(self.eval_every));
        }
        Ok(())
    }
}

/// Reads a number of epochs above 0.
pub fn parse_length(text: &str) -> Result<f64, String> {
    parse_epochs(text)
        .ok()
        .filter(|&epochs| epochs > 0.0)
        .ok_or_else(|| "epochs are a number above 0, as 5 or 0.5".into())
}

/// Reads a number of epochs.
pub fn parse_epochs(text: &str) -> Result<f64, String> {
    let epochs: Option<f64> = text.parse().ok();
    epochs
        .filter(|epochs| (0.0..=1e6).contains(epochs))
        .ok_or_else(|| "epochs are a number from 0 up, as 5 or 0.5".into())
}

/// Reads a number from 0 up.
pub fn parse_rate(text: &str) -> Result<f32, String> {
    let rate: Option<f32> = text.parse().ok();
    rate.filter(|rate| rate.is_finite() && *rate >= 0.0)
        .ok_or_else(|| "it is a number from 0 up, as 0.01".into())
}

fn parse_fraction(text: &str) -> Result<f32, String> {
    let fraction: Option<f32> = text.parse().ok();
    fraction
        .filter(|fraction| (0.0..1.0).contains(fraction))
        .ok_or_else(|| "it is a number from 0 up to 1, as 0.1".into())
}
