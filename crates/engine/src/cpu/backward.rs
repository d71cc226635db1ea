//! The instructions of backward, in reverse order of the units.
//!
//! The gradient of a value is a buffer. Several values may share one (a sum hands the same gradient to all its
//! inputs); whoever changes a shared buffer first makes a copy of its own.

use paceline_model::NodeId;

use super::action::{Action, Product, SlideKind};
use super::compile::{Lowering, Step};
use super::flat::{Dropout, Padding, Stretches, Sweep};
use super::kernels::tile::Mode;
use super::product::Direction;
use super::windows::{DepthwiseSum, Slide};
use crate::outline::{Bounds, Kind, Unit};
use crate::plan::Buffer;

struct Reverse<'a, 'g> {
    lowering: &'a mut Lowering<'g>,
    /// Gradient of each node's value, once something has been added to it.
    grads: Vec<Option<Buffer>>,
    /// The gradient that the current unit reads while it writes others.
    reading: Option<Buffer>,
}

/// Emits backward, which follows forward in time.
pub(crate) fn lower(lowering: &mut Lowering) -> Vec<Step> {
    let outline = lowering.outline;
    let grads = vec![None; lowering.graph.nodes.len()];
    let mut reverse = Reverse { grads, reading: None, lowering };
    for (index, unit) in outline.units.iter().enumerate().rev() {
        if outline.wanted[unit.y.0] {
            reverse.lowering.unit = index;
            reverse.lower(unit);
            reverse.lowering.buffers.now += 1;
        }
    }
    std::mem::take(&mut reverse.lowering.steps)
}

impl Reverse<'_, '_> {
    fn push(&mut self, action: Action) {
        self.lowering.push(action);
    }

    fn wants(&self, x: NodeId) -> bool {
        self.lowering.outline.wanted[x.0]
    }

    /// A new buffer for gradients of activations.
    fn new_grads(&mut self, count: usize) -> Buffer {
        self.lowering.take_values(count)
    }

    fn new_workspace(&mut self, len: usize) -> Buffer {
        self.lowering.take_floats(len)
    }

    /// The gradient of a unit's output, which only this unit uses from now on.
    fn take(&mut self, y: NodeId) -> Buffer {
        let buffer = self.grads[y.0].take().expect("invariant: every value reaches the loss");
        self.reading = Some(buffer);
        self.lowering.buffers.touch(buffer, 0)
    }

    fn shared(&self, buffer: Buffer) -> bool {
        self.grads.contains(&Some(buffer))
    }

    /// The buffer, or a copy of it where another value still needs it as it is.
    fn own(&mut self, buffer: Buffer) -> Buffer {
        if self.shared(buffer) { self.copy(buffer) } else { buffer }
    }

    fn copy(&mut self, buffer: Buffer) -> Buffer {
        let out = self.new_grads(self.lowering.counts[buffer.0]);
        self.push(Action::Flat { sweep: Sweep::Copy, a: buffer, b: buffer, out });
        out
    }

    /// Where a contribution to a value's gradient goes; `None` if the gradient is not needed.
    fn target(&mut self, x: NodeId) -> Option<(Buffer, Mode)> {
        if !self.wants(x) {
            return None;
        }
        let (buffer, mode) = match self.grads[x.0].take() {
            None => (self.new_grads(self.lowering.count(x)), Mode::Write),
            Some(buffer) => {
                self.lowering.buffers.touch(buffer, 0);
                let taken = self.shared(buffer) || self.reading == Some(buffer);
                (if taken { self.copy(buffer) } else { buffer }, Mode::Add)
            }
        };
        self.grads[x.0] = Some(buffer);
        Some((buffer, mode))
    }

    /// Adds a whole gradient to a value's. The first one is not copied: the value shares its buffer.
    fn hand(&mut self, x: NodeId, grad: Buffer) {
        if !self.wants(x) {
            return;
        }
        if self.grads[x.0].is_none() {
            self.grads[x.0] = Some(grad);
        } else if let Some((out, _)) = self.target(x) {
            self.push(Action::Flat { sweep: Sweep::Accumulate, a: grad, b: grad, out });
        }
    }

