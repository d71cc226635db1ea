//! Where each rank's time went.
//!
//! Phases tile every rank's time over the span of the run: `launch` until its first instruction, `init` until its first
//! step, the phases of its steps, `tail` after its last step, and `other` for the rest. The phases of a rank sum to
//! `total_s`, those of all ranks to workers times `total_s`. Where workers come and go, phases tile each member's life.

use std::collections::BTreeMap;

use paceline_record::log::RankLog;
use paceline_record::{Nanos, Phase, PhaseTimes, Who};
use serde::{Serialize, Serializer};

use super::off_core;
use crate::Run;
use crate::run::Span;

/// Seconds by phase.
pub type PhaseSeconds = BTreeMap<Phase, f64>;

/// The phases of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankPhases {
    /// The rank, or the member where workers come and go.
    #[serde(flatten)]
    pub who: Who,
    /// Its seconds by phase; they sum to `total_s`, or to the member's life.
    #[serde(serialize_with = "serialise_all")]
    pub phases_s: PhaseSeconds,
    /// Part of them in which it could have run and was not on a core; `None` where the log does not tell.
    pub off_core_s: Option<f64>,
}

/// Writes every phase, `null` where it is unknown.
fn serialise_all<S: Serializer>(phases: &PhaseSeconds, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Phase::ALL.map(|phase| (phase, phases.get(&phase))))
}

/// Writes every phase, `null` where it is unknown; a single `null` if all are.
pub(crate) fn serialise_known<S: Serializer>(
    phases: &Option<PhaseSeconds>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match phases {
        Some(phases) => serialise_all(phases, serializer),
        None => serializer.serialize_none(),
    }
}

/// The time of a rank over the span of the run; `None` if it did no step.
///
/// `other` is negative if phases timed on a device's clock overlap those of the host.
pub fn tile(rank: &RankLog, span: Span) -> Option<PhaseSeconds> {
    (rank.main.is_some() && !rank.steps.is_empty()).then(|| tile_life(rank, span))
}

/// The same for a worker that may have done no step: it was launched, or initialised itself, to its end.
pub fn tile_life(rank: &RankLog, span: Span) -> PhaseSeconds {
    let main = rank.main.unwrap_or(span.end);
    let mut times = PhaseTimes::default();
    for (phase, time) in rank.steps.iter().flat_map(|step| step.phases.iter()) {
        times[phase] += time;
    }
    times[Phase::Launch] += main.since(span.begin);
    times[Phase::Init] += rank.steps.first().map_or(span.end, |first| first.begin).since(main);
    times[Phase::Tail] += rank.steps.last().map_or(Nanos(0), |last| span.end.since(last.end));
    let known = times.total().seconds() - times[Phase::Other].seconds();
    let seconds = |phase| match phase {
        Phase::Other => span.seconds() - known,
        _ => times[phase].seconds(),
    };
    Phase::ALL.map(|phase| (phase, seconds(phase))).into()
}

/// The time of a rank or member of a run; `None` if it is not known.
pub fn tile_of(run: &Run, log: &RankLog) -> Option<PhaseSeconds> {
    let span = run.span_of(log.header.who())?;
    match &run.membership {
        Some(_) => {
            let mut tiled = tile_life(log, span);
            take_part(&mut tiled, run, log, span);
            Some(tiled)
        }
        None => tile(log, span),
    }
}

/// Moves what a member without a step did after it had joined out of its init: a test that was under way then, or else a step
/// that it did not finish.
fn take_part(tiled: &mut PhaseSeconds, run: &Run, log: &RankLog, span: Span) {
    let membership = run.membership.as_ref().filter(|_| log.steps.is_empty());
    let life = membership.and_then(|membership| membership.life(log.header.who()));
    let (Some(main), Some(joined)) = (log.main, life.and_then(|life| life.joined)) else { return };
    let joined = joined.max(main).min(span.end);
    let ends = run.ends().last().map(|(done, end)| (done, end.max(tested(run))));
    let test =
        ends.filter(|&(done, _)| joined >= done).map_or(joined, |(_, end)| end.clamp(joined, span.end));
    *tiled.entry(Phase::Init).or_default() -= span.end.since(joined).seconds();
    *tiled.entry(Phase::Eval).or_default() += test.since(joined).seconds();
    *tiled.entry(Phase::Tail).or_default() += span.end.since(test).seconds();
}

/// When the last test of the network was over.
fn tested(run: &Run) -> Nanos {
    run.evaluations().map(|test| test.at).max().unwrap_or_default()
}

/// The phases of every rank, as means over the repeats.
pub fn ranks(repeats: &[&Run]) -> Option<Vec<RankPhases>> {
    let count = repeats.len() as f64;
    let mut means: BTreeMap<Who, RankPhases> = BTreeMap::new();
    for run in repeats {
        for log in &run.ranks {
            let who = log.header.who();
            let empty = RankPhases { who, phases_s: PhaseSeconds::new(), off_core_s: Some(0.0) };
            let mean = means.entry(who).or_insert(empty);
            for (phase, seconds) in tile_of(run, log)? {
                *mean.phases_s.entry(phase).or_default() += seconds / count;
            }
            let off_core: Option<f64> = log.steps.iter().map(off_core::told_of).sum();
            mean.off_core_s = mean.off_core_s.zip(off_core).map(|(sum, more)| sum + more / count);
        }
    }
    Some(means.into_values().collect())
}

/// The phases of all ranks together.
pub fn sum(ranks: &[RankPhases]) -> PhaseSeconds {
    let mut sums: PhaseSeconds = Phase::ALL.map(|phase| (phase, 0.0)).into();
    for (phase, seconds) in ranks.iter().flat_map(|rank| &rank.phases_s) {
        *sums.entry(*phase).or_default() += seconds;
    }
    sums
}
