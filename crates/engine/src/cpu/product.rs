//! Forward and backward-data of convolutions and dense layers in NHWC, as products of gathered pixels with packed weights.
//!
//! A row of the product is a pixel; its taps are stretches of channels that are read in place, so nothing is unfolded.

use paceline_model::Shape;

use super::geometry::Class;
use super::kernels::tile::{MAX_POINTERS, Mode, RowTile, Segment};
use super::kernels::transpose::transpose;
use super::memory::View;
use super::pool::Pool;
use super::simd::{Kernel, Simd, Vector, prefetch};
use crate::outline::Window;

/// Packed weights up to this many values stay in the second-level cache while all pixels pass by.
const RESIDENT: usize = 96 * 1024;

/// Rows of the weights that packing prefetches ahead: they are too far apart for the hardware to predict.
const AHEAD: usize = 12;

/// Rows per task.
const ROWS_PER_TASK: usize = 8 * MAX_POINTERS;

/// Which way a convolution is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From its input to its output.
    Forward,
    /// From its output's gradient to its input's.
    Backward,
}

/// A convolution as the drivers see it; weights are `[tap][in / groups][out]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvShape {
    pub window: Window,
    pub groups: usize,
    pub batch: usize,
}

impl ConvShape {
    pub fn taps(&self) -> usize {
        self.window.kernel.0 * self.window.kernel.1
    }

    /// Input channels of a group.
    pub fn group_in(&self) -> usize {
        self.window.input.c / self.groups
    }

    /// Output channels of a group.
    pub fn group_out(&self) -> usize {
        self.window.output.c / self.groups
    }
}

/// Operands of one run.
#[derive(Clone, Copy)]
pub(crate) struct Operands<E = f32> {
    pub source: View<E>,
    pub weights: View,
    pub bias: Option<View>,
    pub dest: View<E>,
    pub mode: Mode,
    pub workspace: View,
}

struct ClassPlan {
    pixels: Vec<(u32, u32)>,
    segments: Vec<Segment>,
}

/// Some rows of one class.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub class: usize,
    pub first: usize,
    pub count: usize,
}

/// The rows (or columns) of all classes, cut into tasks.
pub(super) struct Tasks {
    /// Rows of each class.
    rows: Vec<usize>,
    /// First task of each class, and the number of all.
    starts: Vec<usize>,
    /// Rows per task.
    size: usize,
}

impl Tasks {
    pub fn new(rows: Vec<usize>, size: usize) -> Self {
        let mut starts = vec![0];
        for &rows in &rows {
            starts.push(starts[starts.len() - 1] + rows.div_ceil(size));
        }
        Self { rows, starts, size }
    }

    pub fn count(&self) -> usize {
        self.starts[self.rows.len()]
    }

    pub fn get(&self, task: usize) -> Rows {
        let class = self.starts.partition_point(|&start| start <= task) - 1;
        let first = (task - self.starts[class]) * self.size;
        Rows { class, first, count: self.size.min(self.rows[class] - first) }
    }
}

/// A compiled direction of a convolution in NHWC.
pub(crate) struct Gather {
    conv: ConvShape,
    direction: Direction,
    simd: Simd,
    source: Shape,
    dest: Shape,
    classes: Vec<ClassPlan>,
    tasks: Tasks,
    /// Length of one tap in a panel: source channels of a group.
    depth: usize,
    /// Columns of a group: its destination channels.
    cols: usize,
}

impl Gather {
    pub fn new(conv: ConvShape, direction: Direction, simd: Simd) -> Self {
        let window = &conv.window;
        let (classes, source, dest) = match direction {
            Direction::Forward => (window.forward(), window.input, window.output),
            Direction::Backward => (window.backward(), window.output, window.input),
        };
        let depth = source.c / conv.groups;
        let classes: Vec<ClassPlan> = classes
            .into_iter()
            .map(|class| ClassPlan { segments: segments(&class, depth, source.c), pixels: class.pixels })
            .collect();
        let rows = classes.iter().map(|class| class.pixels.len() * conv.batch).collect();
        let tasks = Tasks::new(rows, ROWS_PER_TASK);
        Self { conv, direction, simd, source, dest, classes, tasks, depth, cols: dest.c / conv.groups }
    }

    fn width(&self) -> usize {
        2 * self.simd.lanes()
    }

    fn panels(&self) -> usize {
        self.cols.div_ceil(self.width())
    }

    /// Values of one packed panel: the taps, and a row for the bias.
    fn panel_len(&self) -> usize {
        (self.conv.taps() * self.depth + 1) * self.width()
    }

    fn resident(&self) -> bool {
        self.panels() * self.panel_len() <= RESIDENT
    }

    /// Values of workspace that a run needs.
    pub fn workspace(&self, threads: usize) -> usize {
        self.panel_len() * if self.resident() { self.panels() } else { threads }
    }

    /// Weights that fit into the cache stay there while all pixels pass by; otherwise pixels stay and weights pass by.
    pub fn run(&self, pool: &Pool, operands: &Operands) {
        let panel_len = self.panel_len();
        for group in 0..self.conv.groups {
            if self.resident() {
                pool.each(self.panels(), |panel, _| {
                    let packed = operands.workspace.part(panel * panel_len, panel_len);
                    self.pack(operands, group, panel, packed);
                });
                pool.each(self.tasks.count(), |task, _| {
                    self.block(operands, group, self.tasks.get(task), 0..self.panels(), operands.workspace);
                });
            } else {
                pool.each(self.panels(), |panel, thread| {
                    let packed = operands.workspace.part(thread * panel_len, panel_len);
                    self.pack(operands, group, panel, packed);
                    for task in 0..self.tasks.count() {
                        self.block(operands, group, self.tasks.get(task), panel..panel + 1, packed);
                    }
                });
            }
        }
    }

