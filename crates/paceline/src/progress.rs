//! Progress on standard error: a bar on a terminal, plain lines now and then elsewhere, and the time left on both.
//!
//! Who calls says what time it is, so that tests need not wait.

use std::collections::VecDeque;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use paceline_lab::{CaseReport, Status};
use paceline_record::{Nanos, RankEvent};
use paceline_train::launcher::Glance;
use paceline_train::{Job, Prepared};

use crate::machine;
use crate::outcome::say;

/// The progress of a study.
pub struct Progress {
    bar: Option<ProgressBar>,
    /// Runs of the study, and the one under way, from 1.
    runs: usize,
    run: usize,
    /// What the run under way is called.
    name: String,
    /// Seconds of each run that is left, by estimate; the one under way comes first.
    ahead: VecDeque<f64>,
    /// Seconds of the runs that have ended, by estimate, and the time that they took.
    done: f64,
    spent: Duration,
    began: Instant,
    /// From the begin of the first step of the run under way to the end of its last so far.
    steps: Option<(Nanos, Nanos)>,
    pulse: Pulse,
}

/// Off a terminal there is a line at most this often.
const PAUSE: Duration = Duration::from_secs(10);

/// When to print a line again, where there is no bar.
pub struct Pulse(Instant);

impl Pulse {
    /// A line has just been printed.
    pub fn start(now: Instant) -> Self {
        Self(now)
    }

    /// Whether the last line is long enough ago; the next one then counts from now.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now.duration_since(self.0) >= PAUSE;
        if is_due {
            self.0 = now;
        }
        is_due
    }
}

/// A bar on a terminal; `None` elsewhere.
pub fn bar(length: u64) -> Option<ProgressBar> {
    stderr().is_terminal().then(|| {
        let style = "{bar:10} {percent:>3} %  {wide_msg}";
        let style = ProgressStyle::with_template(style).expect("invariant: a valid template");
        ProgressBar::new(length).with_style(style)
    })
}

/// A number of workers in words.
pub fn workers(job: &Job) -> String {
    let workers = match job.workers {
        1 => "1 worker".to_owned(),
        workers => format!("{workers} workers"),
    };
    let Some(hosts) = job.hosts else { return workers };
    let hosts_here = match (hosts.min, hosts.max) {
        (1, 1) => "1 host".to_owned(),
        (min, max) if min == max => format!("{max} hosts"),
        (min, max) => format!("{min} to {max} hosts"),
    };
    match hosts.local {
        true => format!("{workers} on each of {hosts_here}"),
        // Others may have other numbers of them.
        false => format!("{workers} on this one of {hosts_here}"),
    }
}

impl Progress {
    /// Of runs that are left, by their estimates in seconds; `runs` also counts those that were done before.
    pub fn start(ahead: VecDeque<f64>, runs: usize, now: Instant) -> Self {
        Self::with_bar(bar(1000), ahead, runs, now)
    }

    fn with_bar(bar: Option<ProgressBar>, ahead: VecDeque<f64>, runs: usize, now: Instant) -> Self {
        let (run, name, steps) = (runs - ahead.len(), String::new(), None);
        let (done, spent, pulse) = (0.0, Duration::ZERO, Pulse::start(now));
        Self { bar, runs, run, name, ahead, done, spent, began: now, steps, pulse }
    }

    /// Announces a run by the name that tells it from the others.
    pub fn begin(&mut self, job: &Job, name: String, now: Instant) {
        self.run += 1;
        self.name = name;
        (self.began, self.steps, self.pulse) = (now, None, Pulse::start(now));
        if self.bar.is_none() {
            let left =
                self.time_left(0.0, now).map_or_else(String::new, |left| format!("; about {left} left"));
            say(&format!(
                "[{}/{}] {}: {} steps of {} samples{left}",
                self.run,
                self.runs,
                self.name,
                job.steps,
                job.global_batch()
            ));
        }
        self.show(job, Glance { steps: 0, events: &[], said: &[] }, now);
    }

    /// Shows how far a run is.
    pub fn show(&mut self, job: &Job, glance: Glance<'_>, now: Instant) {
        glance.said.iter().for_each(|line| self.tell(line));
        let (far, left) = self.describe(job, glance, now);
        match &self.bar {
            Some(bar) => {
                let part = self.part(job, glance.steps);
                bar.set_position((1000.0 * (self.done + part) / (self.done + self.left())) as u64);
                bar.set_message(self.beside_bar(&far, left));
            }
            None if self.pulse.is_due(now) => say(&self.line(&far, left)),
            None => {}
        }
    }

    /// A line of its own.
    fn line(&self, far: &str, left: Option<HumanDuration>) -> String {
        let left = left.map_or_else(String::new, |left| format!(", about {left} left"));
        format!("{}: {far}{left}", self.name)
    }

    /// The same in short; the name comes last, because a narrow terminal cuts the end.
    fn beside_bar(&self, far: &str, left: Option<HumanDuration>) -> String {
        let left = left.map_or_else(String::new, |left| format!(", {left:#} left"));
        format!("[{}/{}] {far}{left}: {}", self.run, self.runs, self.name)
    }

