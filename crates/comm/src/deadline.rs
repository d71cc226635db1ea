//! How long a call may wait.

use std::time::Duration;

use paceline_record::Nanos;
use paceline_system::clock::now;
use rustix::time::Timespec;

/// The moment at which a call stops waiting, on the host's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Nanos);

impl Deadline {
    /// A deadline at this moment.
    pub fn at(moment: Nanos) -> Self {
        Self(moment)
    }

    /// A deadline this long from now.
    pub fn after(time: Duration) -> Self {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(Nanos(now().0.saturating_add(time)))
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        now() >= self.0
    }

    /// The time until it passes.
    pub(crate) fn left(self) -> Duration {
        Duration::from_nanos(self.0.0.saturating_sub(now().0))
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
}
