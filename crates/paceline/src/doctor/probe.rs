//! What a core does while a thread on it only watches the clock.

use std::hint::black_box;
use std::thread;

use paceline_record::Nanos;
use paceline_system::clock;
use paceline_system::tree::Tree;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::facts::Spin;
use super::reading;

/// Time that each core is watched.
const SPAN: Nanos = Nanos(100_000_000);

/// A gap that nothing explains but that the core did something else. A reading takes far less, even a slow one.
pub const GAP: Nanos = Nanos(20_000);

/// Readings that are timed together.
const READINGS: u64 = 10_000;

/// Time that a reading of the clock takes, at its best.
pub fn time_readings() -> Nanos {
    let round = || {
        let began = clock::now();
        for _ in 0..READINGS {
            black_box(clock::now());
        }
        Nanos(clock::now().since(began).0 / READINGS)
    };
    (0..5).map(|_| round()).min().expect("invariant: five rounds")
}

/// Watches all of these cores at once, as workers would use them; `None` where a thread could not be kept to its core.
pub fn spin(tree: &Tree, cores: &[usize]) -> Option<Vec<Spin>> {
    if cores.iter().any(|&core| core >= CpuSet::MAX_CPU) {
        return None;
    }
    thread::scope(|scope| {
        let start =
            |&core: &usize| thread::Builder::new().spawn_scoped(scope, move || spin_on(tree, core)).ok();
        let threads: Vec<_> = cores.iter().map(start).collect();
        threads.into_iter().map(|thread| thread?.join().ok()?).collect()
    })
}

fn spin_on(tree: &Tree, core: usize) -> Option<Spin> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).ok()?;
    let (lost, longest) = find_gaps(clock::now);
    // Read while the core has not yet noticed that it may rest.
    let khz = reading::read_frequency(tree, core);
    Some(Spin { core, lost, longest, khz })
}

/// Watches a clock; the fraction of the time that went by in gaps, and the longest step between two readings.
fn find_gaps(mut now: impl FnMut() -> Nanos) -> (f64, Nanos) {
    let began = now();
    let (mut last, mut lost, mut longest) = (began, 0, Nanos(0));
    while last.since(began) < SPAN {
        let next = now();
        let gap = next.since(last);
        if gap > GAP {
            lost += gap.0;
        }
        longest = longest.max(gap);
        last = next;
    }
    (lost as f64 / last.since(began).0 as f64, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_counted_and_ordinary_readings_are_not() {
        let mut time = 0;
        let clock = || {
            // Every reading takes 10 us; one in the middle takes 10 ms.
            time += if time == 50_000_000 { 10_000_000 } else { 10_000 };
            Nanos(time)
        };
        let (lost, longest) = find_gaps(clock);
        assert!((lost - 0.1).abs() < 1e-3, "{lost}");
        assert_eq!(longest, Nanos(10_000_000));
    }

    #[test]
    fn a_core_that_is_not_there_gives_nothing() {
        assert_eq!(spin(&Tree::new("/"), &[CpuSet::MAX_CPU]), None);
    }
}
