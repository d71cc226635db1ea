//! The CUDA engine against the CPU engine: every kind of layer, both layouts, every precision; each network over ten steps.
//! Where there is no GPU the tests say so, and pass.

mod gpu;

use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::cuda::{Contents, Cuda, CudaOptions, Tuning};
use paceline_engine::{
    Drawing, Engine, EngineError, Homes, Layout, Optimizer, Pass, Place, Precision, Profiling, Program,
    Region, Samples, Spec,
};
use paceline_model::{
    BatchNorm, Border, Builder, Conv2d, ConvTranspose, Dense, Graph, Init, NodeId, ParamId, Shape,
    ShapeError, Window, zoo,
};

/// The GPU with buffers that are no number before each run; `None`, with the reason printed, where there is none.
fn gpu() -> Option<Cuda> {
    gpu::open(CudaOptions { tuning: Tuning::First, contents: Contents::Poisoned, device: 0 })
}

fn cpu() -> Cpu {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    Cpu::new(CpuOptions { threads, simd: None }).unwrap()
}

/// Numbers in \[-1, 1) as a function of a seed.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn batch_of(graph: &Graph, batch: usize, seed: u64) -> (Vec<f32>, Vec<u32>) {
    let labels = (0..batch).map(|n| ((n * 7 + seed as usize) % graph.classes) as u32).collect();
    (noise(seed, batch * graph.input().len()), labels)
}

/// How far two runs of values are apart, relative to the second's size.
fn distance(own: &[f32], other: &[f32]) -> f64 {
    assert_eq!(own.len(), other.len());
    let square = |f: &dyn Fn(usize) -> f64| (0..own.len()).map(|i| f(i).powi(2)).sum::<f64>().sqrt();
    let difference = square(&|i| f64::from(own[i]) - f64::from(other[i]));
    let size = square(&|i| f64::from(other[i]));
    if difference.is_nan() { f64::INFINITY } else { difference / size.max(1e-6) }
}

/// What a step leaves behind.
struct Outcome {
    loss: f32,
    output: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    params: Vec<Vec<f32>>,
    judged: (f32, usize),
}

/// The last gradient of each parameter; zeros where it has none.
fn read_gradients(graph: &Graph, program: &mut dyn Program) -> Vec<Vec<f32>> {
    let mut gradients = Vec::new();
    for (id, param) in graph.params.iter().enumerate() {
        let mut values = vec![0.0; param.len()];
        if param.kind.trainable() {
            program.read_gradient(ParamId(id), &mut values).unwrap();
        }
        gradients.push(values);
    }
    gradients
}

/// One pass with all there is to see of it, an update, and a test.
fn step(engine: &dyn Engine, graph: &Graph, spec: &Spec) -> Outcome {
    let mut program = engine.compile(graph, spec).unwrap();
    for (id, param) in graph.params.iter().enumerate() {
        // Not the plain ones that every layer starts with.
        let middle =
            if param.name.ends_with("gamma") || param.name.ends_with("variance") { 1.0 } else { 0.0 };
        let spread = if param.fan_in == 0 { 0.3 } else { (3.0 / param.fan_in as f32).sqrt() };
        let values: Vec<f32> =
            noise(100 + id as u64, param.len()).iter().map(|v| middle + spread * v).collect();
        program.write_param(ParamId(id), &values).unwrap();
    }
    let (images, labels) = batch_of(graph, spec.batch, 5);
    for stream in [3, 4] {
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass { stream, ..Pass::ONLY }, &mut |_| {}).unwrap();
    }
    let loss = program.finish().unwrap().loss;
    let mut output = vec![0.0; spec.batch * graph.node(graph.output()).shape.len()];
    program.read_output(&mut output).unwrap();
    let gradients = read_gradients(graph, &mut *program);
    let everything = 0..program.parameters().len;
    program.apply(0.05, everything).unwrap();
    program.finish().unwrap();
    let mut read = |id: usize, len: usize| {
        let mut values = vec![0.0; len];
        program.read_param(ParamId(id), &mut values).unwrap();
        values
    };
    let params = graph.params.iter().enumerate().map(|(id, param)| read(id, param.len())).collect();
    program.feed(Samples { images: &images, labels: &labels }).unwrap();
    program.evaluate(spec.batch - 1).unwrap();
    let judged = program.finish().unwrap();
    Outcome { loss, output, gradients, params, judged: (judged.loss, judged.correct) }
}

/// How close a precision comes to fp32 on the CPU: values, gradients.
fn tolerance(precision: Precision) -> (f64, f64) {
    match precision {
        Precision::Fp32 => (2e-5, 2e-4),
        Precision::Tf32 => (5e-3, 6e-2),
        Precision::Bf16 => (3e-2, 1e-1),
    }
}

