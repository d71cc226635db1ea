//! Packing weights into panels of columns.

use std::ops::Range;

use super::super::super::element::Bf16;
use super::super::super::memory::View;
use super::super::super::product::Operands;
use super::super::super::simd::{Kernel, Vector, prefetch};
use super::super::pack::Unturned;
use super::super::{DEPTH, SIDE, TILE};
use super::TileProduct;

/// Rows of the weights, and values of a row, that packing prefetches ahead: rows are too far apart for the hardware to predict.
const AHEAD_ROWS: usize = 6;
const AHEAD: usize = 2 * DEPTH;

/// A block of panels of one group.
pub(super) struct Part<'a> {
    pub plan: &'a TileProduct,
    pub operands: &'a Operands<Bf16>,
    pub group: usize,
    pub packed: View<Bf16>,
    pub panels: Range<usize>,
}

impl Part<'_> {
    /// Where a panel of the block lies.
    #[inline(always)]
    pub fn panel(&self, panel: usize) -> *mut Bf16 {
        let len = self.plan.panel_len();
        self.packed.part((panel - self.panels.start) * len, len).ptr()
    }
}

/// Packs one step of all panels of a block; rows of the weights are rows of the product.
pub(super) struct PackRows<'a> {
    pub part: &'a Part<'a>,
    pub step: usize,
}

impl Kernel for PackRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (part, plan) = (self.part, self.part.plan);
        let (group_in, out) = (plan.conv.group_in(), plan.conv.window.output.c);
        let column = part.group * plan.conv.group_out();
        let weights = part.operands.weights.ptr();
        let row = |k: usize| plan.at(k).map(|(tap, channel)| (tap * group_in + channel) * out + column);
        for pair in 0..SIDE {
            let k = self.step * DEPTH + 2 * pair;
            let rows = [row(k), row(k + 1)];
            let ahead = [row(k + AHEAD_ROWS), row(k + AHEAD_ROWS + 1)];
            for panel in part.panels.clone() {
                let first = panel * SIDE;
                for row in ahead.into_iter().flatten() {
                    prefetch(weights.wrapping_add(row + first), SIDE);
                }
                // SAFETY: rows and columns lie inside the weights, the pair inside the panel.
                unsafe {
                    let to = part.panel(panel).add((self.step * SIDE + pair) * 2 * SIDE);
                    for at in (0..SIDE).step_by(V::LANES) {
                        let lanes = plan.cols.saturating_sub(first + at).min(V::LANES);
                        let low = load_row::<V>(weights, rows[0].map(|row| row + first + at), lanes);
                        let high = load_row::<V>(weights, rows[1].map(|row| row + first + at), lanes);
                        V::store_pairs(low, high, to.add(2 * at));
                    }
                }
            }
        }
    }
}

/// Weights from a place on; zeros where there is none.
///
/// # Safety
/// The place must have `lanes` values.
#[inline(always)]
unsafe fn load_row<V: Vector>(weights: *const f32, at: Option<usize>, lanes: usize) -> V {
    // SAFETY: the caller vouches.
    unsafe {
        match at {
            Some(at) => V::load_lanes(weights.wrapping_add(at), lanes),
            None => V::splat(0.0),
        }
    }
}

/// Packs one panel; rows of the weights are columns of the product.
pub(super) struct PackTurned<'a> {
    pub part: &'a Part<'a>,
    pub panel: usize,
}

impl Kernel for PackTurned<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (part, plan) = (self.part, self.part.plan);
        let (group_in, out) = (plan.conv.group_in(), plan.conv.window.output.c);
        let column = part.group * plan.conv.group_out();
        let first = self.panel * SIDE;
        let cols = (plan.cols - first).min(SIDE);
        let weights = part.operands.weights.ptr();
        let to = part.panel(self.panel);
        let mut tile = Unturned::ZERO;
        for step in 0..plan.steps {
            let mut k = step * DEPTH;
            let end = k + DEPTH;
            while k < end {
                let Some((tap, channel)) = plan.at(k) else {
                    for row in tile.0.chunks_exact_mut(DEPTH) {
                        row[k % DEPTH..].fill(Bf16(0));
                    }
                    break;
                };
                let len = (plan.depth - channel).min(end - k);
                let base = (tap * group_in + first) * out + column + channel;
                for row in 0..cols {
                    prefetch(weights.wrapping_add(base + row * out + AHEAD), len);
                    // SAFETY: the stretch lies inside the row of the weights, its target inside a row of the tile.
                    unsafe {
                        let from = weights.add(base + row * out).cast_const();
                        let to = tile.0.as_mut_ptr().add(row * DEPTH + k % DEPTH);
                        let mut at = 0;
                        while at < len {
                            let lanes = V::LANES.min(len - at);
                            V::load_lanes(from.add(at), lanes).store_lanes(to.add(at), lanes);
                            at += lanes;
                        }
                    }
                }
                k += len;
            }
            // SAFETY: the step's tile lies inside the panel.
            unsafe { tile.turn_into::<V>(to.add(step * TILE), 2 * SIDE) };
        }
    }
}