    /// Vectors across a panel: the last one may need only one.
    fn vectors(&self, panel: usize) -> usize {
        if self.cols - panel * self.width() <= self.simd.lanes() { 1 } else { 2 }
    }

    fn pack(&self, operands: &Operands, group: usize, panel: usize, packed: View) {
        let width = self.vectors(panel) * self.simd.lanes();
        let first = panel * self.width();
        let cols = (self.cols - first).min(width);
        let (group_in, out) = (self.conv.group_in(), self.conv.window.output.c);
        let group_out = self.conv.group_out();
        // SAFETY: a panel's place in the workspace belongs to one task; weights are only read.
        let (weights, packed) = unsafe { (operands.weights.read(), packed.write()) };
        let rows = self.conv.taps() * self.depth;
        match self.direction {
            Direction::Forward => {
                let column = group * group_out + first;
                for (row, target) in packed.chunks_exact_mut(width).take(rows).enumerate() {
                    let from = row * out + column;
                    prefetch(weights.as_ptr().wrapping_add(from + AHEAD * out), width);
                    target[..cols].copy_from_slice(&weights[from..from + cols]);
                    target[cols..].fill(0.0);
                }
            }
            Direction::Backward => {
                for tap in 0..self.conv.taps() {
                    let from = (tap * group_in + first) * out + group * group_out;
                    let to = tap * self.depth * width;
                    let target = &mut packed[to..to + self.depth * width];
                    transpose(&weights[from..], out, cols, target, width);
                }
            }
        }
        let bias = &mut packed[rows * width..][..width];
        bias.fill(0.0);
        if let Some(values) = operands.bias {
            // SAFETY: a bias is only read.
            let values = unsafe { values.read() };
            bias[..cols].copy_from_slice(&values[group * self.cols + first..][..cols]);
        }
    }

    fn block(
        &self,
        operands: &Operands,
        group: usize,
        rows: Rows,
        panels: std::ops::Range<usize>,
        packed: View,
    ) {
        let class = &self.classes[rows.class];
        if class.segments.is_empty() && operands.mode == Mode::Add {
            return;
        }
        let kernel = Block { plan: self, operands, class, group, rows, panels, packed };
        // SAFETY: the engine checked the instruction set; classes and rows come from the maps' own sizes.
        unsafe { self.simd.run(kernel) }
    }
}

/// The stretches of a class: neighbouring taps that are contiguous on both sides are one.
fn segments(class: &Class, depth: usize, stride: usize) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for tap in &class.taps {
        let next = Segment { a: tap.offset * stride as isize, b: tap.weight * depth, len: depth };
        match segments.last_mut() {
            Some(last) if last.a + last.len as isize == next.a && last.b + last.len == next.b => {
                last.len += depth;
            }
            _ => segments.push(next),
        }
    }
    segments
}

struct Block<'a> {
    plan: &'a Gather,
    operands: &'a Operands,
    class: &'a ClassPlan,
    group: usize,
    rows: Rows,
    panels: std::ops::Range<usize>,
    packed: View,
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let plan = self.plan;
        let pixels = &self.class.pixels;
        let source = self.operands.source.ptr();
        let dest = self.operands.dest.ptr();
        let mut a = [std::ptr::null::<f32>(); ROWS_PER_TASK];
        let mut c = [std::ptr::null_mut::<f32>(); ROWS_PER_TASK];
        let mut sample = self.rows.first / pixels.len();
        let mut pixel = self.rows.first % pixels.len();
        for row in 0..self.rows.count {
            let (to, from) = pixels[pixel];
            let from = (sample * plan.source.pixels() + from as usize) * plan.source.c;
            let to = (sample * plan.dest.pixels() + to as usize) * plan.dest.c;
            // SAFETY: pixel and sample lie inside the maps.
            unsafe {
                a[row] = source.add(from + self.group * plan.depth);
                c[row] = dest.add(to + self.group * plan.cols);
            }
            pixel += 1;
            if pixel == pixels.len() {
                pixel = 0;
                sample += 1;
            }
        }
        let tiles = self.rows.count.div_ceil(V::POINTERS);
        let first_panel = self.panels.start;
        for panel in self.panels {
            let column = panel * 2 * V::LANES;
            let vectors = plan.vectors(panel);
            let width = vectors * V::LANES;
            // SAFETY: the panel lies in the packed workspace.
            let b = unsafe { self.packed.ptr().add((panel - first_panel) * plan.panel_len()) };
            let bias = if self.operands.bias.is_some() {
                // SAFETY: the bias row follows the taps.
                unsafe { b.add(plan.conv.taps() * plan.depth * width) }
            } else {
                std::ptr::null_mut()
            };
            for tile in 0..tiles {
                let first = self.rows.count * tile / tiles;
                let count = self.rows.count * (tile + 1) / tiles - first;
                let mut rows = RowTile {
                    a: [std::ptr::null(); MAX_POINTERS],
                    c: [std::ptr::null_mut(); MAX_POINTERS],
                    rows: count,
                    b,
                    vectors,
                    cols: (plan.cols - column).min(width),
                    segments: &self.class.segments,
                    bias,
                    mode: self.operands.mode,
                };
                for i in 0..count {
                    rows.a[i] = a[first + i];
                    // SAFETY: the panel's columns lie inside the row.
                    rows.c[i] = unsafe { c[first + i].add(column) };
                }
                // SAFETY: segments stay inside the source map, as the geometry made them.
                unsafe { rows.run::<V>() };
            }
        }
    }
}
