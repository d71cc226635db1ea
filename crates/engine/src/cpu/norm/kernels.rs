//! The passes of a batch norm over its maps, for every instruction set.

use super::{CHUNK, Kept, Norm, NormBackward};
use crate::cpu::kernels::tile::Mode;
use crate::cpu::memory::View;
use crate::cpu::simd::{Kernel, Vector, each_vector};
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

/// Adds up two values for each value of the rows of a chunk (NHWC) or of one image (NCHW).
///
/// # Safety
/// `sums` must hold two rows of channels; `values(place)` must be safe inside the part.
#[inline(always)]
unsafe fn sum_part<V: Vector>(norm: &Norm, part: usize, sums: View, values: impl Fn(Place) -> (V, V)) {
    let channels = norm.channels;
    // SAFETY: the caller vouches.
    unsafe {
        if norm.rows() {
            let (first, last) = (part * CHUNK, ((part + 1) * CHUNK).min(norm.count()));
            let mut at = 0;
            while at + 2 * V::LANES <= channels {
                let mut acc = [V::splat(0.0); 4];
                for row in first..last {
                    let (a, b) =
                        values(Place { offset: row * channels + at, lanes: V::LANES, channel: 0, at });
                    let next = at + V::LANES;
                    let offset = row * channels + next;
                    let (c, d) = values(Place { offset, lanes: V::LANES, channel: 0, at: next });
                    acc = [acc[0].add(a), acc[1].add(b), acc[2].add(c), acc[3].add(d)];
                }
                acc[0].store(sums.ptr().add(at));
                acc[1].store(sums.ptr().add(channels + at));
                acc[2].store(sums.ptr().add(at + V::LANES));
                acc[3].store(sums.ptr().add(channels + at + V::LANES));
                at += 2 * V::LANES;
            }
            while at < channels {
                let lanes = V::LANES.min(channels - at);
                let mut acc = [V::splat(0.0); 2];
                for row in first..last {
                    let (a, b) = values(Place { offset: row * channels + at, lanes, channel: 0, at });
                    acc = [acc[0].add(a), acc[1].add(b)];
                }
                V::store_lanes(acc[0], sums.ptr().add(at), lanes);
                V::store_lanes(acc[1], sums.ptr().add(channels + at), lanes);
                at += lanes;
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

pub(super) struct Moments<'a> {
    pub norm: &'a Norm,
    pub part: usize,
    pub input: View,
    pub sums: View,
}

impl Kernel for Moments<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (norm, input, kind) = (self.norm, self.input.ptr(), self.norm.lanes());
        // SAFETY: offsets lie inside the input; a partial vector's empty lanes are cleared by `keep`.
        unsafe {
            sum_part::<V>(
                norm,
                self.part,
                self.sums,
                #[inline(always)]
                |Place { offset, lanes, channel, at }| {
                    let pivot = match kind {
                        Lanes::Channels => V::load_lanes(input.add(at), lanes),
                        Lanes::Pixels => V::splat(*input.add(channel * norm.pixels)),
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

pub(super) struct Apply<'a> {
    pub norm: &'a Norm,
    pub part: usize,
    pub input: View,
    pub residual: Option<View>,
    pub output: View,
    pub kept: &'a Kept,
}

impl Kernel for Apply<'_> {
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
unsafe fn passed<V: Vector>(norm: &Norm, operands: &NormBackward, kept: &Kept, place: Place, value: V) -> V {
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

pub(super) struct BackwardSums<'a> {
    pub norm: &'a Norm,
    pub part: usize,
    pub operands: &'a NormBackward,
    pub kept: &'a Kept,
    pub sums: View,
}

impl Kernel for BackwardSums<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (norm, operands, kept) = (self.norm, self.operands, self.kept);
        let kind = norm.lanes();
        // With a residual the bounded gradient is needed by others, so it is written back.
        let write_back = operands.output.is_some() && norm.bounds != Bounds::NONE;
        // SAFETY: offsets lie inside the maps.
        unsafe {
            sum_part::<V>(
                norm,
                self.part,
                self.sums,
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

pub(super) struct BackwardInput<'a> {
    pub norm: &'a Norm,
    pub part: usize,
    pub operands: &'a NormBackward,
    pub kept: &'a Kept,
    pub factors: View,
}

impl Kernel for BackwardInput<'_> {
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
