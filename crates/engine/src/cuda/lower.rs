//! From the layer graph to instructions for the device, with buffers and their lifetimes, and weights in the libraries' order.

mod forward;
mod instruction;
mod kept;
mod layer;
mod weights;

pub(super) use instruction::{Part, Passes, Sweep, Threads, Toward, even_part};
pub(super) use kept::{Copied, Copying, Front, Kept, Pick};
pub(super) use layer::Padding;
pub(super) use weights::{Packing, Tensor};

use paceline_model::{Border, Graph, NodeId, Op, ParamId, Shape as Map};

use super::action::{Action, Arg, LAG, Step, Track, Window};
use super::backward;
use super::driver::Shape;
use super::gemm;
use super::product::{Direction, Product};
use crate::outline::{self, Bounds, Fusion, Kind, Outline, Unit};
use crate::plan::{Buffer, Buffers};
use crate::{Layout, MemoryPlan, Precision, Spec};

/// The libraries' products add no bias, and the kernels of windows know borders.
const FUSION: Fusion = Fusion { bias: true, padding: true };

/// A program before it has memory.
pub(super) struct Lowered {
    pub forward: Vec<Step>,
    pub evaluation: Vec<Step>,
    pub backward: Vec<Step>,
    pub outline: Outline,
    pub products: Vec<Product>,
    /// Byte offset of each buffer in the arena.
    pub offsets: Vec<usize>,
    /// Bytes of the arena.
    pub arena: usize,
    pub input: Buffer,
    /// Channels of the input on the device, padding included.
    pub wide: usize,
    pub output: Buffer,
    pub counters: usize,
    pub packing: Packing,
    /// Bytes of each track's workspace.
    pub workspace: usize,
    pub plan: MemoryPlan,
}

/// The state of lowering a graph.
pub(super) struct Lowering<'a> {
    pub graph: &'a Graph,
    pub spec: &'a Spec,
    pub outline: &'a Outline,
    pub steps: Vec<Step>,
    /// Forward as it runs in evaluation.
    pub evaluation: Vec<Step>,
    pub products: Vec<Product>,
    /// Lengths are in units of four bytes.
    pub buffers: Buffers,
    /// The current unit.
    pub unit: usize,
    /// What forward keeps for backward of each unit.
    pub kept: Vec<Kept>,
    /// Batch norms whose output is never written out, by that output. The buffer of that value holds their input.
    pub unmade: Vec<Option<Front>>,
    pub picks: Vec<Pick>,
    pub counters: usize,
    wide: usize,
}

/// Which of the two forwards an instruction belongs to.
#[derive(Clone, Copy, PartialEq)]
enum When {
    Always,
    Training,
    Evaluation,
}

/// Bytes of one value of an activation.
pub(super) fn value_bytes(precision: Precision) -> usize {
    if precision == Precision::Bf16 { 2 } else { 4 }
}

