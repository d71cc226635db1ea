//! Whole networks, over several steps.

use paceline_engine::Layout;
use paceline_model::zoo;

use super::*;

/// Losses of ten steps on two alternating batches.
pub fn losses(engine: &dyn Engine, graph: &Graph, spec: &Spec, rate: f32) -> Vec<f32> {
    let mut program = engine.compile(graph, spec).unwrap();
    let everything = 0..program.len(Values::Parameters);
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

/// A deep network on small maps amplifies rounding: the difference between the CPU's two layouts shows by how much, and a GPU
/// may differ a few times as much. With less precision, only the first loss of such a network can be compared.
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
        // A step that lowers the loss by about a twentieth: larger steps diverge.
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
fn every_network_memorizes_a_batch_in_bf16() {
    let Some(gpu) = gpu() else { return };
    for name in zoo::NAMES {
        let side = if name.starts_with("inception") { 75 } else { 32 };
        let graph = zoo::build(name, Some((side, side)), 10).unwrap();
        let mut program = gpu.compile(&graph, &Spec { precision: Precision::Bf16, ..Spec::new(16) }).unwrap();
        let everything = 0..program.len(Values::Parameters);
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
