//! Why devices had nothing to do.
//!
//! Idle time is split by what the host had done: while it had handed over nothing, it was late; from then on work was
//! queued, and waited for other work. What a trace does not tell is neither.

use paceline_record::{Nanos, Phase, StepRecord};
use serde::Serialize;

use crate::Run;

/// Idle time of devices by cause, in seconds summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct IdleSplit {
    /// The host had not handed over what came next.
    pub host_late: f64,
    /// Work was queued, but waited for other work.
    pub queued: f64,
    /// The rest.
    pub unknown: f64,
}

/// Idle time as the mean of some repeats; `None` where there was none.
pub fn split(repeats: &[&Run]) -> Option<IdleSplit> {
    let mean = |of: fn(&StepRecord) -> Nanos| {
        repeats.iter().map(|run| run.sum_steps(of)).sum::<f64>() / repeats.len().max(1) as f64
    };
    let idle = mean(|step| step.phases[Phase::Idle]);
    let (host_late, queued) = (mean(|step| step.idle_host), mean(|step| step.idle_queued));
    (idle > 0.0).then(|| IdleSplit { host_late, queued, unknown: (idle - host_late - queued).max(0.0) })
}
