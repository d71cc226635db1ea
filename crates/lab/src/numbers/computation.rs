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
    let first = repeats.first()?.0;
    if first.membership.is_some() {
        // Repeats have different members: all count that did a steady step.
        let members =
            repeats.iter().flat_map(|&(run, from)| run.ranks.iter().map(move |log| (run, log, from)));
        let steady = members.map(|(run, member, from)| run.steps_from(member, from).iter());
        return lower_median(steady.filter_map(per_example).collect());
    }
    let steps = |rank: usize| repeats.iter().flat_map(move |&(run, from)| &run.ranks[rank].steps[from..]);
    lower_median((0..first.ranks.len()).map(|rank| per_example(steps(rank))).collect::<Option<_>>()?)
}

fn lower_median(times: Vec<f64>) -> Option<f64> {
    let sorted = stats::order::sort(&times);
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
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
        let steps = rank.steps.iter().filter(|step| step.examples > 0 && step.sampled);
        stats::median(&steps.map(|step| on_core(step).seconds() / step.examples as f64).collect::<Vec<_>>())
    };
    lower_median(ranks.filter_map(middle).collect())
}
