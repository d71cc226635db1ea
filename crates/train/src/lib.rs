//! How workers learn: data, the step loop, and the launcher that starts workers and sees them off.
//!
//! A worker is a process of the same binary. The launcher hands it its [`Job`] and its rank through the environment,
//! and reads what became of it from its exit status and its run log.

mod affinity;
mod buckets;
pub mod checkpoint;
pub mod data;
mod device;
mod elastic;
mod error;
pub mod evaluate;
mod exchange;
mod faults;
pub mod hosts;
mod job;
pub mod launcher;
mod learning;
pub mod measure;
mod milestone;
mod numerics;
mod process;
pub mod schedule;
mod simulate;
mod strategy;
pub mod worker;

use paceline_system::clock;

pub use device::devices;
pub use elastic::{Bounds, Deal, Elastic, awaits_test, control};
pub use error::{Death, TrainError, describe};
pub use faults::{Fault, Faults};
pub use job::{Engines, Job, Length, Prepared, Scaling, open_engine};
pub use learning::{Learning, OptimizerKind};
pub use milestone::{Every, Milestones, Saving};
pub use numerics::{Numerics, SumOrder};
pub use simulate::Simulation;
pub use strategy::{Compress, ExchangeOptions, Parameters, Plan, Publish, Reduce, Strategy, Updates};
