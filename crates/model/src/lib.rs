//! What is trained: the layer graph as plain data, shape inference, costs, and the zoo.

mod builder;
mod cost;
mod graph;
mod shape;
mod window;
pub mod zoo;

pub use builder::Builder;
pub use cost::{LayerCost, Summary, gradient_bytes, gradient_order, layer_costs, summarize};
pub use graph::{
    BatchNorm, Border, Conv, ConvTranspose, Dense, Graph, Init, Node, NodeId, Op, ParamId, ParamInfo,
    ParamKind, Pool, RunningVariance,
};
pub use shape::{Shape, ShapeError};
pub use window::{Conv2d, Padding, Window};
pub use zoo::ModelError;