fn compare(name: &str, gpu: &Cuda, graph: &Graph, spec: &Spec) {
    let label = format!("{name}, {} {}", spec.layout, spec.precision);
    let own = step(gpu, graph, spec);
    let other = step(&cpu(), graph, &Spec { precision: Precision::Fp32, ..*spec });
    let (values, slopes) = tolerance(spec.precision);
    let near =
        |own: f32, other: f32| f64::from((own - other).abs()) <= values * f64::from(other.abs().max(1.0));
    assert!(near(own.loss, other.loss), "{label}: loss {} is not {}", own.loss, other.loss);
    assert!(
        distance(&own.output, &other.output) < values,
        "{label}: output {}",
        distance(&own.output, &other.output)
    );
    let largest = other
        .gradients
        .iter()
        .map(|g| g.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt())
        .fold(1e-6, f64::max);
    for (id, param) in graph.params.iter().enumerate() {
        let (a, b) = (&own.gradients[id], &other.gradients[id]);
        let size = b.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let off = distance(a, b) * size.max(1e-6);
        assert!(
            off <= slopes * size + 0.1 * slopes * largest,
            "{label}: gradient of {} is off by {off}, its size {size}, the largest {largest}",
            param.name
        );
        let off = distance(&own.params[id], &other.params[id]);
        assert!(off < slopes, "{label}: {} is off by {off} after the update", param.name);
    }
    assert!(near(own.judged.0, other.judged.0), "{label}: judged {} is not {}", own.judged.0, other.judged.0);
    if spec.precision == Precision::Fp32 {
        assert_eq!(own.judged.1, other.judged.1, "{label}: right answers");
    }
}

