//! What a run is asked to do, and how a worker gets to know.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use paceline_comm::deal;
use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::cuda::{Cuda, CudaOptions};
use paceline_engine::{Engine, EngineError, Layout, Pass, Precision, Profiling, Spec};
use paceline_model::Graph;
use paceline_record::{Case, Rank};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::data::{Augment, Data, Split};
use crate::device::CUDA;
use crate::exchange::POSTED;
use crate::learning::{Learning, OptimizerKind};
use crate::milestone::Milestones;
use crate::schedule::Rule;
use crate::simulate::{self, Simulation};
use crate::strategy::{ExchangeOptions, Plan, Reduce, Strategy};

/// Everything that determines a run, but for the machine.
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
    /// Samples of one pass of one shard.
    pub batch: usize,
    /// Shards that each step is cut into; as many as workers where nobody says.
    #[serde(default)]
    pub shards: Option<u32>,
    /// What is held fixed when workers are added.
    pub scaling: Scaling,
    /// Threads in each worker.
    pub threads: usize,
    /// Height and width of the images.
    pub input: (usize, usize),
    /// Classes.
    pub classes: usize,
    /// The data, as the command line names it.
    pub data: String,
    /// What is done to the pictures before the network sees them.
    #[serde(default)]
    pub augment: Augment,
    /// The step that the run ends with, counted from the start of the training.
    pub steps: u64,
    /// Passes over the data that the run was asked to make, where steps follow from that.
    #[serde(default)]
    pub epochs: Option<f64>,
    /// Samples that the whole run was asked to see, where steps follow from that.
    pub examples: Option<u64>,
    /// Seed of weights and data.
    pub seed: u64,
    /// How weights follow gradients.
    pub learning: Learning,
    /// How workers share what they learn.
    pub update: Strategy,
    /// How gradients are handed over.
    pub exchange: ExchangeOptions,
    /// Whether several workers may use one GPU, and exchange through the host.
    #[serde(default)]
    pub share_gpu: bool,
    /// Passes of each worker whose gradients are added up before one exchange.
    pub accumulate: usize,
    /// Whether each worker keeps to cores of its own.
    pub pin: bool,
    /// Whether each layer is timed.
    pub profile: bool,
    /// The machine of a simulated job.
    #[serde(default)]
    pub simulation: Simulation,
    /// When the network is tested and saved.
    #[serde(default)]
    pub milestones: Milestones,
    /// Whether each rank leaves the numbers of the samples that it was given.
    #[serde(default)]
    pub log_samples: bool,
    /// The words that asked for it.
    #[serde(default)]
    pub asked: Vec<String>,
    /// Where the logs go.
    pub folder: PathBuf,
}

