//! Instructions that forward and backward share.

use super::*;

/// How blocks share the rows of a map.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Passes {
    /// Few long parts, whose sums are added up afterwards.
    One,
    /// Many short parts, where each row is by itself.
    Many,
}

/// How threads are laid over a map.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Threads {
    /// Over vectors of channels, where those lie side by side.
    AcrossChannels,
    /// Each keeps to one channel.
    WithinChannel,
}

/// The direction in which values move: as in forward, or back as gradients do.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Toward {
    Output,
    Input,
}

/// What a sweep computes from two runs of values.
#[derive(Clone, Copy)]
pub(crate) enum Sweep {
    /// The first.
    Copy,
    Sum,
    /// The first, kept in a range.
    Bound(Bounds),
    /// The first where the second lies inside a range.
    Unbound(Bounds),
}

/// Some channels of a whole map, from one of its channels on.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub map: Map,
    pub whole: Map,
    pub channel: usize,
}

/// Blocks that fill a large GPU twice.
const BLOCKS: usize = 264;

/// Rows that a thread holds where a cluster of blocks holds them all, and the most blocks of a cluster.
const HELD: usize = 4;
const CLUSTER: usize = 8;

/// Bytes of a map up to which that is faster: beyond, its narrow rows cost more than reading twice.
const SMALL: usize = 4 << 20;

/// The largest divisor of `count` up to `most`, if it is at least half of that.
pub(crate) fn even_part(count: usize, most: usize) -> Option<usize> {
    if count <= most {
        return Some(count);
    }
    let even = |part: &usize| count.is_multiple_of(*part);
    (most / 2..=most).rev().find(even)
}

