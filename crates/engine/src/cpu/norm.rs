//! Batch norm with its neighbours: normalise, add a residual and bound in one pass; backward in two.

use super::kernels::tile::Mode;
use super::memory::View;
use super::pool::Pool;
use super::simd::{Kernel, Simd, Vector, each_vector};
use crate::Layout;
use crate::outline::Bounds;

/// Rows (NHWC) that are summed before they join the total. Fixed, so that the sum never depends on the threads.
const CHUNK: usize = 128;

/// A compiled batch norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub layout: Layout,
    pub simd: Simd,
    pub batch: usize,
    pub pixels: usize,
    pub channels: usize,
    pub epsilon: f32,
    pub bounds: Bounds,
}

/// Per-channel values kept from forward to backward: four rows of `channels`.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    pub mean: View,
    pub inverse: View,
    pub scale: View,
    pub shift: View,
}

impl Kept {
    /// Cuts a view of `4 * channels` values.
    pub fn new(view: View, channels: usize) -> Self {
        let row = |i| view.part(i * channels, channels);
        Self { mean: row(0), inverse: row(1), scale: row(2), shift: row(3) }
    }
}

/// Trained and running values of the layer.
#[derive(Clone, Copy)]
pub(crate) struct NormParams {
    pub gamma: Option<View>,
    pub beta: Option<View>,
    pub moving_mean: View,
    pub moving_variance: View,
}

/// How the running statistics follow the batch's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub momentum: f64,
    /// n / (n - 1) where the unbiased variance is kept, else 1.
    pub correction: f32,
}

/// Operands of backward.
#[derive(Clone, Copy)]
pub(crate) struct NormBackward {
    pub input: View,
    /// The output, where a residual hides the bound; else the bound is found from the input.
    pub output: Option<View>,
    /// Gradient of the output; becomes that of the residual where there is one.
    pub output_grad: View,
    pub input_grad: View,
    pub mode: Mode,
    pub gamma_grad: Option<View>,
    pub beta_grad: Option<View>,
    /// Whether the gradients of gamma and beta are replaced or added to.
    pub param_mode: Mode,
}

impl Norm {
    fn count(&self) -> usize {
        self.batch * self.pixels
    }

    /// A 1x1 map lies the same in both layouts.
    fn rows(&self) -> bool {
        self.layout == Layout::Nhwc || self.pixels == 1
    }

    /// Partial sums: chunks of rows, or images.
    fn parts(&self) -> usize {
        if self.rows() { self.count().div_ceil(CHUNK) } else { self.batch }
    }

    /// Values of workspace that a run needs: two sums a part and channel, and two coefficients a channel.
    pub fn workspace(&self) -> usize {
        (self.parts() + 1) * 2 * self.channels
    }

    /// Statistics of the batch, and from them the scale and shift of this step.
    pub fn measure(
        &self,
        pool: &Pool,
        input: View,
        params: &NormParams,
        running: Running,
        kept: &Kept,
        workspace: View,
    ) {
        pool.each(self.parts(), |part, _| {
            let sums = workspace.part(part * 2 * self.channels, 2 * self.channels);
            // SAFETY: the engine checked the instruction set; each part has sums of its own.
            unsafe { self.simd.run(Moments { norm: self, part, input, sums }) }
        });
        let count = self.count() as f64;
        for channel in 0..self.channels {
            let (first, second) = self.total(workspace, channel);
            // SAFETY: forward of one layer runs alone; all views are the layer's own.
            unsafe {
                let pivot = f64::from(*input.ptr().add(self.pivot(channel)));
                let mean = first / count;
                // Rounding may leave a little less than nothing; what is not a number stays so.
                let variance = second / count - mean * mean;
                let variance = if variance < 0.0 { 0.0 } else { variance };
                let mean = (mean + pivot) as f32;
                let inverse = (1.0 / (variance + f64::from(self.epsilon)).sqrt()) as f32;
                *kept.mean.ptr().add(channel) = mean;
                *kept.inverse.ptr().add(channel) = inverse;
                self.coefficients(params, kept, channel, mean, inverse);
                let keep = running.momentum;
                let follow = |old: View, new: f64| {
                    let at = old.ptr().add(channel);
                    *at = (keep * f64::from(*at) + (1.0 - keep) * new) as f32;
                };
                follow(params.moving_mean, f64::from(mean));
                follow(params.moving_variance, variance * f64::from(running.correction));
            }
        }
    }

    /// Scale and shift from the running statistics, for evaluation.
    pub fn recall(&self, params: &NormParams, kept: &Kept) {
        for channel in 0..self.channels {
            // SAFETY: forward of one layer runs alone; all views are the layer's own.
            unsafe {
                let mean = *params.moving_mean.ptr().add(channel);
                let variance = *params.moving_variance.ptr().add(channel);
                let inverse = 1.0 / (variance + self.epsilon).sqrt();
                self.coefficients(params, kept, channel, mean, inverse);
            }
        }
    }

