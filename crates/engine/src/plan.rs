//! The static memory plan: every buffer of a step, with its lifetime, in one arena.

use std::ops::Range;

use paceline_model::NodeId;

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

/// A buffer of the arena, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer(pub usize);

/// The buffers of a program while it is lowered. Time counts units: a buffer lives from the unit that takes it to the last
/// one that uses it.
pub(crate) struct Buffers {
    pub now: usize,
    lifetimes: Vec<Lifetime>,
    /// Of each node's value.
    values: Vec<Option<Buffer>>,
}

impl Buffers {
    pub fn new(nodes: usize) -> Self {
        Self { now: 0, lifetimes: Vec::new(), values: vec![None; nodes] }
    }

    /// A new buffer of so many values, alive now.
    pub fn take(&mut self, len: usize) -> Buffer {
        self.lifetimes.push(Lifetime { len, first: self.now, last: self.now });
        Buffer(self.lifetimes.len() - 1)
    }

    /// Marks a buffer as used until so many units from now.
    pub fn touch(&mut self, buffer: Buffer, later: usize) -> Buffer {
        let lifetime = &mut self.lifetimes[buffer.0];
        lifetime.last = lifetime.last.max(self.now + later);
        buffer
    }

    /// Whether a buffer is kept until then.
    pub fn lives_until(&self, buffer: Buffer, time: usize) -> bool {
        self.lifetimes[buffer.0].last >= time
    }

    /// Says where the value of a node is.
    pub fn assign(&mut self, id: NodeId, buffer: Buffer) -> Buffer {
        self.values[id.0] = Some(buffer);
        buffer
    }

    /// The value of a node, used now.
    pub fn value(&mut self, id: NodeId) -> Buffer {
        let buffer = self.values[id.0].expect("invariant: inputs precede their users");
        self.touch(buffer, 0)
    }

    /// Places all buffers in one arena; the values of the network's input and output stay for the whole step, which ends so
    /// many units from now.
    pub fn place(mut self, [input, output]: [NodeId; 2], later: usize) -> Arena {
        let ends = [input, output].map(|id| self.values[id.0].expect("invariant: both have a buffer"));
        for buffer in ends {
            let lifetime = &mut self.lifetimes[buffer.0];
            (lifetime.first, lifetime.last) = (0, self.now + later);
        }
        let (offsets, len) = place(&self.lifetimes);
        let ranges = self.lifetimes.iter().zip(offsets).map(|(buffer, at)| at..at + buffer.len).collect();
        let unshared = self.lifetimes.iter().map(|buffer| buffer.len).sum();
        let largest = self.lifetimes.iter().map(|buffer| buffer.len).max().unwrap_or(0);
        Arena { ranges, len, unshared, largest, input: ends[0], output: ends[1] }
    }
}

/// Where buffers lie in the memory that they share, in values.
pub(crate) struct Arena {
    pub ranges: Vec<Range<usize>>,
    pub len: usize,
    /// The length if none shared memory with another.
    pub unshared: usize,
    /// The length of the largest buffer.
    pub largest: usize,
    /// The network's input and output.
    pub input: Buffer,
    pub output: Buffer,
}

/// A buffer that exists from unit `first` to unit `last`, both included.
#[derive(Clone, Copy, Debug)]
struct Lifetime {
    len: usize,
    first: usize,
    last: usize,
}

/// Values are handed out in multiples of this, so that every buffer and every parameter starts on a cache line.
pub(crate) const GRAIN: usize = 16;

/// Places buffers so that no two that live at the same time overlap: largest first, each at the lowest offset that is
/// free over its whole life. Returns the offsets and the arena's length, in values.
fn place(buffers: &[Lifetime]) -> (Vec<usize>, usize) {
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
