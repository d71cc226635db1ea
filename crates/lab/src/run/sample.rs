//! Steps whose phases were not measured, because only every so many were.
//!
//! What such a step took is known; what it spent that on is taken to be in proportion to the measured steps before and after
//! it. So the phases of a rank still sum to its time. Intervals come from measured steps alone, and the report says how many
//! those are.

use std::collections::BTreeSet;

use paceline_record::{Nanos, Phase, PhaseTimes, Scheduling, StepRecord};

/// Phases that are told whenever they come: training stands still meanwhile.
const ALWAYS: [Phase; 2] = [Phase::Eval, Phase::Checkpoint];

/// Fills the steps that were not measured in from those that were; does nothing if none was.
pub(super) fn fill(steps: &mut [StepRecord]) {
    let told: BTreeSet<Phase> = steps
        .iter()
        .filter(|step| !step.sampled)
        .flat_map(|step| step.phases.iter().map(|(phase, _)| phase))
        .chain(ALWAYS)
        .collect();
    let measured: Vec<usize> = (0..steps.len()).filter(|&at| steps[at].sampled).collect();
    let mut after = 0_usize;
    for at in 0..steps.len() {
        if steps[at].sampled {
            after += 1;
            continue;
        }
        let around = [after.checked_sub(1), Some(after)];
        let around = around.into_iter().flatten().filter_map(|place| measured.get(place));
        let model = Model::of(around.map(|&place| &steps[place]), &told);
        model.apply(&mut steps[at]);
    }
}

/// Whether anything is known of the phases of these steps.
pub(super) fn is_measured(steps: &[StepRecord]) -> bool {
    steps.is_empty() || steps.iter().any(|step| step.sampled)
}

/// What measured steps spent their time on.
#[derive(Default)]
struct Model {
    /// Time of the steps without the phases that are told anyway.
    whole: Nanos,
    phases: PhaseTimes,
    late_rank: Nanos,
    comm_busy: Nanos,
    overlapped: Option<Nanos>,
    starved: Option<Nanos>,
    off_core: Option<PhaseTimes>,
    queued: Option<Nanos>,
}

impl Model {
    fn of<'a>(steps: impl Iterator<Item = &'a StepRecord>, told: &BTreeSet<Phase>) -> Self {
        let mut model = Self::default();
        let add = |sum: &mut Option<Nanos>, more: Option<Nanos>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or_default() + more);
            }
        };
        for step in steps {
            let apart: Nanos = told.iter().map(|&phase| step.phases[phase]).sum();
            model.whole += step.end.since(step.begin).since(apart);
            for (phase, time) in step.phases.iter().filter(|(phase, _)| !told.contains(phase)) {
                model.phases[phase] += time;
            }
            model.late_rank += step.late_rank;
            model.comm_busy += step.comm_busy;
            add(&mut model.overlapped, step.overlapped);
            add(&mut model.starved, step.starved);
            let scheduling = step.scheduling.as_deref();
            add(&mut model.queued, scheduling.and_then(|told| told.queued));
            if let Some(off) = scheduling.and_then(|told| told.off_core) {
                model.off_core = Some(model.off_core.unwrap_or_default() + off);
            }
        }
        model
    }

    fn apply(&self, step: &mut StepRecord) {
        let rest = step.end.since(step.begin).since(step.phases.total());
        if self.whole.is_zero() {
            return;
        }
        let part = |time: Nanos| {
            let scaled = u128::from(time.0) * u128::from(rest.0) / u128::from(self.whole.0);
            Nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
        };
        let parts = |times: &PhaseTimes| {
            let mut scaled = PhaseTimes::default();
            times.iter().for_each(|(phase, time)| scaled[phase] = part(time));
            scaled
        };
        step.phases += parts(&self.phases);
        step.late_rank = part(self.late_rank).min(step.phases[Phase::CommWait]);
        step.comm_busy = part(self.comm_busy);
        step.overlapped = self.overlapped.map(part);
        step.starved = self.starved.map(part);
        if step.scheduling.is_none() && self.off_core.is_some() {
            let (off_core, queued) = (self.off_core.as_ref().map(parts), self.queued.map(part));
            step.scheduling = Some(Box::new(Scheduling { off_core, queued, ..Scheduling::default() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_record::Step;

    use super::*;

    /// A step of `length`, measured if it has phases.
    fn step(number: u64, length: u64, phases: &[(Phase, u64)], sampled: bool) -> StepRecord {
        let mut step = StepRecord::open(Step(number), Nanos(number * 1000));
        step.end = step.begin + Nanos(length);
        step.sampled = sampled;
        phases.iter().for_each(|&(phase, time)| step.book(phase, Nanos(time)));
        step
    }

    #[test]
    fn what_was_not_measured_is_in_proportion_to_the_steps_around_it_and_sums_to_its_time() {
        let measured = [(Phase::Forward, 30), (Phase::Backward, 60), (Phase::Checkpoint, 100)];
        let mut steps = [
            step(0, 200, &measured, true),
            step(1, 50, &[], false),
            step(2, 150, &[(Phase::Checkpoint, 50)], false),
            step(3, 100, &[(Phase::Forward, 50), (Phase::Backward, 50)], true),
        ];
        steps[3].late_rank = Nanos(0);
        fill(&mut steps);
        // Around them: 80 of forward, 110 of backward, in 200 without the checkpoint.
        assert_eq!(
            steps[1].phases.iter().collect::<Vec<_>>(),
            [(Phase::Forward, Nanos(20)), (Phase::Backward, Nanos(27)),]
        );
        assert_eq!(steps[2].phases[Phase::Forward], Nanos(40));
        assert_eq!(steps[2].phases[Phase::Checkpoint], Nanos(50), "it was told");
        assert!(!steps[1].sampled && steps[1].starved.is_none() && steps[1].scheduling.is_none());
    }

    #[test]
    fn where_nothing_was_measured_nothing_is_made_up() {
        let mut steps = [step(0, 200, &[], false), step(1, 50, &[], false)];
        fill(&mut steps);
        assert!(steps.iter().all(|step| step.phases.total().is_zero()) && !is_measured(&steps));
        assert!(is_measured(&[]));
    }
}
