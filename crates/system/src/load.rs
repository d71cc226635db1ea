//! What else a machine does: two looks at the kernel's counters, and what lies between.

use std::thread;
use std::time::Duration;

use paceline_record::{Load, Nanos};

use crate::cgroup::Limit;
use crate::cores::{Ticks, allowed};
use crate::tree::Tree;
use crate::{cgroup, clock};

/// Time between the two looks: twenty of the kernel's usual ticks on each core.
const PAUSE: Duration = Duration::from_millis(200);

/// One look.
struct Look {
    ticks: Option<Ticks>,
    /// Processor time of this process, which is no other's.
    own: Nanos,
    at: Nanos,
}

impl Look {
    fn take(tree: &Tree, allowed: &[usize]) -> Self {
        let ticks = tree.text("/proc/stat").and_then(|text| Ticks::parse(&text, allowed));
        Self { ticks, own: clock::process_cpu(), at: clock::now() }
    }

    /// Cores that others kept busy, and that a hypervisor took, from this look to a later one.
    fn until(&self, later: &Self) -> Option<(f64, f64)> {
        let spent = later.ticks?.since(&self.ticks?)?;
        let cores = later.ticks?.cores as f64;
        let own = later.own.since(self.own).seconds() / later.at.since(self.at).seconds().max(1e-9);
        Some(((spent.busy * cores - own).max(0.0), spent.stolen * cores))
    }
}

/// Looks for 200 ms at what others do on the cores that this process may use; `None` where nothing can be read.
pub fn measure(tree: &Tree) -> Option<Load> {
    let allowed = allowed()?;
    let before = Look::take(tree, &allowed);
    thread::sleep(PAUSE);
    sum_up(tree, &allowed, &before, &Look::take(tree, &allowed))
}

fn sum_up(tree: &Tree, allowed: &[usize], before: &Look, after: &Look) -> Option<Load> {
    let (busy_cores, stolen_cores) = before.until(after).unzip();
    let quota_cores = match cgroup::quota(tree) {
        Some(Limit::At(cores)) => Some(cores),
        Some(Limit::Unlimited) | None => None,
    };
    let known = busy_cores.is_some() || quota_cores.is_some();
    known.then_some(Load { cores: allowed.len() as u32, busy_cores, stolen_cores, quota_cores })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::tree::tests::Made;

    /// Processes that never rest; they end with this.
    struct BusyLoops(Vec<Child>);

    impl Drop for BusyLoops {
        fn drop(&mut self) {
            for child in &mut self.0 {
                child.kill().and_then(|()| child.wait()).expect("a process of our own");
            }
        }
    }

    #[test]
    fn a_busy_loop_on_every_core_is_noticed() {
        let cores = allowed().expect("cores").len();
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        let _loops = BusyLoops((0..cores).map(|_| spin()).collect());
        let load = measure(&Tree::new("/")).expect("counters");
        assert!(load.busy_cores.is_some_and(|busy| busy >= 0.5), "{load:?}");
    }

    /// A look at planted files, on clocks that a test sets.
    fn look(made: &Made, own: u64, at: u64) -> Look {
        Look { own: Nanos(own), at: Nanos(at), ..Look::take(&made.tree, &[0, 2]) }
    }

    #[test]
    fn others_have_what_is_busy_and_not_our_own() {
        let made = Made::new(&[(
            "proc/stat",
            "cpu0 100 0 0 900 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\n",
        )]);
        let before = look(&made, 0, 1_000_000_000);
        // Of 20 ticks on each of two cores, 16 and 10 were busy and 2 stolen; core 1 is not ours.
        made.plant("proc/stat", "cpu0 112 2 2 904 0 0 0 0\ncpu1 20 0 0 0 0 0 0 0\ncpu2 10 0 0 8 0 0 0 2\n");
        let after = look(&made, 50_000_000, 1_200_000_000);
        let load = sum_up(&made.tree, &[0, 2], &before, &after).expect("a load");
        assert!((load.busy_cores.expect("known") - (26.0 / 40.0 * 2.0 - 0.25)).abs() < 1e-9, "{load:?}");
        assert!((load.stolen_cores.expect("known") - 2.0 / 40.0 * 2.0).abs() < 1e-9, "{load:?}");
        assert_eq!((load.cores, load.quota_cores), (2, None));
    }

    #[test]
    fn more_own_time_than_busy_time_leaves_nothing_for_others() {
        let made = Made::new(&[("proc/stat", "cpu0 0 0 0 0 0 0 0 0\n")]);
        let before = look(&made, 0, 0);
        made.plant("proc/stat", "cpu0 1 0 0 19 0 0 0 0\n");
        let load = sum_up(&made.tree, &[0], &before, &look(&made, 30_000_000, 200_000_000));
        assert_eq!(load.and_then(|load| load.busy_cores), Some(0.0));
    }

    #[test]
    fn a_quota_is_told_even_where_the_counters_cannot_be_read() {
        let made = Made::new(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("proc/stat", "torn"),
        ]);
        let (before, after) = (look(&made, 0, 0), look(&made, 0, 1));
        let load = sum_up(&made.tree, &[0, 1], &before, &after).expect("a quota");
        assert_eq!((load.busy_cores, load.stolen_cores, load.quota_cores), (None, None, Some(1.5)));
        let nothing = Made::new(&[]);
        assert_eq!(sum_up(&nothing.tree, &[0], &before, &after), None);
    }
}
