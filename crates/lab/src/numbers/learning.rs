//! Loss and accuracy, in training and in tests, and the time that took.
//!
//! ```text
//! epochs  = examples / epoch_examples
//! epoch_s = train_s / epochs
//! ```
//!
//! Training loss and accuracy cover the last epoch: the last steps that together hold as many examples as an epoch, over
//! all ranks, before their updates. Test accuracy has Wilson's 95 % interval. Repeats learn differently but are tested on
//! the same samples: their accuracy is the mean, with the wider of Wilson's interval for one test and Student's interval
//! over the repeats.

use std::ops::Range;

use paceline_record::{EvalRecord, Nanos, Phase, Step, StepRecord, Whole};
use serde::Serialize;

use crate::Run;
use crate::stats::student::t95;
use crate::stats::{self, proportion};

/// What a case learned. With several repeats, times and the last test are means; `best` and `curve` are of the first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Learning {
    /// Epochs done; `None` where the data has no end.
    pub epochs: Option<f64>,
    /// Training time over epochs.
    pub epoch_s: Option<f64>,
    /// Samples per step on all workers together.
    pub step_examples: u64,
    /// Training over the last epoch; `None` if the data has no end.
    pub train: Option<Score>,
    /// The last test.
    pub test: Option<Test>,
    /// The test with the highest accuracy, or the lowest loss if there are no classes; the first of equals.
    pub best: Option<Test>,
    /// All tests, in order.
    pub curve: Vec<Test>,
    /// Wall-clock seconds of evaluation: the sum over steps of the longest time of any rank.
    pub eval_s: f64,
    /// The same for checkpoints.
    pub checkpoint_s: f64,
}

/// Loss and accuracy on training samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Number of samples.
    pub examples: u64,
    /// Mean loss; `None` where one is not a number.
    pub loss: Option<f64>,
    /// Share that was guessed right; `None` without classes.
    pub accuracy: Option<f64>,
}

/// Loss and accuracy on test samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Test {
    /// Steps done before.
    pub steps: u64,
    /// Epochs done before; `None` where the data has no end.
    pub epoch: Option<f64>,
    /// Seconds since training began.
    pub seconds: f64,
    /// Samples tested.
    pub examples: u64,
    /// Mean loss; `None` where it is not a number.
    pub loss: Option<f64>,
    /// Share that was guessed right; `None` without classes.
    pub accuracy: Option<f64>,
    /// Lower end of the accuracy's 95 % interval.
    pub lo: Option<f64>,
    /// Upper end.
    pub hi: Option<f64>,
    /// Training at that time: over the 20 steps before it or the 20 after it, whichever had the lower accuracy.
    #[serde(skip)]
    pub train: Option<Score>,
}

/// What the repeats of a case learned; `None` if they count no epochs and were never tested.
pub fn learning(repeats: &[&Run]) -> Option<Learning> {
    let epoch = epoch_of(repeats.first()?);
    let curves: Vec<Vec<Test>> = repeats.iter().map(|run| test_curve(run)).collect();
    if epoch.is_none() && curves.iter().all(Vec::is_empty) {
        return None;
    }
    let mean =
        |of: &dyn Fn(&Run) -> f64| repeats.iter().map(|run| of(run)).sum::<f64>() / repeats.len() as f64;
    let epochs = epoch.map(|epoch| mean(&|run| run.examples() as f64) / epoch as f64);
    let train_s = mean(&|run| run.training().map_or(0.0, |span| span.seconds()));
    let curve = curves[0].clone();
    Some(Learning {
        epochs,
        epoch_s: epochs.filter(|&epochs| epochs > 0.0).map(|epochs| train_s / epochs),
        step_examples: repeats.iter().flat_map(|run| step_examples(run)).max().unwrap_or(0),
        train: epoch.and_then(|epoch| score_training(repeats, epoch)),
        test: pool(&curves.iter().filter_map(|curve| curve.last().copied()).collect::<Vec<_>>()),
        best: find_best(&curve),
        curve,
        eval_s: mean(&|run| on_the_clock(run, Phase::Eval)),
        checkpoint_s: mean(&|run| on_the_clock(run, Phase::Checkpoint)),
    })
}

/// Steps before and after a test that are of its time.
const AROUND: usize = 20;

/// Training around a test after so many of the run's steps. A step is judged before its update, so the first one after a test is
/// of the tested weights; a training that falls apart just before it shows in those.
fn score_around(run: &Run, done: usize) -> Option<Score> {
    let before = score(&judged(run, done.saturating_sub(AROUND)..done));
    let after = score(&judged(run, done..run.steps().min(done + AROUND)));
    [before, after].into_iter().flatten().min_by(|a, b| {
        let accuracy = |score: &Score| score.accuracy.unwrap_or(f64::INFINITY);
        accuracy(a).total_cmp(&accuracy(b))
    })
}

/// Samples of each step over all ranks.
fn step_examples(run: &Run) -> impl Iterator<Item = u64> {
    (0..run.steps()).map(move |k| run.step_examples(k))
}

fn on_the_clock(run: &Run, phase: Phase) -> f64 {
    let longest = |k: usize| run.records(k).map(|step| step.phases[phase]).max();
    (0..run.steps()).filter_map(longest).map(|time| time.seconds()).sum()
}

/// Samples of an epoch; `None` where the data has no end.
fn epoch_of(run: &Run) -> Option<u64> {
    run.case().epoch_examples.filter(|&examples| examples > 0)
}

