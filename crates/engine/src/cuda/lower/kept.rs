//! What forward leaves for backward.

use super::*;

/// What forward keeps for backward of a unit.
#[derive(Clone, Copy)]
pub(crate) enum Kept {
    Nothing,
    /// A batch norm's statistics, the places of maxima, the loss's gradient.
    Buffer(Buffer),
    /// The number of a product, and the copy of its input that it reads.
    Product(usize, Option<Copied>),
}

/// A batch norm whose output is not written out: the kernels that read it compute it from the batch norm's input.
#[derive(Clone, Copy)]
pub(crate) struct Front {
    pub layer: outline::Norm,
    /// Its statistics.
    pub kept: Buffer,
}

impl Front {
    /// How to compute the output from the input, as kernels take it: kept, low, high. Without a batch norm the input is used
    /// as it is.
    pub fn recipe(front: Option<Self>) -> [Arg; 3] {
        let [low, high] = front.map_or(Bounds::NONE, |front| front.layer.bounds).args();
        [front.map_or(Arg::Null, |front| front.kept.into()), low, high]
    }
}

/// A copy of its input that a product reads instead.
#[derive(Clone, Copy)]
pub(crate) struct Copied {
    pub buffer: Buffer,
    pub map: Map,
    pub how: Copying,
}

#[derive(Clone, Copy)]
pub(crate) enum Copying {
    /// With its border around it.
    Bordered(Padding),
    /// Of the pixels that a stride selects: the number of that pick.
    Picked(usize),
}

/// The pixels of a value that a stride selects.
#[derive(Clone, Copy)]
pub(crate) struct Pick {
    pub x: NodeId,
    pub window: Window,
    pub buffer: Buffer,
    /// How many products read them.
    pub users: usize,
}
