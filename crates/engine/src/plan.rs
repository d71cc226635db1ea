//! The static memory plan: every buffer of a step, with its lifetime, in one arena.

/// Bytes that a program takes, by purpose. The parts add up to [`MemoryPlan::total`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Trained values and running statistics.
    pub parameters: u64,
    /// Gradients of the trained values.
    pub gradients: u64,
    /// State of the update rule.
    pub optimizer: u64,
    /// Activations, their gradients and workspaces, sharing memory where their lifetimes allow.
    pub arena: u64,
    /// The same buffers if none shared memory with another: what the plan saves is the difference.
    pub arena_unshared: u64,
}

impl MemoryPlan {
    /// All bytes that the program holds.
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer + self.arena
    }
}

/// A buffer that exists from step `first` to step `last` of the program, both included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub len: usize,
    pub first: usize,
    pub last: usize,
}

/// Values of an arena are handed out in multiples of this, so that every buffer starts on a cache line.
const GRAIN: usize = 16;

/// Places buffers so that no two that live at the same time overlap: largest first, each at the lowest offset that is
/// free over its whole life. Returns the offsets and the arena's length, in values.
pub(crate) fn place(buffers: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(buffers[i].len), buffers[i].first, i));
    let mut offsets = vec![0; buffers.len()];
    let mut placed: Vec<usize> = Vec::new(); // by rising offset
    let mut total = 0;
    for i in order {
        let buffer = buffers[i];
        let len = buffer.len.next_multiple_of(GRAIN);
        let mut at = 0;
        for &j in &placed {
            let other = buffers[j];
            if other.last < buffer.first || buffer.last < other.first {
                continue;
            }
            if offsets[j] >= at + len {
                break;
            }
            at = at.max(offsets[j] + other.len.next_multiple_of(GRAIN));
        }
        offsets[i] = at;
        total = total.max(at + len);
        let position = placed.partition_point(|&j| offsets[j] < at);
        placed.insert(position, i);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(len: usize, first: usize, last: usize) -> Lifetime {
        Lifetime { len, first, last }
    }

    #[test]
    fn buffers_that_never_meet_share_memory() {
        let (offsets, total) = place(&[buffer(64, 0, 1), buffer(64, 2, 3), buffer(32, 1, 2)]);
        assert_eq!(offsets[0], offsets[1]);
        assert_eq!(total, 96);
    }

    proptest::proptest! {
        #[test]
        fn buffers_alive_together_never_overlap(
            spec in proptest::collection::vec((1usize..200, 0usize..20, 0usize..20), 1..60),
        ) {
            let buffers: Vec<_> = spec
                .iter()
                .map(|&(len, a, b)| buffer(len, a.min(b), a.max(b)))
                .collect();
            let (offsets, total) = place(&buffers);
            for i in 0..buffers.len() {
                proptest::prop_assert!(offsets[i] + buffers[i].len <= total);
                for j in 0..i {
                    let (a, b) = (buffers[i], buffers[j]);
                    let together = a.first <= b.last && b.first <= a.last;
                    let apart = offsets[i] + a.len <= offsets[j] || offsets[j] + b.len <= offsets[i];
                    proptest::prop_assert!(!together || apart);
                }
            }
        }
    }
}
