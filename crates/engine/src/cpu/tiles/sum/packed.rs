//! Packing both operands of a sum.

use std::ops::Range;

use paceline_model::Shape;

use super::super::super::element::Bf16;
use super::super::super::kernels::tile::Mode;
use super::super::super::memory::View;
use super::super::super::simd::{Kernel, Vector, prefetch};
use super::super::super::weights::WeightOperands;
use super::super::pack::Unturned;
use super::super::{DEPTH, SIDE, TILE};
use super::{CUT, Seen, TileSum};
use crate::Layout;

/// Some images of a batch.
pub(super) struct Chunk<'a> {
    pub sum: &'a TileSum,
    pub operands: &'a WeightOperands<Bf16>,
    pub group: usize,
    pub first: usize,
    pub images: usize,
    pub mode: Mode,
}

/// Some pixels of a map, one every few, and the images of each.
struct Row {
    map: Shape,
    /// The first one's number in the map, and the one behind the last.
    pixels: Range<usize>,
    step: usize,
}

impl Chunk<'_> {
    /// The places of the first channels of a tile of positions, from the row's position `first` on; `None` where there is no
    /// such image or pixel.
    #[inline(always)]
    fn places(&self, row: &Row, first: usize) -> [Option<usize>; DEPTH] {
        let images = self.sum.images;
        let mut pixel = row.pixels.start + first / images * row.step;
        let mut image = first % images;
        let mut places = [None; DEPTH];
        for place in &mut places {
            if pixel < row.pixels.end && image < self.images {
                let sample = self.first + image;
                *place = Some(match self.sum.layout {
                    Layout::Nhwc => (sample * row.map.pixels() + pixel) * row.map.c,
                    Layout::Nchw => sample * row.map.len() + pixel,
                });
            }
            image += 1;
            if image == images {
                (image, pixel) = (0, pixel + row.step);
            }
        }
        places
    }

    /// A few channels of a pixel.
    ///
    /// # Safety
    /// The place must lie inside the map, and so must `lanes` channels from `channel` on.
    #[inline(always)]
    unsafe fn load<V: Vector>(&self, from: View<Bf16>, place: Option<usize>, channels: &Channels) -> V {
        let Channels { first: channel, lanes, stride } = *channels;
        // SAFETY: the caller vouches.
        unsafe {
            let Some(place) = place else { return V::splat(0.0) };
            if self.sum.layout == Layout::Nhwc {
                return V::load_lanes(from.ptr().add(place + channel).cast_const(), lanes);
            }
            let mut all = [Bf16(0); 16];
            for (i, value) in all.iter_mut().enumerate().take(lanes) {
                *value = *from.ptr().add(place + (channel + i) * stride);
            }
            V::load_bf16(all.as_ptr())
        }
    }

    /// Asks for two blocks of channels of the pixels that come next, once for both: pixels lie too far apart for the hardware to predict.
    #[inline(always)]
    fn prefetch(&self, from: View<Bf16>, next: &[Option<usize>; DEPTH], (group, block): (usize, usize)) {
        if self.sum.layout == Layout::Nhwc && block.is_multiple_of(2) {
            for place in next.iter().flatten() {
                prefetch(from.ptr().wrapping_add(place + group + block * SIDE), 2 * SIDE);
            }
        }
    }

    /// Adds the parts of the bias's gradient, in order.
    pub fn add_bias(&self, parts: View) {
        let Some(bias) = self.operands.bias_grad else { return };
        let channels = self.sum.conv.group_out();
        // SAFETY: the parts are complete; the layer's gradients are its own.
        let (parts, bias) = unsafe { (parts.read(), bias.part(self.group * channels, channels).write()) };
        if self.mode == Mode::Write {
            bias.fill(0.0);
        }
        for part in parts.chunks_exact(self.sum.out_blocks() * SIDE) {
            bias.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
        }
    }
}

/// A few channels of a pixel.
struct Channels {
    first: usize,
    lanes: usize,
    /// From one to the next.
    stride: usize,
}

/// Packs a row of the input, or a part of it: channels become rows of positions.
pub(super) struct PackInput<'a> {
    pub chunk: &'a Chunk<'a>,
    pub row: usize,
    /// Which of how many parts.
    pub cut: (usize, usize),
    pub packed: View<Bf16>,
    /// Room for what a tile of positions sees.
    pub lines: View<Bf16>,
}