    /// # Safety
    /// The views must hold this layer's channels and nobody else may use `kept`.
    unsafe fn coefficients(&self, params: &NormParams, kept: &Kept, channel: usize, mean: f32, inverse: f32) {
        // SAFETY: the caller vouches.
        unsafe {
            let scale = inverse * params.gamma.map_or(1.0, |g| *g.ptr().add(channel));
            let beta = params.beta.map_or(0.0, |b| *b.ptr().add(channel));
            *kept.scale.ptr().add(channel) = scale;
            *kept.shift.ptr().add(channel) = beta - mean * scale;
        }
    }

    /// Where a channel's pivot lies: its first value. Sums of differences to it lose no digits to a large mean.
    fn pivot(&self, channel: usize) -> usize {
        if self.rows() { channel } else { channel * self.pixels }
    }

    /// Both sums of a channel over all parts, in order.
    fn total(&self, workspace: View, channel: usize) -> (f64, f64) {
        // SAFETY: the parts are complete and only read.
        let sums = unsafe { workspace.read() };
        let mut total = (0.0, 0.0);
        for part in sums.chunks_exact(2 * self.channels).take(self.parts()) {
            total.0 += f64::from(part[channel]);
            total.1 += f64::from(part[self.channels + channel]);
        }
        total
    }

    /// output = bound(input * scale + shift + residual).
    pub fn apply(&self, pool: &Pool, input: View, residual: Option<View>, output: View, kept: &Kept) {
        pool.each(self.parts(), |part, _| {
            let kernel = Apply { norm: self, part, input, residual, output, kept };
            // SAFETY: the engine checked the instruction set; each part writes rows of its own.
            unsafe { self.simd.run(kernel) }
        });
    }

