//! What a run is asked to do, and how a worker learns of it.

mod prepare;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;

use paceline_comm::deal;
use paceline_engine::{Layout, Numerics, Pass, Precision, Profiling, Spec};
use paceline_model::Graph;
use paceline_record::{Case, Rank};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::checkpoint::Description;
use crate::data::{Augment, Data, Split};
use crate::device::CUDA;
use crate::elastic::member::Membership;
use crate::elastic::{Bounds, Elastic};
use crate::exchange::POSTED;
use crate::faults::Faults;
use crate::hosts::Hosts;
use crate::learning::{Learning, OptimizerKind};
use crate::milestone::{Every, Milestones, Saving};
use crate::numerics;
use crate::schedule::Rule;
use crate::simulate::{self, Simulation};
use crate::strategy::{Compress, ExchangeOptions, Plan, Reduce, Strategy};
pub use prepare::{Engines, Prepared, open_engine};
pub(crate) use prepare::{open_cpu, open_cuda};

/// The name of the engine that computes on the processor's cores.
pub(crate) const CPU: &str = "cpu";

/// Everything that determines a run, but for the machine.
///
/// Some fields follow from others: [`Job::settle`] sets them, and says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The network.
    pub model: String,
    /// What computes.
    pub engine: String,
    /// Order of dimensions.
    pub layout: Layout,
    /// Number format.
    pub precision: Precision,
    /// Worker processes.
    pub workers: u32,
    /// Samples of a step, and what is held fixed when workers are added.
    pub scaling: Scaling,
    /// Samples of one pass of one shard; settled.
    pub batch: usize,
    /// Shards that each step is cut into; `None` for as many as workers, or as an elastic job may have.
    pub shards: Option<u32>,
    /// Threads in each worker that were asked for; `None` for all cores, divided among the workers.
    pub threads_asked: Option<usize>,
    /// Threads in each worker; settled.
    pub threads: usize,
    /// Height and width of the images.
    pub input: (usize, usize),
    /// Classes.
    pub classes: usize,
    /// The data, as the command line names it.
    pub data: String,
    /// What is done to the pictures before the network sees them.
    pub augment: Augment,
    /// How long the training is.
    pub length: Length,
    /// The step that the run ends with, counted from the start of the training; settled.
    pub steps: u64,
    /// Seed of weights and data.
    pub seed: u64,
    /// How weights follow gradients.
    pub learning: Learning,
    /// How workers share what they learn.
    pub update: Strategy,
    /// How gradients are handed over.
    pub exchange: ExchangeOptions,
    /// Whether several workers may use one GPU, and exchange through the host.
    pub share_gpu: bool,
    /// Passes of each shard whose gradients are added up before one exchange.
    pub accumulate: usize,
    /// Whether each worker keeps to cores of its own.
    pub pin: bool,
    /// Whether each layer is timed.
    pub profile: bool,
    /// The machine of a simulated job.
    pub simulation: Simulation,
    /// When the network is tested and saved.
    pub milestones: Milestones,
    /// Whether each rank writes down the numbers of the samples that it was given.
    pub log_samples: bool,
    /// How many hosts it runs on; `None` for this one alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Hosts>,
    /// Faults that are planted.
    #[serde(default, skip_serializing_if = "Faults::is_empty")]
    pub faults: Faults,
    /// How it outlives its workers; `None` where the loss of one ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
    /// What the engine must choose, so that every worker computes the same bits; settled, from the checkpoint where a
    /// training resumes.
    pub numerics: Option<Numerics>,
    /// Whether this very command names the instruction set: a host that does is sent away where another one is used.
    #[serde(skip)]
    pub instructions_asked: bool,
    /// Folder of the logs.
    pub folder: PathBuf,
}

/// How long a training is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// So many steps.
    Steps(u64),
    /// So many passes over the data.
    Epochs(f64),
    /// As many whole steps as it takes to see so many samples.
    Examples(u64),
}

