//! Backward-weights: sums over pixels of input times output gradient. Rows are input channels, columns output channels, and
//! the depth is pixels: positions in the order row, pixel, image.
//!
//! Images are taken in chunks. Where a chunk has whole tiles of images, a tap multiplies just the pixels where it reads real
//! input. Otherwise rows of pixels are cut into tiles, and zeros between the rows of the output gradient stand for what they reach beyond:
//! a tile of the input lies where it lies, and it is the other operand that a tap moves, by pairs of positions. Where a window
//! is one pixel whose channels lie together, or has few channels, each output pixel is an image, and what it sees is that image's one pixel
//! ([`seen`](super::seen)).

mod packed;

use std::ops::Range;

use paceline_model::Shape;

use super::super::element::Bf16;
use super::super::kernels::tile::Mode;
use super::super::memory::View;
use super::super::pool::Pool;
use super::super::product::ConvShape;
use super::super::simd::{Kernel, Simd, Vector, settle_streams};
use super::super::weights::WeightOperands;
use super::seen::Seen;
use super::{Block, DEPTH, Multiplier, SIDE, Start, Step, TILE, WIDTH};
use crate::Layout;
use packed::{Chunk, PackInput, PackOutput};

/// Values of both packed operands together that a chunk should have, and where the gradient is large, which each chunk reads and
/// writes as a whole.
const CHUNK: usize = 384 * 1024;
const LARGE_CHUNK: usize = 1280 * 1024;

/// The most values of a chunk for the sake of whole tiles of images.
const WHOLE_CHUNK: usize = 2 * 1024 * 1024;

/// Positions that a task packs where maps have one row.
const CUT: usize = 8 * DEPTH;

/// Steps whose rows stay in the second-level cache while panels of columns pass by. Fewer would load and store the sums more often.
const SPLIT: usize = 64;

/// Gradients of so many values are large.
const LARGE: usize = 64 * 1024;

/// Pairs of panels per task.
const PAIRS: usize = 8;

/// Gradients of more values than this are gone from the caches before anybody reads them.
const STREAMED: usize = 256 * 1024;

/// Output rows whose bias gradients are summed before they are added to the total: at most so many parts.
const BIAS_PARTS: usize = 64;

/// How positions of a map lie in a packed operand.
#[derive(Clone, Copy, Debug)]
struct Positions {
    /// Images of a pixel, missing ones included: an even number.
    images: usize,
    /// Pixels from one column of the window to the next: the columns of each remainder follow each other.
    phases: usize,
    /// From the first position of a row and phase to that of the next.
    row: usize,
    /// Zeros before the first.
    lead: usize,
    /// All of them.
    count: usize,
}

impl Positions {
    /// Rows are whole tiles.
    fn of_input(map: Shape, phases: usize, images: usize) -> Self {
        let row = (map.w.div_ceil(phases) * images).next_multiple_of(DEPTH);
        Self { images, phases, row, lead: 0, count: map.h * phases * row }
    }

    /// So many zeros are before and behind each row.
    fn of_output(map: Shape, images: usize, gap: usize) -> Self {
        let row = map.w * images + gap;
        Self { images, phases: 1, row, lead: gap, count: gap + map.h * row }
    }

    /// The first image's position of a pixel.
    fn of(&self, y: usize, x: usize) -> usize {
        self.lead + (y * self.phases + x % self.phases) * self.row + x / self.phases * self.images
    }
}

/// A compiled sum over pixels.
pub(crate) struct TileSum {
    /// With output pixels as images, where they are.
    conv: ConvShape,
    seen: Option<Seen>,
    layout: Layout,
    simd: Simd,
    /// Images per chunk.
    images: usize,
    /// Whether every pixel has whole tiles of images.
    whole: bool,
    input: Positions,
    output: Positions,
    /// Of each tap.
    steps: Vec<Vec<Step>>,
    /// Whether any tap reads a pixel of the input.
    read: Vec<bool>,
}