impl Lowering<'_> {
    /// Threads for a kernel over the rows of a map, and the end of its name. With [`Passes::One`] the grid's height is
    /// the number of parts that sums are cut into.
    pub fn rows(&self, map: Map, passes: Passes) -> (Shape, &'static str) {
        self.rows_of(map, passes, self.threads(map))
    }

    /// How the threads of most kernels are laid over a map.
    fn threads(&self, map: Map) -> Threads {
        if self.nchw() && map.pixels() > 1 { Threads::WithinChannel } else { Threads::AcrossChannels }
    }

    /// The same, with the threads laid out as given.
    pub fn rows_of(&self, map: Map, passes: Passes, threads: Threads) -> (Shape, &'static str) {
        let planes = threads == Threads::WithinChannel;
        let rows = self.spec.batch * map.pixels();
        let v = if planes { 1 } else { self.vector(map.c) };
        let vectors = map.c / v;
        let most = if planes { 1 } else { 64 / v };
        let across =
            even_part(vectors, most + most / 2).unwrap_or_else(|| vectors.next_power_of_two().min(most));
        let down = (256 / across).min(rows.next_power_of_two().max(v));
        let slices = vectors.div_ceil(across);
        let parts = match passes {
            Passes::One => (BLOCKS / slices).clamp(1, rows.div_ceil(2 * down)),
            Passes::Many => {
                let each = (rows * slices / (down * 2 * BLOCKS)).clamp(1, 8);
                rows.div_ceil(each * down).clamp(1, 65_535)
            }
        };
        let shape = Shape {
            grid: (slices as u32, parts as u32, 1),
            block: (across as u32, down as u32),
            shared: if passes == Passes::One { across * down * (8 * v).max(40) } else { 0 } as u32,
            cluster: 1,
        };
        (shape, if v == 1 { "1" } else { "v" })
    }

    /// Threads for a kernel that streams so many runs of rows through shared memory, and the end of its name.
    pub fn flow(&self, map: Map, passes: Passes, runs: usize) -> (Shape, &'static str) {
        let (shape, suffix) = self.rows(map, passes);
        if suffix == "1" {
            return (shape, suffix);
        }
        let (across, down) = (shape.block.0 as usize, shape.block.1 as usize);
        let rows = self.spec.batch * map.pixels();
        // Sums of several runs leave registers for two blocks per multiprocessor, the others for three.
        let blocks = if passes == Passes::One && runs > 1 { BLOCKS } else { BLOCKS + BLOCKS / 2 };
        let parts = (blocks / shape.grid.0 as usize).clamp(1, rows.div_ceil(2 * down));
        // Rows in flight, as in the kernels.
        let depth = [8, 6, 5, 4][runs - 1];
        let shared = (16 * runs * depth * across * down).max(shape.shared as usize);
        let grid = (shape.grid.0, parts as u32, 1);
        (Shape { grid, shared: shared as u32, ..shape }, suffix)
    }

    /// Threads for a batch norm of so few rows that a cluster of blocks holds them; `None` where there are more.
    pub fn once(&self, map: Map) -> Option<(Shape, &'static str)> {
        let rows = self.spec.batch * map.pixels();
        if rows * map.c * value_bytes(self.spec.precision) > SMALL {
            return None;
        }
        let planes = self.threads(map) == Threads::WithinChannel;
        let v = if planes { 1 } else { self.vector(map.c) };
        let vectors = map.c / v;
        // Memory is read in sectors of 32 bytes; where that allows too few rows, half a sector is taken.
        let widths = if planes { vec![1] } else { vec![16 / v.min(8), 1] };
        for most in widths {
            let across = vectors.next_power_of_two().min(most);
            let down = (512 / across).min(rows.next_power_of_two().max(v));
            let cluster = rows.div_ceil(HELD * down).next_power_of_two();
            if cluster <= CLUSTER {
                // With fewer rows per thread, more blocks share the work.
                let cluster = rows.div_ceil(down).next_power_of_two().min(CLUSTER);
                let shape = Shape {
                    grid: (vectors.div_ceil(across) as u32, cluster as u32, 1),
                    block: (across as u32, down as u32),
                    shared: (across * down * (8 * v).max(20)) as u32,
                    cluster: cluster as u32,
                };
                return Some((shape, if v == 1 { "1" } else { "v" }));
            }
        }
        None
    }

    /// rows, C, P
    pub fn row_args(&self, map: Map) -> [Arg; 3] {
        let planes = if self.threads(map) == Threads::WithinChannel { map.pixels() } else { 0 };
        [Arg::Long((self.spec.batch * map.pixels()) as i64), Arg::Int(map.c as i32), Arg::Int(planes as i32)]
    }

    /// batch, pixels, C, nchw
    pub fn map_args(&self, map: Map) -> [Arg; 4] {
        [self.spec.batch, map.pixels(), map.c, usize::from(self.nchw())].map(|value| Arg::Int(value as i32))
    }

    pub(super) fn blocks(&self, threads: usize) -> Shape {
        Shape {
            grid: (threads.div_ceil(256).clamp(1, 132 * 32) as u32, 1, 1),
            block: (256, 1),
            shared: 0,
            cluster: 1,
        }
    }

    /// A kernel over single values or, in NHWC, vectors of channels.
    pub fn spread(&self, name: &str, values: usize, channels: usize, args: Vec<Arg>) -> Action {
        let v = if self.nchw() { 1 } else { self.vector(channels) };
        let suffix = if v == 1 { "1" } else { "v" };
        Action::Kernel { name: format!("{name}_{suffix}"), shape: self.blocks(values / v), args }
    }

    /// A depthwise kernel that writes the output of a window: the one for 3x3 where it fits.
    pub fn slide(&self, window: Window, mut args: Vec<Arg>, front: Option<Front>) -> Action {
        let Window { batch, channels, output: [h, w], stride, .. } = window;
        let (batch, c, h, w) = (batch as usize, channels as usize, h as usize, w as usize);
        if !self.fits_three(window) {
            return self.spread("depthwise", batch * h * w * c, c, args);
        }
        args.extend(Front::recipe(front));
        let strip = if stride[0] == 1 { 4 } else { 2 };
        let threads = batch * h * w.div_ceil(strip) * (c / self.vector(c));
        Action::Kernel {
            name: format!("depthwise_three_by_{}", stride[0]),
            shape: self.blocks(threads),
            args,
        }
    }

    /// The gradient of the input of a window of 3x3 with stride 2, four places per thread.
    pub fn slide_back_by_two(&self, name: &str, window: Window, args: Vec<Arg>) -> Action {
        let Window { batch, channels, input: [h, w], top, left, .. } = window;
        let fours = batch as usize * ((h + top + 1) / 2) as usize * ((w + left + 1) / 2) as usize;
        let threads = fours * (channels as usize / self.vector(channels as usize));
        Action::Kernel { name: name.into(), shape: self.blocks(threads), args }
    }

    /// Whether the kernels for windows of 3x3 can be used.
    pub fn fits_three(&self, window: Window) -> bool {
        !self.nchw()
            && window.kernel == [3, 3]
            && (window.stride == [1, 1] || window.stride == [2, 2])
            && self.vector(window.channels as usize) > 1
    }

    /// A kernel over single values.
    pub(super) fn plain(&self, name: &str, values: usize, args: Vec<Arg>) -> Action {
        Action::Kernel { name: name.into(), shape: self.blocks(values), args }
    }

    pub fn sweep(&self, sweep: Sweep, [a, b, out]: [Buffer; 3], count: usize) -> Action {
        let (kind, bounds) = match sweep {
            Sweep::Copy => (0, Bounds::NONE),
            Sweep::Sum => (1, Bounds::NONE),
            Sweep::Bound(bounds) => (2, bounds),
            Sweep::Unbound(bounds) => (3, bounds),
        };
        let v = self.vector(count);
        let mut args = vec![Arg::Int(kind), a.into(), b.into(), out.into(), Arg::Long(count as i64)];
        args.extend(bounds.args());
        let name = if v == 1 { "sweep_1" } else { "sweep_v" };
        Action::Kernel { name: name.into(), shape: self.blocks(count / v), args }
    }

    /// Copies a part's channels into a whole, or back.
    pub fn stretch(&self, from: Buffer, to: Buffer, part: Part, toward: Toward) -> Action {
        let Part { map, whole, channel } = part;
        let (pixels, batch) = (map.pixels(), self.spec.batch);
        let (len, step, skip, stretches) = if self.nchw() {
            (map.len(), whole.len(), channel * pixels, batch)
        } else {
            (map.c, whole.c, channel, batch * pixels)
        };
        let bytes = skip * value_bytes(self.spec.precision);
        let v = [len, step, skip].map(|along| self.vector(along)).into_iter().min().unwrap_or(1);
        let sides = match toward {
            Toward::Output => {
                [from.into(), Arg::Long(len as i64), Arg::At(to, bytes), Arg::Long(step as i64)]
            }
            Toward::Input => [Arg::At(from, bytes), Arg::Long(step as i64), to.into(), Arg::Long(len as i64)],
        };
        let mut args = sides.to_vec();
        args.extend([Arg::Long(len as i64), Arg::Long(stretches as i64)]);
        let name = if v == 1 { "stretch_1" } else { "stretch_v" };
        Action::Kernel { name: name.into(), shape: self.blocks(len / v * stretches), args }
    }

    /// Puts zeros around a map, or takes the map out of them.
    pub fn pad(&self, from: Buffer, to: Buffer, padding: Padding, toward: Toward) -> Action {
        let Padding { inner, outer, border } = padding;
        let numbers = [
            self.spec.batch,
            inner.h,
            inner.w,
            inner.c,
            outer.h,
            outer.w,
            border.top,
            border.left,
            usize::from(self.nchw()),
            usize::from(toward == Toward::Input),
        ];
        let mut args = vec![from.into(), to.into()];
        args.extend(numbers.map(|number| Arg::Int(number as i32)));
        let written = if toward == Toward::Input { inner } else { outer };
        self.spread("pad", self.spec.batch * written.len(), inner.c, args)
    }

    /// Whether a map lies in memory as a vector of its values does: in the order height, width, channel.
    pub fn lies_flat(&self, id: NodeId) -> bool {
        !self.nchw() || self.map(id).pixels() == 1
    }

    /// A map as a vector, or back.
    pub fn turn(&self, from: Buffer, to: Buffer, map: Map, toward: Toward) -> Action {
        let mut args = vec![from.into(), to.into()];
        let back = usize::from(toward == Toward::Input);
        let numbers = [self.spec.batch, map.pixels(), map.c, back];
        args.extend(numbers.map(|number| Arg::Int(number as i32)));
        self.plain("turn", self.spec.batch * map.len(), args)
    }

    pub fn dropout(&self, from: Buffer, to: Buffer, count: usize, rate: f32, seed: u64) -> Action {
        let args = vec![
            from.into(),
            to.into(),
            Arg::Long(count as i64),
            Arg::Float(rate),
            Arg::Word(seed),
            Arg::Control,
        ];
        self.plain("dropout", count, args)
    }
}