impl Job {
    /// A short measurement of a network, with the usual value of every setting.
    pub fn new(model: &str) -> Self {
        const BATCH: usize = 64;
        Self {
            model: model.into(),
            engine: CPU.into(),
            layout: Layout::default(),
            precision: Precision::default(),
            workers: 1,
            scaling: Scaling::Weak { batch: BATCH },
            batch: BATCH,
            shards: None,
            threads_asked: None,
            threads: 1,
            input: (32, 32),
            classes: 10,
            data: "synthetic:cifar10".into(),
            augment: Augment::default(),
            length: Length::Steps(60),
            steps: 60,
            seed: 0,
            learning: Learning::default(),
            update: Strategy::default(),
            exchange: ExchangeOptions::default(),
            share_gpu: false,
            accumulate: 1,
            pin: true,
            profile: false,
            simulation: Simulation::default(),
            milestones: Milestones::default(),
            log_samples: false,
            hosts: None,
            faults: Faults::default(),
            elastic: None,
            numerics: None,
            instructions_asked: false,
            folder: PathBuf::new(),
        }
    }

    /// A training of a network: five epochs, with a test and a checkpoint after each.
    pub fn training(model: &str) -> Self {
        let every = Every(1.0);
        let keep = NonZeroUsize::new(3).expect("invariant: three is not zero");
        Self {
            length: Length::Epochs(5.0),
            milestones: Milestones {
                eval: Some(every),
                saving: Some(Saving { every, keep, folder: PathBuf::new() }),
                ..Milestones::default()
            },
            ..Self::new(model)
        }
    }

    /// Takes the size of the pictures and the number of classes from the data. A training that resumes keeps its own: its
    /// data may only have moved.
    pub fn fit_to_data(&mut self) -> Result<(), TrainError> {
        if self.milestones.resume.is_none() {
            let data: Data = self.data.parse()?;
            self.input = (data.shape().h, data.shape().w);
            self.classes = data.classes()?;
        }
        Ok(())
    }

    /// Sets what follows from other settings, on a machine with so many cores: threads, the batch of a shard, steps,
    /// learning rates, and the engine's numerics where no checkpoint says them.
    pub fn settle(&mut self, cores: usize) -> Result<(), TrainError> {
        if let Some(hosts) = &mut self.hosts {
            hosts.workers = match hosts.workers {
                0 => self.elastic.as_ref().map_or(self.workers, |elastic| elastic.max),
                said => said,
            };
        }
        // Every worker that there may be on this machine has its cores.
        let here = match self.hosts {
            Some(hosts) if hosts.local => hosts.max * self.most_here(),
            _ => self.most_here(),
        };
        self.threads = self.threads_asked.unwrap_or_else(|| (cores / here as usize).max(1));
        self.batch = self.batch_of_shard()?;
        let global_batch = self.global_batch();
        let by_epochs = matches!(self.length, Length::Epochs(_)) || self.learning.warmup_epochs > 0.0;
        let epoch = if by_epochs { self.epoch_len()? as f64 } else { 0.0 };
        let steps = |epochs: f64| (epochs * epoch / global_batch as f64 - 1e-9).ceil() as u64;
        self.steps = match self.length {
            Length::Steps(steps) => steps,
            Length::Epochs(epochs) => steps(epochs).max(1),
            Length::Examples(examples) => examples.div_ceil(global_batch),
        };
        let schedule = &mut self.learning.schedule;
        schedule.global_batch = global_batch;
        schedule.warmup_steps = steps(self.learning.warmup_epochs);
        schedule.total_steps = self.steps;
        self.numerics = self.numerics.take().or_else(|| numerics::here(&self.engine, self.precision));
        Ok(())
    }

    /// Divides a step among its shards.
    fn batch_of_shard(&self) -> Result<usize, TrainError> {
        let (workers, shards) = (self.all_workers() as usize, self.shards() as usize);
        let (global_batch, option, better) = match self.scaling {
            Scaling::Strong { global_batch } => {
                (global_batch, "--global-batch", global_batch.next_multiple_of(shards))
            }
            Scaling::Weak { batch } => (batch * workers, "--batch", batch.next_multiple_of(shards)),
        };
        if !global_batch.is_multiple_of(shards) {
            let among = if self.shards.is_some() { "shards" } else { "workers" };
            let use_instead = format!("{option} {better}");
            return Err(TrainError::UnequalShards { global_batch, shards, among, use_instead });
        }
        Ok(global_batch / shards)
    }
}

