//! Images per second: examples of the steady steps over their time, all workers and all repeats together.
//!
//! The mean is examples over time; the median is that of the single steps. The 95 % interval of the mean comes from a
//! bootstrap over steady steps and, if there are several, over repeats.

use serde::Serialize;

use super::SEED;
use crate::stats::{self, Work};

/// Images per second over the steady steps, all workers together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// Median over the steps.
    pub median: f64,
    /// Examples over time.
    pub mean: f64,
    /// Lower end of the mean's 95 % interval; `None` for a single step.
    pub lo: Option<f64>,
    /// Upper end of the mean's 95 % interval.
    pub hi: Option<f64>,
}

/// The rate over the steady steps of all repeats; `None` without steps or example counts.
pub fn rate(repeats: &[&[Work]]) -> Option<Rate> {
    let all: Vec<Work> = repeats.iter().flat_map(|steps| *steps).copied().collect();
    all.iter().any(|work| work.amount > 0.0).then_some(())?;
    let rates: Vec<f64> = all.iter().map(|work| work.amount / work.seconds).collect();
    let interval = stats::bootstrap_rate(repeats, SEED);
    Some(Rate {
        median: stats::median(&rates)?,
        mean: stats::rate(&all)?,
        lo: interval.map(|(lo, _)| lo),
        hi: interval.map(|(_, hi)| hi),
    })
}
