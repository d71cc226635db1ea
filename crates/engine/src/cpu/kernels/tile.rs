//! Products on register tiles: [`RowTile`] for forward and backward-data, [`OuterTile`] for backward-weights.
//!
//! Each output value is one chain of fused multiply-adds in the order of k. How outputs are cut into tiles, or shared
//! out among threads, therefore never changes a bit of the result.

// Rows and vectors are indexed by constants, so that the compiler keeps all of a tile in registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::simd::Vector;

/// Rows of the largest [`RowTile`] of any instruction set.
pub(crate) const MAX_POINTERS: usize = 7;

/// A stretch of k that is contiguous in both operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// From a row's start in A, in values.
    pub a: isize,
    /// First row of the packed panel of B.
    pub b: usize,
    /// Length.
    pub len: usize,
}

/// What happens to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is replaced.
    Write,
    /// The product is added to it.
    Add,
}

/// One tile: C\[i\]\[..cols\] (+)= sum over segments of A\[i\]\[k\] * B\[k\]\[..\].
pub(crate) struct RowTile<'a> {
    /// Start of each row of A.
    pub a: [*const f32; MAX_POINTERS],
    /// Start of each row of C.
    pub c: [*mut f32; MAX_POINTERS],
    /// Rows in use.
    pub rows: usize,
    /// The packed panel: rows of `vectors * LANES`.
    pub b: *const f32,
    /// Vectors across: 1 or 2.
    pub vectors: usize,
    /// Columns of C that exist.
    pub cols: usize,
    /// The stretches of k.
    pub segments: &'a [Segment],
    /// Added to each row, `vectors * LANES` long; null for none.
    pub bias: *const f32,
    /// Replace or add.
    pub mode: Mode,
}

macro_rules! by_rows {
    ($rows:expr, $limit:expr, $call:ident, $v:ty, $nv:literal, $arg:expr, [$($n:literal)*]) => {
        match $rows {
            // SAFETY: the caller's, passed on.
            $($n if $n <= $limit => unsafe { $call::<$v, $n, $nv>($arg) },)*
            rows => unreachable!("invariant: a tile of {rows} rows"),
        }
    };
}

impl RowTile<'_> {
    /// Computes the tile.
    ///
    /// # Safety
    /// `a` and `c` must be valid over all segments and columns for `rows <= V::POINTERS` rows, `b` over all segments.
    #[inline(always)]
    pub unsafe fn run<V: Vector>(&self) {
        // SAFETY: passed on.
        if self.vectors == 2 {
            by_rows!(self.rows, V::POINTERS, row_tile, V, 2, self, [1 2 3 4 5 6 7]);
        } else {
            by_rows!(self.rows, V::POINTERS, row_tile, V, 1, self, [1 2 3 4 5 6 7]);
        }
    }
}

/// # Safety
/// As [`RowTile::run`].
#[inline(always)]
unsafe fn row_tile<V: Vector, const ROWS: usize, const NV: usize>(tile: &RowTile) {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; ROWS];
        for segment in tile.segments {
            let mut a: [*const f32; ROWS] = std::array::from_fn(|i| tile.a[i].offset(segment.a));
            let mut b = tile.b.add(segment.b * NV * V::LANES);
            let mut left = segment.len;
            while left >= 4 {
                for k in 0..4 {
                    let row: [V; NV] = std::array::from_fn(|j| V::load(b.add((k * NV + j) * V::LANES)));
                    for i in 0..ROWS {
                        let x = V::splat(*a[i].add(k));
                        for j in 0..NV {
                            acc[i][j] = x.mul_add(row[j], acc[i][j]);
                        }
                    }
                }
                for pointer in &mut a {
                    *pointer = pointer.add(4);
                }
                b = b.add(4 * NV * V::LANES);
                left -= 4;
            }
            for k in 0..left {
                let row: [V; NV] = std::array::from_fn(|j| V::load(b.add((k * NV + j) * V::LANES)));
                for i in 0..ROWS {
                    let x = V::splat(*a[i].add(k));
                    for j in 0..NV {
                        acc[i][j] = x.mul_add(row[j], acc[i][j]);
                    }
                }
            }
        }
        if !tile.bias.is_null() {
            for j in 0..NV {
                let bias = V::load(tile.bias.add(j * V::LANES));
                for row in &mut acc {
                    row[j] = row[j].add(bias);
                }
            }
        }
        store_tile::<V, ROWS, NV>(&acc, tile.mode, tile.cols, |i| tile.c[i]);
    }
}

