//! What is trained: the layer graph as plain data, shape inference, costs, and the zoo.

mod graph;
mod shape;

pub use graph::{
    BatchNorm, Border, Conv, ConvTranspose, Dense, Graph, Init, Node, NodeId, Op, ParamId,
    ParamInfo, ParamKind, Pool, RunningVariance,
};
pub use shape::{Shape, ShapeError};
