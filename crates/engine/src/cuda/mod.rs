//! The CUDA engine: cuDNN and cuBLASLt for products, our own kernels for the rest, and a step replayed as one graph.
//! All libraries are found at run time.

mod action;
mod backend;
mod backward;
mod choices;
mod driver;
mod gemm;
mod kernels;
mod library;
mod lower;
mod mirror;
pub mod nvtx;
mod object;
mod product;
mod program;
mod turn;
mod unrolled;

pub use library::{Library, libraries};
pub use product::Tuning;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use choices::Choices;
use driver::Device;
use kernels::Kernels;
use paceline_model::Graph;

use crate::request::{check_memory, check_spec};
use crate::{Engine, EngineError, Homes, MemoryPlan, Precision, Program, Spec};

/// What a program's buffers hold before each run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// What the previous run left there.
    #[default]
    Kept,
    /// NaN: a value that is read before it is written shows in the results.
    Poisoned,
}

/// How the engine runs.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// The GPU's number.
    pub device: usize,
    /// How the algorithms for products are chosen.
    pub tuning: Tuning,
    /// What buffers hold before each run.
    pub contents: Contents,
}

/// The CUDA engine. It and its programs belong to the thread that opened it: as long as one of them lives, another thread is
/// refused.
pub struct Cuda {
    options: CudaOptions,
    /// Versions of cuDNN and cuBLASLt.
    libraries: BTreeMap<String, String>,
    kernels: Mutex<[Option<Arc<Kernels>>; 2]>,
    choices: Mutex<Choices>,
    /// Goes last: this thread's turn ends with it.
    device: Arc<Device>,
}

impl Cuda {
    /// Finds the driver, the libraries and the GPU, or says what is missing.
    pub fn new(options: CudaOptions) -> Result<Self, EngineError> {
        library::need_driver()?;
        let libraries = library::need_mathematics()?;
        let device = Device::open(options.device)?;
        if let Tuning::Recorded(numerics) = &options.tuning {
            numerics.check_device(&device.name, &libraries)?;
        }
        let choices = Mutex::new(Choices::load(&format!("{} {libraries:?}", device.name)));
        Ok(Self { device, options, libraries, kernels: Mutex::default(), choices })
    }

    /// How many GPUs the driver has.
    pub fn devices() -> Result<usize, EngineError> {
        library::need_driver()?;
        Device::count()
    }

    fn kernels(&self, precision: Precision) -> Result<Arc<Kernels>, EngineError> {
        let bf16 = precision == Precision::Bf16;
        let mut loaded = self.kernels.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(kernels) = &loaded[usize::from(bf16)] {
            return Ok(kernels.clone());
        }
        let kernels = Arc::new(Kernels::load(&self.device, precision)?);
        loaded[usize::from(bf16)] = Some(kernels.clone());
        Ok(kernels)
    }

    fn lower(&self, graph: &Graph, spec: &Spec) -> Result<lower::Lowered, EngineError> {
        check_spec(spec)?;
        let lowered = lower::lower(graph, spec);
        check_memory(graph, spec, lowered.plan.total(), self.available_memory())?;
        Ok(lowered)
    }
}

impl Engine for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        let libraries: Vec<_> =
            self.libraries.iter().map(|(name, version)| format!("{name} {version}")).collect();
        format!("{} with {}", self.device.name, libraries.join(" and "))
    }

    fn plan(&self, graph: &Graph, spec: &Spec) -> Result<MemoryPlan, EngineError> {
        Ok(self.lower(graph, spec)?.plan)
    }

    fn available_memory(&self) -> Option<u64> {
        self.device.memory().ok().map(|(free, _)| free)
    }

    fn compile_in(&self, graph: &Graph, spec: &Spec, homes: &Homes) -> Result<Box<dyn Program>, EngineError> {
        Ok(Box::new(program::CudaProgram::new(self, graph, spec, homes)?))
    }
}
