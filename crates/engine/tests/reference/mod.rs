//! A naive evaluator in double precision: the oracle that fast kernels are held against.

use std::collections::HashMap;

use paceline_model::{Border, Graph, Node, Op, ParamId, ParamKind, Shape};

/// Parameters in double precision, canonical order.
pub type Params = Vec<Vec<f64>>;

/// A batch of maps as `[sample][row][column][channel]`.
type Maps = Vec<f64>;

fn at(shape: Shape, n: usize, y: usize, x: usize, c: usize) -> usize {
    ((n * shape.h + y) * shape.w + x) * shape.c + c
}

/// Visits (output y, x, tap y, x, input y, x) for all taps that read real input.
fn taps(
    input: Shape,
    output: Shape,
    kernel: (usize, usize),
    stride: (usize, usize),
    border: Border,
    mut visit: impl FnMut(usize, usize, usize, usize, usize, usize),
) {
    for y in 0..output.h {
        for x in 0..output.w {
            for ky in 0..kernel.0 {
                for kx in 0..kernel.1 {
                    let iy = (y * stride.0 + ky) as isize - border.top as isize;
                    let ix = (x * stride.1 + kx) as isize - border.left as isize;
                    if (0..input.h as isize).contains(&iy) && (0..input.w as isize).contains(&ix) {
                        visit(y, x, ky, kx, iy as usize, ix as usize);
                    }
                }
            }
        }
    }
}

/// Loss of a batch in training mode (dropout must be absent), and the value the loss judges.
pub fn loss(graph: &Graph, params: &Params, images: &[f32], labels: &[u32]) -> (f64, Vec<f64>) {
    let batch = labels.len();
    let mut values: HashMap<usize, Maps> = HashMap::new();
    let mut result = 0.0;
    for (index, node) in graph.nodes.iter().enumerate() {
        let inputs: Vec<(&Maps, Shape)> =
            node.inputs.iter().map(|id| (&values[&id.0], graph.node(*id).shape)).collect();
        let value = match node.op {
            Op::Input => images.iter().map(|&v| f64::from(v)).collect(),
            Op::SoftmaxCrossEntropy => {
                result = cross_entropy(inputs[0].0, labels);
                vec![result]
            }
            Op::MeanSquaredError => {
                let pairs = inputs[0].0.iter().zip(inputs[1].0);
                result = pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>() / inputs[0].0.len() as f64;
                vec![result]
            }
            _ => evaluate(graph, node, &inputs, params, batch),
        };
        values.insert(index, value);
    }
    let output = values.remove(&graph.output().0).expect("the loss has an input");
    (result, output)
}

fn cross_entropy(logits: &[f64], labels: &[u32]) -> f64 {
    let classes = logits.len() / labels.len();
    let each = logits.chunks_exact(classes).zip(labels).map(|(row, &label)| {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|v| (v - top).exp()).sum();
        sum.ln() - (row[label as usize] - top)
    });
    each.sum::<f64>() / labels.len() as f64
}

