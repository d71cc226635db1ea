//! Every layer kind: values against a naive evaluator in double precision, gradients against its finite differences,
//! in both layouts, on every instruction set and several thread counts.

mod reference;

use paceline_engine::cpu::{Cpu, CpuOptions, Simd};
use paceline_engine::{Engine, Layout, Pass, Precision, Program, Samples, Spec, Values};
use paceline_model::{
    BatchNorm, Border, Builder, Conv2d, ConvTranspose, Dense, Graph, Init, NodeId, Op, ParamId, Shape,
    ShapeError, Window,
};
use proptest::prelude::*;

/// SplitMix64, so that a case is a function of its name.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
    }
}

struct Case {
    graph: Graph,
    batch: usize,
    params: reference::Params,
    images: Vec<f32>,
    labels: Vec<u32>,
}

impl Case {
    fn new(graph: Graph, batch: usize, seed: u64) -> Self {
        let mut draw = Draw(seed);
        let params = graph
            .params
            .iter()
            .map(|param| {
                let (middle, spread) = match param.fan_in {
                    0 => (
                        if param.name.ends_with("gamma") || param.name.ends_with("variance") {
                            1.0
                        } else {
                            0.0
                        },
                        0.3,
                    ),
                    fan_in => (0.0, (3.0 / fan_in as f64).sqrt()),
                };
                (0..param.len()).map(|_| f64::from((middle + spread * draw.next()) as f32)).collect()
            })
            .collect();
        let images = (0..batch * graph.input().len()).map(|_| (1.5 * draw.next()) as f32).collect();
        let labels = (0..batch).map(|n| (n * 7 % graph.classes) as u32).collect();
        Self { graph, batch, params, images, labels }
    }

    fn loss(&self, params: &reference::Params) -> f64 {
        reference::loss(&self.graph, params, &self.images, &self.labels).0
    }

    fn run(&self, way: Way) -> (f64, Vec<f32>, Vec<Vec<f32>>) {
        let Way { layout, simd, threads, precision } = way;
        let engine = Cpu::new(CpuOptions { threads, simd: Some(simd) }).unwrap();
        let spec = Spec { layout, precision, ..Spec::new(self.batch) };
        let mut program = engine.compile(&self.graph, &spec).unwrap();
        for (id, values) in self.params.iter().enumerate() {
            let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            program.write(Values::Param(ParamId(id)), &values).unwrap();
        }
        // Twice, so that a result left over from the first step cannot hide an error in the second.
        let mut ready = Vec::new();
        for _ in 0..2 {
            ready.clear();
            program.feed(Samples { images: &self.images, labels: &self.labels }).unwrap();
            program.forward_backward(Pass::ONLY, &mut |slots| ready.push(slots)).unwrap();
        }
        assert!(ready.is_sorted() && ready.last() == Some(&program.slots().len()), "{ready:?}");
        let result = program.finish().unwrap();
        let mut output = vec![0.0; self.batch * self.graph.node(self.graph.output()).shape.len()];
        program.read(Values::Output, &mut output).unwrap();
        (f64::from(result.loss), output, gradients(&self.graph, &mut *program))
    }

    /// Gradients in bf16 point where those in fp32 do, which agree with finite differences. Single slopes are sums in which most cancels,
    /// so they say little about values of 8 bits.
    fn check_rounded(&self, way: Way, grads: &[Vec<f32>]) -> Result<(), TestCaseError> {
        let (_, _, exact) = self.run(Way { precision: Precision::Fp32, simd: Simd::Portable, ..way });
        let norm = |values: &[f32]| values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt();
        let largest = exact.iter().map(|values| norm(values)).fold(1e-4, f64::max);
        // Another one of several close values may be the largest.
        let maximum = self.graph.nodes.iter().any(|node| matches!(node.op, Op::MaxPool(_)));
        let allowed = if maximum { 0.4 } else { 0.15 };
        for (param, (own, exact)) in grads.iter().zip(&exact).enumerate() {
            let off: Vec<f32> = own.iter().zip(exact).map(|(own, exact)| own - exact).collect();
            let (off, size) = (norm(&off), norm(exact));
            let name = &self.graph.params[param].name;
            prop_assert!(
                off < allowed * size + 0.02 * largest,
                "{way:?}: {name}: gradient off by {off}, of {size}"
            );
        }
        Ok(())
    }