impl Job {
    /// Shards that each step is cut into.
    pub fn shards(&self) -> u32 {
        self.shards.unwrap_or_else(|| self.most_workers())
    }

    /// Workers that there may be at a time, on all hosts.
    pub(crate) fn most_workers(&self) -> u32 {
        self.hosts.map_or_else(|| self.most_here(), |hosts| hosts.max * hosts.workers)
    }

    /// Workers that there may be on this host.
    pub(crate) fn most_here(&self) -> u32 {
        self.elastic.as_ref().map_or(self.workers, |elastic| elastic.max)
    }

    /// Workers on all hosts, if all have as many as this one.
    pub fn all_workers(&self) -> u32 {
        self.workers * self.hosts.map_or(1, |hosts| hosts.max)
    }

    /// How its members are kept: as asked for, or such that the loss of one ends it.
    pub(crate) fn crew(&self) -> Elastic {
        let all = Bounds { min: self.workers, max: self.workers };
        let crew = self.elastic.clone().unwrap_or_else(|| Elastic { restarts: 0, ..Elastic::new(all) });
        // A group of devices has all its ranks, or does nothing.
        let min = if self.exchanges_on_device() { all.min } else { crew.min };
        Elastic { min, ..crew }
    }

    /// The shards that a rank runs.
    pub(crate) fn shards_of(&self, rank: Rank) -> Range<u32> {
        deal(self.shards(), rank, self.workers)
    }

    /// Samples of a step, on all workers together.
    pub fn global_batch(&self) -> u64 {
        self.batch as u64 * self.accumulate as u64 * u64::from(self.shards())
    }

    /// A rank's pass, by its turn in a step: shard after shard.
    pub(crate) fn pass(&self, step: u64, shards: &Range<u32>, turn: usize) -> Pass {
        let (shard, index) = (turn / self.accumulate, turn % self.accumulate);
        Pass { shard, ..self.pass_of(step, shards.start + shard as u32, index) }
    }

    /// A pass of any of a step's shards, for a program that has memory for one.
    pub(crate) fn pass_of(&self, step: u64, shard: u32, index: usize) -> Pass {
        let before = step * u64::from(self.shards()) + u64::from(shard);
        let stream = before * self.accumulate as u64 + index as u64;
        let seen = Some(step * self.accumulate as u64 + index as u64);
        Pass { shard: 0, index, count: self.accumulate, stream, seen, update: None }
    }

    /// The network for this job's pictures.
    pub fn graph(&self) -> Result<Graph, TrainError> {
        let mut graph = paceline_model::zoo::build(&self.model, Some(self.input), self.classes)?;
        if let Some(momentum) = self.learning.bn_momentum {
            graph.set_norm_momentum(momentum);
        }
        let (expected, got) = (graph.input().c, self.data.parse::<Data>()?.shape().c);
        if expected != got {
            return Err(TrainError::Channels { model: self.model.clone(), expected, got });
        }
        Ok(graph)
    }

    /// Whether nothing is computed but time.
    pub(crate) fn is_simulated(&self) -> bool {
        self.engine == simulate::ENGINE
    }

    /// Refuses settings that do not go together, data that is not there, and GPUs that are missing.
    pub fn check(&self) -> Result<(), TrainError> {
        self.check_elastic()?;
        if self.shards() < self.workers {
            return Err(TrainError::Shards { shards: self.shards(), workers: self.workers });
        }
        if self.learning.optimizer == OptimizerKind::Nesterov && self.learning.momentum == 0.0 {
            return Err(TrainError::NoMomentum);
        }
        if self.exchange.alone && !self.plan().exchanges() {
            return Err(TrainError::LonelyExchange);
        }
        if self.exchange.compress != Compress::None && self.plan().reduce != Reduce::ToAll {
            return Err(TrainError::CompressedUpdate);
        }
        if self.share_gpu && self.engine != CUDA {
            return Err(TrainError::NoDevices("--share-gpu lets workers share a GPU"));
        }
        if self.is_simulated() {
            return simulate::check(self);
        }
        if self.shards() != self.workers && !self.plan().exchanges() {
            return Err(TrainError::LonelyShards);
        }
        let data: Data = self.data.parse()?;
        data.check()?;
        data.check_classes(self.classes)?;
        self.check_devices()
    }

