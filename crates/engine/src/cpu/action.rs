//! The instructions of a compiled program: what is computed, from which buffers, into which.

use std::sync::Arc;

use paceline_model::ParamId;

use super::columns::Columns;
use super::element::Element;
use super::flat::{ChannelSums, Dropout, Flat, Maps, Padding, Stretches, Sweep};
use super::kernels::tile::Mode;
use super::loss::{self, Gradient, Score};
use super::memory::View;
use super::norm::{Kept, Norm, NormBackward, NormParams, Running};
use super::pool::Pool;
use super::product::{Gather, Operands};
use super::simd::Simd;
use super::tiles::{TileProduct, TileSum};
use super::weights::{WeightOperands, WeightSum};
use super::windows::{DepthwiseOperands, DepthwiseSum, Gathering, Slide};
use crate::Pass;
use crate::outline;
use crate::plan::Buffer;

/// A product in either layout.
pub(crate) enum Product {
    /// Pixels are rows.
    Rows(Gather),
    /// Pixels are columns.
    Columns(Columns),
    /// Of bf16 values, in either layout.
    Tiles(TileProduct),
}

impl Product {
    /// Values of workspace that a run needs.
    pub fn workspace(&self, threads: usize) -> usize {
        match self {
            Self::Rows(plan) => plan.workspace(threads),
            Self::Columns(plan) => plan.workspace(threads),
            Self::Tiles(plan) => plan.workspace(threads),
        }
    }
}

/// A gradient of weights.
pub(crate) enum Sum {
    /// Of fp32 values.
    Registers(WeightSum),
    /// Of bf16 values.
    Tiles(TileSum),
}

impl Sum {
    /// Values of workspace that a run needs.
    pub fn workspace(&self, threads: usize) -> usize {
        match self {
            Self::Registers(plan) => plan.workspace(),
            Self::Tiles(plan) => plan.workspace(threads),
        }
    }
}

/// Which gathering a [`Slide`] does, by buffers and parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlideKind {
    Weighted { kernel: ParamId, bias: Option<ParamId> },
    Largest { winners: Buffer },
    Winners { winners: Buffer },
    Mean,
    Fractions,
}

/// One instruction.
pub(crate) enum Action {
    Product {
        plan: Product,
        source: Buffer,
        kernel: ParamId,
        bias: Option<ParamId>,
        dest: Buffer,
        mode: Mode,
        workspace: Buffer,
    },
    WeightSum {
        plan: Sum,
        input: Buffer,
        output_grad: Buffer,
        kernel: ParamId,
        bias: Option<ParamId>,
        workspace: Buffer,
    },
    ChannelSums {
        maps: Maps,
        grad: Buffer,
        bias: ParamId,
        workspace: Buffer,
    },
    Slide {
        plan: Slide,
        kind: SlideKind,
        source: Buffer,
        dest: Buffer,
        mode: Mode,
    },
    DepthwiseSum {
        plan: DepthwiseSum,
        input: Buffer,
        output_grad: Buffer,
        kernel: ParamId,
        bias: Option<ParamId>,
        workspace: Buffer,
    },
    Norm {
        norm: Norm,
        layer: outline::Norm,
        input: Buffer,
        residual: Option<Buffer>,
        output: Buffer,
        kept: Buffer,
        workspace: Buffer,
    },
    NormBackward {
        norm: Norm,
        layer: outline::Norm,
        input: Buffer,
        output: Option<Buffer>,
        output_grad: Buffer,
        input_grad: Buffer,
        mode: Mode,
        kept: Buffer,
        workspace: Buffer,
    },
    Flat {
        sweep: Sweep,
        a: Buffer,
        b: Buffer,
        out: Buffer,
    },
    Stretches {
        plan: Stretches,
        from: Buffer,
        from_offset: usize,
        to: Buffer,
        to_offset: usize,
        mode: Mode,
    },
    Pad {
        plan: Padding,
        from: Buffer,
        to: Buffer,
    },
    Crop {
        plan: Padding,
        from: Buffer,
        to: Buffer,
        mode: Mode,
    },
    Mean {
        maps: Maps,
        map: Buffer,
        vector: Buffer,
    },
    Spread {
        maps: Maps,
        vector: Buffer,
        map: Buffer,
        mode: Mode,
    },
    Flatten {
        maps: Maps,
        map: Buffer,
        vector: Buffer,
    },
    Unflatten {
        maps: Maps,
        vector: Buffer,
        map: Buffer,
        mode: Mode,
    },
    Dropout {
        plan: Dropout,
        from: Buffer,
        to: Buffer,
    },
    CrossEntropy {
        logits: Buffer,
        grad: Buffer,
        smoothing: f32,
    },
    SquaredError {
        output: Buffer,
        target: Buffer,
        grad: Buffer,
        workspace: Buffer,
    },
}

