//! The instructions of a compiled program: our own kernels and products, with operands by name.

use paceline_model::ParamId;

use super::driver::Shape;
use super::product::Direction;
use crate::Layout;
use crate::outline::{self, Bounds};
use crate::plan::Buffer;

/// A window over maps, as the kernels know it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub batch: i32,
    pub channels: i32,
    pub nchw: i32,
    /// Height and width.
    pub input: [i32; 2],
    pub output: [i32; 2],
    pub kernel: [i32; 2],
    pub stride: [i32; 2],
    pub top: i32,
    pub left: i32,
}

impl Window {
    pub fn new(window: &outline::Window, batch: usize, layout: Layout) -> Self {
        let outline::Window { kernel, stride, border, input, output } = *window;
        let pair = |(a, b): (usize, usize)| [a as i32, b as i32];
        Self {
            batch: batch as i32,
            channels: input.c as i32,
            nchw: i32::from(layout == Layout::Nchw),
            input: pair((input.h, input.w)),
            output: pair((output.h, output.w)),
            kernel: pair(kernel),
            stride: pair(stride),
            top: border.top as i32,
            left: border.left as i32,
        }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    /// An address in a buffer, so many bytes from its start.
    At(Buffer, usize),
    Null,
    /// The address of a trained value, its gradient, or a running statistic.
    Param(ParamId),
    Grad(ParamId),
    Moving(ParamId),
    /// The address of a kernel's packed copy.
    Packed(ParamId),
    Labels,
    Control,
    Score,
    /// The first of some counters that are zero between runs.
    Counters(usize),
    /// Whether parameters' gradients are added to what is there.
    AddsGradients,
    Int(i32),
    Long(i64),
    Float(f32),
    Double(f64),
    Word(u64),
    Window(Window),
}

impl From<Buffer> for Arg {
    fn from(buffer: Buffer) -> Self {
        Self::At(buffer, 0)
    }
}

impl Bounds {
    /// low, high
    pub(super) fn args(self) -> [Arg; 2] {
        [self.low, self.high].map(Arg::Float)
    }
}

/// One instruction.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Kernel {
        name: String,
        shape: Shape,
        args: Vec<Arg>,
    },
    /// A product with a kernel tensor, or of its gradient.
    Product {
        /// Its number among the program's products.
        product: usize,
        direction: Direction,
        x: Buffer,
        kernel: ParamId,
        y: Buffer,
    },
}

impl Action {
    /// The buffers that it reads or writes.
    pub fn buffers(&self) -> Vec<Buffer> {
        match self {
            Self::Product { x, y, .. } => vec![*x, *y],
            Self::Kernel { args, .. } => args
                .iter()
                .filter_map(|arg| match arg {
                    Arg::At(buffer, _) => Some(*buffer),
                    _ => None,
                })
                .collect(),
        }
    }
}

/// The stream that an instruction runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Track {
    /// In order.
    Main,
    /// Concurrently, on a second stream: it may end [`LAG`] units later.
    Side,
}

/// Units of backward that an instruction on the second stream may lag behind.
pub(super) const LAG: usize = 4;

/// An instruction, the unit that it belongs to, and its time in the plan.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub unit: usize,
    pub time: usize,
    pub track: Track,
    pub action: Action,
}