    /// Values and gradients agree with the oracle for each configuration.
    fn check(&self, ways: &[Way]) -> Result<(), TestCaseError> {
        let (loss, output) = reference::loss(&self.graph, &self.params, &self.images, &self.labels);
        let slopes = self.slopes();
        for &way in ways {
            let label = format!("{way:?}");
            let (own_loss, own_output, grads) = self.run(way);
            // bf16 keeps 8 bits of every value and weight.
            let [of_loss, of_output] = match way.precision {
                Precision::Bf16 => [3e-2, 4e-2],
                _ => [2e-5, 1e-4],
            };
            prop_assert!(
                (own_loss - loss).abs() < of_loss * loss.abs().max(1.0),
                "{label}: loss {own_loss}, not {loss}"
            );
            let scale = output.iter().fold(1e-3, |top: f64, v| top.max(v.abs()));
            for (i, (own, real)) in own_output.iter().zip(&output).enumerate() {
                prop_assert!(
                    (f64::from(*own) - real).abs() < of_output * scale,
                    "{label}: output {i}: {own}, not {real}"
                );
            }
            if way.precision == Precision::Bf16 {
                self.check_rounded(way, &grads)?;
                continue;
            }
            let largest = slopes.iter().fold(1e-4, |top: f64, slope| top.max(slope.numeric.abs()));
            for slope in &slopes {
                let own: f64 =
                    grads[slope.param].iter().zip(&slope.direction).map(|(&g, d)| f64::from(g) * d).sum();
                prop_assert!(
                    (own - slope.numeric).abs() < 2e-3 * slope.numeric.abs() + 2e-4 * largest,
                    "{label}: {}: slope {own}, not {}",
                    self.graph.params[slope.param].name,
                    slope.numeric
                );
            }
        }
        Ok(())
    }

    /// Central differences of the loss along a random direction of each trained tensor, and along one axis of it.
    fn slopes(&self) -> Vec<Slope> {
        let mut slopes = Vec::new();
        let mut draw = Draw(99);
        for (param, info) in self.graph.params.iter().enumerate().filter(|(_, p)| p.kind.trainable()) {
            let axis = ((draw.next() * 0.5 + 0.5) * info.len() as f64) as usize % info.len();
            let random: Vec<f64> = (0..info.len()).map(|_| draw.next()).collect();
            let single: Vec<f64> = (0..info.len()).map(|i| f64::from(u8::from(i == axis))).collect();
            for direction in [random, single] {
                let step = 1e-6;
                let shifted = |sign: f64| {
                    let mut params = self.params.clone();
                    params[param].iter_mut().zip(&direction).for_each(|(p, d)| *p += sign * step * d);
                    self.loss(&params)
                };
                let numeric = (shifted(1.0) - shifted(-1.0)) / (2.0 * step);
                slopes.push(Slope { param, direction, numeric });
            }
        }
        slopes
    }
}

struct Slope {
    param: usize,
    direction: Vec<f64>,
    numeric: f64,
}

fn gradients(graph: &Graph, program: &mut dyn Program) -> Vec<Vec<f32>> {
    let read = |(id, param): (usize, &paceline_model::ParamInfo)| {
        let mut values = vec![0.0; param.len()];
        if param.kind.trainable() {
            program.read(Values::Gradient(ParamId(id)), &mut values).unwrap();
        }
        values
    };
    graph.params.iter().enumerate().map(read).collect()
}

/// How a program computes.
#[derive(Clone, Copy, Debug)]
struct Way {
    layout: Layout,
    simd: Simd,
    threads: usize,
    precision: Precision,
}