/// Whether layers behave as in training or as in evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Training,
    Evaluation,
}

/// What actions run on.
pub(crate) struct Machine {
    pub pool: Arc<Pool>,
    pub simd: Simd,
    /// Views of the plan's buffers, as fp32.
    pub buffers: Vec<View>,
    /// Values of each, in their own format.
    pub counts: Vec<usize>,
    /// Views of all parameters, by id.
    pub params: Vec<View>,
    /// Views of the gradients, by id; empty views where a parameter is not trained.
    pub grads: Vec<View>,
    pub labels: Vec<u32>,
    /// Samples of a batch that count in evaluation.
    pub live: usize,
    pub score: Score,
    /// The pass that runs.
    pub pass: Pass,
}

impl Machine {
    /// Whether gradients of parameters are replaced or added to.
    fn grad_mode(&self) -> Mode {
        if self.pass.index == 0 { Mode::Write } else { Mode::Add }
    }

    /// Activations or gradients of them.
    pub fn at<E: Element>(&self, buffer: Buffer) -> View<E> {
        self.buffers[buffer.0].of().part(0, self.counts[buffer.0])
    }

    /// Statistics and workspaces.
    fn floats(&self, buffer: Buffer) -> View {
        self.buffers[buffer.0]
    }

    fn param(&self, id: ParamId) -> View {
        self.params[id.0]
    }

    fn grad(&self, id: ParamId) -> View {
        self.grads[id.0]
    }

    fn norm_params(&self, layer: &outline::Norm) -> NormParams {
        NormParams {
            gamma: layer.gamma.map(|id| self.param(id)),
            beta: layer.beta.map(|id| self.param(id)),
            moving_mean: self.param(layer.moving_mean),
            moving_variance: self.param(layer.moving_variance),
        }
    }