/// # Safety
/// Each row that `c` gives must be valid for `cols` values.
#[inline(always)]
unsafe fn store_tile<V: Vector, const ROWS: usize, const NV: usize>(
    acc: &[[V; NV]; ROWS],
    mode: Mode,
    cols: usize,
    c: impl Fn(usize) -> *mut f32,
) {
    // SAFETY: the caller vouches for the rows.
    unsafe {
        if cols == NV * V::LANES {
            for i in 0..ROWS {
                let row = c(i);
                for j in 0..NV {
                    let at = row.add(j * V::LANES);
                    match mode {
                        Mode::Write => acc[i][j].store(at),
                        Mode::Add => V::load(at).add(acc[i][j]).store(at),
                    }
                }
            }
        } else {
            for i in 0..ROWS {
                let row = c(i);
                for j in 0..NV {
                    let count = cols.saturating_sub(j * V::LANES).min(V::LANES);
                    let at = row.add(j * V::LANES);
                    match mode {
                        Mode::Write => acc[i][j].store_part(at, count),
                        Mode::Add => V::load_part(at, count).add(acc[i][j]).store_part(at, count),
                    }
                }
            }
        }
    }
}

/// A run of positions over which both operands advance evenly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// First position in A.
    pub a: u32,
    /// First position in B.
    pub b: u32,
    /// Positions.
    pub len: u32,
}

/// One tile: C\[i\]\[..cols\] (+)= sum over positions p of A\[p\]\[i\] * B\[p\]\[..\].
pub(crate) struct OuterTile<'a> {
    /// First row of A at the first position.
    pub a: *const f32,
    /// From one position of A to the next.
    pub a_stride: usize,
    /// Positions that A advances for each of B.
    pub a_step: usize,
    /// Rows of the tile: neighbouring values of a position of A.
    pub rows: usize,
    /// Packed panel of B: `vectors * LANES` values per position.
    pub b: *const f32,
    /// Vectors across: 1 or 2.
    pub vectors: usize,
    /// The positions.
    pub runs: &'a [Run],
    /// First row of C.
    pub c: *mut f32,
    /// From one row of C to the next.
    pub c_stride: usize,
    /// Columns of C that exist.
    pub cols: usize,
    /// Replace or add.
    pub mode: Mode,
}

impl OuterTile<'_> {
    /// Computes the tile.
    ///
    /// # Safety
    /// `a` and `b` must be valid over all runs, `c` for `rows <= V::ROWS` rows of `cols` values.
    #[inline(always)]
    pub unsafe fn run<V: Vector>(&self) {
        // SAFETY: passed on.
        if self.vectors == 2 {
            by_rows!(self.rows, V::ROWS, outer_tile, V, 2, self, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]);
        } else {
            by_rows!(self.rows, V::ROWS, outer_tile, V, 1, self, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]);
        }
    }
}

/// # Safety
/// As [`OuterTile::run`].
#[inline(always)]
unsafe fn outer_tile<V: Vector, const ROWS: usize, const NV: usize>(tile: &OuterTile) {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; ROWS];
        let step = tile.a_step * tile.a_stride;
        for run in tile.runs {
            let mut a = tile.a.add(run.a as usize * tile.a_stride);
            let mut b = tile.b.add(run.b as usize * NV * V::LANES);
            // A run is never empty. Knowing that, the compiler keeps the sums in registers from run to run.
            let mut left = run.len;
            loop {
                let row: [V; NV] = std::array::from_fn(|j| V::load(b.add(j * V::LANES)));
                for i in 0..ROWS {
                    let x = V::splat(*a.add(i));
                    for j in 0..NV {
                        acc[i][j] = x.mul_add(row[j], acc[i][j]);
                    }
                }
                a = a.add(step);
                b = b.add(NV * V::LANES);
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
        store_tile::<V, ROWS, NV>(&acc, tile.mode, tile.cols, |i| tile.c.add(i * tile.c_stride));
    }
}