impl TileSum {
    pub fn new(conv: ConvShape, layout: Layout, simd: Simd) -> Self {
        let seen = Seen::of(&conv).filter(|_| layout == Layout::Nhwc);
        let conv = seen.as_ref().map_or(conv, Seen::conv);
        let window = &conv.window;
        let per_image = window.input.pixels() * conv.group_in() + window.output.pixels() * conv.group_out();
        let whole = conv.batch >= DEPTH && DEPTH * per_image <= WHOLE_CHUNK;
        let weights = conv.taps() * conv.group_in() * conv.group_out();
        let chunk = if weights >= LARGE { LARGE_CHUNK } else { CHUNK };
        let unit = if whole { DEPTH } else { 1 };
        let most = (chunk / per_image / unit).max(1);
        // Chunks of one size, or nearly.
        let units = conv.batch.div_ceil(unit);
        let images = (units.div_ceil(units.div_ceil(most)) * unit).next_multiple_of(2);
        let input = Positions::of_input(window.input, window.stride.1, images);
        let output = Positions::of_output(window.output, images, if whole { 0 } else { DEPTH });
        let mut read = vec![false; window.input.pixels()];
        let mut steps = vec![Vec::new(); conv.taps()];
        for (steps, runs) in steps.iter_mut().zip(window.tap_runs()) {
            for (from, to, len) in runs {
                for i in 0..len {
                    read[from + i * window.stride.1] = true;
                }
                let a = input.of(from / window.input.w, from % window.input.w);
                let b = output.of(to / window.output.w, to % window.output.w);
                // Where a tile begins before the run or ends behind it, one of the two has zeros there.
                let before = a % DEPTH;
                for at in (0..before + len * images).step_by(DEPTH) {
                    let tile = (a - before + at) / DEPTH;
                    steps.push(Step { a: (tile * TILE) as u32, b: ((b - before + at) * SIDE) as u32 });
                }
            }
        }
        Self { conv, seen, layout, simd, images, whole, input, output, steps, read }
    }

    fn in_blocks(&self) -> usize {
        self.conv.group_in().div_ceil(SIDE)
    }

    fn out_blocks(&self) -> usize {
        self.conv.group_out().div_ceil(SIDE)
    }

    /// Values of a packed block of channels.
    fn in_len(&self) -> usize {
        self.input.count * SIDE
    }

    fn out_len(&self) -> usize {
        self.output.count * SIDE
    }

    fn packed_len(&self) -> usize {
        self.in_blocks() * self.in_len() + self.out_blocks() * self.out_len() + TILE
    }

    fn bias_rows(&self) -> usize {
        self.conv.window.output.h.div_ceil(BIAS_PARTS)
    }

    /// Parts of the output that are packed at once: some rows, or some of the only row.
    fn bias_parts(&self) -> usize {
        let output = self.conv.window.output;
        match output.h {
            1 => (output.w * self.images).div_ceil(CUT),
            rows => rows.div_ceil(self.bias_rows()),
        }
    }

    /// Parts of a row of the input that are packed at once.
    fn in_cuts(&self) -> usize {
        let input = self.conv.window.input;
        let is_cut = input.h == 1 && self.input.phases == 1;
        if is_cut { (input.w * self.images).div_ceil(CUT) } else { 1 }
    }

    /// Values of fp32 that a thread needs: sums of a task, or what a tile of positions sees.
    fn per_thread(&self) -> usize {
        let gathers = self.seen.as_ref().is_some_and(Seen::gathers);
        let lines = if gathers { DEPTH * self.in_blocks() * SIDE / 2 } else { 0 };
        (PAIRS * 2 * SIDE * WIDTH).max(lines)
    }

    /// Values of fp32 of workspace that a run needs.
    pub fn workspace(&self, threads: usize) -> usize {
        let bias = self.bias_parts() * self.out_blocks() * SIDE;
        self.packed_len() / 2 + bias + threads * self.per_thread()
    }

    pub fn run(&self, pool: &Pool, operands: &WeightOperands<Bf16>) {
        let packed = operands.workspace.part(0, self.packed_len() / 2).of::<Bf16>();
        let input = packed.part(0, self.in_blocks() * self.in_len());
        let output = packed.part(input.len(), self.out_blocks() * self.out_len());
        if !self.whole {
            // SAFETY: the workspace is this run's; nobody uses it yet.
            unsafe { output.write() }.fill(Bf16(0));
        }
        let rest = self.packed_len() / 2;
        let bias_len = self.bias_parts() * self.out_blocks() * SIDE;
        let bias = operands.workspace.part(rest, bias_len);
        let scratch = operands.workspace.part(rest + bias_len, operands.workspace.len() - rest - bias_len);
        let (rows_in, parts, cuts) = (self.conv.window.input.h, self.bias_parts(), self.in_cuts());
        let per_thread = self.per_thread();
        let (row_pairs, groups) = (self.in_blocks().div_ceil(2), self.out_blocks().div_ceil(2 * PAIRS));
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
                pool.each(rows_in * cuts + parts, |task, thread| {
                    // SAFETY: the engine checked the instruction set; rows and their parts have places of their own.
                    unsafe {
                        if task < rows_in * cuts {
                            let lines = scratch.part(thread * per_thread, per_thread).of::<Bf16>();
                            let (row, cut) = (task / cuts, (task % cuts, cuts));
                            self.simd.run(PackInput { chunk: &chunk, row, cut, packed: input, lines });
                        } else {
                            let part = task - rows_in * cuts;
                            let sums = bias.part(part * bias_len / parts, bias_len / parts);
                            self.simd.run(PackOutput { chunk: &chunk, part, packed: output, sums });
                        }
                    }
                });
                chunk.add_bias(bias);
                pool.each(self.steps.len() * groups * row_pairs, |task, thread| {
                    // Columns stay in the second-level cache while all rows pass by.
                    let (tap, columns) = (task / row_pairs / groups, task / row_pairs % groups);
                    let kernel = RowsByPanels {
                        chunk: &chunk,
                        tap,
                        row: task % row_pairs * 2,
                        panels: columns * 2 * PAIRS..((columns + 1) * 2 * PAIRS).min(self.out_blocks()),
                        input,
                        output,
                        scratch: scratch.part(thread * per_thread, per_thread),
                    };
                    // SAFETY: the engine checked the instruction set; each task writes weights of its own.
                    unsafe { self.simd.run(kernel) }
                });
            }
        }
    }
}

