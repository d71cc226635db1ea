//! Which rank works on which part of a range.

use std::ops::Range;

use paceline_record::Rank;

/// Values of one cache line: no two ranks write to the same one.
const LINE: usize = 16;

/// The part of `range` that `rank` works on. The parts of all ranks tile the range in order, differ in length by a cache
/// line at most (their outer ends aside), and meet at multiples of 16 values; with fewer lines than ranks, some are
/// empty.
///
/// # Panics
/// If the rank is not of this world.
pub fn slice(range: Range<usize>, rank: Rank, world: u32) -> Range<usize> {
    assert!(rank.0 < world, "rank {rank} is not one of a world of {world}");
    if range.is_empty() {
        return range.start..range.start;
    }
    let first = range.start / LINE;
    let lines = range.end.div_ceil(LINE) - first;
    // In 128 bits, where no range times no world overflows.
    let edge = |part: u32| {
        let line = first + (lines as u128 * u128::from(part) / u128::from(world)) as usize;
        (line * LINE).clamp(range.start, range.end)
    };
    edge(rank.0)..edge(rank.0 + 1)
}

/// Which of `count` items `rank` gets when they are dealt out in order, as evenly as possible.
///
/// # Panics
/// If the rank is not of this world.
pub fn deal(count: u32, rank: Rank, world: u32) -> Range<u32> {
    assert!(rank.0 < world, "rank {rank} is not one of a world of {world}");
    let edge = |part: u32| (u64::from(count) * u64::from(part) / u64::from(world)) as u32;
    edge(rank.0)..edge(rank.0 + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_even_range_is_shared_evenly() {
        let slices = [0, 1].map(|rank| slice(0..64, Rank(rank), 2));
        assert_eq!(slices, [0..32, 32..64]);
    }

    #[test]
    fn items_are_dealt_out_in_order_and_evenly() {
        assert_eq!([0, 1, 2].map(|rank| deal(4, Rank(rank), 3)), [0..1, 1..2, 2..4]);
        assert_eq!([0, 1].map(|rank| deal(2, Rank(rank), 2)), [0..1, 1..2]);
        assert_eq!(deal(8, Rank(0), 1), 0..8);
    }

    #[test]
    fn a_range_shorter_than_a_line_belongs_to_one_rank() {
        let slices = [0, 1, 2].map(|rank| slice(3..7, Rank(rank), 3).len());
        assert_eq!(slices.iter().sum::<usize>(), 4);
        assert_eq!(slices.iter().filter(|&&len| len > 0).count(), 1);
    }

    proptest! {
        #[test]
        fn slices_tile_the_range_and_meet_at_cache_lines(
            start in 0..1000_usize,
            len in 0..5000_usize,
            world in 1..20_u32,
        ) {
            let range = start..start + len;
            let slices: Vec<_> = (0..world).map(|r| slice(range.clone(), Rank(r), world)).collect();
            prop_assert_eq!(slices[0].start, range.start);
            if len > 0 {
                prop_assert_eq!(slices[world as usize - 1].end, range.end);
            }
            for pair in slices.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                let edge = pair[0].end;
                prop_assert!(edge % LINE == 0 || edge == range.start || edge == range.end);
            }
            let longest = slices.iter().map(Range::len).max().unwrap_or(0);
            prop_assert!(longest <= len.div_ceil(world as usize) + 2 * LINE);
        }
    }
}
