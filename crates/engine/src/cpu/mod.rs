//! The CPU engine: pure Rust, one binary for AVX-512, AVX2 and everything else.

mod action;
mod amx;
mod backward;
mod columns;
mod compile;
mod element;
mod flat;
#[cfg(test)]
mod formats;
mod forward;
mod geometry;
mod host_update;
mod kernels;
mod loss;
mod memory;
mod norm;
mod pool;
mod product;
mod program;
mod simd;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod trial;
mod update;
mod weights;
mod windows;

pub use host_update::{HostUpdate, Transition};
pub(crate) use memory::{Memory, View};
pub(crate) use pool::{Placement, Pool, allowed_cores};
pub use simd::{Obstacle, Simd};
pub(crate) use update::{Moved, Update};

use compile::Compiled;
use paceline_model::{Graph, NodeId, Op};

use crate::request::{check_memory, check_spec};
use crate::{Engine, EngineError, Homes, MemoryPlan, Precision, Program, Spec};

/// How the engine runs.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads of one worker.
    pub threads: usize,
    /// Instruction set; the best one that the machine has if none is named. [`Numerics::simd`](crate::Numerics::simd) gives
    /// that of a program whose results are to be repeated.
    pub simd: Option<Simd>,
}

/// The CPU engine.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    threads: usize,
    /// The instruction set that was asked for; else the best one for the precision.
    simd: Option<Simd>,
    placement: Placement,
}

impl Cpu {
    /// Checks that the machine can do what is asked.
    pub fn new(options: CpuOptions) -> Result<Self, EngineError> {
        if options.threads == 0 {
            return Err(EngineError::Unsupported("0 threads cannot compute; use --threads 1 or more".into()));
        }
        if let Some(simd) = options.simd {
            let precision = if simd.computes(Precision::Fp32) { Precision::Fp32 } else { Precision::Bf16 };
            Simd::choose(Some(simd), precision)?;
        }
        Ok(Self { threads: options.threads, simd: options.simd, placement: Placement::Anywhere })
    }

    /// The same engine, whose programs keep each of their threads on its own core, the thread that compiles included.
    pub fn on_cores_of_their_own(self) -> Self {
        Self { placement: Placement::CoreEach, ..self }
    }

    /// Lowers the graph, and refuses what the machine has no memory for.
    fn lower(&self, graph: &Graph, spec: &Spec) -> Result<Compiled, EngineError> {
        check_spec(spec)?;
        if spec.precision == Precision::Tf32 {
            return Err(EngineError::Unsupported(
                "the CPU engine computes in fp32 or bf16, not tf32; use --precision fp32 or bf16".into(),
            ));
        }
        let simd = Simd::choose(self.simd, spec.precision)?;
        let available = self.available_memory();
        // Planning takes memory too: what is certainly too large is refused before it.
        check_memory(graph, spec, least_memory(graph, spec), available)?;
        let compiled = compile::compile(graph, spec, simd, self.threads)?;
        check_memory(graph, spec, compiled.plan.total(), available)?;
        Ok(compiled)
    }
}

/// The least bytes that any plan needs: parameters, their gradients, and what each layer with weights must keep of its input.
fn least_memory(graph: &Graph, spec: &Spec) -> u64 {
    let mut kept: Vec<NodeId> = graph
        .nodes
        .iter()
        .filter(|node| matches!(node.op, Op::Conv(_) | Op::ConvTranspose(_) | Op::Dense(_)))
        .map(|node| node.inputs[0])
        .collect();
    kept.sort();
    kept.dedup();
    let activations: u64 = kept.iter().map(|&id| graph.node(id).shape.len() as u64).sum();
    let params: u64 = graph.params.iter().map(|param| param.len() as u64).sum();
    let bytes = if spec.precision == Precision::Bf16 { 2 } else { 4 };
    activations.saturating_mul(bytes * spec.batch as u64).saturating_add(8 * params)
}

impl Engine for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        let simd = self.simd.unwrap_or_else(Simd::detect);
        format!("{simd} on {} thread{}", self.threads, if self.threads == 1 { "" } else { "s" })
    }

    fn plan(&self, graph: &Graph, spec: &Spec) -> Result<MemoryPlan, EngineError> {
        Ok(self.lower(graph, spec)?.plan)
    }

    fn available_memory(&self) -> Option<u64> {
        paceline_system::memory::available().map(|bytes| bytes.0)
    }

    fn compile_in(&self, graph: &Graph, spec: &Spec, homes: &Homes) -> Result<Box<dyn Program>, EngineError> {
        Ok(Box::new(program::CpuProgram::new(self, graph, spec, homes)?))
    }
}
