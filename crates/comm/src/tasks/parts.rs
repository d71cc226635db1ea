//! Which host has which part of a step.
//!
//! Each host computes a range of the shards, and each slice is added up by one host, its *owner*. What other hosts have of it
//! travels there as *nodes* of the sum's tree, so that the order of the sum is that of a single host; the mean of the gradients
//! travels back, and every host updates the whole state. A *guest* has no shards yet: it gets the state, and follows.

use std::ops::Range;

use paceline_record::Rank;

use crate::deal;

/// The hosts of a roster and their shards, as one of them sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Where the shards of each host end, in the order of the roster.
    ends: Vec<u32>,
    /// The place of this host.
    own: usize,
    /// Slices of a bucket.
    slices: u32,
}

/// A perfect subtree of the sum over all shards: a power of two of them, from a multiple of it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its first shard.
    pub first: u32,
    /// How many levels of sums it has: it covers two to the power of that.
    pub level: u32,
}

impl Node {
    /// The shards that it covers.
    pub fn shards(self) -> Range<u32> {
        self.first..self.first + (1 << self.level)
    }
}

/// The fewest nodes that cover a range of shards, in order.
pub fn cover(shards: Range<u32>) -> impl Iterator<Item = Node> + Clone {
    let mut first = shards.start;
    std::iter::from_fn(move || {
        let left = shards.end.checked_sub(first).filter(|&left| left > 0)?;
        let level = first.trailing_zeros().min(left.ilog2());
        let node = Node { first, level };
        first += 1 << level;
        Some(node)
    })
}

impl Parts {
    /// Shards that end there, host by host, as the host at place `own` sees them. Guests come last.
    ///
    /// # Panics
    /// If it is not one of them, or a guest comes before one that has shards.
    pub fn new(ends: Vec<u32>, own: usize, slices: u32) -> Self {
        assert!(own < ends.len() && ends[0] > 0, "invariant: a host of the roster");
        let parts = Self { ends, own, slices };
        let guests = parts.ends.iter().filter(|&&end| end == parts.all_shards()).count() - 1;
        let owners = &parts.ends[..parts.hosts() - guests];
        assert!(owners.is_sorted_by(|a, b| a < b), "invariant: guests come last");
        parts
    }

    /// One host that has everything.
    pub fn whole(shards: u32, slices: u32) -> Self {
        Self { ends: vec![shards], own: 0, slices }
    }

    /// Deals shards to hosts by what each weighs, at borders that let few nodes travel.
    pub fn deal(shards: u32, weights: &[u32]) -> Vec<u32> {
        let hosts = weights.len() as u32;
        assert!(hosts > 0 && hosts <= shards, "invariant: a shard for every host");
        let all: u64 = weights.iter().map(|&weight| u64::from(weight.max(1))).sum();
        let mut sum = 0;
        let mut last = 0;
        let ends = (1..).zip(weights).map(|(place, &weight)| {
            sum += u64::from(weight.max(1));
            let ideal = (u64::from(shards) * sum + all / 2) / all;
            let (least, most) = (last + 1, shards - (hosts - place));
            last = (ideal as u32).clamp(least, most);
            last
        });
        ends.collect()
    }

    /// Hosts of the roster.
    pub fn hosts(&self) -> usize {
        self.ends.len()
    }

    /// The place of this host.
    pub fn own(&self) -> usize {
        self.own
    }

    /// Where the shards of each host end.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The shards of the host at a place.
    pub fn shards(&self, place: usize) -> Range<u32> {
        let begin = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        begin..self.ends[place]
    }

    /// The shards of this host.
    pub fn own_shards(&self) -> Range<u32> {
        self.shards(self.own)
    }

    /// All shards.
    pub fn all_shards(&self) -> u32 {
        self.ends[self.ends.len() - 1]
    }

    /// Hosts with shards; they come first.
    fn owners(&self) -> u32 {
        self.ends.iter().filter(|&&end| end < self.all_shards()).count() as u32 + 1
    }

    /// The places of guests.
    pub fn guests(&self) -> Range<usize> {
        self.owners() as usize..self.hosts()
    }

    /// Whether all shards are this host's.
    pub fn has_all(&self) -> bool {
        self.own_shards().len() == self.all_shards() as usize
    }

