//! Progress on standard error: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};
use paceline_lab::CaseReport;
use paceline_record::Outcome;
use paceline_train::Job;

use crate::outcome::say;

/// The progress of one case.
pub struct Progress {
    model: String,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Announces a case.
    pub fn start(job: &Job) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let style = "{prefix:18} {bar:30} {pos}/{len} steps, {eta} left";
            let style = ProgressStyle::with_template(style).expect("invariant: a valid template");
            let bar = ProgressBar::new(job.steps).with_style(style);
            bar.set_prefix(job.model.clone());
            bar.tick();
            bar
        });
        if bar.is_none() {
            say(&format!(
                "{}: {} steps of {} at {}x{}, {} worker(s) of {} thread(s)",
                job.model, job.steps, job.batch, job.input.0, job.input.1, job.workers, job.threads
            ));
        }
        Self { model: job.model.clone(), bar }
    }

    /// Shows how many steps are done.
    pub fn show(&self, steps: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(steps);
        }
    }

    /// Says how the case ended.
    pub fn end(self, case: &CaseReport) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        let model = self.model;
        match (case.status, case.images_per_s, case.total_s) {
            (Outcome::Done, Some(rate), Some(total)) => {
                say(&format!("{model}: {:.1} images/s, {total:.1} s in all", rate.mean));
            }
            (Outcome::Interrupted, ..) => say(&format!("{model}: interrupted")),
            _ => {
                let reason = case.reason.as_deref().unwrap_or("it did not finish");
                say(&format!("error: {model}: {reason}"));
            }
        }
    }
}
