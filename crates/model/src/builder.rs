//! Builds a graph layer by layer, in the order of papers; shapes are inferred and checked.

use std::collections::HashSet;

use crate::{
    BatchNorm, Border, Conv2d, ConvTranspose, Dense, Graph, Init, Node, NodeId, Op, ParamId, ParamInfo,
    ParamKind, Shape, ShapeError, Window,
};

/// Most values of a tensor: far beyond any machine, far below an overflow.
const MOST_VALUES: u64 = 1 << 40;

/// A graph under construction. Each method adds one layer and returns its id; a loss completes the graph.
///
/// Layer names must be unique: a name given twice is a bug in the network's definition, and panics.
#[derive(Debug)]
pub struct Builder {
    graph: Graph,
    names: HashSet<String>,
}

impl Builder {
    /// An empty network and the id of its input.
    pub fn new(name: &str, input: Shape, classes: usize) -> Result<(Self, NodeId), ShapeError> {
        if input.h == 0 || input.w == 0 || input.c == 0 {
            return Err(refuse("input", input, "every side is at least 1"));
        }
        check_size("input", input, &[input.h, input.w, input.c])?;
        let graph = Graph { name: name.to_owned(), classes, nodes: Vec::new(), params: Vec::new() };
        let mut builder = Self { graph, names: HashSet::new() };
        let x = builder.push("input", Op::Input, &[], input);
        Ok((builder, x))
    }

    /// Shape of a layer's output.
    pub fn shape(&self, x: NodeId) -> Shape {
        self.graph.node(x).shape
    }

    /// A convolution.
    pub fn conv(&mut self, name: &str, x: NodeId, conv: Conv2d) -> Result<NodeId, ShapeError> {
        let input = self.shape(x);
        let (conv, (h, w)) = conv.meet(name, input)?;
        let shape = Shape::new(h, w, conv.out);
        let receptive = conv.kernel.0.saturating_mul(conv.kernel.1);
        let kernel = Kernel {
            dims: vec![conv.kernel.0, conv.kernel.1, input.c / conv.groups, conv.out],
            fan_in: receptive.saturating_mul(input.c / conv.groups),
            fan_out: receptive.saturating_mul(conv.out),
            init: conv.init,
            bias: conv.bias.then_some(conv.out),
        };
        self.push_weighted(name, Op::Conv(conv), x, shape, kernel)
    }

    /// A depthwise convolution; output channels and groups of `conv` are set to the input's channels.
    pub fn depthwise_conv(&mut self, name: &str, x: NodeId, conv: Conv2d) -> Result<NodeId, ShapeError> {
        let channels = self.shape(x).c;
        self.conv(name, x, conv.out(channels).groups(channels))
    }

    /// A transposed convolution.
    pub fn conv_transpose(
        &mut self,
        name: &str,
        x: NodeId,
        conv: ConvTranspose,
    ) -> Result<NodeId, ShapeError> {
        let input = self.shape(x);
        if conv.out == 0 || conv.stride.0.min(conv.stride.1) == 0 {
            return Err(refuse(name, input, "output channels and stride are at least 1"));
        }
        let side = |side: usize, kernel: usize, stride: usize| {
            (side - 1)
                .checked_mul(stride)?
                .checked_add(kernel)?
                .checked_add(conv.output_padding)?
                .checked_sub(conv.crop.checked_mul(2)?)
                .filter(|&side| side > 0)
        };
        let h = side(input.h, conv.kernel.0, conv.stride.0);
        let w = side(input.w, conv.kernel.1, conv.stride.1);
        let Some((h, w)) = h.zip(w) else {
            return Err(refuse(name, input, "the crop leaves nothing"));
        };
        let receptive = conv.kernel.0.saturating_mul(conv.kernel.1);
        let kernel = Kernel {
            dims: vec![conv.kernel.0, conv.kernel.1, conv.out, input.c],
            fan_in: receptive.saturating_mul(input.c),
            fan_out: receptive.saturating_mul(conv.out),
            init: conv.init,
            bias: conv.bias.then_some(conv.out),
        };
        self.push_weighted(name, Op::ConvTranspose(conv), x, Shape::new(h, w, conv.out), kernel)
    }

