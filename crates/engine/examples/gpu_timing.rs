//! The same steps on a GPU, timed by the host around each call and by the device: where does the host charge the wait?
//!
//!     gpu_timing MODEL --input 256 --batch 64 --precision bf16 --steps 30
//!
//! prints medians in milliseconds, one line for each way to run a step. What the device does is the same in all of them.

use std::time::Instant;

use paceline_engine::cuda::{Cuda, CudaOptions};
use paceline_engine::{Engine, EngineError, Pass, Precision, Program, Samples, Spec, Values};
use paceline_model::zoo;
use paceline_record::Phase;

/// The calls of a step, in order.
const CALLS: [&str; 5] = ["feed", "forward_backward", "read back", "apply", "finish"];

/// Where the host waits for the device.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// In the last call.
    End,
    /// In `apply`, which looks at a gradient before it uses them.
    Apply,
    /// Where a gradient is read back; `apply` looks at it as well.
    ReadBack,
    /// After each call.
    Each,
    /// Only where the engine has to.
    Nowhere,
}

const WAYS: [(Way, &str); 5] = [
    (Way::End, "waits in finish"),
    (Way::Apply, "apply looks at a gradient"),
    (Way::ReadBack, "a gradient is read back before"),
    (Way::Nowhere, "waits for nothing"),
    (Way::Each, "waits after each call"),
];

fn option<T: std::str::FromStr>(words: &[String], name: &str, default: T) -> T {
    let value = words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    value.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What a step is made of.
struct Work<'a> {
    samples: Samples<'a>,
    parameters: usize,
    /// One gradient: the last that backward computes.
    gradient: Values,
}

/// A step's milliseconds: in each call by the host's clock; copy in, forward, backward and update by the device's.
#[derive(Default)]
struct Timing {
    host: [f64; 5],
    device: [f64; 4],
}

impl Timing {
    /// Waits for the device and takes its times over.
    fn settle(&mut self, program: &mut dyn Program) -> Result<(), EngineError> {
        let phases = program.finish()?.phases;
        let told = [Phase::CopyIn, Phase::Forward, Phase::Backward, Phase::Update]
            .map(|phase| phases[phase].0 as f64 / 1e6);
        self.device.iter_mut().zip(told).for_each(|(known, told)| *known = known.max(told));
        Ok(())
    }
}

/// Runs a step.
fn step(program: &mut dyn Program, way: Way, work: &Work<'_>) -> Result<Timing, EngineError> {
    let mut gradient = vec![0.0; program.len(work.gradient)];
    let mut timing = Timing::default();
    for call in 0..CALLS.len() {
        let begun = Instant::now();
        match call {
            0 => program.feed(work.samples)?,
            1 => program.forward_backward(Pass::ONLY, &mut |_| {})?,
            2 if way == Way::ReadBack => program.read(work.gradient, &mut gradient)?,
            3 => {
                if matches!(way, Way::Apply | Way::ReadBack) {
                    program.read(work.gradient, &mut gradient)?;
                }
                program.apply(0.001, 0..work.parameters)?;
            }
            4 if way != Way::Nowhere => timing.settle(program)?,
            _ => continue,
        }
        if way == Way::Each {
            timing.settle(program)?;
        }
        timing.host[call] = begun.elapsed().as_secs_f64() * 1e3;
    }
    Ok(timing)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), EngineError> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let model = words.first().map_or("resnet50", String::as_str);
    let side = option(&words, "--input", 256);
    let steps = option(&words, "--steps", 30usize).max(1);
    let spec = Spec {
        precision: option(&words, "--precision", Precision::Bf16),
        ..Spec::new(option(&words, "--batch", 64))
    };
    let graph = zoo::build(model, Some((side, side)), 1000).expect("a network of the zoo");
    let engine = Cuda::new(CudaOptions::default())?;
    let mut program = engine.compile(&graph, &spec)?;
    let count = spec.batch * graph.input().len();
    let images: Vec<f32> = (0..count).map(|i| ((i * 7919) % 2003) as f32 / 1001.0 - 1.0).collect();
    let labels: Vec<u32> = (0..spec.batch as u32).collect();
    let parameters = program.len(Values::Parameters);
    let smallest = program.slots().iter().min_by_key(|slot| slot.range.len()).expect("trained tensors");
    let gradient = Values::Gradient(smallest.param);
    let work = Work { samples: Samples { images: &images, labels: &labels }, parameters, gradient };
    println!("{model}, {side}x{side}, batch {}, {}: {}", spec.batch, spec.precision, engine.describe());
    print!("{:<31}", "ms by the host's clock");
    CALLS.iter().for_each(|call| print!("{call:>17}"));
    println!("{:>9}", "step");
    let mut device = Vec::new();
    for (way, name) in WAYS {
        for _ in 0..5 {
            step(&mut *program, way, &work)?;
        }
        program.finish()?;
        let begun = Instant::now();
        let timings: Vec<Timing> =
            (0..steps).map(|_| step(&mut *program, way, &work)).collect::<Result<_, _>>()?;
        program.finish()?;
        let whole = begun.elapsed().as_secs_f64() * 1e3 / steps as f64;
        print!("{name:<31}");
        for call in 0..CALLS.len() {
            print!("{:>17.2}", median(timings.iter().map(|timing| timing.host[call]).collect()));
        }
        println!("{whole:>9.2}");
        device.push((way, name, timings));
    }
    println!();
    print!("{:<31}", "ms by the device's events");
    ["copy in", "forward", "backward", "update"].iter().for_each(|part| print!("{part:>17}"));
    println!();
    for (_, name, timings) in device.iter().filter(|(way, ..)| *way != Way::Nowhere) {
        print!("{name:<31}");
        for part in 0..4 {
            print!("{:>17.2}", median(timings.iter().map(|timing| timing.device[part]).collect()));
        }
        println!();
    }
    Ok(())
}
