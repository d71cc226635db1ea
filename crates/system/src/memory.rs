//! How much memory there is, and how much of it this process holds and may still take.

use std::fs;

use paceline_record::Bytes;

use crate::cgroup::{self, Grant, Limit};
use crate::tree::{Tree, field};

/// The machine's memory, by `/proc/meminfo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// All of it.
    pub total: Option<Bytes>,
    /// What programs could still take without swapping.
    pub available: Option<Bytes>,
    /// Swap in use.
    pub swap_used: Option<Bytes>,
}

impl Machine {
    /// Reads it.
    pub fn read(tree: &Tree) -> Self {
        let info = tree.text("/proc/meminfo");
        let amount = |name| amount(info.as_deref()?, name);
        let swap = amount("SwapTotal").zip(amount("SwapFree"));
        Self {
            total: amount("MemTotal"),
            available: amount("MemAvailable"),
            swap_used: swap.map(|(total, free)| Bytes(total.0.saturating_sub(free.0))),
        }
    }
}

/// Memory that this process may still take: what the machine has available, or what the tightest control group around the
/// process has left of its limit, whichever is less. `None` where neither tells.
pub fn available() -> Option<Bytes> {
    let tree = Tree::new("/");
    least(Machine::read(&tree).available, cgroup::memory(&tree))
}

/// The lesser of what the machine has available and what a control group has left.
pub fn least(machine: Option<Bytes>, group: Option<Limit<Grant>>) -> Option<Bytes> {
    let group = match group {
        Some(Limit::At(grant)) => Some(grant.left),
        _ => None,
    };
    [machine, group].into_iter().flatten().min()
}

/// The most memory this process has held so far.
pub fn peak_resident() -> Option<Bytes> {
    amount(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// Memory that this process holds and others may hold too.
pub fn shared_resident() -> Option<Bytes> {
    amount(&fs::read_to_string("/proc/self/status").ok()?, "RssShmem")
}

/// An amount in a line `name: 7 kB`.
fn amount(text: &str, name: &str) -> Option<Bytes> {
    let kibibytes: u64 = field(text, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::Made;

    #[test]
    fn the_machine_tells_what_it_has_and_what_is_available() {
        let made = Made::new(&[(
            "proc/meminfo",
            "MemTotal: 2000 kB\nMemAvailable: 1000 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n",
        )]);
        let machine = Machine::read(&made.tree);
        assert_eq!((machine.total, machine.available), (Some(Bytes(2_048_000)), Some(Bytes(1_024_000))));
        assert_eq!(machine.swap_used, Some(Bytes(40 << 10)));
    }

    #[test]
    fn amounts_that_make_no_sense_are_unknown() {
        for odd in ["", "MemAvailable:", "MemAvailable: x kB", "MemAvailable: 7", "MemAvailable: -1 kB"] {
            assert_eq!(amount(odd, "MemAvailable"), None, "{odd}");
        }
        assert_eq!(amount("MemAvailable: 18446744073709551615 kB", "MemAvailable"), None);
    }

    #[test]
    fn the_lesser_of_machine_and_group_is_available() {
        let group = |left| Some(Limit::At(Grant { limit: Bytes(100), left: Bytes(left) }));
        assert_eq!(least(Some(Bytes(5)), group(7)), Some(Bytes(5)));
        assert_eq!(least(Some(Bytes(9)), group(7)), Some(Bytes(7)));
        assert_eq!(least(None, group(7)), Some(Bytes(7)));
        assert_eq!(least(Some(Bytes(5)), Some(Limit::Unlimited)), Some(Bytes(5)));
        assert_eq!(least(None, None), None);
    }

    #[test]
    fn this_process_holds_some_memory_and_may_take_more() {
        assert!(peak_resident().is_some_and(|peak| peak > Bytes(0)));
        assert!(shared_resident().is_some());
        assert!(available().is_some_and(|available| available > Bytes(0)));
    }
}
