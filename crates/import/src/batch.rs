//! The batch of a run whose files do not contain it.

use super::Imported;

/// The most examples of a step.
const MOST_EXAMPLES: f64 = 1e12;

/// Sets the batch per worker given by the user, if the files do not contain one: rates get times, and times get rates.
pub(super) fn tell(run: &mut Imported, batch: u64) {
    if run.case.batch_per_worker.is_some() {
        return;
    }
    if let Some(progress) = &mut run.progress {
        if progress.is_timed() && progress.has_rates() {
            return;
        }
        let all = batch as f64 * f64::from(run.case.workers);
        progress.points.iter_mut().for_each(|point| *point = point.with_batch(all));
    } else {
        let steps = || run.ranks.iter().flat_map(|rank| &rank.steps);
        if steps().any(|step| step.examples > 0) {
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
    let without_examples = run.ranks.iter().flat_map(|rank| &rank.steps).all(|step| step.examples == 0);
    match &run.progress {
        Some(progress) if !progress.is_timed() => {
            Some("only rates are known, no times; give --batch to get them".into())
        }
        Some(progress) if progress.has_rates() => None,
        None if !without_examples => None,
        _ => Some("the number of examples per step is unknown; give --batch to get rates".into()),
    }
}