    fn check_elastic(&self) -> Result<(), TrainError> {
        self.check_host_faults()?;
        if self.elastic.is_none() && self.hosts.is_none() {
            return Ok(());
        }
        if self.hosts.is_some() && self.is_simulated() {
            return Err(TrainError::SimulatedHosts);
        }
        let elastic = &self.crew();
        let (bounds, workers) = (elastic.bounds(), self.workers);
        if !(bounds.min..=bounds.max).contains(&workers) {
            return Err(TrainError::Bounds { workers, bounds });
        }
        if !matches!(self.plan().reduce, Reduce::ToAll | Reduce::Scatter) {
            return Err(TrainError::ElasticUpdate(self.update));
        }
        if self.engine == CUDA && !self.share_gpu || self.exchanges_on_device() {
            self.check_group()?;
        }
        if let Some(fault) =
            self.faults.0.iter().find(|fault| fault.step().is_some_and(|at| at.0 >= self.steps))
        {
            return Err(TrainError::LateFault { fault: fault.to_string(), steps: self.steps });
        }
        if self.profile && !self.is_simulated() {
            return Err(TrainError::ElasticProfile);
        }
        // Hosts of several machines may have other numbers of workers, and every one has at least a shard.
        let least = match self.hosts {
            Some(hosts) if hosts.local && self.elastic.is_none() => hosts.max.saturating_mul(workers),
            Some(hosts) => hosts.max.max(workers),
            None => bounds.max,
        };
        if self.shards() < least {
            return Err(TrainError::Shards { shards: self.shards(), workers: least });
        }
        Ok(())
    }

