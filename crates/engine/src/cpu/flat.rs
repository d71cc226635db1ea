//! Layers without weights or windows: passes over flat memory.

use paceline_model::{Border, Shape};

use super::element::Element;
use super::kernels::tile::Mode;
use super::memory::View;
use super::pool::Pool;
use super::simd::{Kernel, Simd, Vector, each_vector};
use crate::outline::Bounds;
use crate::{Layout, random};

/// Values per task.
const CHUNK: usize = 64 * 1024;

/// Cuts `len` values into chunks and runs `task(offset, len)` on all threads.
pub(super) fn chunks(pool: &Pool, len: usize, task: impl Fn(usize, usize) + Sync) {
    pool.each(len.div_ceil(CHUNK), |chunk, _| {
        let offset = chunk * CHUNK;
        task(offset, CHUNK.min(len - offset));
    });
}

/// A pass over flat memory.
#[derive(Clone, Copy)]
pub(crate) enum Sweep {
    /// out = bound(a).
    Bound(Bounds),
    /// out = a where b was let through.
    Unbound(Bounds),
    /// out = a + b.
    Sum,
    /// out += a.
    Accumulate,
    /// out = a.
    Copy,
}

/// Operands of a sweep; `b` is read only where the sweep names it.
#[derive(Clone, Copy)]
pub(crate) struct Flat<E> {
    pub sweep: Sweep,
    pub a: View<E>,
    pub b: View<E>,
    pub out: View<E>,
}

impl<E: Element> Flat<E> {
    /// Runs the sweep over `a`'s length; `out` may be `a` or `b`.
    pub fn run(self, pool: &Pool, simd: Simd) {
        chunks(pool, self.a.len(), |offset, len| {
            let cut = Flat {
                sweep: self.sweep,
                a: self.a.part(offset, len),
                b: self.b.part(offset, len),
                out: self.out.part(offset, len),
            };
            // SAFETY: the engine checked the instruction set; each chunk is one task's.
            unsafe { simd.run(cut) }
        });
    }
}

impl<E: Element> Kernel for Flat<E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (a, b, out) = (self.a.ptr(), self.b.ptr(), self.out.ptr());
        // SAFETY: all three views have `a`'s length.
        unsafe {
            match self.sweep {
                Sweep::Bound(bounds) => {
                    let (low, high) = (V::splat(bounds.low), V::splat(bounds.high));
                    each_vector::<V>(
                        self.a.len(),
                        #[inline(always)]
                        |at, lanes| {
                            let value = high.min(low.max(V::load_lanes(a.add(at), lanes)));
                            V::store_lanes(value, out.add(at), lanes);
                        },
                    );
                }
                Sweep::Unbound(bounds) => {
                    let (low, high) = (V::splat(bounds.low), V::splat(bounds.high));
                    each_vector::<V>(
                        self.a.len(),
                        #[inline(always)]
                        |at, lanes| {
                            let probe = V::load_lanes(b.add(at), lanes);
                            let value = V::load_lanes(a.add(at), lanes).keep_between(probe, low, high);
                            V::store_lanes(value, out.add(at), lanes);
                        },
                    );
                }
                Sweep::Sum => each_vector::<V>(
                    self.a.len(),
                    #[inline(always)]
                    |at, lanes| {
                        let value = V::load_lanes(a.add(at), lanes).add(V::load_lanes(b.add(at), lanes));
                        V::store_lanes(value, out.add(at), lanes);
                    },
                ),
                Sweep::Accumulate => each_vector::<V>(
                    self.a.len(),
                    #[inline(always)]
                    |at, lanes| {
                        let value = V::load_lanes(out.add(at), lanes).add(V::load_lanes(a.add(at), lanes));
                        V::store_lanes(value, out.add(at), lanes);
                    },
                ),
                Sweep::Copy => each_vector::<V>(
                    self.a.len(),
                    #[inline(always)]
                    |at, lanes| {
                        V::store_lanes(V::load_lanes(a.add(at), lanes), out.add(at), lanes);
                    },
                ),
            }
        }
    }
}

/// Copies (or adds) `count` stretches of `len` values between two strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretches {
    pub count: usize,
    pub len: usize,
    pub from_stride: usize,
    pub to_stride: usize,
}

impl Stretches {
    /// Copies one input of a concatenation into the whole; `swap` is the reverse.
    pub fn concat(part: Shape, whole: Shape, batch: usize, layout: Layout) -> Self {
        let (count, unit) = match layout {
            Layout::Nhwc => (batch * part.pixels(), 1),
            Layout::Nchw => (batch, part.pixels()),
        };
        Self { count, len: part.c * unit, from_stride: part.c * unit, to_stride: whole.c * unit }
    }

