//! Which cases of a study are one training: a run, and those that went on from its checkpoints.

use crate::Report;

/// The setting of a case that says at which step it was resumed.
pub const RESUMED: &str = "resumed-at";

/// A stretch of a training: the steps that a case did, up to where a later one took over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Index of the case in the report.
    pub case: usize,
    /// Its steps from here on count.
    pub from: u64,
    /// Steps from here on were done again, or by the next; `None` for the last.
    pub to: Option<u64>,
}

/// The trainings of a study, each with its stretches in order. A case continues the latest one before it that had reached the
/// step where it was resumed; if none had, it stands for itself.
pub fn trainings(report: &Report) -> Vec<Vec<Stretch>> {
    let mut trainings: Vec<Vec<Stretch>> = Vec::new();
    for (place, case) in report.cases.iter().enumerate() {
        let Some(course) = &case.course else { continue };
        let stretch = Stretch { case: place, from: course.first_step, to: None };
        let resumed = case.case.settings.get(RESUMED).and_then(|step| step.parse::<u64>().ok());
        let reaches = |training: &&mut Vec<Stretch>| {
            let Some(at) = resumed else { return false };
            let last = training.last().map(|last| &report.cases[last.case]);
            last.is_some_and(|last| {
                let end = last.course.as_ref().map_or(0, |course| course.first_step + course.steps);
                last.case.model == case.case.model && end >= at
            })
        };
        match trainings.iter_mut().rev().find(reaches) {
            Some(training) => {
                let begin = stretch.from;
                training.retain(|before| before.from < begin);
                training
                    .iter_mut()
                    .for_each(|before| before.to = Some(before.to.unwrap_or(begin).min(begin)));
                training.push(stretch);
            }
            None => trainings.push(vec![stretch]),
        }
    }
    trainings
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::CaseReport;
    use crate::fixture::{learning_plans, report_on, study};

    /// A study of runs that begin at these steps, each of 10 steps.
    pub(crate) fn resumed(begins: &[u64]) -> Report {
        let [plan, ..] = learning_plans();
        let run = |&begin: &u64| {
            let mut run = plan.run();
            for (k, step) in run.ranks.iter_mut().flat_map(|rank| rank.steps.iter_mut().take(10).enumerate())
            {
                step.step = paceline_record::Step(begin + k as u64);
            }
            run.ranks.iter_mut().for_each(|rank| rank.steps.truncate(10));
            if begin > 0 {
                run.launcher.header.case.settings.insert(RESUMED.into(), begin.to_string());
            }
            CaseReport::of(&[run])
        };
        let cases: Vec<CaseReport> = begins.iter().map(run).collect();
        let asked: Vec<_> = cases.iter().map(|case| case.case.clone()).collect();
        Report::new(&study(&asked), cases)
    }

    #[test]
    fn a_resumed_run_goes_on_with_the_training_before_it() {
        let stretch = |case, from, to| Stretch { case, from, to };
        assert_eq!(trainings(&resumed(&[0, 8])), [[stretch(0, 0, Some(8)), stretch(1, 8, None)]]);
        let twice = trainings(&resumed(&[0, 8, 5]));
        assert_eq!(twice, [[stretch(0, 0, Some(5)), stretch(2, 5, None)]], "what was done again counts once");
        let lost = trainings(&resumed(&[0, 30]));
        assert_eq!(lost.len(), 2, "nobody had reached step 30");
    }

    #[test]
    fn cases_of_a_study_are_trainings_of_their_own() {
        assert_eq!(trainings(&report_on(&learning_plans())).len(), 3);
        assert!(trainings(&crate::fixture::report()).is_empty(), "benchmarks train nothing");
    }
}
