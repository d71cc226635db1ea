//! The clocks: one that all processes of a host share, and one that runs while a thread computes.

use std::time::Duration;

use paceline_record::Nanos;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Now, on the host's monotonic clock.
pub(crate) fn now() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Time that the calling thread has computed.
pub(crate) fn thread_cpu() -> Nanos {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
}

fn nanos(time: Timespec) -> Nanos {
    // Neither clock is ever negative.
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The moment at which a call stops waiting, on the host's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Nanos);

impl Deadline {
    /// That moment.
    pub fn at(moment: Nanos) -> Self {
        Self(moment)
    }

    /// So long from now.
    pub fn after(time: Duration) -> Self {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(Nanos(now().0.saturating_add(time)))
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        now() >= self.0
    }

    pub(crate) fn timespec(self) -> Timespec {
        Timespec { tv_sec: (self.0.0 / 1_000_000_000) as i64, tv_nsec: (self.0.0 % 1_000_000_000) as _ }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_when_its_moment_comes() {
        assert!(Deadline::at(now()).has_passed());
        assert!(!Deadline::after(Duration::from_secs(60)).has_passed());
        assert!(!Deadline::after(Duration::MAX).has_passed());
    }

    #[test]
    fn the_clock_of_a_thread_stands_still_while_it_sleeps() {
        let (wall, cpu) = (now(), thread_cpu());
        std::thread::sleep(Duration::from_millis(20));
        let (wall, cpu) = (now().since(wall), thread_cpu().since(cpu));
        assert!(wall >= Nanos(20_000_000));
        assert!(cpu < Nanos(10_000_000), "{cpu:?}");
    }
}
