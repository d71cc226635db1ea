//! Images/s of the CPU engine alone, in several precisions and instruction sets in turns.
//!
//! `cargo run --release -p paceline-engine --example cpu_speed -- MODEL [--input 32] [--batch 64] [--threads 1] [--layout nhwc]
//! [--rounds 4] [--steps 4] [--profile] [bf16 bf16:avx512_bf16 fp32 ...]`
//!
//! prints, for each: images/s (median of the rounds), milliseconds a step by phase, and the planned memory. With --profile it
//! also prints how long each kind of layer takes, and each layer on standard error; timing them costs a little.

use std::collections::BTreeMap;
use std::time::Instant;

use paceline_engine::cpu::{Cpu, CpuOptions, Simd};
use paceline_engine::{
    Engine, EngineError, Layout, Pass, Precision, Profiling, Program, Samples, Spec, Values,
};
use paceline_model::{Graph, Op, zoo};
use paceline_record::Phase;

fn option<T: std::str::FromStr>(words: &[String], name: &str, default: T) -> T {
    let value = words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    value.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// One precision on one instruction set.
struct Contender {
    name: String,
    program: Box<dyn Program>,
    /// Seconds of each round's steps.
    rounds: Vec<f64>,
    /// Nanoseconds by phase, all rounds.
    phases: [u64; 3],
}

const PHASES: [Phase; 3] = [Phase::Forward, Phase::Backward, Phase::Update];

fn main() -> Result<(), EngineError> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let model = words.first().map_or("resnet50", String::as_str);
    let side = option(&words, "--input", 32);
    let batch = option(&words, "--batch", 64);
    let threads = option(&words, "--threads", 1);
    let (rounds, steps) = (option(&words, "--rounds", 4usize), option(&words, "--steps", 4usize));
    let profile = words.iter().any(|word| word == "--profile");
    let graph = zoo::build(model, Some((side, side)), 10).expect("a network of the zoo");
    let spec = Spec {
        layout: option(&words, "--layout", Layout::Nhwc),
        profiling: if profile { Profiling::Layers } else { Profiling::Phases },
        ..Spec::new(batch)
    };
    let named = |word: &&String| word.starts_with("bf16") || word.starts_with("fp32");
    let mut names: Vec<String> = words.iter().filter(named).cloned().collect();
    if names.is_empty() {
        names = ["fp32", "bf16"].map(String::from).to_vec();
    }
    let mut contenders = Vec::new();
    for name in names {
        let (precision, set) = name.split_once(':').map_or((name.as_str(), None), |(p, s)| (p, Some(s)));
        let precision: Precision = precision.parse().map_err(EngineError::Unsupported)?;
        let simd: Option<Simd> = set.map(str::parse).transpose().map_err(EngineError::Unsupported)?;
        let cpu = Cpu::new(CpuOptions { threads, simd })?;
        let program = cpu.compile(&graph, &Spec { precision, ..spec })?;
        let set = program.numerics().instruction_set.unwrap_or_default();
        contenders.push(Contender {
            name: format!("{precision} {set}"),
            program,
            rounds: vec![],
            phases: [0; 3],
        });
    }
    let images: Vec<f32> =
        (0..batch * graph.input().len()).map(|i| ((i * 7919) % 997) as f32 / 500.0 - 1.0).collect();
    let labels: Vec<u32> = (0..batch).map(|i| (i % graph.classes) as u32).collect();
    for round in 0..=rounds {
        for contender in &mut contenders {
            let program = &mut contender.program;
            let everything = 0..program.len(Values::Parameters);
            let start = Instant::now();
            for _ in 0..steps {
                program.feed(Samples { images: &images, labels: &labels })?;
                program.forward_backward(Pass::ONLY, &mut |_| {})?;
                program.apply(1e-4, everything.clone())?;
                let result = program.finish()?;
                for (total, phase) in contender.phases.iter_mut().zip(PHASES) {
                    *total += if round == 0 { 0 } else { result.phases[phase].0 };
                }
            }
            // The first round warms up.
            if round > 0 {
                contender.rounds.push(start.elapsed().as_secs_f64());
            }
        }
    }
    for contender in &mut contenders {
        contender.rounds.sort_by(f64::total_cmp);
        let seconds = contender.rounds[contender.rounds.len() / 2];
        let plan = *contender.program.plan();
        let phase = |i: usize| contender.phases[i] as f64 * 1e-6 / (rounds * steps) as f64;
        println!(
            "{model} {side}x{side} b{batch} {:<17} {:8.1} images/s  forward {:6.1} backward {:6.1} update {:5.1} ms  arena {:5.0} MB of {:5.0}",
            contender.name,
            (batch * steps) as f64 / seconds,
            phase(0),
            phase(1),
            phase(2),
            plan.arena as f64 * 1e-6,
            plan.total() as f64 * 1e-6,
        );
        if profile {
            print_layers(&graph, contender);
        }
    }
    Ok(())
}

/// Milliseconds a step of each kind of layer.
fn print_layers(graph: &Graph, contender: &mut Contender) {
    let mut kinds: BTreeMap<String, (usize, f64, f64, f64)> = BTreeMap::new();
    for layer in contender.program.measured().layers {
        let first = layer.name.split(" + ").next().unwrap_or_default();
        let kind =
            graph.nodes.iter().find(|node| node.name == first).map_or("other".into(), |node| match node.op {
                Op::Conv(conv) if conv.groups > 1 => "depthwise".into(),
                Op::Conv(conv) => format!("conv {}x{} map {}", conv.kernel.0, conv.kernel.1, node.shape.h),
                Op::Dense(_) => "dense".to_owned(),
                Op::BatchNorm(_) => format!("norm map {}", node.shape.h),
                _ => "other".into(),
            });
        let per_step = |nanos: u64| nanos as f64 * 1e-6 / layer.calls.max(1) as f64;
        let (forward, backward) = (per_step(layer.forward.0), per_step(layer.backward.0));
        let flops = (layer.forward_flops + layer.backward_flops) as f64 * 1e-9;
        eprintln!(
            "{} {:<40} forward {forward:7.3} backward {backward:7.3} ms  {:6.0} GFLOP/s",
            contender.name,
            layer.name,
            flops / (forward + backward) * 1e3
        );
        let entry = kinds.entry(kind).or_default();
        *entry = (entry.0 + 1, entry.1 + forward, entry.2 + backward, entry.3 + flops);
    }
    for (kind, (count, forward, backward, flops)) in kinds {
        println!(
            "    {kind:<20} {count:3} layers  forward {forward:7.2} backward {backward:7.2} ms  {:6.0} GFLOP/s nominal",
            flops / (forward + backward) * 1e3
        );
    }
}
