//! Adding up areas: one loop over vectors, compiled for AVX-512, AVX2 and whatever else there is.
//!
//! The order of a sum is a fixed binary tree over the areas: `tree(n) = tree(first p) + tree(the rest)`, where p is the
//! largest power of two below n. So the sum of areas that begin at a multiple of a power of two is a node of the tree,
//! whoever computes it, and a sum over more areas only adds nodes on top.
//!
//! Each pass takes four cache lines from every area, adds them up in registers, and writes the sum to wherever it belongs,
//! while the lines are still in the first-level cache. `docs/algorithms.md` has what was measured against it.

use crate::vector::Vector;

/// Values of a cache line, to which passes are aligned.
const LINE: usize = 16;

/// Areas whose tree is written out.
const BLOCK: usize = 8;

/// Most sums that wait for their right-hand side at once: one for each power of two of blocks.
const DEPTH: usize = (u32::BITS - BLOCK.ilog2()) as usize;

/// The same run of values of all areas, and where their sum goes.
pub(crate) struct Sum<'a> {
    /// Where the values of each area begin, in the order of the areas; at least one.
    pub from: &'a [*mut f32],
    /// Where the sum goes: to some of these same runs, or to others that overlap none.
    pub into: &'a [*mut f32],
    /// Values of each run.
    pub len: usize,
    /// What the sum is multiplied by.
    pub scale: f32,
}

