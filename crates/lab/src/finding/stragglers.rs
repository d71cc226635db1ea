//! Ranks that the others wait for.

use paceline_record::Phase;

use super::{FEW_STEPS, Finding, Kind, Loss, Member, NOTABLE};
use crate::numbers::waterfall::Cause;
use crate::{Straggler, stats};

/// One rank is blamed if it causes at least this fraction of all waiting for late ranks.
const TO_BLAME: f64 = 0.5;

/// A rank has more to do than the others from so much of their work on.
const MORE_WORK: f64 = 1.1;

/// Phases in which a rank can be late without computing more slowly.
const AROUND: [Phase; 5] = [Phase::Load, Phase::CopyIn, Phase::CopyOut, Phase::Update, Phase::Other];

/// The same for two ranks, where one of them is always the late one.
const TO_BLAME_OF_TWO: f64 = 0.8;

impl Member<'_> {
    pub(super) fn stragglers(&self) -> Option<Finding> {
        let loss = self.loss_from(NOTABLE, Cause::Stragglers)?;
        let least = if self.case.case.workers > 2 { TO_BLAME } else { TO_BLAME_OF_TWO };
        let (text, advice) = match self.case.straggler {
            // Few steps cannot decide whether a rank is late repeatedly.
            Some(late) if late.fraction >= least => {
                match late.steps_fraction >= least || self.case.steps < FEW_STEPS {
                    true => self.blame(&late, loss),
                    false => self.now_and_then(&late, loss),
                }
            }
            late => {
                let most = late.map_or_else(String::new, |late| {
                    format!(" ({}: {:.0} % of the waiting)", self.case.name(late.who), 100.0 * late.fraction)
                });
                let spends = self.spends("waiting for each other", loss);
                (format!("{spends}; no single rank is to blame{most}"), self.program().turns().into())
            }
        };
        Some(self.finding(Kind::Stragglers, text, advice, Some(loss)))
    }

    /// A rank that is late in most steps.
    fn blame(&self, late: &Straggler, loss: Loss) -> (String, String) {
        let blame = self.waits_for(late, loss);
        match self.kept_off(late, loss) {
            Some(seconds) => (
                format!("{blame}, which was kept off its core for {seconds:.1} s more than the others"),
                self.program().kept_off(&self.case.name(late.who)),
            ),
            None => match late.work_ratio.filter(|&ratio| ratio >= MORE_WORK) {
                Some(ratio) => {
                    let more = 100.0 * (ratio - 1.0);
                    let text = format!(
                        "{blame}, which has {more:.0} % more examples a step than the others on average"
                    );
                    (text, self.program().uneven().into())
                }
                None => match self.longer_in(late, loss) {
                    Some((phase, seconds)) => {
                        let place = match phase {
                            Phase::Other => "between its phases".to_owned(),
                            _ => format!("in {phase}"),
                        };
                        (
                            format!("{blame}, which spends {seconds:.2} s more than the others {place}"),
                            self.program().longer(&self.case.name(late.who), phase),
                        )
                    }
                    None => (blame, self.program().late(&self.case.name(late.who))),
                },
            },
        }
    }

    /// The phase other than computation in which a late rank spends so much more time than the others that it explains at least half
    /// of their waiting, and how much more.
    fn longer_in(&self, late: &Straggler, waited: Loss) -> Option<(Phase, f64)> {
        let ranks = self.case.ranks.as_ref()?;
        let own = ranks.iter().find(|rank| rank.who == late.who)?;
        let others: Vec<_> = ranks.iter().filter(|rank| rank.who != late.who).collect();
        let more = |phase: Phase| {
            let theirs: Option<Vec<f64>> =
                others.iter().map(|rank| rank.phases_s.get(&phase).copied()).collect();
            Some((phase, own.phases_s.get(&phase)? - stats::median(&theirs?)?))
        };
        let most = AROUND.into_iter().filter_map(more).max_by(|a, b| a.1.total_cmp(&b.1))?;
        // All others wait as long as it is late.
        let delay = late.fraction * waited.seconds / others.len() as f64;
        (most.1 >= 0.5 * delay).then_some(most)
    }

    /// A rank that was late in some steps only, and cost most: it need not be slower than the others.
    fn now_and_then(&self, late: &Straggler, loss: Loss) -> (String, String) {
        let steps = 100.0 * late.steps_fraction;
        let text =
            format!("{}, which was the latest in only {steps:.0} % of the steps", self.waits_for(late, loss));
        (text, self.program().now_and_then().into())
    }

    fn waits_for(&self, late: &Straggler, loss: Loss) -> String {
        let spends = self.spends("waiting for late ranks", loss);
        format!("{spends}, {:.0} % of it for {}", 100.0 * late.fraction, self.case.name(late.who))
    }
}