impl Kernel for PackInput<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (chunk, sum) = (self.chunk, self.chunk.sum);
        let map = sum.conv.window.input;
        let (channels, group) = (sum.conv.group_in(), chunk.group * sum.conv.group_in());
        let input = chunk.operands.input;
        let mut tile = Unturned::ZERO;
        for phase in 0..sum.input.phases.min(map.w) {
            let pixels = self.row * map.w + phase..(self.row + 1) * map.w;
            let row = Row { map, pixels, step: sum.input.phases };
            let count = (map.w - phase).div_ceil(row.step) * sum.images;
            let start = sum.input.of(self.row, phase);
            let places_at = |at: usize| {
                let which = chunk.first + at..chunk.first + chunk.images.max(at);
                match &sum.seen {
                    // SAFETY: the lines are this task's.
                    Some(seen) if seen.gathers() => unsafe {
                        seen.gather(input, which, self.lines, sum.in_blocks() * SIDE)
                    },
                    Some(seen) => (input, seen.places(which)),
                    None => (input, chunk.places(&row, at)),
                }
            };
            let is_gathered = sum.seen.as_ref().is_some_and(Seen::gathers);
            let mut ahead = None;
            for at in part_of(count, self.cut).step_by(DEPTH) {
                // Whole tiles are one pixel's.
                if sum.whole && !sum.read[row.pixels.start + at / sum.images * row.step] {
                    ahead = None;
                    continue;
                }
                let (from, places) = ahead.take().unwrap_or_else(|| places_at(at));
                if !is_gathered {
                    ahead = Some(places_at(at + DEPTH));
                }
                for block in 0..sum.in_blocks() {
                    if let Some((from, next)) = &ahead {
                        chunk.prefetch(*from, next, (group, block));
                    }
                    let to = self.packed.part(block * sum.in_len(), sum.in_len()).ptr();
                    // SAFETY: places lie inside the input, the tile inside the packed block.
                    unsafe {
                        for lane in (0..SIDE).step_by(V::LANES) {
                            let first = block * SIDE + lane;
                            let lanes = channels.saturating_sub(first).min(V::LANES);
                            let channels = Channels { first: group + first, lanes, stride: map.pixels() };
                            for pair in 0..SIDE {
                                let low = chunk.load::<V>(from, places[2 * pair], &channels);
                                let high = chunk.load::<V>(from, places[2 * pair + 1], &channels);
                                let to = tile.0.as_mut_ptr().add(2 * (pair * SIDE + lane));
                                V::store_exact_pairs(low, high, to);
                            }
                        }
                        tile.turn_into::<V>(to.add((start + at) / DEPTH * TILE), DEPTH);
                    }
                }
            }
        }
    }
}

/// The positions of one of several parts.
fn part_of(count: usize, (part, parts): (usize, usize)) -> Range<usize> {
    if parts == 1 { 0..count } else { part * CUT..((part + 1) * CUT).min(count) }
}

/// Packs some rows of the output gradient, or a part of the only one, as pairs of positions, and adds up the bias's gradient, if there is
/// a bias.
pub(super) struct PackOutput<'a> {
    pub chunk: &'a Chunk<'a>,
    pub part: usize,
    pub packed: View<Bf16>,
    pub sums: View,
}

impl Kernel for PackOutput<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (chunk, sum) = (self.chunk, self.chunk.sum);
        let map = sum.conv.window.output;
        let (channels, group) = (sum.conv.group_out(), chunk.group * sum.conv.group_out());
        let from = chunk.operands.output_grad;
        let has_bias = chunk.operands.bias_grad.is_some();
        // SAFETY: the sums are this part's.
        unsafe { self.sums.write() }.fill(0.0);
        let (rows, cut) = match map.h {
            1 => (0..1, (self.part, sum.bias_parts())),
            h => (self.part * sum.bias_rows()..((self.part + 1) * sum.bias_rows()).min(h), (0, 1)),
        };
        for y in rows {
            let row = Row { map, pixels: y * map.w..(y + 1) * map.w, step: 1 };
            let (start, count) = (sum.output.of(y, 0), map.w * sum.images);
            let mut next = None;
            for at in part_of(count, cut).step_by(DEPTH) {
                let places = next.unwrap_or_else(|| chunk.places(&row, at));
                let ahead = chunk.places(&row, at + DEPTH);
                next = Some(ahead);
                let pairs = (count - at).min(DEPTH).div_ceil(2);
                for block in 0..sum.out_blocks() {
                    chunk.prefetch(from, &ahead, (group, block));
                    let to = self.packed.part(block * sum.out_len(), sum.out_len()).ptr();
                    for lane in (0..SIDE).step_by(V::LANES) {
                        let first = block * SIDE + lane;
                        let lanes = channels.saturating_sub(first).min(V::LANES);
                        let channels = Channels { first: group + first, lanes, stride: map.pixels() };
                        let sums = self.sums.part(first, V::LANES).ptr();
                        // SAFETY: places lie inside the gradient, pairs inside the packed block.
                        unsafe {
                            let mut total = V::load(sums);
                            for pair in 0..pairs {
                                let low = chunk.load::<V>(from, places[2 * pair], &channels);
                                let high = chunk.load::<V>(from, places[2 * pair + 1], &channels);
                                if has_bias {
                                    total = total.add(low).add(high);
                                }
                                let to = to.add((start + at + 2 * pair) * SIDE + 2 * lane);
                                V::store_exact_pairs(low, high, to);
                            }
                            total.store(sums);
                        }
                    }
                }
            }
        }
    }
}
