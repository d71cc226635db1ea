//! Backward-weights of convolutions and dense layers: sums over all pixels of input times output gradient.
//!
//! Images are taken in chunks. A chunk's input is packed in blocks of channels, its output gradient in panels; then
//! each tap multiplies the stretches of positions where it reads real input. Chunks are added in order.

use super::kernels::tile::{Mode, OuterTile, Run};
use super::memory::View;
use super::pool::Pool;
use super::product::ConvShape;
use super::simd::{Kernel, Simd, Vector};
use crate::Layout;

/// Values of both packed operands that a chunk aims at.
const CHUNK: usize = 192 * 1024;

/// Which of image and pixel runs fastest in the packed operands: the longer stretches win.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    ImagesInner,
    PixelsInner,
}

/// Operands of one run.
#[derive(Clone, Copy)]
pub(crate) struct WeightOperands {
    pub input: View,
    pub output_grad: View,
    pub weight_grad: View,
    pub bias_grad: Option<View>,
    pub workspace: View,
}

/// A compiled sum over pixels.
pub(crate) struct WeightSum {
    conv: ConvShape,
    layout: Layout,
    simd: Simd,
    order: Order,
    /// Images a chunk.
    images: usize,
    /// Stretches of each tap over a whole chunk, image by image where pixels run fastest.
    runs: Vec<Vec<Run>>,
    /// First channel and width of each block of input channels.
    blocks: Vec<(usize, usize)>,
}

impl WeightSum {
    pub fn new(conv: ConvShape, layout: Layout, simd: Simd) -> Self {
        let window = &conv.window;
        let (input, output) = (window.input, window.output);
        let per_image = input.pixels() * conv.group_in() + output.pixels() * conv.group_out();
        let images = (CHUNK / per_image).clamp(1, conv.batch);
        let order = if images > output.w { Order::ImagesInner } else { Order::PixelsInner };
        let runs = window
            .tap_runs()
            .iter()
            .map(|rows| chunk_runs(rows, &conv, images, order))
            .collect();
        let channels = conv.group_in();
        let count = channels.div_ceil(simd.rows());
        let blocks = (0..count)
            .map(|block| {
                let first = channels * block / count;
                (first, channels * (block + 1) / count - first)
            })
            .collect();
        Self {
            conv,
            layout,
            simd,
            order,
            images,
            runs,
            blocks,
        }
    }

    fn width(&self) -> usize {
        2 * self.simd.lanes()
    }

    fn panels(&self) -> usize {
        self.conv.group_out().div_ceil(self.width())
    }

    fn input_positions(&self) -> usize {
        self.images * self.conv.window.input.pixels()
    }

    fn output_positions(&self) -> usize {
        self.images * self.conv.window.output.pixels()
    }

    /// Values of workspace that a run needs.
    pub fn workspace(&self) -> usize {
        self.input_positions() * self.conv.group_in()
            + self.panels() * self.output_positions() * self.width()
    }

    pub fn run(&self, pool: &Pool, operands: &WeightOperands) {
        let packed_input = self.input_positions() * self.conv.group_in();
        let panel_len = self.output_positions() * self.width();
        let input = operands.workspace.part(0, packed_input);
        let panels = operands.workspace.part(packed_input, self.panels() * panel_len);
        let taps = self.runs.len();
        for group in 0..self.conv.groups {
            for first in (0..self.conv.batch).step_by(self.images) {
                let chunk = Chunk {
                    sum: self,
                    operands,
                    group,
                    first,
                    images: self.images.min(self.conv.batch - first),
                    mode: if first == 0 { Mode::Write } else { Mode::Add },
                };
                pool.each(self.blocks.len() + self.panels(), |task, _| {
                    if task < self.blocks.len() {
                        chunk.pack_input(task, input);
                    } else {
                        let panel = task - self.blocks.len();
                        chunk.pack_panel(panel, panels.part(panel * panel_len, panel_len));
                    }
                });
                pool.each(self.panels() * taps, |task, _| {
                    let (panel, tap) = (task / taps, task % taps);
                    let b = panels.part(panel * panel_len, panel_len);
                    // SAFETY: the engine checked the instruction set; a (panel, tap) writes weights of its own.
                    unsafe { self.simd.run(TapBlocks { chunk: &chunk, panel, tap, input, b }) }
                });
            }
        }
    }

    /// Vectors across a panel: the last one may need only one.
    fn vectors(&self, panel: usize) -> usize {
        if self.conv.group_out() - panel * self.width() <= self.simd.lanes() { 1 } else { 2 }
    }
}

/// The stretches of one tap over a chunk of images, adjacent ones joined.
fn chunk_runs(
    rows: &[(usize, usize, usize)],
    conv: &ConvShape,
    images: usize,
    order: Order,
) -> Vec<Run> {
    let step = conv.window.stride.1;
    let mut runs: Vec<Run> = Vec::new();
    let mut push = |a: usize, b: usize, len: usize, a_step: usize| match runs.last_mut() {
        Some(last)
            if last.a as usize + last.len as usize * a_step == a && (last.b + last.len) as usize == b =>
        {
            last.len += len as u32;
        }
        _ => runs.push(Run {
            a: a as u32,
            b: b as u32,
            len: len as u32,
        }),
    };
    match order {
        Order::ImagesInner => {
            for &(input, output, len) in rows {
                for i in 0..len {
                    push((input + i * step) * images, (output + i) * images, images, 1);
                }
            }
        }
        Order::PixelsInner => {
            let (input_pixels, output_pixels) =
                (conv.window.input.pixels(), conv.window.output.pixels());
            for image in 0..images {
                for &(input, output, len) in rows {
                    push(image * input_pixels + input, image * output_pixels + output, len, step);
                }
            }
        }
    }
    runs
}

