//! The clocks: one that all processes of a host share, and those that run while a thread or a process computes.

use paceline_record::{Nanos, Started};
use rustix::time::{ClockId, clock_gettime};

/// Now, on the host's monotonic clock (`CLOCK_MONOTONIC`).
pub fn now() -> Nanos {
    read(ClockId::Monotonic)
}

/// Processor time of the calling thread so far.
pub fn thread_cpu() -> Nanos {
    read(ClockId::ThreadCPUTime)
}

/// Processor time of all threads of this process so far.
pub fn process_cpu() -> Nanos {
    read(ClockId::ProcessCPUTime)
}

/// Now, on the host's monotonic clock and by its calendar.
pub fn started() -> Started {
    Started { at: now(), unix: read(ClockId::Realtime) }
}

fn read(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    // Only a calendar that is set to before 1970 is negative.
    Nanos(time.tv_sec.max(0) as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_clock_of_a_thread_stands_still_while_it_sleeps() {
        let (wall, cpu) = (now(), thread_cpu());
        thread::sleep(Duration::from_millis(20));
        let (wall, cpu) = (now().since(wall), thread_cpu().since(cpu));
        assert!(wall >= Nanos(20_000_000));
        assert!(cpu < Nanos(10_000_000), "{cpu:?}");
    }

    #[test]
    fn a_process_computes_at_least_as_much_as_one_of_its_threads() {
        let (thread, process) = (thread_cpu(), process_cpu());
        assert!(process >= thread, "{process:?} {thread:?}");
    }
}
