//! The waterfall: why an example costs more worker time on N workers than on one.
//!
//! ```text
//! c(N)        = N * T(N) / examples(N)                  cost of an example, in worker-seconds
//! c(N) - c(1) = sum over causes of value(N) / examples(N) - value(1) / examples(1)
//! ```
//!
//! A value is a cause's time, summed over ranks. Every phase belongs to one cause, except `comm_wait`, which is split at
//! the arrival of the last rank, and except that the part of a step's phase in which its thread was not on a core
//! ([`off_core`]) is a cause of its own. For the steps before the steady state, each cause keeps their count times its steady
//! mean; what they took beyond that is warm-up. Evaluation and checkpoints keep all of their time, because they come when
//! they are due, steady or not, and so do recovery and time off the core. So the values sum to N * T(N), and the parts to the whole.
//!
//! Where workers come and go, the sum of the members' lives takes the place of N * T(N), and an example counts once, however
//! often it was computed. Recovery is the phase of that name, the launch and init of members that replace lost ones, and of
//! lost members the time from the end of their last step.
//!
//! Intervals come from a bootstrap over the steady steps. Causes outside the steps have none, nor have evaluation and
//! checkpoints, which the plan of the run alone decides. The interval of a difference adds the half-widths of both sides
//! in quadrature, as for independent errors.

use std::collections::BTreeMap;
use std::ops::Add;

use paceline_record::{Phase, PhaseTimes, StepRecord};
use serde::{Deserialize, Serialize, Serializer};

use super::{SEED, off_core, phases, recovery};
use crate::Run;
use crate::run::covers;
use crate::stats::{self, Work};

/// A cause of time being spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Until the first step: launch, init.
    StartUp,
    /// Time of the steps before the steady state beyond that of steady ones.
    WarmUp,
    /// A thread could have run, and was not on a core.
    OffCore,
    /// Forward and backward.
    Computation,
    /// Load and copies.
    Input,
    /// Exposed communication: moving bytes, and work for it on the worker's own cores.
    Communication,
    /// Waiting for the last rank.
    Stragglers,
    /// Applying the update.
    Update,
    /// A device was idle.
    Idle,
    /// Evaluation and checkpoints.
    Evaluation,
    /// Workers were lost: waiting and working in their place, what they had not finished, and starting replacements.
    Recovery,
    /// From the end of a rank's last step to the end of the run.
    Tail,
    /// Time that no phase accounts for.
    Other,
}

/// All causes in display order, each with its name in a waterfall and the phases that make it up.
const CAUSES: [(Cause, &str, &[Phase]); 13] = [
    (Cause::StartUp, "start-up", &[Phase::Launch, Phase::Init]),
    (Cause::WarmUp, "warm-up", &[]),
    (Cause::OffCore, "taken off the core", &[]),
    (Cause::Computation, "slower computation", &[Phase::Forward, Phase::Backward, Phase::Compute]),
    (Cause::Input, "slower input", &[Phase::Load, Phase::CopyIn, Phase::CopyOut]),
    (Cause::Communication, "exposed communication", &[Phase::CommWait, Phase::CommCpu]),
    (Cause::Stragglers, "waiting for stragglers", &[]),
    (Cause::Update, "update", &[Phase::Update]),
    (Cause::Idle, "idle device", &[Phase::Idle]),
    (Cause::Evaluation, "evaluation and checkpoints", &[Phase::Eval, Phase::Checkpoint]),
    (Cause::Recovery, "recovery", &[Phase::Recovery]),
    (Cause::Tail, "tail", &[Phase::Tail]),
    (Cause::Other, "other", &[Phase::Other]),
];

impl Cause {
    /// All causes, in display order.
    pub fn all() -> [Self; 13] {
        CAUSES.map(|(cause, ..)| cause)
    }

    /// Its name in a waterfall.
    pub const fn name(self) -> &'static str {
        CAUSES[self as usize].1
    }

    /// The phases that make it up.
    const fn phases(self) -> &'static [Phase] {
        CAUSES[self as usize].2
    }

    /// Whether any of its time can be told, if these phases are.
    pub(crate) fn is_known(self, knows: &dyn Fn(Phase) -> bool) -> bool {
        match self {
            Self::Stragglers => knows(Phase::CommWait),
            Self::WarmUp | Self::OffCore | Self::Other => true,
            _ => self.phases().iter().any(|&phase| knows(phase)),
        }
    }

    /// Its seconds within a step.
    fn within(self, step: &StepRecord) -> f64 {
        let booked: f64 = self.phases().iter().map(|&phase| on_core(step, phase)).sum();
        match self {
            Self::OffCore => off_core::of_step(step).total().seconds(),
            Self::Communication => booked - step.late_rank.seconds(),
            Self::Stragglers => step.late_rank.seconds(),
            Self::Other => {
                let known = step.phases.total().seconds() - step.phases[Phase::Other].seconds();
                step.end.since(step.begin).seconds() - known - off_core::of_step(step)[Phase::Other].seconds()
            }
            _ => booked,
        }
    }
}