impl Sum<'_> {
    /// Adds up with the best instructions that this machine has. They all give the same bits.
    ///
    /// # Safety
    /// All runs must be valid for reads and writes, `from` and `into` as they say, and nobody else may touch them
    /// meanwhile: `from` may be read, `into` not.
    pub unsafe fn run(&self) {
        // SAFETY: each is called where its instructions are available; the caller vouches for the runs.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            {
                if std::is_x86_feature_detected!("avx512f") {
                    return x86::avx512(self);
                }
                if std::is_x86_feature_detected!("avx2") {
                    return x86::avx2(self);
                }
            }
            self.add_up::<[f32; 4], 16>();
        }
    }

    /// # Safety
    /// As for [`Self::run`], and the vector's instructions must be available. `W` vectors are the four cache lines of a pass:
    /// with half of that, AVX2 took up to 20 % longer, though fewer registers spill.
    #[inline(always)]
    unsafe fn add_up<V: Vector, const W: usize>(&self) {
        let misaligned = self.from[0] as usize / size_of::<f32>() % LINE;
        let head = ((LINE - misaligned) % LINE).min(self.len);
        let tail = self.len - (self.len - head) % (W * V::LEN);
        // SAFETY: as the caller vouches; every pass lies inside the runs.
        unsafe {
            self.add_rows::<f32, 1>(0, head);
            self.add_rows::<V, W>(head, tail);
            self.add_rows::<f32, 1>(tail, self.len);
        }
    }

    /// # Safety
    /// As for [`Self::add_up`], and `begin..end` must lie inside the runs and be whole rows.
    #[inline(always)]
    #[rustfmt::skip]
    unsafe fn add_rows<V: Vector, const W: usize>(&self, begin: usize, end: usize) {
        // SAFETY: as the caller vouches. The number of areas is looked at here, not for every row, so that the addresses of
        // a few stay in registers too.
        unsafe {
            let rows = Rows::<V, W> { begin, end, into: self.into, scale: V::fill(self.scale) };
            match *self.from {
                [a] => rows.put(#[inline(always)] |at| Row::load(a, at)),
                [a, b] => rows.put(#[inline(always)] |at| Row::two([a, b], at)),
                [a, b, c] => rows.put(#[inline(always)] |at| Row::three([a, b, c], at)),
                [a, b, c, d] => rows.put(#[inline(always)] |at| Row::four([a, b, c, d], at)),
                _ if self.from.len() <= BLOCK => rows.put(#[inline(always)] |at| Row::few(self.from, at)),
                _ => {
                    let mut waiting = [Row::load(self.from[0], begin); DEPTH];
                    rows.put(#[inline(always)] |at| Row::many(self.from, at, &mut waiting));
                }
            }
        }
    }
}

/// Where sums go, row by row.
struct Rows<'a, V, const W: usize> {
    begin: usize,
    end: usize,
    into: &'a [*mut f32],
    scale: V,
}

impl<V: Vector, const W: usize> Rows<'_, V, W> {
    /// # Safety
    /// As for [`Sum::add_rows`].
    #[inline(always)]
    unsafe fn put(&self, mut sum: impl FnMut(usize) -> Row<V, W>) {
        let mut at = self.begin;
        while at < self.end {
            let mut row = sum(at);
            // SAFETY: as the caller vouches.
            unsafe {
                for vector in &mut row.0 {
                    *vector = vector.times(self.scale);
                }
                for into in self.into {
                    for (k, vector) in row.0.iter().enumerate() {
                        vector.store(into.add(at + k * V::LEN));
                    }
                }
            }
            at += W * V::LEN;
        }
    }
}

/// The same few values of one area, or of a sum of areas.
#[derive(Clone, Copy)]
struct Row<V, const W: usize>([V; W]);

/// The trees. In all of these, areas must be valid for the row at `at`, and the vector's instructions available.
impl<V: Vector, const W: usize> Row<V, W> {
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn load(area: *mut f32, at: usize) -> Self {
        // SAFETY: the caller vouches.
        unsafe {
            let mut row = [V::load(area.add(at)); W];
            for (k, vector) in row.iter_mut().enumerate().skip(1) {
                *vector = V::load(area.add(at + k * V::LEN));
            }
            Self(row)
        }
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn plus(mut self, other: Self) -> Self {
        for (vector, more) in self.0.iter_mut().zip(other.0) {
            // SAFETY: the caller vouches.
            *vector = unsafe { vector.plus(more) };
        }
        self
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn two([a, b]: [*mut f32; 2], at: usize) -> Self {
        // SAFETY: the caller vouches.
        unsafe { Self::load(a, at).plus(Self::load(b, at)) }
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn three([a, b, c]: [*mut f32; 3], at: usize) -> Self {
        // SAFETY: the caller vouches.
        unsafe { Self::two([a, b], at).plus(Self::load(c, at)) }
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn four([a, b, c, d]: [*mut f32; 4], at: usize) -> Self {
        // SAFETY: the caller vouches.
        unsafe { Self::two([a, b], at).plus(Self::two([c, d], at)) }
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn eight([a, b, c, d, e, f, g, h]: [*mut f32; BLOCK], at: usize) -> Self {
        // SAFETY: the caller vouches.
        unsafe { Self::four([a, b, c, d], at).plus(Self::four([e, f, g, h], at)) }
    }

    /// The tree of up to [`BLOCK`] areas.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn few(areas: &[*mut f32], at: usize) -> Self {
        // SAFETY: the caller vouches.
        unsafe {
            match *areas {
                [a] => Self::load(a, at),
                [a, b] => Self::two([a, b], at),
                [a, b, c] => Self::three([a, b, c], at),
                [a, b, c, d] => Self::four([a, b, c, d], at),
                [a, b, c, d, e] => Self::four([a, b, c, d], at).plus(Self::load(e, at)),
                [a, b, c, d, e, f] => Self::four([a, b, c, d], at).plus(Self::two([e, f], at)),
                [a, b, c, d, e, f, g] => Self::four([a, b, c, d], at).plus(Self::three([e, f, g], at)),
                [a, b, c, d, e, f, g, h] => Self::eight([a, b, c, d, e, f, g, h], at),
                _ => unreachable!("invariant: one area to a block of them"),
            }
        }
    }

    /// The tree of more areas than a block: blocks in order, as a binary counter counts them. Each sum waits until there is
    /// one of as many areas on its right.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn many(areas: &[*mut f32], at: usize, waiting: &mut [Self; DEPTH]) -> Self {
        let (blocks, rest) = areas.as_chunks::<BLOCK>();
        let mut depth = 0;
        // SAFETY: the caller vouches.
        unsafe {
            let mut sum = Self::eight(blocks[0], at);
            for (index, block) in blocks.iter().enumerate().skip(1) {
                let next = Self::eight(*block, at);
                let complete = index.trailing_ones();
                if complete == 0 {
                    waiting[depth] = sum;
                    depth += 1;
                    sum = next;
                    continue;
                }
                sum = sum.plus(next);
                for _ in 1..complete {
                    depth -= 1;
                    sum = waiting[depth].plus(sum);
                }
            }
            if !rest.is_empty() {
                sum = sum.plus(Self::few(rest, at));
            }
            while depth > 0 {
                depth -= 1;
                sum = waiting[depth].plus(sum);
            }
            sum
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256, __m512};

    use super::Sum;

    /// # Safety
    /// As for [`Sum::run`].
    #[target_feature(enable = "avx512f")]
    pub unsafe fn avx512(sum: &Sum<'_>) {
        // SAFETY: the caller vouches for the runs.
        unsafe { sum.add_up::<__m512, 4>() }
    }

    /// # Safety
    /// As for [`Sum::run`].
    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2(sum: &Sum<'_>) {
        // SAFETY: the caller vouches for the runs.
        unsafe { sum.add_up::<__m256, 8>() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// To be called as [`Sum::run`] is.
    type Run = unsafe fn(&Sum<'_>);

    fn every_instruction_set() -> Vec<(&'static str, Run)> {
        let mut sets: Vec<(&str, Run)> = vec![
            // SAFETY: as the caller of a `Run` vouches.
            ("chosen", |sum| unsafe { sum.run() }),
            // SAFETY: as above.
            ("portable", |sum| unsafe { sum.add_up::<[f32; 4], 16>() }),
        ];
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx512f") {
                sets.push(("avx512", x86::avx512));
            }
            if std::is_x86_feature_detected!("avx2") {
                sets.push(("avx2", x86::avx2));
            }
        }
        sets
    }

    /// The definition: split at the largest power of two below the count.
    fn tree(areas: &[Vec<f32>], i: usize) -> f32 {
        match areas {
            [area] => area[i],
            _ => {
                let (first, rest) = areas.split_at(areas.len().next_power_of_two() / 2);
                tree(first, i) + tree(rest, i)
            }
        }
    }

    fn expected(areas: &[Vec<f32>], scale: f32) -> Vec<u32> {
        (0..areas[0].len()).map(|i| (tree(areas, i) * scale).to_bits()).collect()
    }

    /// Values of very different magnitudes: sums of these round, and the order shows.
    fn draw(areas: usize, len: usize, seed: u64) -> Vec<Vec<f32>> {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 40) as f32 - 8e6) * 10_f32.powi((state >> 33) as i32 % 9)
        };
        (0..areas).map(|_| (0..len).map(|_| next()).collect()).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_instruction_set_adds_up_in_the_order_of_the_tree(
            areas in prop_oneof![4 => 1..20_usize, 1 => 20..150_usize],
            start in 0..40_usize,
            len in 0..400_usize,
            seed in any::<u64>(),
            scale in prop_oneof![Just(1.0_f32), Just(1.0 / 3.0)],
        ) {
            let values = draw(areas, start + len, seed);
            let expected: Vec<u32> = expected(&values, scale)[start..].to_vec();
            for (name, run) in every_instruction_set() {
                let mut copies = values.clone();
                let runs: Vec<*mut f32> = copies.iter_mut().map(|copy| copy[start..].as_mut_ptr()).collect();
                // SAFETY: each run is the rest of a vector that nobody else uses.
                unsafe { run(&Sum { from: &runs, into: &runs, len, scale }) };
                for (copy, original) in copies.iter().zip(&values) {
                    prop_assert_eq!(&bits(&copy[start..]), &expected, "{} in place", name);
                    prop_assert_eq!(bits(&copy[..start]), bits(&original[..start]), "{} before", name);
                }
                let mut elsewhere = vec![0.0; len];
                let mut copies = values.clone();
                let runs: Vec<*mut f32> = copies.iter_mut().map(|copy| copy[start..].as_mut_ptr()).collect();
                // SAFETY: as above.
                unsafe { run(&Sum { from: &runs, into: &[elsewhere.as_mut_ptr()], len, scale }) };
                prop_assert_eq!(&bits(&elsewhere), &expected, "{} elsewhere", name);
            }
        }
    }
    /// Adds up on every instruction set, and compares with the definition.
    fn check(areas: usize) {
        let values = draw(areas, 70, areas as u64);
        let expected = expected(&values, 1.0);
        for (name, run) in every_instruction_set() {
            let mut copies = values.clone();
            let runs: Vec<*mut f32> = copies.iter_mut().map(|copy| copy.as_mut_ptr()).collect();
            let mut sum = vec![0.0; 70];
            // SAFETY: each run is a vector that nobody else uses.
            unsafe { run(&Sum { from: &runs, into: &[sum.as_mut_ptr()], len: 70, scale: 1.0 }) };
            assert_eq!(bits(&sum), expected, "{areas} areas, {name}");
        }
    }

    #[test]
    fn any_number_of_areas_is_added_up_in_the_order_of_the_tree() {
        (1..=140).chain([255, 256, 257, 511, 1023, 1024, 1025, 3000, 4095, 4096]).for_each(check);
    }

    #[test]
    fn the_order_of_a_sum_shows_in_its_bits() {
        let values = draw(5, 1000, 1);
        let in_order = |i: usize| values[1..].iter().fold(values[0][i], |sum, area| sum + area[i]).to_bits();
        assert_ne!(expected(&values, 1.0), (0..1000).map(in_order).collect::<Vec<_>>());
    }
}
