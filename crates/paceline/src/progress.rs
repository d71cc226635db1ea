//! Progress on standard error: a bar on a terminal, plain lines elsewhere, and the time left on both.

use std::collections::VecDeque;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use paceline_lab::CaseReport;
use paceline_record::Outcome;
use paceline_train::{Job, Prepared};

use crate::machine;
use crate::outcome::say;

/// The progress of a study.
pub struct Progress {
    bar: Option<ProgressBar>,
    /// Runs of the study, and the one under way, from 1.
    runs: usize,
    run: usize,
    /// Seconds of each run that is left, by estimate; the one under way comes first.
    ahead: VecDeque<f64>,
    /// Seconds of the runs that have ended, by estimate, and the time that they took.
    done: f64,
    spent: Duration,
    began: Instant,
}

/// A bar on a terminal; `None` elsewhere.
pub fn bar(length: u64) -> Option<ProgressBar> {
    stderr().is_terminal().then(|| {
        let style = "{bar:24} {percent:>3} %  {msg}";
        let style = ProgressStyle::with_template(style).expect("invariant: a valid template");
        ProgressBar::new(length).with_style(style)
    })
}

/// A number of workers in words.
pub fn workers(job: &Job) -> String {
    if job.workers == 1 { "1 worker".into() } else { format!("{} workers", job.workers) }
}

impl Progress {
    /// Of runs that are left, by their estimates in seconds; `runs` also counts those that were done before.
    pub fn start(ahead: VecDeque<f64>, runs: usize) -> Self {
        let run = runs - ahead.len();
        let (done, spent) = (0.0, Duration::ZERO);
        Self { bar: bar(1000), runs, run, ahead, done, spent, began: Instant::now() }
    }

    /// Announces a run.
    pub fn begin(&mut self, job: &Job) {
        self.run += 1;
        self.began = Instant::now();
        if self.bar.is_none() {
            let left = self.time_left(0.0).map_or_else(String::new, |left| format!("; about {left} left"));
            say(&format!(
                "[{}/{}] {}: {} steps of {} samples{left}",
                self.run,
                self.runs,
                name(job),
                job.steps,
                job.global_batch()
            ));
        }
        self.show(job, 0);
    }

    /// Shows how many steps of a run are done.
    pub fn show(&self, job: &Job, steps: u64) {
        let Some(bar) = &self.bar else { return };
        let part = self.current() * steps as f64 / job.steps as f64;
        let left = self.time_left(part).map_or_else(String::new, |left| format!(", {left} left"));
        bar.set_position((1000.0 * (self.done + part) / (self.done + self.left())) as u64);
        bar.set_message(format!(
            "[{}/{}] {}, step {steps} of {}{left}",
            self.run,
            self.runs,
            name(job),
            job.steps
        ));
    }

    /// Says how a run ended.
    pub fn end(&mut self, job: &Job, case: &CaseReport) {
        self.done += self.ahead.pop_front().unwrap_or(0.0);
        self.spent += self.began.elapsed();
        let line = match (case.status, case.images_per_s, case.total_s) {
            (Outcome::Done, Some(rate), Some(total)) => {
                format!("{}: {:.1} images/s, {total:.1} s in all", name(job), rate.mean)
            }
            (Outcome::Interrupted, ..) => format!("{}: interrupted", name(job)),
            _ => {
                let reason = case.reason.as_deref().unwrap_or("it did not finish");
                format!("error: {}: {reason}", name(job))
            }
        };
        match &self.bar {
            Some(bar) => bar.suspend(|| say(&line)),
            None => say(&line),
        }
    }

    /// Takes the bar away.
    pub fn clear(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }

    /// Seconds of the run under way, by estimate.
    fn current(&self) -> f64 {
        self.ahead.front().copied().unwrap_or(0.0)
    }

    fn left(&self) -> f64 {
        self.ahead.iter().sum()
    }

    /// Time left, judged by the work done so far; `None` before anything is done.
    fn time_left(&self, part: f64) -> Option<HumanDuration> {
        let done = self.done + part;
        let spent = self.spent + if part > 0.0 { self.began.elapsed() } else { Duration::ZERO };
        (done > 0.0).then(|| HumanDuration(spent.mul_f64(((self.left() - part) / done).max(0.0))))
    }
}

fn name(job: &Job) -> String {
    let faults = job.elastic.as_ref().filter(|elastic| !elastic.faults.is_empty());
    let faults = faults.map_or_else(String::new, |elastic| format!(" with {}", elastic.faults));
    format!("{} on {}{faults}", job.model, workers(job))
}

/// Seconds that a job may take: products at a rate that a core reaches, activations at what its memory gives. What
/// matters is that networks compare; the first finished run sets the scale.
pub fn estimate(job: &Job, prepared: &Prepared) -> f64 {
    const FLOPS: f64 = 100e9;
    const BYTES: f64 = 3e9;
    let an_example = prepared.flops as f64 / FLOPS + prepared.activation_bytes as f64 / BYTES;
    let wanted = job.workers as usize * job.threads;
    let turns = wanted as f64 / wanted.min(machine::cores()) as f64;
    let samples = job.steps as f64 * job.global_batch() as f64 / f64::from(job.workers);
    samples * an_example * turns / job.threads as f64
}
