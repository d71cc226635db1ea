//! Tests that do not follow training.
//!
//! In the first epoch no training sample has been seen before, so training and tests ask the same of a network: a test that is
//! much worse is not overfitting. Later it may be, unless the test is no better than guessing; and even then a network may only
//! remember its samples. A mean loss decides nothing here: a few samples can make it as large as they like.

use paceline_model::{Op, zoo};

use super::{Finding, Kind, Member};
use crate::numbers::learning::{Learning, Test};
use crate::stats::proportion;

/// A test is behind if its accuracy is below this fraction of training's, and the intervals do not overlap.
const BEHIND: f64 = 0.8;

/// Running statistics with this momentum follow the weights within some ten steps.
const QUICK: f64 = 0.9;

/// What the data leave open.
enum Reason {
    /// No sample had been seen twice.
    NotOverfitting,
    /// The test is no better than guessing.
    Unclear { classes: u64 },
}

impl Member<'_> {
    /// The network is right much more often in training than in a test of the same time, and overfitting is not all there is
    /// to it.
    pub(super) fn test_behind(&self) -> Option<Finding> {
        let learning = self.case.learning.as_ref()?;
        let fresh = learning.curve.iter().rfind(|test| self.is_fresh(learning, test));
        let fresh = fresh.filter(|test| is_behind(test)).map(|test| (test, Reason::NotOverfitting));
        let (test, reason) = fresh.or_else(|| {
            let (last, classes) = (learning.curve.last()?, self.case.case.classes?);
            let guesses = last.lo? <= 1.0 / classes as f64;
            (guesses && is_behind(last)).then_some((last, Reason::Unclear { classes }))
        })?;
        let train = 100.0 * test.train?.accuracy?;
        let has_norm = self.program().is_ours() && self.has_batch_norm();
        let ways = "tests use batch norm's running statistics, training those of each batch";
        let (text, advice) = match reason {
            Reason::NotOverfitting => {
                let text = format!(
                    "with {}, the test after {} steps was right for {}, and training at that time for {train:.1} % of samples \
                     that it had not seen before: this is not overfitting",
                    self.worker_count(),
                    test.steps,
                    super::accuracy::with_interval(test)?
                );
                if has_norm {
                    (format!("{text}; {ways}"), self.quicker_statistics())
                } else {
                    (text, "compare how training and test samples are chosen and prepared".to_owned())
                }
            }
            Reason::Unclear { classes } => {
                let causes = if has_norm {
                    "its running statistics of batch norm may not fit its weights, or it may only remember its training samples"
                } else {
                    "it may only remember its training samples, or test samples may be of another kind"
                };
                let text = format!(
                    "with {}, the last test was right for {}, no better than guessing one of {classes} classes, and training at \
                     that time for {train:.1} %: {causes}",
                    self.worker_count(),
                    super::accuracy::with_interval(test)?
                );
                let advice = match (has_norm, self.program().is_ours()) {
                    (true, _) => format!(
                        "{}; a test in the first epoch tells one from the other (--eval-every 0.5)",
                        self.quicker_statistics()
                    ),
                    (false, true) => {
                        "test in the first epoch (--eval-every 0.5): what is wrong there is not overfitting"
                            .into()
                    }
                    (false, false) => {
                        "test in the first epoch: what is wrong there is not overfitting".into()
                    }
                };
                (text, advice)
            }
        };
        Some(self.finding(Kind::TestBehind, text, advice, None))
    }

    /// Whether a test came before any sample was used twice, but for those of its last step.
    fn is_fresh(&self, learning: &Learning, test: &Test) -> bool {
        let (Some(epoch), Some(samples)) = (test.epoch, self.case.case.epoch_examples) else { return false };
        epoch * (samples as f64) < (samples + learning.step_examples) as f64
    }

    /// Whether the network is one of ours that has batch norm.
    fn has_batch_norm(&self) -> bool {
        let case = &self.case.case;
        let input = case.input.as_deref().and_then(|input| {
            let (height, width) = input.split_once('x')?;
            Some((height.parse().ok()?, width.parse().ok()?))
        });
        let graph = zoo::build(&case.model, input, case.classes.unwrap_or(10) as usize);
        graph.is_ok_and(|graph| graph.nodes.iter().any(|node| matches!(node.op, Op::BatchNorm(_))))
    }

    fn quicker_statistics(&self) -> String {
        let momentum =
            self.case.case.settings.get("bn-momentum").and_then(|momentum| momentum.parse::<f64>().ok());
        match momentum {
            Some(momentum) if momentum <= QUICK => {
                "try a lower --bn-momentum (trained weights stay the same), and check that test and training pictures are alike"
                    .into()
            }
            _ => format!(
                "try --bn-momentum {QUICK}: running statistics follow more quickly, and trained weights stay the same; if it does \
                 not help, test and training pictures are not alike"
            ),
        }
    }
}

