//! How long a typical rank computes per example: forward and backward of its steady steps over its examples, without the time
//! in which it was not on a core.
//!
//! The typical rank is the lower median, so that one slow rank, or one of two, does not count as slower computation.

use paceline_record::log::RankLog;
use paceline_record::{Nanos, Phase, PhaseTimes, StepRecord};

use super::off_core;
use crate::{Run, stats};

/// Worker-seconds per example over all repeats, each with its first steady step.
pub fn typical(repeats: &[(&Run, usize)]) -> Option<f64> {
    if repeats.first()?.0.membership.is_some() {
        return typical_member(repeats);
    }
    let world = repeats.first()?.0.ranks.len();
    let mut times: Vec<f64> = (0..world).map(|rank| of_rank(repeats, rank)).collect::<Option<_>>()?;
    times.sort_by(f64::total_cmp);
    times.get(world.checked_sub(1)? / 2).copied()
}

/// Computation time of a step.
pub(super) fn of_step(step: &StepRecord) -> Nanos {
    sum(&step.phases)
}

fn sum(times: &PhaseTimes) -> Nanos {
    times[Phase::Forward] + times[Phase::Backward] + times[Phase::Compute]
}

/// The same, as far as its thread was on a core.
fn on_core(step: &StepRecord) -> Nanos {
    of_step(step).since(sum(&off_core::of_step(step)))
}

fn of_rank(repeats: &[(&Run, usize)], rank: usize) -> Option<f64> {
    per_example(repeats.iter().flat_map(|&(run, from)| &run.ranks[rank].steps[from..]))
}

fn per_example<'a>(steps: impl Iterator<Item = &'a StepRecord> + Clone) -> Option<f64> {
    let seconds: f64 = steps.clone().map(|step| on_core(step).seconds()).sum();
    let examples: u64 = steps.map(|step| step.examples).sum();
    (examples > 0).then(|| seconds / examples as f64)
}

/// The same by the median step of each rank, over all of its steps: neither single slow steps nor where the steady state
/// begins move it.
pub(crate) fn typical_step(repeats: &[&Run]) -> Option<f64> {
    let ranks = repeats.iter().flat_map(|run| &run.ranks).filter(|rank| !rank.steps.is_empty());
    let middle = |rank: &RankLog| {
        let steps = rank.steps.iter().filter(|step| step.examples > 0);
        stats::median(&steps.map(|step| on_core(step).seconds() / step.examples as f64).collect::<Vec<_>>())
    };
    let mut times: Vec<f64> = ranks.filter_map(middle).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len().checked_sub(1)? / 2).copied()
}

/// The lower median of all members of all repeats that did a steady step: repeats have different members.
fn typical_member(repeats: &[(&Run, usize)]) -> Option<f64> {
    let steady = repeats
        .iter()
        .flat_map(|&(run, from)| run.ranks.iter().map(move |member| run.steps_from(member, from)));
    let mut times: Vec<f64> = steady.filter_map(|steps| per_example(steps.iter())).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len().checked_sub(1)? / 2).copied()
}
