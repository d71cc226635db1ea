//! How one worker computes: the [`Engine`] seam, and the CPU and CUDA engines behind it.
//!
//! An engine compiles a graph into a [`Program`] with a static memory plan. The program runs forward and backward,
//! says which gradients have become ready while backward still runs, and applies the update. Nothing in the seam
//! assumes that the work is done when a call returns: results and times are asked for with [`Program::finish`].

pub mod cpu;
pub mod cuda;
mod error;
mod numerics;
mod outline;
mod plan;
mod profile;
mod random;
mod request;
mod seam;
mod weave;

pub use cpu::{HostUpdate, Transition};
pub use error::EngineError;
pub use numerics::{Algorithm, Numerics, Way};
pub use outline::{Places, lay_out};
pub use plan::MemoryPlan;
pub use random::draw;
pub use seam::{
    Drawing, Driving, Engine, Homes, Layout, Measured, Optimizer, Pass, Place, Precision, Profiling, Program,
    Region, Samples, Slot, Spec, StepResult, Values,
};
pub use weave::{BucketTime, Exchanged, Link, Weave, WovenBucket};
