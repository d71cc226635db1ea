//! Forward and backward-data: rows are pixels, what they see gathered into lines or read in place; columns are packed weights.

mod panels;
mod rows;

use paceline_model::Shape;

use super::super::element::Bf16;
use super::super::geometry::Class;
use super::super::pool::Pool;
use super::super::product::{ConvShape, Direction, Operands, Tasks};
use super::super::simd::Simd;
use super::{DEPTH, SIDE, Step, TILE};
use crate::Layout;
use panels::{PackRows, PackTurned, Part};
use rows::RowsByColumns;

/// Bytes of packed weights that stay in the second-level cache while all pixels pass by.
const RESIDENT: usize = 896 * 1024;

/// Rows per task: two tiles.
const ROWS: usize = 2 * SIDE;

/// Panels whose sums are rounded and stored together: a row of them is whole lines of the caches that follow each other.
const GROUP: usize = 8;

/// Sums of a row of a group.
const SUMS: usize = GROUP * SIDE;

/// Parts that the rows are cut into for each of several threads.
const SHARES: usize = 8;

/// Values of a pixel that go to neighbouring places of a gathered row.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Pixels from the row's base pixel.
    pixel: isize,
    to: usize,
    len: usize,
}

/// Pixels that see the same taps.
struct TileClass {
    /// Destination and base pixel of each.
    pixels: Vec<(u32, u32)>,
    pieces: Vec<Piece>,
    /// Of a line.
    steps: Vec<Step>,
    /// The offset in pixels of the tap, where there is one.
    only_tap: Option<isize>,
}

/// How the taps of a pixel fill the tiles of a line, which is all that the pixel sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filling {
    /// Each tap is whole tiles, so a line has those taps alone that read real input.
    Whole,
    /// Taps follow each other without gaps, and those that read padding are zero.
    Dense,
}

/// One direction of a convolution on tiles.
pub(crate) struct TileProduct {
    conv: ConvShape,
    direction: Direction,
    layout: Layout,
    simd: Simd,
    source: Shape,
    dest: Shape,
    classes: Vec<TileClass>,
    tasks: Tasks,
    filling: Filling,
    /// Source channels of a group: values of one tap.
    depth: usize,
    /// Destination channels of a group.
    cols: usize,
    /// Taps that any pixel uses, in packed order.
    taps: Vec<usize>,
    /// Steps of all those taps.
    steps: usize,
}

impl TileProduct {
    pub fn new(conv: ConvShape, direction: Direction, layout: Layout, simd: Simd) -> Self {
        let window = &conv.window;
        let (classes, source, dest) = match direction {
            Direction::Forward => (window.forward(), window.input, window.output),
            Direction::Backward => (window.backward(), window.output, window.input),
        };
        let depth = source.c / conv.groups;
        let mut taps: Vec<usize> =
            classes.iter().flat_map(|class| class.taps.iter().map(|tap| tap.weight)).collect();
        taps.sort_unstable();
        taps.dedup();
        let filling = if depth.is_multiple_of(DEPTH) { Filling::Whole } else { Filling::Dense };
        let steps = (taps.len() * depth).div_ceil(DEPTH);
        let classes: Vec<TileClass> = classes
            .into_iter()
            .map(|class| {
                tile_class(class, &Rule { filling, layout, taps: &taps, depth, channels: source.c, steps })
            })
            .collect();
        let rows = classes.iter().map(|class| class.pixels.len() * conv.batch).collect();
        let tasks = Tasks::new(rows, ROWS);
        let cols = dest.c / conv.groups;
        Self {
            conv,
            direction,
            layout,
            simd,
            source,
            dest,
            classes,
            tasks,
            filling,
            depth,
            cols,
            taps,
            steps,
        }
    }

    fn panels(&self) -> usize {
        self.cols.div_ceil(SIDE)
    }

    fn panel_len(&self) -> usize {
        self.steps * TILE
    }

    /// Panels that are packed and multiplied together: an even number of them.
    fn block(&self) -> usize {
        let fit = RESIDENT / (2 * self.panel_len()).max(1);
        (fit / 2 * 2).clamp(2, self.panels().next_multiple_of(2))
    }

    /// Values from one line to the next: an odd number of steps, so that lines begin in different sets of the caches.
    fn line(&self) -> usize {
        (self.steps | 1) * DEPTH
    }

    /// Values of a thread's lines.
    fn gathered_len(&self) -> usize {
        ROWS * self.line()
    }

