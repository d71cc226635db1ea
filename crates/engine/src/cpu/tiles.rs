//! Products of bf16 values with sums in fp32: convolutions and dense layers of a network that stores its values in bf16.
//!
//! One set of drivers for both layouts and every instruction set. Operands are packed into tiles: rows of [`DEPTH`] values,
//! and columns whose values are interleaved in pairs, as TDPBF16PS and VDPBF16PS read them. Where there are no such
//! instructions, pairs are taken apart and multiplied in fp32. Each sum is one chain in the order of its steps, whatever an
//! instruction does within a step, so neither the cut into blocks nor the number of threads changes a bit.

// Rows and vectors are indexed by constants, so that the compiler keeps all of a block in registers.
#![allow(clippy::needless_range_loop)]

mod pack;
mod product;
mod seen;
mod sum;
#[cfg(test)]
mod tests;

pub(crate) use product::TileProduct;
pub(crate) use sum::TileSum;

use super::amx::{self, Block, DEPTH, SIDE, Start, Step, WIDTH};
use super::simd::{Simd, Vector};

/// Values of a whole tile of operands.
const TILE: usize = SIDE * DEPTH;

/// What multiplies blocks.
enum Multiplier {
    #[cfg(target_arch = "x86_64")]
    Tiles(amx::Tiles),
    Vectors,
}

impl Multiplier {
    /// # Safety
    /// The instruction set must be available.
    #[inline(always)]
    unsafe fn new(simd: Simd) -> Self {
        match simd {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller vouches.
            Simd::Amx => Self::Tiles(unsafe { amx::Tiles::configured() }),
            _ => Self::Vectors,
        }
    }

    /// Computes a block.
    ///
    /// # Safety
    /// All tiles of the block must be valid at all its steps, and nobody else may use `out`.
    #[inline(always)]
    unsafe fn multiply<V: Vector>(&self, block: &Block) {
        // SAFETY: the caller vouches.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Tiles(tiles) => tiles.multiply(block),
                Self::Vectors if block.a_stride == DEPTH => on_vectors::<V, true>(block),
                Self::Vectors => on_vectors::<V, false>(block),
            }
        }
    }
}

/// # Safety
/// As [`Multiplier::multiply`].
#[inline(always)]
unsafe fn on_vectors<V: Vector, const PACKED: bool>(block: &Block) {
    let (down, across) = block.tiles;
    for first in (0..down * SIDE).step_by(V::PAIR_ROWS) {
        let mut column = 0;
        while column < across * SIDE {
            // SAFETY: the caller vouches for the tiles.
            unsafe {
                match (V::PAIR_ROWS, column + V::LANES < across * SIDE) {
                    (8, true) => rows::<V, 8, 2, PACKED>(block, first, column),
                    (8, false) => rows::<V, 8, 1, PACKED>(block, first, column),
                    (_, true) => rows::<V, 4, 2, PACKED>(block, first, column),
                    (_, false) => rows::<V, 4, 1, PACKED>(block, first, column),
                }
            }
            column += 2 * V::LANES;
        }
    }
}

/// A few rows of a block, in registers.
///
/// # Safety
/// As [`Multiplier::multiply`].
#[inline(always)]
unsafe fn rows<V: Vector, const ROWS: usize, const NV: usize, const PACKED: bool>(
    block: &Block,
    first: usize,
    column: usize,
) {
    let stride = if PACKED { DEPTH } else { block.a_stride };
    // SAFETY: the caller vouches for the tiles.
    unsafe {
        let a = block.a[first / SIDE].add(first % SIDE * stride);
        let b: [_; NV] = std::array::from_fn(|j| {
            let column = column + j * V::LANES;
            block.b[column / SIDE].add(2 * (column % SIDE))
        });
        let out = block.out.add(first * block.out_stride + column);
        let mut acc = [[V::splat(0.0); NV]; ROWS];
        if block.start == Start::Sums {
            for i in 0..ROWS {
                for j in 0..NV {
                    acc[i][j] = V::load(out.add(i * block.out_stride + j * V::LANES));
                }
            }
        }
        for step in block.steps {
            let a = a.add(step.a as usize);
            for pair in 0..DEPTH / 2 {
                let at = step.b as usize + pair * 2 * SIDE;
                let columns: [V; NV] = std::array::from_fn(|j| V::load(b[j].add(at).cast()));
                for i in 0..ROWS {
                    let row = V::splat(a.add(i * stride + 2 * pair).cast::<f32>().read_unaligned());
                    for j in 0..NV {
                        acc[i][j] = acc[i][j].dot_pairs(row, columns[j]);
                    }
                }
            }
        }
        for i in 0..ROWS {
            for j in 0..NV {
                acc[i][j].store(out.add(i * block.out_stride + j * V::LANES));
            }
        }
    }
}
