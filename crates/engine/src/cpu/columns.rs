//! Forward and backward-data of convolutions in NCHW: pixels are columns of the product, gathered panel by panel; the
//! weights are its rows.

use paceline_model::Shape;

use super::geometry::Class;
use super::kernels::tile::{MAX_POINTERS, Mode, RowTile, Segment};
use super::memory::View;
use super::pool::Pool;
use super::product::{ConvShape, Direction, Operands, Rows, Tasks};
use super::simd::{Kernel, Simd, Vector};

/// A compiled direction of a convolution in NCHW.
pub(crate) struct Columns {
    conv: ConvShape,
    direction: Direction,
    simd: Simd,
    source: Shape,
    dest: Shape,
    classes: Vec<ColumnClass>,
    tasks: Tasks,
    depth: usize,
    rows: usize,
    /// From one row of the weights to the next.
    row_stride: usize,
}

/// Pixels that see the same taps; the panel holds just those taps, in order.
struct ColumnClass {
    class: Class,
    segments: Vec<Segment>,
}

impl Columns {
    pub fn new(conv: ConvShape, direction: Direction, simd: Simd) -> Self {
        let window = &conv.window;
        let (classes, source, dest) = match direction {
            Direction::Forward => (window.forward(), window.input, window.output),
            Direction::Backward => (window.backward(), window.output, window.input),
        };
        let width = 2 * simd.lanes();
        let depth = source.c / conv.groups;
        let (row_stride, tap_stride) = match direction {
            Direction::Forward => (conv.taps() * depth, depth),
            Direction::Backward => (window.output.c, conv.group_in() * window.output.c),
        };
        let columns = classes.iter().map(|class| class.pixels.len() * conv.batch).collect();
        let tasks = Tasks::new(columns, width);
        let classes = classes
            .into_iter()
            .map(|class| {
                let segments = class.taps.iter().enumerate().map(|(index, tap)| Segment {
                    a: (tap.weight * tap_stride) as isize,
                    b: index * depth,
                    len: depth,
                });
                ColumnClass { segments: segments.collect(), class }
            })
            .collect();
        Self {
            conv,
            direction,
            simd,
            source,
            dest,
            classes,
            tasks,
            depth,
            rows: dest.c / conv.groups,
            row_stride,
        }
    }

    fn width(&self) -> usize {
        2 * self.simd.lanes()
    }

    /// Values of the weights as rows; backward uses them where they are.
    fn rows_len(&self) -> usize {
        match self.direction {
            Direction::Forward => self.conv.taps() * self.depth * self.rows,
            Direction::Backward => 0,
        }
    }

    /// Values of each thread's gathered panel and output tile.
    fn panel_len(&self) -> usize {
        (self.conv.taps() * self.depth + MAX_POINTERS) * self.width()
    }

    /// Values of workspace that a run needs.
    pub fn workspace(&self, threads: usize) -> usize {
        self.rows_len() + threads * self.panel_len()
    }

    pub fn run(&self, pool: &Pool, operands: &Operands) {
        let (rows_len, panel_len) = (self.rows_len(), self.panel_len());
        for group in 0..self.conv.groups {
            let rows = operands.workspace.part(0, rows_len);
            if self.direction == Direction::Forward {
                pool.each(self.conv.taps(), |tap, _| self.pack_rows(operands, group, tap, rows));
            }
            pool.each(self.tasks.count(), |task, thread| {
                let panel = operands.workspace.part(rows_len + thread * panel_len, panel_len);
                let weights = match self.direction {
                    Direction::Forward => rows,
                    Direction::Backward => {
                        let offset = group * self.conv.group_out();
                        operands.weights.part(offset, operands.weights.len() - offset)
                    }
                };
                let kernel =
                    ColumnBlock { plan: self, operands, group, task: self.tasks.get(task), weights, panel };
                // SAFETY: the engine checked the instruction set; a thread's panel is its own.
                unsafe { self.simd.run(kernel) }
            });
        }
    }