/// Seconds of a step in a phase, without those in which its thread was not on a core.
fn on_core(step: &StepRecord, phase: Phase) -> f64 {
    step.phases[phase].seconds() - off_core::of_step(step)[phase].seconds()
}

/// A cause's part of the cost of an example, in worker-seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Part {
    /// The cause.
    pub cause: Cause,
    /// Worker-seconds per example.
    pub seconds: f64,
    /// Lower end of its 95 % interval, if it has one.
    pub lo: Option<f64>,
    /// Upper end.
    pub hi: Option<f64>,
}

/// What cost is counted per.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Per example.
    Example,
    /// Per step of a worker, if the number of examples is unknown.
    Step,
}

/// The cost of an example in a case, by cause.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Worker processes.
    pub workers: u32,
    /// What the cost is counted per.
    pub unit: Unit,
    /// `c(N)`.
    pub seconds: f64,
    /// Its parts, one for each cause that is known, in order of [`Cause::all`].
    pub parts: Vec<Part>,
}

/// The way from the cost of an example on one worker to that on N.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waterfall {
    /// N.
    pub workers: u32,
    /// `c(1)`, in worker-seconds.
    pub from_s: f64,
    /// `c(N)`.
    pub to_s: f64,
    /// The difference by cause; the parts sum to it.
    #[serde(rename = "shares", serialize_with = "serialise_parts")]
    pub parts: Vec<Part>,
}

/// Leaves recovery out of runs that had none.
fn serialise_parts<S: Serializer>(parts: &[Part], serializer: S) -> Result<S::Ok, S::Error> {
    let told = |part: &&Part| part.cause != Cause::Recovery || part.seconds != 0.0;
    serializer.collect_seq(parts.iter().filter(told))
}

/// The cost of an example over all repeats, each with its first steady step.
pub fn cost(repeats: &[(&Run, usize)]) -> Option<Cost> {
    let workers = repeats.first()?.0.case().workers;
    let examples: u64 = repeats.iter().map(|(run, _)| run.examples()).sum();
    let done = repeats.iter().map(|(run, _)| u64::from(workers).saturating_mul(run.steps_done()));
    let steps: u64 = done.fold(0, u64::saturating_add);
    let (unit, count) = if examples > 0 { (Unit::Example, examples) } else { (Unit::Step, steps) };
    let mut values: BTreeMap<Cause, f64> = BTreeMap::new();
    for &(run, from) in repeats {
        for (cause, seconds) in spent(run, from)? {
            *values.entry(cause).or_default() += seconds;
        }
    }
    let part = |cause: Cause| {
        let interval = interval(cause, unit, repeats);
        let seconds = values[&cause] / count as f64;
        Part { cause, seconds, lo: interval.map(|i| seconds - i.0), hi: interval.map(|i| seconds + i.1) }
    };
    let total: f64 = repeats.iter().filter_map(|(run, _)| run.span()).map(|span| span.seconds()).sum();
    let lives: Option<f64> = repeats.iter().map(|(run, _)| run.lives_s()).sum();
    (count > 0).then(|| Cost {
        workers,
        unit,
        seconds: lives.unwrap_or(f64::from(workers) * total) / count as f64,
        parts: Cause::all().map(part).into(),
    })
}

/// How many steps the records stand for.
fn count_steps(records: &[StepRecord]) -> u64 {
    records.iter().fold(0, |sum, record| sum.saturating_add(covers(record)))
}

/// Samples of a member's own; the time of those that it did for lost ones is recovery.
fn count_own(records: &[StepRecord]) -> u64 {
    records.iter().fold(0, |sum, record| sum.saturating_add(record.examples.saturating_sub(record.redone)))
}

