//! How workers learn: data, the step loop, and the launcher that starts workers and sees them off.
//!
//! A worker is a process of the same binary. The launcher hands it its [`Job`] and its rank through the environment,
//! and reads what became of it from its exit status and its run log.

mod affinity;
mod buckets;
pub mod checkpoint;
pub mod data;
mod device;
mod error;
pub mod evaluate;
mod exchange;
mod job;
pub mod launcher;
pub mod measure;
mod milestone;
mod process;
pub mod schedule;
mod simulate;
mod strategy;
pub mod worker;

use paceline_system::clock;

pub use device::devices;
pub use error::{Death, TrainError};
pub use job::{Job, Learning, Scaling, open_engine};
pub use milestone::{Every, Milestones, Saving};
pub use simulate::Simulation;
pub use strategy::{Compress, ExchangeOptions, Parameters, Plan, Publish, Reduce, Strategy, Updates};