impl Job {
    /// Shards that each step is cut into.
    pub fn shards(&self) -> u32 {
        self.shards.unwrap_or(self.workers)
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
        let before = step * u64::from(self.shards()) + u64::from(shards.start) + shard as u64;
        let stream = before * self.accumulate as u64 + index as u64;
        let seen = Some(step * self.accumulate as u64 + index as u64);
        Pass { shard, index, count: self.accumulate, stream, seen, update: None }
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

    /// Refuses a job that cannot be run: no such engine or network, shards that do not go round, data that is not
    /// there, or too little memory.
    pub fn check(&self) -> Result<(), TrainError> {
        if self.shards() < self.workers {
            return Err(TrainError::Shards { shards: self.shards(), workers: self.workers });
        }
        if self.learning.optimizer == OptimizerKind::Nesterov && self.learning.momentum == 0.0 {
            return Err(TrainError::NoMomentum);
        }
        if self.exchange.alone && !self.plan().exchanges() {
            return Err(TrainError::LonelyExchange);
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
        self.check_devices()?;
        self.check_memory(&*open_engine(&self.engine, self.threads, false)?)
    }

    /// What computes, in words.
    pub fn describe_engine(&self) -> Result<String, TrainError> {
        if self.is_simulated() {
            return Ok(format!("{}: {}", self.engine, self.simulation));
        }
        Ok(open_engine(&self.engine, self.threads, false)?.describe())
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

    /// Refuses a job whose workers together need more memory than the machine has left.
    pub fn check_memory(&self, engine: &dyn Engine) -> Result<(), TrainError> {
        let spec = self.spec();
        let plan = engine.plan(&self.graph()?, &spec)?;
        // Each plan counts its gradients; what the exchange takes beyond them comes on top.
        let trained = (plan.gradients / 4) as usize / spec.shards;
        let (own, common) = self.shared_values(trained);
        let mirror = if self.plan().reduce == Reduce::ByEach { trained } else { 0 };
        let beyond =
            u64::from(self.shards()) * (own - trained) as u64 + u64::from(self.workers) * mirror as u64;
        let extra = if self.shares_memory() { 4 * (beyond + common as u64) } else { 0 };
        // Each GPU has memory of its own; what ranks share lies on the host.
        let needed = match (self.engine == CUDA, self.share_gpu) {
            (true, false) => plan.total(),
            (true, true) => plan.total() * u64::from(self.workers),
            (false, _) => plan.total() * u64::from(self.workers) + extra,
        };
        match engine.available_memory() {
            Some(available) if available < needed => Err(EngineError::TooLarge {
                model: format!("{} on {} workers", self.model, self.workers),
                batch: self.batch,
                needed_mb: needed / 1_000_000,
                available_mb: available / 1_000_000,
            }
            .into()),
            _ => Ok(()),
        }
    }

    /// How the run log describes this job.
    pub fn case(&self) -> Case {
        let asked = match (self.examples, self.epochs) {
            (Some(examples), _) => ("examples", examples.to_string()),
            (_, Some(epochs)) => ("epochs", epochs.to_string()),
            _ => ("steps", self.steps.to_string()),
        };
        let yes_no = |choice: bool| if choice { "yes" } else { "no" }.to_owned();
        let settings = [
            asked,
            ("accumulate", self.accumulate.to_string()),
            ("bucket-mb", (self.exchange.bucket_bytes as f64 / f64::from(1 << 20)).to_string()),
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
        settings.extend(self.unusual_settings());
        let (scaling, global_batch) = match self.scaling {
            Scaling::Weak => ("weak", None),
            Scaling::Strong { global_batch } => ("strong", Some(global_batch as u64)),
        };
        Case {
            model: self.model.clone(),
            engine: Some(self.engine.clone()),
            layout: Some(self.layout.to_string()),
            precision: Some(self.precision.to_string()),
            update: Some(self.update.to_string()),
            scaling: Some(scaling.into()),
            workers: self.workers,
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
    /// What decides which weights a training comes to: it cannot change where one goes on.
    pub fn fixed_settings(&self) -> Result<BTreeMap<String, String>, TrainError> {
        let Learning { optimizer, momentum, weight_decay, label_smoothing, .. } = self.learning;
        let bn_momentum =
            self.learning.bn_momentum.map_or_else(|| "its own".to_owned(), |value| value.to_string());
        let settings = [
            ("bn-momentum", bn_momentum),
            ("model", self.model.clone()),
            ("input", format!("{}x{}", self.input.0, self.input.1)),
            ("classes", self.classes.to_string()),
            ("data", self.data.parse::<Data>()?.fingerprint()?),
            ("augment", self.augment.to_string()),
            ("global-batch", (self.batch * self.shards() as usize).to_string()),
            ("shards", self.shards().to_string()),
            ("accumulate", self.accumulate.to_string()),
            ("seed", self.seed.to_string()),
            ("layout", self.layout.to_string()),
            ("precision", self.precision.to_string()),
            ("optimizer", optimizer.to_string()),
            ("momentum", if optimizer.has_momentum() { momentum.to_string() } else { "none".into() }),
            ("weight-decay", weight_decay.to_string()),
            ("label-smoothing", label_smoothing.to_string()),
        ];
        Ok(settings.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// Samples of a pass on each worker; `None` where shards do not go round evenly.
    fn batch_per_worker(&self) -> Option<u64> {
        let (shards, workers) = (self.shards(), self.workers);
        shards.is_multiple_of(workers).then(|| self.batch as u64 * u64::from(shards / workers))
    }

    /// Samples of an epoch, where the job goes by epochs or is tested by them.
    fn epoch_examples(&self) -> Option<u64> {
        let counts = self.epochs.is_some() || self.milestones.eval.is_some();
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
    Weak,
    /// Samples a step on all workers together.
    Strong {
        /// How many; each worker has an equal part of them.
        global_batch: usize,
    },
}

/// Opens the engine that `--engine` names; where this process has cores of its own, `pinned` gives each thread one.
pub fn open_engine(name: &str, threads: usize, pinned: bool) -> Result<Box<dyn Engine>, TrainError> {
    match name {
        "cpu" => {
            let cpu = Cpu::new(CpuOptions { threads, simd: None })?;
            Ok(Box::new(if pinned { cpu.on_cores_of_their_own() } else { cpu }))
        }
        CUDA => Ok(Box::new(Cuda::new(CudaOptions::default())?)),
        _ => Err(TrainError::UnknownEngine(name.into())),
    }
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
