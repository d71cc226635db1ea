//! What a run is asked to do, and how a worker gets to know.

use std::collections::BTreeMap;
use std::path::PathBuf;

use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::{Engine, EngineError, Layout, Precision, Profiling, Spec};
use paceline_model::Graph;
use paceline_record::{Case, Rank};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::data::Data;
use crate::simulate::{self, Simulation};
use crate::strategy::{ExchangeOptions, Strategy};

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
    /// Samples a step on each worker.
    pub batch: usize,
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
    /// Steps of each worker.
    pub steps: u64,
    /// Samples that the whole run was asked to see, where steps follow from that.
    pub examples: Option<u64>,
    /// Seed of weights and data.
    pub seed: u64,
    /// Learning rate.
    pub learning_rate: f32,
    /// How workers share what they learn.
    pub update: Strategy,
    /// How gradients are handed over.
    pub exchange: ExchangeOptions,
    /// Passes of each worker whose gradients are added up before one exchange.
    pub accumulate: usize,
    /// Whether each worker keeps to cores of its own.
    pub pin: bool,
    /// Whether each layer is timed.
    pub profile: bool,
    /// The machine of a simulated job.
    #[serde(default)]
    pub simulation: Simulation,
    /// Where the logs go.
    pub folder: PathBuf,
}

impl Job {
    /// The network for this job's pictures.
    pub fn graph(&self) -> Result<Graph, TrainError> {
        let graph = paceline_model::zoo::build(&self.model, Some(self.input), self.classes)?;
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

    /// Refuses a job that cannot be run: no such engine or network, or too little memory.
    pub fn check(&self) -> Result<(), TrainError> {
        if self.is_simulated() {
            return simulate::check(self);
        }
        self.check_memory(&*open_engine(&self.engine, self.threads, false)?)
    }

    /// What computes, in words.
    pub fn describe_engine(&self) -> Result<String, TrainError> {
        if self.is_simulated() {
            return Ok(format!("{}: {}", self.engine, self.simulation));
        }
        Ok(open_engine(&self.engine, self.threads, false)?.describe())
    }

    /// What the graph is compiled for.
    pub fn spec(&self) -> Spec {
        Spec {
            layout: self.layout,
            precision: self.precision,
            seed: self.seed,
            profiling: if self.profile { Profiling::Layers } else { Profiling::Phases },
            ..Spec::new(self.batch)
        }
    }

    /// Values of shared memory that the ranks need: each for itself, and in common.
    pub(crate) fn shared_values(&self, trained: usize) -> (usize, usize) {
        let common = if self.update.shares_parameters() { trained } else { 0 };
        (self.exchange.compress.own_values(trained), common)
    }

    /// Refuses a job whose workers together need more memory than the machine has left.
    pub fn check_memory(&self, engine: &dyn Engine) -> Result<(), TrainError> {
        let plan = engine.plan(&self.graph()?, &self.spec())?;
        // Each plan counts its gradients; what the exchange takes beyond them comes on top.
        let trained = (plan.gradients / 4) as usize;
        let (own, common) = self.shared_values(trained);
        let mirror = if self.update == Strategy::Replicated { trained } else { 0 };
        let extra = 4 * (self.workers as u64 * (own - trained + mirror) as u64 + common as u64);
        let extra = if self.workers == 1 { 0 } else { extra };
        let needed = plan.total() * u64::from(self.workers) + extra;
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
        let asked = match self.examples {
            Some(examples) => ("examples", examples.to_string()),
            None => ("steps", self.steps.to_string()),
        };
        let yes_no = |choice: bool| if choice { "yes" } else { "no" }.to_owned();
        let settings = [
            asked,
            ("accumulate", self.accumulate.to_string()),
            ("bucket-mb", (self.exchange.bucket_bytes as f64 / f64::from(1 << 20)).to_string()),
            ("compress", self.exchange.compress.to_string()),
            ("data", self.data.clone()),
            ("lr", self.learning_rate.to_string()),
            ("overlap", yes_no(self.exchange.overlap)),
            ("pin", yes_no(self.pin)),
            ("seed", self.seed.to_string()),
        ];
        let mut settings: BTreeMap<String, String> =
            settings.map(|(name, value)| (name.into(), value)).into();
        if self.is_simulated() {
            settings.insert("simulate".into(), self.simulation.to_string());
        }
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
            batch_per_worker: Some(self.batch as u64),
            threads: Some(self.threads as u32),
            input: Some(format!("{}x{}", self.input.0, self.input.1)),
            classes: Some(self.classes as u64),
            global_batch,
            epoch_examples: None,
            settings,
        }
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
        /// How many; each worker has an equal share of them.
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
pub(crate) mod tests {
    use super::*;

    /// A small job whose logs go to `folder`.
    pub(crate) fn job(folder: &std::path::Path) -> Job {
        Job {
            model: "mobilenet_v2".into(),
            engine: "cpu".into(),
            layout: Layout::Nchw,
            precision: Precision::Fp32,
            workers: 1,
            batch: 4,
            scaling: Scaling::Weak,
            threads: 1,
            input: (32, 32),
            classes: 10,
            data: "synthetic:cifar10".into(),
            steps: 5,
            examples: None,
            seed: 7,
            learning_rate: 0.125,
            update: Strategy::AllReduce,
            exchange: ExchangeOptions::default(),
            accumulate: 1,
            pin: true,
            profile: true,
            simulation: Simulation::default(),
            folder: folder.into(),
        }
    }

    #[test]
    fn an_assignment_survives_its_journey() {
        let assignment =
            Assignment { job: job("case".as_ref()), rank: Rank(0), launcher: 4711, segment: Some(5) };
        let arrived: Assignment = serde_json::from_str(&assignment.to_json()).expect("own output");
        assert_eq!(arrived, assignment);
    }

    #[test]
    fn data_of_another_depth_is_refused() {
        let grey = Job { data: "synthetic:32x32x1".into(), ..job("case".as_ref()) };
        let message = grey.graph().expect_err("one channel").to_string();
        assert!(message.contains("3 channels"), "{message}");
    }

    #[test]
    fn an_engine_that_is_not_there_is_named() {
        let error = open_engine("abacus", 1, false).err().expect("no such engine");
        assert!(error.to_string().contains("'abacus'"), "{error}");
    }
}
