//! How much steps and ranks differ.
//!
//! Percentiles and the coefficient of variation (standard deviation over mean) describe the steady global steps. The
//! slowest rank is the one whose steps take longest on average, without waiting in collectives, evaluation and
//! checkpoints; it is compared with the median rank.

use paceline_record::log::RankLog;
use paceline_record::{Phase, StepRecord, Who};
use serde::Serialize;

use crate::Run;
use crate::run::own_time;
use crate::stats::{self, Work};

/// Spread of a case's steady steps, and its slowest rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Dispersion {
    /// Median step in seconds.
    pub p50_s: f64,
    /// 95th percentile in seconds.
    pub p95_s: f64,
    /// 99th percentile in seconds.
    pub p99_s: f64,
    /// Standard deviation over mean; `None` for a single step.
    pub cv: Option<f64>,
    /// The slowest rank; `None` with one worker.
    pub slowest: Option<Slowest>,
}

/// The slowest rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slowest {
    /// The rank, or the member where workers come and go.
    #[serde(flatten)]
    pub who: Who,
    /// Its time over the median rank's, both without waiting.
    pub over_median: f64,
}

/// Spread of the steady steps of all repeats; `None` if there are none.
pub fn dispersion(repeats: &[&Run], steady: &[&[Work]]) -> Option<Dispersion> {
    let mut seconds: Vec<f64> = steady.iter().flat_map(|steps| *steps).map(|step| step.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    Some(Dispersion {
        p50_s: stats::quantile(&seconds, 0.5)?,
        p95_s: stats::quantile(&seconds, 0.95)?,
        p99_s: stats::quantile(&seconds, 0.99)?,
        cv: stats::coefficient_of_variation(&seconds),
        slowest: slowest(repeats),
    })
}

fn slowest(repeats: &[&Run]) -> Option<Slowest> {
    let first = repeats.first()?;
    let of = |(place, log): (usize, &RankLog)| {
        let time = match &first.membership {
            // Members do different numbers of steps: their mean step is compared.
            Some(_) => log.steps.iter().map(busy).sum::<f64>() / log.steps.len() as f64,
            None => repeats.iter().flat_map(|run| &run.ranks[place].steps).map(busy).sum(),
        };
        (log.header.who(), time)
    };
    let logs = first.ranks.iter().enumerate().filter(|(_, log)| !log.steps.is_empty());
    let times: Vec<(Who, f64)> = logs.map(of).collect();
    let median = stats::median(&times.iter().map(|&(_, time)| time).collect::<Vec<_>>())?;
    let (who, most) = times.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    (times.len() > 1 && median > 0.0).then(|| Slowest { who, over_median: most / median })
}

/// Seconds of a step without waiting for others.
fn busy(step: &StepRecord) -> f64 {
    own_time(step).since(step.phases[Phase::CommWait]).since(step.phases[Phase::Recovery]).seconds()
}
