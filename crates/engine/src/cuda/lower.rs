//! From the layer graph to instructions for the device: fusion, buffers with lifetimes, weights in the libraries' order.

use std::ops::Range;

use paceline_model::{
    BatchNorm, Border, Graph, LayerCost, Node, NodeId, Op, ParamId, ParamKind, Pool as PoolSpec, RunningVariance,
    Shape as Map, layer_costs,
};

use super::action::{Action, Arg, Buffer, Step, Track, Window};
use super::backward;
use super::driver::Shape;
use super::product::{Direction, Product};
use crate::cpu::mix;
use crate::plan::{self, Lifetime};
use crate::{Layout, MemoryPlan, Precision, Slot, Spec};

/// Trained tensors start on a cache line.
const GRAIN: usize = 16;

/// The range that an activation keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds(pub f32, pub f32);

impl Bounds {
    pub const NONE: Self = Self(f32::NEG_INFINITY, f32::INFINITY);

    fn of(op: Op) -> Self {
        match op {
            Op::Relu => Self(0.0, f32::INFINITY),
            Op::Relu6 => Self(0.0, 6.0),
            _ => Self::NONE,
        }
    }

    pub fn args(self) -> [Arg; 2] {
        [Arg::Float(self.0), Arg::Float(self.1)]
    }
}

/// Layers that run as one.
pub(super) struct Unit {
    pub name: String,
    pub kind: Kind,
    /// Slots whose gradients are complete when this unit's backward is.
    pub slots: Range<usize>,
    pub forward_flops: u64,
    pub backward_flops: u64,
}

/// A batch norm with its neighbours.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    pub gamma: Option<ParamId>,
    pub beta: Option<ParamId>,
    pub bounds: Bounds,
    pub kept: Buffer,
}

/// An input with its border around it, for a product whose border differs from side to side.
#[derive(Clone, Copy)]
pub(super) struct Padded {
    pub buffer: Buffer,
    pub border: Border,
    pub inner: Map,
    pub outer: Map,
}

/// What backward must know of a unit; values are named by their nodes.
pub(super) enum Kind {
    Product { x: NodeId, y: NodeId, product: usize, transposed: bool, padded: Option<Padded> },
    /// A bias and a bound, in place.
    Bias { x: NodeId, y: NodeId, bias: Option<ParamId>, bounds: Bounds },
    Depthwise { x: NodeId, y: NodeId, window: Window },
    Norm { x: NodeId, y: NodeId, residual: Option<NodeId>, norm: Norm },
    Bound { x: NodeId, y: NodeId, bounds: Bounds },
    Pool { x: NodeId, y: NodeId, window: Window, winners: Option<Buffer> },
    GlobalPool { x: NodeId, y: NodeId },
    Add { y: NodeId, inputs: Vec<NodeId> },
    Concat { y: NodeId, inputs: Vec<NodeId> },
    Dropout { x: NodeId, y: NodeId, rate: f32, seed: u64 },
    Flatten { x: NodeId, y: NodeId },
    Pad { x: NodeId, y: NodeId, border: Border },
    Loss { x: NodeId, grad: Buffer },
}

/// A kernel tensor as the kernels that pack it know it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor {
    pub canonical: i64,
    pub packed: i64,
    /// Packed values of one output.
    pub each: i64,
    pub taps: i32,
    pub inputs: i32,
    pub wide: i32,
    pub outputs: i32,
    pub first_tile: i32,
    pub tiles_across: i32,
    pub folded: i32,
    /// Taps across.
    pub across: i32,
    pub top: i32,
    pub left: i32,
}

/// The picture as the engine keeps it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Picture {
    pub map: Map,
    /// Whether a pixel holds a square of 2 x 2 of the picture's: rows and columns before the picture's first.
    pub fold: Option<(usize, usize)>,
}

/// The packed copies of all kernel tensors.
#[derive(Default)]
pub(super) struct Packing {
    pub tensors: Vec<Tensor>,
    pub tiles: usize,
    /// Values in all.
    pub len: usize,
    /// Where each parameter's copy starts.
    pub starts: Vec<Option<usize>>,
}

/// A program before it has memory.
pub(super) struct Lowered {
    pub forward: Vec<Step>,
    pub judging: Vec<Step>,
    pub backward: Vec<Step>,
    pub units: Vec<Unit>,
    pub products: Vec<Product>,
    /// Byte offset of each buffer in the arena.
    pub offsets: Vec<usize>,
    pub arena: usize,
    pub input: Buffer,
    pub picture: Picture,
    pub output: Buffer,
    pub counters: usize,
    pub slots: Vec<Slot>,
    pub trained: usize,
    pub moving: Vec<Option<Range<usize>>>,
    pub moving_len: usize,
    pub packing: Packing,
    /// Bytes of each track's workspace.
    pub workspace: usize,
    pub plan: MemoryPlan,
}

/// The state of lowering a graph.
pub(super) struct Lowering<'a> {
    pub graph: &'a Graph,
    pub spec: &'a Spec,
    pub steps: Vec<Step>,
    /// Forward as it runs in evaluation.
    pub judging: Vec<Step>,
    pub units: Vec<Unit>,
    pub products: Vec<Product>,
    pub data: Vec<Option<Buffer>>,
    /// Lifetimes, in units of four bytes.
    pub buffers: Vec<Lifetime>,
    pub now: usize,
    pub counters: usize,
    picture: Picture,
    consumers: Vec<Vec<NodeId>>,
    costs: Vec<LayerCost>,
    absorbed: Vec<bool>,
}

