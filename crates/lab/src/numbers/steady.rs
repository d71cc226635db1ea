//! Where the steady state begins: found in the times of the global steps, not assumed.
//!
//! [`crate::stats::steady`] has the method. Of several repeats the report names the latest begin and the most serious
//! verdict; each repeat's rate is taken from its own begin on.

use serde::Serialize;

use crate::stats::steady::{self, SteadyState, Verdict};
use crate::stats::{self, Work};

/// Where the steady state of a case begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Steady {
    /// First step that counts.
    pub from_step: u64,
    /// What the step times look like.
    pub verdict: Verdict,
    /// After a slowdown: how it compares with before; `None` otherwise.
    pub slowdown: Option<Slowdown>,
    /// First step that counts by the second opinion, MSER-5; `None` where there are too few steps for one.
    pub mser_step: Option<u64>,
    /// Whether the two differ by more than noise explains.
    pub mser_disagrees: bool,
    /// Single slow or fast steps within; they count.
    pub outliers: u64,
}

/// Steps that became slower.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slowdown {
    /// The steady steps' mean time over that of the fastest level before.
    pub factor: f64,
    /// Seconds that the steady steps took beyond that level's mean.
    pub lost_s: f64,
}

/// Looks at the steps of one repeat.
pub fn find(steps: &[Work]) -> SteadyState {
    let times: Vec<f64> = steps.iter().map(|step| step.seconds).collect();
    steady::find(&times)
}

/// One answer for all repeats, each with its steps; `None` of none.
pub fn sum_up(repeats: &[SteadyState], steps: &[Vec<Work>]) -> Option<Steady> {
    let seriousness = |state: &&SteadyState| match state.verdict {
        Verdict::Flat => 0,
        Verdict::WarmUp => 1,
        Verdict::TooShort => 2,
        Verdict::Slowdown => 3,
        Verdict::NoSteadyState => 4,
    };
    let slower = repeats.iter().zip(steps).filter_map(|(state, steps)| slowdown(state, steps));
    Some(Steady {
        from_step: repeats.iter().map(|state| state.from as u64).max()?,
        verdict: repeats.iter().max_by_key(seriousness)?.verdict,
        slowdown: slower.max_by(|a, b| a.lost_s.total_cmp(&b.lost_s)),
        mser_step: repeats.iter().filter_map(|state| state.mser).max().map(|step| step as u64),
        mser_disagrees: repeats.iter().any(|state| state.disagrees),
        outliers: repeats.iter().map(|state| state.outliers.len() as u64).sum(),
    })
}

fn slowdown(state: &SteadyState, steps: &[Work]) -> Option<Slowdown> {
    let mean = |steps: &[Work]| stats::mean(&steps.iter().map(|step| step.seconds).collect::<Vec<_>>());
    let ends = state.changes.iter().copied().filter(|&end| end < state.from).chain([state.from]);
    let begins = [0].into_iter().chain(ends.clone());
    let levels = begins.zip(ends).filter_map(|(begin, end)| mean(&steps[begin..end]));
    let fastest = levels.min_by(f64::total_cmp)?;
    let after = mean(&steps[state.from..])?;
    let lost_s = (after - fastest) * (steps.len() - state.from) as f64;
    (state.verdict == Verdict::Slowdown).then_some(Slowdown { factor: after / fastest, lost_s })
}