    /// Runs one instruction of a program whose activations are stored so.
    pub fn run<E: Element>(&mut self, action: &Action, phase: Phase) {
        let pool = &*self.pool;
        match action {
            Action::Product { plan, source, kernel, bias, dest, mode, workspace } => {
                let (weights, bias) = (self.param(*kernel), bias.map(|id| self.param(id)));
                let (mode, workspace) = (*mode, self.floats(*workspace));
                match plan {
                    Product::Rows(plan) => {
                        let (source, dest) = (self.at(*source), self.at(*dest));
                        plan.run(pool, &Operands { source, weights, bias, dest, mode, workspace });
                    }
                    Product::Columns(plan) => {
                        let (source, dest) = (self.at(*source), self.at(*dest));
                        plan.run(pool, &Operands { source, weights, bias, dest, mode, workspace });
                    }
                    Product::Tiles(plan) => {
                        let (source, dest) = (self.at(*source), self.at(*dest));
                        plan.run(pool, &Operands { source, weights, bias, dest, mode, workspace });
                    }
                }
            }
            Action::WeightSum { plan, input, output_grad, kernel, bias, workspace } => {
                let (weight_grad, bias_grad) = (self.grad(*kernel), bias.map(|id| self.grad(id)));
                let (mode, workspace) = (self.grad_mode(), self.floats(*workspace));
                match plan {
                    Sum::Registers(plan) => {
                        let (input, output_grad) = (self.at(*input), self.at(*output_grad));
                        plan.run(
                            pool,
                            &WeightOperands { input, output_grad, weight_grad, bias_grad, mode, workspace },
                        );
                    }
                    Sum::Tiles(plan) => {
                        let (input, output_grad) = (self.at(*input), self.at(*output_grad));
                        plan.run(
                            pool,
                            &WeightOperands { input, output_grad, weight_grad, bias_grad, mode, workspace },
                        );
                    }
                }
            }
            Action::ChannelSums { maps, grad, bias, workspace } => {
                let sums = ChannelSums {
                    map: self.at::<E>(*grad),
                    sums: self.grad(*bias),
                    mode: self.grad_mode(),
                    workspace: self.floats(*workspace),
                };
                maps.channel_sums(pool, &sums);
            }
            Action::Slide { plan, kind, source, dest, mode } => {
                let gathering: Gathering<E> = match *kind {
                    SlideKind::Weighted { kernel, bias } => Gathering::Weighted {
                        weights: self.param(kernel),
                        bias: bias.map(|id| self.param(id)),
                    },
                    SlideKind::Largest { winners } => Gathering::Largest { winners: self.at(winners) },
                    SlideKind::Winners { winners } => Gathering::Winners { winners: self.at(winners) },
                    SlideKind::Mean => Gathering::Mean,
                    SlideKind::Fractions => Gathering::Fractions,
                };
                plan.run(pool, gathering, self.at(*source), self.at(*dest), *mode);
            }
            Action::DepthwiseSum { plan, input, output_grad, kernel, bias, workspace } => {
                let operands = DepthwiseOperands {
                    input: self.at::<E>(*input),
                    output_grad: self.at(*output_grad),
                    weight_grad: self.grad(*kernel),
                    bias_grad: bias.map(|id| self.grad(id)),
                    mode: self.grad_mode(),
                    workspace: self.floats(*workspace),
                };
                plan.run(pool, &operands);
            }
            Action::Norm { norm, layer, input, residual, output, kept, workspace } => {
                let kept = Kept::new(self.floats(*kept), norm.channels);
                let params = self.norm_params(layer);
                let input = self.at::<E>(*input);
                match phase {
                    Phase::Training => {
                        let workspace = self.floats(*workspace);
                        let momentum = self.pass.keep(layer.momentum);
                        let running = Running { momentum, correction: layer.correction };
                        norm.measure(pool, input, &params, running, &kept, workspace);
                    }
                    Phase::Evaluation => norm.recall(&params, &kept),
                }
                let residual = residual.map(|buffer| self.at(buffer));
                norm.apply(pool, input, residual, self.at(*output), &kept);
            }
            Action::NormBackward {
                norm,
                layer,
                input,
                output,
                output_grad,
                input_grad,
                mode,
                kept,
                workspace,
            } => {
                let operands = NormBackward {
                    input: self.at::<E>(*input),
                    output: output.map(|buffer| self.at(buffer)),
                    output_grad: self.at(*output_grad),
                    input_grad: self.at(*input_grad),
                    mode: *mode,
                    gamma_grad: layer.gamma.map(|id| self.grad(id)),
                    beta_grad: layer.beta.map(|id| self.grad(id)),
                    param_mode: self.grad_mode(),
                };
                let kept = Kept::new(self.floats(*kept), norm.channels);
                norm.backward(pool, &operands, &kept, self.floats(*workspace));
            }
            Action::Flat { sweep, a, b, out } => {
                Flat { sweep: *sweep, a: self.at::<E>(*a), b: self.at(*b), out: self.at(*out) }
                    .run(pool, self.simd)
            }
            Action::Stretches { plan, from, from_offset, to, to_offset, mode } => {
                let cut = |view: View<E>, offset: usize| view.part(offset, view.len() - offset);
                let from = cut(self.at(*from), *from_offset);
                plan.run(pool, from, cut(self.at(*to), *to_offset), *mode);
            }
            Action::Pad { plan, from, to } => plan.forward(pool, self.at::<E>(*from), self.at(*to)),
            Action::Crop { plan, from, to, mode } => {
                plan.backward(pool, self.at::<E>(*from), self.at(*to), *mode);
            }
            Action::Mean { maps, map, vector } => maps.mean(pool, self.at::<E>(*map), self.at(*vector)),
            Action::Spread { maps, vector, map, mode } => {
                maps.spread(pool, self.at::<E>(*vector), self.at(*map), *mode);
            }
            Action::Flatten { maps, map, vector } => {
                maps.flatten(pool, self.at::<E>(*map), self.at(*vector));
            }
            Action::Unflatten { maps, vector, map, mode } => {
                maps.unflatten(pool, self.at::<E>(*vector), self.at(*map), *mode);
            }
            Action::Dropout { plan, from, to } => match phase {
                Phase::Training => plan.run(pool, self.pass.stream, self.at::<E>(*from), self.at(*to)),
                Phase::Evaluation => {
                    Flat { sweep: Sweep::Copy, a: self.at::<E>(*from), b: self.at(*from), out: self.at(*to) }
                        .run(pool, self.simd)
                }
            },
            Action::CrossEntropy { logits, grad, smoothing } => {
                let (logits, grad) = (self.at::<E>(*logits), self.at(*grad));
                self.score = match phase {
                    Phase::Training => {
                        let targets = loss::Targets { labels: &self.labels, smoothing: *smoothing };
                        let grad = Gradient { values: grad, passes: self.pass.count };
                        loss::softmax_cross_entropy(logits, targets, Some(grad))
                    }
                    Phase::Evaluation => {
                        let targets = loss::Targets { labels: &self.labels[..self.live], smoothing: 0.0 };
                        let classes = logits.len() / self.labels.len();
                        loss::softmax_cross_entropy(logits.part(0, classes * self.live), targets, None)
                    }
                };
            }
            Action::SquaredError { output, target, grad, workspace } => {
                let count = match phase {
                    Phase::Training => self.at::<E>(*output).len(),
                    Phase::Evaluation => self.at::<E>(*output).len() / self.labels.len() * self.live,
                };
                let counted = |buffer: &Buffer| self.at::<E>(*buffer).part(0, count);
                self.score = loss::mean_squared_error(
                    pool,
                    counted(output),
                    counted(target),
                    Gradient { values: counted(grad), passes: self.pass.count },
                    self.floats(*workspace),
                );
            }
        }
    }
}