/// One tap, two blocks of input channels, some panels of output channels.
struct RowsByPanels<'a> {
    chunk: &'a Chunk<'a>,
    tap: usize,
    row: usize,
    panels: Range<usize>,
    input: View<Bf16>,
    output: View<Bf16>,
    scratch: View,
}

impl Kernel for RowsByPanels<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let sum = self.chunk.sum;
        let steps = &sum.steps[self.tap][..];
        let down = (sum.in_blocks() - self.row).min(2);
        // SAFETY: blocks and panels lie in the packed operands at all steps; the engine checked the instruction set.
        unsafe {
            if steps.is_empty() {
                let zeros = [0.0; 2 * SIDE * WIDTH];
                for panel in self.panels.clone().step_by(2) {
                    self.put::<V>(zeros.as_ptr(), panel);
                }
                settle_streams();
                return;
            }
            let block =
                |view: View<Bf16>, len: usize, index: usize| view.part(index * len, len).ptr().cast_const();
            let a = [self.row, self.row + down - 1].map(|row| block(self.input, sum.in_len(), row));
            let multiplier = Multiplier::new(sum.simd);
            let splits = steps.len().div_ceil(SPLIT);
            for (number, steps) in steps.chunks(SPLIT).enumerate() {
                for (pair, panel) in self.panels.clone().step_by(2).enumerate() {
                    let across = (self.panels.end - panel).min(2);
                    let sums = self.scratch.ptr().add(pair * 2 * SIDE * WIDTH);
                    multiplier.multiply::<V>(&Block {
                        a,
                        a_stride: DEPTH,
                        b: [panel, panel + across - 1].map(|panel| block(self.output, sum.out_len(), panel)),
                        tiles: (down, across),
                        steps,
                        start: if number == 0 { Start::Zero } else { Start::Sums },
                        out: sums,
                        out_stride: WIDTH,
                    });
                    if number + 1 == splits {
                        self.put::<V>(sums, panel);
                    }
                }
            }
            settle_streams();
        }
    }
}

impl RowsByPanels<'_> {
    /// Stores sums as gradients of the weights, or adds them.
    #[inline(always)]
    unsafe fn put<V: Vector>(&self, sums: *const f32, panel: usize) {
        let (chunk, sum) = (self.chunk, self.chunk.sum);
        let (out, group_out) = (sum.conv.window.output.c, sum.conv.group_out());
        let rows = (sum.conv.group_in() - self.row * SIDE).min(2 * SIDE);
        let cols = (group_out - panel * SIDE).min(WIDTH);
        let first = self.tap * sum.conv.group_in() + self.row * SIDE;
        let column = chunk.group * group_out + panel * SIDE;
        let grads = chunk.operands.weight_grad;
        let last = chunk.first + sum.images >= sum.conv.batch;
        let streams = chunk.mode == Mode::Write && last && grads.len() > STREAMED;
        // SAFETY: rows and columns lie inside the gradient and are this task's.
        unsafe {
            for row in 0..rows {
                let to = grads.ptr().add((first + row) * out + column);
                for at in (0..cols).step_by(V::LANES) {
                    let lanes = V::LANES.min(cols - at);
                    let value = V::load(sums.add(row * WIDTH + at));
                    match chunk.mode {
                        Mode::Write if streams && lanes == V::LANES => value.stream(to.add(at)),
                        Mode::Write => value.store_lanes(to.add(at), lanes),
                        Mode::Add => {
                            V::load_lanes(to.add(at).cast_const(), lanes)
                                .add(value)
                                .store_lanes(to.add(at), lanes);
                        }
                    }
                }
            }
        }
    }
}
