//! The CUDA engine against the CPU engine: every kind of layer, both layouts, every precision; each network over ten steps.
//! Without a GPU the tests are skipped.

#[path = "../gpu/mod.rs"]
mod gpu;
mod graphs;
mod layers;
mod networks;
mod programs;

use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::cuda::{Contents, Cuda, CudaOptions, Tuning};
use paceline_engine::{Engine, Pass, Precision, Program, Samples, Spec, Values};
use paceline_model::{Graph, ParamId};

/// The GPU, with buffers that are NaN before each run; `None`, with the reason printed, where there is none.
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

/// The distance between two vectors, relative to the size of the second.
fn distance(own: &[f32], other: &[f32]) -> f64 {
    assert_eq!(own.len(), other.len());
    let square = |f: &dyn Fn(usize) -> f64| (0..own.len()).map(|i| f(i).powi(2)).sum::<f64>().sqrt();
    let difference = square(&|i| f64::from(own[i]) - f64::from(other[i]));
    let size = square(&|i| f64::from(other[i]));
    if difference.is_nan() { f64::INFINITY } else { difference / size.max(1e-6) }
}

/// The results of a step.
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
            program.read(Values::Gradient(ParamId(id)), &mut values).unwrap();
        }
        gradients.push(values);
    }
    gradients
}

/// One pass with all its results, an update, and an evaluation.
fn step(engine: &dyn Engine, graph: &Graph, spec: &Spec) -> Outcome {
    let mut program = engine.compile(graph, spec).unwrap();
    for (id, param) in graph.params.iter().enumerate() {
        // Not the zeros and ones that layers start with.
        let middle =
            if param.name.ends_with("gamma") || param.name.ends_with("variance") { 1.0 } else { 0.0 };
        let spread = if param.fan_in == 0 { 0.3 } else { (3.0 / param.fan_in as f32).sqrt() };
        let values: Vec<f32> =
            noise(100 + id as u64, param.len()).iter().map(|v| middle + spread * v).collect();
        program.write(Values::Param(ParamId(id)), &values).unwrap();
    }
    let (images, labels) = batch_of(graph, spec.batch, 5);
    for stream in [3, 4] {
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass { stream, ..Pass::ONLY }, &mut |_| {}).unwrap();
    }
    let loss = program.finish().unwrap().loss;
    let mut output = vec![0.0; spec.batch * graph.node(graph.output()).shape.len()];
    program.read(Values::Output, &mut output).unwrap();
    let gradients = read_gradients(graph, &mut *program);
    let everything = 0..program.len(Values::Parameters);
    program.apply(0.05, everything).unwrap();
    program.finish().unwrap();
    let mut read = |id: usize, len: usize| {
        let mut values = vec![0.0; len];
        program.read(Values::Param(ParamId(id)), &mut values).unwrap();
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
