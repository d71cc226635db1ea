//! From the layer graph to instructions: fusion, buffers with lifetimes, parameters in the order of their gradients.

use std::ops::Range;

use paceline_model::{
    BatchNorm, Graph, Node, NodeId, Op, ParamId, ParamKind, Pool as PoolSpec, RunningVariance,
};
use paceline_model::{Border, LayerCost, Shape, layer_costs};

use super::action::{Action, Buffer, NormIds, Product, SlideKind};
use super::backward;
use super::columns::Columns;
use super::flat::{Dropout, Maps, Padding, Stretches, Sweep};
use super::geometry::Window;
use super::kernels::tile::Mode;
use super::loss::squared_error_workspace;
use super::norm::{Bounds, Norm, Running};
use super::product::{ConvShape, Direction, Gather};
use super::random;
use super::simd::Simd;
use super::windows::Slide;
use crate::plan::{self, Lifetime};
use crate::{Layout, MemoryPlan, Slot, Spec};

/// Trained tensors start on a cache line.
const GRAIN: usize = 16;

/// An instruction and the unit that it belongs to.
pub(crate) struct Step {
    pub unit: usize,
    pub action: Action,
}

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

/// What backward must know of a unit; values are named by their nodes.
pub(crate) enum Kind {
    Conv { x: NodeId, y: NodeId, conv: ConvShape, transposed: bool },
    Depthwise { x: NodeId, y: NodeId, window: Window },
    Norm { x: NodeId, y: NodeId, residual: Option<NodeId>, norm: Norm, ids: NormIds, kept: Buffer },
    Bound { x: NodeId, y: NodeId, bounds: Bounds },
    MaxPool { x: NodeId, y: NodeId, window: Window, winners: Buffer },
    AvgPool { x: NodeId, y: NodeId, window: Window },
    GlobalPool { x: NodeId, y: NodeId, maps: Maps },
    Add { y: NodeId, inputs: Vec<NodeId> },
    Concat { y: NodeId, inputs: Vec<NodeId> },
    Dropout { x: NodeId, y: NodeId, plan: Dropout },
    Flatten { x: NodeId, y: NodeId, maps: Maps },
    Pad { x: NodeId, y: NodeId, plan: Padding },
    Loss { x: NodeId, grad: Buffer },
}

/// A program before it has memory.
pub(crate) struct Compiled {
    pub forward: Vec<Step>,
    pub backward: Vec<Step>,
    pub units: Vec<Unit>,
    /// Offset and length of each buffer in the arena.
    pub buffers: Vec<Range<usize>>,
    /// Length of the arena.
    pub arena: usize,
    pub input: Buffer,
    pub output: Buffer,
    pub slots: Vec<Slot>,
    /// Values of the parameter region, gaps included.
    pub trained: usize,
    /// Place of each parameter that is not trained, in a region of their own.
    pub moving: Vec<Option<Range<usize>>>,
    pub moving_len: usize,
    pub plan: MemoryPlan,
}

/// The state of lowering a graph.
pub(crate) struct Lowering<'a> {
    pub graph: &'a Graph,
    pub spec: &'a Spec,
    pub simd: Simd,
    pub threads: usize,
    pub steps: Vec<Step>,
    pub units: Vec<Unit>,
    /// Buffer of each node's value, where it has one.
    pub data: Vec<Option<Buffer>>,
    pub buffers: Vec<Lifetime>,
    /// The instruction time that new buffers and uses are booked at.
    pub now: usize,
    consumers: Vec<Vec<NodeId>>,
    costs: Vec<LayerCost>,
    /// Nodes that an earlier unit computes.
    absorbed: Vec<bool>,
}

