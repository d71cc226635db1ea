//! Communication: how much was exposed, and how much was hidden behind other work.
//!
//! ```text
//! exposed  = comm_wait + comm_cpu
//! overlap  = overlapped / comm_busy
//! fraction = exposed / time of all steps without evaluation and checkpoints
//! ratio    = 10 : 10 * exposed / (forward + backward), as the FTlib tables print it
//! ```
//!
//! `overlapped` is the part of `comm_busy` in which the rank computed, an intersection of intervals that the rank itself, or the
//! reader of a trace, has measured: so the overlap is between 0 and 1, and unknown where a log does not tell.
//!
//! `comm_wait` is split at the arrival of the last rank: before it, a rank waits for a late one; after it, bytes move.

use paceline_record::{Nanos, Phase, StepRecord};
use serde::Serialize;

use super::computation;
use crate::Run;
use crate::run::own_time;

/// Waiting in collectives, by cause, in seconds summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CommWaitSplit {
    /// Until the last rank arrived.
    pub late_rank: f64,
    /// After the last rank arrived.
    pub transfer: f64,
}

/// Communication of a case, in seconds summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Communication {
    /// Waiting, by cause.
    pub wait: CommWaitSplit,
    /// Seconds in which any collective was under way.
    pub busy: f64,
    /// Fraction of `busy` in which the ranks computed; `None` if nothing was exchanged, or the log does not tell.
    pub overlap: Option<f64>,
    /// Exposed communication over the time of all steps without evaluation and checkpoints.
    pub fraction: Option<f64>,
    /// The second number of 10 : x, computation to communication.
    pub ratio: Option<f64>,
}

/// Communication as the mean over repeats.
pub fn communication(repeats: &[&Run]) -> Communication {
    let mean = |of: fn(&StepRecord) -> Nanos| {
        repeats.iter().map(|run| run.sum_steps(of)).sum::<f64>() / repeats.len().max(1) as f64
    };
    let waited = mean(|step| step.phases[Phase::CommWait]);
    let late_rank = mean(|step| step.late_rank);
    let busy = mean(|step| step.comm_busy);
    let exposed = waited + mean(|step| step.phases[Phase::CommCpu]);
    let computed = mean(computation::of_step);
    let stepped = mean(own_time);
    let over = |whole: f64| (whole > 0.0).then(|| exposed / whole);
    Communication {
        wait: CommWaitSplit { late_rank, transfer: waited - late_rank },
        busy,
        overlap: overlap(repeats),
        fraction: over(stepped),
        ratio: over(computed).map(|ratio| 10.0 * ratio),
    }
}

/// Over all steps in which an exchange was under way.
fn overlap(repeats: &[&Run]) -> Option<f64> {
    let steps = repeats.iter().flat_map(|run| &run.ranks).flat_map(|rank| &rank.steps);
    let mut sums = [0.0; 2];
    for step in steps.filter(|step| step.comm_busy > Nanos(0)) {
        // A damaged log may claim any time.
        let both = step.overlapped?.min(step.comm_busy);
        sums[0] += both.seconds();
        sums[1] += step.comm_busy.seconds();
    }
    (sums[1] > 0.0).then(|| sums[0] / sums[1])
}