fn evaluate(graph: &Graph, node: &Node, inputs: &[(&Maps, Shape)], params: &Params, batch: usize) -> Maps {
    let out = node.shape;
    let mut y = vec![0.0; batch * out.len()];
    let (x, shape) = inputs[0];
    let param = |kind| {
        let id: Option<&ParamId> = node.params.iter().find(|id| graph.param(**id).kind == kind);
        id.map(|id| &params[id.0])
    };
    let add_bias = |y: &mut Maps| {
        if let Some(bias) = param(ParamKind::Bias) {
            y.iter_mut().enumerate().for_each(|(i, v)| *v += bias[i % out.c]);
        }
    };
    match node.op {
        Op::Conv(conv) => {
            let kernel = param(ParamKind::Kernel).unwrap();
            let (per_in, per_out) = (shape.c / conv.groups, out.c / conv.groups);
            for n in 0..batch {
                taps(shape, out, conv.kernel, conv.stride, conv.border, |oy, ox, ky, kx, iy, ix| {
                    for co in 0..out.c {
                        for ci in 0..per_in {
                            let channel = co / per_out * per_in + ci;
                            let tap = ky * conv.kernel.1 + kx;
                            y[at(out, n, oy, ox, co)] +=
                                x[at(shape, n, iy, ix, channel)] * kernel[(tap * per_in + ci) * out.c + co];
                        }
                    }
                });
            }
            add_bias(&mut y);
        }
        Op::ConvTranspose(conv) => {
            let kernel = param(ParamKind::Kernel).unwrap();
            let border = Border { top: conv.crop, left: conv.crop, bottom: 0, right: 0 };
            for n in 0..batch {
                // The convolution that it undoes leads from `out` to `shape`.
                taps(out, shape, conv.kernel, conv.stride, border, |iy, ix, ky, kx, oy, ox| {
                    for co in 0..out.c {
                        for ci in 0..shape.c {
                            let tap = ky * conv.kernel.1 + kx;
                            y[at(out, n, oy, ox, co)] +=
                                x[at(shape, n, iy, ix, ci)] * kernel[(tap * out.c + co) * shape.c + ci];
                        }
                    }
                });
            }
            add_bias(&mut y);
        }
        Op::Dense(_) => {
            let kernel = param(ParamKind::Kernel).unwrap();
            for n in 0..batch {
                for ci in 0..shape.c {
                    for co in 0..out.c {
                        y[n * out.c + co] += x[n * shape.c + ci] * kernel[ci * out.c + co];
                    }
                }
            }
            add_bias(&mut y);
        }
        Op::BatchNorm(norm) => {
            let count = (batch * shape.pixels()) as f64;
            for c in 0..shape.c {
                let channel = || x.iter().skip(c).step_by(shape.c);
                let mean = channel().sum::<f64>() / count;
                let variance = channel().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
                let gamma = param(ParamKind::Gamma).map_or(1.0, |g| g[c]);
                let beta = param(ParamKind::Beta).map_or(0.0, |b| b[c]);
                let scale = gamma / (variance + f64::from(norm.epsilon)).sqrt();
                for i in (c..y.len()).step_by(shape.c) {
                    y[i] = (x[i] - mean) * scale + beta;
                }
            }
        }
        Op::Relu => y = x.iter().map(|v| v.max(0.0)).collect(),
        Op::Relu6 => y = x.iter().map(|v| v.clamp(0.0, 6.0)).collect(),
        Op::MaxPool(pool) => {
            y.fill(f64::NEG_INFINITY);
            for n in 0..batch {
                taps(shape, out, pool.kernel, pool.stride, pool.border, |oy, ox, _, _, iy, ix| {
                    for c in 0..out.c {
                        let target = &mut y[at(out, n, oy, ox, c)];
                        *target = target.max(x[at(shape, n, iy, ix, c)]);
                    }
                });
            }
        }
        Op::AvgPool(pool) => {
            let mut counts = vec![0.0; y.len()];
            for n in 0..batch {
                taps(shape, out, pool.kernel, pool.stride, pool.border, |oy, ox, _, _, iy, ix| {
                    for c in 0..out.c {
                        y[at(out, n, oy, ox, c)] += x[at(shape, n, iy, ix, c)];
                        counts[at(out, n, oy, ox, c)] += 1.0;
                    }
                });
            }
            y.iter_mut().zip(counts).for_each(|(v, count)| *v /= count);
        }
        Op::GlobalAvgPool => {
            for (i, v) in x.iter().enumerate() {
                y[i / shape.len() * shape.c + i % shape.c] += v / shape.pixels() as f64;
            }
        }
        Op::Add => y = x.iter().zip(inputs[1].0).map(|(a, b)| a + b).collect(),
        Op::Concat => {
            for pixel in 0..batch * out.pixels() {
                let mut channel = 0;
                for (part, shape) in inputs {
                    y[pixel * out.c + channel..][..shape.c]
                        .copy_from_slice(&part[pixel * shape.c..][..shape.c]);
                    channel += shape.c;
                }
            }
        }
        Op::Flatten => y.copy_from_slice(x),
        Op::Pad(border) => {
            for n in 0..batch {
                for iy in 0..shape.h {
                    for ix in 0..shape.w {
                        for c in 0..shape.c {
                            y[at(out, n, iy + border.top, ix + border.left, c)] = x[at(shape, n, iy, ix, c)];
                        }
                    }
                }
            }
        }
        Op::Dropout { .. } | Op::Input | Op::SoftmaxCrossEntropy | Op::MeanSquaredError => {
            unreachable!("not evaluated here")
        }
    }
    y
}
