//! Layers that run as one.

use std::ops::Range;

use paceline_model::{
    Border, Graph, NodeId, Op, ParamId, ParamKind, Pool, RunningVariance, Shape, layer_costs,
};

use super::{Consumers, find_param};
use crate::Spec;
use crate::random::stream;

/// Layers that run as one.
pub(crate) struct Unit {
    pub name: String,
    pub kind: Kind,
    /// The value that it computes.
    pub y: NodeId,
    /// The slots whose gradients are complete when this unit's backward is.
    pub slots: Range<usize>,
    /// Floating-point operations of a batch.
    pub forward_flops: u64,
    pub backward_flops: u64,
}

/// What a unit computes; `x` is the value that it reads.
pub(crate) enum Kind {
    /// A convolution or dense layer.
    Product(Product),
    /// A convolution that keeps channels apart.
    Depthwise {
        x: NodeId,
        window: Window,
        kernel: ParamId,
        bias: Option<ParamId>,
    },
    /// A bias and the bound behind it, in place.
    Bias {
        x: NodeId,
        bias: Option<ParamId>,
        bounds: Bounds,
    },
    Norm(Norm),
    Bound {
        x: NodeId,
        bounds: Bounds,
    },
    MaxPool {
        x: NodeId,
        window: Window,
    },
    AvgPool {
        x: NodeId,
        window: Window,
    },
    GlobalPool {
        x: NodeId,
    },
    Add {
        inputs: [NodeId; 2],
    },
    Concat {
        inputs: Vec<NodeId>,
    },
    Dropout {
        x: NodeId,
        rate: f32,
        seed: u64,
    },
    Flatten {
        x: NodeId,
    },
    Pad {
        x: NodeId,
        border: Border,
    },
    CrossEntropy {
        x: NodeId,
    },
    SquaredError {
        x: NodeId,
        target: NodeId,
    },
}

/// A convolution, of which a dense layer is the smallest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub x: NodeId,
    pub window: Window,
    pub groups: usize,
    pub kernel: ParamId,
    pub bias: Option<ParamId>,
    /// Whether the layer undoes the convolution in `window`: it computes that convolution's input from its output.
    pub transposed: bool,
}

/// Batch norm, with the residual sum and the bound that follow it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub x: NodeId,
    pub residual: Option<NodeId>,
    pub bounds: Bounds,
    pub gamma: Option<ParamId>,
    pub beta: Option<ParamId>,
    pub moving_mean: ParamId,
    pub moving_variance: ParamId,
    /// A bias in front that was left to this layer. Its gradient is exactly zero.
    pub bias: Option<ParamId>,
    pub epsilon: f32,
    pub momentum: f64,
    /// n / (n - 1) where the unbiased variance enters the running statistics, else 1.
    pub correction: f32,
}

/// Window, strides and border of a convolution or pool between two maps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub kernel: (usize, usize),
    pub stride: (usize, usize),
    pub border: Border,
    pub input: Shape,
    pub output: Shape,
}

/// The range that an activation keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    pub low: f32,
    pub high: f32,
}

impl Bounds {
    pub const NONE: Self = Self { low: f32::NEG_INFINITY, high: f32::INFINITY };

    /// The range of ReLU and ReLU6; all others keep everything.
    fn of(op: Op) -> Self {
        match op {
            Op::Relu => Self { low: 0.0, ..Self::NONE },
            Op::Relu6 => Self { low: 0.0, high: 6.0 },
            _ => Self::NONE,
        }
    }
}

/// What an engine fuses beyond batch norm, residual sum and bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fusion {
    /// Biases are left to the batch norm behind them; where there is none they are a unit with the bound behind them.
    /// Otherwise the product adds its bias.
    pub bias: bool,
    /// The zeros of a padding between a ReLU and a maximum become the border of that maximum's window.
    pub padding: bool,
}

