//! Pixels by panels of columns.

use std::ops::Range;

use super::super::super::element::{Bf16, Element};
use super::super::super::kernels::tile::Mode;
use super::super::super::memory::View;
use super::super::super::product::Rows;
use super::super::super::simd::{Kernel, Simd, Vector, prefetch_to_write};
use super::super::pack::copy_values;
use super::super::{Block, Multiplier, SIDE, Start};
use super::panels::Part;
use super::{Filling, GROUP, ROWS, SUMS, TileClass};
use crate::Layout;

/// Pixels of at most so many channels are multiplied where they are: 32 of them stay in the first-level cache.
const IN_PLACE: usize = 512;

/// Some rows by some columns.
pub(super) struct RowsByColumns<'a> {
    pub part: &'a Part<'a>,
    /// Which of the plan's tasks.
    pub tasks: Range<usize>,
    pub columns: Range<usize>,
    pub gathered: View<Bf16>,
    /// [`ROWS`] of [`SUMS`] values.
    pub sums: View,
}

/// Where the rows of a task come from and go to, in values.
struct RowPlaces {
    count: usize,
    from: [usize; ROWS],
    to: [usize; ROWS],
}

impl RowsByColumns<'_> {
    #[inline(always)]
    fn places(&self, rows: &Rows) -> RowPlaces {
        let plan = self.part.plan;
        let pixels = &plan.classes[rows.class].pixels;
        let (from_pixels, to_pixels) = (plan.source.pixels(), plan.dest.pixels());
        let mut places = RowPlaces { count: rows.count, from: [0; ROWS], to: [0; ROWS] };
        let (mut sample, mut pixel) = (rows.first / pixels.len(), rows.first % pixels.len());
        for row in 0..rows.count {
            let (to, from) = (pixels[pixel].0 as usize, pixels[pixel].1 as usize);
            (places.from[row], places.to[row]) = match plan.layout {
                Layout::Nhwc => {
                    ((sample * from_pixels + from) * plan.source.c, (sample * to_pixels + to) * plan.dest.c)
                }
                Layout::Nchw => (sample * plan.source.len() + from, sample * plan.dest.len() + to),
            };
            pixel += 1;
            if pixel == pixels.len() {
                (pixel, sample) = (0, sample + 1);
            }
        }
        places
    }

    /// Copies what the rows see into lines.
    #[inline(always)]
    unsafe fn gather(&self, class: &TileClass, places: &RowPlaces) {
        let plan = self.part.plan;
        let source = self.part.operands.source.ptr().cast_const();
        let (line, channel) = (plan.line(), self.part.group * plan.depth);
        // SAFETY: pieces lie inside the source map, and a line has room for all steps.
        unsafe {
            for row in 0..places.count {
                let base = source.add(places.from[row]);
                let to = self.gathered.ptr().add(row * line);
                for piece in &class.pieces {
                    let to = to.add(piece.to);
                    match plan.layout {
                        Layout::Nhwc => {
                            let from = base.offset(piece.pixel * plan.source.c as isize).add(channel);
                            copy_values(from, to, piece.len);
                        }
                        Layout::Nchw => {
                            let pixels = plan.source.pixels();
                            let from = base.offset(piece.pixel).add(channel * pixels);
                            (0..piece.len).for_each(|k| *to.add(k) = *from.add(k * pixels));
                        }
                    }
                }
            }
        }
    }

    /// The first pixel's place, if all rows can be read where they are.
    #[inline(always)]
    fn in_place(&self, class: &TileClass, places: &RowPlaces) -> Option<usize> {
        let plan = self.part.plan;
        let stride = plan.source.c;
        let offset = class.only_tap.filter(|_| {
            plan.simd == Simd::Amx
                && plan.layout == Layout::Nhwc
                && plan.filling == Filling::Whole
                && stride <= IN_PLACE
                && places.count.is_multiple_of(SIDE)
                && (0..places.count).all(|row| places.from[row] == places.from[0] + row * stride)
        })?;
        let first = (places.from[0] as isize + offset * stride as isize) as usize;
        Some(first + self.part.group * plan.depth)
    }

    /// Rounds the sums of some columns and stores them, or adds them to what is there.
    #[inline(always)]
    unsafe fn put<V: Vector>(&self, places: &RowPlaces, columns: Range<usize>) {
        let (plan, operands) = (self.part.plan, self.part.operands);
        let channel = self.part.group * plan.cols + columns.start;
        let cols = columns.len();
        // SAFETY: rows and columns lie inside the destination and are this task's.
        unsafe {
            let bias = operands.bias.map(|bias| bias.ptr().add(channel).cast_const());
            for row in 0..places.count {
                let mut sums = RowSums { sums: self.sums.ptr().add(row * SUMS), bias, added: None };
                if plan.layout == Layout::Nchw {
                    self.put_apart::<V>(places.to[row] + channel * plan.dest.pixels(), cols, &sums);
                    continue;
                }
                let to = operands.dest.ptr().add(places.to[row] + channel);
                sums.added = (operands.mode == Mode::Add).then_some(to.cast_const());
                let mut at = 0;
                while at + 2 * V::LANES <= cols {
                    let (first, second) = (sums.at::<V>(at, V::LANES), sums.at::<V>(at + V::LANES, V::LANES));
                    first.store_both_bf16(second, to.add(at));
                    at += 2 * V::LANES;
                }
                while at < cols {
                    let lanes = V::LANES.min(cols - at);
                    sums.at::<V>(at, lanes).store_lanes(to.add(at), lanes);
                    at += lanes;
                }
            }
        }
    }

    /// Stores or adds a row of values whose channels lie apart.
    #[inline(always)]
    unsafe fn put_apart<V: Vector>(&self, first: usize, cols: usize, sums: &RowSums) {
        let (pixels, operands) = (self.part.plan.dest.pixels(), self.part.operands);
        // SAFETY: the caller vouches for the row.
        unsafe {
            for at in (0..cols).step_by(V::LANES) {
                let lanes = V::LANES.min(cols - at);
                let mut all = [0.0f32; 16];
                sums.at::<V>(at, lanes).store(all.as_mut_ptr());
                for (i, &value) in all.iter().enumerate().take(lanes) {
                    let to = operands.dest.ptr().add(first + (at + i) * pixels);
                    match operands.mode {
                        Mode::Write => *to = Bf16::round(value),
                        Mode::Add => (*to).add(value),
                    }
                }
            }
        }
    }
}