    /// One tap of `[tap][in][out]` as `[out][tap][in]`.
    fn pack_rows(&self, operands: &Operands, group: usize, tap: usize, rows: View) {
        let (taps, out) = (self.conv.taps(), self.conv.window.output.c);
        // SAFETY: each tap writes stretches of its own; weights are only read.
        let (weights, target) = unsafe { (operands.weights.read(), rows.ptr()) };
        for input in 0..self.depth {
            let from = (tap * self.depth + input) * out + group * self.rows;
            for (row, &value) in weights[from..from + self.rows].iter().enumerate() {
                // SAFETY: (row, tap, input) lies inside the packed rows.
                unsafe { *target.add((row * taps + tap) * self.depth + input) = value };
            }
        }
    }
}

struct ColumnBlock<'a> {
    plan: &'a Columns,
    operands: &'a Operands,
    group: usize,
    task: Rows,
    weights: View,
    panel: View,
}

/// Columns of the widest panel.
const MAX_WIDTH: usize = 32;

impl Kernel for ColumnBlock<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let plan = self.plan;
        let ColumnClass { class, segments } = &plan.classes[self.task.class];
        if class.taps.is_empty() && self.operands.mode == Mode::Add {
            return;
        }
        let width = 2 * V::LANES;
        let (source_pixels, dest_pixels) = (plan.source.pixels(), plan.dest.pixels());
        let mut from = [0usize; MAX_WIDTH];
        let mut to = [0usize; MAX_WIDTH];
        for column in 0..width {
            let index = self.task.first + column.min(self.task.count - 1);
            let (sample, pixel) = (index / class.pixels.len(), index % class.pixels.len());
            let (d, s) = class.pixels[pixel];
            from[column] = sample * plan.source.c * source_pixels + s as usize;
            to[column] = sample * plan.dest.c * dest_pixels + d as usize;
        }
        // Source pixels of a class rise strictly: a full panel that spans no more than its width has no gap.
        let together = self.task.count == width && from[width - 1] == from[0] + width - 1;
        let source = self.operands.source.ptr();
        let panel = self.panel.ptr();
        // SAFETY: pixels, taps and channels lie inside the source map; the panel has room for all taps.
        unsafe {
            for (index, tap) in class.taps.iter().enumerate() {
                for k in 0..plan.depth {
                    let channel = (self.group * plan.depth + k) * source_pixels;
                    let base = source.add(channel).offset(tap.offset);
                    let target = panel.add((index * plan.depth + k) * width);
                    if together {
                        V::load(base.add(from[0])).store(target);
                        V::load(base.add(from[0] + V::LANES)).store(target.add(V::LANES));
                    } else {
                        for (column, &at) in from.iter().enumerate().take(width) {
                            *target.add(column) = *base.add(at);
                        }
                    }
                }
            }
        }
        // SAFETY: the tile lies behind the taps in the thread's own panel.
        let scratch = unsafe { panel.add(plan.conv.taps() * plan.depth * width) };
        let dest = self.operands.dest.ptr();
        let tiles = plan.rows.div_ceil(V::POINTERS);
        for tile in 0..tiles {
            let first = plan.rows * tile / tiles;
            let count = plan.rows * (tile + 1) / tiles - first;
            let mut rows = RowTile {
                a: [std::ptr::null(); MAX_POINTERS],
                c: [std::ptr::null_mut(); MAX_POINTERS],
                rows: count,
                b: panel,
                vectors: 2,
                cols: width,
                segments,
                bias: std::ptr::null(),
                mode: Mode::Write,
            };
            // SAFETY: rows lie inside the weights and the scratch tile.
            unsafe {
                for i in 0..count {
                    rows.a[i] = self.weights.ptr().add((first + i) * plan.row_stride);
                    rows.c[i] = scratch.add(i * width);
                }
                rows.run::<V>();
                for i in 0..count {
                    let channel = self.group * plan.rows + first + i;
                    let bias = self.operands.bias.map_or(0.0, |b| *b.ptr().add(channel));
                    let row = dest.add(channel * dest_pixels);
                    for (column, &at) in to.iter().enumerate().take(self.task.count) {
                        let value = *scratch.add(i * width + column) + bias;
                        match self.operands.mode {
                            Mode::Write => *row.add(at) = value,
                            Mode::Add => *row.add(at) += value,
                        }
                    }
                }
            }
        }
    }
}
