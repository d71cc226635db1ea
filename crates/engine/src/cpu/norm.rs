//! Batch norm with its neighbours: normalise, add a residual and bound in one pass; backward in two.

mod kernels;

use super::element::Element;
use super::kernels::tile::Mode;
use super::memory::View;
use super::pool::Pool;
use super::simd::Simd;
use crate::Layout;
use crate::outline::Bounds;
use kernels::{Apply, BackwardInput, BackwardSums, Moments};

/// Rows (NHWC) that are summed before they are added to the total. Fixed, so that the sum never depends on the threads.
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
pub(crate) struct NormBackward<E> {
    pub input: View<E>,
    /// The output, where a residual hides the bound; else the bound is found from the input.
    pub output: Option<View<E>>,
    /// Gradient of the output; becomes that of the residual where there is one.
    pub output_grad: View<E>,
    pub input_grad: View<E>,
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

    /// A 1x1 map is the same in both layouts.
    fn rows(&self) -> bool {
        self.layout == Layout::Nhwc || self.pixels == 1
    }

    /// Partial sums: chunks of rows, or images.
    fn parts(&self) -> usize {
        if self.rows() { self.count().div_ceil(CHUNK) } else { self.batch }
    }

    /// Values of workspace that a run needs: two sums per part and channel, and two coefficients per channel.
    pub fn workspace(&self) -> usize {
        (self.parts() + 1) * 2 * self.channels
    }

    /// Statistics of the batch, and from them the scale and shift of this step.
    pub fn measure<E: Element>(
        &self,
        pool: &Pool,
        input: View<E>,
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
                let pivot = f64::from((*input.ptr().add(self.pivot(channel))).widen());
                let mean = first / count;
                // Rounding may leave a little less than zero; NaN stays NaN.
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

    /// Offset of a channel's pivot, its first value. Sums of differences from it lose no digits to a large mean.
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
    pub fn apply<E: Element>(
        &self,
        pool: &Pool,
        input: View<E>,
        residual: Option<View<E>>,
        output: View<E>,
        kept: &Kept,
    ) {
        pool.each(self.parts(), |part, _| {
            let kernel = Apply { norm: self, part, input, residual, output, kept };
            // SAFETY: the engine checked the instruction set; each part writes rows of its own.
            unsafe { self.simd.run(kernel) }
        });
    }

    /// Gradients of gamma, beta, the input, and (in place of the output's) of the residual.
    pub fn backward<E: Element>(
        &self,
        pool: &Pool,
        operands: &NormBackward<E>,
        kept: &Kept,
        workspace: View,
    ) {
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
}