    /// A fully connected layer; its input is a vector, so flatten or pool first.
    pub fn dense(&mut self, name: &str, x: NodeId, dense: Dense) -> Result<NodeId, ShapeError> {
        let input = self.shape(x);
        if input.pixels() != 1 {
            return Err(refuse(name, input, "a dense layer takes a vector; flatten or pool first"));
        }
        if dense.out == 0 {
            return Err(refuse(name, input, "a dense layer has at least one output"));
        }
        let kernel = Kernel {
            dims: vec![input.c, dense.out],
            fan_in: input.c,
            fan_out: dense.out,
            init: dense.init,
            bias: dense.bias.then_some(dense.out),
        };
        self.push_weighted(name, Op::Dense(dense), x, Shape::vector(dense.out), kernel)
    }

    /// Batch normalisation.
    pub fn batch_norm(&mut self, name: &str, x: NodeId, norm: BatchNorm) -> NodeId {
        let shape = self.shape(x);
        let id = self.push(name, Op::BatchNorm(norm), &[x], shape);
        let kinds = [
            (norm.scale, ParamKind::Gamma),
            (norm.shift, ParamKind::Beta),
            (true, ParamKind::MovingMean),
            (true, ParamKind::MovingVariance),
        ];
        for (_, kind) in kinds.into_iter().filter(|(present, _)| *present) {
            self.push_vector(id, kind, shape.c);
        }
        id
    }

    /// max(x, 0).
    pub fn relu(&mut self, name: &str, x: NodeId) -> NodeId {
        self.push(name, Op::Relu, &[x], self.shape(x))
    }

    /// min(max(x, 0), 6).
    pub fn relu6(&mut self, name: &str, x: NodeId) -> NodeId {
        self.push(name, Op::Relu6, &[x], self.shape(x))
    }

    /// Maximum over a window; if zeros must take part, add a [`Builder::pad`] before it.
    pub fn max_pool(&mut self, name: &str, x: NodeId, window: Window) -> Result<NodeId, ShapeError> {
        let input = self.shape(x);
        let (pool, (h, w)) = window.meet(name, input)?;
        Ok(self.push(name, Op::MaxPool(pool), &[x], Shape::new(h, w, input.c)))
    }

    /// Mean over a window, without the border.
    pub fn avg_pool(&mut self, name: &str, x: NodeId, window: Window) -> Result<NodeId, ShapeError> {
        let input = self.shape(x);
        let (pool, (h, w)) = window.meet(name, input)?;
        Ok(self.push(name, Op::AvgPool(pool), &[x], Shape::new(h, w, input.c)))
    }

    /// Mean over the whole map.
    pub fn global_avg_pool(&mut self, name: &str, x: NodeId) -> NodeId {
        self.push(name, Op::GlobalAvgPool, &[x], Shape::vector(self.shape(x).c))
    }

    /// Sum of two maps of one shape.
    pub fn add(&mut self, name: &str, left: NodeId, right: NodeId) -> Result<NodeId, ShapeError> {
        let shape = self.match_shapes(name, left, right)?;
        Ok(self.push(name, Op::Add, &[left, right], shape))
    }

    /// Channels of all inputs, one after the other.
    pub fn concat(&mut self, name: &str, inputs: &[NodeId]) -> Result<NodeId, ShapeError> {
        let Some(&first) = inputs.first() else {
            return Err(refuse(name, Shape::new(0, 0, 0), "there must be a map to join"));
        };
        let left = self.shape(first);
        let mut channels = 0usize;
        for &x in inputs {
            let right = self.shape(x);
            if (left.h, left.w) != (right.h, right.w) {
                return Err(ShapeError::Mismatch { layer: name.to_owned(), left, right });
            }
            channels = channels.saturating_add(right.c);
        }
        check_size(name, left, &[left.h, left.w, channels])?;
        Ok(self.push(name, Op::Concat, inputs, Shape::new(left.h, left.w, channels)))
    }

    /// Dropout with this probability of a zero, at least 0 and below 1.
    pub fn dropout(&mut self, name: &str, x: NodeId, rate: f32) -> Result<NodeId, ShapeError> {
        let shape = self.shape(x);
        if !(0.0..1.0).contains(&rate) {
            return Err(refuse(name, shape, "a dropout rate is at least 0 and below 1"));
        }
        Ok(self.push(name, Op::Dropout { rate }, &[x], shape))
    }

    /// A map as a vector.
    pub fn flatten(&mut self, name: &str, x: NodeId) -> NodeId {
        self.push(name, Op::Flatten, &[x], Shape::vector(self.shape(x).len()))
    }

    /// Zeros around a map.
    pub fn pad(&mut self, name: &str, x: NodeId, border: Border) -> Result<NodeId, ShapeError> {
        let input = self.shape(x);
        let h = input.h.saturating_add(border.top).saturating_add(border.bottom);
        let w = input.w.saturating_add(border.left).saturating_add(border.right);
        check_size(name, input, &[h, w, input.c])?;
        Ok(self.push(name, Op::Pad(border), &[x], Shape::new(h, w, input.c)))
    }

