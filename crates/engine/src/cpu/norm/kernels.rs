//! The passes of a batch norm over its maps, for every instruction set.

use std::ops::Range;

use super::{CHUNK, Kept, Norm, NormBackward};
use crate::cpu::element::Element;
use crate::cpu::kernels::tile::Mode;
use crate::cpu::memory::View;
use crate::cpu::simd::{Kernel, Vector, each_vector, prefetch};
use crate::outline::Bounds;

/// What the lanes of a vector are.
#[derive(Clone, Copy, PartialEq)]
enum Lanes {
    /// Channels of one pixel, from `at` on.
    Channels,
    /// Pixels of one channel.
    Pixels,
}

/// Where a vector of a map lies.
#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    lanes: usize,
    channel: usize,
    /// Offset in its stretch.
    at: usize,
}

impl Place {
    /// The coefficients of a vector: one for each lane, or one for all.
    ///
    /// # Safety
    /// `values` must hold the layer's channels.
    #[inline(always)]
    unsafe fn coefficient<V: Vector>(self, kind: Lanes, values: *const f32) -> V {
        // SAFETY: the caller vouches; a vector of a row never passes the last channel.
        unsafe {
            match kind {
                Lanes::Channels => V::load_lanes(values.add(self.at), self.lanes),
                Lanes::Pixels => V::splat(*values.add(self.channel)),
            }
        }
    }
}

impl Norm {
    #[inline(always)]
    fn lanes(&self) -> Lanes {
        if self.rows() { Lanes::Channels } else { Lanes::Pixels }
    }

    /// Calls `visit(offset, len, channel)` for each contiguous stretch of a part: in NHWC a row of all channels, in
    /// NCHW one channel's map.
    #[inline(always)]
    fn stretches(&self, part: usize, mut visit: impl FnMut(usize, usize, usize)) {
        if self.rows() {
            for row in part * CHUNK..((part + 1) * CHUNK).min(self.count()) {
                visit(row * self.channels, self.channels, 0);
            }
        } else {
            for channel in 0..self.channels {
                visit((part * self.channels + channel) * self.pixels, self.pixels, channel);
            }
        }
    }
}

/// Rows that are read together, so that memory is read about in its own order. It changes no sum.
const ROWS: usize = 16;

/// The maps that a sum reads.
type Maps<'a, E> = [Option<&'a View<E>>; 3];

/// A few vectors of channels of some rows of a part.
struct Stretch {
    rows: Range<usize>,
    /// The first channel.
    at: usize,
    /// Channels of each vector.
    lanes: usize,
    /// Whether they are the part's first rows.
    is_first: bool,
}

/// Adds up two values for each value of some rows, over a few vectors of channels. Meanwhile the lines that the same channels of the next
/// rows lie in are asked for: what the hardware guesses from is the order of memory, which this is not.
///
/// # Safety
/// As [`sum_part`].
#[inline(always)]
unsafe fn sum_rows<V: Vector, E: Element, const NV: usize>(
    norm: &Norm,
    stretch: &Stretch,
    sums: View,
    maps: &Maps<'_, E>,
    values: &impl Fn(Place) -> (V, V),
) {
    let (channels, &Stretch { at, lanes, .. }) = (norm.channels, stretch);
    // SAFETY: the caller vouches.
    unsafe {
        let rows = [sums.ptr().add(at), sums.ptr().add(channels + at)];
        let mut acc = [[V::splat(0.0); NV]; 2];
        if !stretch.is_first {
            for (row, acc) in acc.iter_mut().enumerate() {
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc = V::load_lanes(rows[row].add(j * V::LANES).cast_const(), lanes);
                }
            }
        }
        for row in stretch.rows.clone() {
            for map in maps.iter().flatten() {
                prefetch(map.ptr().wrapping_add((row + ROWS) * channels + at), NV * V::LANES);
            }
            let [first, second] = &mut acc;
            for (j, (first, second)) in first.iter_mut().zip(second).enumerate() {
                let at = at + j * V::LANES;
                let (a, b) = values(Place { offset: row * channels + at, lanes, channel: 0, at });
                (*first, *second) = (first.add(a), second.add(b));
            }
        }
        for (row, acc) in acc.into_iter().enumerate() {
            for (j, acc) in acc.into_iter().enumerate() {
                acc.store_lanes(rows[row].add(j * V::LANES), lanes);
            }
        }
    }
}

