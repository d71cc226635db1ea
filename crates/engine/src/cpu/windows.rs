//! Layers that slide a window over each channel by itself: depthwise convolution, maximum and average pooling.
//!
//! Forward and backward both gather: a destination pixel reads the source pixels that its class of taps names. So no
//! two threads write the same value, and padding costs nothing.

use paceline_model::Shape;

use super::element::Element;
use super::geometry::Class;
use super::kernels::tile::Mode;
use super::memory::View;
use super::pool::Pool;
use super::simd::{Kernel, Simd, Vector};
use crate::Layout;
use crate::outline::Window;

/// Images whose products a depthwise convolution sums before they are added to the total. Fixed, so that the order of sums
/// is.
const CHUNK: usize = 8;

/// What is made of the gathered values.
#[derive(Clone, Copy)]
pub(crate) enum Gathering<E> {
    /// Sum of source times weight, plus bias: depthwise forward and backward-data.
    Weighted {
        /// `[tap][channel]`.
        weights: View,
        /// One per channel.
        bias: Option<View>,
    },
    /// Largest source value; the tap that it came from goes to `winners`.
    Largest {
        /// Tap number of each output value, as a float.
        winners: View<E>,
    },
    /// Backward of that: source values whose winner is this tap.
    Winners {
        /// As forward left it.
        winners: View<E>,
    },
    /// Mean over the taps that read real input.
    Mean,
    /// Backward of that: each source value over its own number of taps.
    Fractions,
}

/// A compiled window, one direction.
pub(crate) struct Slide {
    layout: Layout,
    simd: Simd,
    batch: usize,
    source: Shape,
    dest: Shape,
    classes: Vec<Class>,
    /// 1 / real taps of each source pixel, for [`Gathering::Fractions`].
    fractions: Vec<f32>,
}

impl Slide {
    /// From the window's input to its output.
    pub fn forward(window: &Window, batch: usize, layout: Layout, simd: Simd) -> Self {
        Self {
            layout: plain_layout(window.input, window.output, layout),
            simd,
            batch,
            source: window.input,
            dest: window.output,
            classes: window.forward(),
            fractions: Vec::new(),
        }
    }

    /// From the output's gradient to the input's.
    pub fn backward(window: &Window, batch: usize, layout: Layout, simd: Simd) -> Self {
        let mut fractions = vec![0.0; window.output.pixels()];
        for class in window.forward() {
            for (pixel, _) in class.pixels {
                fractions[pixel as usize] = 1.0 / class.taps.len() as f32;
            }
        }
        Self {
            layout: plain_layout(window.input, window.output, layout),
            simd,
            batch,
            source: window.output,
            dest: window.input,
            classes: window.backward(),
            fractions,
        }
    }

    /// Runs over the whole batch.
    pub fn run<E: Element>(
        &self,
        pool: &Pool,
        gathering: Gathering<E>,
        source: View<E>,
        dest: View<E>,
        mode: Mode,
    ) {
        pool.each(self.batch, |sample, _| {
            let from = self.source.len();
            let to = self.dest.len();
            let image = Image {
                slide: self,
                gathering,
                source: source.part(sample * from, from),
                dest: dest.part(sample * to, to),
                first: sample * if matches!(gathering, Gathering::Winners { .. }) { from } else { to },
                mode,
            };
            match self.layout {
                // SAFETY: the engine checked the instruction set; each sample writes an image of its own.
                Layout::Nhwc => unsafe { self.simd.run(image) },
                Layout::Nchw => image.planes(),
            }
        });
    }
}

/// 1x1 maps are the same in both layouts: take the vector path.
fn plain_layout(a: Shape, b: Shape, layout: Layout) -> Layout {
    if a.pixels() == 1 && b.pixels() == 1 { Layout::Nhwc } else { layout }
}

struct Image<'a, E> {
    slide: &'a Slide,
    gathering: Gathering<E>,
    source: View<E>,
    dest: View<E>,
    /// Where this sample's winners start.
    first: usize,
    mode: Mode,
}

impl<E: Element> Kernel for Image<'_, E> {
    type Output = ();

    /// Channels last: vectors run along the channels.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let channels = self.slide.dest.c;
        for class in &self.slide.classes {
            for &(to, from) in &class.pixels {
                let mut at = 0;
                while at < channels {
                    let lanes = V::LANES.min(channels - at);
                    // SAFETY: class pixels and taps lie inside the maps.
                    unsafe { self.vector::<V>(class, (to as usize, from as usize), at, lanes) };
                    at += lanes;
                }
            }
        }
    }
}

