//! What a run is asked to do, and how a worker gets to know.

use std::path::PathBuf;

use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::{Engine, Layout, Precision, Profiling, Spec};
use paceline_model::Graph;
use paceline_record::{Case, Rank};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::data::Data;

/// Everything that determines a run, but for the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The network.
    pub model: String,
    /// What computes.
    pub engine: String,
    /// Order of dimensions.
    #[serde(with = "text")]
    pub layout: Layout,
    /// Number format.
    #[serde(with = "text")]
    pub precision: Precision,
    /// Worker processes.
    pub workers: u32,
    /// Samples a step on each worker.
    pub batch: usize,
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
    /// Seed of weights and data.
    pub seed: u64,
    /// Learning rate.
    pub learning_rate: f32,
    /// Whether each layer is timed.
    pub profile: bool,
    /// Where the logs go.
    pub folder: PathBuf,
}

impl Job {
    /// The network for this job's pictures.
    pub fn graph(&self) -> Result<Graph, TrainError> {
        let graph = paceline_model::zoo::build(&self.model, Some(self.input), self.classes)?;
        let (expected, got) = (graph.input().c, self.data.parse::<Data>()?.shape.c);
        if expected != got {
            return Err(TrainError::Channels { model: self.model.clone(), expected, got });
        }
        Ok(graph)
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

    /// How the run log describes this job.
    pub fn case(&self) -> Case {
        Case {
            model: self.model.clone(),
            engine: Some(self.engine.clone()),
            layout: Some(self.layout.to_string()),
            precision: Some(self.precision.to_string()),
            update: Some("allreduce".into()),
            scaling: Some("weak".into()),
            workers: self.workers,
            batch_per_worker: Some(self.batch as u64),
            threads: Some(self.threads as u32),
            input: Some(format!("{}x{}", self.input.0, self.input.1)),
            classes: Some(self.classes as u64),
        }
    }
}

/// Opens the engine that `--engine` names.
pub fn open_engine(name: &str, threads: usize) -> Result<Box<dyn Engine>, TrainError> {
    match name {
        "cpu" => {
            let options = CpuOptions { threads, simd: None };
            Ok(Box::new(Cpu::new(options)?))
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

/// Serialises what has a form as text in that form.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
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
            threads: 1,
            input: (32, 32),
            classes: 10,
            data: "synthetic:cifar10".into(),
            steps: 5,
            seed: 7,
            learning_rate: 0.125,
            profile: true,
            folder: folder.into(),
        }
    }

    #[test]
    fn an_assignment_survives_its_journey() {
        let assignment = Assignment { job: job("case".as_ref()), rank: Rank(0), launcher: 4711 };
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
        let error = open_engine("abacus", 1).err().expect("no such engine");
        assert!(error.to_string().contains("'abacus'"), "{error}");
    }
}
