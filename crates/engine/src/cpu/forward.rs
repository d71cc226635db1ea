//! The instructions of forward.

use paceline_model::{NodeId, Op};

use super::action::{Action, SlideKind};
use super::compile::Lowering;
use super::flat::{Dropout, Padding, Stretches, Sweep};
use super::kernels::tile::Mode;
use super::loss::squared_error_workspace;
use super::product::Direction;
use super::windows::Slide;
use crate::outline::{Kind, Unit, Window};

impl Lowering<'_> {
    /// Emits the instructions of a unit.
    pub fn forward(&mut self, unit: &Unit) {
        let (y, batch, layout) = (unit.y, self.spec.batch, self.spec.layout);
        match unit.kind {
            Kind::Product(ref product) => {
                let direction = if product.transposed { Direction::Backward } else { Direction::Forward };
                let plan = self.product(self.conv(product), direction);
                let workspace = self.take_floats(plan.workspace(self.threads));
                let (source, dest) = (self.buffers.value(product.x), self.output(y));
                let (kernel, bias) = (product.kernel, product.bias);
                self.push(Action::Product { plan, source, kernel, bias, dest, mode: Mode::Write, workspace });
            }
            Kind::Depthwise { x, window, kernel, bias } => {
                self.slide(x, y, &window, |_| SlideKind::Weighted { kernel, bias });
            }
            Kind::MaxPool { x, window } => self.slide(x, y, &window, |lowering| {
                let winners = lowering.take_values(lowering.count(y));
                lowering.kept[lowering.unit] = Some(winners);
                SlideKind::Largest { winners }
            }),
            Kind::AvgPool { x, window } => self.slide(x, y, &window, |_| SlideKind::Mean),
            Kind::Norm(layer) => {
                let norm = self.norm(unit, &layer);
                let kept = self.take_floats(4 * norm.channels);
                self.kept[self.unit] = Some(kept);
                let workspace = self.take_floats(norm.workspace());
                let input = self.buffers.value(layer.x);
                let residual = layer.residual.map(|other| self.buffers.value(other));
                let output = self.output(y);
                self.push(Action::Norm { norm, layer, input, residual, output, kept, workspace });
            }
            Kind::Bias { .. } => unreachable!("invariant: products add their biases"),
            Kind::Bound { x, bounds } => {
                // In place where its input has no other use.
                let in_place = self.outline.consumers.sole(x).is_some()
                    && matches!(
                        self.graph.node(x).op,
                        Op::Conv(_) | Op::ConvTranspose(_) | Op::Dense(_) | Op::Add
                    );
                let a = self.buffers.value(x);
                let out = if in_place { self.buffers.assign(y, a) } else { self.output(y) };
                self.push(Action::Flat { sweep: Sweep::Bound(bounds), a, b: a, out });
            }
            Kind::GlobalPool { x } => {
                let maps = self.maps(x);
                let (map, vector) = (self.buffers.value(x), self.output(y));
                self.push(Action::Mean { maps, map, vector });
            }
            Kind::Add { inputs } => {
                let [a, b] = inputs.map(|x| self.buffers.value(x));
                let out = self.output(y);
                self.push(Action::Flat { sweep: Sweep::Sum, a, b, out });
            }
            Kind::Concat { ref inputs } => {
                let to = self.output(y);
                let mut channel = 0;
                for &x in inputs {
                    let part = self.shape(x);
                    let plan = Stretches::concat(part, self.shape(y), batch, layout);
                    let from = self.buffers.value(x);
                    let to_offset = channel * plan.len / part.c;
                    let mode = Mode::Write;
                    self.push(Action::Stretches { plan, from, from_offset: 0, to, to_offset, mode });
                    channel += part.c;
                }
            }
            Kind::Dropout { x, rate, seed } => {
                let (from, to) = (self.buffers.value(x), self.output(y));
                self.push(Action::Dropout { plan: Dropout { rate, seed }, from, to });
            }
            Kind::Flatten { x } => {
                let map = self.buffers.value(x);
                if self.lies_flat(x) {
                    self.buffers.assign(y, map);
                } else {
                    let vector = self.output(y);
                    self.push(Action::Flatten { maps: self.maps(x), map, vector });
                }
            }
            Kind::Pad { x, border } => {
                let plan = Padding { border, inner: self.shape(x), outer: self.shape(y), batch, layout };
                let (from, to) = (self.buffers.value(x), self.output(y));
                self.push(Action::Pad { plan, from, to });
            }
            Kind::CrossEntropy { x } => {
                let logits = self.buffers.value(x);
                let grad = self.take_values(self.count(x));
                self.kept[self.unit] = Some(grad);
                self.push(Action::CrossEntropy { logits, grad, smoothing: self.spec.label_smoothing });
            }
            Kind::SquaredError { x, target } => {
                let (output, target) = (self.buffers.value(x), self.buffers.value(target));
                let count = self.count(x);
                let grad = self.take_values(count);
                self.kept[self.unit] = Some(grad);
                let workspace = self.take_floats(squared_error_workspace(count));
                self.push(Action::SquaredError { output, target, grad, workspace });
            }
        }
    }

    /// A window that slides over each channel by itself.
    fn slide(&mut self, x: NodeId, y: NodeId, window: &Window, kind: impl FnOnce(&mut Self) -> SlideKind) {
        let (source, dest) = (self.buffers.value(x), self.output(y));
        let kind = kind(self);
        let plan = Slide::forward(window, self.spec.batch, self.spec.layout, self.simd);
        self.push(Action::Slide { plan, kind, source, dest, mode: Mode::Write });
    }
}