/// Which of the two forwards an instruction belongs to.
#[derive(Clone, Copy, PartialEq)]
enum When {
    Always,
    Training,
    Judging,
}

/// Bytes of a value of an activation.
pub(super) fn value_bytes(precision: Precision) -> usize {
    if precision == Precision::Bf16 { 2 } else { 4 }
}

/// Lowers a graph.
pub(super) fn lower(graph: &Graph, spec: &Spec) -> Lowered {
    let mut consumers = vec![Vec::new(); graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for input in &node.inputs {
            consumers[input.0].push(NodeId(index));
        }
    }
    let picture = keep_picture(graph, spec, &consumers[0]);
    let mut lowering = Lowering {
        graph,
        spec,
        steps: Vec::new(),
        judging: Vec::new(),
        units: Vec::new(),
        products: Vec::new(),
        data: vec![None; graph.nodes.len()],
        buffers: Vec::new(),
        now: 0,
        counters: 0,
        picture,
        consumers,
        costs: layer_costs(graph),
        absorbed: vec![false; graph.nodes.len()],
    };
    for index in 0..graph.nodes.len() {
        if !lowering.absorbed[index] {
            lowering.lower(NodeId(index));
        }
    }
    let (slots, trained) = lowering.lay_out_slots();
    let packing = lowering.pack(&slots);
    let forward = std::mem::take(&mut lowering.steps);
    let backward = backward::lower(&mut lowering);
    let end = lowering.now + super::action::LAG + 1;
    let input = lowering.data[0].expect("invariant: the input has a buffer");
    let output = lowering.data[graph.output().0].expect("invariant: the output has a buffer");
    for buffer in [input, output] {
        lowering.buffers[buffer.0].first = 0;
        lowering.buffers[buffer.0].last = end;
    }
    let (offsets, arena) = plan::place(&lowering.buffers);
    let mut moving = vec![None; graph.params.len()];
    let mut moving_len = 0;
    for (index, param) in graph.params.iter().enumerate() {
        if !param.kind.trainable() {
            moving[index] = Some(moving_len..moving_len + param.len());
            moving_len += param.len().next_multiple_of(GRAIN);
        }
    }
    let value = value_bytes(spec.precision);
    let largest = lowering.buffers.iter().map(|buffer| 4 * buffer.len).max().unwrap_or(0);
    let workspace = largest.clamp(32 << 20, 256 << 20);
    let staging = 4 * spec.batch * (graph.input().len() + 1);
    let bytes = |values: usize| 4 * values as u64;
    let around = (2 * workspace + staging + 2 * packing.len * value) as u64;
    let plan = MemoryPlan {
        parameters: bytes(trained + moving_len * spec.shares),
        gradients: bytes(trained * spec.shares),
        optimizer: bytes(trained * spec.optimizer.state_per_value()),
        arena: bytes(arena) + around,
        arena_unshared: bytes(lowering.buffers.iter().map(|buffer| buffer.len).sum()) + around,
    };
    Lowered {
        forward,
        judging: lowering.judging,
        backward,
        units: lowering.units,
        products: lowering.products,
        offsets: offsets.into_iter().map(|offset| 4 * offset).collect(),
        arena: 4 * arena,
        input,
        picture,
        output,
        counters: lowering.counters,
        slots,
        trained,
        moving,
        moving_len,
        packing,
        workspace,
        plan,
    }
}

/// Tensor cores want whole vectors of channels, and a picture has three: where only convolutions read it, zeros fill it up.
/// Before a single one with stride 2, a square of 2 x 2 pixels becomes one of four times the channels.
fn keep_picture(graph: &Graph, spec: &Spec, readers: &[NodeId]) -> Picture {
    let map = graph.input();
    let vector = 16 / value_bytes(spec.precision);
    let convolution = |id: &NodeId| match graph.node(*id).op {
        Op::Conv(conv) if conv.groups == 1 => Some(conv),
        _ => None,
    };
    if spec.layout == Layout::Nchw || !readers.iter().all(|id| convolution(id).is_some()) {
        return Picture { map, fold: None };
    }
    if let [only] = readers
        && let Some(conv) = convolution(only)
        && conv.stride == (2, 2)
        && conv.kernel > (1, 1)
    {
        let output = graph.node(*only).shape;
        let (border, (h, w)) = (conv.border, conv.kernel);
        // Rows and columns in front: the border, and one more where a square would begin before it.
        let (top, left) = (border.top.next_multiple_of(2), border.left.next_multiple_of(2));
        let blocks = |side: usize, border: usize| (side + border % 2).div_ceil(2);
        let map = Map::new(
            output.h + blocks(h, border.top) - 1,
            output.w + blocks(w, border.left) - 1,
            (4 * map.c).next_multiple_of(vector),
        );
        return Picture { map, fold: Some((top, left)) };
    }
    Picture { map: Map::new(map.h, map.w, map.c.next_multiple_of(vector)), fold: None }
}

