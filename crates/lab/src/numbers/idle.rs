//! Why devices were idle.
//!
//! Idle time is split by what the host was doing. Before the next launch, the host was late if it was busy on the way to
//! it; otherwise nothing was queued. After the launch, work waited in its stream. The rest is unknown.

use paceline_record::{Nanos, Phase, StepRecord};
use serde::Serialize;

use crate::Run;

/// Idle time of devices by cause, in seconds summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct IdleSplit {
    /// The host was busy on the way to the next launch.
    pub host_late: f64,
    /// Work waited in a stream for other work.
    pub queued: f64,
    /// Nothing was queued, and the trace shows no activity on the host.
    pub nothing_queued: f64,
    /// The trace does not show why.
    pub unknown: f64,
}

/// Idle time as the mean over repeats; `None` if there was none.
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
