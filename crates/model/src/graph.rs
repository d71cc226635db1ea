//! The layer graph: plain data, in the order in which forward runs.

use serde::{Deserialize, Serialize};

use crate::Shape;

/// Index of a node in [`Graph::nodes`]; an input always precedes its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub usize);

/// Index of a parameter tensor in [`Graph::params`], in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ParamId(pub usize);

/// How weights are initialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Init {
    /// Normal with variance 2 / fan-in (He et al. 2015).
    He,
    /// Uniform with variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010); Keras's default.
    Glorot,
}

/// Zeros added around a map, resolved to numbers when the graph is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Border {
    /// Rows above.
    pub top: usize,
    /// Rows below.
    pub bottom: usize,
    /// Columns to the left.
    pub left: usize,
    /// Columns to the right.
    pub right: usize,
}

impl Border {
    /// The same number of rows and columns on all four sides.
    pub const fn even(side: usize) -> Self {
        Self { top: side, bottom: side, left: side, right: side }
    }
}

/// A convolution. Weights are `[kernel_h][kernel_w][in / groups][out]`; `groups == in == out` is depthwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv {
    /// Output channels.
    pub out: usize,
    /// Window, height and width.
    pub kernel: (usize, usize),
    /// Step of the window, down and across.
    pub stride: (usize, usize),
    /// Zeros around the input.
    pub border: Border,
    /// Channels are split into this many separate groups.
    pub groups: usize,
    /// Whether a bias is added.
    pub bias: bool,
    /// How the weights are initialised.
    pub init: Init,
}

/// A transposed convolution. Weights are `[kernel_h][kernel_w][out][in]` (Keras's order): the weights of the
/// convolution that leads from its output back to its input. Output side = (side - 1) * stride + kernel - 2 * crop + output_padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvTranspose {
    /// Output channels.
    pub out: usize,
    /// Window, height and width.
    pub kernel: (usize, usize),
    /// Step between inputs in the output.
    pub stride: (usize, usize),
    /// Rows and columns removed at the top and left, and again at the bottom and right (PyTorch's `padding`).
    pub crop: usize,
    /// Rows and columns added at the bottom and right (PyTorch's `output_padding`).
    pub output_padding: usize,
    /// Whether a bias is added.
    pub bias: bool,
    /// How the weights are initialised.
    pub init: Init,
}

/// A fully connected layer on a 1x1 map. Weights are `[in][out]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dense {
    /// Output values.
    pub out: usize,
    /// Whether a bias is added.
    pub bias: bool,
    /// How the weights are initialised.
    pub init: Init,
}

impl Dense {
    /// Keras's default: with a bias, Glorot weights.
    pub const fn to(out: usize) -> Self {
        Self { out, bias: true, init: Init::Glorot }
    }
}

/// Which variance enters the running statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunningVariance {
    /// Divided by n: Keras.
    Biased,
    /// Divided by n - 1: PyTorch.
    Unbiased,
}

/// Batch normalisation over samples and positions, per channel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm {
    /// Whether a trained scale (gamma) is applied.
    pub scale: bool,
    /// Whether a trained shift (beta) is applied.
    pub shift: bool,
    /// Added to the variance.
    pub epsilon: f32,
    /// Fraction of the old value that the running statistics keep at each step (as in Keras).
    pub momentum: f64,
    /// Which variance enters the running statistics.
    pub running: RunningVariance,
}

impl BatchNorm {
    /// Keras's defaults.
    pub const KERAS: Self =
        Self { scale: true, shift: true, epsilon: 1e-3, momentum: 0.99, running: RunningVariance::Biased };

    /// PyTorch's defaults; its momentum of 0.1 is the fraction of the new value.
    pub const TORCH: Self =
        Self { scale: true, shift: true, epsilon: 1e-5, momentum: 0.9, running: RunningVariance::Unbiased };
}

/// A pooling window. Border positions never win a maximum and never count in an average.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Window, height and width.
    pub kernel: (usize, usize),
    /// Step of the window, down and across.
    pub stride: (usize, usize),
    /// Positions around the input that the window may cover.
    pub border: Border,
}

