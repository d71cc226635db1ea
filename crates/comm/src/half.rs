//! Values that travel in 16 bits.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Half;

/// Values that are converted at a time: few enough for the sums of 16 areas that are under way to stay in the first-level
/// cache.
const BLOCK: usize = 1024;

/// Rounds values to the nearest of the format, ties to even.
///
/// # Safety
/// `into` must be valid for as many values, and nobody else may touch them meanwhile.
pub(crate) unsafe fn encode(half: Half, values: &[f32], into: *mut u16) {
    // SAFETY: the caller vouches; both formats are 16 bits in memory.
    unsafe {
        match half {
            Half::Fp16 => {
                std::slice::from_raw_parts_mut(into.cast::<f16>(), values.len())
                    .convert_from_f32_slice(values);
            }
            Half::Bf16 => {
                std::slice::from_raw_parts_mut(into.cast::<bf16>(), values.len())
                    .convert_from_f32_slice(values);
            }
        }
    }
}

/// # Safety
/// `from` must be valid for as many values, and nobody may write to them meanwhile.
pub(crate) unsafe fn decode(half: Half, from: *const u16, values: &mut [f32]) {
    // SAFETY: as above.
    unsafe {
        match half {
            Half::Fp16 => {
                std::slice::from_raw_parts(from.cast::<f16>(), values.len()).convert_to_f32_slice(values)
            }
            Half::Bf16 => {
                std::slice::from_raw_parts(from.cast::<bf16>(), values.len()).convert_to_f32_slice(values)
            }
        }
    }
}

/// Most sums that wait for their right-hand side at once, and the values just read.
const FLOORS: usize = 24;

/// Values that are added up.
#[derive(Clone, Copy)]
pub(crate) enum Addend {
    /// In 32 bits, still to be rounded.
    Wide(*const f32),
    /// Rounded already.
    Rounded(*const u16),
}

/// A sum of which every node of the tree is rounded to 16 bits. So it does not matter which of them travel.
pub(crate) struct RoundedSum<'a> {
    /// The format.
    pub half: Half,
    /// Where the sum goes in 32 bits.
    pub into: &'a [*mut f32],
    /// Where it goes in 16.
    pub rounded: Option<*mut u16>,
    /// Values of each run.
    pub len: usize,
    /// What the sum is multiplied by, after which it is rounded once more.
    pub scale: f32,
}

impl RoundedSum<'_> {
    /// Adds up in the order of the tree that [`Sum`](crate::reduction::Sum) follows. Each addend is a node of that tree, and comes with
    /// its level: a single area has 0, the sum of two 1.
    ///
    /// # Safety
    /// All runs must be valid and none that is written may overlap another; nobody else may touch them meanwhile: addends may be read.
    ///
    /// # Panics
    /// If there is no addend, or more floors than any tree of this program has.
    pub unsafe fn run(&self, addends: impl Iterator<Item = (u32, Addend)> + Clone) {
        let mut tower =
            Tower { half: self.half, sums: [[0.0; BLOCK]; FLOORS], levels: [0; FLOORS], height: 0 };
        for at in (0..self.len).step_by(BLOCK) {
            let len = BLOCK.min(self.len - at);
            // SAFETY: the block lies inside the runs, which the caller vouches for.
            unsafe {
                for (level, addend) in addends.clone() {
                    tower.put(level, addend, at, len);
                }
                let sum = tower.take(len);
                sum.iter_mut().for_each(|sum| *sum *= self.scale);
                let rounded = round(self.half, sum);
                for into in self.into {
                    into.add(at).copy_from_nonoverlapping(sum.as_ptr(), len);
                }
                if let Some(into) = self.rounded {
                    into.add(at).copy_from_nonoverlapping(rounded.as_ptr(), len);
                }
            }
        }
    }
}

/// Sums that wait for their right-hand side.
struct Tower {
    half: Half,
    sums: [[f32; BLOCK]; FLOORS],
    levels: [u32; FLOORS],
    height: usize,
}

impl Tower {
    /// Puts the next addend on top, and adds up what it completes.
    ///
    /// # Safety
    /// The addend must be valid for the block, and nobody may write to it meanwhile.
    unsafe fn put(&mut self, level: u32, addend: Addend, at: usize, len: usize) {
        let sum = &mut self.sums[self.height][..len];
        // SAFETY: the caller vouches.
        unsafe {
            match addend {
                Addend::Wide(from) => {
                    sum.copy_from_slice(std::slice::from_raw_parts(from.add(at), len));
                    round(self.half, sum);
                }
                Addend::Rounded(from) => decode(self.half, from.add(at), sum),
            }
        }
        self.levels[self.height] = level;
        self.height += 1;
        while self.height > 1 && self.levels[self.height - 2] == self.levels[self.height - 1] {
            self.join(len);
        }
    }

    /// Adds the sum on top to the one below it.
    fn join(&mut self, len: usize) {
        let (left, right) = self.sums[..self.height].split_at_mut(self.height - 1);
        let left = &mut left.last_mut().expect("invariant: a sum on its left")[..len];
        left.iter_mut().zip(&right[0]).for_each(|(sum, next)| *sum += next);
        round(self.half, left);
        self.height -= 1;
        self.levels[self.height - 1] += 1;
    }

