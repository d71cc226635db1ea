use std::ops::Range;

use super::*;

fn ground(shards: u32, half: Option<Half>) -> Ground {
    let shape = Shape { seats: 1, shards, buckets: 1, slices: 1, hosts: 4 };
    let size = GroundSize { shape, values: 5000, state: 0, statistics: 3, half, gradients: shape.shards };
    Ground::create(size).expect("a little memory")
}

/// Values whose sums depend on their order.
fn fill(ground: &Ground, shards: Range<u32>) {
    for shard in shards {
        // SAFETY: nobody else knows the ground.
        let values = unsafe { ground.gradients(shard).write(0..5000) };
        for (place, value) in values.iter_mut().enumerate() {
            let mixed = (place as u32 * 31 + shard).wrapping_mul(2_654_435_761);
            *value = (mixed as f32 / 1e6 - 2000.0) * if mixed.is_multiple_of(3) { 1e-2 } else { 1e-6 };
        }
    }
}

/// The mean of all shards as one host adds it up, and as each of several hosts does that owns it.
fn check_dealings(shards: u32, half: Option<Half>) {
    let whole = ground(shards, half);
    fill(&whole, 0..shards);
    let range = 3..4999;
    let mut expected = vec![0.0; range.len()];
    // SAFETY: nobody else knows the ground.
    unsafe { whole.mean_gradients(&range, &mut expected) };
    for hosts in 1..=4.min(shards) {
        for weights in [[1, 1, 1, 1], [5, 1, 2, 3], [1, 1, 9, 1]] {
            let ends = Parts::deal(shards, &weights[..hosts as usize]);
            for owner in 0..ends.len() {
                let own = ground(shards, half);
                let parts = Parts::new(ends.clone(), owner, 1);
                fill(&own, parts.own_shards());
                let carry = |from: (*mut u8, usize), into: (*mut u8, usize)| {
                    assert_eq!(from.1, into.1);
                    // SAFETY: runs of two grounds that nobody else knows.
                    unsafe { into.0.copy_from_nonoverlapping(from.0, from.1) };
                };
                for place in (0..ends.len()).filter(|&place| place != owner) {
                    let other = ground(shards, half);
                    let theirs = Parts::new(ends.clone(), place, 1);
                    fill(&other, theirs.own_shards());
                    // SAFETY: as above.
                    unsafe { other.add_part(&theirs, &range) };
                    for node in theirs.nodes(place) {
                        let from = other.travelling_run(other.node(&theirs, node), &range);
                        carry(from, own.travelling_run(own.gradients(node.first), &range));
                    }
                }
                let mut mean = vec![0.0; range.len()];
                // SAFETY: as above.
                unsafe { own.mean_of_parts(&parts, &range, &mut mean) };
                assert!(mean == expected, "{shards} shards, {ends:?}, owner {owner}, {half:?}");
                let reader = ground(shards, half);
                carry(own.travelling_run(own.means(), &range), reader.travelling_run(reader.means(), &range));
                // SAFETY: as above.
                unsafe { reader.read_mean(&range, &mut mean) };
                assert!(mean == expected, "{shards} shards, {ends:?}, as sent by {owner}, {half:?}");
            }
        }
    }
}

#[test]
fn however_shards_are_dealt_to_hosts_the_mean_has_the_same_bits() {
    (1..=17).for_each(|shards| check_dealings(shards, None));
}

#[test]
fn and_so_it_has_where_sums_travel_in_16_bits() {
    for half in [Half::Fp16, Half::Bf16] {
        (1..=9).chain([16, 17]).for_each(|shards| check_dealings(shards, Some(half)));
    }
}
