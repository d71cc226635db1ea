//! Communication: what of it showed, and what was hidden behind other work.
//!
//! ```text
//! exposed  = comm_wait + comm_cpu
//! overlap  = 1 - exposed / comm_busy
//! share    = exposed / time of all steps, less evaluation and checkpoints
//! ratio    = 10 : 10 * exposed / (forward + backward), as the FTlib tables print it
//! ```
//!
//! `comm_wait` is split where the last rank arrived: until then a rank waits for a late one, from then on bytes move.

use paceline_record::{Nanos, Phase, StepRecord};
use serde::Serialize;

use super::computation;
use crate::Run;
use crate::run::own_time;

/// Waiting in collectives, by cause, in seconds summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CommWaitSplit {
    /// Until the last rank had arrived.
    pub late_rank: f64,
    /// From there on.
    pub transfer: f64,
}

/// Communication of a case, in seconds summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Communication {
    /// Waiting, by cause.
    pub wait: CommWaitSplit,
    /// Seconds in which a collective was under way at all.
    pub busy: f64,
    /// Share of it that was hidden; `None` where nothing was exchanged.
    pub overlap: Option<f64>,
    /// Exposed communication over the time of all steps, less evaluation and checkpoints.
    pub share: Option<f64>,
    /// The second number of 10 : x, computation to communication.
    pub ratio: Option<f64>,
}

/// Communication as the mean of some repeats.
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
        overlap: over(busy).map(|shown| 1.0 - shown),
        share: over(stepped),
        ratio: over(computed).map(|ratio| 10.0 * ratio),
    }
}