/// Cuts a graph into units, in the order of forward. Slots are not known yet.
pub(super) fn divide(graph: &Graph, spec: &Spec, consumers: &Consumers, fusion: Fusion) -> Vec<Unit> {
    let absorbed = vec![false; graph.nodes.len()];
    let mut division = Division { graph, spec, consumers, fusion, units: Vec::new(), absorbed };
    for index in 0..graph.nodes.len() {
        if !division.absorbed[index] {
            division.add(NodeId(index));
        }
    }
    let costs = layer_costs(graph);
    let batch = spec.batch as u64;
    let finish = |Draft { nodes, kind, y, name }: Draft| Unit {
        name: name.unwrap_or_else(|| {
            let names: Vec<&str> = nodes.iter().map(|&id| graph.node(id).name.as_str()).collect();
            names.join(" + ")
        }),
        kind,
        y,
        slots: 0..0,
        forward_flops: batch * nodes.iter().map(|id| costs[id.0].flops_forward).sum::<u64>(),
        backward_flops: batch * nodes.iter().map(|id| costs[id.0].flops_backward).sum::<u64>(),
    };
    division.units.into_iter().map(finish).collect()
}

/// A unit before its costs are known.
struct Draft {
    /// The layers that it covers.
    nodes: Vec<NodeId>,
    kind: Kind,
    y: NodeId,
    /// Where the layers' names do not make it.
    name: Option<String>,
}

struct Division<'a> {
    graph: &'a Graph,
    spec: &'a Spec,
    consumers: &'a Consumers,
    fusion: Fusion,
    units: Vec<Draft>,
    /// Nodes that an earlier unit computes.
    absorbed: Vec<bool>,
}