/// The vector of a source pixel, `offset` pixels from `base`.
///
/// # Safety
/// The pixel must lie inside the source map.
#[inline(always)]
unsafe fn gather<V: Vector, E: Element>(base: *const E, offset: isize, channels: usize, lanes: usize) -> V {
    // SAFETY: the caller vouches.
    unsafe { V::load_lanes(base.offset(offset * channels as isize), lanes) }
}

impl<E: Element> Image<'_, E> {
    /// # Safety
    /// The pixels must be the class's own, `at + lanes` at most the number of channels.
    #[inline(always)]
    unsafe fn vector<V: Vector>(&self, class: &Class, pixel: (usize, usize), at: usize, lanes: usize) {
        let channels = self.slide.dest.c;
        let (to, from) = pixel;
        // SAFETY: the caller vouches.
        unsafe {
            let base = self.source.ptr().add(from * channels + at);
            let target = self.dest.ptr().add(to * channels + at);
            let mut acc = V::splat(0.0);
            match self.gathering {
                Gathering::Weighted { weights, bias } => {
                    for tap in &class.taps {
                        let weight = V::load_lanes(weights.ptr().add(tap.weight * channels + at), lanes);
                        acc = gather::<V, E>(base, tap.offset, channels, lanes).mul_add(weight, acc);
                    }
                    if let Some(bias) = bias {
                        acc = acc.add(V::load_lanes(bias.ptr().add(at), lanes));
                    }
                }
                Gathering::Largest { winners } => {
                    acc = V::splat(f32::NEG_INFINITY);
                    let mut winner = V::splat(0.0);
                    for tap in &class.taps {
                        let value = gather::<V, E>(base, tap.offset, channels, lanes);
                        winner = value.choose_greater(acc, V::splat(tap.weight as f32), winner);
                        acc = value.choose_greater(acc, value, acc);
                    }
                    V::store_lanes(winner, winners.ptr().add(self.first + to * channels + at), lanes);
                }
                Gathering::Winners { winners } => {
                    for tap in &class.taps {
                        let pixel = from as isize + tap.offset;
                        let place = self.first + pixel as usize * channels + at;
                        let winner = V::load_lanes(winners.ptr().add(place), lanes);
                        let tap_number = tap.weight as f32;
                        let (low, high) = (V::splat(tap_number - 0.5), V::splat(tap_number + 0.5));
                        acc = acc.add(
                            gather::<V, E>(base, tap.offset, channels, lanes).keep_between(winner, low, high),
                        );
                    }
                }
                Gathering::Mean => {
                    for tap in &class.taps {
                        acc = acc.add(gather::<V, E>(base, tap.offset, channels, lanes));
                    }
                    acc = acc.mul(V::splat(1.0 / class.taps.len() as f32));
                }
                Gathering::Fractions => {
                    for tap in &class.taps {
                        let fraction = self.slide.fractions[(from as isize + tap.offset) as usize];
                        acc = gather::<V, E>(base, tap.offset, channels, lanes)
                            .mul_add(V::splat(fraction), acc);
                    }
                }
            }
            if self.mode == Mode::Add {
                acc = acc.add(V::load_lanes(target, lanes));
            }
            V::store_lanes(acc, target, lanes);
        }
    }

    /// Channels first: one plane after the other.
    fn planes(&self) {
        let slide = self.slide;
        let (from_len, to_len) = (slide.source.pixels(), slide.dest.pixels());
        for channel in 0..slide.dest.c {
            // SAFETY: each sample's image is its own; winners of this sample too.
            let (source, dest) = unsafe {
                (
                    self.source.part(channel * from_len, from_len).read(),
                    self.dest.part(channel * to_len, to_len).write(),
                )
            };
            for class in &slide.classes {
                for &(to, from) in &class.pixels {
                    let (to, from) = (to as usize, from as isize);
                    let value = self.value(class, channel, source, (to, from));
                    match self.mode {
                        Mode::Write => dest[to] = E::round(value),
                        Mode::Add => dest[to].add(value),
                    }
                }
            }
        }
    }

    fn value(&self, class: &Class, channel: usize, source: &[E], pixel: (usize, isize)) -> f32 {
        let slide = self.slide;
        let (to, from) = pixel;
        let at = |offset: isize| source[(from + offset) as usize].widen();
        let taps = class.taps.iter();
        match self.gathering {
            Gathering::Weighted { weights, bias } => {
                // SAFETY: weights and bias are only read.
                let (weights, bias) = unsafe { (weights.read(), bias.map(|b| b.read())) };
                let sum: f32 =
                    taps.map(|tap| at(tap.offset) * weights[tap.weight * slide.dest.c + channel]).sum();
                sum + bias.map_or(0.0, |bias| bias[channel])
            }
            Gathering::Largest { winners } => {
                let (mut best, mut winner) = (f32::NEG_INFINITY, 0);
                for tap in taps {
                    if at(tap.offset) > best || at(tap.offset).is_nan() {
                        (best, winner) = (at(tap.offset), tap.weight);
                    }
                }
                let place = self.first + channel * slide.dest.pixels() + to;
                // SAFETY: this sample's winners are its own.
                unsafe { *winners.ptr().add(place) = E::round(winner as f32) };
                best
            }
            Gathering::Winners { winners } => {
                // SAFETY: winners are only read.
                let winners = unsafe { winners.read() };
                let first = (self.first + channel * slide.source.pixels()) as isize + from;
                taps.filter(|tap| winners[(first + tap.offset) as usize].widen() == tap.weight as f32)
                    .map(|tap| at(tap.offset))
                    .sum()
            }
            Gathering::Mean => taps.map(|tap| at(tap.offset)).sum::<f32>() / class.taps.len() as f32,
            Gathering::Fractions => {
                taps.map(|tap| at(tap.offset) * slide.fractions[(from + tap.offset) as usize]).sum()
            }
        }
    }
}