    /// Gradients of gamma, beta, the input, and (in place of the output's) of the residual.
    pub fn backward(&self, pool: &Pool, operands: &NormBackward, kept: &Kept, workspace: View) {
        pool.each(self.parts(), |part, _| {
            let sums = workspace.part(part * 2 * self.channels, 2 * self.channels);
            let kernel = BackwardSums { norm: self, part, operands, kept, sums };
            // SAFETY: the engine checked the instruction set; each part has rows and sums of its own.
            unsafe { self.simd.run(kernel) }
        });
        let count = self.count() as f64;
        let factors = workspace.part(self.parts() * 2 * self.channels, 2 * self.channels);
        for channel in 0..self.channels {
            let (first, second) = self.total(workspace, channel);
            // SAFETY: the factors and the layer's gradients belong to this layer alone.
            unsafe {
                let scale = f64::from(*kept.scale.ptr().add(channel));
                let inverse = f64::from(*kept.inverse.ptr().add(channel));
                let book = |grad: Option<View>, value: f64| {
                    let Some(grad) = grad else { return };
                    let at = grad.ptr().add(channel);
                    match operands.param_mode {
                        Mode::Write => *at = value as f32,
                        Mode::Add => *at += value as f32,
                    }
                };
                book(operands.gamma_grad, second * inverse);
                book(operands.beta_grad, first);
                *factors.ptr().add(channel) = (-scale * inverse * inverse * second / count) as f32;
                *factors.ptr().add(self.channels + channel) = (-scale * first / count) as f32;
            }
        }
        pool.each(self.parts(), |part, _| {
            let kernel = BackwardInput { norm: self, part, operands, kept, factors };
            // SAFETY: as above.
            unsafe { self.simd.run(kernel) }
        });
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

    /// A coefficient for a vector of a stretch: one a lane in NHWC, one for all in NCHW.
    ///
    /// # Safety
    /// `values` must hold this layer's channels.
    #[inline(always)]
    unsafe fn coefficient<V: Vector>(
        rows: bool,
        values: *const f32,
        channel: usize,
        at: usize,
        lanes: usize,
    ) -> V {
        // SAFETY: the caller vouches; a vector of a row never passes the last channel.
        unsafe { if rows { V::load_lanes(values.add(at), lanes) } else { V::splat(*values.add(channel)) } }
    }
}

/// Sums two vectors a value over the rows of a chunk (NHWC) or over one image (NCHW).
///
/// # Safety
/// `sums` must hold two rows of channels; `values(offset, lanes, channel, at)` must be safe inside the part.
#[inline(always)]
unsafe fn sum_part<V: Vector>(
    norm: &Norm,
    part: usize,
    sums: View,
    values: impl Fn(usize, usize, usize, usize) -> (V, V),
) {
    let channels = norm.channels;
    // SAFETY: the caller vouches.
    unsafe {
        if norm.rows() {
            let (first, last) = (part * CHUNK, ((part + 1) * CHUNK).min(norm.count()));
            let mut at = 0;
            while at + 2 * V::LANES <= channels {
                let mut acc = [V::splat(0.0); 4];
                for row in first..last {
                    let (a, b) = values(row * channels + at, V::LANES, 0, at);
                    let next = at + V::LANES;
                    let (c, d) = values(row * channels + next, V::LANES, 0, next);
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
                    let (a, b) = values(row * channels + at, lanes, 0, at);
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
                            let (a, b) = values(offset + at, lanes, channel, at);
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

struct Moments<'a> {
    norm: &'a Norm,
    part: usize,
    input: View,
    sums: View,
}

impl Kernel for Moments<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (norm, input, rows) = (self.norm, self.input.ptr(), self.norm.rows());
        // SAFETY: offsets lie inside the input; a partial vector's empty lanes are cleared by `keep`.
        unsafe {
            sum_part::<V>(
                norm,
                self.part,
                self.sums,
                #[inline(always)]
                |offset, lanes, channel, at| {
                    let pivot = if rows {
                        V::load_lanes(input.add(at), lanes)
                    } else {
                        V::splat(*input.add(channel * norm.pixels))
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

struct Apply<'a> {
    norm: &'a Norm,
    part: usize,
    input: View,
    residual: Option<View>,
    output: View,
    kept: &'a Kept,
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (norm, rows) = (self.norm, self.norm.rows());
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
                            let a: V = Norm::coefficient(rows, scale, channel, at, lanes);
                            let b: V = Norm::coefficient(rows, shift, channel, at, lanes);
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
unsafe fn passed<V: Vector>(
    norm: &Norm,
    operands: &NormBackward,
    kept: &Kept,
    place: (usize, usize, usize, usize),
    value: V,
) -> V {
    let (offset, lanes, channel, at) = place;
    // SAFETY: the caller vouches.
    unsafe {
        let grad = V::load_lanes(operands.output_grad.ptr().add(offset), lanes);
        if norm.bounds == Bounds::NONE {
            return grad;
        }
        let probe = match operands.output {
            Some(output) => V::load_lanes(output.ptr().add(offset), lanes),
            None => {
                let a: V = Norm::coefficient(norm.rows(), kept.scale.ptr(), channel, at, lanes);
                let b: V = Norm::coefficient(norm.rows(), kept.shift.ptr(), channel, at, lanes);
                value.mul_add(a, b)
            }
        };
        grad.keep_between(probe, V::splat(norm.bounds.low), V::splat(norm.bounds.high))
    }
}

struct BackwardSums<'a> {
    norm: &'a Norm,
    part: usize,
    operands: &'a NormBackward,
    kept: &'a Kept,
    sums: View,
}

impl Kernel for BackwardSums<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (norm, operands, kept) = (self.norm, self.operands, self.kept);
        let rows = norm.rows();
        // With a residual the bounded gradient is needed by others, so it is written back.
        let write_back = operands.output.is_some() && norm.bounds != Bounds::NONE;
        // SAFETY: offsets lie inside the maps.
        unsafe {
            sum_part::<V>(
                norm,
                self.part,
                self.sums,
                #[inline(always)]
                |offset, lanes, channel, at| {
                    let value = V::load_lanes(operands.input.ptr().add(offset), lanes);
                    let grad = passed(norm, operands, kept, (offset, lanes, channel, at), value);
                    if write_back {
                        V::store_lanes(grad, operands.output_grad.ptr().add(offset), lanes);
                    }
                    let mean: V = Norm::coefficient(rows, kept.mean.ptr(), channel, at, lanes);
                    (grad, grad.mul(value.sub(mean)))
                },
            );
        }
    }
}

struct BackwardInput<'a> {
    norm: &'a Norm,
    part: usize,
    operands: &'a NormBackward,
    kept: &'a Kept,
    factors: View,
}

impl Kernel for BackwardInput<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (norm, operands, kept) = (self.norm, self.operands, self.kept);
        let rows = norm.rows();
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
                            let place = (offset + at, lanes, channel, at);
                            let value = V::load_lanes(operands.input.ptr().add(offset + at), lanes);
                            let grad = if bounded {
                                V::load_lanes(operands.output_grad.ptr().add(offset + at), lanes)
                            } else {
                                passed(norm, operands, kept, place, value)
                            };
                            let mean: V = Norm::coefficient(rows, kept.mean.ptr(), channel, at, lanes);
                            let scale: V = Norm::coefficient(rows, kept.scale.ptr(), channel, at, lanes);
                            let slope: V = Norm::coefficient(rows, slope, channel, at, lanes);
                            let constant: V = Norm::coefficient(rows, offset_factor, channel, at, lanes);
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