    /// Values of fp32 of workspace that a run needs.
    pub fn workspace(&self, threads: usize) -> usize {
        (self.block() * self.panel_len() + threads * self.gathered_len()) / 2 + threads * ROWS * SUMS
    }

    pub fn run(&self, pool: &Pool, operands: &Operands<Bf16>) {
        let workspace = operands.workspace.of::<Bf16>();
        let packed_len = self.block() * self.panel_len();
        let packed = workspace.part(0, packed_len);
        let sums = (packed_len + pool.threads() * self.gathered_len()) / 2;
        for group in 0..self.conv.groups {
            for first in (0..self.panels()).step_by(self.block()) {
                let panels = first..(first + self.block()).min(self.panels());
                let part = Part { plan: self, operands, group, packed, panels: panels.clone() };
                let packs = match self.direction {
                    Direction::Forward => self.steps,
                    Direction::Backward => panels.len(),
                };
                pool.each(packs, |task, _| {
                    // SAFETY: the engine checked the instruction set; steps and panels have places of their own.
                    unsafe {
                        match self.direction {
                            Direction::Forward => self.simd.run(PackRows { part: &part, step: task }),
                            Direction::Backward => {
                                self.simd.run(PackTurned { part: &part, panel: panels.start + task });
                            }
                        }
                    }
                });
                let (tasks, pairs) = (self.tasks.count(), panels.len().div_ceil(2));
                // Few rows: threads share out the columns too. Many rows: a thread takes several tasks at once.
                let cuts = if tasks < pool.threads() { pairs } else { 1 };
                let shares = if pool.threads() == 1 { 1 } else { SHARES * pool.threads() };
                let share = tasks.div_ceil(shares).max(1);
                pool.each(tasks.div_ceil(share) * cuts, |task, thread| {
                    let gathered = packed_len + thread * self.gathered_len();
                    let columns = if cuts == 1 {
                        panels.clone()
                    } else {
                        let first = panels.start + task % cuts * 2;
                        first..(first + 2).min(panels.end)
                    };
                    let first = task / cuts * share;
                    let kernel = RowsByColumns {
                        part: &part,
                        tasks: first..(first + share).min(tasks),
                        columns,
                        gathered: workspace.part(gathered, self.gathered_len()),
                        sums: operands.workspace.part(sums + thread * ROWS * SUMS, ROWS * SUMS),
                    };
                    // SAFETY: the engine checked the instruction set; rows and columns are this task's.
                    unsafe { self.simd.run(kernel) }
                });
            }
        }
    }

    /// The tap and the channel of a value of the packed depth; `None` behind the last.
    #[inline(always)]
    fn at(&self, k: usize) -> Option<(usize, usize)> {
        let (tap, channel) = (k / self.depth, k % self.depth);
        self.taps.get(tap).map(|&tap| (tap, channel))
    }
}

/// How classes fill their rows.
struct Rule<'a> {
    filling: Filling,
    layout: Layout,
    /// Packed taps.
    taps: &'a [usize],
    /// Values of a tap.
    depth: usize,
    /// Values of a pixel.
    channels: usize,
    /// Steps of all taps.
    steps: usize,
}

fn tile_class(class: Class, rule: &Rule) -> TileClass {
    let Rule { filling, depth, .. } = *rule;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut steps = Vec::new();
    // Neighbouring taps are one piece where neither a layout nor a group comes between them.
    let joins = rule.layout == Layout::Nhwc && rule.channels == depth;
    for (index, tap) in class.taps.iter().enumerate() {
        let packed = rule.taps.binary_search(&tap.weight).expect("invariant: every used tap is packed");
        let to = match filling {
            Filling::Whole => index * depth,
            Filling::Dense => packed * depth,
        };
        if filling == Filling::Whole {
            for step in 0..depth / DEPTH {
                let a = (steps.len() * DEPTH) as u32;
                steps.push(Step { a, b: ((packed * depth / DEPTH + step) * TILE) as u32 });
            }
        }
        match pieces.last_mut() {
            Some(last)
                if joins
                    && last.to + last.len == to
                    && last.pixel + (last.len / depth) as isize == tap.offset =>
            {
                last.len += depth;
            }
            _ => pieces.push(Piece { pixel: tap.offset, to, len: depth }),
        }
    }
    if filling == Filling::Dense && !class.taps.is_empty() {
        steps.extend((0..rule.steps).map(|step| Step { a: (step * DEPTH) as u32, b: (step * TILE) as u32 }));
    }
    let only_tap = (class.taps.len() == 1).then(|| class.taps[0].offset);
    TileClass { pixels: class.pixels, pieces, steps, only_tap }
}