/// All precisions and instruction sets of this machine, both layouts.
fn everywhere() -> Vec<Way> {
    let mut all = Vec::new();
    for precision in [Precision::Fp32, Precision::Bf16] {
        let sets = Simd::ALL.into_iter().filter(|simd| simd.computes(precision) && simd.available());
        for simd in sets {
            for layout in [Layout::Nhwc, Layout::Nchw] {
                all.push(Way { layout, simd, threads: 1, precision });
            }
        }
        let simd = Simd::best(precision);
        all.push(Way { layout: Layout::Nhwc, simd, threads: 3, precision });
        all.push(Way { layout: Layout::Nchw, simd, threads: 2, precision });
    }
    all
}

/// A classifier around a piece: a convolution before it, so that its input gradient counts, and a head behind it.
fn around(
    input: Shape,
    channels: usize,
    piece: impl FnOnce(&mut Builder, NodeId) -> Result<NodeId, ShapeError>,
) -> Result<Graph, ShapeError> {
    let (mut b, x) = Builder::new("case", input, 5)?;
    let x = b.conv("stem", x, Conv2d::k(1, 1).out(channels).bias())?;
    let x = piece(&mut b, x)?;
    let x = b.flatten("flatten", x);
    let x = b.dense("head", x, Dense { out: 5, bias: true, init: Init::Glorot })?;
    b.softmax_cross_entropy("loss", x)
}

fn check(graph: Graph, batch: usize, seed: u64) {
    if let Err(error) = Case::new(graph, batch, seed).check(&everywhere()) {
        panic!("{error}");
    }
}

#[test]
fn convolutions_of_all_kinds_have_right_gradients() {
    let border = |top, bottom, left, right| Border { top, bottom, left, right };
    let cases = [
        (Shape::new(5, 7, 3), 4, 9, (3, 3), 1, border(1, 1, 1, 1), 1),
        (Shape::new(5, 7, 3), 4, 9, (3, 3), 2, border(0, 1, 0, 1), 1),
        (Shape::new(6, 6, 3), 4, 40, (1, 1), 2, border(0, 0, 0, 0), 1),
        (Shape::new(1, 1, 3), 19, 33, (3, 3), 1, border(1, 1, 1, 1), 1),
        (Shape::new(2, 2, 3), 19, 35, (3, 3), 1, border(1, 1, 1, 1), 1),
        (Shape::new(9, 9, 3), 3, 16, (7, 7), 2, border(3, 3, 3, 3), 1),
        (Shape::new(4, 9, 3), 8, 6, (1, 7), 1, border(0, 0, 3, 3), 1),
        (Shape::new(8, 5, 3), 8, 12, (3, 2), 3, border(1, 0, 0, 1), 2),
        (Shape::new(5, 5, 3), 12, 24, (3, 3), 1, border(1, 1, 1, 1), 4),
    ];
    for (seed, (input, channels, out, kernel, stride, border, groups)) in cases.into_iter().enumerate() {
        let conv = Conv2d::k(kernel.0, kernel.1).out(out).stride(stride).border(border).groups(groups).bias();
        let graph = around(input, channels, |b, x| b.conv("conv", x, conv)).unwrap();
        check(graph, 3, seed as u64);
    }
}

#[test]
fn depthwise_convolutions_have_right_gradients() {
    for (seed, (side, channels, stride)) in
        [(5, 6, 1), (4, 70, 1), (5, 17, 2), (2, 33, 1), (1, 80, 1)].into_iter().enumerate()
    {
        let conv = Conv2d::k(3, 3).stride(stride).same().bias();
        let graph =
            around(Shape::new(side, side + 1, 2), channels, |b, x| b.depthwise_conv("dw", x, conv)).unwrap();
        check(graph, 9, seed as u64);
    }
}

#[test]
fn transposed_convolutions_have_right_gradients() {
    for (seed, (side, channels, out)) in [(3, 5, 4), (1, 33, 17), (2, 8, 35)].into_iter().enumerate() {
        let conv = ConvTranspose {
            out,
            kernel: (3, 3),
            stride: (2, 2),
            crop: 1,
            output_padding: 1,
            bias: true,
            init: Init::Glorot,
        };
        let graph =
            around(Shape::new(side, side + 1, 2), channels, |b, x| b.conv_transpose("up", x, conv)).unwrap();
        check(graph, 3, seed as u64);
    }
}