    fn check_host_faults(&self) -> Result<(), TrainError> {
        for fault in &self.faults.0 {
            match (fault.host(), self.hosts) {
                (Some(_), None) => return Err(TrainError::FaultOfHost(fault.to_string())),
                (Some(host), Some(Hosts { max, .. })) if host.0 >= max => {
                    return Err(TrainError::FaultOfNoHost { fault: fault.to_string(), hosts: max });
                }
                (None, _) if self.elastic.is_none() => {
                    return Err(TrainError::FaultOfMember(fault.to_string()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What the graph is compiled for, on the rank that runs the most shards.
    pub fn spec(&self) -> Spec {
        Spec {
            layout: self.layout,
            precision: self.precision,
            optimizer: self.learning.rule(),
            seed: self.seed,
            label_smoothing: self.learning.label_smoothing,
            shards: self.shards().div_ceil(self.workers) as usize,
            profiling: if self.profile { Profiling::Layers } else { Profiling::Phases },
            ..Spec::new(self.batch)
        }
    }

    /// The same on a rank.
    pub(crate) fn spec_of(&self, rank: Rank) -> Spec {
        Spec { shards: self.shards_of(rank).len(), ..self.spec() }
    }

    /// What its strategy asks of the first rank.
    pub fn plan(&self) -> Plan {
        self.update.plan(Rank(0), self.workers)
    }

    /// Whether ranks need memory in common: to exchange, or to add up shards.
    pub(crate) fn shares_memory(&self) -> bool {
        self.workers > 1 || self.shards() > 1 || self.exchange.alone
    }

    /// Values of shared memory that the ranks need: for each shard, and in common.
    pub(crate) fn shared_values(&self, trained: usize) -> (usize, usize) {
        let common = if self.plan().needs_common_memory() { trained } else { 0 };
        let posted = if self.exchanges_on_device() { POSTED } else { 0 };
        (self.exchange.compress.own_values(trained) + posted, common)
    }

    /// How the run log describes this job.
    pub fn case(&self) -> Case {
        let length = match self.length {
            Length::Examples(examples) => ("examples", examples.to_string()),
            Length::Epochs(epochs) => ("epochs", epochs.to_string()),
            Length::Steps(steps) => ("steps", steps.to_string()),
        };
        let yes_no = |choice: bool| if choice { "yes" } else { "no" }.to_owned();
        let settings = [
            length,
            ("accumulate", self.accumulate.to_string()),
            ("bucket-mb", self.exchange.bucket_mb().to_string()),
            ("compress", self.exchange.compress.to_string()),
            ("data", self.data.clone()),
            ("lr", self.learning.schedule.base.to_string()),
            ("overlap", yes_no(self.exchange.overlap)),
            ("pin", yes_no(self.pin)),
            ("seed", self.seed.to_string()),
        ];
        let mut settings: BTreeMap<String, String> =
            settings.map(|(name, value)| (name.into(), value)).into();
        if self.is_simulated() {
            settings.insert("simulate".into(), self.simulation.to_string());
        }
        if let Some(hosts) = &self.hosts {
            settings.insert("hosts".into(), hosts.count().to_string());
        }
        if let Some(elastic) = &self.elastic {
            settings.insert("elastic".into(), elastic.bounds().to_string());
            settings.insert("deal".into(), elastic.deal.to_string());
        }
        if !self.faults.is_empty() {
            settings.insert("faults".into(), self.faults.to_string());
        }
        settings.extend(self.unusual_settings());
        let (scaling, global_batch) = match self.scaling {
            Scaling::Weak { .. } => ("weak", None),
            Scaling::Strong { global_batch } => ("strong", Some(global_batch as u64)),
        };
        Case {
            model: self.model.clone(),
            engine: Some(self.engine.clone()),
            layout: Some(self.layout.to_string()),
            precision: Some(self.precision.to_string()),
            update: Some(self.update.to_string()),
            scaling: Some(scaling.into()),
            workers: self.all_workers(),
            batch_per_worker: self.batch_per_worker(),
            threads: Some(self.threads as u32),
            input: Some(format!("{}x{}", self.input.0, self.input.1)),
            classes: Some(self.classes as u64),
            global_batch,
            epoch_examples: self.epoch_examples(),
            settings,
        }
    }
}

impl Job {
    /// The network, by what rebuilds it.
    pub fn network(&self) -> Description {
        Description { model: self.model.clone(), input: self.input, classes: self.classes }
    }

    /// What tells its data from other data.
    pub(crate) fn fingerprint(&self) -> Result<String, TrainError> {
        self.data.parse::<Data>()?.fingerprint()
    }

    /// What tells its data from other data of the same name on another host.
    pub(crate) fn checksum(&self) -> Result<String, TrainError> {
        self.data.parse::<Data>()?.checksum()
    }

    /// The job as a checkpoint keeps it: its data can be found from anywhere, and the folders of the run are left out.
    pub(crate) fn without_places(&self) -> Self {
        let data = self.data.parse::<Data>().map_or_else(|_| self.data.clone(), |data| data.absolute());
        let mut job = Self { data, folder: PathBuf::new(), ..self.clone() };
        let Milestones { saving, resume, resumed_at, recut, .. } = &mut job.milestones;
        (*resume, *resumed_at, *recut) = (None, None, None);
        // What was planted once is not planted again.
        job.faults = Faults::default();
        if let Some(saving) = saving {
            saving.folder = PathBuf::new();
        }
        job
    }

    /// Settings that decide which weights a training comes to, beside the data: they cannot change where it resumes.
    pub(crate) fn fixed_settings(&self) -> [(&'static str, String); 15] {
        let Learning { optimizer, momentum, weight_decay, label_smoothing, bn_momentum, .. } = self.learning;
        [
            ("model", self.model.clone()),
            ("input", format!("{}x{}", self.input.0, self.input.1)),
            ("classes", self.classes.to_string()),
            ("augment", self.augment.to_string()),
            ("global-batch", (self.batch * self.shards() as usize).to_string()),
            ("accumulate", self.accumulate.to_string()),
            ("seed", self.seed.to_string()),
            ("layout", self.layout.to_string()),
            ("precision", self.precision.to_string()),
            ("compress", self.exchange.compress.to_string()),
            ("optimizer", optimizer.to_string()),
            ("momentum", if optimizer.has_momentum() { momentum.to_string() } else { "none".into() }),
            ("weight-decay", weight_decay.to_string()),
            ("label-smoothing", label_smoothing.to_string()),
            ("bn-momentum", bn_momentum.map_or_else(|| "the network's".into(), |value| value.to_string())),
        ]
    }

    /// Samples of a pass on each worker; `None` where shards do not go round evenly.
    fn batch_per_worker(&self) -> Option<u64> {
        let (shards, workers) = (self.shards(), self.all_workers());
        shards.is_multiple_of(workers).then(|| self.batch as u64 * u64::from(shards / workers))
    }

    /// Samples of an epoch, where the job goes by epochs or is tested by them.
    fn epoch_examples(&self) -> Option<u64> {
        let counts = matches!(self.length, Length::Epochs(_)) || self.milestones.eval.is_some();
        counts.then(|| self.epoch_len().ok()).flatten()
    }

    /// Samples of an epoch.
    pub fn epoch_len(&self) -> Result<u64, TrainError> {
        Ok(self.data.parse::<Data>()?.samples(Split::Train)? as u64)
    }

    /// Settings that few jobs have, by the names of their options.
    fn unusual_settings(&self) -> impl Iterator<Item = (String, String)> {
        let Learning { optimizer, schedule, warmup_epochs, momentum, weight_decay, label_smoothing, .. } =
            self.learning;
        let usual = Learning::at(schedule.base);
        let said = |is_unusual: bool, name: &str, value: String| is_unusual.then(|| (name.to_owned(), value));
        [
            said(self.shards.is_some(), "shards", self.shards().to_string()),
            said(optimizer != usual.optimizer, "optimizer", optimizer.to_string()),
            said(optimizer.has_momentum() && momentum != usual.momentum, "momentum", momentum.to_string()),
            said(weight_decay != 0.0, "weight-decay", weight_decay.to_string()),
            said(label_smoothing != 0.0, "label-smoothing", label_smoothing.to_string()),
            said(schedule.kind != usual.schedule.kind, "schedule", schedule.kind.to_string()),
            said(schedule.rule != usual.schedule.rule, "lr-rule", schedule.rule.to_string()),
            said(schedule.rule == Rule::Linear, "lr-batch", schedule.reference_batch.to_string()),
            said(warmup_epochs > 0.0, "warmup-epochs", warmup_epochs.to_string()),
            said(self.share_gpu, "share-gpu", "yes".into()),
            said(self.exchange.alone, "exchange-alone", "yes".into()),
            self.learning.bn_momentum.map(|momentum| ("bn-momentum".to_owned(), momentum.to_string())),
            said(self.augment != Augment::default(), "augment", self.augment.to_string()),
            self.milestones.resumed_at.map(|steps| ("resumed-at".to_owned(), steps.to_string())),
            self.milestones.recut.map(|recut| ("shards-before".to_owned(), recut.from.to_string())),
        ]
        .into_iter()
        .flatten()
    }
}

/// What is held fixed when workers are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scaling {
    /// Samples a step on each worker.
    Weak {
        /// Samples of one worker.
        batch: usize,
    },
    /// Samples per step, on all workers together.
    Strong {
        /// Samples of all workers; each has an equal part of them.
        global_batch: usize,
    },
}

/// One worker's part in a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Assignment {
    pub job: Job,
    pub rank: Rank,
    /// Process of the launcher.
    pub launcher: i32,
    /// File descriptor of the memory that the ranks share; none in a world of one.
    pub segment: Option<i32>,
    /// Who it is in an elastic job.
    #[serde(default)]
    pub membership: Option<Membership>,
}

impl Assignment {
    /// The environment variable that carries it.
    pub const VARIABLE: &'static str = "PACELINE_ASSIGNMENT";

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("invariant: an assignment is plain data")
    }

    pub fn from_environment() -> Result<Self, TrainError> {
        let text =
            std::env::var(Self::VARIABLE).map_err(|error| TrainError::NoAssignment(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| TrainError::NoAssignment(error.to_string()))
    }
}

#[cfg(test)]
pub(crate) mod tests;