    fn lower(&mut self, unit: &Unit) {
        let y = unit.y;
        let (batch, layout, simd) = (self.lowering.spec.batch, self.lowering.spec.layout, self.lowering.simd);
        match unit.kind {
            Kind::CrossEntropy { x } | Kind::SquaredError { x, .. } => {
                let grad = self.lowering.recall();
                self.hand(x, grad);
            }
            Kind::Product(ref product) => {
                let grad = self.take(y);
                let (x, kernel, transposed) = (product.x, product.kernel, product.transposed);
                let value = self.lowering.buffers.value(x);
                let conv = self.lowering.conv(product);
                let plan = self.lowering.weight_sum(conv);
                let workspace = self.new_workspace(plan.workspace(self.lowering.threads));
                // A transposed convolution's own output is the input of the convolution that it undoes.
                let (input, output_grad) = if transposed { (grad, value) } else { (value, grad) };
                let bias = product.bias.filter(|_| !transposed);
                self.push(Action::WeightSum { plan, input, output_grad, kernel, bias, workspace });
                if let Some(bias) = product.bias.filter(|_| transposed) {
                    let maps = self.lowering.maps(y);
                    let workspace = self.new_workspace(batch * maps.shape.c);
                    self.push(Action::ChannelSums { maps, grad, bias, workspace });
                }
                if let Some((dest, mode)) = self.target(x) {
                    let direction = if transposed { Direction::Forward } else { Direction::Backward };
                    let plan: Product = self.lowering.product(conv, direction);
                    let workspace = self.new_workspace(plan.workspace(self.lowering.threads));
                    let source = grad;
                    self.push(Action::Product { plan, source, kernel, bias: None, dest, mode, workspace });
                }
            }
            Kind::Depthwise { x, window, kernel, bias } => {
                let grad = self.take(y);
                let plan = DepthwiseSum::new(window, batch, layout, simd);
                let workspace = self.new_workspace(plan.workspace());
                let input = self.lowering.buffers.value(x);
                self.push(Action::DepthwiseSum { plan, input, output_grad: grad, kernel, bias, workspace });
                let kind = SlideKind::Weighted { kernel, bias: None };
                self.slide_back(x, grad, Slide::backward(&window, batch, layout, simd), kind);
            }
            Kind::Norm(layer) => {
                let grad = self.take(y);
                let norm = self.lowering.norm(unit, &layer);
                let kept = self.lowering.recall();
                let (x, input) = (layer.x, self.lowering.buffers.value(layer.x));
                // With a residual and a bound the gradient is bounded in place, so this unit needs its own copy.
                let hidden = layer.residual.is_some() && norm.bounds != Bounds::NONE;
                let output = hidden.then(|| self.lowering.buffers.value(y));
                let output_grad = if hidden { self.own(grad) } else { grad };
                let workspace = self.new_workspace(norm.workspace());
                let in_place = layer.residual.is_none()
                    && self.wants(x)
                    && self.grads[x.0].is_none()
                    && !self.shared(output_grad);
                let (input_grad, mode) = if in_place {
                    self.grads[x.0] = Some(output_grad);
                    (output_grad, Mode::Write)
                } else {
                    match self.target(x) {
                        Some(target) => target,
                        None => (self.new_grads(self.lowering.count(x)), Mode::Write),
                    }
                };
                self.push(Action::NormBackward {
                    norm,
                    layer,
                    input,
                    output,
                    output_grad,
                    input_grad,
                    mode,
                    kept,
                    workspace,
                });
                if let Some(residual) = layer.residual {
                    self.hand(residual, output_grad);
                }
            }
            Kind::Bias { .. } => unreachable!("invariant: products add their biases"),
            Kind::Bound { x, bounds } => {
                let grad = self.take(y);
                if self.wants(x) {
                    let grad = self.own(grad);
                    let value = self.lowering.buffers.value(y);
                    self.push(Action::Flat { sweep: Sweep::Unbound(bounds), a: grad, b: value, out: grad });
                    self.hand(x, grad);
                }
            }
            Kind::MaxPool { x, window } => {
                let source = self.take(y);
                let kind = SlideKind::Winners { winners: self.lowering.recall() };
                self.slide_back(x, source, Slide::backward(&window, batch, layout, simd), kind);
            }
            Kind::AvgPool { x, window } => {
                let source = self.take(y);
                let plan = Slide::backward(&window, batch, layout, simd);
                self.slide_back(x, source, plan, SlideKind::Fractions);
            }
            Kind::GlobalPool { x } => {
                let vector = self.take(y);
                if let Some((map, mode)) = self.target(x) {
                    self.push(Action::Spread { maps: self.lowering.maps(x), vector, map, mode });
                }
            }
            Kind::Add { inputs } => {
                let grad = self.take(y);
                for x in inputs {
                    self.hand(x, grad);
                }
            }
            Kind::Concat { ref inputs } => {
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
            Kind::Dropout { x, rate, seed } => {
                let grad = self.take(y);
                if self.wants(x) {
                    let grad = self.own(grad);
                    self.push(Action::Dropout { plan: Dropout { rate, seed }, from: grad, to: grad });
                    self.hand(x, grad);
                }
            }
            Kind::Flatten { x } => {
                let vector = self.take(y);
                if self.lowering.lies_flat(x) {
                    self.hand(x, vector);
                } else if let Some((map, mode)) = self.target(x) {
                    self.push(Action::Unflatten { maps: self.lowering.maps(x), vector, map, mode });
                }
            }
            Kind::Pad { x, border } => {
                let from = self.take(y);
                let (inner, outer) = (self.lowering.shape(x), self.lowering.shape(y));
                if let Some((to, mode)) = self.target(x) {
                    let plan = Padding { border, inner, outer, batch, layout };
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
