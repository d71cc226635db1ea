//! The batch of a run whose files do not contain it: given by the user, or assumed in order to show rates.

use paceline_record::{Nanos, Phase};

use super::{Imported, ImportedRank};

/// The latest time that a step is stretched to, in nanoseconds.
const LATEST: f64 = 1e18;

/// The most examples of a step.
const MOST_EXAMPLES: f64 = 1e12;

/// Sets the batch per worker given by the user, if the files do not contain one: steps whose length was assumed get their
/// true length, steps without examples get them.
pub(super) fn tell(run: &mut Imported, batch: u64) {
    if run.case.batch_per_worker.is_some() {
        return;
    }
    if let Some(nominal) = run.nominal.take() {
        run.ranks.iter_mut().for_each(|rank| stretch(rank, batch as f64 / nominal));
    } else {
        let mut steps = run.ranks.iter().flat_map(|rank| &rank.steps);
        if steps.any(|step| step.examples > 0) {
            return;
        }
        for step in run.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
            step.examples = (batch as f64 * step.covers as f64).min(MOST_EXAMPLES) as u64;
        }
    }
    run.case.batch_per_worker = Some(batch);
}

/// A note for a run whose files say too little about its batch.
pub(super) fn note(run: &Imported) -> Option<String> {
    let steps = || run.ranks.iter().flat_map(|rank| &rank.steps);
    if let Some(nominal) = run.nominal {
        return Some(format!(
            "only rates are known, not the batch or matching times: a step stands for {nominal:.0} examples at its rate, \
             and its length is unknown; give it with --batch"
        ));
    }
    (steps().next().is_some() && steps().all(|step| step.examples == 0))
        .then(|| "the number of examples per step is unknown; give --batch to get rates".into())
}

/// Stretches all steps by a factor, and their examples with them.
pub(super) fn stretch(rank: &mut ImportedRank, factor: f64) {
    let scale = |moment: Nanos| Nanos((moment.0 as f64 * factor).round().min(LATEST) as u64);
    for step in &mut rank.steps {
        (step.begin, step.end) = (scale(step.begin), scale(step.end));
        step.examples = (step.examples as f64 * factor).round().min(MOST_EXAMPLES) as u64;
        // Phase times are real; a step that becomes shorter has less room for them.
        let mut left = step.end.since(step.begin);
        for phase in Phase::ALL {
            step.phases[phase] = step.phases[phase].min(left);
            left = left.since(step.phases[phase]);
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_record::{Step, StepRecord};

    use super::*;

    fn run(nominal: Option<f64>, examples: u64) -> Imported {
        let step = |number: u64| StepRecord {
            end: Nanos(number * 1_000_000_000),
            examples,
            covers: 10,
            ..StepRecord::open(Step(10 * number), Nanos((number - 1) * 1_000_000_000))
        };
        let rank = ImportedRank { steps: (1..4).map(step).collect(), ..ImportedRank::default() };
        Imported { ranks: vec![rank], nominal, ..Imported::default() }
    }

    #[test]
    fn a_batch_that_is_told_gives_made_up_steps_their_length() {
        let mut run = run(Some(10.0), 100);
        assert!(note(&run).expect("a note").contains("stands for 10 examples"));
        tell(&mut run, 64);
        assert_eq!((run.case.batch_per_worker, run.nominal, note(&run)), (Some(64), None, None));
        for (step, number) in run.ranks[0].steps.iter().zip(1..) {
            assert_eq!((step.examples, step.end), (640, Nanos(number * 6_400_000_000)), "the rate stays");
        }
    }

    #[test]
    fn a_batch_that_is_told_gives_steps_without_examples_theirs() {
        let mut run = run(None, 0);
        assert!(note(&run).expect("a note").contains("give --batch to get rates"));
        tell(&mut run, 64);
        let steps = &run.ranks[0].steps;
        assert!(steps.iter().all(|step| step.examples == 640), "each stands for ten steps");
        assert_eq!(steps[2].end, Nanos(3_000_000_000), "the clock is the log's");
        assert_eq!(note(&run), None);
    }

    #[test]
    fn what_files_tell_counts_more_than_what_is_told() {
        let mut known = run(None, 320);
        tell(&mut known, 64);
        assert_eq!((known.case.batch_per_worker, known.ranks[0].steps[0].examples), (None, 320));
        known.case.batch_per_worker = Some(32);
        tell(&mut known, 64);
        assert_eq!(known.case.batch_per_worker, Some(32));
    }
}
