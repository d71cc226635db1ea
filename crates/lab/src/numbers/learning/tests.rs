use paceline_record::{Nanos, Step};

use super::*;
use crate::CaseReport;
use crate::fixture::{Plan, learning_plans};

fn learned(plan: &Plan) -> Learning {
    learning(&[&plan.run()]).expect("epochs and tests")
}

fn near(got: Option<f64>, expected: f64) -> bool {
    got.is_some_and(|got| (got - expected).abs() < 1e-9)
}

#[test]
fn epochs_their_time_and_the_last_test_are_those_of_the_log() {
    for plan in learning_plans() {
        let report = CaseReport::of(&[plan.run()]);
        let learned = report.learning.expect("epochs and tests");
        assert_eq!(learned.epochs, Some(3.0));
        assert!(near(learned.epoch_s, report.train_s.expect("done") / 3.0));
        assert_eq!(learned.step_examples, 64 * u64::from(plan.workers));
        let epochs: Vec<_> = learned.curve.iter().map(|test| test.epoch).collect();
        assert_eq!(epochs, [Some(1.0), Some(2.0), Some(3.0)]);
        let test = learned.test.expect("tested");
        assert_eq!((test.steps, test.examples, test.accuracy), (plan.steps, 10_000, plan.accuracy));
        assert_eq!(Some(test), learned.curve.last().copied());
        assert!(test.lo < test.accuracy && test.accuracy < test.hi);
        assert!(near(Some(test.seconds), report.train_s.expect("done")), "the last test ends the training");
        assert!(near(Some(learned.eval_s), 0.6) && near(Some(learned.checkpoint_s), 0.06), "on the clock");
        assert!(near(report.paused_s, learned.eval_s + learned.checkpoint_s));
    }
}

#[test]
fn training_is_judged_over_the_last_epoch_weighed_by_examples() {
    let mut run = Plan { steps: 4, epoch: Some(256), accuracy: Some(0.0), ..Plan::calm("resnet50", 2) }.run();
    // 128 examples a step: the last two steps are the last epoch, and one of their parts counts three times the others.
    for (rank, step, examples, correct, loss) in
        [(0, 2, 96, 48, 1.0), (1, 2, 32, 32, 3.0), (0, 3, 64, 16, 2.0), (1, 3, 64, 32, 4.0)]
    {
        let step = &mut run.ranks[rank].steps[step];
        (step.examples, step.correct, step.loss) = (examples, Some(correct), Some(loss));
    }
    let score = |run: &Run| learning(&[run]).and_then(|learned| learned.train).expect("an epoch");
    let expected = Score { examples: 256, loss: Some(2.25), accuracy: Some(0.5) };
    assert_eq!(score(&run), expected);
    run.launcher.header.case.epoch_examples = Some(300);
    assert_eq!(score(&run).examples, 384, "a step counts as a whole");
    run.launcher.header.case.epoch_examples = Some(100_000);
    assert_eq!(score(&run).examples, 512, "less than an epoch is judged over all of it");
    run.ranks[1].steps[3].loss = None;
    run.ranks[0].steps[3].correct = None;
    assert_eq!((score(&run).loss, score(&run).accuracy), (None, None), "what is not known is not made up");
}

#[test]
fn the_best_test_is_the_first_of_the_highest_and_without_classes_that_of_least_loss() {
    let mut run =
        Plan { steps: 50, eval: Some((10, 1.0)), accuracy: Some(0.5), ..Plan::calm("vgg_19", 1) }.run();
    let best = |run: &Run| learning(&[run]).and_then(|learned| learned.best).map(|test| test.steps);
    let tests = &mut run.ranks[0].evaluations;
    for (test, correct) in tests.iter_mut().zip([100, 300, 200, 300, 250]) {
        test.correct = Some(correct);
    }
    assert_eq!(best(&run), Some(20));
    for (test, loss) in
        run.ranks[0].evaluations.iter_mut().zip([Some(2.0), None, Some(0.5), Some(0.7), Some(0.5)])
    {
        (test.correct, test.loss) = (None, loss);
    }
    assert_eq!(best(&run), Some(30));
    let learned = learning(&[&run]).expect("tests");
    assert_eq!((learned.epochs, learned.epoch_s, learned.train), (None, None, None), "data without an end");
    assert!(learned.curve.iter().all(|test| test.epoch.is_none() && test.lo.is_none()));
}

#[test]
fn a_run_that_goes_on_from_a_checkpoint_counts_epochs_from_the_start_of_the_training() {
    let mut run = learning_plans()[1].run();
    for step in run.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
        step.step = Step(step.step.0 + 20);
    }
    run.ranks[0].evaluations.iter_mut().for_each(|test| test.steps += 20);
    let learned = learning(&[&run]).expect("tests");
    let epochs: Vec<_> = learned.curve.iter().map(|test| test.epoch).collect();
    assert_eq!(epochs, [Some(2.0), Some(3.0), Some(4.0)]);
    assert_eq!(learned.epochs, Some(3.0), "what this run did");
}

#[test]
fn repeats_have_their_mean_and_an_interval_that_holds_how_they_differ() {
    let [plan, ..] = learning_plans();
    let runs: Vec<Run> =
        [0.60, 0.70, 0.80].map(|accuracy| Plan { accuracy: Some(accuracy), ..plan.clone() }.run()).into();
    let test = learning(&runs.iter().collect::<Vec<_>>()).and_then(|learned| learned.test).expect("tests");
    assert!(near(test.accuracy, 0.7));
    // 4.3027 standard errors of 0.1 / sqrt(3).
    assert!(
        (test.lo.expect("known") - 0.4516).abs() < 1e-4 && (test.hi.expect("known") - 0.9484).abs() < 1e-4
    );
    let alike = [&runs[0], &runs[0]];
    let test = learning(&alike).and_then(|learned| learned.test);
    assert_eq!(
        test,
        learned(&Plan { accuracy: Some(0.6), ..plan }).test,
        "the same test twice is no more certain"
    );
}

#[test]
fn a_benchmark_without_epochs_and_tests_has_learned_nothing_that_is_known() {
    assert_eq!(CaseReport::of(&[Plan::calm("resnet50", 1).run()]).learning, None);
    let mut run = learning_plans()[0].run();
    run.ranks[0].evaluations =
        vec![EvalRecord { at: Nanos(0), steps: 0, examples: 0, loss: None, correct: Some(0) }];
    let test = learning(&[&run]).and_then(|learned| learned.test).expect("a test of nothing");
    assert_eq!((test.accuracy, test.lo, test.epoch), (None, None, Some(0.0)));
}