    /// How far a run is, and the time left.
    fn describe(&mut self, job: &Job, glance: Glance<'_>, now: Instant) -> (String, Option<HumanDuration>) {
        for event in glance.events {
            if let RankEvent::Step(step) = event {
                let begin = self.steps.map_or(step.begin, |(begin, _)| begin);
                self.steps = Some((begin, step.end));
            }
        }
        let samples = glance.steps as f64 * job.global_batch() as f64;
        let seconds = self.steps.map(|(begin, end)| end.since(begin).seconds()).filter(|&time| time > 0.0);
        let rate =
            seconds.map_or_else(String::new, |time| format!(", {:.0} images/s so far", samples / time));
        let left = self.time_left(self.part(job, glance.steps), now);
        (format!("step {} of {}{rate}", glance.steps, job.steps), left)
    }

    /// Says how a run ended, by its own numbers.
    pub fn end(&mut self, run: &CaseReport, now: Instant) {
        self.done += self.ahead.pop_front().unwrap_or(0.0);
        self.spent += now.duration_since(self.began);
        self.tell(&outcome(&self.name, run));
    }

    /// Prints a line beside the bar.
    pub fn tell(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }

    /// Takes the bar away.
    pub fn clear(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }

    /// Seconds of the run under way that are done, by estimate.
    fn part(&self, job: &Job, steps: u64) -> f64 {
        self.ahead.front().copied().unwrap_or(0.0) * steps as f64 / job.steps as f64
    }

    fn left(&self) -> f64 {
        self.ahead.iter().sum()
    }

    /// Time left, judged by the work done so far; `None` before anything is done.
    fn time_left(&self, part: f64, now: Instant) -> Option<HumanDuration> {
        let done = self.done + part;
        let spent = self.spent + if part > 0.0 { now.duration_since(self.began) } else { Duration::ZERO };
        (done > 0.0).then(|| HumanDuration(spent.mul_f64(((self.left() - part) / done).max(0.0))))
    }
}

/// How a run ended.
fn outcome(name: &str, run: &CaseReport) -> String {
    match (run.status, run.images_per_s, run.total_s) {
        (Status::Done, Some(rate), Some(total)) => {
            format!("{name}: {:.1} images/s, {total:.1} s in all", rate.mean)
        }
        (Status::Interrupted, ..) => format!("{name}: interrupted"),
        _ => format!("error: {name}: {}", run.reason.as_deref().unwrap_or("it did not finish")),
    }
}

/// Seconds that a job may take: products at a rate that a core reaches, activations at what its memory gives. What
/// matters is that networks compare; the first finished run sets the scale.
pub fn estimate(job: &Job, prepared: &Prepared) -> f64 {
    const FLOPS: f64 = 100e9;
    const BYTES: f64 = 3e9;
    let an_example = prepared.flops as f64 / FLOPS + prepared.activation_bytes as f64 / BYTES;
    let wanted = job.workers as usize * job.threads;
    let turns = wanted as f64 / wanted.min(machine::granted()) as f64;
    let samples = job.steps as f64 * job.global_batch() as f64 / f64::from(job.workers);
    samples * an_example * turns / job.threads as f64
}

#[cfg(test)]
mod tests {
    use paceline_record::{Step, StepRecord};

    use super::*;

    #[test]
    fn off_a_terminal_there_are_few_lines_however_often_progress_is_shown() {
        let start = Instant::now();
        let mut pulse = Pulse::start(start);
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        let lines = (0..=600).filter(|&tenths| pulse.is_due(at(tenths))).count();
        assert_eq!(lines, 6, "in a minute");
        let mut pulse = Pulse::start(start);
        assert!(!(0..100).any(|tenths| pulse.is_due(at(tenths))), "a case of less than ten seconds is quiet");
    }

    #[test]
    fn a_line_within_a_case_has_its_step_its_rate_and_the_time_left() {
        let start = Instant::now();
        let job = Job { steps: 200, ..Job::new("mobilenet_v2") };
        let mut progress = Progress::with_bar(None, VecDeque::from([10.0, 30.0]), 2, start);
        progress.begin(&job, "mobilenet_v2, sharded on 1 worker".into(), start);
        let step = |number: u64| {
            let mut step = StepRecord::open(Step(number), Nanos(number * 1_000_000_000));
            step.end = Nanos((number + 1) * 1_000_000_000);
            RankEvent::Step(step)
        };
        let (far, left) = progress.describe(
            &job,
            Glance { steps: 0, events: &[], said: &[] },
            start + Duration::from_secs(3),
        );
        assert_eq!(progress.line(&far, left), "mobilenet_v2, sharded on 1 worker: step 0 of 200");
        let events: Vec<RankEvent> = (0..50).map(step).collect();
        let glance = Glance { steps: 50, events: &events, said: &[] };
        // A quarter of the first of 40 estimated seconds took a minute: there are 37.5 such to go.
        let (far, left) = progress.describe(&job, glance, start + Duration::from_secs(60));
        let left = || left.as_ref().map(|left| HumanDuration(left.0));
        assert_eq!(
            progress.line(&far, left()),
            "mobilenet_v2, sharded on 1 worker: step 50 of 200, 64 images/s so far, about 15 minutes left"
        );
        assert_eq!(
            progress.beside_bar(&far, left()),
            "[1/2] step 50 of 200, 64 images/s so far, 15m left: mobilenet_v2, sharded on 1 worker"
        );
    }
}
