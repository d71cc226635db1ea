//! Loss, accuracy and learning rate over the steps of a training: neighbouring steps are merged until at most [`MOST`] points are
//! left.

use serde::Serialize;

use super::learning::{self, Test};
use super::series::MOST;
use crate::Run;

/// How a training went, before the updates of its steps. Point i stands for `every` steps, starting at `first_step + every * i`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Course {
    /// The first step; that after the checkpoint where a training was resumed.
    pub first_step: u64,
    /// Steps per point.
    pub every: u64,
    /// Steps in all.
    pub steps: u64,
    /// Mean loss, weighted by samples; `None` where one is not a number.
    pub loss: Vec<Option<f64>>,
    /// Share of the samples that was guessed right; `None` without classes.
    pub accuracy: Vec<Option<f64>>,
    /// Learning rate of the last step.
    pub learning_rate: Vec<Option<f64>>,
    /// Tests on the way, for plots; `learning.curve` has those of finished cases.
    #[serde(skip)]
    pub tests: Vec<Test>,
}

/// The course of a run, however it ended; `None` if it did no step, or is no training: it counts no epochs and was never tested.
pub fn course(run: &Run) -> Option<Course> {
    let tests = learning::test_curve(run);
    if run.case().epoch_examples.is_none_or(|examples| examples == 0) && tests.is_empty() {
        return None;
    }
    let first_step = run.number(0)?.0;
    let steps = run.steps();
    let every = steps.div_ceil(MOST).max(1);
    let scores = (0..steps).step_by(every).map(|from| from..(from + every).min(steps));
    let scores: Vec<_> =
        scores.map(|part| (learning::score_steps(run, part.clone()), rate(run, part.end - 1))).collect();
    Some(Course {
        first_step,
        every: every as u64,
        steps: steps as u64,
        loss: scores.iter().map(|(score, _)| score.and_then(|score| score.loss)).collect(),
        accuracy: scores.iter().map(|(score, _)| score.and_then(|score| score.accuracy)).collect(),
        learning_rate: scores.iter().map(|(_, rate)| *rate).collect(),
        tests,
    })
}

/// The learning rate of a step, with the digits that it was logged with.
fn rate(run: &Run, k: usize) -> Option<f64> {
    run.records(k).find_map(|step| step.learning_rate)?.to_string().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, Plan};

    #[test]
    fn a_training_is_followed_step_by_step_however_it_ended() {
        let [_, mut plan, _] = fixture::learning_plans();
        plan = Plan { steps: 1001, ..plan };
        let mut run = plan.run();
        run.launcher.over = None;
        for (k, step) in run.ranks.iter_mut().flat_map(|rank| rank.steps.iter_mut().enumerate()) {
            step.learning_rate = Some(0.1 / (1 + k) as f32);
            step.loss = Some(k as f32);
        }
        let course = course(&run).expect("a training");
        assert_eq!((course.first_step, course.every, course.steps), (0, 3, 1001));
        assert_eq!(course.loss.len(), 334);
        assert_eq!(course.loss[..2], [Some(1.0), Some(4.0)], "means of three steps");
        assert_eq!(course.learning_rate[0], Some(0.033333335), "of the last of them, with its digits");
        assert_eq!(course.loss[333], Some(999.5), "the rest of two steps");
        assert!(course.accuracy.iter().all(Option::is_some) && !course.tests.is_empty());
    }

    #[test]
    fn a_benchmark_has_no_course() {
        assert_eq!(course(&Plan::calm("resnet50", 2).run()), None);
    }
}
