//! The instructions of backward, in reverse order of the units.
//!
//! The gradient of a value is a buffer. Several values may share one (a sum hands the same gradient to all its
//! inputs); whoever changes a shared buffer first makes a copy of its own.

use paceline_model::{NodeId, ParamKind};

use super::action::{Action, Buffer, Product, SlideKind};
use super::compile::{Kind, Lowering, Step};
use super::flat::{Stretches, Sweep};
use super::kernels::tile::Mode;
use super::norm::Bounds;
use super::product::Direction;
use super::weights::WeightSum;
use super::windows::{DepthwiseSum, Slide};
use crate::Layout;

struct Reverse<'a, 'g> {
    lowering: &'a mut Lowering<'g>,
    unit: usize,
    /// Gradient of each node's value, once something has been added to it.
    grads: Vec<Option<Buffer>>,
    /// Whether anything trained lies below a node.
    wanted: Vec<bool>,
    /// The gradient that the unit at hand reads while it writes others.
    reading: Option<Buffer>,
}

/// Emits backward; time goes on from forward's end.
pub(crate) fn lower(lowering: &mut Lowering) -> Vec<Step> {
    let graph = lowering.graph;
    let mut wanted = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        wanted[index] = !node.params.is_empty() || node.inputs.iter().any(|input| wanted[input.0]);
    }
    let mut reverse =
        Reverse { grads: vec![None; graph.nodes.len()], wanted, reading: None, unit: 0, lowering };
    for unit in (0..reverse.lowering.units.len()).rev() {
        if reverse.lowering.units[unit].last.is_some_and(|last| !reverse.wanted[last.0]) {
            continue;
        }
        reverse.unit = unit;
        let kind = std::mem::replace(
            &mut reverse.lowering.units[unit].kind,
            Kind::Add { y: NodeId(0), inputs: Vec::new() },
        );
        reverse.lower(&kind);
        reverse.lowering.units[unit].kind = kind;
        reverse.lowering.now += 1;
    }
    std::mem::take(&mut reverse.lowering.steps)
}

impl Reverse<'_, '_> {
    fn push(&mut self, action: Action) {
        self.lowering.push(self.unit, action);
    }

    fn len(&self, id: NodeId) -> usize {
        self.lowering.spec.batch * self.lowering.shape(id).len()
    }

    /// The gradient of a unit's output, used now and given up by it.
    fn take(&mut self, y: NodeId) -> Buffer {
        let buffer = self.grads[y.0].take().expect("invariant: every value reaches the loss");
        self.reading = Some(buffer);
        self.lowering.touch(buffer)
    }

    fn shared(&self, buffer: Buffer) -> bool {
        self.grads.contains(&Some(buffer))
    }

    /// The buffer, or a copy of it where another value still needs it as it is.
    fn own(&mut self, buffer: Buffer) -> Buffer {
        if self.shared(buffer) { self.copy(buffer) } else { buffer }
    }

    fn copy(&mut self, buffer: Buffer) -> Buffer {
        let out = self.lowering.buffer(self.lowering.buffers[buffer.0].len);
        self.push(Action::Flat { sweep: Sweep::Copy, a: buffer, b: buffer, out });
        out
    }

    /// Where a contribution to a value's gradient goes: `None` if nobody wants it.
    fn target(&mut self, x: NodeId) -> Option<(Buffer, Mode)> {
        if !self.wanted[x.0] {
            return None;
        }
        let (buffer, mode) = match self.grads[x.0].take() {
            None => (self.lowering.buffer(self.len(x)), Mode::Write),
            Some(buffer) => {
                self.lowering.touch(buffer);
                let taken = self.shared(buffer) || self.reading == Some(buffer);
                (if taken { self.copy(buffer) } else { buffer }, Mode::Add)
            }
        };
        self.grads[x.0] = Some(buffer);
        Some((buffer, mode))
    }

    /// Adds a whole gradient to a value's: by sharing the buffer where it is the first.
    fn hand(&mut self, x: NodeId, grad: Buffer) {
        if !self.wanted[x.0] {
            return;
        }
        if self.grads[x.0].is_none() {
            self.grads[x.0] = Some(grad);
        } else if let Some((out, _)) = self.target(x) {
            self.push(Action::Flat { sweep: Sweep::Accumulate, a: grad, b: grad, out });
        }
    }