impl Division<'_> {
    fn push(&mut self, id: NodeId, kind: Kind) {
        self.units.push(Draft { nodes: vec![id], kind, y: id, name: None });
    }

    fn shape(&self, id: NodeId) -> Shape {
        self.graph.node(id).shape
    }

    fn param(&self, id: NodeId, kind: ParamKind) -> Option<ParamId> {
        find_param(self.graph, id, kind)
    }

    /// Adds the unit that starts with a node.
    fn add(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let x = node.inputs.first().copied().unwrap_or(id);
        let (input, output) = (self.shape(x), node.shape);
        match node.op {
            Op::Input => {}
            Op::Conv(spec) => {
                let (kernel, stride, border) = (spec.kernel, spec.stride, spec.border);
                let window = Window { kernel, stride, border, input, output };
                if spec.groups > 1 && spec.groups == input.c && spec.groups == spec.out {
                    let (kernel, bias) = self.weights(id);
                    self.push(id, Kind::Depthwise { x, window, kernel, bias });
                    self.add_bias(id);
                } else {
                    self.add_product(id, window, spec.groups);
                }
            }
            Op::ConvTranspose(spec) => {
                // The convolution that it undoes has its output for an input.
                let (kernel, stride, border) = (spec.kernel, spec.stride, Border::even(spec.crop));
                self.add_product(id, Window { kernel, stride, border, input: output, output: input }, 1);
            }
            Op::Dense(_) => {
                let border = Border::default();
                self.add_product(id, Window { kernel: (1, 1), stride: (1, 1), border, input, output }, 1);
            }
            Op::BatchNorm(_) => self.add_norm(id),
            Op::Relu | Op::Relu6 => self.push(id, Kind::Bound { x, bounds: Bounds::of(node.op) }),
            Op::MaxPool(spec) => {
                let (x, window) = self.pool(id, spec);
                self.push(id, Kind::MaxPool { x, window });
            }
            Op::AvgPool(spec) => {
                let (x, window) = self.pool(id, spec);
                self.push(id, Kind::AvgPool { x, window });
            }
            Op::GlobalAvgPool => self.push(id, Kind::GlobalPool { x }),
            Op::Add => self.push(id, Kind::Add { inputs: [node.inputs[0], node.inputs[1]] }),
            Op::Concat => self.push(id, Kind::Concat { inputs: node.inputs.clone() }),
            Op::Dropout { rate } => {
                let seed = stream(self.spec.seed, id.0);
                self.push(id, Kind::Dropout { x, rate, seed });
            }
            Op::Flatten => self.push(id, Kind::Flatten { x }),
            Op::Pad(_) if self.is_left_to_pool(id) => {}
            Op::Pad(border) => self.push(id, Kind::Pad { x, border }),
            Op::SoftmaxCrossEntropy => self.push(id, Kind::CrossEntropy { x }),
            Op::MeanSquaredError => self.push(id, Kind::SquaredError { x, target: node.inputs[1] }),
        }
    }

    fn weights(&self, id: NodeId) -> (ParamId, Option<ParamId>) {
        let kernel = self.param(id, ParamKind::Kernel).expect("invariant: the layer has a kernel");
        (kernel, self.param(id, ParamKind::Bias))
    }

    fn add_product(&mut self, id: NodeId, window: Window, groups: usize) {
        let node = self.graph.node(id);
        let (kernel, bias) = self.weights(id);
        let transposed = matches!(node.op, Op::ConvTranspose(_));
        self.push(id, Kind::Product(Product { x: node.inputs[0], window, groups, kernel, bias, transposed }));
        self.add_bias(id);
    }

    /// The bias of a layer and the bound behind it, where they are a unit.
    fn add_bias(&mut self, id: NodeId) {
        let next = self.consumers.sole(id);
        let op = next.map(|next| self.graph.node(next).op);
        if !self.fusion.bias || matches!(op, Some(Op::BatchNorm(_))) {
            return;
        }
        let bias = self.param(id, ParamKind::Bias);
        let bounds = op.map_or(Bounds::NONE, Bounds::of);
        let bound = next.filter(|_| bounds != Bounds::NONE);
        if bias.is_none() && bound.is_none() {
            return;
        }
        if let Some(bound) = bound {
            self.absorbed[bound.0] = true;
        }
        self.units.push(Draft {
            nodes: bound.into_iter().collect(),
            kind: Kind::Bias { x: id, bias, bounds },
            y: bound.unwrap_or(id),
            name: Some(format!("{} bias", self.graph.node(id).name)),
        });
    }

    /// Batch norm, with the residual sum and the bound that follow it where nobody else reads what lies between.
    fn add_norm(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let Op::BatchNorm(spec) = node.op else { unreachable!("invariant: a batch norm") };
        let mut nodes = vec![id];
        let (mut y, mut residual, mut bounds) = (id, None, Bounds::NONE);
        if let Some(next) = self.consumers.sole(id)
            && self.graph.node(next).op == Op::Add
        {
            let inputs = &self.graph.node(next).inputs;
            let other = if inputs[0] == id { inputs[1] } else { inputs[0] };
            if other < id {
                (y, residual) = (next, Some(other));
                nodes.push(next);
            }
        }
        if let Some(next) = self.consumers.sole(y) {
            bounds = Bounds::of(self.graph.node(next).op);
            if bounds != Bounds::NONE {
                y = next;
                nodes.push(next);
            }
        }
        for node in &nodes {
            self.absorbed[node.0] = true;
        }
        let x = node.inputs[0];
        let left_to_it = self.fusion.bias && self.consumers.sole(x) == Some(id);
        let count = self.spec.batch * node.shape.pixels();
        let moving = |kind| self.param(id, kind).expect("invariant: batch norm has running statistics");
        let kind = Kind::Norm(Norm {
            x,
            residual,
            bounds,
            gamma: self.param(id, ParamKind::Gamma),
            beta: self.param(id, ParamKind::Beta),
            moving_mean: moving(ParamKind::MovingMean),
            moving_variance: moving(ParamKind::MovingVariance),
            bias: self.param(x, ParamKind::Bias).filter(|_| left_to_it),
            epsilon: spec.epsilon,
            momentum: spec.momentum,
            correction: match spec.running {
                RunningVariance::Biased => 1.0,
                RunningVariance::Unbiased => count as f32 / (count - 1).max(1) as f32,
            },
        });
        self.units.push(Draft { nodes, kind, y, name: None });
    }

    /// Whether a padding becomes the border of the maximum behind it: what a ReLU lets through never loses to a zero of the
    /// padding, nor is it moved by one.
    fn is_left_to_pool(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let pool = self.consumers.sole(id).map(|next| self.graph.node(next).op);
        self.fusion.padding
            && matches!(node.op, Op::Pad(_))
            && matches!(pool, Some(Op::MaxPool(pool)) if pool.border == Border::default())
            && matches!(self.graph.node(node.inputs[0]).op, Op::Relu | Op::Relu6)
    }

    /// What a pool reads, and its window.
    fn pool(&self, id: NodeId, Pool { kernel, stride, mut border }: Pool) -> (NodeId, Window) {
        let node = self.graph.node(id);
        let mut x = node.inputs[0];
        if self.is_left_to_pool(x)
            && let Op::Pad(padding) = self.graph.node(x).op
        {
            (x, border) = (self.graph.node(x).inputs[0], padding);
        }
        (x, Window { kernel, stride, border, input: self.shape(x), output: node.shape })
    }
}