/// The tests of a run.
pub(super) fn test_curve(run: &Run) -> Vec<Test> {
    let epoch = epoch_of(run);
    let begin = run.training().map(|span| span.begin).unwrap_or_default();
    // A run resumed from a checkpoint starts at a later step; the steps before it are assumed to be like its first.
    let first = run.number(0).map_or(0, |step| step.0);
    let mut seen = vec![first.saturating_mul(step_examples(run).next().unwrap_or(0))];
    seen.extend(step_examples(run).scan(seen[0], |sum, examples| {
        *sum = sum.saturating_add(examples);
        Some(*sum)
    }));
    let test = |record: &EvalRecord| {
        let EvalRecord { at, steps, examples, loss, correct } = *record;
        let accuracy = correct.filter(|_| examples > 0).map(|correct| correct as f64 / examples as f64);
        let interval = accuracy.and_then(|share| proportion::wilson(share, examples as f64));
        let done = steps.saturating_sub(first).min(seen.len() as u64 - 1) as usize;
        Test {
            steps,
            epoch: epoch.map(|epoch| seen[done] as f64 / epoch as f64),
            seconds: at.since(begin).seconds(),
            examples,
            loss: loss.map(f64::from),
            accuracy,
            lo: interval.map(|(lo, _)| lo),
            hi: interval.map(|(_, hi)| hi),
            train: score_around(run, done),
        }
    };
    run.evaluations().map(test).collect()
}

/// The last tests of several repeats, averaged.
fn pool(tests: &[Test]) -> Option<Test> {
    let [first, rest @ ..] = tests else { return None };
    if rest.is_empty() {
        return Some(*first);
    }
    let mean = |of: fn(&Test) -> Option<f64>| {
        let known: Option<Vec<f64>> = tests.iter().map(of).collect();
        stats::mean(&known?)
    };
    let accuracy = mean(|test| test.accuracy);
    let interval = accuracy.and_then(|mean| {
        let squares: f64 =
            tests.iter().filter_map(|test| test.accuracy).map(|one| (one - mean).powi(2)).sum();
        let half = t95(rest.len()) * (squares / rest.len() as f64 / tests.len() as f64).sqrt();
        let (lo, hi) = proportion::wilson(mean, first.examples as f64)?;
        Some((lo.min(mean - half).max(0.0), hi.max(mean + half).min(1.0)))
    });
    Some(Test {
        seconds: mean(|test| Some(test.seconds))?,
        loss: mean(|test| test.loss),
        accuracy,
        lo: interval.map(|(lo, _)| lo),
        hi: interval.map(|(_, hi)| hi),
        ..*first
    })
}

fn find_best(curve: &[Test]) -> Option<Test> {
    // `max_by` returns the last of equal maxima, so search backwards.
    let by = |of: fn(&Test) -> Option<f64>| {
        let known = curve.iter().rev().filter_map(|test| Some((of(test)?, *test)));
        known.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, test)| test)
    };
    by(|test| test.accuracy).or_else(|| by(|test| test.loss.map(|loss| -loss)))
}

/// Loss and accuracy over the last epoch of each repeat, or over all its steps if it has less than one epoch.
fn score_training(repeats: &[&Run], epoch: u64) -> Option<Score> {
    score(&repeats.iter().flat_map(|run| last_epoch(run, epoch)).collect::<Vec<_>>())
}

/// What the ranks told of their samples in some steps. Where workers come and go, each tells of the whole step, and one is
/// heard.
fn judged(run: &Run, steps: Range<usize>) -> Vec<Whole> {
    if run.membership.is_some() {
        return steps.filter_map(|k| run.whole(k)).collect();
    }
    let of_rank =
        |&StepRecord { examples, loss, correct, .. }: &StepRecord| Whole { examples, loss, correct };
    run.ranks.iter().flat_map(|rank| &rank.steps[steps.clone()]).map(of_rank).collect()
}

/// Training over some steps.
pub(super) fn score_steps(run: &Run, steps: Range<usize>) -> Option<Score> {
    score(&judged(run, steps))
}

fn score(steps: &[Whole]) -> Option<Score> {
    let examples = steps.iter().map(|step| step.examples).fold(0, u64::saturating_add);
    let losses: Option<f64> =
        steps.iter().map(|step| Some(f64::from(step.loss?) * step.examples as f64)).sum();
    let correct = steps.iter().try_fold(0, |sum: u64, step| Some(sum.saturating_add(step.correct?)));
    (examples > 0).then(|| Score {
        examples,
        loss: losses.map(|sum| sum / examples as f64),
        accuracy: correct.map(|correct| correct as f64 / examples as f64),
    })
}

/// Training over one epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// Its last step.
    pub step: Step,
    /// When that step ended.
    pub end: Nanos,
    /// Loss and accuracy.
    pub score: Score,
}

/// The complete epochs of a run. A step belongs to the epoch of its last sample.
pub fn epochs(run: &Run) -> Vec<Epoch> {
    let Some(epoch) = epoch_of(run) else { return Vec::new() };
    let (mut epochs, mut from, mut seen) = (Vec::new(), 0, 0);
    for (k, examples) in step_examples(run).enumerate() {
        seen += examples;
        if seen < epoch * (epochs.len() as u64 + 1) {
            continue;
        }
        // The first rank tells when; of members the first that was there.
        let Some(last) = run.records(k).next() else { continue };
        epochs.extend(score(&judged(run, from..k + 1)).map(|score| Epoch {
            step: last.step,
            end: last.end,
            score,
        }));
        from = k + 1;
    }
    epochs
}

fn last_epoch(run: &Run, epoch: u64) -> Vec<Whole> {
    let counts: Vec<u64> = step_examples(run).collect();
    let mut left = epoch;
    let within = counts.iter().rev().take_while(|&&examples| {
        let taken = left > 0;
        left = left.saturating_sub(examples);
        taken
    });
    let from = counts.len() - within.count();
    judged(run, from..counts.len())
}

#[cfg(test)]
mod tests;