    /// The reverse.
    pub fn swap(self) -> Self {
        Self { from_stride: self.to_stride, to_stride: self.from_stride, ..self }
    }

    pub fn run<E: Element>(self, pool: &Pool, from: View<E>, to: View<E>, mode: Mode) {
        let rows = (CHUNK / self.len.max(1)).max(1);
        pool.each(self.count.div_ceil(rows), |chunk, _| {
            for row in chunk * rows..((chunk + 1) * rows).min(self.count) {
                // SAFETY: stretches of different rows never overlap.
                let (from, to) = unsafe {
                    (
                        from.part(row * self.from_stride, self.len).read(),
                        to.part(row * self.to_stride, self.len).write(),
                    )
                };
                match mode {
                    Mode::Write => to.copy_from_slice(from),
                    Mode::Add => to.iter_mut().zip(from).for_each(|(to, from)| to.add(from.widen())),
                }
            }
        });
    }
}

/// Puts zeros around a map, and takes them away again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Padding {
    pub border: Border,
    pub inner: Shape,
    pub outer: Shape,
    pub batch: usize,
    pub layout: Layout,
}

impl Padding {
    /// Calls `visit(inner offset, outer offset, len)` for each row of one sample.
    fn rows(&self, sample: usize, mut visit: impl FnMut(usize, usize, usize)) {
        let (planes, unit) = match self.layout {
            Layout::Nhwc => (1, self.inner.c),
            Layout::Nchw => (self.inner.c, 1),
        };
        for plane in 0..planes {
            let inner = (sample * planes + plane) * self.inner.pixels() * unit;
            let outer = (sample * planes + plane) * self.outer.pixels() * unit;
            for y in 0..self.inner.h {
                let row = (y + self.border.top) * self.outer.w + self.border.left;
                visit(inner + y * self.inner.w * unit, outer + row * unit, self.inner.w * unit);
            }
        }
    }

    /// Zeros, then the map.
    pub fn forward<E: Element>(&self, pool: &Pool, from: View<E>, to: View<E>) {
        let len = self.outer.len();
        pool.each(self.batch, |sample, _| {
            // SAFETY: each sample is one task's.
            unsafe {
                to.part(sample * len, len).write().fill(E::default());
                self.rows(sample, |inner, outer, len| {
                    let row = to.part(outer, len).write();
                    row.copy_from_slice(from.part(inner, len).read());
                });
            }
        });
    }

    /// The map's own part of the gradient.
    pub fn backward<E: Element>(&self, pool: &Pool, from: View<E>, to: View<E>, mode: Mode) {
        pool.each(self.batch, |sample, _| {
            self.rows(sample, |inner, outer, len| {
                // SAFETY: each sample is one task's.
                let (to, from) = unsafe { (to.part(inner, len).write(), from.part(outer, len).read()) };
                match mode {
                    Mode::Write => to.copy_from_slice(from),
                    Mode::Add => to.iter_mut().zip(from).for_each(|(to, from)| to.add(from.widen())),
                }
            });
        });
    }
}

/// Operands of [`Maps::channel_sums`].
#[derive(Clone, Copy)]
pub(crate) struct ChannelSums<E> {
    pub map: View<E>,
    pub sums: View,
    pub mode: Mode,
    /// One row of channels for each sample.
    pub workspace: View,
}

/// Layers that see a sample as pixels by channels: the mean over the map, and flattening.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maps {
    pub shape: Shape,
    pub batch: usize,
    pub layout: Layout,
}

impl Maps {
    /// Offset of a value in the layout.
    fn at(&self, pixel: usize, channel: usize) -> usize {
        match self.layout {
            Layout::Nhwc => pixel * self.shape.c + channel,
            Layout::Nchw => channel * self.shape.pixels() + pixel,
        }
    }

    fn each<E: Element, F: Element>(
        &self,
        pool: &Pool,
        map: View<E>,
        vector: View<F>,
        task: impl Fn(&Self, &mut [E], &mut [F]) + Sync,
    ) {
        let (map_len, vector_len) = (self.shape.len(), vector.len() / self.batch);
        pool.each(self.batch, |sample, _| {
            // SAFETY: each sample is one task's; the side that is only read has no other user.
            unsafe {
                task(
                    self,
                    map.part(sample * map_len, map_len).write(),
                    vector.part(sample * vector_len, vector_len).write(),
                );
            }
        });
    }

