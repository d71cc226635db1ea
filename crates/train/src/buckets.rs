//! Gradients in buckets: neighbours in memory, in the order in which backward finishes them.

use std::ops::Range;

use paceline_engine::Slot;

use crate::strategy::ExchangeOptions;

/// A bucket: a range of the gradients, complete when the slot `last_slot` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub range: Range<usize>,
    pub last_slot: usize,
}

/// Cuts `slots` into buckets of at least the wanted size that together cover `0..len` without a gap. The first is small, so
/// that the exchange begins early. The last is small too, because no backward is left to hide it.
pub(crate) fn cut(slots: &[Slot], len: usize, options: &ExchangeOptions) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut start = 0;
    for (index, slot) in slots.iter().enumerate() {
        let wanted = if buckets.is_empty() { options.first_bucket_bytes } else { options.bucket_bytes };
        let end = slots.get(index + 1).map_or(len, |next| next.range.start);
        debug_assert!(slot.range.end <= end);
        if (end - start) * size_of::<f32>() >= wanted.max(1) || end == len {
            buckets.push(Bucket { range: start..end, last_slot: index });
            start = end;
        }
    }
    split_last(&mut buckets, slots, options);
    buckets
}

/// Cuts off the end of the last bucket: as many slots as the first bucket may hold.
fn split_last(buckets: &mut Vec<Bucket>, slots: &[Slot], options: &ExchangeOptions) {
    let first_slot = buckets.len().checked_sub(2).map_or(0, |before| buckets[before].last_slot + 1);
    let Some(last) = buckets.last_mut() else { return };
    let small =
        |slot: &Slot| (last.range.end - slot.range.start) * size_of::<f32>() <= options.first_bucket_bytes;
    let Some(cut) = (first_slot + 1..slots.len()).find(|&index| small(&slots[index])) else { return };
    let start = slots[cut].range.start;
    let tail = Bucket { range: start..last.range.end, last_slot: last.last_slot };
    (last.range.end, last.last_slot) = (start, cut - 1);
    buckets.push(tail);
}

#[cfg(test)]
mod tests {
    use paceline_model::ParamId;

    use super::*;

    fn slots(lengths: &[usize]) -> (Vec<Slot>, usize) {
        let mut at = 0;
        let slot = |(index, &len): (usize, &usize)| {
            let range = at..at + len;
            at += len.next_multiple_of(16);
            Slot { param: ParamId(index), range }
        };
        (lengths.iter().enumerate().map(slot).collect(), at)
    }

    #[test]
    fn buckets_cover_everything_once_and_in_order() {
        let (slots, len) = slots(&[10, 300, 5, 70, 2000, 1, 64]);
        for (first, rest) in [(1, 1), (64, 1024), (1 << 20, 25 << 20), (2048, 1)] {
            let options = ExchangeOptions {
                first_bucket_bytes: first,
                bucket_bytes: rest,
                ..ExchangeOptions::default()
            };
            let buckets = cut(&slots, len, &options);
            assert_eq!(buckets[0].range.start, 0);
            assert_eq!(buckets[buckets.len() - 1].range.end, len);
            assert_eq!(buckets[buckets.len() - 1].last_slot, slots.len() - 1);
            for pair in buckets.windows(2) {
                assert_eq!(pair[0].range.end, pair[1].range.start);
                assert!(pair[0].last_slot < pair[1].last_slot);
            }
            for bucket in &buckets {
                assert!(slots[bucket.last_slot].range.end <= bucket.range.end);
            }
        }
    }

    #[test]
    fn the_first_and_the_last_bucket_are_small_and_the_others_are_not() {
        let (slots, len) = slots(&[100_000; 100]);
        let buckets = cut(&slots, len, &ExchangeOptions::default());
        assert_eq!(buckets[0].range.len(), 300_000);
        assert!(buckets[1].range.len() * 4 >= 25 << 20);
        assert_eq!(buckets[buckets.len() - 1].range.len(), 200_000);
        assert_eq!(buckets.len(), 4);
    }
}