    /// Completes a classifier: one logit per class.
    pub fn softmax_cross_entropy(mut self, name: &str, logits: NodeId) -> Result<Graph, ShapeError> {
        let (left, right) = (self.shape(logits), Shape::vector(self.graph.classes));
        if left != right {
            return Err(ShapeError::Mismatch { layer: name.to_owned(), left, right });
        }
        self.push(name, Op::SoftmaxCrossEntropy, &[logits], Shape::vector(1));
        self.close()
    }

    /// Completes a regression or an autoencoder: compares `x` with `target`.
    pub fn mean_squared_error(mut self, name: &str, x: NodeId, target: NodeId) -> Result<Graph, ShapeError> {
        self.match_shapes(name, x, target)?;
        self.push(name, Op::MeanSquaredError, &[x, target], Shape::vector(1));
        self.close()
    }

    /// The graph, if every layer leads to the loss.
    fn close(self) -> Result<Graph, ShapeError> {
        let mut read = vec![false; self.graph.nodes.len()];
        for input in self.graph.nodes.iter().flat_map(|node| &node.inputs) {
            read[input.0] = true;
        }
        let loss = self.graph.nodes.len() - 1;
        match (0..loss).find(|&node| !read[node]) {
            None => Ok(self.graph),
            Some(node) => Err(ShapeError::NotAdmitted {
                layer: self.graph.nodes[node].name.clone(),
                input: self.graph.nodes[node].shape,
                why: "nothing reads what it makes".to_owned(),
            }),
        }
    }

    fn match_shapes(&self, name: &str, left: NodeId, right: NodeId) -> Result<Shape, ShapeError> {
        let (left, right) = (self.shape(left), self.shape(right));
        if left == right {
            Ok(left)
        } else {
            Err(ShapeError::Mismatch { layer: name.to_owned(), left, right })
        }
    }

    fn push(&mut self, name: &str, op: Op, inputs: &[NodeId], shape: Shape) -> NodeId {
        let fresh = self.names.insert(name.to_owned());
        assert!(fresh, "invariant: layer names are unique, and {name} is taken");
        let inputs = inputs.to_vec();
        self.graph.nodes.push(Node { name: name.to_owned(), op, inputs, shape, params: Vec::new() });
        NodeId(self.graph.nodes.len() - 1)
    }

    fn push_weighted(
        &mut self,
        name: &str,
        op: Op,
        x: NodeId,
        shape: Shape,
        kernel: Kernel,
    ) -> Result<NodeId, ShapeError> {
        let input = self.shape(x);
        check_size(name, input, &[shape.h, shape.w, shape.c])?;
        check_size(name, input, &kernel.dims)?;
        let id = self.push(name, op, &[x], shape);
        self.push_param(ParamInfo {
            name: format!("{name}/{}", ParamKind::Kernel.name()),
            kind: ParamKind::Kernel,
            node: id,
            dims: kernel.dims,
            fan_in: kernel.fan_in,
            fan_out: kernel.fan_out,
            init: Some(kernel.init),
        });
        if let Some(len) = kernel.bias {
            self.push_vector(id, ParamKind::Bias, len);
        }
        Ok(id)
    }

    fn push_vector(&mut self, node: NodeId, kind: ParamKind, len: usize) {
        let name = format!("{}/{}", self.graph.node(node).name, kind.name());
        self.push_param(ParamInfo { name, kind, node, dims: vec![len], fan_in: 0, fan_out: 0, init: None });
    }

    fn push_param(&mut self, param: ParamInfo) {
        let id = ParamId(self.graph.params.len());
        self.graph.nodes[param.node.0].params.push(id);
        self.graph.params.push(param);
    }
}

/// The weights of a layer about to be added.
struct Kernel {
    dims: Vec<usize>,
    fan_in: usize,
    fan_out: usize,
    init: Init,
    bias: Option<usize>,
}

fn refuse(layer: &str, input: Shape, why: &str) -> ShapeError {
    ShapeError::NotAdmitted { layer: layer.to_owned(), input, why: why.to_owned() }
}

fn check_size(layer: &str, input: Shape, dims: &[usize]) -> Result<(), ShapeError> {
    let values = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim as u64));
    match values {
        Some(values) if values <= MOST_VALUES => Ok(()),
        _ => Err(refuse(layer, input, "a tensor of more than 2^40 values would be needed")),
    }
}