/// Backward-weights of a depthwise convolution.
pub(crate) struct DepthwiseSum {
    layout: Layout,
    simd: Simd,
    batch: usize,
    window: Window,
    runs: Vec<Vec<(usize, usize, usize)>>,
}

impl DepthwiseSum {
    pub fn new(window: Window, batch: usize, layout: Layout, simd: Simd) -> Self {
        Self {
            layout: plain_layout(window.input, window.output, layout),
            simd,
            batch,
            runs: window.tap_runs(),
            window,
        }
    }

    /// One row per tap, and one for the bias.
    fn part_len(&self) -> usize {
        (self.runs.len() + 1) * self.window.input.c
    }

    fn parts(&self) -> usize {
        self.batch.div_ceil(CHUNK)
    }

    /// Values of workspace that a run needs.
    pub fn workspace(&self) -> usize {
        self.parts() * self.part_len()
    }

    pub fn run<E: Element>(&self, pool: &Pool, operands: &DepthwiseOperands<E>) {
        let workspace = operands.workspace;
        pool.each(self.parts(), |part, _| {
            let sums = workspace.part(part * self.part_len(), self.part_len());
            let images = part * CHUNK..((part + 1) * CHUNK).min(self.batch);
            let (input, output_grad) = (operands.input, operands.output_grad);
            let kernel = DepthwisePart { plan: self, input, output_grad, sums, images };
            match self.layout {
                // SAFETY: the engine checked the instruction set; each part has sums of its own.
                Layout::Nhwc => unsafe { self.simd.run(kernel) },
                Layout::Nchw => kernel.planes(),
            }
        });
        let taps = self.runs.len() * self.window.input.c;
        self.add_up(operands, operands.weight_grad, 0..taps);
        if let Some(bias) = operands.bias_grad {
            self.add_up(operands, bias, taps..self.part_len());
        }
    }

    /// Adds up some of the sums of all parts, in order.
    fn add_up<E>(&self, operands: &DepthwiseOperands<E>, total: View, range: std::ops::Range<usize>) {
        // SAFETY: the parts are complete; the layer's gradients are its own.
        let (sums, total) = unsafe { (operands.workspace.read(), total.write()) };
        if operands.mode == Mode::Write {
            total.fill(0.0);
        }
        for part in sums.chunks_exact(self.part_len()).take(self.parts()) {
            for (total, value) in total.iter_mut().zip(&part[range.clone()]) {
                *total += value;
            }
        }
    }
}