/// Lowers a graph.
pub(super) fn lower(graph: &Graph, spec: &Spec) -> Lowered {
    let outline = Outline::new(graph, spec, FUSION);
    let input = NodeId(0);
    let only_convolved = outline.consumers.all(input).iter().all(|id| match graph.node(*id).op {
        Op::Conv(conv) => conv.groups == 1,
        _ => false,
    });
    let channels = graph.input().c;
    let value = value_bytes(spec.precision);
    // Tensor cores need whole vectors of channels.
    let wide = if only_convolved && spec.layout == Layout::Nhwc {
        channels.next_multiple_of(16 / value)
    } else {
        channels
    };
    let mut lowering = Lowering {
        graph,
        spec,
        outline: &outline,
        steps: Vec::new(),
        evaluation: Vec::new(),
        products: Vec::new(),
        buffers: Buffers::new(graph.nodes.len()),
        unit: 0,
        kept: vec![Kept::Nothing; outline.units.len()],
        unmade: vec![None; graph.nodes.len()],
        picks: Vec::new(),
        counters: 0,
        wide,
    };
    let pictures = lowering.values(spec.batch * graph.input().pixels() * wide);
    lowering.buffers.assign(input, pictures);
    for (index, unit) in outline.units.iter().enumerate() {
        lowering.unit = index;
        lowering.forward(unit);
        lowering.buffers.now += 1;
    }
    let packing = lowering.pack();
    let forward = std::mem::take(&mut lowering.steps);
    let backward = backward::lower(&mut lowering);
    let lives = |step: &Step, buffer: Buffer| lowering.buffers.lives_until(buffer, step.time + LAG);
    let on_side = || backward.iter().filter(|step| step.track == Track::Side);
    debug_assert!(
        on_side().all(|step| step.action.buffers().into_iter().all(|buffer| lives(step, buffer))),
        "invariant: what the side uses is kept for it"
    );
    let arena = lowering.buffers.place([input, graph.output()], LAG + 1);
    let workspace = (4 * arena.largest).clamp(gemm::WORKSPACE, 256 << 20);
    let staging = 4 * spec.batch * (graph.input().len() + 1);
    let around = 2 * workspace + staging + 2 * packing.len * value;
    let plan = outline.places.plan(spec, 4 * arena.len + around, 4 * arena.unshared + around);
    Lowered {
        forward,
        evaluation: lowering.evaluation,
        backward,
        products: lowering.products,
        offsets: arena.ranges.iter().map(|range| 4 * range.start).collect(),
        arena: 4 * arena.len,
        input: arena.input,
        wide,
        output: arena.output,
        counters: lowering.counters,
        packing,
        workspace,
        plan,
        outline,
    }
}

impl Lowering<'_> {
    pub fn map(&self, id: NodeId) -> Map {
        self.graph.node(id).shape
    }

    pub fn nchw(&self) -> bool {
        self.spec.layout == Layout::Nchw
    }

    /// Values that a thread moves at a time along a row of so many.
    pub fn vector(&self, along: usize) -> usize {
        let most = 16 / value_bytes(self.spec.precision);
        if along.is_multiple_of(most) { most } else { 1 }
    }

    /// A new buffer of so many bytes, alive now.
    pub fn bytes(&mut self, bytes: usize) -> Buffer {
        self.buffers.take(bytes.div_ceil(4))
    }

    /// A new buffer of so many values of activations.
    pub fn values(&mut self, count: usize) -> Buffer {
        self.bytes(count * value_bytes(self.spec.precision))
    }

    /// Values of a node in a batch.
    pub fn count(&self, id: NodeId) -> usize {
        self.spec.batch * self.map(id).len()
    }

    /// A new buffer like the value of a node.
    pub fn like(&mut self, id: NodeId) -> Buffer {
        self.values(self.count(id))
    }

    /// The value of a node, used now.
    pub fn value(&mut self, id: NodeId) -> Buffer {
        self.buffers.value(id)
    }

    fn output(&mut self, id: NodeId) -> Buffer {
        let buffer = self.like(id);
        self.buffers.assign(id, buffer)
    }

    /// The buffer that forward kept for backward of this unit.
    pub fn recall(&mut self) -> Buffer {
        let Kept::Buffer(kept) = self.kept[self.unit] else { unreachable!("invariant: forward kept it") };
        self.buffers.touch(kept, 0)
    }

    pub fn counters(&mut self, count: usize) -> Arg {
        self.counters += count;
        Arg::Counters(self.counters - count)
    }

    /// A window as the kernels know it.
    pub fn window(&self, window: &outline::Window) -> Window {
        Window::new(window, self.spec.batch, self.spec.layout)
    }

    fn put(&mut self, when: When, action: Action) {
        let step = Step { unit: self.unit, time: self.buffers.now, track: Track::Main, action };
        if when == When::Always {
            self.evaluation.push(step.clone());
        }
        match when {
            When::Always | When::Training => self.steps.push(step),
            When::Evaluation => self.evaluation.push(step),
        }
    }
}

#[cfg(test)]
mod tests;
