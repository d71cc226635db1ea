//! What every engine takes from a graph: the units that run as one, where each parameter lies, and which values need a
//! gradient. How a unit is computed is each engine's own affair.

mod unit;

use std::ops::Range;

use paceline_model::{Graph, NodeId, ParamId, ParamInfo, ParamKind, gradient_order};

pub(crate) use unit::{Bounds, Fusion, Kind, Norm, Product, Unit, Window};

use crate::plan::GRAIN;
use crate::{MemoryPlan, Slot, Spec};

/// A graph as engines see it.
pub(crate) struct Outline {
    /// In the order of forward; backward goes the other way.
    pub units: Vec<Unit>,
    pub places: Places,
    pub consumers: Consumers,
    /// Whether anything trained lies below a value, so that its gradient is needed.
    pub wanted: Vec<bool>,
}

impl Outline {
    pub fn new(graph: &Graph, spec: &Spec, fusion: Fusion) -> Self {
        let consumers = Consumers::new(graph);
        let mut units = unit::divide(graph, spec, &consumers, fusion);
        let places = lay_out(graph);
        places.assign(&mut units);
        let mut wanted = vec![false; graph.nodes.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            wanted[index] = !node.params.is_empty() || node.inputs.iter().any(|input| wanted[input.0]);
        }
        Self { units, places, consumers, wanted }
    }
}

/// Who reads each value.
pub(crate) struct Consumers(Vec<Vec<NodeId>>);

impl Consumers {
    fn new(graph: &Graph) -> Self {
        let mut consumers = vec![Vec::new(); graph.nodes.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            for input in &node.inputs {
                consumers[input.0].push(NodeId(index));
            }
        }
        Self(consumers)
    }

    pub fn all(&self, id: NodeId) -> &[NodeId] {
        &self.0[id.0]
    }

    /// The only one, where there is only one.
    pub fn sole(&self, id: NodeId) -> Option<NodeId> {
        match self.0[id.0][..] {
            [consumer] => Some(consumer),
            _ => None,
        }
    }
}

/// Where parameters and running statistics lie in a program's regions. It follows from the graph alone, so all engines and all
/// ranks agree on it.
pub fn lay_out(graph: &Graph) -> Places {
    let mut trained = 0;
    let slot = |param: ParamId| Slot { param, range: place(&mut trained, graph.param(param).len()) };
    let slots: Vec<Slot> = gradient_order(graph).into_iter().map(slot).collect();
    let mut ranges = vec![None; graph.params.len()];
    for Slot { param, range } in &slots {
        ranges[param.0] = Some(range.clone());
    }
    let mut statistics_len = 0;
    let mut statistic =
        |param: &ParamInfo| (!param.kind.trainable()).then(|| place(&mut statistics_len, param.len()));
    let statistics = graph.params.iter().map(&mut statistic).collect();
    Places { slots, trained, ranges, statistics, statistics_len }
}

/// The place of so many values behind others, from a cache line on.
fn place(end: &mut usize, len: usize) -> Range<usize> {
    let range = *end..*end + len;
    *end += len.next_multiple_of(GRAIN);
    range
}

/// Where parameters lie in a program's regions, in values.
#[derive(Clone, Debug)]
pub struct Places {
    /// Trained tensors, in the order in which backward completes their gradients: in the parameters, the gradients and the
    /// state of the update rule alike.
    pub slots: Vec<Slot>,
    /// Values of each of those regions, gaps included.
    pub trained: usize,
    /// The place of each trained parameter.
    pub ranges: Vec<Option<Range<usize>>>,
    /// The place of each running statistic, in a region of their own.
    pub statistics: Vec<Option<Range<usize>>>,
    /// Values of that region, gaps included.
    pub statistics_len: usize,
}

impl Places {
    /// Tells each unit its slots.
    fn assign(&self, units: &mut [Unit]) {
        let mut reached = 0;
        for unit in units.iter_mut().rev() {
            let first = reached;
            reached += unit.trained().count();
            unit.slots = first..reached;
            let own = self.slots[unit.slots.clone()].iter().map(|slot| slot.param);
            assert!(own.eq(unit.trained()), "invariant: backward completes gradients in the graph's order");
        }
    }