#[test]
fn batch_norm_with_its_neighbours_has_right_gradients() {
    for (seed, (side, channels, scale)) in
        [(4, 5, true), (3, 40, false), (1, 19, true)].into_iter().enumerate()
    {
        let norm = BatchNorm { scale, ..BatchNorm::KERAS };
        let input = Shape::new(side, side, 3);
        for shape in 0..5 {
            let graph = around(input, channels, |b, x| {
                let y = b.conv("conv", x, Conv2d::k(1, 1).out(channels).bias())?;
                let y = b.batch_norm("norm", y, norm);
                Ok(match shape {
                    0 => y,
                    1 => b.relu("relu", y),
                    2 => b.relu6("relu6", y),
                    3 => b.add("add", x, y)?,
                    _ => {
                        let y = b.add("add", y, x)?;
                        let y = b.relu("relu", y);
                        let z = b.conv("again", y, Conv2d::k(1, 1).out(channels))?;
                        let z = b.batch_norm("norm2", z, norm);
                        b.add("add2", y, z)?
                    }
                })
            })
            .unwrap();
            check(graph, 6, seed as u64 * 10 + shape);
        }
    }
}

#[test]
fn batch_norm_keeps_its_digits_far_from_zero() {
    let norm = BatchNorm { scale: true, ..BatchNorm::KERAS };
    let graph = around(Shape::new(4, 4, 3), 8, |b, x| Ok(b.batch_norm("norm", x, norm))).unwrap();
    let mut case = Case::new(graph, 8, 1);
    let bias = case.graph.params.iter().position(|p| p.name == "stem/bias").unwrap();
    case.params[bias].iter_mut().for_each(|b| *b += 300.0);
    let (loss, _) = reference::loss(&case.graph, &case.params, &case.images, &case.labels);
    // 300 in bf16 has steps of 2: only fp32 has the digits.
    for way in everywhere().into_iter().filter(|way| way.precision == Precision::Fp32) {
        let own = case.run(way).0;
        assert!((own - loss).abs() < 1e-3, "{way:?}: {own}, not {loss}");
    }
}

#[test]
fn pooling_padding_and_joins_have_right_gradients() {
    let windows = [(3, 2, true), (2, 2, false), (3, 1, true), (1, 2, false)];
    for (seed, (kernel, stride, same)) in windows.into_iter().enumerate() {
        let window = || {
            let window = Window::k(kernel, kernel).stride(stride);
            if same { window.same() } else { window }
        };
        for channels in [6, 37] {
            for largest in [true, false] {
                let graph = around(Shape::new(5, 6, 3), channels, |b, x| {
                    if largest { b.max_pool("pool", x, window()) } else { b.avg_pool("pool", x, window()) }
                })
                .unwrap();
                check(graph, 3, seed as u64);
            }
        }
    }
    let graph = around(Shape::new(4, 5, 3), 7, |b, x| {
        let left = b.relu("left", x);
        let right = b.conv("right", x, Conv2d::k(3, 3).out(20).same().bias())?;
        let right = b.relu6("bound", right);
        let both = b.concat("both", &[left, right, x])?;
        let wide = b.pad("pad", both, Border { top: 1, bottom: 0, left: 2, right: 1 })?;
        let pooled = b.avg_pool("pool", wide, Window::k(3, 3).stride(2))?;
        let sum = b.add("sum", pooled, pooled)?;
        Ok(b.global_avg_pool("mean", sum))
    })
    .unwrap();
    check(graph, 4, 5);
}

#[test]
fn a_residual_sum_without_batch_norm_has_right_gradients() {
    for channels in [5, 24, 40] {
        let graph = around(Shape::new(3, 4, 3), channels, |b, x| {
            let y = b.conv("conv", x, Conv2d::k(1, 1).out(channels).bias())?;
            let y = b.add("add", x, y)?;
            let z = b.depthwise_conv("depthwise", y, Conv2d::k(3, 3).same())?;
            let z = b.add("again", z, y)?;
            let w = b.avg_pool("mean", z, Window::k(3, 3).stride(1).same())?;
            let w = b.add("smooth", z, w)?;
            let v = b.relu("relu", w);
            b.add("bent", v, w)
        });
        check(graph.unwrap(), 5, channels as u64);
    }
}

