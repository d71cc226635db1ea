//! Where trained tensors lie, the packed copies of kernels that the libraries read, and the picture in front of them.

use super::*;

/// A kernel tensor as the kernels that pack it know it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
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
pub(crate) struct Picture {
    pub map: Map,
    /// Whether a pixel holds a square of 2 x 2 of the picture's: rows and columns before the picture's first.
    pub fold: Option<(usize, usize)>,
}

/// The packed copies of all kernel tensors.
#[derive(Default)]
pub(crate) struct Packing {
    pub tensors: Vec<Tensor>,
    pub tiles: usize,
    /// Values in all.
    pub len: usize,
    /// Where each parameter's copy starts.
    pub starts: Vec<Option<usize>>,
}

/// Tensor cores want whole vectors of channels, and a picture has three: where only convolutions read it, zeros fill it up.
/// Before a single one with stride 2, a square of 2 x 2 pixels becomes one of four times the channels.
pub(super) fn keep_picture(graph: &Graph, spec: &Spec, readers: &[NodeId]) -> Picture {
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
    /// Places the trained tensors in the order in which backward finishes them.
    pub(super) fn lay_out_slots(&mut self) -> (Vec<Slot>, usize) {
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
    pub(super) fn pack(&self, slots: &[Slot]) -> Packing {
        let mut packing = Packing { starts: vec![None; self.graph.params.len()], ..Packing::default() };
        for unit in &self.units {
            let Kind::Product { y, product, .. } = unit.kind else { continue };
            let product = &self.products[product];
            let kernel = self.kernel(y);
            let slot =
                slots.iter().find(|slot| slot.param == kernel).expect("invariant: kernels are trained");
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