/// A run's time by cause, summed over ranks.
fn spent(run: &Run, from: usize) -> Option<BTreeMap<Cause, f64>> {
    let mut values: BTreeMap<Cause, f64> = Cause::all().map(|cause| (cause, 0.0)).into();
    for rank in &run.ranks {
        let tiled = phases::tile_of(run, rank)?;
        let toll = recovery::toll(run, rank, &tiled);
        let from = match run.membership {
            Some(_) => rank.steps.len() - run.steps_from(rank, from).len(),
            None => from.min(rank.steps.len() - 1),
        };
        let (early, steady) = rank.steps.split_at(from);
        let off: PhaseTimes = rank.steps.iter().map(off_core::of_step).fold(PhaseTimes::default(), Add::add);
        let late_rank: f64 = rank.steps.iter().map(|step| step.late_rank.seconds()).sum();
        for cause in Cause::all() {
            let booked: f64 = cause.phases().iter().map(|phase| tiled[phase] - off[*phase].seconds()).sum();
            let whole = match cause {
                Cause::OffCore => off.total().seconds(),
                Cause::Communication => booked - late_rank,
                Cause::Stragglers => late_rank,
                // A window of a run begins when its first rank does; nothing is known about how the others started.
                Cause::StartUp if run.launcher.header.window => 0.0,
                Cause::Other if run.launcher.header.window => {
                    booked + Cause::StartUp.phases().iter().map(|phase| tiled[phase]).sum::<f64>()
                }
                Cause::StartUp => booked - toll.replacing,
                Cause::Tail => booked - toll.unfinished,
                Cause::Recovery => booked + toll.replacing + toll.unfinished,
                _ => booked,
            };
            let within = |steps: &[StepRecord]| steps.iter().map(|step| cause.within(step)).sum::<f64>();
            let surplus = match cause {
                Cause::Evaluation | Cause::Recovery | Cause::OffCore => 0.0,
                // A member that came late, or was gone before the steady state, has no steps to compare.
                _ if early.is_empty() || steady.is_empty() => 0.0,
                _ => {
                    let counts = match run.membership {
                        // The fewer members, the more each has to do in a step.
                        Some(_) => [early, steady].map(|steps| count_own(steps) as f64),
                        None => [early, steady].map(|steps| count_steps(steps) as f64),
                    };
                    if counts[1] > 0.0 { within(early) - counts[0] * within(steady) / counts[1] } else { 0.0 }
                }
            };
            *values.entry(cause).or_default() += whole - surplus;
            *values.entry(Cause::WarmUp).or_default() += surplus;
        }
    }
    Some(values)
}

/// How far the 95 % interval of a cause's part extends below and above it.
fn interval(cause: Cause, unit: Unit, repeats: &[(&Run, usize)]) -> Option<(f64, f64)> {
    if matches!(cause, Cause::StartUp | Cause::WarmUp | Cause::Evaluation | Cause::Recovery | Cause::Tail) {
        return None;
    }
    let steady_steps = |&(run, from): &(&Run, usize)| -> Vec<Work> {
        let step = |k: usize| {
            let counted = match unit {
                Unit::Example => run.step_examples(k) as f64,
                Unit::Step => run.records(k).map(|step| covers(step) as f64).sum(),
            };
            Work { amount: run.records(k).map(|step| cause.within(step)).sum(), seconds: counted }
        };
        // What was made up for the other steps says nothing about how much steps vary.
        let is_measured = |&k: &usize| run.records(k).all(|step| step.sampled);
        (from..run.steps()).filter(is_measured).map(step).collect()
    };
    let steps: Vec<Vec<Work>> = repeats.iter().map(steady_steps).collect();
    let slices: Vec<&[Work]> = steps.iter().map(Vec::as_slice).collect();
    let all: Vec<Work> = steps.concat();
    let mean = stats::rate(&all)?;
    let (lo, hi) = stats::bootstrap_rate(&slices, SEED)?;
    Some((mean - lo, hi - mean))
}

/// Compares the cost on N workers with that on one; `None` unless both are known per example.
pub fn waterfall(many: &Cost, one: &Cost) -> Option<Waterfall> {
    let alike = many.unit == Unit::Example && one.unit == Unit::Example;
    let has = |cost: &Cost, cause: Cause| cost.parts.iter().any(|part| part.cause == cause);
    // What one side cannot tell is in its `other`, and there the other side's belongs, too.
    let untold: f64 = one.parts.iter().filter(|part| !has(many, part.cause)).map(|part| part.seconds).sum();
    let difference = |many: &Part| {
        let none = Part { cause: many.cause, seconds: 0.0, lo: None, hi: None };
        let mut one = one.parts.iter().copied().find(|one| one.cause == many.cause).unwrap_or(none);
        if many.cause == Cause::Other {
            [Some(&mut one.seconds), one.lo.as_mut(), one.hi.as_mut()]
                .into_iter()
                .flatten()
                .for_each(|seconds| *seconds += untold);
        }
        let seconds = many.seconds - one.seconds;
        let reach = |a: Option<f64>, b: Option<f64>| Some((a? - many.seconds).hypot(b? - one.seconds));
        Part {
            cause: many.cause,
            seconds,
            lo: reach(many.lo, one.hi).map(|below| seconds - below),
            hi: reach(many.hi, one.lo).map(|above| seconds + above),
        }
    };
    alike.then(|| Waterfall {
        workers: many.workers,
        from_s: one.seconds,
        to_s: many.seconds,
        parts: many.parts.iter().map(difference).collect(),
    })
}
