//! Layers that run as one, as backward finds them again.

use super::*;

/// Layers that run as one.
pub(crate) struct Unit {
    pub name: String,
    pub kind: Kind,
    /// The last of its layers, where it has one of its own.
    pub last: Option<NodeId>,
    /// Slots whose gradients are complete when this unit's backward is.
    pub slots: Range<usize>,
    pub forward_flops: u64,
    pub backward_flops: u64,
}

/// A batch norm with its neighbours.
#[derive(Clone, Copy)]
pub(crate) struct Norm {
    pub gamma: Option<ParamId>,
    pub beta: Option<ParamId>,
    pub bounds: Bounds,
    pub kept: Buffer,
}

impl Norm {
    /// How its output follows from its input, where that is made only where it is read: kept, low, high
    pub fn recipe(norm: Option<Self>) -> [Arg; 3] {
        let bounds = norm.map_or(Bounds::NONE, |norm| norm.bounds).args();
        [norm.map_or(Arg::Null, |norm| norm.kept.into()), bounds[0], bounds[1]]
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
    Bordered { inner: Map, border: Border },
    /// Of the pixels that a stride meets: the number of that pick.
    Picked(usize),
}

/// The pixels of a value that a stride meets.
#[derive(Clone, Copy)]
pub(crate) struct Pick {
    pub x: NodeId,
    pub window: Window,
    pub buffer: Buffer,
    /// How many products read them.
    pub users: usize,
}

/// What backward must know of a unit; values are named by their nodes.
pub(crate) enum Kind {
    Product {
        x: NodeId,
        y: NodeId,
        product: usize,
        transposed: bool,
        copied: Option<Copied>,
    },
    /// A bias and a bound, in place.
    Bias {
        x: NodeId,
        y: NodeId,
        bias: Option<ParamId>,
        bounds: Bounds,
    },
    Depthwise {
        x: NodeId,
        y: NodeId,
        window: Window,
        /// The batch norm in front, where its output is made on the way.
        front: Option<Norm>,
    },
    Norm {
        x: NodeId,
        y: NodeId,
        residual: Option<NodeId>,
        norm: Norm,
    },
    Bound {
        x: NodeId,
        y: NodeId,
        bounds: Bounds,
    },
    Pool {
        x: NodeId,
        y: NodeId,
        window: Window,
        winners: Option<Buffer>,
    },
    GlobalPool {
        x: NodeId,
        y: NodeId,
    },
    Add {
        y: NodeId,
        inputs: Vec<NodeId>,
    },
    Concat {
        y: NodeId,
        inputs: Vec<NodeId>,
    },
    Dropout {
        x: NodeId,
        y: NodeId,
        rate: f32,
        seed: u64,
    },
    Flatten {
        x: NodeId,
        y: NodeId,
    },
    Pad {
        x: NodeId,
        y: NodeId,
        border: Border,
    },
    Loss {
        x: NodeId,
        grad: Buffer,
    },
}
