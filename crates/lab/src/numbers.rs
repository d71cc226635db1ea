//! The numbers of a report, one definition per file; `docs/numbers.md` lists them.

pub mod communication;
pub mod computation;
pub mod course;
pub mod dispersion;
pub mod fixed;
pub mod followed;
pub mod hosts;
pub mod idle;
pub mod law;
pub mod learning;
pub mod memory;
pub mod off_core;
pub mod phases;
pub mod rate;
pub mod recovery;
pub mod series;
pub mod speedup;
pub mod steady;
pub mod time;
pub mod waterfall;

/// Seed of every interval: the same logs give the same report.
pub(crate) const SEED: u64 = 0x9ace;