    /// The place of the host that adds up a slice.
    pub fn owner(&self, slice: u32) -> usize {
        let hosts = self.owners();
        let is_its = |&place: &u32| deal(self.slices, Rank(place), hosts).contains(&slice);
        (0..hosts).find(is_its).expect("invariant: a slice of this run") as usize
    }

    /// Whether this host adds up a slice.
    pub fn is_owner(&self, slice: u32) -> bool {
        let (own, hosts) = (self.own as u32, self.owners());
        own < hosts && deal(self.slices, Rank(own), hosts).contains(&slice)
    }

    /// What travels from the host at a place to a slice's owner.
    pub fn nodes(&self, place: usize) -> impl Iterator<Item = Node> + Clone {
        cover(self.shards(place))
    }

    /// The nodes of the whole sum as this host has them, in order: other hosts' as they came, and its own.
    pub fn all_nodes(&self) -> impl Iterator<Item = (Node, bool)> + Clone {
        (0..self.hosts()).flat_map(move |place| self.nodes(place).map(move |node| (node, place == self.own)))
    }
}

/// Areas for nodes of at least that level on their way out, besides the one for means: enough for any range of so many shards.
pub fn outboxes(shards: u32, least: u32) -> usize {
    let most = (0..shards)
        .flat_map(|first| (first + 1..=shards).map(move |end| first..end))
        .filter(|range| range.len() < shards as usize)
        .map(|range| cover(range).filter(|node| node.level >= least).count())
        .max();
    most.unwrap_or(0).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(range: Range<u32>) -> Vec<(u32, u32)> {
        cover(range).map(|node| (node.first, 1 << node.level)).collect()
    }

    #[test]
    fn ranges_are_covered_by_few_perfect_subtrees() {
        assert_eq!(nodes(0..4), [(0, 4)]);
        assert_eq!(nodes(4..8), [(4, 4)]);
        assert_eq!(nodes(1..7), [(1, 1), (2, 2), (4, 2), (6, 1)]);
        assert_eq!(nodes(3..3), []);
        for first in 0..40 {
            for end in first..40 {
                let all: Vec<u32> = cover(first..end).flat_map(Node::shards).collect();
                assert_eq!(all, (first..end).collect::<Vec<_>>());
                assert!(cover(first..end).all(|node| node.first.is_multiple_of(1 << node.level)));
            }
        }
    }

    #[test]
    fn shards_are_dealt_by_weight_and_nobody_goes_without() {
        assert_eq!(Parts::deal(16, &[8, 8]), [8, 16]);
        assert_eq!(Parts::deal(12, &[4, 4, 4]), [4, 8, 12]);
        assert_eq!(Parts::deal(4, &[3, 1]), [3, 4]);
        assert_eq!(Parts::deal(3, &[100, 1, 1]), [1, 2, 3]);
        assert_eq!(Parts::deal(5, &[1, 1]), [3, 5]);
    }

    #[test]
    fn every_slice_has_one_owner() {
        for hosts in 1..5u32 {
            let ends: Vec<u32> = (1..=hosts).collect();
            for slice in 0..8 {
                let owners =
                    (0..hosts as usize).filter(|&own| Parts::new(ends.clone(), own, 8).is_owner(slice));
                let owners: Vec<usize> = owners.collect();
                assert_eq!(owners, [Parts::new(ends.clone(), 0, 8).owner(slice)]);
            }
        }
    }

    #[test]
    fn guests_have_neither_shards_nor_slices() {
        let parts = Parts::new(vec![2, 4, 4], 2, 6);
        assert!(parts.own_shards().is_empty() && (0..6).all(|slice| !parts.is_owner(slice)));
        assert_eq!((0..6).map(|slice| parts.owner(slice)).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
        assert!(Parts::new(vec![4, 4], 0, 6).has_all());
    }

    #[test]
    fn there_is_room_for_whatever_travels() {
        assert_eq!([1, 2, 4, 8, 16].map(|shards| outboxes(shards, 1)), [0, 0, 0, 1, 3]);
        assert_eq!([1, 2, 4, 8, 16].map(|shards| outboxes(shards, 0)), [0, 0, 1, 3, 5]);
    }
}
