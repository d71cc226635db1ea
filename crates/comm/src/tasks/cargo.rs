//! Where what travels between hosts lies in memory.

use std::ops::Range;

use super::{Ground, Node, Parts, side};
use crate::Area;

/// A run of bytes in memory that launcher and members share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub at: *mut u8,
    /// How long it is.
    pub len: usize,
}

/// Where the things lie that a porter sends and receives.
pub trait Cargo {
    /// This host's node of a slice, for the slice's owner.
    fn own_node(&self, parts: &Parts, node: Node, bucket: u32, slice: u32) -> Span;
    /// Another host's node of a slice that this host owns.
    fn node(&self, node: Node, bucket: u32, slice: u32) -> Span;
    /// The mean of a slice.
    fn mean(&self, bucket: u32, slice: u32) -> Span;
    /// The running statistics of a shard after so many steps.
    fn statistics(&self, steps: u64, shard: u32) -> Span;
    /// A slice of the state after so many steps: of its parameters, or of what the update rule keeps.
    fn state(&self, steps: u64, bucket: u32, slice: u32, number: u32) -> Span;
    /// Numbers of such values.
    fn states(&self) -> u32;
}

/// The cargo of real memory.
pub struct GroundCargo<'a> {
    ground: &'a Ground,
    /// Where each slice lies, bucket by bucket.
    ranges: Vec<Range<usize>>,
}

impl<'a> GroundCargo<'a> {
    /// With the place of each slice, bucket by bucket.
    ///
    /// # Panics
    /// If these are not all slices.
    pub fn new(ground: &'a Ground, ranges: Vec<Range<usize>>) -> Self {
        let shape = ground.size().shape;
        assert_eq!(
            ranges.len(),
            (shape.buckets * shape.slices) as usize,
            "invariant: every slice lies somewhere"
        );
        Self { ground, ranges }
    }

    fn range(&self, bucket: u32, slice: u32) -> &Range<usize> {
        let slices = self.ground.size().shape.slices;
        &self.ranges[(bucket * slices + slice) as usize]
    }

    /// Gradients, or sums of them.
    fn gradients(&self, area: Area, bucket: u32, slice: u32) -> Span {
        let (at, len) = self.ground.travelling_run(area, self.range(bucket, slice));
        Span { at, len }
    }
}

impl Cargo for GroundCargo<'_> {
    fn own_node(&self, parts: &Parts, node: Node, bucket: u32, slice: u32) -> Span {
        self.gradients(self.ground.node(parts, node), bucket, slice)
    }

    fn node(&self, node: Node, bucket: u32, slice: u32) -> Span {
        self.gradients(self.ground.gradients(node.first), bucket, slice)
    }

    fn mean(&self, bucket: u32, slice: u32) -> Span {
        self.gradients(self.ground.means(), bucket, slice)
    }

    fn statistics(&self, steps: u64, shard: u32) -> Span {
        let area = self.ground.statistics(side(steps), shard);
        Span { at: area.address().cast(), len: 4 * area.len() }
    }

    fn state(&self, steps: u64, bucket: u32, slice: u32, number: u32) -> Span {
        let area = match number.checked_sub(1) {
            None => self.ground.parameters(side(steps)),
            Some(kept) => self.ground.state(side(steps), kept as usize),
        };
        let range = self.range(bucket, slice);
        Span { at: area.part(range).cast(), len: 4 * range.len() }
    }

    fn states(&self) -> u32 {
        1 + self.ground.size().state as u32
    }
}
