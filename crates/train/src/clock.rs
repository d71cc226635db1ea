//! The host's monotonic clock, which all its processes share.

use paceline_record::{Nanos, Phase, StepRecord};
use rustix::time::{ClockId, clock_gettime};

/// Now, on `CLOCK_MONOTONIC`.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Time that the calling thread has computed.
pub fn thread_cpu() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Does something on the host and books its time to a phase of a step.
pub fn timed<T>(record: &mut StepRecord, phase: Phase, work: impl FnOnce() -> T) -> T {
    let begin = now();
    let result = work();
    record.book(phase, now().since(begin));
    result
}