    /// The memory of a program whose arena, and what lies around it, has so many bytes.
    pub(crate) fn plan(&self, spec: &Spec, arena: usize, arena_unshared: usize) -> MemoryPlan {
        let bytes = |values: usize| 4 * values as u64;
        MemoryPlan {
            parameters: bytes(self.trained + self.statistics_len * spec.shards),
            gradients: bytes(self.trained * spec.shards),
            optimizer: bytes(self.trained * spec.optimizer.state_per_value()),
            arena: arena as u64,
            arena_unshared: arena_unshared as u64,
        }
    }
}

impl Unit {
    /// Its trained parameters.
    fn trained(&self) -> impl Iterator<Item = ParamId> {
        let [first, second] = match &self.kind {
            Kind::Product(Product { kernel, bias, .. }) | Kind::Depthwise { kernel, bias, .. } => {
                [Some(*kernel), *bias]
            }
            Kind::Norm(norm) => [norm.gamma, norm.beta],
            _ => [None, None],
        };
        first.into_iter().chain(second)
    }
}

/// A node's parameter of a kind.
fn find_param(graph: &Graph, id: NodeId, kind: ParamKind) -> Option<ParamId> {
    graph.node(id).params.iter().copied().find(|&param| graph.param(param).kind == kind)
}

#[cfg(test)]
mod tests {
    use paceline_model::{BatchNorm, Border, Builder, Conv2d, Dense, Shape, Window, zoo};

    use super::*;

    const NOTHING: Fusion = Fusion { bias: false, padding: false };
    const ALL: Fusion = Fusion { bias: true, padding: true };

    #[test]
    fn parameters_lie_in_the_order_of_backward_whatever_an_engine_fuses() {
        for name in ["resnet50", "mobilenet_v2", "image_compression", "inception_v3"] {
            let graph = zoo::build(name, Some((96, 96)), 10).unwrap();
            let [plain, fused] = [NOTHING, ALL].map(|fusion| Outline::new(&graph, &Spec::new(2), fusion));
            assert_eq!(plain.places.slots, fused.places.slots, "{name}");
            assert_eq!(plain.places.statistics, fused.places.statistics, "{name}");
            for outline in [plain, fused] {
                let Places { slots, trained, ranges, .. } = &outline.places;
                let (mut end, mut next) = (0, 0);
                for unit in outline.units.iter().rev() {
                    assert_eq!(unit.slots.start, next, "{name}");
                    next = unit.slots.end;
                }
                for Slot { param, range } in slots {
                    assert_eq!(range.start, usize::next_multiple_of(end, GRAIN), "{name}");
                    assert_eq!(ranges[param.0].as_ref(), Some(range), "{name}");
                    end = range.end;
                }
                assert_eq!((next, *trained), (slots.len(), end.next_multiple_of(GRAIN)), "{name}");
            }
        }
    }

    #[test]
    fn layers_are_fused_as_far_as_an_engine_asks_for_it() {
        let build = || {
            let (mut b, x) = Builder::new("fused", Shape::new(8, 8, 4), 5)?;
            let x = b.conv("c", x, Conv2d::k(3, 3).out(4).same().bias())?;
            let x = b.relu("r", x);
            let p = b.pad("z", x, Border::even(1))?;
            let x = b.max_pool("p", p, Window::k(3, 3).stride(1))?;
            let y = b.conv("d", x, Conv2d::k(1, 1).out(4).bias())?;
            let y = b.batch_norm("n", y, BatchNorm::KERAS);
            let x = b.add("a", x, y)?;
            let x = b.relu6("s", x);
            let x = b.global_avg_pool("m", x);
            let x = b.dense("o", x, Dense::to(5))?;
            b.softmax_cross_entropy("loss", x)
        };
        let graph: Graph = build().unwrap();
        let names = |fusion| -> Vec<String> {
            Outline::new(&graph, &Spec::new(2), fusion).units.into_iter().map(|unit| unit.name).collect()
        };
        assert_eq!(names(NOTHING), ["c", "r", "z", "p", "d", "n + a + s", "m", "o", "loss"]);
        assert_eq!(names(ALL), ["c", "c bias", "p", "d", "n + a + s", "m", "o", "o bias", "loss"]);
    }
}
