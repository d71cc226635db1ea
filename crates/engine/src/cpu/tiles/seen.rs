//! What an output pixel sees of the input, as the one pixel of an image of its own.

use std::ops::Range;

use paceline_model::{Border, Shape};

use super::super::element::Bf16;
use super::super::memory::View;
use super::super::product::ConvShape;
use super::pack::copy_values;
use super::{DEPTH, SIDE};
use crate::outline::Window;

/// A convolution in NHWC whose output pixels see one input pixel each, or few channels of several.
pub(super) struct Seen(ConvShape);

impl Seen {
    /// Of a window of one tap, or of so few channels that taps of their own would leave most of their tiles empty.
    pub fn of(conv: &ConvShape) -> Option<Self> {
        let is_one = conv.taps() == 1 && conv.window.border == Border::default();
        let has_few = conv.taps() > 1 && conv.groups == 1 && conv.group_in() < SIDE;
        (is_one || has_few).then_some(Self(*conv))
    }

    /// Whether what a pixel sees has to be gathered.
    pub fn gathers(&self) -> bool {
        self.0.taps() > 1
    }

    /// The same sum over images of one pixel.
    pub fn conv(&self) -> ConvShape {
        let Window { input, output, .. } = self.0.window;
        let pixel = |c: usize| Shape { h: 1, w: 1, c };
        let window = Window {
            kernel: (1, 1),
            stride: (1, 1),
            border: Border::default(),
            input: pixel(self.0.taps() * input.c),
            output: pixel(output.c),
        };
        ConvShape { window, groups: self.0.groups, batch: self.0.batch * output.pixels() }
    }

    /// Sample, row and column of a tile of output pixels; `None` behind the last.
    #[inline(always)]
    fn pixels(&self, which: Range<usize>) -> [Option<[usize; 3]>; DEPTH] {
        let Shape { h, w, .. } = self.0.window.output;
        let (mut sample, rest) = (which.start / (h * w), which.start % (h * w));
        let (mut y, mut x) = (rest / w, rest % w);
        let mut pixels = [None; DEPTH];
        for pixel in pixels.iter_mut().take(which.len()) {
            *pixel = Some([sample, y, x]);
            x += 1;
            if x == w {
                (x, y) = (0, y + 1);
            }
            if y == h {
                (y, sample) = (0, sample + 1);
            }
        }
        pixels
    }

    /// Where the only pixels lie that a tile of output pixels sees.
    #[inline(always)]
    pub fn places(&self, which: Range<usize>) -> [Option<usize>; DEPTH] {
        let Window { input, stride, .. } = self.0.window;
        self.pixels(which).map(|pixel| {
            let [sample, y, x] = pixel?;
            Some(((sample * input.h + y * stride.0) * input.w + x * stride.1) * input.c)
        })
    }

    /// Gathers all that a tile of output pixels sees into lines of so many values; these, and where they begin.
    ///
    /// # Safety
    /// The lines must be the caller's alone.
    #[inline(always)]
    pub unsafe fn gather(
        &self,
        input: View<Bf16>,
        which: Range<usize>,
        lines: View<Bf16>,
        len: usize,
    ) -> (View<Bf16>, [Option<usize>; DEPTH]) {
        let Window { kernel, stride, border, input: map, .. } = self.0.window;
        let lines = lines.part(0, DEPTH * len);
        let mut places = [None; DEPTH];
        for (number, pixel) in self.pixels(which).into_iter().enumerate() {
            let Some([sample, y, x]) = pixel else { break };
            places[number] = Some(number * len);
            let line = lines.part(number * len, len).ptr();
            // Taps to the left of the input, where the next one reads, and how many from there on read real input.
            let skipped = border.left.saturating_sub(x * stride.1);
            let first = x * stride.1 + skipped - border.left;
            let taps = kernel.1.saturating_sub(skipped).min(map.w.saturating_sub(first));
            let above = border.top.saturating_sub(y * stride.0).min(kernel.0);
            let below = (y * stride.0 + kernel.0).saturating_sub(border.top + map.h).min(kernel.0);
            let rows = if taps > 0 { above..kernel.0 - below } else { 0..0 };
            let seen = kernel.0 * kernel.1 * map.c;
            // SAFETY: taps lie inside the input and inside the line, which is the caller's.
            unsafe {
                let is_whole = taps == kernel.1 && rows.len() == kernel.0;
                let zeros = if is_whole { seen } else { 0 };
                std::ptr::write_bytes(line.add(zeros), 0, len - zeros);
                for tap in rows {
                    let row = y * stride.0 + tap - border.top;
                    let from = input.ptr().add(((sample * map.h + row) * map.w + first) * map.c);
                    let to = line.add((tap * kernel.1 + skipped) * map.c);
                    copy_values(from.cast_const(), to, taps * map.c);
                }
            }
        }
        (lines, places)
    }
}
