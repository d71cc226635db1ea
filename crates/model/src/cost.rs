//! What a network costs: parameters, floating-point operations, activation bytes, and the order of its gradients.
//!
//! Conventions, per sample:
//! - A multiply-add is two operations. Convolutions, transposed ones and dense layers are counted
//!   nominally, as if padding were data; a bias adds one operation per output value. Backward is the
//!   product for the weights and the product for the data, each as large as forward, and one
//!   operation per output value for the bias. A layer with nothing trained below it (the first, which
//!   reads the image) has no product for the data.
//! - Other layers, operations per value, forward and backward: batch norm 8 and 10; ReLU and dropout 1
//!   and 1; ReLU6 2 and 2; add 1 and 0; softmax cross-entropy 5 and 2; mean squared error 3 and 2. A
//!   maximum reads its window forward and moves one value backward; an average touches its window
//!   both ways. Concat, flatten and pad only move data. Summing the gradients of a value that
//!   several layers read is not counted.
//! - Activation bytes are the fp32 outputs of every node, including the image: what is held if
//!   nothing is fused, reused or recomputed.

use serde::Serialize;

use crate::{Graph, Node, NodeId, Op, ParamId, ParamInfo};

const BYTES_PER_VALUE: u64 = 4;

/// What one layer costs, per sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerCost {
    /// The layer.
    pub node: NodeId,
    /// Values that are trained.
    pub params_trainable: u64,
    /// All values, including running statistics.
    pub params_total: u64,
    /// Tensors that are trained.
    pub tensors_trainable: u64,
    /// Operations of the forward pass.
    pub flops_forward: u64,
    /// Operations of the backward pass.
    pub flops_backward: u64,
    /// Bytes of its output.
    pub activation_bytes: u64,
}

/// What a network costs; FLOPs and activation bytes per sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The network's name.
    pub name: String,
    /// Input size, `HxW`.
    pub input: String,
    /// Values that are trained.
    pub params_trainable: u64,
    /// All values, including running statistics.
    pub params_total: u64,
    /// Tensors that are trained.
    pub tensors_trainable: u64,
    /// Operations of the forward pass.
    pub flops_forward: u64,
    /// Operations of the backward pass.
    pub flops_backward: u64,
    /// Bytes of all outputs.
    pub activation_bytes: u64,
}

/// The cost of every layer, in forward order.
pub fn layer_costs(graph: &Graph) -> Vec<LayerCost> {
    let reached = find_reached(graph);
    graph
        .nodes
        .iter()
        .enumerate()
        .map(|(index, node)| {
            let params = || node.params.iter().map(|&id| graph.param(id));
            let trainable = || params().filter(|param| param.kind.trainable());
            let (flops_forward, flops_backward) = count_flops(graph, node, &reached);
            LayerCost {
                node: NodeId(index),
                params_trainable: count_values(trainable()),
                params_total: count_values(params()),
                tensors_trainable: trainable().count() as u64,
                flops_forward,
                flops_backward,
                activation_bytes: BYTES_PER_VALUE * node.shape.len() as u64,
            }
        })
        .collect()
}

/// The sums over all layers.
pub fn summarize(graph: &Graph) -> Summary {
    let costs = layer_costs(graph);
    let sum = |field: fn(&LayerCost) -> u64| costs.iter().map(field).sum();
    let input = graph.input();
    Summary {
        name: graph.name.clone(),
        input: format!("{}x{}", input.h, input.w),
        params_trainable: sum(|cost| cost.params_trainable),
        params_total: sum(|cost| cost.params_total),
        tensors_trainable: sum(|cost| cost.tensors_trainable),
        flops_forward: sum(|cost| cost.flops_forward),
        flops_backward: sum(|cost| cost.flops_backward),
        activation_bytes: sum(|cost| cost.activation_bytes),
    }
}

/// The trained parameters in the order in which backward produces their gradients: nodes from last to first, and
/// within a node in the node's own order.
pub fn gradient_order(graph: &Graph) -> Vec<ParamId> {
    let params = graph.nodes.iter().rev().flat_map(|node| node.params.iter().copied());
    params.filter(|&id| graph.param(id).kind.trainable()).collect()
}

/// Bytes of each fp32 gradient, in the order of [`gradient_order`].
pub fn gradient_bytes(graph: &Graph) -> Vec<u64> {
    let values = gradient_order(graph).into_iter().map(|id| graph.param(id).len() as u64);
    values.map(|len| BYTES_PER_VALUE * len).collect()
}