#[test]
fn layers_below_the_first_trained_one_have_no_backward() {
    let build = || {
        let (mut b, x) = Builder::new("from_below", Shape::new(8, 6, 4), 3)?;
        let x = b.max_pool("pool", x, Window::k(3, 3).stride(2).same())?;
        let x = b.relu("bound", x);
        let x = b.depthwise_conv("window", x, Conv2d::k(3, 3).same())?;
        let x = b.global_avg_pool("mean", x);
        let x = b.dense("logits", x, Dense::to(3))?;
        b.softmax_cross_entropy("loss", x)
    };
    check(build().unwrap(), 3, 11);
}

#[test]
fn an_autoencoder_learns_from_the_squared_error_to_its_input() {
    let (mut b, input) = Builder::new("auto", Shape::new(4, 6, 3), 1).unwrap();
    let x = b.conv("down", input, Conv2d::k(3, 3).out(12).stride(2).same().bias()).unwrap();
    let x = b.batch_norm("norm", x, BatchNorm::KERAS);
    let x = b.relu("relu", x);
    let up = ConvTranspose {
        out: 3,
        kernel: (3, 3),
        stride: (2, 2),
        crop: 1,
        output_padding: 1,
        bias: true,
        init: Init::Glorot,
    };
    let x = b.conv_transpose("up", x, up).unwrap();
    check(b.mean_squared_error("loss", x, input).unwrap(), 3, 11);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_convolutions_have_right_gradients(
        (h, w) in (1usize..8, 1usize..8),
        (kh, kw) in (1usize..4, 1usize..4),
        stride in 1usize..4,
        (channels, out) in (1usize..40, 1usize..40),
        borders in [0usize..3, 0usize..3, 0usize..3, 0usize..3],
        batch in 1usize..5,
        seed in 0u64..1000,
    ) {
        let [top, bottom, left, right] = borders;
        let conv = Conv2d::k(kh, kw).out(out).stride(stride).border(Border { top, bottom, left, right }).bias();
        let graph = around(Shape::new(h, w, 2), channels, |b, x| b.conv("conv", x, conv));
        // The builder refuses a window that does not fit.
        prop_assume!(graph.is_ok());
        Case::new(graph.unwrap(), batch, seed).check(&everywhere())?;
    }
}

/// Chunks of images do not divide these batches: the last is shorter.
#[test]
fn a_last_shorter_chunk_reads_nothing_beyond_its_images() {
    for (channels, out, side, batch) in [(32, 64, 8, 33), (64, 64, 8, 31), (256, 24, 4, 67)] {
        let graph = around(Shape::new(side, side, 3), channels, |b, x| {
            let y = b.conv("conv", x, Conv2d::k(1, 1).out(out).bias())?;
            Ok(b.global_avg_pool("mean", y))
        })
        .unwrap();
        let case = Case::new(graph, batch, 3);
        let engine = Cpu::new(CpuOptions { threads: 1, simd: None }).unwrap();
        let (simd, precision) = (Simd::detect(), Precision::Fp32);
        let whole = case.run(Way { layout: Layout::Nhwc, simd, threads: 1, precision }).2;
        // The same samples without batching: one by one, added up.
        let mut program = engine.compile(&case.graph, &Spec::new(1)).unwrap();
        for (id, values) in case.params.iter().enumerate() {
            let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            program.write(Values::Param(ParamId(id)), &values).unwrap();
        }
        let len = case.graph.input().len();
        for index in 0..batch {
            let samples =
                Samples { images: &case.images[index * len..][..len], labels: &case.labels[index..=index] };
            program.feed(samples).unwrap();
            program.forward_backward(Pass { index, count: batch, ..Pass::ONLY }, &mut |_| {}).unwrap();
        }
        for (own, one) in whole.iter().flatten().zip(gradients(&case.graph, &mut *program).iter().flatten()) {
            assert!((own - one).abs() < 1e-4 * one.abs().max(0.1), "{own}, not {one}");
        }
    }
}
