//! How the time of cores was spent since the machine started, by `/proc/stat`.

use rustix::thread::{CpuSet, sched_getaffinity};

/// Cores that the calling thread may run on.
pub fn allowed() -> Option<Vec<usize>> {
    let mask = sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|&core| mask.is_set(core)).collect())
}

/// Time of some cores, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// Cores that these are the sums of.
    pub cores: usize,
    /// Time in which they computed.
    pub busy: u64,
    /// Time that the hypervisor gave to others while something here wanted to compute.
    pub stolen: u64,
    /// All of their time, idle or not.
    pub all: u64,
}

/// How some cores spent a while, in fractions of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spent {
    /// They computed.
    pub busy: f64,
    /// The hypervisor gave them to others.
    pub stolen: f64,
}

impl Ticks {
    /// How the time since an earlier look was spent; `None` where the looks cannot be compared, or no time passed.
    pub fn since(&self, earlier: &Self) -> Option<Spent> {
        let all = self.all.checked_sub(earlier.all).filter(|&all| all > 0 && self.cores == earlier.cores)?;
        let fraction = |before: u64, after: u64| (after.saturating_sub(before) as f64 / all as f64).min(1.0);
        Some(Spent { busy: fraction(earlier.busy, self.busy), stolen: fraction(earlier.stolen, self.stolen) })
    }

    /// Sums the lines of these cores: `cpu0 user nice system idle iowait irq softirq steal guest guest_nice`. `None` where
    /// a line of theirs makes no sense, or none is there.
    pub fn parse(stat: &str, allowed: &[usize]) -> Option<Self> {
        let mut sum = Self { cores: 0, busy: 0, stolen: 0, all: 0 };
        for line in stat.lines() {
            let Some((core, rest)) = line.strip_prefix("cpu").and_then(|line| line.split_once(' ')) else {
                continue;
            };
            if !core.parse().is_ok_and(|core| allowed.contains(&core)) {
                continue;
            }
            // Guests' time is part of the user's.
            let numbers: Option<Vec<u64>> =
                rest.split_whitespace().take(8).map(|word| word.parse().ok()).collect();
            let [user, nice, system, idle, iowait, irq, softirq, stolen] = numbers?.try_into().ok()?;
            let add = |values: &[u64]| values.iter().try_fold(0u64, |sum, &value| sum.checked_add(value));
            let busy = add(&[user, nice, system, irq, softirq])?;
            sum.cores += 1;
            sum.busy = sum.busy.checked_add(busy)?;
            sum.stolen = sum.stolen.checked_add(stolen)?;
            sum.all = add(&[sum.all, busy, stolen, idle, iowait])?;
        }
        (sum.cores > 0).then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_allowed_cores_are_summed() {
        let stat = "cpu 9 9\ncpu0 1 2 3 4 5 6 7 8 9 9\ncpu1 50 0 0 0 0 0 0 0\ncpu2 1 0 0 0 0 0 0 1\nctxt 7\n";
        let sum = Ticks { cores: 2, busy: 20, stolen: 9, all: 38 };
        assert_eq!(Ticks::parse(stat, &[0, 2]), Some(sum));
        assert_eq!(Ticks::parse(stat, &[7]), None);
    }

    #[test]
    fn lines_that_make_no_sense_are_unknown() {
        for bad in [
            "",
            "cpu0",
            "cpu0 1 2 3",
            "cpu0 a b c d e f g h",
            "cpu0 18446744073709551615 1 0 0 0 0 0 0",
            "cpux 1",
        ] {
            assert_eq!(Ticks::parse(bad, &[0]), None, "{bad}");
        }
    }
}
