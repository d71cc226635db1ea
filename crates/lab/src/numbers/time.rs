//! The clock of a run.
//!
//! `total_s`: first spawn to last reap, on the launcher's clock. `init_s`: first spawn to the first step of any rank.
//! `train_s`: begin of the first step to the end of the last, over all ranks. `paused_s`: the part of it spent on
//! evaluation and checkpoints; the rest is the global steps.

use crate::Run;
use crate::run::Span;

/// Seconds of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// First spawn to the first step.
    pub init_s: f64,
    /// Begin of the first step to end of the last.
    pub train_s: f64,
    /// Part of `train_s` in which training paused for evaluation and checkpoints.
    pub paused_s: f64,
    /// First spawn to last reap.
    pub total_s: f64,
}

/// The times of a run; `None` if it has no steps or no end.
pub fn times(run: &Run) -> Option<Times> {
    let (span, training) = (run.span()?, run.training()?);
    let init = Span { begin: span.begin, end: training.begin };
    Some(Times {
        init_s: init.seconds(),
        train_s: training.seconds(),
        paused_s: run.paused(),
        total_s: span.seconds(),
    })
}
