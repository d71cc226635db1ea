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

/// Values of both packed operands together that a chunk should have.
const CHUNK: usize = 192 * 1024;

/// Rows of more channels than this are so far apart that they evict each other from the cache: they are packed.
const IN_PLACE_CHANNELS: usize = 256;

/// Panels per task: their rows of the gradient are neighbours in memory.
const PANELS_PER_TASK: usize = 16;

/// Which of image and pixel varies fastest in the packed operands: the one that gives longer stretches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    ImagesInner,
    PixelsInner,
}

/// Operands of one run.
#[derive(Clone, Copy)]
pub(crate) struct WeightOperands<E = f32> {
    pub input: View<E>,
    pub output_grad: View<E>,
    pub weight_grad: View,
    pub bias_grad: Option<View>,
    pub mode: Mode,
    pub workspace: View,
}

/// A compiled sum over pixels.
pub(crate) struct WeightSum {
    conv: ConvShape,
    layout: Layout,
    simd: Simd,
    order: Order,
    /// Images per chunk.
    images: usize,
    /// Stretches of each tap over a whole chunk, image by image where pixels run fastest.
    runs: Vec<Vec<Run>>,
    /// Packed input pixels from one output pixel to the next.
    step: usize,
    /// First channel and width of each block of input channels.
    blocks: Vec<(usize, usize)>,
    /// Input pixels that any tap reads, in packed order.
    pixels: Vec<u32>,
    /// Whether the input is read in place: one tap on every pixel, channels last.
    in_place: bool,
}

impl WeightSum {
    pub fn new(conv: ConvShape, layout: Layout, simd: Simd) -> Self {
        let window = &conv.window;
        let output = window.output;
        let mut tap_runs = window.tap_runs();
        let mut step = window.stride.1;
        let pixels: Vec<u32> = if conv.taps() == 1 {
            // A single tap: only the pixels that it reads are packed, in the order of its outputs.
            let inputs = tap_runs[0].iter();
            let pixels = inputs.flat_map(|&(input, _, len)| (0..len).map(move |i| (input + i * step) as u32));
            let pixels: Vec<u32> = pixels.collect();
            if pixels.len() == output.pixels() {
                tap_runs = vec![vec![(0, 0, pixels.len())]];
                step = 1;
                pixels
            } else {
                (0..window.input.pixels() as u32).collect()
            }
        } else {
            (0..window.input.pixels() as u32).collect()
        };
        let same_map = window.input.pixels() == output.pixels() && step == 1;
        let in_place =
            layout == Layout::Nhwc && conv.taps() == 1 && same_map && window.input.c <= IN_PLACE_CHANNELS;
        let per_image = pixels.len() * conv.group_in() + output.pixels() * conv.group_out();
        let images = (CHUNK / per_image).clamp(1, conv.batch);
        let order = if images > output.w && !in_place { Order::ImagesInner } else { Order::PixelsInner };
        let geometry = ChunkGeometry { images, order, step, pixels: (pixels.len(), output.pixels()) };
        let runs = tap_runs.iter().map(|rows| chunk_runs(rows, &geometry)).collect();
        let channels = conv.group_in();
        let count = channels.div_ceil(simd.rows());
        let blocks = (0..count)
            .map(|block| {
                let first = channels * block / count;
                (first, channels * (block + 1) / count - first)
            })
            .collect();
        Self { conv, layout, simd, order, images, runs, step, blocks, pixels, in_place }
    }

    fn width(&self) -> usize {
        2 * self.simd.lanes()
    }

    fn panels(&self) -> usize {
        self.conv.group_out().div_ceil(self.width())
    }

    fn input_positions(&self) -> usize {
        self.images * self.pixels.len()
    }

    fn packed_input(&self) -> usize {
        if self.in_place { 0 } else { self.input_positions() * self.conv.group_in() }
    }

    fn output_positions(&self) -> usize {
        self.images * self.conv.window.output.pixels()
    }

    /// Values of workspace that a run needs.
    pub fn workspace(&self) -> usize {
        self.packed_input() + self.panels() * self.output_positions() * self.width()
    }

    pub fn run(&self, pool: &Pool, operands: &WeightOperands) {
        let packed_input = self.packed_input();
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
                    mode: if first == 0 { operands.mode } else { Mode::Add },
                };
                let outer = if self.in_place { 0 } else { chunk.outer(self.pixels.len()) };
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
                let groups = self.panels().div_ceil(PANELS_PER_TASK);
                pool.each(taps * self.blocks.len() * groups, |task, _| {
                    let (block, panels_first) = (task / groups, task % groups * PANELS_PER_TASK);
                    let kernel = BlockPanels {
                        chunk: &chunk,
                        tap: block / self.blocks.len(),
                        block: self.blocks[block % self.blocks.len()],
                        panels: panels_first..(panels_first + PANELS_PER_TASK).min(self.panels()),
                        input,
                        packed: panels,
                    };
                    // SAFETY: the engine checked the instruction set; each task writes weights of its own.
                    unsafe { self.simd.run(kernel) }
                });
            }
        }
    }

    /// Vectors across a panel: the last one may need only one.
    fn vectors(&self, panel: usize) -> usize {
        if self.conv.group_out() - panel * self.width() <= self.simd.lanes() { 1 } else { 2 }
    }
}

