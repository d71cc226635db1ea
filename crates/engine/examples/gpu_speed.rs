//! Images/s of the CUDA engine, step after step as a worker runs them.
//!
//!     gpu_speed MODEL --input 32 --batch 64 --precision bf16 --layout nhwc --steps 100 [--profile]
//!
//! prints one JSON line; with --profile, the time of each layer in front of it.

use std::time::Instant;

use paceline_engine::cuda::{Cuda, CudaOptions};
use paceline_engine::{Engine, EngineError, Layout, Pass, Precision, Profiling, Samples, Spec};
use paceline_model::zoo;
use paceline_record::{Nanos, Phase};

fn option<T: std::str::FromStr>(words: &[String], name: &str, default: T) -> T {
    let value = words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    value.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() -> Result<(), EngineError> {
    let started = Instant::now();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let model = words.first().map_or("resnet50", String::as_str);
    let side = option(&words, "--input", 32);
    let steps = option(&words, "--steps", 100u64);
    let classes = option(&words, "--classes", if side > 64 { 1000 } else { 10 });
    let profile = words.iter().any(|word| word == "--profile");
    let spec = Spec {
        precision: option(&words, "--precision", Precision::Bf16),
        layout: option(&words, "--layout", Layout::Nhwc),
        profiling: if profile { Profiling::Layers } else { Profiling::Phases },
        ..Spec::new(option(&words, "--batch", 64))
    };
    let graph = zoo::build(model, Some((side, side)), classes).expect("a network of the zoo");
    let engine = Cuda::new(CudaOptions::default())?;
    let mut program = engine.compile(&graph, &spec)?;
    let compiled = started.elapsed().as_secs_f64();
    let count = spec.batch * graph.input().len();
    let images: Vec<f32> = (0..count).map(|i| ((i * 7919) % 2003) as f32 / 1001.0 - 1.0).collect();
    let labels: Vec<u32> = (0..spec.batch).map(|i| (i % classes) as u32).collect();
    // The update is part of the step, as in a worker that trains alone.
    program.weave(None)?;
    let mut first_step = 0.0;
    let warm = 5;
    let mut begun = Instant::now();
    let mut last = Default::default();
    // Each batch is copied in while the step before it runs.
    program.feed(Samples { images: &images, labels: &labels })?;
    for step in 0..warm + steps {
        if step == warm {
            program.finish()?;
            begun = Instant::now();
        }
        program.forward_backward(Pass { stream: step, update: Some(0.01), ..Pass::ONLY }, &mut |_| {})?;
        program.feed(Samples { images: &images, labels: &labels })?;
        last = program.finish()?;
        if step == 0 {
            first_step = started.elapsed().as_secs_f64();
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let rate = (steps * spec.batch as u64) as f64 / seconds;
    let mut layers = program.measured().layers;
    layers.sort_by_key(|layer| std::cmp::Reverse(layer.forward + layer.backward));
    for layer in &layers {
        let each = |time: Nanos| time.0 as f64 / 1e3 / layer.calls as f64;
        println!("{:9.1} {:9.1} us  {}", each(layer.forward), each(layer.backward), layer.name);
    }
    let ms = |phase: Phase| last.phases[phase].0 as f64 / 1e6;
    println!(
        "{{\"model\":\"{model}\",\"input\":{side},\"batch\":{},\"precision\":\"{}\",\"layout\":\"{}\",\
         \"images_per_s\":{rate:.0},\"step_ms\":{:.3},\"forward_ms\":{:.3},\"backward_ms\":{:.3},\"update_ms\":{:.3},\
         \"copy_in_ms\":{:.3},\"loss\":{:.4},\"compiled_s\":{compiled:.2},\"first_step_s\":{first_step:.2},\
         \"planned_mb\":{},\"driver_mb\":{}}}",
        spec.batch,
        spec.precision,
        spec.layout,
        1e3 * seconds / steps as f64,
        ms(Phase::Forward),
        ms(Phase::Backward),
        ms(Phase::Update),
        ms(Phase::CopyIn),
        last.loss,
        program.plan().total() >> 20,
        program.measured().peak_device.unwrap_or_default().0 >> 20,
    );
    Ok(())
}