/// Operands of [`DepthwiseSum::run`].
#[derive(Clone, Copy)]
pub(crate) struct DepthwiseOperands<E> {
    pub input: View<E>,
    pub output_grad: View<E>,
    pub weight_grad: View,
    pub bias_grad: Option<View>,
    pub mode: Mode,
    pub workspace: View,
}

struct DepthwisePart<'a, E> {
    plan: &'a DepthwiseSum,
    input: View<E>,
    output_grad: View<E>,
    sums: View,
    images: std::ops::Range<usize>,
}

impl<E: Element> Kernel for DepthwisePart<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        const WIDE: usize = 4;
        let channels = self.plan.window.input.c;
        let mut at = 0;
        while at < channels {
            // SAFETY: columns `at..` exist; maps and sums are this part's.
            at += unsafe {
                if at + WIDE * V::LANES <= channels {
                    self.columns::<V, WIDE>(at, V::LANES)
                } else if at + V::LANES <= channels {
                    self.columns::<V, 1>(at, V::LANES)
                } else {
                    self.columns::<V, 1>(at, channels - at)
                }
            };
        }
    }
}

impl<E: Element> DepthwisePart<'_, E> {
    /// Sums all taps over a few vectors of channels; returns how many channels.
    ///
    /// # Safety
    /// `N` vectors of `lanes` channels must exist from `at` on.
    #[inline(always)]
    unsafe fn columns<V: Vector, const N: usize>(&self, at: usize, lanes: usize) -> usize {
        let window = &self.plan.window;
        let (channels, step) = (window.input.c, window.stride.1);
        // SAFETY: the caller vouches for the columns, the geometry for the pixels.
        unsafe {
            for (tap, runs) in self.plan.runs.iter().enumerate() {
                let mut acc = [V::splat(0.0); N];
                for image in self.images.clone() {
                    let x = self.input.ptr().add(image * window.input.len() + at);
                    let g = self.output_grad.ptr().add(image * window.output.len() + at);
                    for &(input, output, len) in runs {
                        for i in 0..len {
                            let x = x.add((input + i * step) * channels);
                            let g = g.add((output + i) * channels);
                            for (j, acc) in acc.iter_mut().enumerate() {
                                let x = V::load_lanes(x.add(j * V::LANES), lanes);
                                *acc = x.mul_add(V::load_lanes(g.add(j * V::LANES), lanes), *acc);
                            }
                        }
                    }
                }
                for (j, acc) in acc.into_iter().enumerate() {
                    V::store_lanes(acc, self.sums.ptr().add(tap * channels + at + j * V::LANES), lanes);
                }
            }
            let mut acc = [V::splat(0.0); N];
            for image in self.images.clone() {
                let g = self.output_grad.ptr().add(image * window.output.len() + at);
                for pixel in 0..window.output.pixels() {
                    for (j, acc) in acc.iter_mut().enumerate() {
                        *acc = acc.add(V::load_lanes(g.add(pixel * channels + j * V::LANES), lanes));
                    }
                }
            }
            for (j, acc) in acc.into_iter().enumerate() {
                let bias = self.plan.runs.len() * channels + at + j * V::LANES;
                V::store_lanes(acc, self.sums.ptr().add(bias), lanes);
            }
        }
        if lanes == V::LANES { N * V::LANES } else { lanes }
    }

    fn planes(&self) {
        let window = &self.plan.window;
        let (channels, step) = (window.input.c, window.stride.1);
        let (input_len, output_len) = (window.input.pixels(), window.output.pixels());
        // SAFETY: each part has sums of its own; maps are only read.
        let (x, g, sums) = unsafe { (self.input.read(), self.output_grad.read(), self.sums.write()) };
        sums.fill(0.0);
        for image in self.images.clone() {
            for channel in 0..channels {
                let plane = image * channels + channel;
                let x = &x[plane * input_len..][..input_len];
                let g = &g[plane * output_len..][..output_len];
                for (tap, runs) in self.plan.runs.iter().enumerate() {
                    let mut sum = 0.0;
                    for &(input, output, len) in runs {
                        for i in 0..len {
                            sum += x[input + i * step].widen() * g[output + i].widen();
                        }
                    }
                    sums[tap * channels + channel] += sum;
                }
                sums[self.plan.runs.len() * channels + channel] +=
                    g.iter().map(|value| value.widen()).sum::<f32>();
            }
        }
    }
}
