//! Event files for TensorBoard: scalars of each rank over its steps.
//!
//! A point holds `step_ms` (evaluation and checkpoints left out), `examples_per_s`, `loss` where it is known, and `phase/<name>_ms` for every phase that occurs in
//! the log. A long run is thinned: each of at most [`MOST`] points stands for as many steps, with the means of their times
//! and the last of their losses, at the last of them.
//!
//! Rank 0, or the first member, has the values of all ranks: `loss/test` and `accuracy/test` at the step after which the network was tested, and at the
//! last step of each epoch its `loss/train` and `accuracy/train`.
//!
//! Times have the date that the launcher noted. Where it noted none, as in a simulated run, they are counted from the begin of
//! the year 2000: then only differences are meaningful.
//!
//! The file is a list of [records](crate::tfrecord), each an `Event` of `tensorflow/core/util/event.proto` in the encoding
//! of protocol buffers, of which it takes five fields.

use std::path::{Path, PathBuf};

use paceline_record::log::RankLog;
use paceline_record::{EvalRecord, Nanos, Phase, Rank, Started, StepRecord, Who};

use crate::numbers::learning::{self, Epoch, Score};
use crate::run::{Run, covers, own_time};
use crate::tfrecord;

/// Most points of a rank.
pub const MOST: usize = 1000;

/// Seconds from 1970 to the start of a clock without a date.
const ORIGIN_S: f64 = 946_684_800.0;

/// Folder of a case's event files in the study folder.
pub fn folder_name(case: &str) -> PathBuf {
    Path::new("tensorboard").join(case)
}

/// Path of a worker's event file in the study folder, by its name in words.
pub fn file_name(case: &str, who: &str, started: Option<Started>) -> PathBuf {
    let who = who.replace(' ', "-");
    let began = started.map_or(ORIGIN_S as u64, |started| started.unix.0 / 1_000_000_000);
    folder_name(case).join(who).join(format!("events.out.tfevents.{began}.paceline"))
}

/// Seconds from 1970 to the start of a run's clock.
fn origin_s(started: Option<Started>) -> f64 {
    started.map_or(ORIGIN_S, |Started { at, unix }| (i128::from(unix.0) - i128::from(at.0)) as f64 * 1e-9)
}

/// The event file of one rank, without a date.
pub fn render(log: &RankLog) -> Vec<u8> {
    render_with(log, ORIGIN_S, &[], &log.evaluations)
}

/// The event file of a rank of a run.
pub fn render_rank(run: &Run, log: &RankLog) -> Vec<u8> {
    let who = log.header.who();
    let tells = match &run.membership {
        Some(_) => run.ranks.first().is_some_and(|first| first.header.who() == who),
        None => who == Who::Rank(Rank(0)),
    };
    let origin = origin_s(run.launcher.header.started);
    if !tells {
        return render_with(log, origin, &[], &log.evaluations);
    }
    let tests: Vec<EvalRecord> = run.evaluations().copied().collect();
    render_with(log, origin, &learning::epochs(run), &tests)
}

fn render_with(log: &RankLog, origin: f64, epochs: &[Epoch], tests: &[EvalRecord]) -> Vec<u8> {
    let begin = log.main.or(log.steps.first().map(|step| step.begin)).unwrap_or_default();
    let mut file = Vec::new();
    tfrecord::append(&Message::at(origin + begin.seconds()).bytes(3, b"brain.Event:2").0, &mut file);
    let phases: Vec<Phase> = Phase::ALL
        .into_iter()
        .filter(|&phase| log.steps.iter().any(|step| time_of(phase, step) != 0.0))
        .collect();
    let points = log.steps.chunks(log.steps.len().div_ceil(MOST).max(1)).map(|steps| {
        let last = &steps[steps.len() - 1];
        (last.step.0, last.end, summary(steps, &phases))
    });
    let trained = epochs.iter().map(|epoch| {
        let Score { loss, accuracy, .. } = epoch.score;
        (epoch.step.0, epoch.end, judgement("train", loss, accuracy))
    });
    let tested = tests.iter().map(|test| {
        let accuracy = test.correct.map(|correct| correct as f64 / test.examples as f64);
        (test.steps.saturating_sub(1), test.at, judgement("test", test.loss.map(f64::from), accuracy))
    });
    let mut events: Vec<(u64, Nanos, Message)> = points.chain(trained).chain(tested).collect();
    events.sort_by_key(|&(step, ..)| step);
    for (step, at, summary) in events {
        tfrecord::append(
            &Message::at(origin + at.seconds()).integer(2, step).bytes(5, &summary.0).0,
            &mut file,
        );
    }
    file
}

/// Loss and accuracy of a kind of samples, as far as known.
fn judgement(kind: &str, loss: Option<f64>, accuracy: Option<f64>) -> Message {
    let known = [("loss", loss), ("accuracy", accuracy)].into_iter();
    let known = known.filter_map(|(name, value)| Some((name, value.filter(|value| value.is_finite())?)));
    known.fold(Message::default(), |summary, (name, value)| summary.value(&format!("{name}/{kind}"), value))
}

/// One point, for some steps.
fn summary(steps: &[StepRecord], phases: &[Phase]) -> Message {
    let sum = |of: &dyn Fn(&StepRecord) -> f64| steps.iter().map(of).sum::<f64>();
    let seconds = sum(&|step| own_time(step).seconds());
    let examples = sum(&|step| step.examples as f64);
    let count = sum(&|step| covers(step) as f64);
    let mean_ms = |seconds: f64| 1e3 * seconds / count;
    let mut summary = Message::default().value("step_ms", mean_ms(seconds));
    if seconds > 0.0 && examples > 0.0 {
        summary = summary.value("examples_per_s", examples / seconds);
    }
    if let Some(loss) = steps.iter().rev().find_map(|step| step.loss) {
        summary = summary.value("loss", loss.into());
    }
    let measured = steps.iter().filter(|step| step.sampled);
    let counted: u64 = measured.clone().map(covers).sum();
    for &phase in phases.iter().filter(|_| counted > 0) {
        let seconds: f64 = measured.clone().map(|step| time_of(phase, step)).sum();
        let time = 1e3 * seconds / counted as f64;
        summary = summary.value(&format!("phase/{phase}_ms"), time);
    }
    summary
}

/// Seconds of a phase within a step; `other` is the rest of it.
fn time_of(phase: Phase, step: &StepRecord) -> f64 {
    let booked = |phase: Phase| step.phases[phase].0 as i64;
    let nanos = match phase {
        Phase::Other => {
            let known = step.phases.total().0 as i64 - booked(Phase::Other);
            step.end.since(step.begin).0 as i64 - known
        }
        _ => booked(phase),
    };
    nanos as f64 * 1e-9
}

/// A message in the encoding of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// An event at this time, in seconds since 1970.
    fn at(seconds: f64) -> Self {
        let mut event = Self::default();
        event.key(1, 1);
        event.0.extend(seconds.to_le_bytes());
        event
    }

    /// Number of a field, and the form of what follows: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
    fn key(&mut self, field: u8, form: u8) {
        self.0.push(field << 3 | form);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn integer(mut self, field: u8, value: u64) -> Self {
        self.key(field, 0);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u8, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    /// A scalar of a summary.
    fn value(self, tag: &str, value: f64) -> Self {
        let mut scalar = Self::default().bytes(1, tag.as_bytes());
        scalar.key(2, 5);
        scalar.0.extend((value as f32).to_le_bytes());
        self.bytes(1, &scalar.0)
    }
}

#[cfg(test)]
mod tests;
