//! Who is silent for how long, and how often to give a sign of life.

use paceline_record::Nanos;

/// How often signs of life are sent at least, in parts of the lease, and clocks read.
const BEATS: u64 = 8;

/// The longest time between two of them, however long the lease: shorter than [`LONGEST_LOOK`], or silence would not count.
const LONGEST_BEAT: Nanos = Nanos(200_000_000);

/// The time between two signs of life.
pub(super) fn beat(lease: Nanos) -> Nanos {
    Nanos(lease.0 / BEATS).min(LONGEST_BEAT)
}

/// The longest time between two looks that counts: more means that this launcher itself stood still, and heard nobody.
const LONGEST_LOOK: Nanos = Nanos(250_000_000);

/// How long somebody has been silent while this launcher listened.
#[derive(Default)]
pub(super) struct Silence {
    looked: Option<Nanos>,
    silent: Nanos,
}

impl Silence {
    /// Takes note of whether something was heard; for how long nothing has been.
    pub fn look(&mut self, is_heard: bool, now: Nanos) -> Nanos {
        let passed = self.looked.map_or(Nanos(0), |last| now.since(last).min(LONGEST_LOOK));
        self.looked = Some(now);
        self.silent = if is_heard { Nanos(0) } else { self.silent + passed };
        self.silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_come_often_however_long_the_lease() {
        for (lease, expected) in [(200, 25), (1000, 125), (2000, 200), (30_000, 200), (3_600_000, 200)] {
            assert_eq!(beat(Nanos(lease * 1_000_000)), Nanos(expected * 1_000_000), "{lease} ms");
        }
        assert!(LONGEST_BEAT < LONGEST_LOOK);
    }

    #[test]
    fn silence_counts_only_while_somebody_listens() {
        let mut silence = Silence::default();
        let milli = |millis: u64| Nanos(millis * 1_000_000);
        assert_eq!(silence.look(true, milli(0)), Nanos(0));
        assert_eq!(silence.look(false, milli(100)), milli(100));
        // The machine stood still for an hour.
        assert_eq!(silence.look(false, milli(3_600_100)), milli(350));
        assert_eq!(silence.look(true, milli(3_600_200)), Nanos(0));
    }
}