/// Adds up two values for each value of the rows of a chunk (NHWC) or of one image (NCHW).
///
/// # Safety
/// `sums` must hold two rows of channels; `values(place)` must be safe inside the part.
#[inline(always)]
unsafe fn sum_part<V: Vector, E: Element>(
    norm: &Norm,
    part: usize,
    sums: View,
    maps: &Maps<'_, E>,
    values: impl Fn(Place) -> (V, V),
) {
    let channels = norm.channels;
    // SAFETY: the caller vouches.
    unsafe {
        if norm.rows() {
            let last = ((part + 1) * CHUNK).min(norm.count());
            for first in (part * CHUNK..last).step_by(ROWS) {
                let rows = first..last.min(first + ROWS);
                let is_first = first == part * CHUNK;
                let mut at = 0;
                while at + 2 * V::LANES <= channels {
                    let stretch = Stretch { rows: rows.clone(), at, lanes: V::LANES, is_first };
                    sum_rows::<V, E, 2>(norm, &stretch, sums, maps, &values);
                    at += 2 * V::LANES;
                }
                while at < channels {
                    let lanes = V::LANES.min(channels - at);
                    let stretch = Stretch { rows: rows.clone(), at, lanes, is_first };
                    sum_rows::<V, E, 1>(norm, &stretch, sums, maps, &values);
                    at += lanes;
                }
            }
        } else {
            norm.stretches(
                part,
                #[inline(always)]
                |offset, len, channel| {
                    let mut acc = [V::splat(0.0); 2];
                    each_vector::<V>(
                        len,
                        #[inline(always)]
                        |at, lanes| {
                            let (a, b) = values(Place { offset: offset + at, lanes, channel, at });
                            acc = [acc[0].add(a), acc[1].add(b)];
                        },
                    );
                    *sums.ptr().add(channel) = across(acc[0]);
                    *sums.ptr().add(channels + channel) = across(acc[1]);
                },
            );
        }
    }
}

/// Sum of the lanes, in order.
///
/// # Safety
/// The vector's instruction set must be available.
#[inline(always)]
unsafe fn across<V: Vector>(value: V) -> f32 {
    let mut lanes = [0.0f32; 16];
    // SAFETY: 16 lanes are the most there are.
    unsafe { value.store(lanes.as_mut_ptr()) };
    lanes[..V::LANES].iter().sum()
}

pub(super) struct Moments<'a, E> {
    pub norm: &'a Norm,
    pub part: usize,
    pub input: View<E>,
    pub sums: View,
}

impl<E: Element> Kernel for Moments<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (norm, input, kind) = (self.norm, self.input.ptr(), self.norm.lanes());
        // SAFETY: offsets lie inside the input; a partial vector's empty lanes are cleared by `keep`.
        unsafe {
            sum_part::<V, E>(
                norm,
                self.part,
                self.sums,
                &[Some(&self.input), None, None],
                #[inline(always)]
                |Place { offset, lanes, channel, at }| {
                    let pivot = match kind {
                        Lanes::Channels => V::load_lanes(input.add(at), lanes),
                        Lanes::Pixels => V::splat((*input.add(channel * norm.pixels)).widen()),
                    };
                    let value = keep(V::load_lanes(input.add(offset), lanes).sub(pivot), lanes);
                    (value, value.mul(value))
                },
            );
        }
    }
}

/// The first `lanes` lanes, the rest zero.
///
/// # Safety
/// The vector's instruction set must be available.
#[inline(always)]
unsafe fn keep<V: Vector>(value: V, lanes: usize) -> V {
    if lanes == V::LANES {
        return value;
    }
    let mut all = [0.0f32; 16];
    // SAFETY: 16 lanes are the most there are.
    unsafe {
        value.store(all.as_mut_ptr());
        V::load_part(all.as_ptr(), lanes)
    }
}

pub(super) struct Apply<'a, E> {
    pub norm: &'a Norm,
    pub part: usize,
    pub input: View<E>,
    pub residual: Option<View<E>>,
    pub output: View<E>,
    pub kept: &'a Kept,
}

impl<E: Element> Kernel for Apply<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (norm, kind) = (self.norm, self.norm.lanes());
        let (input, output) = (self.input.ptr(), self.output.ptr());
        let (scale, shift) = (self.kept.scale.ptr(), self.kept.shift.ptr());
        // SAFETY: stretches lie inside the maps.
        unsafe {
            let (low, high) = (V::splat(norm.bounds.low), V::splat(norm.bounds.high));
            norm.stretches(
                self.part,
                #[inline(always)]
                |offset, len, channel| {
                    each_vector::<V>(
                        len,
                        #[inline(always)]
                        |at, lanes| {
                            let place = Place { offset: offset + at, lanes, channel, at };
                            let a: V = place.coefficient(kind, scale);
                            let b: V = place.coefficient(kind, shift);
                            let mut value = V::load_lanes(input.add(offset + at), lanes).mul_add(a, b);
                            if let Some(residual) = self.residual {
                                value = value.add(V::load_lanes(residual.ptr().add(offset + at), lanes));
                            }
                            V::store_lanes(high.min(low.max(value)), output.add(offset + at), lanes);
                        },
                    );
                },
            );
        }
    }
}

