//! From the layer graph to instructions for the device: fusion, buffers with lifetimes, weights in the libraries' order.

mod instruction;
mod layer;
mod node;
mod unit;
mod weights;

pub(super) use instruction::{Passes, even_part};
pub(super) use unit::{Copied, Copying, Kind, Norm, Pick, Unit};
pub(super) use weights::{Packing, Tensor};

use std::ops::Range;

use paceline_model::{
    BatchNorm, Border, Graph, LayerCost, Node, NodeId, Op, ParamId, ParamKind, Pool as PoolSpec,
    RunningVariance, Shape as Map, layer_costs,
};

use super::action::{Action, Arg, Buffer, LAG, Step, Track, Window};
use super::backward;
use super::driver::Shape;
use super::gemm;
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
    /// Channels of the input as it is kept.
    pub wide: usize,
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
    /// Batch norms whose output nobody writes out: `data` holds their input.
    pub unmade: Vec<Option<Norm>>,
    pub picks: Vec<Pick>,
    /// Lifetimes, in units of four bytes.
    pub buffers: Vec<Lifetime>,
    pub now: usize,
    pub counters: usize,
    wide: usize,
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
    let only_convolved = consumers[0].iter().all(|id| match graph.node(*id).op {
        Op::Conv(conv) => conv.groups == 1,
        _ => false,
    });
    let channels = graph.input().c;
    // Tensor cores want whole vectors of channels.
    let wide = if only_convolved && spec.layout == Layout::Nhwc {
        channels.next_multiple_of(16 / value_bytes(spec.precision))
    } else {
        channels
    };
    let mut lowering = Lowering {
        graph,
        spec,
        steps: Vec::new(),
        judging: Vec::new(),
        units: Vec::new(),
        products: Vec::new(),
        data: vec![None; graph.nodes.len()],
        unmade: vec![None; graph.nodes.len()],
        picks: Vec::new(),
        buffers: Vec::new(),
        now: 0,
        counters: 0,
        wide,
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
    let lives = |step: &Step, buffer: Buffer| lowering.buffers[buffer.0].last >= step.time + LAG;
    let on_side = || backward.iter().filter(|step| step.track == Track::Side);
    debug_assert!(
        on_side().all(|step| step.action.buffers().into_iter().all(|buffer| lives(step, buffer))),
        "invariant: what the side uses is kept for it"
    );
    let end = lowering.now + LAG + 1;
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
    let workspace = largest.clamp(gemm::WORKSPACE, 256 << 20);
    let staging = 4 * spec.batch * (graph.input().len() + 1);
    let bytes = |values: usize| 4 * values as u64;
    let around = (2 * workspace + staging + 2 * packing.len * value) as u64;
    let plan = MemoryPlan {
        parameters: bytes(trained + moving_len * spec.shards),
        gradients: bytes(trained * spec.shards),
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
        wide,
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
            last: nodes.last().copied(),
            slots: 0..0,
            forward_flops: batch * nodes.iter().map(|id| costs[id.0].flops_forward).sum::<u64>(),
            backward_flops: batch * nodes.iter().map(|id| costs[id.0].flops_backward).sum::<u64>(),
        });
        self.now += 1;
    }
}

#[cfg(test)]
mod tests;
