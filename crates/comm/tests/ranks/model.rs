//! What a serial program makes of the values of all ranks.

use std::ops::Range;

use paceline_comm::{Operation, Reduction, slice};
use paceline_record::Rank;

/// A value that depends on everything, of very different magnitudes: sums of these round, and the order shows.
fn value(seed: u64, rank: usize, i: usize) -> f32 {
    let mut x = seed ^ (rank as u64) << 48 ^ i as u64;
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    let fraction = (x >> 40) as f32 / (1 << 24) as f32 - 0.5;
    fraction * 2_f32.powi((x & 15) as i32)
}

/// The values of all ranks, as a rank by rank serial program would leave them.
#[derive(Clone)]
pub struct Model(pub Vec<Vec<f32>>);

/// The sum of a value over all areas: split at the largest power of two below their number.
fn tree(areas: &[Vec<f32>], i: usize) -> f32 {
    match areas {
        [area] => area[i],
        _ => {
            let (first, rest) = areas.split_at(areas.len().next_power_of_two() / 2);
            tree(first, i) + tree(rest, i)
        }
    }
}

impl Model {
    pub fn new(seed: u64, world: u32, own: usize) -> Self {
        Self((0..world as usize).map(|rank| (0..own).map(|i| value(seed, rank, i)).collect()).collect())
    }

    fn world(&self) -> u32 {
        self.0.len() as u32
    }

    /// The sum in the order of the tree, times the scale.
    fn reduced(&self, range: &Range<usize>, reduction: Reduction) -> Vec<f32> {
        let scale = match reduction {
            Reduction::Sum => 1.0,
            Reduction::Mean => 1.0 / self.world() as f32,
        };
        range.clone().map(|i| tree(&self.0, i) * scale).collect()
    }

    pub fn apply(&mut self, operation: &Operation) {
        let world = self.world();
        match operation {
            Operation::AllReduce { range, reduction } | Operation::ReplicatedSum { range, reduction } => {
                let reduced = self.reduced(range, *reduction);
                for rank in &mut self.0 {
                    rank[range.clone()].copy_from_slice(&reduced);
                }
            }
            Operation::ReduceScatter { range, reduction } => {
                let reduced = self.reduced(range, *reduction);
                for (rank, values) in self.0.iter_mut().enumerate() {
                    for i in slice(range.clone(), Rank(rank as u32), world) {
                        values[i] = reduced[i - range.start];
                    }
                }
            }
            Operation::AllGather { range } => {
                for owner in 0..self.0.len() {
                    let part = slice(range.clone(), Rank(owner as u32), world);
                    let values = self.0[owner][part.clone()].to_vec();
                    for rank in &mut self.0 {
                        rank[part.clone()].copy_from_slice(&values);
                    }
                }
            }
            Operation::Reduce { range, reduction, root } => {
                let reduced = self.reduced(range, *reduction);
                self.0[root.0 as usize][range.clone()].copy_from_slice(&reduced);
            }
            Operation::Barrier => {}
            Operation::AllReduceHalf { .. } => unreachable!("rounded sums have a test of their own"),
        }
    }
}
