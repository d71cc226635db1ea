//! Where the steady state begins: found in the times of the global steps, not assumed.
//!
//! [`crate::stats::steady`] has the method. Of several repeats, the report gives the latest begin and the most serious
//! verdict; each repeat's rate starts at its own begin.

use std::cmp::Ordering;
use std::ops::Range;

use serde::Serialize;

use super::dispersion::Dispersion;
use crate::stats::steady::{self, Slower, SteadyState, Verdict};
use crate::stats::{self, Work};

/// Where the steady state of a case begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Steady {
    /// First step that counts.
    pub from_step: u64,
    /// What the step times look like.
    pub verdict: Verdict,
    /// When and how much slower the steps became; `None` without a slowdown.
    pub slowdown: Option<Slowdown>,
    /// First step that counts according to MSER-5, the second opinion; `None` with too few steps.
    pub mser_step: Option<u64>,
    /// Whether the two methods differ by more than noise explains.
    pub mser_disagrees: bool,
    /// Single slow or fast steps in the steady state; they count.
    pub outliers: u64,
    /// Number of points it was found in, if each stands for several steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<u64>,
}

/// Steps that became slower.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slowdown {
    /// First of the slower steps.
    pub from_step: u64,
    /// Steps of the level before, which they are compared with.
    pub compared_steps: u64,
    /// Their mean time over that of the level before.
    pub factor: f64,
    /// Seconds that they took beyond the mean of that level; `None` if only rates are known.
    pub lost_s: Option<f64>,
}

/// The steady state of one repeat.
pub fn find(steps: &[Work]) -> SteadyState {
    let times: Vec<f64> = steps.iter().map(|step| step.seconds).collect();
    steady::find(&times)
}

/// The records of a repeat.
#[derive(Clone, Debug)]
pub struct Records {
    /// Work per step, averaged if a record stands for several.
    pub means: Vec<Work>,
    /// How many steps each record stands for.
    pub covers: Vec<u64>,
}

impl Records {
    /// The records of a repeat with these global steps.
    pub fn new(steps: &[Work], covers: Vec<u64>) -> Self {
        let mean = |(work, covers): (&Work, &u64)| {
            let count = *covers as f64;
            Work { amount: work.amount / count, seconds: work.seconds / count }
        };
        Self { means: steps.iter().zip(&covers).map(mean).collect(), covers }
    }

    /// Whether every record is a single step.
    pub fn are_steps(&self) -> bool {
        self.covers.iter().all(|&covers| covers == 1)
    }

    /// Steps in all records together.
    pub fn steps(&self) -> u64 {
        self.before(self.covers.len())
    }

    /// Steps before a record.
    fn before(&self, record: usize) -> u64 {
        self.covers[..record].iter().fold(0, |sum, &covers| sum.saturating_add(covers))
    }
}

/// One answer for all repeats, each with its records; `None` without repeats.
pub fn sum_up(repeats: &[SteadyState], records: &[Records]) -> Option<Steady> {
    let seriousness = |state: &&SteadyState| match state.verdict {
        Verdict::Flat => 0,
        Verdict::WarmUp => 1,
        Verdict::Noisy => 2,
        Verdict::TooShort => 3,
        Verdict::Slowdown => 4,
        Verdict::NoSteadyState => 5,
    };
    let both = || repeats.iter().zip(records);
    let slower = both().filter_map(|(state, records)| slowdown(state, records));
    let all_steps = records.iter().all(Records::are_steps);
    Some(Steady {
        from_step: both().map(|(state, records)| records.before(state.from)).max()?,
        verdict: repeats.iter().max_by_key(seriousness)?.verdict,
        slowdown: slower.max_by(|a, b| a.lost_s.partial_cmp(&b.lost_s).unwrap_or(Ordering::Equal)),
        mser_step: both().filter_map(|(state, records)| Some(records.before(state.mser?))).max(),
        mser_disagrees: repeats.iter().any(|state| state.disagrees),
        outliers: repeats.iter().map(|state| state.outliers.len() as u64).sum(),
        points: both().map(|(_, records)| records.covers.len() as u64).min().filter(|_| !all_steps),
    })
}

fn slowdown(state: &SteadyState, records: &Records) -> Option<Slowdown> {
    let Slower { neighbour, until, from } = state.slower?;
    let mean = |range: Range<usize>| {
        stats::mean(&records.means.get(range)?.iter().map(|step| step.seconds).collect::<Vec<_>>())
    };
    let (before, after) = (mean(neighbour..until)?, mean(from..records.means.len())?);
    let late = records.means[from..].iter().zip(&records.covers[from..]);
    Some(Slowdown {
        from_step: records.before(from),
        compared_steps: records.before(until) - records.before(neighbour),
        factor: after / before,
        lost_s: Some(late.map(|(step, &covers)| (step.seconds - before) * covers as f64).sum()),
    })
}

/// Step times that vary by more than this fraction of their mean are not called steady.
const NOISY: f64 = 0.2;

/// More outliers than this fraction of the steps are not single ones.
const SCATTERED: f64 = 0.02;

/// Calls steps noisy that have one level but vary widely around it, by more than a few single ones.
pub fn judge_spread(steady: &mut Steady, dispersion: Option<&Dispersion>, steps: u64) {
    let Some(spread) = dispersion else { return };
    let many =
        steady.outliers as f64 > SCATTERED * steps as f64 || spread.p95_s > (1.0 + NOISY) * spread.p50_s;
    let varies = many && spread.cv.is_some_and(|cv| cv > NOISY);
    if varies && matches!(steady.verdict, Verdict::Flat | Verdict::WarmUp) {
        steady.verdict = Verdict::Noisy;
    }
}