/// Whether a network was right much more often in training than in a test at the same time, with certainty.
fn is_behind(test: &Test) -> bool {
    let behind = || {
        let train = test.train?;
        let (lo, _) = proportion::wilson(train.accuracy?, train.examples as f64)?;
        Some(test.hi? < lo && test.accuracy? < BEHIND * train.accuracy?)
    };
    behind().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{MS, Plan, study};
    use crate::{CaseReport, Report};
    use paceline_record::{EvalRecord, Nanos};

    /// A training of 100 steps of 128 samples, 50 in an epoch, of which training gets `train` right, with tests after so many
    /// steps.
    fn findings(
        model: &'static str,
        train: f64,
        tests: &[(u64, f64)],
        settings: &[(&str, &str)],
    ) -> Vec<Finding> {
        let plan = Plan { steps: 100, epoch: Some(6400), accuracy: Some(train), ..Plan::calm(model, 2) };
        let mut run = plan.run();
        for step in run.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
            step.correct = Some((64.0 * train).round() as u64);
        }
        let test = |&(steps, accuracy): &(u64, f64)| EvalRecord {
            at: Nanos(steps * 100 * MS),
            steps,
            examples: 10_000,
            loss: Some(2.0),
            correct: Some((10_000.0 * accuracy) as u64),
        };
        run.ranks[0].evaluations = tests.iter().map(test).collect();
        let held = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        run.launcher.header.case.settings.extend(held);
        let case = CaseReport::of(&[run]);
        let report = Report::new(&study(std::slice::from_ref(&case.case)), vec![case]);
        report.findings.into_iter().filter(|finding| finding.kind == Kind::TestBehind).collect()
    }

    #[test]
    fn a_test_far_behind_training_in_the_first_epoch_is_no_overfitting() {
        let found = findings("mobilenet_v2", 0.25, &[(50, 0.12), (100, 0.24)], &[("bn-momentum", "0.999")]);
        let [finding] = &found[..] else { panic!("one finding, not {found:?}") };
        assert_eq!(
            finding.text,
            "mobilenet_v2: with 2 workers, the test after 50 steps was right for 12.0 % (95 % interval 11.4 .. 12.7), and training at \
             that time for 25.0 % of samples that it had not seen before: this is not overfitting; tests use batch norm's running \
             statistics, training those of each batch"
        );
        assert!(finding.advice.starts_with("try --bn-momentum 0.9: "), "{}", finding.advice);
        assert_eq!(finding.lost_s, None);
    }

    #[test]
    fn what_was_tried_is_not_advised_and_what_has_no_batch_norm_is_not_told_of_it() {
        let found = findings("mobilenet_v2", 0.25, &[(50, 0.12)], &[("bn-momentum", "0.9")]);
        assert!(found[0].advice.starts_with("try a lower --bn-momentum"), "{}", found[0].advice);
        for model in ["vgg_19", "somebody's own"] {
            let found = findings(model, 0.25, &[(50, 0.12)], &[]);
            assert!(found[0].text.ends_with("this is not overfitting"), "{}", found[0].text);
            assert!(!found[0].advice.contains("--bn-momentum"), "{}", found[0].advice);
        }
    }

    #[test]
    fn ordinary_overfitting_is_no_finding_but_a_test_at_the_level_of_guessing_is_with_both_causes() {
        let late =
            |accuracy: f64| findings("mobilenet_v2", 0.9, &[(100, accuracy)], &[("bn-momentum", "0.99")]);
        assert!(late(0.6).is_empty() && late(0.12).is_empty(), "better than guessing");
        let found = late(0.1);
        let [finding] = &found[..] else { panic!("one finding") };
        assert!(finding.text.contains("no better than guessing one of 10 classes"), "{}", finding.text);
        assert!(
            finding.text.contains("may not fit its weights, or it may only remember"),
            "{}",
            finding.text
        );
        assert!(finding.advice.contains("--eval-every 0.5"), "{}", finding.advice);
    }

    #[test]
    fn a_test_that_follows_training_or_may_by_chance_is_no_finding() {
        for (train, test) in [(0.25, 0.27), (0.25, 0.22), (0.12, 0.11), (0.1, 0.1)] {
            assert!(
                findings("mobilenet_v2", train, &[(50, test), (100, test)], &[]).is_empty(),
                "{train} and {test}"
            );
        }
        // Two steps are too few to know how training goes.
        assert!(findings("mobilenet_v2", 0.2, &[(2, 0.16)], &[]).is_empty());
        assert!(!findings("mobilenet_v2", 0.2, &[(50, 0.16)], &[]).is_empty());
    }
}