/// Lowers a graph.
pub(crate) fn compile(graph: &Graph, spec: &Spec, simd: Simd, threads: usize) -> Compiled {
    let mut consumers = vec![Vec::new(); graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for input in &node.inputs {
            consumers[input.0].push(NodeId(index));
        }
    }
    let mut lowering = Lowering {
        graph,
        spec,
        simd,
        threads,
        steps: Vec::new(),
        units: Vec::new(),
        data: vec![None; graph.nodes.len()],
        buffers: Vec::new(),
        now: 0,
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
    let forward = std::mem::take(&mut lowering.steps);
    let backward = backward::lower(&mut lowering);
    let end = lowering.now + 1;
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
    let bytes = |values: usize| 4 * values as u64;
    let plan = MemoryPlan {
        parameters: bytes(trained + moving_len * spec.shards),
        gradients: bytes(trained * spec.shards),
        optimizer: bytes(trained * spec.optimizer.state_per_value()),
        arena: bytes(arena),
        arena_unshared: bytes(lowering.buffers.iter().map(|buffer| buffer.len).sum()),
    };
    Compiled {
        forward,
        backward,
        buffers: lowering
            .buffers
            .iter()
            .zip(offsets)
            .map(|(buffer, offset)| offset..offset + buffer.len)
            .collect(),
        units: lowering.units,
        arena,
        input,
        output,
        slots,
        trained,
        moving,
        moving_len,
        plan,
    }
}

impl Lowering<'_> {
    pub fn shape(&self, id: NodeId) -> Shape {
        self.graph.node(id).shape
    }

    /// A new buffer, alive now.
    pub fn buffer(&mut self, len: usize) -> Buffer {
        self.buffers.push(Lifetime { len, first: self.now, last: self.now });
        Buffer(self.buffers.len() - 1)
    }

    /// Marks a buffer as used now.
    pub fn touch(&mut self, buffer: Buffer) -> Buffer {
        let lifetime = &mut self.buffers[buffer.0];
        lifetime.last = lifetime.last.max(self.now);
        buffer
    }

    /// The value of a node, used now.
    pub fn value(&mut self, id: NodeId) -> Buffer {
        let buffer = self.data[id.0].expect("invariant: inputs precede their users");
        self.touch(buffer)
    }

    /// A new buffer for the value of a node.
    fn output(&mut self, id: NodeId) -> Buffer {
        let buffer = self.buffer(self.spec.batch * self.shape(id).len());
        self.data[id.0] = Some(buffer);
        buffer
    }

    pub fn push(&mut self, unit: usize, action: Action) {
        self.steps.push(Step { unit, action });
    }

    pub fn maps(&self, shape: Shape) -> Maps {
        Maps { shape, batch: self.spec.batch, layout: self.spec.layout }
    }

    /// One direction of a convolution, in the layout that fits.
    pub fn product(&self, conv: ConvShape, direction: Direction) -> Product {
        let single = conv.window.input.pixels() == 1 && conv.window.output.pixels() == 1;
        if self.spec.layout == Layout::Nhwc || single {
            Product::Rows(Gather::new(conv, direction, self.simd))
        } else {
            Product::Columns(Columns::new(conv, direction, self.simd))
        }
    }

    fn sole_consumer(&self, id: NodeId) -> Option<NodeId> {
        match self.consumers[id.0][..] {
            [consumer] => Some(consumer),
            _ => None,
        }
    }

    /// A node's parameters by kind.
    pub fn param(&self, node: &Node, kind: ParamKind) -> Option<ParamId> {
        node.params.iter().copied().find(|&id| self.graph.param(id).kind == kind)
    }

    fn kernel(&self, node: &Node) -> (ParamId, Option<ParamId>) {
        let kernel = self.param(node, ParamKind::Kernel).expect("invariant: the layer has a kernel");
        (kernel, self.param(node, ParamKind::Bias))
    }

    /// Ends a unit that covers `nodes`, and moves time on.
    fn finish(&mut self, nodes: &[NodeId], kind: Kind) {
        let costs = &self.costs;
        let batch = self.spec.batch as u64;
        let names: Vec<&str> = nodes.iter().map(|&id| self.graph.node(id).name.as_str()).collect();
        self.units.push(Unit {
            name: names.join(" + "),
            kind,
            last: nodes.last().copied(),
            slots: 0..0,
            forward_flops: batch * nodes.iter().map(|id| costs[id.0].flops_forward).sum::<u64>(),
            backward_flops: batch * nodes.iter().map(|id| costs[id.0].flops_backward).sum::<u64>(),
        });
        self.now += 1;
    }

    /// Emits the instructions of one node, or of the unit that starts with it.
    fn lower(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let unit = self.units.len();
        let batch = self.spec.batch;
        let (layout, simd) = (self.spec.layout, self.simd);
        match node.op {
            Op::Input => {
                self.output(id);
            }
            Op::Conv(spec) => {
                let x = node.inputs[0];
                let window = Window {
                    kernel: spec.kernel,
                    stride: spec.stride,
                    border: spec.border,
                    input: self.shape(x),
                    output: node.shape,
                };
                if spec.groups > 1 && spec.groups == window.input.c && spec.groups == spec.out {
                    let (kernel, bias) = self.kernel(node);
                    let (source, dest) = (self.value(x), self.output(id));
                    let plan = Slide::forward(&window, batch, layout, simd);
                    let kind = SlideKind::Weighted { kernel, bias };
                    self.push(unit, Action::Slide { plan, kind, source, dest, mode: Mode::Write });
                    self.finish(&[id], Kind::Depthwise { x, y: id, window });
                } else {
                    let conv = ConvShape { window, groups: spec.groups, batch };
                    self.lower_product(id, conv, Direction::Forward);
                }
            }
            Op::ConvTranspose(spec) => {
                let border = Border { top: spec.crop, left: spec.crop, bottom: spec.crop, right: spec.crop };
                let window = Window {
                    kernel: spec.kernel,
                    stride: spec.stride,
                    border,
                    input: node.shape,
                    output: self.shape(node.inputs[0]),
                };
                let conv = ConvShape { window, groups: 1, batch };
                self.lower_product(id, conv, Direction::Backward);
            }
            Op::Dense(_) => {
                let window = Window {
                    kernel: (1, 1),
                    stride: (1, 1),
                    border: Border::default(),
                    input: self.shape(node.inputs[0]),
                    output: node.shape,
                };
                let conv = ConvShape { window, groups: 1, batch };
                self.lower_product(id, conv, Direction::Forward);
            }
            Op::BatchNorm(spec) => self.lower_norm(id, &spec),
            Op::Relu => self.lower_bound(id, Bounds::RELU),
            Op::Relu6 => self.lower_bound(id, Bounds::RELU6),
            Op::MaxPool(spec) => {
                let x = node.inputs[0];
                let window = self.pool_window(id, &spec);
                let (source, dest) = (self.value(x), self.output(id));
                let winners = self.buffer(batch * node.shape.len());
                let plan = Slide::forward(&window, batch, layout, simd);
                let kind = SlideKind::Largest { winners };
                self.push(unit, Action::Slide { plan, kind, source, dest, mode: Mode::Write });
                self.finish(&[id], Kind::MaxPool { x, y: id, window, winners });
            }
            Op::AvgPool(spec) => {
                let x = node.inputs[0];
                let window = self.pool_window(id, &spec);
                let (source, dest) = (self.value(x), self.output(id));
                let plan = Slide::forward(&window, batch, layout, simd);
                self.push(
                    unit,
                    Action::Slide { plan, kind: SlideKind::Mean, source, dest, mode: Mode::Write },
                );
                self.finish(&[id], Kind::AvgPool { x, y: id, window });
            }
            Op::GlobalAvgPool => {
                let x = node.inputs[0];
                let maps = self.maps(self.shape(x));
                let (map, vector) = (self.value(x), self.output(id));
                self.push(unit, Action::Mean { maps, map, vector });
                self.finish(&[id], Kind::GlobalPool { x, y: id, maps });
            }
            Op::Add => {
                let inputs = node.inputs.clone();
                let (a, b) = (self.value(inputs[0]), self.value(inputs[1]));
                let out = self.output(id);
                self.push(unit, Action::Flat { sweep: Sweep::Sum, a, b, out });
                self.finish(&[id], Kind::Add { y: id, inputs });
            }
            Op::Concat => {
                let inputs = node.inputs.clone();
                let to = self.output(id);
                let mut channel = 0;
                for &x in &inputs {
                    let part = self.shape(x);
                    let plan = Stretches::concat(part, node.shape, batch, layout);
                    let from = self.value(x);
                    let to_offset = channel * plan.len / part.c;
                    self.push(
                        unit,
                        Action::Stretches { plan, from, from_offset: 0, to, to_offset, mode: Mode::Write },
                    );
                    channel += part.c;
                }
                self.finish(&[id], Kind::Concat { y: id, inputs });
            }
            Op::Dropout { rate } => {
                let x = node.inputs[0];
                let seed = random::mix(self.spec.seed ^ random::mix(id.0 as u64));
                let plan = Dropout { rate, seed };
                let (from, to) = (self.value(x), self.output(id));
                self.push(unit, Action::Dropout { plan, from, to });
                self.finish(&[id], Kind::Dropout { x, y: id, plan });
            }
            Op::Flatten => {
                let x = node.inputs[0];
                let maps = self.maps(self.shape(x));
                let map = self.value(x);
                if layout == Layout::Nhwc || maps.shape.pixels() == 1 {
                    self.data[id.0] = Some(map);
                } else {
                    let vector = self.output(id);
                    self.push(unit, Action::Flatten { maps, map, vector });
                }
                self.finish(&[id], Kind::Flatten { x, y: id, maps });
            }
            Op::Pad(border) => {
                let x = node.inputs[0];
                let plan = Padding { border, inner: self.shape(x), outer: node.shape, batch, layout };
                let (from, to) = (self.value(x), self.output(id));
                self.push(unit, Action::Pad { plan, from, to });
                self.finish(&[id], Kind::Pad { x, y: id, plan });
            }
            Op::SoftmaxCrossEntropy => {
                let x = node.inputs[0];
                let logits = self.value(x);
                let grad = self.buffer(batch * self.shape(x).len());
                self.push(unit, Action::CrossEntropy { logits, grad, smoothing: self.spec.label_smoothing });
                self.finish(&[id], Kind::Loss { x, grad });
            }
            Op::MeanSquaredError => {
                let x = node.inputs[0];
                let (output, target) = (self.value(x), self.value(node.inputs[1]));
                let count = batch * self.shape(x).len();
                let grad = self.buffer(count);
                let workspace = self.buffer(squared_error_workspace(count));
                self.push(unit, Action::SquaredError { output, target, grad, workspace });
                self.finish(&[id], Kind::Loss { x, grad });
            }
        }
    }

    fn pool_window(&self, id: NodeId, spec: &PoolSpec) -> Window {
        let node = self.graph.node(id);
        Window {
            kernel: spec.kernel,
            stride: spec.stride,
            border: spec.border,
            input: self.shape(node.inputs[0]),
            output: node.shape,
        }
    }

    /// A convolution or dense layer; a transposed one is the backward product of the convolution it undoes.
    fn lower_product(&mut self, id: NodeId, conv: ConvShape, direction: Direction) {
        let node = self.graph.node(id);
        let (x, unit) = (node.inputs[0], self.units.len());
        let (kernel, bias) = self.kernel(node);
        let plan = self.product(conv, direction);
        let workspace = self.buffer(plan.workspace(self.threads));
        let (source, dest) = (self.value(x), self.output(id));
        self.push(unit, Action::Product { plan, source, kernel, bias, dest, mode: Mode::Write, workspace });
        let transposed = direction == Direction::Backward;
        self.finish(&[id], Kind::Conv { x, y: id, conv, transposed });
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
            bounds = match self.graph.node(next).op {
                Op::Relu => Bounds::RELU,
                Op::Relu6 => Bounds::RELU6,
                _ => Bounds::NONE,
            };
            if bounds != Bounds::NONE {
                nodes.push(next);
                last = next;
            }
        }
        for node in &nodes {
            self.absorbed[node.0] = true;
        }
        let x = node.inputs[0];
        let count = self.spec.batch * node.shape.pixels();
        let norm = Norm {
            layout: self.spec.layout,
            simd: self.simd,
            batch: self.spec.batch,
            pixels: node.shape.pixels(),
            channels: node.shape.c,
            epsilon: spec.epsilon,
            bounds,
        };
        let running = Running {
            momentum: spec.momentum,
            correction: match spec.running {
                RunningVariance::Biased => 1.0,
                RunningVariance::Unbiased => count as f32 / (count - 1).max(1) as f32,
            },
        };
        let moving = |kind| self.param(node, kind).expect("invariant: batch norm has running statistics");
        let ids = NormIds {
            gamma: self.param(node, ParamKind::Gamma),
            beta: self.param(node, ParamKind::Beta),
            moving_mean: moving(ParamKind::MovingMean),
            moving_variance: moving(ParamKind::MovingVariance),
        };
        let unit = self.units.len();
        let kept = self.buffer(4 * norm.channels);
        let workspace = self.buffer(norm.workspace());
        let input = self.value(x);
        let residual_buffer = residual.map(|other| self.value(other));
        let output = self.output(last);
        self.push(
            unit,
            Action::Norm { norm, running, ids, input, residual: residual_buffer, output, kept, workspace },
        );
        self.finish(&nodes, Kind::Norm { x, y: last, residual, norm, ids, kept });
    }

    /// A bound that follows no batch norm: in place where its input has no other use.
    fn lower_bound(&mut self, id: NodeId, bounds: Bounds) {
        let x = self.graph.node(id).inputs[0];
        let unit = self.units.len();
        let in_place = self.sole_consumer(x).is_some()
            && matches!(self.graph.node(x).op, Op::Conv(_) | Op::ConvTranspose(_) | Op::Dense(_) | Op::Add);
        let a = self.value(x);
        let out = if in_place { a } else { self.output(id) };
        self.data[id.0] = Some(out);
        self.push(unit, Action::Flat { sweep: Sweep::Bound(bounds), a, b: a, out });
        self.finish(&[id], Kind::Bound { x, y: id, bounds });
    }

    /// Places the trained tensors in the order in which backward finishes them.
    fn lay_out_slots(&mut self) -> (Vec<Slot>, usize) {
        let mut slots = Vec::new();
        let mut offset = 0;
        let graph = self.graph;
        for unit in self.units.iter_mut().rev() {
            let params = match &unit.kind {
                Kind::Conv { y, .. } | Kind::Depthwise { y, .. } => graph.node(*y).params.clone(),
                Kind::Norm { ids, .. } => ids.gamma.into_iter().chain(ids.beta).collect(),
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
}