impl Lowering<'_> {
    pub fn map(&self, id: NodeId) -> Map {
        self.graph.node(id).shape
    }

    pub fn nchw(&self) -> bool {
        self.spec.layout == Layout::Nchw
    }

    /// Values that a thread moves at once along so many.
    pub fn vector(&self, along: usize) -> usize {
        let most = 16 / value_bytes(self.spec.precision);
        if along.is_multiple_of(most) { most } else { 1 }
    }

    /// A new buffer of so many bytes, alive now.
    pub fn bytes(&mut self, bytes: usize) -> Buffer {
        self.buffers.push(Lifetime { len: bytes.div_ceil(4), first: self.now, last: self.now });
        Buffer(self.buffers.len() - 1)
    }

    /// A new buffer like the value of a node.
    pub fn like(&mut self, id: NodeId) -> Buffer {
        let values = self.spec.batch * self.map(id).len();
        self.bytes(values * value_bytes(self.spec.precision))
    }

    /// Marks a buffer as used until so many units from now.
    pub fn touch(&mut self, buffer: Buffer, later: usize) -> Buffer {
        let lifetime = &mut self.buffers[buffer.0];
        lifetime.last = lifetime.last.max(self.now + later);
        buffer
    }

    /// The value of a node, used now.
    pub fn value(&mut self, id: NodeId) -> Buffer {
        let buffer = self.data[id.0].expect("invariant: inputs precede their users");
        self.touch(buffer, 0)
    }

    fn output(&mut self, id: NodeId) -> Buffer {
        let buffer = self.like(id);
        self.data[id.0] = Some(buffer);
        buffer
    }

    pub fn counters(&mut self, count: usize) -> Arg {
        self.counters += count;
        Arg::Counters(self.counters - count)
    }

    fn put(&mut self, when: When, action: Action) {
        let step = |action| Step { unit: self.units.len(), time: self.now, track: Track::Main, action };
        match (when, action) {
            (When::Training, action) => self.steps.push(step(action)),
            (When::Judging, action) => self.judging.push(step(action)),
            (When::Always, Action::Kernel { name, shape, args }) => {
                let again = Action::Kernel { name: name.clone(), shape, args: args.clone() };
                let (one, other) = (step(Action::Kernel { name, shape, args }), step(again));
                self.steps.push(one);
                self.judging.push(other);
            }
            (When::Always, Action::Product { product, direction, x, kernel, y }) => {
                let (one, other) = (
                    step(Action::Product { product, direction, x, kernel, y }),
                    step(Action::Product { product, direction, x, kernel, y }),
                );
                self.steps.push(one);
                self.judging.push(other);
            }
        }
    }

    fn sole_consumer(&self, id: NodeId) -> Option<NodeId> {
        match self.consumers[id.0][..] {
            [consumer] => Some(consumer),
            _ => None,
        }
    }

    pub fn param(&self, node: &Node, kind: ParamKind) -> Option<ParamId> {
        node.params.iter().copied().find(|&id| self.graph.param(id).kind == kind)
    }

    pub fn kernel(&self, id: NodeId) -> ParamId {
        self.param(self.graph.node(id), ParamKind::Kernel).expect("invariant: the layer has a kernel")
    }

    fn finish(&mut self, nodes: &[NodeId], kind: Kind) {
        let costs = &self.costs;
        let batch = self.spec.batch as u64;
        let names: Vec<&str> = nodes.iter().map(|&id| self.graph.node(id).name.as_str()).collect();
        self.units.push(Unit {
            name: names.join(" + "),
            kind,
            slots: 0..0,
            forward_flops: batch * nodes.iter().map(|id| costs[id.0].flops_forward).sum::<u64>(),
            backward_flops: batch * nodes.iter().map(|id| costs[id.0].flops_backward).sum::<u64>(),
        });
        self.now += 1;
    }

    fn lower(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let batch = self.spec.batch;
        match node.op {
            Op::Input => {
                let values = batch * self.picture.map.len();
                let buffer = self.bytes(values * value_bytes(self.spec.precision));
                self.data[id.0] = Some(buffer);
            }
            Op::Conv(spec) => {
                let x = node.inputs[0];
                let input = self.map(x);
                if spec.groups > 1 && spec.groups == input.c && spec.groups == spec.out {
                    let window = self.window((spec.kernel, spec.stride, spec.border), input, node.shape);
                    let (source, dest) = (self.value(x), self.output(id));
                    let args = vec![Arg::Window(window), source.into(), Arg::Param(self.kernel(id)), dest.into()];
                    let action = self.slide("depthwise", window, args, Turn::No);
                    self.put(When::Always, action);
                    self.finish(&[id], Kind::Depthwise { x, y: id, window });
                } else {
                    let mut product = Product {
                        batch,
                        input: if x == NodeId(0) { self.picture.map } else { input },
                        output: node.shape,
                        kernel: spec.kernel,
                        stride: spec.stride,
                        border: spec.border,
                        groups: spec.groups,
                        layout: self.spec.layout,
                        precision: self.spec.precision,
                    };
                    if x == NodeId(0) && self.picture.fold.is_some() {
                        let blocks = |side: usize, border: usize| (side + border % 2).div_ceil(2);
                        let (h, w) = spec.kernel;
                        product.kernel = (blocks(h, spec.border.top), blocks(w, spec.border.left));
                        (product.stride, product.border) = ((1, 1), Border::default());
                    }
                    self.lower_product(id, product, false);
                }
                self.lower_bias(id);
            }
            Op::ConvTranspose(spec) => {
                let product = Product {
                    batch,
                    input: node.shape,
                    output: self.map(node.inputs[0]),
                    kernel: spec.kernel,
                    stride: spec.stride,
                    border: Border::even(spec.crop),
                    groups: 1,
                    layout: self.spec.layout,
                    precision: self.spec.precision,
                };
                self.lower_product(id, product, true);
                self.lower_bias(id);
            }
            Op::Dense(_) => {
                let product = Product {
                    batch,
                    input: self.map(node.inputs[0]),
                    output: node.shape,
                    kernel: (1, 1),
                    stride: (1, 1),
                    border: Border::default(),
                    groups: 1,
                    layout: self.spec.layout,
                    precision: self.spec.precision,
                };
                self.lower_product(id, product, false);
                self.lower_bias(id);
            }
            Op::BatchNorm(spec) => self.lower_norm(id, &spec),
            Op::Relu | Op::Relu6 => {
                let (x, bounds) = (node.inputs[0], Bounds::of(node.op));
                let (a, out) = (self.value(x), self.output(id));
                let action = self.sweep(2, [a, a, out], batch * node.shape.len(), bounds);
                self.put(When::Always, action);
                self.finish(&[id], Kind::Bound { x, y: id, bounds });
            }
            Op::MaxPool(spec) => {
                let (x, window) = self.pool_window(id, &spec);
                let (source, dest) = (self.value(x), self.output(id));
                let winners = self.bytes(batch * node.shape.len());
                let args = vec![Arg::Window(window), source.into(), dest.into(), winners.into()];
                let action = self.spread("max_pool", batch * node.shape.len(), node.shape.c, args);
                self.put(When::Always, action);
                self.finish(&[id], Kind::Pool { x, y: id, window, winners: Some(winners) });
            }
            Op::AvgPool(spec) => {
                let (x, window) = self.pool_window(id, &spec);
                let (source, dest) = (self.value(x), self.output(id));
                let args = vec![Arg::Window(window), source.into(), dest.into()];
                let action = self.spread("avg_pool", batch * node.shape.len(), node.shape.c, args);
                self.put(When::Always, action);
                self.finish(&[id], Kind::Pool { x, y: id, window, winners: None });
            }
            Op::GlobalAvgPool => {
                let x = node.inputs[0];
                let (source, dest) = (self.value(x), self.output(id));
                let mut args = vec![source.into(), dest.into()];
                args.extend(self.map_args(self.map(x)));
                let action = self.spread("mean_pool", batch * node.shape.len(), node.shape.c, args);
                self.put(When::Always, action);
                self.finish(&[id], Kind::GlobalPool { x, y: id });
            }
            Op::Add => {
                let inputs = node.inputs.clone();
                let (a, b) = (self.value(inputs[0]), self.value(inputs[1]));
                let out = self.output(id);
                let action = self.sweep(1, [a, b, out], batch * node.shape.len(), Bounds::NONE);
                self.put(When::Always, action);
                self.finish(&[id], Kind::Add { y: id, inputs });
            }
            Op::Concat => {
                let inputs = node.inputs.clone();
                let to = self.output(id);
                let mut channel = 0;
                for &x in &inputs {
                    let from = self.value(x);
                    let action = self.stretch(from, to, self.map(x), (node.shape, channel), false);
                    self.put(When::Always, action);
                    channel += self.map(x).c;
                }
                self.finish(&[id], Kind::Concat { y: id, inputs });
            }
            Op::Dropout { rate } => {
                let x = node.inputs[0];
                let seed = mix(self.spec.seed ^ mix(id.0 as u64));
                let (from, to) = (self.value(x), self.output(id));
                let count = batch * node.shape.len();
                let action = self.dropout(from, to, count, rate, seed);
                self.put(When::Training, action);
                let action = self.sweep(0, [from, from, to], count, Bounds::NONE);
                self.put(When::Judging, action);
                self.finish(&[id], Kind::Dropout { x, y: id, rate, seed });
            }
            Op::Flatten => {
                let x = node.inputs[0];
                let map = self.value(x);
                if !self.nchw() || self.map(x).pixels() == 1 {
                    self.data[id.0] = Some(map);
                } else {
                    let vector = self.output(id);
                    let action = self.turn(map, vector, self.map(x), false);
                    self.put(When::Always, action);
                }
                self.finish(&[id], Kind::Flatten { x, y: id });
            }
            Op::Pad(border) => {
                let x = node.inputs[0];
                // What a ReLU lets through never loses to a zero of the padding, nor is it moved by one.
                if let Some(next) = self.sole_consumer(id)
                    && let Op::MaxPool(pool) = self.graph.node(next).op
                    && pool.border == Border::default()
                    && matches!(self.graph.node(x).op, Op::Relu | Op::Relu6)
                {
                    return;
                }
                let (from, to) = (self.value(x), self.output(id));
                let action = self.pad(from, to, (self.map(x), node.shape, border), false);
                self.put(When::Always, action);
                self.finish(&[id], Kind::Pad { x, y: id, border });
            }
            Op::SoftmaxCrossEntropy => {
                let x = node.inputs[0];
                let (logits, grad) = (self.value(x), self.like(x));
                let losses = self.bytes(8 * batch);
                for (when, grad, smoothing, judged) in [
                    (When::Training, grad.into(), self.spec.label_smoothing, 0),
                    (When::Judging, Arg::Null, 0.0, 1),
                ] {
                    let args = vec![
                        logits.into(),
                        Arg::Labels,
                        grad,
                        Arg::Int(batch as i32),
                        Arg::Int(self.map(x).len() as i32),
                        Arg::Float(smoothing),
                        Arg::Int(judged),
                        Arg::Control,
                        losses.into(),
                        self.counters(1),
                        Arg::Judgement,
                    ];
                    let shape = Shape { grid: (batch as u32, 1, 1), block: (256, 1), shared: 0, cluster: 1 };
                    self.put(when, Action::Kernel { name: "cross_entropy".into(), shape, args });
                }
                self.finish(&[id], Kind::Loss { x, grad });
            }
            Op::MeanSquaredError => {
                let x = node.inputs[0];
                let (output, target) = (self.value(x), self.value(node.inputs[1]));
                let grad = self.like(x);
                let each = self.map(x).len();
                let blocks = (batch * each).div_ceil(2048).clamp(1, 1024);
                let parts = self.bytes(4 * blocks);
                for (when, grad, judged) in [(When::Training, grad.into(), 0), (When::Judging, Arg::Null, 1)] {
                    let args = vec![
                        output.into(),
                        target.into(),
                        grad,
                        Arg::Int(batch as i32),
                        Arg::Long(each as i64),
                        Arg::Int(judged),
                        Arg::Control,
                        parts.into(),
                        self.counters(1),
                        Arg::Judgement,
                    ];
                    let shape = Shape { grid: (blocks as u32, 1, 1), block: (256, 1), shared: 0, cluster: 1 };
                    self.put(when, Action::Kernel { name: "squared_error".into(), shape, args });
                }
                self.finish(&[id], Kind::Loss { x, grad });
            }
        }
    }

    fn lower_product(&mut self, id: NodeId, mut product: Product, transposed: bool) {
        let x = self.graph.node(id).inputs[0];
        let kernel = self.kernel(id);
        let mut source = self.value(x);
        let padded = self.pad_unevenly(&mut product, &mut source);
        let number = self.products.iter().position(|known| *known == product).unwrap_or_else(|| {
            self.products.push(product);
            self.products.len() - 1
        });
        let dest = self.output(id);
        let (direction, x_side, y_side) =
            if transposed { (Direction::Data, dest, source) } else { (Direction::Forward, source, dest) };
        let action = Action::Product { product: number, direction, x: x_side, kernel, y: y_side };
        self.put(When::Always, action);
        self.finish(&[id], Kind::Product { x, y: id, product: number, transposed, padded });
    }

    /// cuDNN's engines are not all right where a border differs from side to side: such a border is written out.
    fn pad_unevenly(&mut self, product: &mut Product, source: &mut Buffer) -> Option<Padded> {
        let border = product.border;
        if border.top == border.bottom && border.left == border.right {
            return None;
        }
        let inner = product.input;
        let outer =
            Map::new(inner.h + border.top + border.bottom, inner.w + border.left + border.right, inner.c);
        let buffer = self.bytes(self.spec.batch * outer.len() * value_bytes(self.spec.precision));
        let action = self.pad(*source, buffer, (inner, outer, border), false);
        self.put(When::Always, action);
        (product.input, product.border, *source) = (outer, Border::default(), buffer);
        Some(Padded { buffer, border, inner, outer })
    }

    /// A bias and the bound behind it, in place. A bias in front of a batch norm is that layer's to take into account.
    fn lower_bias(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let bias = self.param(node, ParamKind::Bias);
        let next = self.sole_consumer(id);
        if next.is_some_and(|next| matches!(self.graph.node(next).op, Op::BatchNorm(_))) {
            return;
        }
        let bounds = next.map_or(Bounds::NONE, |next| Bounds::of(self.graph.node(next).op));
        if bias.is_none() && bounds == Bounds::NONE {
            return;
        }
        let value = self.value(id);
        let (shape, block) = self.rows(node.shape, Passes::Many);
        let mut args = vec![value.into(), bias.map_or(Arg::Null, Arg::Param)];
        args.extend(self.row_args(node.shape));
        args.extend(bounds.args());
        self.put(When::Always, Action::Kernel { name: format!("bias_apply_{block}"), shape, args });
        let mut nodes = vec![id];
        if bounds != Bounds::NONE {
            let next = next.expect("invariant: a bound follows");
            self.absorbed[next.0] = true;
            self.data[next.0] = Some(value);
            nodes.push(next);
        }
        let last = *nodes.last().expect("invariant: there is one");
        self.finish(&nodes[1..], Kind::Bias { x: id, y: last, bias, bounds });
        let unit = self.units.last_mut().expect("invariant: just finished");
        unit.name = format!("{} bias", self.graph.node(id).name);
    }

    /// Batch norm, with the residual sum and the bound that follow it where nobody else reads what lies between.
    fn lower_norm(&mut self, id: NodeId, spec: &BatchNorm) {
        let node = self.graph.node(id);
        let mut nodes = vec![id];
        let mut residual = None;
        let mut bounds = Bounds::NONE;
        let mut last = id;
        if let Some(next) = self.sole_consumer(id)
            && self.graph.node(next).op == Op::Add
        {
            let inputs = &self.graph.node(next).inputs;
            let other = if inputs[0] == id { inputs[1] } else { inputs[0] };
            if other < id {
                residual = Some(other);
                nodes.push(next);
                last = next;
            }
        }
        if let Some(next) = self.sole_consumer(last) {
            bounds = Bounds::of(self.graph.node(next).op);
            if bounds != Bounds::NONE {
                nodes.push(next);
                last = next;
            }
        }
        for node in &nodes {
            self.absorbed[node.0] = true;
        }
        let x = node.inputs[0];
        let before = self.graph.node(x);
        let bias = self.param(before, ParamKind::Bias).filter(|_| self.sole_consumer(x) == Some(id));
        let map = node.shape;
        let count = self.spec.batch * map.pixels();
        let correction = match spec.running {
            RunningVariance::Biased => 1.0,
            RunningVariance::Unbiased => count as f32 / (count - 1).max(1) as f32,
        };
        let moving = |kind| self.param(node, kind).expect("invariant: batch norm has running statistics");
        let (mean, variance) = (moving(ParamKind::MovingMean), moving(ParamKind::MovingVariance));
        let (gamma, beta) = (self.param(node, ParamKind::Gamma), self.param(node, ParamKind::Beta));
        let optional = |param: Option<ParamId>| param.map_or(Arg::Null, Arg::Param);
        let kept = self.bytes(16 * map.c);
        let input = self.value(x);
        let residual_buffer = residual.map_or(Arg::Null, |other| self.value(other).into());
        let output = self.output(last);
        let mut apply = vec![input.into(), residual_buffer, output.into(), kept.into()];
        apply.extend(self.row_args(map));
        apply.extend(bounds.args());
        let mut measure =
            vec![optional(gamma), optional(beta), optional(bias), Arg::Moving(mean), Arg::Moving(variance)];
        measure.extend([Arg::Float(spec.epsilon), Arg::Float(correction), Arg::Double(spec.momentum)]);
        let once = self.once(map);
        let action = match once {
            Some((shape, suffix)) => {
                let args = apply.iter().chain(&measure).copied().collect();
                Action::Kernel { name: format!("norm_once_{suffix}"), shape, args }
            }
            None => {
                let (shape, suffix) = self.rows(map, Passes::One);
                let mut args = vec![input.into(), kept.into()];
                args.extend(self.row_args(map));
                args.extend(measure);
                args.push(self.bytes(8 * map.c * shape.grid.1 as usize).into());
                args.push(self.counters(shape.grid.0 as usize));
                Action::Kernel { name: format!("norm_measure_{suffix}"), shape, args }
            }
        };
        self.put(When::Training, action);
        let args = vec![
            kept.into(),
            Arg::Int(map.c as i32),
            optional(gamma),
            optional(beta),
            optional(bias),
            Arg::Moving(mean),
            Arg::Moving(variance),
            Arg::Float(spec.epsilon),
        ];
        let few = Shape { grid: (map.c.div_ceil(128) as u32, 1, 1), block: (128, 1), shared: 0, cluster: 1 };
        self.put(When::Judging, Action::Kernel { name: "norm_recall".into(), shape: few, args });
        let (shape, suffix) = self.rows(map, Passes::Many);
        let when = if once.is_some() { When::Judging } else { When::Always };
        self.put(when, Action::Kernel { name: format!("norm_apply_{suffix}"), shape, args: apply });
        let norm = Norm { gamma, beta, bounds, kept };
        self.finish(&nodes, Kind::Norm { x, y: last, residual, norm });
    }

    fn pool_window(&self, id: NodeId, spec: &PoolSpec) -> (NodeId, Window) {
        let node = self.graph.node(id);
        let (mut x, mut border) = (node.inputs[0], spec.border);
        // A padding that was left to its pool.
        if self.data[x.0].is_none()
            && let Op::Pad(padding) = self.graph.node(x).op
        {
            (x, border) = (self.graph.node(x).inputs[0], padding);
        }
        (x, self.window((spec.kernel, spec.stride, border), self.map(x), node.shape))
    }

    fn window(&self, (kernel, stride, border): ((usize, usize), (usize, usize), Border), x: Map, y: Map) -> Window {
        let pair = |(a, b): (usize, usize)| [a as i32, b as i32];
        Window {
            batch: self.spec.batch as i32,
            channels: x.c as i32,
            nchw: i32::from(self.nchw()),
            input: pair((x.h, x.w)),
            output: pair((y.h, y.w)),
            kernel: pair(kernel),
            stride: pair(stride),
            top: border.top as i32,
            left: border.left as i32,
        }
    }

    /// Places the trained tensors in the order in which backward finishes them.
    fn lay_out_slots(&mut self) -> (Vec<Slot>, usize) {
        let mut slots = Vec::new();
        let mut offset = 0;
        let graph = self.graph;
        for unit in self.units.iter_mut().rev() {
            let params = match &unit.kind {
                Kind::Product { y, .. } | Kind::Depthwise { y, .. } => graph.node(*y).params.clone(),
                Kind::Norm { norm, .. } => norm.gamma.into_iter().chain(norm.beta).collect(),
                _ => Vec::new(),
            };
            let first = slots.len();
            for param in params {
                let len = graph.param(param).len();
                slots.push(Slot { param, range: offset..offset + len });
                offset += len.next_multiple_of(GRAIN);
            }
            unit.slots = first..slots.len();
        }
        (slots, offset)
    }

    /// Lays out the packed copies of the kernel tensors that products use.
    fn pack(&self, slots: &[Slot]) -> Packing {
        let mut packing = Packing { starts: vec![None; self.graph.params.len()], ..Packing::default() };
        for unit in &self.units {
            let Kind::Product { y, product, .. } = unit.kind else { continue };
            let product = &self.products[product];
            let kernel = self.kernel(y);
            let slot = slots.iter().find(|slot| slot.param == kernel).expect("invariant: kernels are trained");
            let dims = &self.graph.param(kernel).dims;
            let single = matches!(self.graph.node(y).op, Op::Dense(_));
            let (taps, across) = if single { (1, 1) } else { (dims[0] * dims[1], dims[1]) };
            let (wide, outputs) = (product.input.c / product.groups, product.output.c);
            let inputs = slot.range.len() / taps / outputs;
            let (tiles_across, down) = (outputs.div_ceil(32), (taps * inputs).div_ceil(32));
            let each = product.kernel.0 * product.kernel.1 * wide;
            let fold = match self.graph.node(y).op {
                Op::Conv(conv) if self.graph.node(y).inputs[0] == NodeId(0) => {
                    self.picture.fold.map(|_| (conv.border.top % 2, conv.border.left % 2))
                }
                _ => None,
            };
            let (top, left) = fold.unwrap_or_default();
            packing.tensors.push(Tensor {
                canonical: slot.range.start as i64,
                packed: packing.len as i64,
                each: each as i64,
                taps: taps as i32,
                inputs: inputs as i32,
                wide: wide as i32,
                outputs: outputs as i32,
                first_tile: packing.tiles as i32,
                tiles_across: tiles_across as i32,
                folded: i32::from(fold.is_some()),
                across: across as i32,
                top: top as i32,
                left: left as i32,
            });
            packing.starts[kernel.0] = Some(packing.len);
            packing.tiles += tiles_across * down;
            packing.len += (each * outputs).next_multiple_of(128);
        }
        packing
    }
}

