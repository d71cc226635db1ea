//! Where the taps of a convolution touch real input: padding is never multiplied.

use crate::outline::Window;

/// One tap of a class: which weight, and where its source pixel lies from the class's base pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tap {
    pub weight: usize,
    pub offset: isize,
}

/// Pixels of a destination map that see the same taps.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// Destination pixels, and for each the base pixel in the source map.
    pub pixels: Vec<(u32, u32)>,
    pub taps: Vec<Tap>,
}

/// One position along one axis: the taps that read real input there, and the source coordinate of the first.
struct Line {
    taps: Vec<(usize, isize)>,
    members: Vec<(usize, usize)>,
}

/// Groups the coordinates of an axis by their taps; `hits(d)` lists (tap, source coordinate).
fn group(count: usize, hits: impl Fn(usize) -> Vec<(usize, usize)>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for d in 0..count {
        let hits = hits(d);
        let base = hits.first().map_or(0, |&(_, source)| source);
        let taps: Vec<(usize, isize)> =
            hits.iter().map(|&(tap, source)| (tap, source as isize - base as isize)).collect();
        match lines.iter_mut().find(|line| line.taps == taps) {
            Some(line) => line.members.push((d, base)),
            None => lines.push(Line { taps, members: vec![(d, base)] }),
        }
    }
    lines
}

fn cross(rows: &[Line], columns: &[Line], kernel_w: usize, width: (usize, usize)) -> Vec<Class> {
    let (dst_w, src_w) = width;
    let mut classes = Vec::new();
    for row in rows {
        for column in columns {
            let mut pixels = Vec::with_capacity(row.members.len() * column.members.len());
            for &(y, base_y) in &row.members {
                for &(x, base_x) in &column.members {
                    pixels.push(((y * dst_w + x) as u32, (base_y * src_w + base_x) as u32));
                }
            }
            let mut taps = Vec::with_capacity(row.taps.len() * column.taps.len());
            for &(ky, dy) in &row.taps {
                for &(kx, dx) in &column.taps {
                    taps.push(Tap { weight: ky * kernel_w + kx, offset: dy * src_w as isize + dx });
                }
            }
            classes.push(Class { pixels, taps });
        }
    }
    classes
}

impl Window {
    /// Source coordinates of an output coordinate: (tap, input coordinate), real input only.
    fn reads(d: usize, kernel: usize, stride: usize, before: usize, side: usize) -> Vec<(usize, usize)> {
        (0..kernel)
            .filter_map(|k| {
                let source = (d * stride + k).checked_sub(before)?;
                (source < side).then_some((k, source))
            })
            .collect()
    }

    /// The reverse: output coordinates that an input coordinate enters, by tap.
    fn feeds(d: usize, kernel: usize, stride: usize, before: usize, side: usize) -> Vec<(usize, usize)> {
        (0..kernel)
            .filter_map(|k| {
                let shifted = (d + before).checked_sub(k)?;
                (shifted % stride == 0 && shifted / stride < side).then_some((k, shifted / stride))
            })
            .collect()
    }

    /// Output pixels by the taps that read real input.
    pub fn forward(&self) -> Vec<Class> {
        let rows = group(self.output.h, |d| {
            Self::reads(d, self.kernel.0, self.stride.0, self.border.top, self.input.h)
        });
        let columns = group(self.output.w, |d| {
            Self::reads(d, self.kernel.1, self.stride.1, self.border.left, self.input.w)
        });
        cross(&rows, &columns, self.kernel.1, (self.output.w, self.input.w))
    }

    /// Input pixels by the taps through which they enter an output.
    pub fn backward(&self) -> Vec<Class> {
        let rows = group(self.input.h, |d| {
            Self::feeds(d, self.kernel.0, self.stride.0, self.border.top, self.output.h)
        });
        let columns = group(self.input.w, |d| {
            Self::feeds(d, self.kernel.1, self.stride.1, self.border.left, self.output.w)
        });
        cross(&rows, &columns, self.kernel.1, (self.input.w, self.output.w))
    }

    /// For each tap, the pairs (input pixel, output pixel) that it multiplies, in rows of equal steps:
    /// (first input, first output, length); the input advances by the horizontal stride.
    pub fn tap_runs(&self) -> Vec<Vec<(usize, usize, usize)>> {
        let mut all = Vec::with_capacity(self.kernel.0 * self.kernel.1);
        for ky in 0..self.kernel.0 {
            for kx in 0..self.kernel.1 {
                let valid = |d: usize, k: usize, stride: usize, before: usize, side: usize| {
                    (d * stride + k).checked_sub(before).filter(|&source| source < side)
                };
                let columns: Vec<(usize, usize)> = (0..self.output.w)
                    .filter_map(|x| {
                        valid(x, kx, self.stride.1, self.border.left, self.input.w).map(|s| (x, s))
                    })
                    .collect();
                let mut runs = Vec::new();
                if let Some(&(x0, s0)) = columns.first() {
                    for y in 0..self.output.h {
                        if let Some(sy) = valid(y, ky, self.stride.0, self.border.top, self.input.h) {
                            let input = sy * self.input.w + s0;
                            let output = y * self.output.w + x0;
                            runs.push((input, output, columns.len()));
                        }
                    }
                }
                all.push(runs);
            }
        }
        all
    }

    /// Multiply-adds that touch real input, over those that the full window would do.
    #[cfg(test)]
    pub fn real_fraction(&self) -> f64 {
        let real: usize = self.forward().iter().map(|class| class.pixels.len() * class.taps.len()).sum();
        real as f64 / (self.output.pixels() * self.kernel.0 * self.kernel.1) as f64
    }
}

#[cfg(test)]
mod tests {
    use paceline_model::{Border, Shape};

    use super::*;

    fn same(side: usize) -> Window {
        Window {
            kernel: (3, 3),
            stride: (1, 1),
            border: Border { top: 1, bottom: 1, left: 1, right: 1 },
            input: Shape::new(side, side, 1),
            output: Shape::new(side, side, 1),
        }
    }

    #[test]
    fn small_maps_do_a_fraction_of_the_nominal_work() {
        for (side, percent) in [(8, 84.0), (4, 69.0), (2, 44.0), (1, 11.0)] {
            assert!((same(side).real_fraction() * 100.0 - percent).abs() < 0.5, "{side}");
        }
    }

    #[test]
    fn every_pixel_has_one_class_in_both_directions() {
        for stride in [1, 2, 3] {
            let mut window = same(7);
            window.stride = (stride, stride);
            window.output = Shape::new((7 - 1) / stride + 1, (7 - 1) / stride + 1, 1);
            let forward: usize = window.forward().iter().map(|c| c.pixels.len()).sum();
            let backward: usize = window.backward().iter().map(|c| c.pixels.len()).sum();
            assert_eq!((forward, backward), (window.output.pixels(), 49));
            let pairs = |classes: Vec<Class>| -> usize {
                classes.iter().map(|c| c.pixels.len() * c.taps.len()).sum()
            };
            let runs: usize = window.tap_runs().iter().flatten().map(|r| r.2).sum();
            assert_eq!(pairs(window.forward()), pairs(window.backward()));
            assert_eq!(pairs(window.forward()), runs);
        }
    }
}