fn count_values<'a>(params: impl Iterator<Item = &'a ParamInfo>) -> u64 {
    params.map(|param| param.len() as u64).sum()
}

/// For each node, whether backward reaches it: it or something below it is trained.
fn find_reached(graph: &Graph) -> Vec<bool> {
    let mut reached = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let trained = node.params.iter().any(|&id| graph.param(id).kind.trainable());
        reached.push(trained || node.inputs.iter().any(|input| reached[input.0]));
    }
    reached
}

fn count_flops(graph: &Graph, node: &Node, reached: &[bool]) -> (u64, u64) {
    let out = node.shape.len() as u64;
    let read = |index: usize| graph.node(node.inputs[index]).shape;
    let passes_on = node.inputs.iter().any(|input| reached[input.0]);
    let products = |multiply_adds: u64, bias: bool| {
        let bias = if bias { out } else { 0 };
        let product = multiply_adds.saturating_mul(2);
        let backward = if passes_on { product.saturating_mul(2) } else { product };
        (product.saturating_add(bias), backward.saturating_add(bias))
    };
    let each = |values: u64, forward: u64, backward: u64| {
        (values.saturating_mul(forward), if passes_on { values.saturating_mul(backward) } else { 0 })
    };
    let window = |kernel: (usize, usize)| (kernel.0 * kernel.1) as u64;
    match node.op {
        Op::Input | Op::Concat | Op::Flatten | Op::Pad(_) => (0, 0),
        Op::Conv(conv) => {
            let inputs = window(conv.kernel) * (read(0).c / conv.groups) as u64;
            products(out.saturating_mul(inputs), conv.bias)
        }
        Op::ConvTranspose(conv) => {
            let outputs = window(conv.kernel) * conv.out as u64;
            products((read(0).len() as u64).saturating_mul(outputs), conv.bias)
        }
        Op::Dense(dense) => products((read(0).len() as u64).saturating_mul(out), dense.bias),
        Op::BatchNorm(_) => (8 * out, 10 * out),
        Op::Relu | Op::Dropout { .. } => each(out, 1, 1),
        Op::Relu6 => each(out, 2, 2),
        Op::MaxPool(pool) => each(out, window(pool.kernel), 1),
        Op::AvgPool(pool) => each(out, window(pool.kernel), window(pool.kernel)),
        Op::GlobalAvgPool => each(read(0).len() as u64, 1, 1),
        Op::Add => each(out, 1, 0),
        Op::SoftmaxCrossEntropy => each(read(0).len() as u64, 5, 2),
        Op::MeanSquaredError => each(read(0).len() as u64, 3, 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Conv2d, Dense, Shape};

    fn two_layers() -> Graph {
        let (mut b, x) = Builder::new("two", Shape::new(4, 4, 3), 5).unwrap();
        let x = b.conv("conv", x, Conv2d::k(3, 3).out(8).same().bias()).unwrap();
        let x = b.relu("relu", x);
        let x = b.global_avg_pool("pool", x);
        let x = b.dense("top", x, Dense::to(5)).unwrap();
        b.softmax_cross_entropy("loss", x).unwrap()
    }

    #[test]
    fn a_layer_on_the_image_has_no_data_product() {
        let costs = layer_costs(&two_layers());
        let product = 2 * 16 * 8 * 27;
        let conv = costs[1];
        assert_eq!((conv.flops_forward, conv.flops_backward), (product + 128, product + 128));
        let dense = costs[4];
        assert_eq!((dense.flops_forward, dense.flops_backward), (80 + 5, 160 + 5));
    }

    #[test]
    fn activation_bytes_are_all_outputs_in_fp32() {
        assert_eq!(summarize(&two_layers()).activation_bytes, 4 * (48 + 128 + 128 + 8 + 5 + 1));
    }

    #[test]
    fn gradients_come_from_the_last_node_and_kernel_before_bias() {
        let graph = two_layers();
        let names: Vec<_> = gradient_order(&graph).iter().map(|&id| graph.param(id).name.as_str()).collect();
        assert_eq!(names, ["top/kernel", "top/bias", "conv/kernel", "conv/bias"]);
        assert_eq!(gradient_bytes(&graph), [160, 20, 864, 32]);
    }
}
