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
unsafe fn decode(half: Half, from: *const u16, values: &mut [f32]) {
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

/// The same run of values of all areas in 16 bits, and where their sum goes in 32.
pub(crate) struct HalfSum {
    pub half: Half,
    /// Where the rounded values of each area begin, in the order of the areas; at least one.
    pub from: Vec<*mut u16>,
    /// Where the sum goes.
    pub into: Vec<*mut f32>,
    /// Values of each run.
    pub len: usize,
    /// What the sum is multiplied by.
    pub scale: f32,
}

impl HalfSum {
    /// Adds up in 32 bits, in the order of the tree that [`Sum`](crate::reduction::Sum) follows, and rounds the result to
    /// the format.
    ///
    /// # Safety
    /// All runs must be valid and none may overlap another; nobody else may touch them meanwhile.
    pub unsafe fn run(&self) {
        // One sum for each power of two of areas, and the area just read.
        let mut sums = vec![[0.0f32; BLOCK]; self.from.len().ilog2() as usize + 2];
        let mut rounded = [0u16; BLOCK];
        for at in (0..self.len).step_by(BLOCK) {
            let len = BLOCK.min(self.len - at);
            let mut depth = 0;
            // SAFETY: the block lies inside the runs, which the caller vouches for.
            unsafe {
                for (index, from) in self.from.iter().enumerate() {
                    decode(self.half, from.add(at), &mut sums[depth][..len]);
                    depth += 1;
                    // Each sum waits until there is one of as many areas on its right.
                    for _ in 0..index.trailing_ones() {
                        depth = join(&mut sums, depth, len);
                    }
                }
                while depth > 1 {
                    depth = join(&mut sums, depth, len);
                }
                let sum = &mut sums[0][..len];
                sum.iter_mut().for_each(|sum| *sum *= self.scale);
                encode(self.half, sum, rounded.as_mut_ptr());
                decode(self.half, rounded.as_ptr(), sum);
                for into in &self.into {
                    into.add(at).copy_from_nonoverlapping(sum.as_ptr(), len);
                }
            }
        }
    }
}

/// Adds the last of `depth` sums to the one before it; how many are left.
fn join(sums: &mut [[f32; BLOCK]], depth: usize, len: usize) -> usize {
    let (left, right) = sums[..depth].split_at_mut(depth - 1);
    let left = left.last_mut().expect("invariant: a sum on its left");
    left[..len].iter_mut().zip(&right[0][..len]).for_each(|(sum, next)| *sum += next);
    depth - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_areas_is_added_up_in_the_order_of_the_tree() {
        fn tree(areas: &[f32]) -> f32 {
            match areas {
                [area] => *area,
                _ => {
                    let (first, rest) = areas.split_at(areas.len().next_power_of_two() / 2);
                    tree(first) + tree(rest)
                }
            }
        }
        for areas in (1..40).chain([63, 64, 65, 1000]) {
            let values: Vec<f32> = (0..areas)
                .map(|i| f32::from(bf16::from_f32((i * 7919 % 1000) as f32 * 10_f32.powi(i % 9 - 4))))
                .collect();
            let mut halves: Vec<u16> = values.iter().map(|&v| bf16::from_f32(v).to_bits()).collect();
            let from: Vec<*mut u16> = halves.iter_mut().map(|half| &raw mut *half).collect();
            let mut sum = 0.0f32;
            // SAFETY: every run has its own memory.
            unsafe { HalfSum { half: Half::Bf16, from, into: vec![&mut sum], len: 1, scale: 1.0 }.run() };
            assert_eq!(sum, f32::from(bf16::from_f32(tree(&values))), "{areas} areas");
        }
    }

    #[test]
    fn a_mean_in_16_bits_is_off_by_no_more_than_three_roundings() {
        for (half, precision) in [(Half::Fp16, 1.0 / 2048.0), (Half::Bf16, 1.0 / 256.0)] {
            let len = 2500;
            let values: Vec<Vec<f32>> = (0..3)
                .map(|rank| (0..len).map(|i| ((i * 37 + rank * 11) % 199) as f32 / 64.0 + 0.1).collect())
                .collect();
            let mut halves = vec![vec![0u16; len]; 3];
            let mut results = vec![vec![0.0f32; len]; 2];
            // SAFETY: every run has its own memory.
            unsafe {
                for (values, halves) in values.iter().zip(&mut halves) {
                    encode(half, values, halves.as_mut_ptr());
                }
                HalfSum {
                    half,
                    from: halves.iter_mut().map(|h| h.as_mut_ptr()).collect(),
                    into: results.iter_mut().map(|r| r.as_mut_ptr()).collect(),
                    len,
                    scale: 1.0 / 3.0,
                }
                .run();
            }
            assert_eq!(results[0], results[1]);
            for i in 0..len {
                let mean = values.iter().map(|v| v[i]).sum::<f32>() / 3.0;
                assert!(
                    (results[0][i] - mean).abs() <= 3.0 * precision * mean,
                    "{} for {mean}",
                    results[0][i]
                );
            }
        }
    }
}
