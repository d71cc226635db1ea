//! The host's monotonic clock, which all its processes share, and a step's time on it.

use paceline_record::{Phase, StepRecord};
pub use paceline_system::clock::{now, thread_cpu};

/// Does something on the host and books its time to a phase of a step.
pub fn timed<T>(record: &mut StepRecord, phase: Phase, work: impl FnOnce() -> T) -> T {
    let begin = now();
    let result = work();
    record.book(phase, now().since(begin));
    result
}
