//! What kind of scaling the cases of a PyTorch script are: nobody says it beforehand.

use paceline_record::Case;

use crate::CaseReport;

/// Whether a case is a PyTorch script's, which knows only of itself.
pub(super) fn is_pytorch(case: &Case) -> bool {
    case.engine.as_deref() == Some("pytorch")
}

/// Whether two cases are one curve. Threads of a PyTorch script follow from its number of workers, unless somebody sets them: then it
/// is a finding that they differ, and no other script.
pub(super) fn are_alike(one: &Case, other: &Case) -> bool {
    if is_pytorch(one) && is_pytorch(other) {
        return one.same_but_workers(&Case { threads: one.threads, ..other.clone() });
    }
    one.same_but_workers(other)
}

/// Finds scripts that divide a batch among their workers: with other workers, each has another batch, and all together the same.
pub(super) fn infer(cases: &mut [CaseReport]) {
    let whole = |case: &Case| case.batch_per_worker?.checked_mul(u64::from(case.workers));
    let is_open = |case: &Case| is_pytorch(case) && case.global_batch.is_none() && whole(case).is_some();
    let divided: Vec<Option<u64>> = cases
        .iter()
        .map(|CaseReport { case, .. }| {
            let divides = |other: &CaseReport| {
                let as_other = Case {
                    batch_per_worker: other.case.batch_per_worker,
                    scaling: other.case.scaling.clone(),
                    ..case.clone()
                };
                is_open(&other.case)
                    && other.case.workers != case.workers
                    && whole(&other.case) == whole(case)
                    && are_alike(&as_other, &other.case)
            };
            whole(case).filter(|_| is_open(case) && cases.iter().any(divides))
        })
        .collect();
    for (case, global) in cases.iter_mut().zip(divided).filter(|(_, global)| global.is_some()) {
        (case.case.global_batch, case.case.scaling) = (global, Some("strong".into()));
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{Plan, study};
    use crate::{CaseReport, Report};

    fn report(batches: [(u32, u64, u32); 2]) -> Report {
        let cases = batches.map(|(workers, batch, threads)| {
            let mut case = CaseReport::of(&[Plan::calm("net", workers).run()]);
            (case.case.engine, case.case.scaling) = (Some("pytorch".into()), None);
            (case.case.batch_per_worker, case.case.threads) = (Some(batch), Some(threads));
            case
        });
        let all: Vec<_> = cases.iter().map(|case| case.case.clone()).collect();
        Report::new(&study(&all), cases.into())
    }

    #[test]
    fn a_script_that_divides_its_batch_scales_strongly() {
        let divided = report([(1, 64, 1), (2, 32, 1)]);
        assert_eq!(divided.explained.len(), 1);
        let key = &divided.explained[0].key;
        assert_eq!((key.scaling.as_deref(), key.batch), (Some("strong"), Some(64)));
        let other = report([(1, 64, 1), (2, 48, 1)]);
        assert_eq!(other.explained.len(), 2, "neither is the same for both");
    }

    #[test]
    fn other_threads_make_no_other_script() {
        let report = report([(1, 64, 2), (2, 64, 1)]);
        assert_eq!((report.explained.len(), report.explained[0].key.threads), (1, None));
        assert_eq!(report.explained[0].key.label(), "net");
    }
}