    /// vector = mean of the map.
    pub fn mean<E: Element>(&self, pool: &Pool, map: View<E>, vector: View<E>) {
        self.each(pool, map, vector, |maps, map, vector| {
            let pixels = maps.shape.pixels();
            match maps.layout {
                Layout::Nhwc => {
                    // A few sums at a time, so that they stay in fp32 until the last pixel.
                    const WIDTH: usize = 64;
                    for (block, means) in vector.chunks_mut(WIDTH).enumerate() {
                        let mut sums = [0.0f32; WIDTH];
                        for pixel in map.chunks_exact(maps.shape.c) {
                            let values = &pixel[block * WIDTH..][..means.len()];
                            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value.widen());
                        }
                        means
                            .iter_mut()
                            .zip(sums)
                            .for_each(|(mean, sum)| *mean = E::round(sum / pixels as f32));
                    }
                }
                Layout::Nchw => {
                    for (mean, plane) in vector.iter_mut().zip(map.chunks_exact(pixels)) {
                        let sum: f32 = plane.iter().map(|value| value.widen()).sum();
                        *mean = E::round(sum / pixels as f32);
                    }
                }
            }
        });
    }

    /// Sum of each channel over samples and pixels.
    pub fn channel_sums<E: Element>(&self, pool: &Pool, operands: &ChannelSums<E>) {
        let ChannelSums { map, sums, mode, workspace } = *operands;
        let channels = self.shape.c;
        self.each(pool, map, workspace.part(0, self.batch * channels), |maps, map, row| {
            row.fill(0.0);
            for pixel in 0..maps.shape.pixels() {
                for (channel, sum) in row.iter_mut().enumerate() {
                    *sum += map[maps.at(pixel, channel)].widen();
                }
            }
        });
        // SAFETY: the rows are complete; the sums are this layer's.
        let (rows, sums) = unsafe { (workspace.read(), sums.write()) };
        if mode == Mode::Write {
            sums.fill(0.0);
        }
        for row in rows.chunks_exact(channels).take(self.batch) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    }

    /// map = vector / pixels, everywhere.
    pub fn spread<E: Element>(&self, pool: &Pool, vector: View<E>, map: View<E>, mode: Mode) {
        self.each(pool, map, vector, |maps, map, vector| {
            let pixels = maps.shape.pixels();
            for pixel in 0..pixels {
                for (channel, value) in vector.iter().enumerate() {
                    let value = value.widen() / pixels as f32;
                    let target = &mut map[maps.at(pixel, channel)];
                    match mode {
                        Mode::Write => *target = E::round(value),
                        Mode::Add => target.add(value),
                    }
                }
            }
        });
    }

    /// vector = the map in the order height, width, channel.
    pub fn flatten<E: Element>(&self, pool: &Pool, map: View<E>, vector: View<E>) {
        self.each(pool, map, vector, |maps, map, vector| {
            for pixel in 0..maps.shape.pixels() {
                for channel in 0..maps.shape.c {
                    vector[pixel * maps.shape.c + channel] = map[maps.at(pixel, channel)];
                }
            }
        });
    }

    /// map = vector, the reverse of [`Maps::flatten`].
    pub fn unflatten<E: Element>(&self, pool: &Pool, vector: View<E>, map: View<E>, mode: Mode) {
        self.each(pool, map, vector, |maps, map, vector| {
            for pixel in 0..maps.shape.pixels() {
                for channel in 0..maps.shape.c {
                    let value = vector[pixel * maps.shape.c + channel];
                    let target = &mut map[maps.at(pixel, channel)];
                    match mode {
                        Mode::Write => *target = value,
                        Mode::Add => target.add(value.widen()),
                    }
                }
            }
        });
    }
}

/// Dropout: the mask is a function of seed, step and place, so that it needs no memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropout {
    pub rate: f32,
    pub seed: u64,
}

impl Dropout {
    /// out = a where the mask keeps it, scaled; forward and backward are the same pass.
    pub fn run<E: Element>(self, pool: &Pool, step: u64, a: View<E>, out: View<E>) {
        let scale = 1.0 / (1.0 - self.rate);
        let stream = random::mix(self.seed ^ random::mix(step));
        chunks(pool, a.len(), |offset, len| {
            let (from, to) = (a.part(offset, len).ptr(), out.part(offset, len).ptr());
            for i in 0..len {
                let kept = random::uniform(stream, (offset + i) as u64) >= f64::from(self.rate);
                // SAFETY: i is below len; each chunk is one task's; `out` may be `a`, as values move one by one.
                unsafe {
                    *to.add(i) = if kept { E::round((*from.add(i)).widen() * scale) } else { E::default() }
                };
            }
        });
    }
}
