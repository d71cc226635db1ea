//! The steps that a trace marks: which are whole, and when their work was done.
//!
//! The host marks steps, and may run far ahead of a device. So a step begins when the computation that was launched
//! before its mark has ended, and it ends when the computation that was launched before the end of its mark has. The
//! last one ends with all of its work. Work whose launch is unknown moves no limit.

use std::collections::HashSet;
use std::ops::Range;

use paceline_record::Nanos;

use super::idle::Host;
use super::profile;
use super::split::Sight;
use crate::trace::{Kind, Slice, StepRange, Trace};

/// A step at either end with less than this part of the work of any other is not whole.
const WHOLE: f64 = 0.1;

/// The whole steps of a trace, and what was left out, one sentence each.
pub(super) fn find(trace: &Trace, sight: Sight, host: &Host) -> (Vec<StepRange>, Vec<String>) {
    let mut steps = set_apart(&trace.steps);
    let mut limits: Vec<Nanos> = steps.iter().flat_map(|step| [step.begin, step.end]).collect();
    // The last end of computation and of any work that was launched between a limit and the one before.
    let mut ends = vec![[Nanos(0); 2]; limits.len()];
    let mut amounts = vec![0_u64; steps.len()];
    for slice in trace.slices.iter().filter(|slice| sight.counts(trace, slice)) {
        let call = host.launch(slice).filter(|_| !trace.steps_on_device);
        let next = limits.partition_point(|limit| *limit <= call.map_or(slice.begin, |call| call.begin));
        let Some([computed, worked]) = ends.get_mut(next) else { continue };
        amounts[next / 2] += u64::from(next % 2 == 1);
        if call.is_some() {
            *worked = slice.end.max(*worked);
            if slice.kind == Kind::Compute {
                *computed = slice.end.max(*computed);
            }
        }
    }
    let whole = find_whole(&amounts);
    let mut until = [Nanos(0); 2];
    for (at, limit) in limits.iter_mut().enumerate() {
        until = [until[0].max(ends[at][0]), until[1].max(ends[at][1])];
        *limit = until[usize::from(at + 1 == 2 * whole.end)].max(*limit);
    }
    for (step, limits) in steps.iter_mut().zip(limits.chunks_exact(2)) {
        (step.begin, step.end) = (limits[0], limits[1]);
    }
    let mut notes = Vec::new();
    for at in (0..steps.len()).filter(|at| !whole.contains(at)) {
        let least = whole.clone().map(|at| amounts[at]).min().unwrap_or_default();
        notes.push(format!(
            "step {} was left out: it is not whole, with {} pieces of work where the others have {least} or more",
            steps[at].number, amounts[at]
        ));
    }
    steps = steps.drain(whole).filter(|step| step.begin < step.end).collect();
    notes.extend(count_outside(trace, sight, &steps));
    (steps, notes)
}

/// The steps without those at the ends that have hardly any work.
fn find_whole(amounts: &[u64]) -> Range<usize> {
    let mut whole = 0..amounts.len();
    let is_part = |amount: u64, others: &[u64]| {
        others.iter().min().is_some_and(|least| (amount as f64) < WHOLE * *least as f64)
    };
    if let [others @ .., last] = amounts
        && is_part(*last, others)
    {
        whole.end -= 1;
    }
    if let [first, others @ ..] = &amounts[whole.clone()]
        && is_part(*first, others)
    {
        whole.start += 1;
    }
    whole
}

/// The step at a moment.
pub(super) fn find_at(steps: &[StepRange], moment: Nanos) -> Option<&StepRange> {
    let next = steps.partition_point(|step| step.end <= moment);
    steps.get(next).filter(|step| step.begin <= moment)
}

/// A sentence on the collectives that are in no step.
fn count_outside(trace: &Trace, sight: Sight, steps: &[StepRange]) -> Option<String> {
    let slices = trace.collectives.iter().map(|collective| &trace.slices[collective.slice]);
    let outside = slices.filter(|slice| sight.counts(trace, slice) && find_at(steps, slice.begin).is_none());
    let lengths: Vec<Nanos> = outside.map(Slice::length).collect();
    let (count, all) = (lengths.len(), profile::time(lengths.into_iter().sum()));
    let (collectives, are) = if count == 1 { ("collective", "is") } else { ("collectives", "are") };
    (count > 0 && !steps.is_empty())
        .then(|| format!("{count} {collectives} outside the marked steps, {all} in all, {are} not counted"))
}

/// Consecutive steps, each number once; overlaps with earlier ones are cut off.
fn set_apart(marked: &[StepRange]) -> Vec<StepRange> {
    let mut steps: Vec<StepRange> = Vec::with_capacity(marked.len());
    let mut seen = HashSet::new();
    for step in marked {
        let begin = steps.last().map_or(step.begin, |last| last.end.max(step.begin));
        if begin < step.end && seen.insert(step.number) {
            steps.push(StepRange { begin, ..*step });
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Tiling;
    use crate::split::tests::Draft;

    /// Two marked steps with a pause between them; the device does each step's work later, and a copy later still.
    fn paused() -> Draft {
        let mut draft = Draft::default();
        let (host, main, side) = (draft.thread(), draft.stream(), draft.stream());
        for (number, begin) in [(1, 100), (2, 300)] {
            draft.step(number, (begin, begin + 50));
            draft.launched((host, main), Kind::Compute, (begin, begin + 10), (begin + 20, begin + 90));
            draft.launched((host, side), Kind::CopyOut, (begin + 10, begin + 20), (begin + 90, begin + 95));
        }
        draft.slice(main, Kind::Compute, "launched by nobody", (400, 420));
        draft
    }

    fn found(draft: Draft) -> Vec<(u64, u64, u64)> {
        let steps = Tiling::of(&draft.trace()).steps;
        steps.iter().map(|step| (step.number, step.begin.0, step.end.0)).collect()
    }

    #[test]
    fn a_step_lasts_until_its_computation_is_done_and_the_last_until_all_its_work_is() {
        assert_eq!(found(paused()), [(1, 100, 190), (2, 300, 395)]);
        let mut on_device = paused();
        on_device.0.steps_on_device = true;
        assert_eq!(found(on_device), [(1, 100, 150), (2, 300, 350)], "these are already where the work is");
    }

    #[test]
    fn only_steps_at_the_ends_with_hardly_any_work_are_left_out() {
        assert_eq!(find_whole(&[]), 0..0);
        assert_eq!(find_whole(&[3]), 0..1);
        assert_eq!(find_whole(&[900, 100, 100, 4]), 0..3);
        assert_eq!(find_whole(&[4, 100, 4, 100, 0]), 0..4, "one in the middle is as small");
        assert_eq!(find_whole(&[1, 100, 100]), 1..3);
        assert_eq!(find_whole(&[3000, 300, 300]), 0..3, "a first step may have more");
        assert_eq!(find_whole(&[0, 0]), 0..2);
    }

    #[test]
    fn steps_that_overlap_or_come_twice_are_set_apart() {
        let step = |number, begin, end| StepRange { number, begin: Nanos(begin), end: Nanos(end) };
        let marked = [
            step(1, 0, 10),
            step(1, 1, 9),
            step(2, 8, 20),
            step(2, 21, 22),
            step(3, 30, 30),
            step(4, 40, 41),
        ];
        assert_eq!(set_apart(&marked), [step(1, 0, 10), step(2, 10, 20), step(4, 40, 41)]);
    }
}
