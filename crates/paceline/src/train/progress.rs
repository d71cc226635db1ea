//! Progress of a training on standard error: a bar on a terminal, plain lines elsewhere.

use std::time::Instant;

use indicatif::{HumanDuration, ProgressBar};
use paceline_record::{EvalRecord, RankEvent, StepRecord};
use paceline_train::launcher::Glance;
use paceline_train::{Job, TrainError};

use crate::outcome::say;
use crate::progress::{Pulse, bar, workers};

/// Steps that the running figures are over.
const WINDOW: usize = 50;

/// The progress of a training.
pub struct Progress {
    bar: Option<ProgressBar>,
    global_batch: f64,
    /// Epochs of a step, and of the run.
    step: f64,
    epochs: f64,
    first: u64,
    steps: u64,
    /// The last steps of rank 0.
    recent: Vec<StepRecord>,
    began: Option<Instant>,
    pulse: Pulse,
    warned: bool,
    stops: bool,
}

impl Progress {
    /// Of a job that is about to begin.
    pub fn start(job: &Job, now: Instant) -> Result<Self, TrainError> {
        let step = job.global_batch() as f64 / job.epoch_len()? as f64;
        let first = job.milestones.resumed_at.unwrap_or(0);
        let from = if first > 0 { format!(", resumed at step {first}") } else { String::new() };
        say(&format!(
            "{} on {}: {} steps of {} samples ({:.4} epochs of {}){from}",
            job.model,
            workers(job),
            job.steps,
            job.global_batch(),
            job.steps as f64 * step,
            job.data
        ));
        Ok(Self {
            bar: bar(job.steps),
            global_batch: job.global_batch() as f64,
            step,
            epochs: job.steps as f64 * step,
            first,
            steps: job.steps,
            recent: Vec::new(),
            began: None,
            pulse: Pulse::start(now),
            warned: false,
            stops: false,
        })
    }

    /// Shows how far it is at this time.
    pub fn show(&mut self, glance: Glance<'_>, now: Instant) {
        glance.said.iter().for_each(|line| self.tell(line));
        for event in glance.events {
            match event {
                RankEvent::Step(step) => {
                    if self.recent.len() == WINDOW {
                        self.recent.remove(0);
                    }
                    self.recent.push(step.clone());
                    self.began.get_or_insert(now);
                    if step.loss.is_none_or(|loss| !loss.is_finite()) && !self.warned {
                        self.warned = true;
                        self.tell(&format!(
                            "warning: the loss of step {} is not a number: the training has diverged; start again with a \
                             lower --lr or more --warmup-epochs",
                            step.step
                        ));
                    }
                }
                RankEvent::Evaluated(test) => self.tell(&self.describe_test(test)),
                RankEvent::Saved { steps, bytes, .. } => {
                    self.tell(&format!("checkpoint of step {steps}: {:.1} MB", bytes.0 as f64 / 1e6));
                }
                RankEvent::Main { .. }
                | RankEvent::Compiled { .. }
                | RankEvent::Recovery(_)
                | RankEvent::Fault { .. }
                | RankEvent::Note { .. }
                | RankEvent::Done { .. } => {}
            }
        }
        if glance.steps == 0 {
            return;
        }
        let line = self.describe(glance.steps, now);
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.first + glance.steps);
                bar.set_message(line);
            }
            None if self.pulse.is_due(now) => say(&line),
            None => {}
        }
    }

    /// Says once what follows an interruption.
    pub fn say_that_it_stops(&mut self) {
        if !std::mem::replace(&mut self.stops, true) {
            self.tell("interrupted: a checkpoint is saved after this step; Ctrl-C again ends at once");
        }
    }

    /// Takes the bar away.
    pub fn clear(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }

    fn tell(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }

    /// How far it is. Beside a bar, which a narrow terminal leaves little room for, what matters most comes first.
    fn describe(&self, steps: u64, now: Instant) -> String {
        let done = self.first + steps;
        let epoch = format!("epoch {:.2} of {:.4}", done as f64 * self.step, self.epochs);
        let step = format!("step {done} of {}", self.steps);
        let count = self.recent.len() as f64;
        let losses: f32 = self.recent.iter().filter_map(|step| step.loss).sum();
        let loss = format!("loss {:.3}", f64::from(losses) / count);
        let examples: u64 = self.recent.iter().map(|step| step.examples).sum();
        let correct: Option<u64> = self.recent.iter().map(|step| step.correct).sum();
        let accuracy = correct.map(|correct| format!("accuracy {:.1} %", percent(correct, examples)));
        let rate = self.recent.first().zip(self.recent.last()).map(|(first, last)| {
            let seconds = last.end.since(first.begin).0 as f64 / 1e9;
            format!("{:.0} images/s", count * self.global_batch / seconds.max(1e-9))
        });
        let left = self.began.filter(|_| steps > 1).map(|began| {
            let left = now.duration_since(began).mul_f64((self.steps - done) as f64 / (steps - 1) as f64);
            let left = HumanDuration(left);
            if self.bar.is_some() { format!("{left:#} left") } else { format!("{left} left") }
        });
        let parts = match self.bar {
            Some(_) => [Some(step), Some(loss), rate, left, accuracy, Some(epoch)],
            None => [Some(epoch), Some(step), Some(loss), accuracy, rate, left],
        };
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn describe_test(&self, test: &EvalRecord) -> String {
        let mut parts =
            vec![format!("epoch {:.2}, step {}: test", test.steps as f64 * self.step, test.steps)];
        parts.push(test.loss.map_or_else(|| "loss NaN".into(), |loss| format!("loss {loss:.4}")));
        parts
            .extend(test.correct.map(|correct| format!("accuracy {:.2} %", percent(correct, test.examples))));
        parts.join(" ")
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}