/// The output's gradient where the bound let the value through.
///
/// # Safety
/// Offsets must lie inside the maps.
#[inline(always)]
unsafe fn passed<V: Vector, E: Element>(
    norm: &Norm,
    operands: &NormBackward<E>,
    kept: &Kept,
    place: Place,
    value: V,
) -> V {
    let Place { offset, lanes, .. } = place;
    // SAFETY: the caller vouches.
    unsafe {
        let grad = V::load_lanes(operands.output_grad.ptr().add(offset), lanes);
        if norm.bounds == Bounds::NONE {
            return grad;
        }
        let probe = match operands.output {
            Some(output) => V::load_lanes(output.ptr().add(offset), lanes),
            None => {
                let a: V = place.coefficient(norm.lanes(), kept.scale.ptr());
                let b: V = place.coefficient(norm.lanes(), kept.shift.ptr());
                value.mul_add(a, b)
            }
        };
        grad.keep_between(probe, V::splat(norm.bounds.low), V::splat(norm.bounds.high))
    }
}

pub(super) struct BackwardSums<'a, E> {
    pub norm: &'a Norm,
    pub part: usize,
    pub operands: &'a NormBackward<E>,
    pub kept: &'a Kept,
    pub sums: View,
}

impl<E: Element> Kernel for BackwardSums<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (norm, operands, kept) = (self.norm, self.operands, self.kept);
        let kind = norm.lanes();
        // With a residual the bounded gradient is needed by others, so it is written back.
        let write_back = operands.output.is_some() && norm.bounds != Bounds::NONE;
        // SAFETY: offsets lie inside the maps.
        unsafe {
            let output = operands.output.as_ref().filter(|_| norm.bounds != Bounds::NONE);
            sum_part::<V, E>(
                norm,
                self.part,
                self.sums,
                &[Some(&operands.input), Some(&operands.output_grad), output],
                #[inline(always)]
                |place| {
                    let Place { offset, lanes, .. } = place;
                    let value = V::load_lanes(operands.input.ptr().add(offset), lanes);
                    let grad = passed(norm, operands, kept, place, value);
                    if write_back {
                        V::store_lanes(grad, operands.output_grad.ptr().add(offset), lanes);
                    }
                    let mean: V = place.coefficient(kind, kept.mean.ptr());
                    (grad, grad.mul(value.sub(mean)))
                },
            );
        }
    }
}

pub(super) struct BackwardInput<'a, E> {
    pub norm: &'a Norm,
    pub part: usize,
    pub operands: &'a NormBackward<E>,
    pub kept: &'a Kept,
    pub factors: View,
}

impl<E: Element> Kernel for BackwardInput<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (norm, operands, kept) = (self.norm, self.operands, self.kept);
        let kind = norm.lanes();
        let (slope, offset_factor) =
            (self.factors.ptr(), self.factors.part(norm.channels, norm.channels).ptr());
        // With a residual the first pass has already bounded the gradient in place.
        let bounded = operands.output.is_some();
        // SAFETY: stretches lie inside the maps.
        unsafe {
            norm.stretches(
                self.part,
                #[inline(always)]
                |offset, len, channel| {
                    each_vector::<V>(
                        len,
                        #[inline(always)]
                        |at, lanes| {
                            let place = Place { offset: offset + at, lanes, channel, at };
                            let value = V::load_lanes(operands.input.ptr().add(offset + at), lanes);
                            let grad = if bounded {
                                V::load_lanes(operands.output_grad.ptr().add(offset + at), lanes)
                            } else {
                                passed(norm, operands, kept, place, value)
                            };
                            let mean: V = place.coefficient(kind, kept.mean.ptr());
                            let scale: V = place.coefficient(kind, kept.scale.ptr());
                            let slope: V = place.coefficient(kind, slope);
                            let constant: V = place.coefficient(kind, offset_factor);
                            let mut result = grad.mul_add(scale, value.sub(mean).mul_add(slope, constant));
                            let target = operands.input_grad.ptr().add(offset + at);
                            if operands.mode == Mode::Add {
                                result = result.add(V::load_lanes(target, lanes));
                            }
                            V::store_lanes(result, target, lanes);
                        },
                    );
                },
            );
        }
    }
}