#[cfg(test)]
mod tests {
    use paceline_record::Phase;

    use crate::fixture::{Plan, study};
    use crate::{CaseReport, Finding, Kind, Report};

    /// What is found where two workers wait, with this part of the waiting and of the steps for rank 1.
    fn found(engine: &str, fraction: f64, steps_fraction: f64) -> Finding {
        let mut case = CaseReport::of(&[Plan { late: 20.0, ..Plan::calm("resnet50", 2) }.run()]);
        case.case.engine = Some(engine.into());
        let late = case.straggler.as_mut().expect("two ranks");
        (late.fraction, late.steps_fraction) = (fraction, steps_fraction);
        let report = Report::new(&study(std::slice::from_ref(&case.case)), vec![case]);
        let mut findings = report.findings.into_iter();
        findings.find(|finding| finding.kind == Kind::Stragglers).expect("ranks wait")
    }

    #[test]
    fn the_rank_that_cost_most_is_named_even_if_it_is_not_to_blame() {
        let text = found("cpu", 0.76, 0.76).text;
        assert!(text.ends_with("no single rank is to blame (rank 1: 76 % of the waiting)"), "{text}");
    }

    #[test]
    fn a_rank_with_more_examples_is_not_called_slow() {
        let mut case = CaseReport::of(&[Plan { late: 20.0, ..Plan::calm("resnet50", 2) }.run()]);
        let late = case.straggler.as_mut().expect("two ranks");
        assert_eq!(late.work_ratio, Some(1.0));
        late.work_ratio = Some(2.0);
        let report = Report::new(&study(std::slice::from_ref(&case.case)), vec![case]);
        let mut findings = report.findings.into_iter();
        let found = findings.find(|finding| finding.kind == Kind::Stragglers).expect("ranks wait");
        assert!(
            found.text.ends_with("rank 1, which has 100 % more examples a step than the others on average"),
            "{found:?}"
        );
        assert!(found.advice.contains("--shards") && !found.advice.contains("is slower"), "{found:?}");
    }

    #[test]
    fn a_rank_that_does_something_else_before_it_arrives_is_not_called_slow() {
        let mut case = CaseReport::of(&[Plan { late: 20.0, ..Plan::calm("resnet50", 2) }.run()]);
        let late = &mut case.ranks.as_mut().expect("ranks")[1].phases_s;
        let more = late[&Phase::Forward];
        late.insert(Phase::Forward, 0.0);
        *late.entry(Phase::Load).or_default() += more;
        let report = Report::new(&study(std::slice::from_ref(&case.case)), vec![case]);
        let mut findings = report.findings.into_iter();
        let found = findings.find(|finding| finding.kind == Kind::Stragglers).expect("ranks wait");
        assert!(found.text.ends_with("s more than the others in load"), "{found:?}");
        assert!(!found.advice.contains("is slower"), "{found:?}");
    }

    #[test]
    fn a_rank_that_cost_most_in_few_steps_is_neither_slower_nor_like_the_others() {
        let Finding { text, advice, .. } = found("cpu", 0.86, 0.1);
        let most =
            "waiting for late ranks, 86 % of it for rank 1, which was the latest in only 10 % of the steps";
        assert!(text.ends_with(most), "{text}");
        assert!(!advice.contains("in turn") && !advice.contains("is slower"), "{advice}");
    }

    #[test]
    fn nobody_is_sent_to_look_at_the_cores_of_a_simulated_machine() {
        assert!(found("cpu", 0.9, 0.9).advice.contains("check its cores"));
        for steps in [0.1, 0.9] {
            let advice = found("simulated", 0.9, steps).advice;
            assert!(advice.contains("--simulate") && !advice.contains("check"), "{advice}");
        }
    }
}