/// A row of sums on its way to the destination.
struct RowSums {
    sums: *const f32,
    bias: Option<*const f32>,
    /// What they are added to.
    added: Option<*const Bf16>,
}

impl RowSums {
    /// # Safety
    /// The row must have so many values from there on.
    #[inline(always)]
    unsafe fn at<V: Vector>(&self, at: usize, lanes: usize) -> V {
        // SAFETY: the caller vouches; sums are whole vectors.
        unsafe {
            let mut value = V::load(self.sums.add(at));
            if let Some(bias) = self.bias {
                value = value.add(V::load_lanes(bias.add(at), lanes));
            }
            if let Some(added) = self.added {
                value = value.add(V::load_lanes(added.add(at), lanes));
            }
            value
        }
    }
}

impl Kernel for RowsByColumns<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let plan = self.part.plan;
        // SAFETY: the engine checked the instruction set; tasks are those of the plan.
        unsafe {
            let multiplier = Multiplier::new(plan.simd);
            let mut class = None;
            for task in self.tasks.clone() {
                let rows = plan.tasks.get(task);
                if plan.filling == Filling::Dense && class.replace(rows.class) != Some(rows.class) {
                    // What lies between and behind the pieces is the same for all rows of a class.
                    self.gathered.write().fill(Bf16(0));
                }
                self.multiply::<V>(&multiplier, &rows);
            }
        }
    }
}

impl RowsByColumns<'_> {
    /// # Safety
    /// The vector's and the multiplier's instruction sets must be available, and the rows this kernel's.
    #[inline(always)]
    unsafe fn multiply<V: Vector>(&self, multiplier: &Multiplier, rows: &Rows) {
        let (plan, operands) = (self.part.plan, self.part.operands);
        let class = &plan.classes[rows.class];
        if class.steps.is_empty() && operands.mode == Mode::Add {
            return;
        }
        let places = self.places(rows);
        let down = places.count.div_ceil(SIDE);
        // SAFETY: pixels, taps and channels come from the maps' own sizes; the caller vouches for the instruction set.
        unsafe {
            let (a, a_stride) = match self.in_place(class, &places) {
                Some(first) => (operands.source.ptr().add(first), plan.source.c),
                None => {
                    self.gather(class, &places);
                    (self.gathered.ptr(), plan.line())
                }
            };
            // A second tile that is not there is never read.
            let a = [a.cast_const(), a.wrapping_add(SIDE * a_stride)];
            for first in self.columns.clone().step_by(GROUP) {
                let panels = first..(first + GROUP).min(self.columns.end);
                let columns = first * SIDE..(panels.end * SIDE).min(plan.cols);
                if plan.layout == Layout::Nhwc {
                    for to in &places.to[..places.count] {
                        let to = operands
                            .dest
                            .ptr()
                            .wrapping_add(to + self.part.group * plan.cols + columns.start);
                        prefetch_to_write(to, columns.len());
                    }
                }
                for panel in panels.clone().step_by(2) {
                    let across = (panels.end - panel).min(2);
                    let b = [panel, panel + across - 1].map(|panel| self.part.panel(panel).cast_const());
                    multiplier.multiply::<V>(&Block {
                        a,
                        a_stride,
                        b,
                        tiles: (down, across),
                        steps: &class.steps,
                        start: Start::Zero,
                        out: self.sums.ptr().add((panel - first) * SIDE),
                        out_stride: SUMS,
                    });
                }
                self.put::<V>(&places, columns);
            }
        }
    }
}
