//! Lower test accuracy with more workers.

use super::{Finding, Kind, Member, Program};
use crate::numbers::learning::{Learning, Test};

impl Member<'_> {
    /// One worker reaches a higher test accuracy, and the 95 % intervals do not overlap.
    pub(super) fn accuracy(&self) -> Option<Finding> {
        let (one, many) = (self.one?.learning.as_ref()?, self.case.learning.as_ref()?);
        let (before, after) = (one.test?, many.test?);
        if after.hi? >= before.lo? {
            return None;
        }
        let (few, batch) = (one.step_examples, many.step_examples);
        let steps = if batch == few {
            format!("; both have {batch} samples per step")
        } else {
            format!("; a step has {batch} samples instead of {few}")
        };
        let text = format!(
            "with {}, test accuracy is {}, compared with {} on one worker{steps}",
            self.worker_count(),
            with_interval(&after)?,
            with_interval(&before)?
        );
        Some(self.finding(Kind::Accuracy, text, self.accuracy_advice(one, many).into(), None))
    }

    fn accuracy_advice(&self, one: &Learning, many: &Learning) -> &'static str {
        let settings = &self.case.case.settings;
        let linear = settings.get("lr-rule").is_some_and(|rule| rule == "linear");
        let warm_up = ["warmup-epochs", "warmup-steps"].iter().any(|name| settings.contains_key(*name));
        let at = match (linear, warm_up) {
            _ if many.step_examples <= one.step_examples => 0,
            (false, _) => 1,
            (true, false) => 2,
            (true, true) => 3,
        };
        every_advice(self.program())[at]
    }
}

/// All that may be advised about the runs of a program whose cases with more workers learned from batches of the same size; from
/// larger ones, with the learning rate of one worker; with one that follows the batch; and with one that also begins low.
pub(super) fn every_advice(program: Program) -> [&'static str; 4] {
    if program.is_ours() {
        return [
            "each worker's batch norm sees a smaller part of the batch: the same --shards for all worker counts gives \
             the same weights",
            "a larger global batch means fewer updates: scale the learning rate with it and warm it up, --lr-rule linear \
             --warmup-epochs 5",
            "the scaled learning rate is too high for the first steps: warm it up, --warmup-epochs 5",
            "the linear rule does not hold for every batch size: try a smaller --batch, more --epochs, or a longer warm-up",
        ];
    }
    let larger = "a larger global batch means fewer updates: scale the learning rate with it and warm it up, or use a smaller batch";
    let same = "each worker's batch norm sees a smaller part of the batch: synchronise it over the workers";
    [same, larger, larger, larger]
}

pub(super) fn with_interval(test: &Test) -> Option<String> {
    let [accuracy, lo, hi] = [test.accuracy?, test.lo?, test.hi?].map(|fraction| 100.0 * fraction);
    Some(format!("{accuracy:.1} % (95 % interval {lo:.1} .. {hi:.1})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Plan, learning_plans, study};
    use crate::{CaseReport, Report};

    /// The report on the plans with these settings.
    fn report(plans: &[Plan], settings: &[(&str, &str)]) -> Report {
        let report = |plan: &Plan| {
            let mut run = plan.run();
            let held = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
            run.launcher.header.case.settings.extend(held);
            CaseReport::of(&[run])
        };
        let cases: Vec<CaseReport> = plans.iter().map(report).collect();
        let asked: Vec<_> = cases.iter().map(|case| case.case.clone()).collect();
        Report::new(&study(&asked), cases)
    }

    fn found(report: &Report) -> Vec<&Finding> {
        report.findings.iter().filter(|finding| finding.kind == Kind::Accuracy).collect()
    }

    #[test]
    fn a_certain_loss_of_accuracy_is_reported_once_with_the_rule_to_try() {
        let report = report(&learning_plans(), &[]);
        let [finding] = found(&report)[..] else { panic!("one finding") };
        assert_eq!(finding.case, 2, "not with two workers, whose interval overlaps that of one");
        assert_eq!(
            finding.text,
            "resnet50: with 4 workers, test accuracy is 58.0 % (95 % interval 57.0 .. 59.0), compared with 67.0 % (95 % interval \
             66.1 .. 67.9) on one worker; a step has 256 samples instead of 64"
        );
        assert!(finding.advice.contains("--lr-rule linear --warmup-epochs 5"), "{}", finding.advice);
        assert_eq!(finding.lost_s, None);
    }

    #[test]
    fn what_was_tried_already_is_not_advised_again() {
        let advice =
            |settings: &[(&str, &str)]| found(&report(&learning_plans(), settings))[0].advice.clone();
        let unwarmed = advice(&[("lr-rule", "linear")]);
        assert!(!unwarmed.contains("--lr-rule") && unwarmed.contains("--warmup-epochs 5"), "{unwarmed}");
        let both = advice(&[("lr-rule", "linear"), ("warmup-epochs", "5")]);
        assert!(!both.contains("--lr-rule") && !both.contains("--warmup-epochs") && both.contains("--batch"));
    }

    #[test]
    fn at_the_same_global_batch_shards_are_advised() {
        let mut report = report(&learning_plans(), &[]);
        for case in &mut report.cases {
            case.learning.as_mut().expect("tests").step_examples = 64;
        }
        let findings = super::super::find(&study(&[]), &report.cases, &report.explained);
        let finding = findings.iter().find(|finding| finding.kind == Kind::Accuracy).expect("it fell");
        assert!(
            finding.text.ends_with("both have 64 samples per step") && finding.advice.contains("--shards")
        );
    }

    #[test]
    fn accuracy_that_rose_or_was_never_tested_is_no_finding() {
        let [one, two, four] = learning_plans();
        let better = Plan { accuracy: Some(0.9), ..four.clone() };
        assert!(found(&report(&[one.clone(), two, better], &[])).is_empty());
        assert!(found(&report(&[one, Plan { accuracy: None, ..four }], &[])).is_empty());
    }
}