    /// Adds up what is left, from the right; the sum of all.
    fn take(&mut self, len: usize) -> &mut [f32] {
        while self.height > 1 {
            self.join(len);
        }
        assert_eq!(std::mem::take(&mut self.height), 1, "invariant: a sum has an addend");
        &mut self.sums[0][..len]
    }
}

/// Rounds a block in place; its rounded form.
fn round(half: Half, values: &mut [f32]) -> [u16; BLOCK] {
    let mut rounded = [0; BLOCK];
    assert!(values.len() <= BLOCK, "invariant: a block at a time");
    // SAFETY: there is room for a block, and both are borrowed.
    unsafe {
        encode(half, values, rounded.as_mut_ptr());
        decode(half, rounded.as_ptr(), values);
    }
    rounded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest(half: Half, value: f32) -> f32 {
        match half {
            Half::Fp16 => f16::from_f32(value).to_f32(),
            Half::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// The definition: split at the largest power of two below the count, every node rounded.
    fn tree(half: Half, areas: &[f32]) -> f32 {
        let sum = match areas {
            [area] => *area,
            _ => {
                let (first, rest) = areas.split_at(areas.len().next_power_of_two() / 2);
                tree(half, first) + tree(half, rest)
            }
        };
        nearest(half, sum)
    }

    #[test]
    fn every_node_of_the_tree_is_rounded() {
        for half in [Half::Fp16, Half::Bf16] {
            for areas in (1..40).chain([63, 64, 65, 1000]) {
                let values: Vec<f32> =
                    (0..areas).map(|i| (i * 7919 % 1000) as f32 * 10_f32.powi(i % 5 - 4)).collect();
                let mut sum = 0.0f32;
                let mut rounded = 0;
                let all = RoundedSum {
                    half,
                    into: &[&raw mut sum],
                    rounded: Some(&raw mut rounded),
                    len: 1,
                    scale: 1.0 / 3.0,
                };
                // SAFETY: every run has its own memory.
                unsafe { all.run(values.iter().map(|value| (0, Addend::Wide(value)))) };
                assert_eq!(sum, nearest(half, tree(half, &values) / 3.0), "{areas} areas");
                let halves: Vec<u16> = values
                    .iter()
                    .map(|&value| match half {
                        Half::Fp16 => f16::from_f32(value).to_bits(),
                        Half::Bf16 => bf16::from_f32(value).to_bits(),
                    })
                    .collect();
                let first = std::mem::take(&mut rounded);
                // SAFETY: as above.
                unsafe { all.run(halves.iter().map(|half| (0, Addend::Rounded(half)))) };
                assert_eq!(rounded, first, "{areas} areas");
            }
        }
    }

    #[test]
    fn the_rounding_of_nodes_shows_in_the_bits() {
        let values = [256.0, 1.0, 1.0, 1.0];
        assert_eq!(tree(Half::Bf16, &values), 258.0);
        assert_ne!(nearest(Half::Bf16, values.iter().sum()), 258.0);
    }

    #[test]
    fn a_mean_is_off_by_no_more_than_its_roundings() {
        for (half, precision) in [(Half::Fp16, 1.0 / 2048.0), (Half::Bf16, 1.0 / 256.0)] {
            let len = 2500;
            let values: Vec<Vec<f32>> = (0..3)
                .map(|rank| (0..len).map(|i| ((i * 37 + rank * 11) % 199) as f32 / 64.0 + 0.1).collect())
                .collect();
            let mut results = vec![vec![0.0f32; len]; 2];
            let into: Vec<*mut f32> = results.iter_mut().map(|result| result.as_mut_ptr()).collect();
            let sum = RoundedSum { half, into: &into, rounded: None, len, scale: 1.0 / 3.0 };
            // SAFETY: every run has its own memory.
            unsafe { sum.run(values.iter().map(|values| (0, Addend::Wide(values.as_ptr())))) };
            assert_eq!(results[0], results[1]);
            for i in 0..len {
                let mean = values.iter().map(|v| v[i]).sum::<f32>() / 3.0;
                // Addends, two sums, and the mean.
                assert!(
                    (results[0][i] - mean).abs() <= 4.0 * precision * mean,
                    "{} for {mean}",
                    results[0][i]
                );
            }
        }
    }

    #[test]
    fn what_is_no_number_survives() {
        for half in [Half::Fp16, Half::Bf16] {
            let mut sums = [0.0f32; 3];
            let values = [[f32::NAN, f32::INFINITY, f32::MAX], [1.0, 1.0, f32::MAX]];
            let sum = RoundedSum { half, into: &[sums.as_mut_ptr()], rounded: None, len: 3, scale: 1.0 };
            // SAFETY: every run has its own memory.
            unsafe { sum.run(values.iter().map(|values| (0, Addend::Wide(values.as_ptr())))) };
            assert!(sums[0].is_nan() && sums[1] == f32::INFINITY && sums[2] == f32::INFINITY, "{sums:?}");
        }
    }
}