/// A network around one or a few layers: they are fed the picture behind a convolution, and judged behind a dense layer.
fn around(input: Shape, body: impl Fn(&mut Builder, NodeId) -> Result<NodeId, ShapeError>) -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("case", input, 5)?;
        let x = b.conv("in", x, Conv2d::k(1, 1).out(16).bias())?;
        let x = body(&mut b, x)?;
        let x = b.flatten("flat", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

const TRANSPOSE: ConvTranspose = ConvTranspose {
    out: 24,
    kernel: (3, 3),
    stride: (2, 2),
    crop: 1,
    output_padding: 1,
    bias: true,
    init: Init::He,
};

fn layers() -> Vec<(&'static str, Graph)> {
    let map = Shape::new(9, 7, 3);
    let norm = BatchNorm { momentum: 0.9, ..BatchNorm::KERAS };
    vec![
        ("dense", around(map, |_, x| Ok(x))),
        ("3x3", around(map, |b, x| b.conv("c", x, Conv2d::k(3, 3).out(24).same().bias()))),
        (
            "3x3 stride 2, odd border",
            around(map, |b, x| b.conv("c", x, Conv2d::k(3, 3).out(24).stride(2).same())),
        ),
        (
            "asymmetric border",
            around(Shape::new(8, 8, 3), |b, x| b.conv("c", x, Conv2d::k(3, 3).out(16).stride(2).same())),
        ),
        (
            "wide",
            around(Shape::new(8, 8, 3), |b, x| b.conv("c", x, Conv2d::k(3, 3).out(384).stride(2).same())),
        ),
        (
            "wide transposed",
            around(Shape::new(4, 4, 3), |b, x| {
                let x = b.conv("c", x, Conv2d::k(3, 3).out(384).same())?;
                b.conv_transpose("t", x, TRANSPOSE)
            }),
        ),
        ("1x7", around(map, |b, x| b.conv("c", x, Conv2d::k(1, 7).out(8).same()))),
        (
            "two of 1x1 stride 2",
            around(map, |b, x| {
                let one = b.conv("one", x, Conv2d::k(1, 1).out(24).stride(2))?;
                let other = b.conv("other", x, Conv2d::k(1, 1).out(24).stride(2).bias())?;
                b.add("both", one, other)
            }),
        ),
        ("1x1 stride 2", around(map, |b, x| b.conv("c", x, Conv2d::k(1, 1).out(32).stride(2).bias()))),
        ("odd channels", around(map, |b, x| b.conv("c", x, Conv2d::k(3, 3).out(5).same().bias()))),
        ("groups", around(map, |b, x| b.conv("c", x, Conv2d::k(3, 3).out(32).groups(2).same()))),
        ("transposed", around(map, |b, x| b.conv_transpose("c", x, TRANSPOSE))),
        ("depthwise", around(map, |b, x| b.depthwise_conv("c", x, Conv2d::k(3, 3).same()))),
        (
            "depthwise stride 2",
            around(map, |b, x| b.depthwise_conv("c", x, Conv2d::k(3, 3).stride(2).same().bias())),
        ),
        (
            "depthwise stride 2 on an even map",
            around(Shape::new(12, 10, 3), |b, x| b.depthwise_conv("c", x, Conv2d::k(3, 3).stride(2).same())),
        ),
        (
            "depthwise 5x5 to a point",
            around(Shape::new(5, 5, 3), |b, x| b.depthwise_conv("c", x, Conv2d::k(5, 5))),
        ),
        ("relu", around(map, |b, x| Ok(b.relu("r", x)))),
        (
            "relu6 of a sum",
            around(map, |b, x| {
                let y = b.conv("c", x, Conv2d::k(1, 1).out(16))?;
                let y = b.add("a", x, y)?;
                Ok(b.relu6("r", y))
            }),
        ),
        ("norm", around(map, |b, x| Ok(b.batch_norm("n", x, norm)))),
        (
            "norm, relu, of odd channels",
            around(map, |b, x| {
                let x = b.conv("c", x, Conv2d::k(3, 3).out(7).same().bias())?;
                let x = b.batch_norm("n", x, BatchNorm::TORCH);
                Ok(b.relu("r", x))
            }),
        ),
        (
            "norm with residual and relu",
            around(map, |b, x| {
                let y = b.conv("c", x, Conv2d::k(3, 3).out(16).same().bias())?;
                let y = b.batch_norm("n", y, norm);
                let y = b.add("a", x, y)?;
                let y = b.relu("r", y);
                let z = b.conv("d", y, Conv2d::k(1, 1).out(16))?;
                let z = b.batch_norm("m", z, norm);
                let z = b.add("b", z, y)?;
                Ok(b.relu6("s", z))
            }),
        ),
        (
            "norm with residual alone",
            around(map, |b, x| {
                let y = b.depthwise_conv("c", x, Conv2d::k(3, 3).same())?;
                let y = b.batch_norm("n", y, norm);
                b.add("a", x, y)
            }),
        ),
        (
            "many rows",
            around(Shape::new(40, 36, 3), |b, x| {
                let y = b.conv("c", x, Conv2d::k(3, 3).out(16).same().bias())?;
                let y = b.batch_norm("n", y, norm);
                let y = b.add("a", x, y)?;
                let y = b.relu("r", y);
                let y = b.depthwise_conv("e", y, Conv2d::k(3, 3).same())?;
                let y = b.batch_norm("m", y, norm);
                let y = b.relu6("s", y);
                b.avg_pool("p", y, Window::k(8, 9).stride(8))
            }),
        ),
        ("max pool", around(map, |b, x| b.max_pool("p", x, Window::k(3, 3).stride(2).same()))),
        (
            "pad and max pool behind relu",
            around(map, |b, x| {
                let x = b.relu("r", x);
                let x = b.pad("z", x, Border::even(1))?;
                b.max_pool("p", x, Window::k(3, 3).stride(2))
            }),
        ),
        ("avg pool", around(map, |b, x| b.avg_pool("p", x, Window::k(3, 3).stride(1).same()))),
        ("global pool", around(map, |b, x| Ok(b.global_avg_pool("p", x)))),
        ("pad", around(map, |b, x| b.pad("z", x, Border { top: 1, bottom: 0, left: 2, right: 3 }))),
        (
            "concat",
            around(map, |b, x| {
                let p = b.conv("c", x, Conv2d::k(1, 1).out(8))?;
                let q = b.conv("d", x, Conv2d::k(3, 3).out(5).same())?;
                let r = b.avg_pool("p", x, Window::k(3, 3).stride(1).same())?;
                b.concat("j", &[p, q, r, x])
            }),
        ),
        ("dropout", around(map, |b, x| b.dropout("d", x, 0.3))),
    ]
}

/// A first convolution as networks have them: with stride 2, straight on the picture.
fn stem(input: Shape, conv: Conv2d) -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("stem", input, 5)?;
        let x = b.conv("c", x, conv)?;
        let x = b.batch_norm("n", x, BatchNorm::KERAS);
        let x = b.relu("r", x);
        let x = b.global_avg_pool("p", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

/// Layers with nothing trained below them, in front of a window.
fn from_below() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("from_below", Shape::new(12, 16, 8), 5)?;
        let x = b.max_pool("p", x, Window::k(3, 3).stride(2).same())?;
        let x = b.relu("r", x);
        let x = b.depthwise_conv("d", x, Conv2d::k(3, 3).same())?;
        let x = b.global_avg_pool("m", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

fn autoencoder() -> Graph {
    let build = || {
        let (mut b, image) = Builder::new("auto", Shape::new(8, 12, 3), 5)?;
        let x = b.conv("c", image, Conv2d::k(3, 3).out(16).stride(2).same().bias())?;
        let x = b.batch_norm("n", x, BatchNorm::KERAS);
        let x = b.relu("r", x);
        let x = b.conv_transpose("t", x, ConvTranspose { out: 8, ..TRANSPOSE })?;
        let x = b.conv("picture", x, Conv2d::k(1, 1).out(3).bias())?;
        b.mean_squared_error("loss", x, image)
    };
    build().unwrap()
}

#[test]
fn every_kind_of_layer_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let mut failed = Vec::new();
    let mut cases = layers();
    cases.push(("autoencoder", autoencoder()));
    cases.push(("from below", from_below()));
    let seven = Conv2d::k(7, 7).out(16).stride(2).border(Border::even(3)).bias();
    cases.push(("7x7 stem", stem(Shape::new(16, 12, 3), seven)));
    cases.push(("3x3 stem", stem(Shape::new(16, 12, 3), Conv2d::k(3, 3).out(16).stride(2).same())));
    cases.push(("odd stem", stem(Shape::new(15, 13, 3), Conv2d::k(3, 3).out(16).stride(2))));
    cases.push(("plain stem", stem(Shape::new(15, 13, 3), Conv2d::k(3, 3).out(16).same())));
    for (name, graph) in &cases {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16] {
                let spec = Spec { layout, precision, label_smoothing: 0.1, ..Spec::new(6) };
                // All at once: one failure is not to hide the others.
                let run = std::panic::AssertUnwindSafe(|| compare(name, &gpu, graph, &spec));
                if let Err(why) = std::panic::catch_unwind(run) {
                    let text = why.downcast_ref::<String>().cloned().unwrap_or_default();
                    failed.push(format!("{name} {layout} {precision}: {text}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of {} failed:\n{}", failed.len(), 6 * cases.len(), failed.join("\n"));
}

/// A small network of every kind of layer: little enough for tools that watch each access to memory.
fn every_kind() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("every_kind", Shape::new(13, 12, 3), 5)?;
        let x = b.conv("stem", x, Conv2d::k(3, 3).out(16).stride(2).same().bias())?;
        let x = b.batch_norm("stem_norm", x, BatchNorm::KERAS);
        let x = b.relu("stem_relu", x);
        let y = b.depthwise_conv("three", x, Conv2d::k(3, 3).same())?;
        let y = b.batch_norm("three_norm", y, BatchNorm::TORCH);
        let x = b.add("residual", x, y)?;
        let x = b.relu6("residual_relu", x);
        let y = b.depthwise_conv("five", x, Conv2d::k(5, 5).same().bias())?;
        let z = b.avg_pool("mean", x, Window::k(3, 3).stride(1).same())?;
        let x = b.concat("both", &[y, z])?;
        let x = b.max_pool("most", x, Window::k(3, 3).stride(2).same())?;
        let x = b.conv_transpose("larger", x, ConvTranspose { out: 7, ..TRANSPOSE })?;
        let x = b.relu("larger_relu", x);
        let x = b.pad("border", x, Border { top: 1, bottom: 0, left: 2, right: 1 })?;
        let x = b.conv("odd", x, Conv2d::k(1, 1).out(9).bias())?;
        let x = b.dropout("drop", x, 0.3)?;
        let y = b.depthwise_conv("slow", x, Conv2d::k(3, 3).stride(2).same())?;
        let y = b.flatten("flat", y);
        let y = b.dense("narrow", y, Dense::to(12))?;
        let x = b.global_avg_pool("means", x);
        let x = b.dense("wide", x, Dense::to(12))?;
        let x = b.add("sum", x, y)?;
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

/// Batch norms of more rows than a cluster of blocks holds, and little else.
fn many_rows() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("many_rows", Shape::new(32, 32, 3), 5)?;
        let x = b.conv("in", x, Conv2d::k(1, 1).out(8).bias())?;
        let x = b.batch_norm("first", x, BatchNorm::KERAS);
        let x = b.relu("first_relu", x);
        let y = b.depthwise_conv("three", x, Conv2d::k(3, 3).same())?;
        let y = b.batch_norm("second", y, BatchNorm::TORCH);
        let x = b.add("residual", x, y)?;
        let x = b.relu("second_relu", x);
        let x = b.global_avg_pool("means", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

/// Batch norms of many rows that only depthwise windows read, of both strides and with a border.
fn behind_norms((h, w): (usize, usize)) -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("behind_norms", Shape::new(h, w, 3), 5)?;
        let x = b.conv("in", x, Conv2d::k(1, 1).out(24))?;
        let x = b.batch_norm("first", x, BatchNorm::KERAS);
        let x = b.relu6("first_relu", x);
        let x = b.depthwise_conv("one", x, Conv2d::k(3, 3).same())?;
        let x = b.batch_norm("second", x, BatchNorm::TORCH);
        let x = b.relu("second_relu", x);
        let x = b.depthwise_conv("two", x, Conv2d::k(3, 3).stride(2).same())?;
        let x = b.batch_norm("third", x, BatchNorm::KERAS);
        let x = b.global_avg_pool("means", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

/// Maps so large that each thread of a kernel has several rows, lines or tiles to do, as in real training.
fn large_maps() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("large_maps", Shape::new(64, 64, 3), 5)?;
        let x = b.conv("in", x, Conv2d::k(3, 3).out(32).same())?;
        let x = b.batch_norm("first", x, BatchNorm::KERAS);
        let x = b.relu6("first_relu", x);
        let x = b.depthwise_conv("one", x, Conv2d::k(3, 3).same())?;
        let x = b.batch_norm("second", x, BatchNorm::TORCH);
        let x = b.relu6("second_relu", x);
        let x = b.conv("wider", x, Conv2d::k(1, 1).out(96))?;
        let x = b.batch_norm("third", x, BatchNorm::KERAS);
        let x = b.relu6("third_relu", x);
        let x = b.depthwise_conv("two", x, Conv2d::k(3, 3).stride(2).same())?;
        let x = b.batch_norm("fourth", x, BatchNorm::KERAS);
        let x = b.relu("fourth_relu", x);
        let y = b.conv("square", x, Conv2d::k(3, 3).out(96).same())?;
        let y = b.batch_norm("fifth", y, BatchNorm::KERAS);
        let x = b.add("sum", x, y)?;
        let x = b.relu("sum_relu", x);
        let left = b.conv("left", x, Conv2d::k(1, 1).out(192).stride(2))?;
        let right = b.conv("right", x, Conv2d::k(1, 1).out(192).stride(2))?;
        let right = b.batch_norm("sixth", right, BatchNorm::KERAS);
        let x = b.add("joined", left, right)?;
        let x = b.depthwise_conv("three", x, Conv2d::k(3, 3).same())?;
        let x = b.max_pool("most", x, Window::k(3, 3).stride(2).same())?;
        let x = b.global_avg_pool("means", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

#[test]
fn convolutions_written_out_as_plain_products_agree_with_the_cpu() {
    let last = CudaOptions { tuning: Tuning::Last, contents: Contents::Poisoned, device: 0 };
    let Some(gpu) = gpu::open(last) else { return };
    let convolution = |conv: Conv2d| around(Shape::new(9, 8, 3), move |b, x| b.conv("c", x, conv));
    for (name, graph) in [
        ("3x3", convolution(Conv2d::k(3, 3).out(24).same())),
        ("3x3 stride 2", convolution(Conv2d::k(3, 3).out(24).stride(2).same())),
        ("5x2, no border", convolution(Conv2d::k(5, 2).out(8))),
        ("1x7", convolution(Conv2d::k(1, 7).out(8).same())),
        ("transposed", around(Shape::new(5, 4, 3), |b, x| b.conv_transpose("t", x, TRANSPOSE))),
        ("first", stem(Shape::new(17, 14, 3), Conv2d::k(7, 7).out(16).stride(2).border(Border::even(3)))),
    ] {
        for precision in [Precision::Fp32, Precision::Tf32] {
            compare(name, &gpu, &graph, &Spec { precision, ..Spec::new(6) });
        }
    }
}

#[test]
fn large_maps_agree_with_the_cpu_however_products_are_computed() {
    let Some(first) = gpu() else { return };
    let measured =
        Cuda::new(CudaOptions { tuning: Tuning::Measured, contents: Contents::Poisoned, device: 0 }).unwrap();
    for (name, gpu) in [("the first way", &first), ("the fastest way", &measured)] {
        for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16] {
            let spec = Spec { precision, ..Spec::new(160) };
            compare(&format!("large maps, {name}, {precision}"), gpu, &large_maps(), &spec);
        }
        compare(
            &format!("large maps, {name}, nchw"),
            gpu,
            &large_maps(),
            &Spec { layout: Layout::Nchw, ..Spec::new(24) },
        );
    }
}

#[test]
fn a_first_convolution_on_tensor_cores_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (kernel, stride, out, (h, w)) in
        [(3, 2, 32, (33, 40)), (7, 2, 64, (40, 35)), (3, 1, 64, (20, 17)), (5, 1, 32, (16, 50))]
    {
        let conv = Conv2d::k(kernel, kernel).out(out).stride(stride).same();
        let graph = stem(Shape::new(h, w, 3), conv);
        let spec = Spec { precision: Precision::Bf16, ..Spec::new(3) };
        compare(&format!("stem of {kernel} by {stride} to {out}"), &gpu, &graph, &spec);
    }
}

#[test]
fn a_norm_that_only_a_depthwise_window_reads_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (layout, precision) in
        [(Layout::Nhwc, Precision::Fp32), (Layout::Nhwc, Precision::Bf16), (Layout::Nchw, Precision::Fp32)]
    {
        let spec = Spec { layout, precision, ..Spec::new(17) };
        for side in [(33, 32), (7, 141)] {
            compare(&format!("behind norms of {side:?}"), &gpu, &behind_norms(side), &spec);
        }
    }
}

#[test]
fn one_network_of_every_kind_of_layer_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let graph = every_kind();
    for layout in [Layout::Nhwc, Layout::Nchw] {
        let spec = Spec { layout, label_smoothing: 0.1, ..Spec::new(4) };
        compare("every kind", &gpu, &graph, &spec);
        let rough = step(&gpu, &graph, &Spec { precision: Precision::Bf16, ..spec });
        let off = distance(&rough.output, &step(&cpu(), &graph, &spec).output);
        assert!(off < 0.1, "{layout} bf16: output off by {off}");
    }
    compare("autoencoder", &gpu, &autoencoder(), &Spec::new(4));
    compare("many rows", &gpu, &many_rows(), &Spec::new(17));
}

/// Losses of ten steps on two batches in turns.
fn losses(engine: &dyn Engine, graph: &Graph, spec: &Spec, rate: f32) -> Vec<f32> {
    let mut program = engine.compile(graph, spec).unwrap();
    let everything = 0..program.parameters().len;
    let mut losses = Vec::new();
    for seed in 0..10 {
        let (images, labels) = batch_of(graph, spec.batch, seed % 2);
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass { stream: seed, ..Pass::ONLY }, &mut |_| {}).unwrap();
        program.apply(rate, everything.clone()).unwrap();
        losses.push(program.finish().unwrap().loss);
    }
    losses
}

/// All gradients of a first pass, tensor by tensor, and its loss.
fn slopes(engine: &dyn Engine, graph: &Graph, spec: &Spec) -> (Vec<Vec<f32>>, f32) {
    let mut program = engine.compile(graph, spec).unwrap();
    let (images, labels) = batch_of(graph, spec.batch, 0);
    program.feed(Samples { images: &images, labels: &labels }).unwrap();
    program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
    let loss = program.finish().unwrap().loss;
    (read_gradients(graph, &mut *program), loss)
}

/// A network whose maps have shrunk to a point multiplies every rounding: the CPU's two layouts tell by how much, and a GPU
/// may be a few times as far away. With fewer digits, little but the first loss of such a network is left to compare.
#[test]
fn every_network_has_the_gradients_and_losses_of_the_cpu_over_ten_steps() {
    let Some(gpu) = gpu() else { return };
    let mut failed = Vec::new();
    for name in zoo::NAMES {
        let side = if name.starts_with("inception") { 75 } else { 32 };
        let graph = zoo::build(name, Some((side, side)), 10).unwrap();
        let spec = Spec::new(16);
        let planes = Spec { layout: Layout::Nchw, ..spec };
        let (gradients, loss) = slopes(&cpu(), &graph, &spec);
        let flat: Vec<f32> = gradients.concat();
        let apart = distance(&slopes(&cpu(), &graph, &planes).0.concat(), &flat);
        let square: f64 = flat.iter().map(|v| f64::from(*v).powi(2)).sum();
        // A step that takes about a twentieth off the loss: larger ones end in chaos.
        let rate = (0.05 * f64::from(loss) / square).min(0.01) as f32;
        let other = losses(&cpu(), &graph, &spec, rate);
        let off = |own: &[f32]| own.iter().zip(&other).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f32::max);
        let spread = off(&losses(&cpu(), &graph, &planes, rate));
        eprintln!("{name}: rate {rate:e}, the CPU's layouts are {apart:.1e} and {spread:.1e} apart");
        for layout in [Layout::Nhwc, Layout::Nchw] {
            let spec = Spec { layout, ..spec };
            let own = losses(&gpu, &graph, &spec, rate);
            let far = distance(&slopes(&gpu, &graph, &spec).0.concat(), &flat);
            eprintln!("{name} {layout}: gradients off by {far:.1e}, losses by {:.1e}", off(&own));
            // NaN is not below.
            if !(off(&own) < 1e-3 + 4.0 * spread && far < 1e-3 + 4.0 * apart) {
                failed.push(format!("{name} {layout}: {own:?}, not {other:?}; gradients {far}"));
            }
        }
        for (precision, allowed) in [(Precision::Tf32, 0.1), (Precision::Bf16, 0.3)] {
            let spec = Spec { precision, ..spec };
            let own = losses(&gpu, &graph, &spec, rate);
            eprintln!("{name} {precision}: {:.4} to {:.4}", own[0], own[9]);
            let right =
                ((own[0] - other[0]) / other[0]).abs() < allowed && own.iter().all(|loss| loss.is_finite());
            if !right {
                failed.push(format!("{name} {precision}: {own:?}, not {other:?}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_network_learns_a_batch_by_heart_in_bf16() {
    let Some(gpu) = gpu() else { return };
    for name in zoo::NAMES {
        let side = if name.starts_with("inception") { 75 } else { 32 };
        let graph = zoo::build(name, Some((side, side)), 10).unwrap();
        let mut program = gpu.compile(&graph, &Spec { precision: Precision::Bf16, ..Spec::new(16) }).unwrap();
        let everything = 0..program.parameters().len;
        let (images, labels) = batch_of(&graph, 16, 3);
        let mut losses = Vec::new();
        let rate = if name == "vgg_19" { 0.02 } else { 0.005 };
        for step in 0..60 {
            program.feed(Samples { images: &images, labels: &labels }).unwrap();
            program.forward_backward(Pass { stream: step, ..Pass::ONLY }, &mut |_| {}).unwrap();
            program.apply(rate, everything.clone()).unwrap();
            losses.push(program.finish().unwrap().loss);
        }
        let part = if name == "vgg_19" { 1.0 } else { 0.8 };
        assert!(losses[59] < part * losses[0], "{name}: {losses:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    let graph = zoo::build("resnet50", Some((32, 32)), 10).unwrap();
    for precision in [Precision::Fp32, Precision::Bf16] {
        let spec = Spec { precision, ..Spec::new(16) };
        assert_eq!(losses(&gpu, &graph, &spec, 0.01), losses(&gpu, &graph, &spec, 0.01), "{precision}");
    }
}

#[test]
fn passes_and_shares_keep_gradients_and_statistics_apart() {
    let Some(gpu) = gpu() else { return };
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    let run = |engine: &dyn Engine| {
        let spec = Spec { shares: 2, ..Spec::new(8) };
        let mut program = engine.compile(&graph, &spec).unwrap();
        for share in [0, 1] {
            for index in [0, 1] {
                let (images, labels) = batch_of(&graph, 8, (2 * share + index) as u64);
                program.feed(Samples { images: &images, labels: &labels }).unwrap();
                let pass = Pass { share, index, count: 2, stream: 9, seen: None, update: None };
                program.forward_backward(pass, &mut |_| {}).unwrap();
            }
        }
        program.finish().unwrap();
        let mut seen = Vec::new();
        for share in [0, 1] {
            let region = program.statistics(share);
            let mut values = vec![0.0; region.len];
            program.read_region(region, &mut values).unwrap();
            seen.push(values);
        }
        let region = program.gradients();
        let mut values = vec![0.0; region.len];
        program.read_region(region, &mut values).unwrap();
        seen.push(values);
        seen
    };
    for (own, other) in run(&gpu).iter().zip(run(&cpu())) {
        assert!(distance(own, &other) < 1e-3, "off by {}", distance(own, &other));
    }
}

/// A batch norm that a cluster of blocks holds, one behind a bias, and one whose rows are read twice.
fn norms() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("norms", Shape::new(40, 36, 3), 5)?;
        let x = b.conv("wide", x, Conv2d::k(3, 3).out(16).same().bias())?;
        let x = b.batch_norm("many", x, BatchNorm::KERAS);
        let x = b.relu("r", x);
        let x = b.conv("narrow", x, Conv2d::k(3, 3).out(24).stride(4).same().bias())?;
        let x = b.batch_norm("few", x, BatchNorm { momentum: 0.6, ..BatchNorm::TORCH });
        let x = b.global_avg_pool("p", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

#[test]
fn running_statistics_are_plain_means_until_their_momentum_takes_over() {
    let Some(gpu) = gpu() else { return };
    let graph = norms();
    let run = |engine: &dyn Engine, spec: &Spec, seen: &dyn Fn(u64) -> Option<u64>| {
        let mut program = engine.compile(&graph, spec).unwrap();
        for pass in 0..5 {
            let (images, labels) = batch_of(&graph, spec.batch, pass);
            // Each batch is brighter than the one before: what a mean weighs shows.
            let images: Vec<f32> = images.iter().map(|v| v + pass as f32).collect();
            program.feed(Samples { images: &images, labels: &labels }).unwrap();
            program.forward_backward(Pass { seen: seen(pass), ..Pass::ONLY }, &mut |_| {}).unwrap();
        }
        program.finish().unwrap();
        let region = program.statistics(0);
        let mut values = vec![0.0; region.len];
        program.read_region(region, &mut values).unwrap();
        values
    };
    for (layout, precision) in
        [(Layout::Nhwc, Precision::Fp32), (Layout::Nchw, Precision::Fp32), (Layout::Nhwc, Precision::Bf16)]
    {
        let spec = Spec { layout, precision, ..Spec::new(16) };
        let exact = Spec { precision: Precision::Fp32, ..spec };
        let (means, fading) = (run(&cpu(), &exact, &Some), run(&cpu(), &exact, &|_| None));
        assert!(distance(&means, &fading) > 0.1, "the two are told apart");
        for (seen, other) in [(&Some as &dyn Fn(u64) -> Option<u64>, means), (&|_| None, fading)] {
            let own = run(&gpu, &spec, seen);
            let off = distance(&own, &other);
            assert!(off < tolerance(precision).0, "{layout} {precision}: off by {off}");
        }
    }
}

#[test]
fn adam_and_nesterov_agree_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    for optimizer in [
        Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 },
        Optimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 },
        Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
    ] {
        let spec = Spec { optimizer, ..Spec::new(8) };
        let (own, other) = (losses(&gpu, &graph, &spec, 0.003), losses(&cpu(), &graph, &spec, 0.003));
        assert!(distance(&own, &other) < 2e-3, "{optimizer:?}: {own:?}, not {other:?}");
    }
}

#[test]
fn memory_on_the_host_mirrors_what_is_exchanged() {
    let Some(gpu) = gpu() else { return };
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    let spec = Spec::new(8);
    let len = gpu.trained_values(&graph, &spec).unwrap();
    let mut homes = vec![vec![0.0f32; len + 16]; 2];
    let mut region = |index: usize| {
        let at = homes[index].as_mut_ptr() as u64;
        Region { place: Place::Host, address: at.next_multiple_of(64), len }
    };
    let (params, grads) = (region(0), region(1));
    // SAFETY: both outlive the programs, which run one after another, and nobody else uses them.
    let both = unsafe { Homes::new(Some((params, Drawing::Draw)), vec![grads]) };
    // SAFETY: as above.
    let only_gradients = unsafe { Homes::new(None, vec![grads]) };
    let (images, labels) = batch_of(&graph, 8, 1);
    let mut seen = Vec::new();
    for homes in [Homes::default(), only_gradients, both] {
        let mut program = gpu.compile_in(&graph, &spec, &homes).unwrap();
        for step in 0..3 {
            program.feed(Samples { images: &images, labels: &labels }).unwrap();
            program.forward_backward(Pass { stream: step, ..Pass::ONLY }, &mut |_| {}).unwrap();
            program.apply(0.1, 0..64).unwrap();
            program.apply(0.1, 64..len).unwrap();
            let times = program.finish().unwrap();
            assert_eq!(times.copy_out_ns > 0, !seen.is_empty(), "gradients go out where others read them");
            assert!(times.update_ns > 0);
        }
        let mut all = program.state();
        all.extend([program.gradients(), program.parameters()]);
        let read = |region: Region| {
            let mut values = vec![0.0; len];
            program.read_region(region, &mut values).unwrap();
            values
        };
        seen.push(all.into_iter().map(read).collect::<Vec<_>>());
    }
    assert!(seen[0] == seen[1] && seen[0].iter().all(|values| values.iter().any(|v| *v != 0.0)));
    // The host's update rounds in another order.
    for (own, other) in seen[2].iter().zip(&seen[0]) {
        assert!(distance(own, other) < 1e-5, "off by {}", distance(own, other));
    }
}

#[test]
fn layers_and_phases_are_timed_by_the_device() {
    let Some(gpu) = gpu() else { return };
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    for profiling in [Profiling::Layers, Profiling::Phases] {
        let spec = Spec { profiling, ..Spec::new(8) };
        let mut program = gpu.compile(&graph, &spec).unwrap();
        let (images, labels) = batch_of(&graph, 8, 1);
        for _ in 0..3 {
            program.feed(Samples { images: &images, labels: &labels }).unwrap();
            program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
            program.apply(0.1, 0..64).unwrap();
            let result = program.finish().unwrap();
            assert!(
                result.forward_ns > 0
                    && result.backward_ns > 0
                    && result.update_ns > 0
                    && result.copy_in_ns > 0
            );
        }
        let layers = program.layer_times();
        assert_eq!(layers.is_empty(), profiling == Profiling::Phases);
        assert!(layers.iter().all(|layer| layer.calls == 2), "the first run is left out");
        assert!(program.peak_device().is_some_and(|bytes| bytes > program.plan().total() / 2));
    }
}

#[test]
fn what_a_gpu_cannot_do_is_refused_with_words() {
    let Some(gpu) = gpu() else { return };
    let Err(error) = Cuda::new(CudaOptions { device: 999, ..CudaOptions::default() }) else {
        panic!("999 GPUs")
    };
    assert!(error.to_string().contains("GPU 999"), "{error}");
    let graph = zoo::build("vgg_19", Some((224, 224)), 1000).unwrap();
    assert!(matches!(gpu.plan(&graph, &Spec::new(1_000_000)), Err(EngineError::TooLarge { .. })));
    assert!(gpu.plan(&graph, &Spec::new(0)).is_err());
}

#[test]
fn only_a_missing_library_or_gpu_excuses_a_test() {
    let library = |found: Option<&str>| EngineError::Library {
        library: "cuDNN (libcudnn)",
        found: found.map(str::to_owned),
        needed: "9.10".into(),
        hint: String::new(),
    };
    assert!(gpu::is_excused(&library(None)));
    assert!(gpu::is_excused(&EngineError::NoGpu("the driver has no GPU".into())));
    assert!(!gpu::is_excused(&library(Some("of unknown version"))));
    let failed = EngineError::Device { call: "cuInit".into(), answer: "unknown error".into() };
    assert!(!gpu::is_excused(&failed));
    assert!(!gpu::is_excused(&EngineError::Unsupported("GPU 0 was asked for".into())));
}
