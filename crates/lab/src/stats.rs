//! Statistics on plain numbers: numbers in, numbers out. Nothing here knows of runs, ranks or reports.
//!
//! Each file implements one method and names the formula and its paper.

pub mod bootstrap;
pub mod laws;
pub mod mser;
pub mod order;
pub mod outliers;
pub mod pelt;
pub mod proportion;
pub mod random;
pub mod regression;
pub mod steady;
pub mod student;

#[cfg(test)]
mod noise;

pub use bootstrap::{Ratio, Work, bootstrap_rate, bootstrap_ratio, rate};
pub use order::{coefficient_of_variation, mad, mean, median, quantile};
