//! What is found out about a job before it runs, with an engine of the launcher's process.

use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::cuda::{Cuda, CudaOptions, Tuning};
use paceline_engine::{Engine, EngineError, Numerics, Spec, lay_out};
use paceline_model::Graph;
use paceline_system::memory;

use super::{CPU, Job};
use crate::TrainError;
use crate::device::CUDA;
use crate::elastic::Layout;
use crate::strategy::Reduce;

/// What was found out about a job before it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The engine, in words.
    pub engine: String,
    /// Trained values, as the engine lays them out.
    pub(crate) trained: usize,
    /// Floating-point operations of an image, forward and backward.
    pub flops: u64,
    /// Bytes of its activations.
    pub activation_bytes: u64,
}

/// The engines of the launcher's process, each opened once however many jobs ask for it. Dropped before workers start:
/// one on a GPU takes memory there.
#[derive(Default)]
pub struct Engines(Vec<Opened>);

struct Opened {
    name: String,
    threads: usize,
    numerics: Option<Numerics>,
    engine: Box<dyn Engine>,
}

impl Engines {
    fn open(&mut self, job: &Job) -> Result<&dyn Engine, TrainError> {
        let Job { engine: name, threads, numerics, .. } = job;
        let is_it =
            |opened: &Opened| (&opened.name, &opened.threads, &opened.numerics) == (name, threads, numerics);
        let place = match self.0.iter().position(is_it) {
            Some(place) => place,
            None => {
                let engine = open_engine(name, *threads, numerics.as_ref())?;
                let (name, numerics) = (name.clone(), numerics.clone());
                self.0.push(Opened { name, threads: *threads, numerics, engine });
                self.0.len() - 1
            }
        };
        Ok(&*self.0[place].engine)
    }
}

/// Opens the engine that `--engine` names, to compute as was recorded or as it likes.
pub fn open_engine(
    name: &str,
    threads: usize,
    numerics: Option<&Numerics>,
) -> Result<Box<dyn Engine>, TrainError> {
    match name {
        CPU => Ok(Box::new(open_cpu(threads, numerics)?)),
        CUDA => Ok(Box::new(open_cuda(0, numerics)?)),
        _ => Err(TrainError::UnknownEngine(name.into())),
    }
}

/// Opens the engine of the processor's cores.
pub(crate) fn open_cpu(threads: usize, numerics: Option<&Numerics>) -> Result<Cpu, TrainError> {
    let simd = numerics.map(Numerics::simd).transpose()?.flatten();
    Ok(Cpu::new(CpuOptions { threads, simd })?)
}

/// Opens the engine of a GPU.
pub(crate) fn open_cuda(device: usize, numerics: Option<&Numerics>) -> Result<Cuda, TrainError> {
    let tuning = numerics.map_or_else(Tuning::default, |numerics| Tuning::Recorded(numerics.clone()));
    Ok(Cuda::new(CudaOptions { device, tuning, ..CudaOptions::default() })?)
}

impl Job {
    /// Refuses a job that cannot be run here: what [`Job::check`] refuses, an engine that is missing, or too little memory.
    pub fn prepare(&self, engines: &mut Engines) -> Result<Prepared, TrainError> {
        self.check()?;
        let graph = self.graph()?;
        let costs = paceline_model::summarize(&graph);
        let mut prepared = Prepared {
            engine: format!("{}: {}", self.engine, self.simulation),
            trained: lay_out(&graph).trained,
            flops: costs.flops_forward + costs.flops_backward,
            activation_bytes: costs.activation_bytes,
        };
        if !self.is_simulated() {
            let engine = engines.open(self).map_err(|error| self.blame_checkpoint(error))?;
            self.check_memory(engine, &graph)?;
            prepared.engine = engine.describe();
        }
        Ok(prepared)
    }

    /// Where a training cannot resume because its engine is not what it was, says what to do.
    fn blame_checkpoint(&self, error: TrainError) -> TrainError {
        match (&self.milestones.resume, error) {
            (Some(path), TrainError::Engine(EngineError::Unsupported(why))) if self.numerics.is_some() => {
                let why = format!(
                    "{why}; --new-numerics goes on with this machine's own (weights then differ in the last digits)"
                );
                TrainError::WrongCheckpoint { path: path.clone(), why }
            }
            (_, error) => error,
        }
    }

    /// Refuses a job whose workers together need more memory than the machine has left.
    fn check_memory(&self, engine: &dyn Engine, graph: &Graph) -> Result<(), TrainError> {
        if self.elastic.is_some() || self.hosts.is_some() {
            return self.check_elastic_memory(engine, graph, self.most_here());
        }
        let spec = self.spec();
        let plan = engine.plan(graph, &spec)?;
        // Each plan counts its gradients; what the exchange takes beyond them comes on top.
        let trained = (plan.gradients / 4) as usize / spec.shards;
        let (own, common) = self.shared_values(trained);
        let mirror = if self.plan().reduce == Reduce::ByEach { trained } else { 0 };
        let beyond =
            u64::from(self.shards()) * (own - trained) as u64 + u64::from(self.workers) * mirror as u64;
        let extra = if self.shares_memory() { 4 * (beyond + common as u64) } else { 0 };
        // Each GPU has memory of its own; what ranks share is on the host.
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

    /// The same for as many workers as an elastic job may have.
    fn check_elastic_memory(&self, engine: &dyn Engine, graph: &Graph, most: u32) -> Result<(), TrainError> {
        let plan = engine.plan(graph, &Spec { shards: 1, ..self.spec() })?;
        let shared = Layout::new(self, graph).size.bytes()?.0;
        // Each plan counts parameters, their state and gradients, of which there is one copy for all.
        let own = plan.total() - plan.parameters - plan.gradients - plan.optimizer;
        let needed = own * u64::from(most) + shared;
        match memory::available() {
            Some(available) if self.engine != CUDA && available.0 < needed => Err(EngineError::TooLarge {
                model: format!("{} on {most} workers with {} shards", self.model, self.shards()),
                batch: self.batch,
                needed_mb: needed / 1_000_000,
                available_mb: available.0 / 1_000_000,
            }
            .into()),
            _ => Ok(()),
        }
    }
}
