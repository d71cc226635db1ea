//! Backward-weights of convolutions and dense layers: sums over all pixels of input times output gradient.
//!
//! Images are taken in chunks. A chunk's input is packed in blocks of channels, its output gradient in panels; then
//! each tap multiplies the stretches of positions where it reads real input. Chunks are added in order.

use paceline_model::Shape;

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
                let outer = chunk.outer(self.conv.window.input);
                pool.each(outer + self.panels(), |task, _| {
                    // SAFETY: the engine checked the instruction set; positions and panels have places of their own.
                    unsafe {
                        if task < outer {
                            self.simd.run(PackInput { chunk: &chunk, outer: task, packed: input });
                        } else {
                            let panel = task - outer;
                            let packed = panels.part(panel * panel_len, panel_len);
                            self.simd.run(PackPanel { chunk: &chunk, panel, packed });
                        }
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
    /// Where a pixel's first channel lies; `None` for the images that a last, shorter chunk lacks.
    #[inline(always)]
    fn address(&self, shape: Shape, image: usize, pixel: usize) -> Option<usize> {
        (image < self.images).then(|| match self.sum.layout {
            Layout::Nhwc => ((self.first + image) * shape.pixels() + pixel) * shape.c,
            Layout::Nchw => (self.first + image) * shape.len() + pixel,
        })
    }

    /// Distance between the channels of a pixel.
    #[inline(always)]
    fn channel_stride(&self, shape: Shape) -> usize {
        match self.sum.layout {
            Layout::Nhwc => 1,
            Layout::Nchw => shape.pixels(),
        }
    }

    /// Calls `visit(position, address)` for the positions of the outer index `outer` (an image or a pixel).
    #[inline(always)]
    fn positions(&self, shape: Shape, outer: usize, mut visit: impl FnMut(usize, Option<usize>)) {
        match self.sum.order {
            Order::ImagesInner => {
                for image in 0..self.sum.images {
                    visit(outer * self.sum.images + image, self.address(shape, image, outer));
                }
            }
            Order::PixelsInner => {
                for pixel in 0..shape.pixels() {
                    visit(outer * shape.pixels() + pixel, self.address(shape, outer, pixel));
                }
            }
        }
    }

    /// How many outer indices there are.
    fn outer(&self, shape: Shape) -> usize {
        match self.sum.order {
            Order::ImagesInner => shape.pixels(),
            Order::PixelsInner => self.sum.images,
        }
    }
}

/// Packs the positions of one outer index of the input, all blocks.
struct PackInput<'a> {
    chunk: &'a Chunk<'a>,
    outer: usize,
    packed: View,
}

impl Kernel for PackInput<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (chunk, sum) = (self.chunk, self.chunk.sum);
        let shape = sum.conv.window.input;
        let stride = chunk.channel_stride(shape);
        let from = chunk.operands.input.ptr();
        let channel = chunk.group * sum.conv.group_in();
        chunk.positions(
            shape,
            self.outer,
            #[inline(always)]
            |position, address| {
                for &(first, width) in &sum.blocks {
                    // SAFETY: pixels lie inside the input, each position has a place of its own in every block.
                    unsafe {
                        let to = self.packed.ptr().add(sum.input_positions() * first + position * width);
                        match address {
                            Some(address) if stride == 1 => {
                                copy::<V>(from.add(address + channel + first), to, width);
                            }
                            Some(address) => {
                                for i in 0..width {
                                    *to.add(i) = *from.add(address + (channel + first + i) * stride);
                                }
                            }
                            None => std::ptr::write_bytes(to, 0, width),
                        }
                    }
                }
            },
        );
    }
}

/// Copies a few values: at most as many as a block is wide.
///
/// # Safety
/// Both must be valid for `width` values.
#[inline(always)]
unsafe fn copy<V: Vector>(from: *const f32, to: *mut f32, width: usize) {
    // SAFETY: the caller vouches.
    unsafe {
        if width <= V::LANES {
            V::load_lanes(from, width).store_lanes(to, width);
        } else {
            std::ptr::copy_nonoverlapping(from, to, width);
        }
    }
}

/// Packs a panel of the output gradient and, on the way, adds up the bias's gradient.
struct PackPanel<'a> {
    chunk: &'a Chunk<'a>,
    panel: usize,
    packed: View,
}

impl Kernel for PackPanel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (chunk, sum) = (self.chunk, self.chunk.sum);
        let vectors = sum.vectors(self.panel);
        let width = vectors * V::LANES;
        let first = self.panel * sum.width();
        let cols = (sum.conv.group_out() - first).min(width);
        let shape = sum.conv.window.output;
        let stride = chunk.channel_stride(shape);
        let column = chunk.group * sum.conv.group_out() + first;
        let from = chunk.operands.output_grad.ptr();
        // SAFETY: pixels lie inside the gradient; each panel has a place of its own.
        unsafe {
            let mut total = [V::splat(0.0); 2];
            for outer in 0..chunk.outer(shape) {
                chunk.positions(
                    shape,
                    outer,
                    #[inline(always)]
                    |position, address| {
                        let to = self.packed.ptr().add(position * width);
                        for (j, total) in total.iter_mut().enumerate().take(vectors) {
                            let lanes = V::LANES.min(cols - j * V::LANES);
                            let at = j * V::LANES;
                            let value = match address {
                                Some(address) if stride == 1 => {
                                    V::load_lanes(from.add(address + column + at), lanes)
                                }
                                Some(address) => {
                                    let mut all = [0.0f32; 16];
                                    for (i, value) in all.iter_mut().enumerate().take(lanes) {
                                        *value = *from.add(address + (column + at + i) * stride);
                                    }
                                    V::load(all.as_ptr())
                                }
                                None => V::splat(0.0),
                            };
                            value.store(to.add(at));
                            *total = total.add(value);
                        }
                    },
                );
            }
            if let Some(bias) = chunk.operands.bias_grad {
                for (j, &total) in total.iter().enumerate().take(vectors) {
                    let lanes = V::LANES.min(cols - j * V::LANES);
                    let to = bias.ptr().add(column + j * V::LANES);
                    let sum = match chunk.mode {
                        Mode::Write => total,
                        Mode::Add => V::load_lanes(to, lanes).add(total),
                    };
                    sum.store_lanes(to, lanes);
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