    fn lower(&mut self, kind: &Kind) {
        let batch = self.lowering.spec.batch;
        let (layout, simd) = (self.lowering.spec.layout, self.lowering.simd);
        match *kind {
            Kind::Loss { x, grad } => {
                let grad = self.lowering.touch(grad);
                self.hand(x, grad);
            }
            Kind::Conv { x, y, conv, transposed } => {
                let grad = self.take(y);
                let node = self.lowering.graph.node(y);
                let kernel =
                    self.lowering.param(node, ParamKind::Kernel).expect("invariant: the layer has a kernel");
                let bias = self.lowering.param(node, ParamKind::Bias);
                let value = self.lowering.value(x);
                let single = conv.window.input.pixels() == 1 && conv.window.output.pixels() == 1;
                let sum_layout = if single { Layout::Nhwc } else { layout };
                let plan = WeightSum::new(conv, sum_layout, simd);
                let workspace = self.lowering.buffer(plan.workspace());
                // A transposed convolution's own output is the input of the convolution that it undoes.
                let (input, output_grad) = if transposed { (grad, value) } else { (value, grad) };
                let plain_bias = bias.filter(|_| !transposed);
                self.push(Action::WeightSum {
                    plan,
                    input,
                    output_grad,
                    kernel,
                    bias: plain_bias,
                    workspace,
                });
                if let Some(bias) = bias.filter(|_| transposed) {
                    let maps = self.lowering.maps(self.lowering.shape(y));
                    let workspace = self.lowering.buffer(batch * maps.shape.c);
                    self.push(Action::ChannelSums { maps, grad, bias, workspace });
                }
                if let Some((dest, mode)) = self.target(x) {
                    let direction = if transposed { Direction::Forward } else { Direction::Backward };
                    let plan: Product = self.lowering.product(conv, direction);
                    let workspace = self.lowering.buffer(plan.workspace(self.lowering.threads));
                    let source = grad;
                    self.push(Action::Product { plan, source, kernel, bias: None, dest, mode, workspace });
                }
            }
            Kind::Depthwise { x, y, window } => {
                let grad = self.take(y);
                let node = self.lowering.graph.node(y);
                let kernel =
                    self.lowering.param(node, ParamKind::Kernel).expect("invariant: the layer has a kernel");
                let bias = self.lowering.param(node, ParamKind::Bias);
                let plan = DepthwiseSum::new(window, batch, layout, simd);
                let workspace = self.lowering.buffer(plan.workspace());
                let input = self.lowering.value(x);
                self.push(Action::DepthwiseSum { plan, input, output_grad: grad, kernel, bias, workspace });
                if let Some((dest, mode)) = self.target(x) {
                    let plan = Slide::backward(&window, batch, layout, simd);
                    let kind = SlideKind::Weighted { kernel, bias: None };
                    self.push(Action::Slide { plan, kind, source: grad, dest, mode });
                }
            }
            Kind::Norm { x, y, residual, norm, ids, kept } => {
                let grad = self.take(y);
                let kept = self.lowering.touch(kept);
                let input = self.lowering.value(x);
                // With a residual and a bound the gradient is bounded in place, so it must be our own.
                let hidden = residual.is_some() && norm.bounds != Bounds::NONE;
                let output = hidden.then(|| self.lowering.value(y));
                let output_grad = if hidden { self.own(grad) } else { grad };
                let workspace = self.lowering.buffer(norm.workspace());
                let in_place = residual.is_none()
                    && self.wanted[x.0]
                    && self.grads[x.0].is_none()
                    && !self.shared(output_grad);
                let (input_grad, mode) = if in_place {
                    self.grads[x.0] = Some(output_grad);
                    (output_grad, Mode::Write)
                } else {
                    match self.target(x) {
                        Some(target) => target,
                        None => (self.lowering.buffer(self.len(x)), Mode::Write),
                    }
                };
                self.push(Action::NormBackward {
                    norm,
                    ids,
                    input,
                    output,
                    output_grad,
                    input_grad,
                    mode,
                    kept,
                    workspace,
                });
                if let Some(residual) = residual {
                    self.hand(residual, output_grad);
                }
            }
            Kind::Bound { x, y, bounds } => {
                let grad = self.take(y);
                if !self.wanted[x.0] {
                    return;
                }
                let grad = self.own(grad);
                let value = self.lowering.value(y);
                self.push(Action::Flat { sweep: Sweep::Unbound(bounds), a: grad, b: value, out: grad });
                self.hand(x, grad);
            }
            Kind::MaxPool { x, y, window, winners } => {
                let source = self.take(y);
                let winners = self.lowering.touch(winners);
                self.slide_back(
                    x,
                    source,
                    Slide::backward(&window, batch, layout, simd),
                    SlideKind::Winners { winners },
                );
            }
            Kind::AvgPool { x, y, window } => {
                let source = self.take(y);
                self.slide_back(
                    x,
                    source,
                    Slide::backward(&window, batch, layout, simd),
                    SlideKind::Fractions,
                );
            }
            Kind::GlobalPool { x, y, maps } => {
                let vector = self.take(y);
                if let Some((map, mode)) = self.target(x) {
                    self.push(Action::Spread { maps, vector, map, mode });
                }
            }
            Kind::Add { y, ref inputs } => {
                let grad = self.take(y);
                for &x in inputs {
                    self.hand(x, grad);
                }
            }
            Kind::Concat { y, ref inputs } => {
                let from = self.take(y);
                let whole = self.lowering.shape(y);
                let mut channel = 0;
                for &x in inputs {
                    let part = self.lowering.shape(x);
                    let plan = Stretches::concat(part, whole, batch, layout).swap();
                    let from_offset = channel * plan.len / part.c;
                    if let Some((to, mode)) = self.target(x) {
                        self.push(Action::Stretches { plan, from, from_offset, to, to_offset: 0, mode });
                    }
                    channel += part.c;
                }
            }
            Kind::Dropout { x, y, plan } => {
                let grad = self.take(y);
                if self.wanted[x.0] {
                    let grad = self.own(grad);
                    self.push(Action::Dropout { plan, from: grad, to: grad });
                    self.hand(x, grad);
                }
            }
            Kind::Flatten { x, y, maps } => {
                let vector = self.take(y);
                if layout == Layout::Nhwc || maps.shape.pixels() == 1 {
                    self.hand(x, vector);
                } else if let Some((map, mode)) = self.target(x) {
                    self.push(Action::Unflatten { maps, vector, map, mode });
                }
            }
            Kind::Pad { x, y, plan } => {
                let from = self.take(y);
                if let Some((to, mode)) = self.target(x) {
                    self.push(Action::Crop { plan, from, to, mode });
                }
            }
        }
    }

    fn slide_back(&mut self, x: NodeId, source: Buffer, plan: Slide, kind: SlideKind) {
        if let Some((dest, mode)) = self.target(x) {
            self.push(Action::Slide { plan, kind, source, dest, mode });
        }
    }
}
