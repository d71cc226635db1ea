//! The clocks: one that all processes of a host share, and those that run while a thread or a process computes.

use std::sync::OnceLock;

use paceline_record::{Nanos, Started};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Now, on the host's monotonic clock (`CLOCK_MONOTONIC`), or on the one that was planted in this process.
pub fn now() -> Nanos {
    let now = read(ClockId::Monotonic);
    PLANTED.get().map_or(now, |clock| clock.shows(now))
}

/// A clock that is ahead of the host's and runs faster or slower, to see whether anything depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrongClock {
    /// How far it is ahead at first.
    pub ahead: Nanos,
    /// How much it gains, in parts per million.
    pub gains_ppm: f64,
    /// When that began, on the host's clock.
    pub since: Nanos,
}

static PLANTED: OnceLock<WrongClock> = OnceLock::new();

/// The wrong clock that this process has, if it has one.
pub fn planted() -> Option<WrongClock> {
    PLANTED.get().copied()
}

impl WrongClock {
    /// What it shows at a moment of the host's clock.
    pub fn shows(&self, at: Nanos) -> Nanos {
        let passed = at.0 as i64 - self.since.0 as i64;
        let gained = (passed as f64 * self.gains_ppm * 1e-6).round() as i64;
        Nanos((at.0 + self.ahead.0).saturating_add_signed(gained))
    }

    /// Lets this process have it from here on. Only the first that is planted counts.
    pub fn plant(self) {
        // A process has one clock.
        let _ = PLANTED.set(self);
    }
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
    fn a_wrong_clock_is_ahead_and_gains_or_loses_evenly() {
        let clock =
            |gains_ppm| WrongClock { ahead: Nanos(3_000_000_000), gains_ppm, since: Nanos(10_000_000_000) };
        assert_eq!(clock(50.0).shows(Nanos(10_000_000_000)), Nanos(13_000_000_000));
        assert_eq!(clock(50.0).shows(Nanos(20_000_000_000)), Nanos(23_000_500_000));
        assert_eq!(clock(-50.0).shows(Nanos(20_000_000_000)), Nanos(22_999_500_000));
        // What it showed before it was planted.
        assert_eq!(clock(50.0).shows(Nanos(9_000_000_000)), Nanos(11_999_950_000));
    }

    #[test]
    fn a_process_computes_at_least_as_much_as_one_of_its_threads() {
        let (thread, process) = (thread_cpu(), process_cpu());
        assert!(process >= thread, "{process:?} {thread:?}");
    }
}