/// What a layer computes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// The images.
    Input,
    /// Convolution.
    Conv(Conv),
    /// Transposed convolution.
    ConvTranspose(ConvTranspose),
    /// Fully connected.
    Dense(Dense),
    /// Batch normalisation.
    BatchNorm(BatchNorm),
    /// max(x, 0).
    Relu,
    /// min(max(x, 0), 6).
    Relu6,
    /// Maximum over a window.
    MaxPool(Pool),
    /// Mean over a window, without the border.
    AvgPool(Pool),
    /// Mean over the whole map.
    GlobalAvgPool,
    /// Sum of two maps.
    Add,
    /// Channels of all inputs, one after the other.
    Concat,
    /// In training, zeroes each value with probability `rate` and scales the rest by 1 / (1 - rate).
    Dropout {
        /// Probability of a zero.
        rate: f32,
    },
    /// A map as a vector, in the order height, width, channel, whatever the layout.
    Flatten,
    /// Zeros around a map, for windows that must see them (a maximum over zeros).
    Pad(Border),
    /// Mean over the batch of the cross-entropy of softmax(x) against the labels. Last node of a classifier.
    SoftmaxCrossEntropy,
    /// Mean over all values of the squared difference to the second input. Last node of an autoencoder.
    MeanSquaredError,
}

/// One layer: a name, what it computes, from what, and the shape that results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Unique in the graph; Keras's or timm's name where there is one.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// What it reads, in order.
    pub inputs: Vec<NodeId>,
    /// Shape of one sample of its output. A loss is 1x1x1.
    pub shape: Shape,
    /// Its parameters, in the order kernel, bias | gamma, beta, moving mean, moving variance.
    pub params: Vec<ParamId>,
}

/// What a parameter tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ParamKind {
    /// Weights of a convolution or a dense layer.
    Kernel,
    /// A convolution's or dense layer's bias.
    Bias,
    /// Batch norm's scale.
    Gamma,
    /// Batch norm's shift.
    Beta,
    /// Batch norm's running mean: not trained.
    MovingMean,
    /// Batch norm's running variance: not trained.
    MovingVariance,
}

impl ParamKind {
    /// Whether a gradient is computed for it.
    pub const fn trainable(self) -> bool {
        !matches!(self, Self::MovingMean | Self::MovingVariance)
    }

    /// The kind as Keras spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Bias => "bias",
            Self::Gamma => "gamma",
            Self::Beta => "beta",
            Self::MovingMean => "moving_mean",
            Self::MovingVariance => "moving_variance",
        }
    }
}

/// One parameter tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParamInfo {
    /// `<layer>/<kind>`, kind as Keras spells it: kernel, bias, gamma, beta, moving_mean, moving_variance.
    pub name: String,
    /// What it is.
    pub kind: ParamKind,
    /// The node that uses it.
    pub node: NodeId,
    /// Dimensions, outermost first, in the canonical order that [`Conv`], [`ConvTranspose`] and [`Dense`] give.
    pub dims: Vec<usize>,
    /// Values that enter one output value (kernels; 0 elsewhere).
    pub fan_in: usize,
    /// Output values that one input value enters (kernels; 0 elsewhere).
    pub fan_out: usize,
    /// How it is initialised (kernels; others start at 0, or 1 for gamma and the moving variance).
    pub init: Option<Init>,
}

impl ParamInfo {
    /// Values in the tensor.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A network: nodes in forward order, the last one the loss, and their parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// The network's name.
    pub name: String,
    /// Classes of the head; for an autoencoder, what the data has (unused by the loss).
    pub classes: usize,
    /// The layers.
    pub nodes: Vec<Node>,
    /// The parameter tensors in the order of creation.
    pub params: Vec<ParamInfo>,
}

impl Graph {
    /// The layer with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// The parameter with this id.
    pub fn param(&self, id: ParamId) -> &ParamInfo {
        &self.params[id.0]
    }

    /// Whether its loss compares with labels; that of an autoencoder compares with the image itself.
    pub fn judges_labels(&self) -> bool {
        self.nodes.iter().any(|node| node.op == Op::SoftmaxCrossEntropy)
    }

    /// Makes every batch norm keep this fraction of its old running statistics at each step.
    pub fn set_norm_momentum(&mut self, momentum: f32) {
        for node in &mut self.nodes {
            if let Op::BatchNorm(norm) = &mut node.op {
                norm.momentum = f64::from(momentum);
            }
        }
    }

    /// Shape of one input image.
    pub fn input(&self) -> Shape {
        self.nodes[0].shape
    }

    /// The input of the loss: logits of a classifier, the image of an autoencoder.
    pub fn output(&self) -> NodeId {
        self.nodes.last().expect("invariant: a graph has a loss").inputs[0]
    }
}