/// Whether a window's weights are turned round.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Turn {
    No,
    Round,
}

/// How rows are shared out: to be added up, or each by itself.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Passes {
    One,
    Many,
}

/// Blocks that fill a large GPU a few times over.
const BLOCKS: usize = 264;

/// Rows that a thread holds where a cluster of blocks holds them all, and the most blocks of a cluster.
const HELD: usize = 4;
const CLUSTER: usize = 8;

/// Bytes of a map up to which that pays: beyond, its narrow rows cost more than the second reading.
const SMALL: usize = 4 << 20;

/// Instructions that forward and backward have in common.
impl Lowering<'_> {
    /// Threads for a kernel over the rows of a map, and the end of its name. With [`Passes::One`] the grid's height is
    /// the number of parts that sums are cut into.
    pub fn rows(&self, map: Map, passes: Passes) -> (Shape, &'static str) {
        self.rows_of(map, passes, self.nchw() && map.pixels() > 1)
    }

    /// The same, where `planes` says whether a thread must keep to one channel.
    pub fn rows_of(&self, map: Map, passes: Passes, planes: bool) -> (Shape, &'static str) {
        let rows = self.spec.batch * map.pixels();
        let v = if planes { 1 } else { self.vector(map.c) };
        let vectors = map.c / v;
        // Long stretches of a row for memory; shorter ones leave more threads to add up what blocks leave.
        let most = match passes {
            _ if planes => 1,
            Passes::One => 128 / v,
            Passes::Many => 32,
        };
        let across = vectors.next_power_of_two().min(most);
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
            shared: if passes == Passes::One { across * down * (8 * v).max(16) } else { 0 } as u32,
            cluster: 1,
        };
        (shape, if v == 1 { "1" } else { "v" })
    }

    /// Threads for a batch norm of so few rows that a cluster of blocks holds them; `None` where there are more.
    pub fn once(&self, map: Map) -> Option<(Shape, &'static str)> {
        let rows = self.spec.batch * map.pixels();
        if rows * map.c * value_bytes(self.spec.precision) > SMALL {
            return None;
        }
        let planes = self.nchw() && map.pixels() > 1;
        let v = if planes { 1 } else { self.vector(map.c) };
        let vectors = map.c / v;
        // A sector of 32 bytes is the least that memory gives; more rows than that allows take half of one.
        let widths = if planes { vec![1] } else { vec![16 / v.min(8), 1] };
        for most in widths {
            let across = vectors.next_power_of_two().min(most);
            let down = (512 / across).min(rows.next_power_of_two().max(v));
            let cluster = rows.div_ceil(HELD * down).next_power_of_two();
            if cluster <= CLUSTER {
                // With fewer rows a thread, more blocks share the work.
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
        let planes = if self.nchw() && map.pixels() > 1 { map.pixels() } else { 0 };
        [
            Arg::Long((self.spec.batch * map.pixels()) as i64),
            Arg::Int(map.c as i32),
            Arg::Int(planes as i32),
        ]
    }

    /// batch, pixels, C, nchw
    pub fn map_args(&self, map: Map) -> [Arg; 4] {
        [self.spec.batch, map.pixels(), map.c, usize::from(self.nchw())].map(|value| Arg::Int(value as i32))
    }

    fn blocks(&self, threads: usize) -> Shape {
        Shape { grid: (threads.div_ceil(256).clamp(1, 132 * 32) as u32, 1, 1), block: (256, 1), shared: 0, cluster: 1 }
    }

    /// A kernel over single values or, in NHWC, vectors of channels.
    pub fn spread(&self, name: &str, values: usize, channels: usize, args: Vec<Arg>) -> Action {
        let v = if self.nchw() { 1 } else { self.vector(channels) };
        let suffix = if v == 1 { "1" } else { "v" };
        Action::Kernel { name: format!("{name}_{suffix}"), shape: self.blocks(values / v), args }
    }

    /// A depthwise kernel that writes the output of a window: the one for 3x3 where it fits.
    pub fn slide(&self, name: &str, window: Window, mut args: Vec<Arg>, turn: Turn) -> Action {
        let Window { batch, channels, output: [h, w], stride, .. } = window;
        let (batch, c, h, w) = (batch as usize, channels as usize, h as usize, w as usize);
        if !self.fits_three(window) {
            return self.spread(name, batch * h * w * c, c, args);
        }
        args.push(Arg::Int(i32::from(turn == Turn::Round)));
        let threads = batch * h * w.div_ceil(4) * (c / self.vector(c));
        Action::Kernel { name: format!("depthwise_three_by_{}", stride[0]), shape: self.blocks(threads), args }
    }

    /// The gradient of the input of a 3x3 depthwise window with stride 2.
    pub fn slide_back(&self, window: Window, args: Vec<Arg>) -> Action {
        let [h, w] = window.input.map(|side| side as usize);
        let channels = window.channels as usize;
        let threads = window.batch as usize * h * w.div_ceil(4) * (channels / self.vector(channels));
        Action::Kernel { name: format!("depthwise_three_back_{}", window.left), shape: self.blocks(threads), args }
    }

    /// Whether the kernels for depthwise windows of 3x3 can be used.
    pub fn fits_three(&self, window: Window) -> bool {
        !self.nchw()
            && window.kernel == [3, 3]
            && (window.stride == [1, 1] || window.stride == [2, 2])
            && self.vector(window.channels as usize) > 1
    }

    /// A kernel over values wherever they lie.
    fn plain(&self, name: &str, values: usize, args: Vec<Arg>) -> Action {
        Action::Kernel { name: name.into(), shape: self.blocks(values), args }
    }

    /// Kinds: 0 copy, 1 sum, 2 bound, 3 unbound.
    pub fn sweep(&self, kind: i32, [a, b, out]: [Buffer; 3], count: usize, bounds: Bounds) -> Action {
        let v = self.vector(count);
        let mut args = vec![Arg::Int(kind), a.into(), b.into(), out.into(), Arg::Long(count as i64)];
        args.extend(bounds.args());
        let name = if v == 1 { "sweep_1" } else { "sweep_v" };
        Action::Kernel { name: name.into(), shape: self.blocks(count / v), args }
    }

    /// Copies a part's channels into a whole, or back.
    pub fn stretch(&self, from: Buffer, to: Buffer, part: Map, (whole, channel): (Map, usize), back: bool) -> Action {
        let (pixels, batch) = (part.pixels(), self.spec.batch);
        let (len, step, skip, stretches) = if self.nchw() {
            (part.len(), whole.len(), channel * pixels, batch)
        } else {
            (part.c, whole.c, channel, batch * pixels)
        };
        let bytes = skip * value_bytes(self.spec.precision);
        let v = [len, step, skip].map(|along| self.vector(along)).into_iter().min().unwrap_or(1);
        let sides = match back {
            false => [from.into(), Arg::Long(len as i64), Arg::At(to, bytes), Arg::Long(step as i64)],
            true => [Arg::At(from, bytes), Arg::Long(step as i64), to.into(), Arg::Long(len as i64)],
        };
        let mut args = sides.to_vec();
        args.extend([Arg::Long(len as i64), Arg::Long(stretches as i64)]);
        let name = if v == 1 { "stretch_1" } else { "stretch_v" };
        Action::Kernel { name: name.into(), shape: self.blocks(len / v * stretches), args }
    }

    pub fn pad(&self, from: Buffer, to: Buffer, (inner, outer, border): (Map, Map, Border), out: bool) -> Action {
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
            usize::from(out),
        ];
        let mut args = vec![from.into(), to.into()];
        args.extend(numbers.map(|number| Arg::Int(number as i32)));
        let count = self.spec.batch * if out { inner.len() } else { outer.len() };
        self.plain("pad", count, args)
    }

    pub fn turn(&self, from: Buffer, to: Buffer, map: Map, back: bool) -> Action {
        let mut args = vec![from.into(), to.into()];
        let numbers = [self.spec.batch, map.pixels(), map.c, usize::from(back)];
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
