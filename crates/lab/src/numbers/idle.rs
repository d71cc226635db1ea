//! Why devices had nothing to do.
//!
//! Idle time is split by what the host had done. While it had handed over nothing, it was late if it was on its way to the
//! next launch; otherwise nothing was queued. From the launch on work waited in its stream. What a trace does not tell is
//! none of these.

use paceline_record::{Nanos, Phase, StepRecord};
use serde::Serialize;

use crate::Run;

/// Idle time of devices by cause, in seconds summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct IdleSplit {
    /// The host was on its way to hand over what came next.
    pub host_late: f64,
    /// Work waited in a stream for other work.
    pub queued: f64,
    /// Nothing was queued, and the host did nothing that shows.
    pub nothing_queued: f64,
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
    let nothing_queued = mean(|step| step.idle_empty);
    let unknown = (idle - host_late - queued - nothing_queued).max(0.0);
    (idle > 0.0).then_some(IdleSplit { host_late, queued, nothing_queued, unknown })
}