/// What the stretches of a chunk depend on.
struct ChunkGeometry {
    images: usize,
    order: Order,
    step: usize,
    /// Packed pixels of an image, input and output.
    pixels: (usize, usize),
}

/// The stretches of one tap over a chunk of images, adjacent ones joined.
fn chunk_runs(rows: &[(usize, usize, usize)], geometry: &ChunkGeometry) -> Vec<Run> {
    let &ChunkGeometry { images, order, step, pixels: (input_pixels, output_pixels) } = geometry;
    let mut runs: Vec<Run> = Vec::new();
    let mut push = |a: usize, b: usize, len: usize, a_step: usize| match runs.last_mut() {
        Some(last)
            if last.a as usize + last.len as usize * a_step == a && (last.b + last.len) as usize == b =>
        {
            last.len += len as u32;
        }
        _ => runs.push(Run { a: a as u32, b: b as u32, len: len as u32 }),
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
    fn positions(
        &self,
        pixels: usize,
        outer: usize,
        address: impl Fn(usize, usize) -> Option<usize>,
        mut visit: impl FnMut(usize, Option<usize>),
    ) {
        match self.sum.order {
            Order::ImagesInner => {
                for image in 0..self.sum.images {
                    visit(outer * self.sum.images + image, address(image, outer));
                }
            }
            Order::PixelsInner => {
                for pixel in 0..pixels {
                    visit(outer * pixels + pixel, address(outer, pixel));
                }
            }
        }
    }

    /// How many outer indices there are.
    fn outer(&self, pixels: usize) -> usize {
        match self.sum.order {
            Order::ImagesInner => pixels,
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
            sum.pixels.len(),
            self.outer,
            #[inline(always)]
            |image, pixel| chunk.address(shape, image, sum.pixels[pixel] as usize),
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

/// Packs a panel of the output gradient and adds up the bias's gradient in the same pass.
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
            for outer in 0..chunk.outer(shape.pixels()) {
                chunk.positions(
                    shape.pixels(),
                    outer,
                    #[inline(always)]
                    |image, pixel| chunk.address(shape, image, pixel),
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

/// Some panels of one tap and one block of input channels: neighbouring rows of the weights' gradient.
struct BlockPanels<'a> {
    chunk: &'a Chunk<'a>,
    tap: usize,
    block: (usize, usize),
    panels: std::ops::Range<usize>,
    input: View,
    packed: View,
}

impl Kernel for BlockPanels<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (chunk, sum) = (self.chunk, self.chunk.sum);
        let (input, out) = (sum.conv.window.input, sum.conv.window.output.c);
        let (first, width) = self.block;
        let panel_len = sum.output_positions() * sum.width();
        let a_step = match sum.order {
            Order::ImagesInner => 1,
            Order::PixelsInner => sum.step,
        };
        // Read in place, a last, shorter chunk ends where the input does; packed ones are filled up with zeros.
        let in_place = [Run { a: 0, b: 0, len: (chunk.images * sum.conv.window.output.pixels()) as u32 }];
        let runs = if sum.in_place { &in_place[..] } else { &sum.runs[self.tap] };
        for panel in self.panels {
            let column = panel * sum.width();
            let vectors = sum.vectors(panel);
            let row = self.tap * sum.conv.group_in() + first;
            let offset = row * out + chunk.group * sum.conv.group_out() + column;
            // SAFETY: block and panel lie in the packed workspace or the input, the tile inside the gradient.
            unsafe {
                let (a, a_stride) = if sum.in_place {
                    let end = |run: &Run| (run.a + run.len) as usize * input.c;
                    debug_assert!(runs.iter().all(|run| end(run) <= chunk.images * input.len()));
                    let channel = chunk.group * sum.conv.group_in() + first;
                    let image = chunk.first * input.len();
                    (chunk.operands.input.ptr().add(image + channel), input.c)
                } else {
                    (self.input.ptr().add(sum.input_positions() * first), width)
                };
                OuterTile {
                    a,
                    a_stride,
                    a_step,
                    rows: width,
                    b: self.packed.ptr().add(panel * panel_len),
                    vectors,
                    runs,
                    c: chunk.operands.weight_grad.ptr().add(offset),
                    c_stride: out,
                    cols: (sum.conv.group_out() - column).min(vectors * V::LANES),
                    mode: chunk.mode,
                }
                .run::<V>();
            }
        }
    }
}