struct Chunk<'a> {
    sum: &'a WeightSum,
    operands: &'a WeightOperands,
    group: usize,
    first: usize,
    images: usize,
    mode: Mode,
}

impl Chunk<'_> {
    /// Calls `visit(position, offset of the pixel's first channel)` for each pixel of the chunk, in packed order.
    /// Images that a last, shorter chunk lacks are passed as `None`.
    #[inline(always)]
    fn pixels(&self, pixels: usize, channels: usize, mut visit: impl FnMut(usize, Option<usize>)) {
        let address = |image: usize, pixel: usize| {
            (image < self.images).then(|| match self.sum.layout {
                Layout::Nhwc => ((self.first + image) * pixels + pixel) * channels,
                Layout::Nchw => (self.first + image) * pixels * channels + pixel,
            })
        };
        match self.sum.order {
            Order::ImagesInner => {
                for pixel in 0..pixels {
                    for image in 0..self.sum.images {
                        visit(pixel * self.sum.images + image, address(image, pixel));
                    }
                }
            }
            Order::PixelsInner => {
                for image in 0..self.sum.images {
                    for pixel in 0..pixels {
                        visit(image * pixels + pixel, address(image, pixel));
                    }
                }
            }
        }
    }

    fn pack_input(&self, block: usize, packed: View) {
        let sum = self.sum;
        let (first, width) = sum.blocks[block];
        let shape = sum.conv.window.input;
        let stride = self.channel_stride(shape.pixels());
        let channel = (self.group * sum.conv.group_in() + first) * stride;
        // SAFETY: each block has a place of its own in the packed input; the input is only read.
        let (from, to) = unsafe {
            (
                self.operands.input.read(),
                packed.part(sum.input_positions() * first, sum.input_positions() * width).write(),
            )
        };
        self.pixels(shape.pixels(), shape.c, |position, offset| {
            let target = &mut to[position * width..][..width];
            match offset {
                Some(offset) if stride == 1 => {
                    let source = &from[offset + channel..][..width];
                    for i in 0..width {
                        target[i] = source[i];
                    }
                }
                Some(offset) => {
                    for (i, value) in target.iter_mut().enumerate() {
                        *value = from[offset + channel + i * stride];
                    }
                }
                None => target.fill(0.0),
            }
        });
    }

    fn channel_stride(&self, pixels: usize) -> usize {
        match self.sum.layout {
            Layout::Nhwc => 1,
            Layout::Nchw => pixels,
        }
    }

    /// Packs a panel of the output gradient and, on the way, adds up the bias's gradient.
    fn pack_panel(&self, panel: usize, packed: View) {
        let sum = self.sum;
        let width = sum.vectors(panel) * sum.simd.lanes();
        let first = panel * sum.width();
        let cols = (sum.conv.group_out() - first).min(width);
        let shape = sum.conv.window.output;
        let stride = self.channel_stride(shape.pixels());
        let column = self.group * sum.conv.group_out() + first;
        let mut total = [0.0f32; 32];
        // SAFETY: each panel has a place of its own; the gradient is only read.
        let (from, to) = unsafe { (self.operands.output_grad.read(), packed.write()) };
        self.pixels(shape.pixels(), shape.c, |position, offset| {
            let target = &mut to[position * width..][..width];
            match offset {
                Some(offset) if stride == 1 && cols == 32 && width == 32 => {
                    let source: &[f32; 32] = from[offset + column..][..32]
                        .try_into()
                        .expect("invariant: 32 columns");
                    let target: &mut [f32; 32] = target.try_into().expect("invariant: 32 columns");
                    *target = *source;
                    for i in 0..32 {
                        total[i] += source[i];
                    }
                }
                Some(offset) => {
                    for i in 0..cols {
                        let value = from[offset + (column + i) * stride];
                        target[i] = value;
                        total[i] += value;
                    }
                    target[cols..].fill(0.0);
                }
                None => target.fill(0.0),
            }
        });
        if let Some(bias) = self.operands.bias_grad {
            // SAFETY: a panel's columns of the bias belong to this task.
            let bias = unsafe { bias.part(column, cols).write() };
            for (value, total) in bias.iter_mut().zip(total) {
                match self.mode {
                    Mode::Write => *value = total,
                    Mode::Add => *value += total,
                }
            }
        }
    }
}

/// All blocks of input channels of one tap and one panel.
struct TapBlocks<'a> {
    chunk: &'a Chunk<'a>,
    panel: usize,
    tap: usize,
    input: View,
    b: View,
}

impl Kernel for TapBlocks<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let sum = self.chunk.sum;
        let out = sum.conv.window.output.c;
        let column = self.panel * 2 * V::LANES;
        let vectors = sum.vectors(self.panel);
        let all = &sum.runs[self.tap];
        let a_step = match sum.order {
            Order::ImagesInner => 1,
            Order::PixelsInner => sum.conv.window.stride.1,
        };
        for &(first, width) in &sum.blocks {
            // SAFETY: block and panel lie in the packed workspace, the tile inside the weights' gradient.
            unsafe {
                let row = self.tap * sum.conv.group_in() + first;
                let offset = row * out + self.chunk.group * sum.conv.group_out() + column;
                OuterTile {
                    a: self.input.ptr().add(sum.input_positions() * first),
                    a_step,
                    rows: width,
                    b: self.b.ptr(),
                    vectors,
                    runs: all,
                    c: self.chunk.operands.weight_grad.ptr().add(offset),
                    c_stride: out,
                    cols: (sum.conv.group_out() - column).min(vectors * V::LANES),
                    mode: self.chunk.mode,
                }
                .run::<V>();
            }
        }
    }
}
