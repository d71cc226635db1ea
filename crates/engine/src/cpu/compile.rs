//! From the layer graph to instructions and buffers with lifetimes.

use paceline_model::{Graph, NodeId, Shape};

use super::action::{Action, Product, Sum};
use super::backward;
use super::columns::Columns;
use super::flat::Maps;
use super::norm::Norm;
use super::product::{ConvShape, Direction, Gather};
use super::simd::Simd;
use super::tiles::{TileProduct, TileSum};
use super::weights::WeightSum;
use crate::outline::{self, Fusion, Kind, Outline, Unit};
use crate::plan::{Arena, Buffer, Buffers};
use crate::{EngineError, Layout, MemoryPlan, Precision, Spec};

/// Products add their own biases, and paddings are layers of their own.
pub(crate) const FUSION: Fusion = Fusion { bias: false, padding: false };

/// An instruction and the unit that it belongs to.
pub(crate) struct Step {
    pub unit: usize,
    pub action: Action,
}

/// A program before it has memory.
pub(crate) struct Compiled {
    pub forward: Vec<Step>,
    pub backward: Vec<Step>,
    pub outline: Outline,
    pub arena: Arena,
    /// Values of each buffer.
    pub counts: Vec<usize>,
    pub plan: MemoryPlan,
    pub simd: Simd,
}

/// The state of lowering a graph.
pub(crate) struct Lowering<'a> {
    pub graph: &'a Graph,
    pub spec: &'a Spec,
    pub outline: &'a Outline,
    pub simd: Simd,
    pub threads: usize,
    pub steps: Vec<Step>,
    pub buffers: Buffers,
    /// Values of each buffer.
    pub counts: Vec<usize>,
    /// The current unit.
    pub unit: usize,
    /// What forward keeps for backward of each unit: a batch norm's statistics, the places of maxima, the loss's gradient.
    pub kept: Vec<Option<Buffer>>,
}

/// Lowers a graph.
pub(crate) fn compile(
    graph: &Graph,
    spec: &Spec,
    simd: Simd,
    threads: usize,
) -> Result<Compiled, EngineError> {
    let outline = Outline::new(graph, spec, FUSION);
    let mut lowering = Lowering {
        graph,
        spec,
        outline: &outline,
        simd,
        threads,
        steps: Vec::new(),
        buffers: Buffers::new(graph.nodes.len()),
        counts: Vec::new(),
        unit: 0,
        kept: vec![None; outline.units.len()],
    };
    let input = NodeId(0);
    lowering.output(input);
    for (index, unit) in outline.units.iter().enumerate() {
        lowering.unit = index;
        lowering.check(unit)?;
        lowering.forward(unit);
        lowering.buffers.now += 1;
    }
    let forward = std::mem::take(&mut lowering.steps);
    let backward = backward::lower(&mut lowering);
    let counts = lowering.counts;
    let arena = lowering.buffers.place([input, graph.output()], 1);
    let plan = outline.places.plan(spec, 4 * arena.len, 4 * arena.unshared);
    Ok(Compiled { forward, backward, outline, arena, counts, plan, simd })
}

impl Lowering<'_> {
    pub fn shape(&self, id: NodeId) -> Shape {
        self.graph.node(id).shape
    }

    /// Values of a node in a batch.
    pub fn count(&self, id: NodeId) -> usize {
        self.spec.batch * self.shape(id).len()
    }

    /// A new buffer for the value of a node.
    pub fn output(&mut self, id: NodeId) -> Buffer {
        let buffer = self.take_values(self.count(id));
        self.buffers.assign(id, buffer)
    }

    /// A new buffer of activations or gradients of them, in the format in which they are stored.
    pub fn take_values(&mut self, count: usize) -> Buffer {
        let words = if self.spec.precision == Precision::Bf16 { count.div_ceil(2) } else { count };
        self.counts.push(count);
        self.buffers.take(words)
    }

    /// A new buffer of fp32 values: statistics, workspaces.
    pub fn take_floats(&mut self, count: usize) -> Buffer {
        self.counts.push(count);
        self.buffers.take(count)
    }

    /// Refuses what the precision has no room for.
    fn check(&self, unit: &Unit) -> Result<(), EngineError> {
        match unit.kind {
            Kind::MaxPool { window, .. }
                if self.spec.precision == Precision::Bf16 && window.kernel.0 * window.kernel.1 > 256 =>
            {
                Err(EngineError::Unsupported(format!(
                    "layer {}: a maximum over more than 256 values cannot be trained in bf16; use --precision fp32",
                    unit.name
                )))
            }
            _ => Ok(()),
        }
    }

    pub fn push(&mut self, action: Action) {
        self.steps.push(Step { unit: self.unit, action });
    }

    /// What forward kept for backward of this unit.
    pub fn recall(&mut self) -> Buffer {
        let kept = self.kept[self.unit].expect("invariant: forward kept it");
        self.buffers.touch(kept, 0)
    }

    pub fn maps(&self, id: NodeId) -> Maps {
        Maps { shape: self.shape(id), batch: self.spec.batch, layout: self.spec.layout }
    }

    /// Whether a map lies in memory as a vector of its values does: in the order height, width, channel.
    pub fn lies_flat(&self, id: NodeId) -> bool {
        self.spec.layout == Layout::Nhwc || self.shape(id).pixels() == 1
    }

    pub fn conv(&self, product: &outline::Product) -> ConvShape {
        ConvShape { window: product.window, groups: product.groups, batch: self.spec.batch }
    }

    /// One direction of a convolution, in its layout.
    pub fn product(&self, conv: ConvShape, direction: Direction) -> Product {
        if self.spec.precision == Precision::Bf16 {
            let layout = self.product_layout(conv);
            return Product::Tiles(TileProduct::new(conv, direction, layout, self.simd));
        }
        match self.product_layout(conv) {
            Layout::Nhwc => Product::Rows(Gather::new(conv, direction, self.simd)),
            Layout::Nchw => Product::Columns(Columns::new(conv, direction, self.simd)),
        }
    }

    /// The gradient of a convolution's weights.
    pub fn weight_sum(&self, conv: ConvShape) -> Sum {
        let layout = self.product_layout(conv);
        if self.spec.precision == Precision::Bf16 {
            return Sum::Tiles(TileSum::new(conv, layout, self.simd));
        }
        Sum::Registers(WeightSum::new(conv, layout, self.simd))
    }

    /// Maps of one pixel are the same in both layouts, and NHWC is faster.
    pub fn product_layout(&self, conv: ConvShape) -> Layout {
        let single = conv.window.input.pixels() == 1 && conv.window.output.pixels() == 1;
        if single { Layout::Nhwc } else { self.spec.layout }
    }

    pub fn norm(&self, unit: &Unit, layer: &outline::Norm) -> Norm {
        let map = self.shape(unit.y);
        Norm {
            layout: self.spec.layout,
            simd: self.simd,
            batch: self.spec.batch,
            pixels: map.pixels(),
            channels: map.c,
            epsilon: layer.epsilon,
            bounds: layer.bounds,
        }
    }
}
