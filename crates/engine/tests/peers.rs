//! Each network of the zoo against an implementation that is not ours: Keras's own, timm's. The fixtures and the rule
//! that weights and images follow are described in `peers/fixtures/README.md`.

mod gpu;

use std::collections::BTreeMap;
use std::path::Path;

use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::cuda::{CudaOptions, Tuning};
use paceline_engine::{Engine, Layout, Optimizer, Pass, Precision, Program, Samples, Spec, Values};
use paceline_model::{Graph, ParamId, ParamKind, zoo};
use serde::Deserialize;

#[derive(Deserialize)]
struct Fixture {
    network: String,
    input: [usize; 3],
    batch: usize,
    classes: usize,
    lr: f32,
    momentum: f32,
    rule: Rule,
    rule_check: RuleCheck,
    parameters: usize,
    loss: f64,
    losses: Vec<f64>,
    output: Vec<(usize, f64)>,
    output_norm: f64,
    eval_loss: f64,
    eval_output_norm: f64,
    moving: Vec<Tensor>,
    gradients: Vec<Tensor>,
    gradient_atol: f64,
}

#[derive(Deserialize)]
struct Rule {
    gamma: f64,
    beta: f64,
    salt: u64,
}

#[derive(Deserialize)]
struct RuleCheck {
    images_norm: f64,
    images_first: [f64; 4],
    weights_norm: f64,
}

#[derive(Deserialize)]
struct Tensor {
    name: String,
    #[serde(default)]
    dims: Vec<usize>,
    norm: f64,
    first: Vec<f64>,
}

/// v(name, j) of the rule.
fn draw(name: &str, j: usize) -> f64 {
    let seed = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    let mut z = seed.wrapping_add((j as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    2.0 * ((z >> 40) as f64 / f64::from(1 << 24)) - 1.0
}

fn images(fixture: &Fixture) -> Vec<f32> {
    let [h, w, channels] = fixture.input;
    let (wide, deep) = (w.div_ceil(8), h.div_ceil(8));
    let (images, blocks) = (format!("images/{}", fixture.rule.salt), format!("blocks/{}", fixture.rule.salt));
    let mut values = Vec::with_capacity(fixture.batch * h * w * channels);
    for n in 0..fixture.batch {
        for y in 0..h {
            for x in 0..w {
                for c in 0..channels {
                    let pixel = ((n * h + y) * w + x) * channels + c;
                    let block = ((n * deep + y / 8) * wide + x / 8) * channels + c;
                    values.push((0.5 * (draw(&images, pixel) + draw(&blocks, block))) as f32);
                }
            }
        }
    }
    values
}

fn weights(graph: &Graph, rule: &Rule, id: usize) -> Vec<f32> {
    let param = &graph.params[id];
    let value = |v: f64| match param.kind {
        ParamKind::Kernel => v * (6.0 / param.fan_in as f64).sqrt(),
        ParamKind::Bias => 0.05 * v,
        ParamKind::Gamma => rule.gamma * (1.0 + 0.2 * v),
        ParamKind::Beta => rule.beta + 0.1 * v,
        ParamKind::MovingMean => 0.0,
        ParamKind::MovingVariance => 1.0,
    };
    (0..param.len()).map(|j| value(draw(&param.name, j)) as f32).collect()
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

#[track_caller]
fn close(what: &str, own: f64, peer: f64, tolerance: f64) {
    assert!((own - peer).abs() <= tolerance, "{what}: {own}, the peer has {peer}, allowed {tolerance:.2e}");
}

fn find(graph: &Graph, name: &str) -> ParamId {
    let found = graph.params.iter().position(|param| param.name == name);
    ParamId(found.unwrap_or_else(|| panic!("{} has no tensor {name}", graph.name)))
}

fn read(program: &mut dyn Program, graph: &Graph, id: ParamId, gradient: bool) -> Vec<f32> {
    let mut values = vec![0.0; graph.param(id).len()];
    if gradient {
        program.read(Values::Gradient(id), &mut values).unwrap();
    } else {
        program.read(Values::Param(id), &mut values).unwrap();
    }
    values
}

/// A fixture of `peers/fixtures`.
fn fixture<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../peers/fixtures/{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A network and the case that its fixture describes.
struct Case {
    fixture: Fixture,
    graph: Graph,
}

impl Case {
    fn of(network: &str) -> Self {
        let fixture: Fixture = fixture(network);
        assert_eq!(fixture.network, network);
        let [h, w, _] = fixture.input;
        let graph = zoo::build(network, Some((h, w)), fixture.classes).unwrap();
        Self { fixture, graph }
    }

    fn spec(&self, precision: Precision, layout: Layout) -> Spec {
        let optimizer =
            Optimizer::Sgd { momentum: self.fixture.momentum, nesterov: false, weight_decay: 0.0 };
        Spec { layout, precision, optimizer, ..Spec::new(self.fixture.batch) }
    }

    /// A program with the rule's weights, fed with the rule's batch.
    fn program(&self, engine: &dyn Engine, spec: &Spec) -> Box<dyn Program> {
        let Self { fixture, graph } = self;
        let mut program = engine.compile(graph, spec).unwrap();
        let images = images(fixture);
        close("images", norm(&images), fixture.rule_check.images_norm, 1e-6 * fixture.rule_check.images_norm);
        for (own, peer) in images.iter().zip(fixture.rule_check.images_first) {
            close("first images", f64::from(*own), peer, 1e-7);
        }
        let mut squares = 0.0;
        for id in 0..graph.params.len() {
            let values = weights(graph, &fixture.rule, id);
            program.write(Values::Param(ParamId(id)), &values).unwrap();
            if graph.params[id].kind.trainable() {
                squares += norm(&values).powi(2);
            }
        }
        let expected = fixture.rule_check.weights_norm;
        close("weights", squares.sqrt(), expected, 1e-6 * expected);
        let labels: Vec<u32> = (0..fixture.batch).map(|n| ((3 * n + 1) % fixture.classes) as u32).collect();
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program
    }
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: 2, simd: None }).unwrap()
}

fn agrees_with_its_peer(network: &str, layout: Layout) {
    let case = Case::of(network);
    let spec = case.spec(Precision::Fp32, layout);
    let mut program = case.program(&cpu(), &spec);
    let Case { fixture, graph } = case;

    program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
    let loss = f64::from(program.finish().unwrap().loss);
    close("loss at step 1", loss, fixture.loss, 1e-5 * fixture.loss);
    let mut output = vec![0.0; fixture.batch * graph.node(graph.output()).shape.len()];
    program.read(Values::Output, &mut output).unwrap();
    let typical = fixture.output_norm / (output.len() as f64).sqrt();
    close("norm of the output", norm(&output), fixture.output_norm, 1e-5 * fixture.output_norm);
    for &(index, peer) in &fixture.output {
        close("output", f64::from(output[index]), peer, 1e-4 * typical);
    }
    let trained: usize = graph.params.iter().filter(|p| p.kind.trainable()).map(|p| p.len()).sum();
    assert_eq!(trained, fixture.parameters);
    assert_eq!(fixture.gradients.len(), program.slots().len());
    for peer in &fixture.gradients {
        let id = find(&graph, &peer.name);
        assert_eq!(graph.param(id).dims, peer.dims, "{}", peer.name);
        let own = read(&mut *program, &graph, id, true);
        close(&peer.name, norm(&own), peer.norm, 2e-4 * peer.norm + fixture.gradient_atol);
        let typical = peer.norm / (own.len() as f64).sqrt();
        for (&own, &value) in own.iter().zip(&peer.first) {
            close(&peer.name, f64::from(own), value, 5e-3 * typical + fixture.gradient_atol);
        }
    }
    for peer in &fixture.moving {
        let own = read(&mut *program, &graph, find(&graph, &peer.name), false);
        close(&peer.name, norm(&own), peer.norm, 1e-5 * peer.norm);
        for (&own, &value) in own.iter().zip(&peer.first) {
            close(&peer.name, f64::from(own), value, 1e-5 * peer.norm);
        }
    }

    let everything = 0..program.len(Values::Parameters);
    for (step, &peer) in fixture.losses.iter().enumerate() {
        // Step 1 has run already.
        if step > 0 {
            program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
        }
        program.apply(fixture.lr, everything.clone()).unwrap();
        let loss = f64::from(program.finish().unwrap().loss);
        close(&format!("loss at step {}", step + 1), loss, peer, 1e-4 * peer);
    }
    program.evaluate(spec.batch).unwrap();
    let loss = f64::from(program.finish().unwrap().loss);
    close("loss in evaluation", loss, fixture.eval_loss, 1e-4 * fixture.eval_loss);
    program.read(Values::Output, &mut output).unwrap();
    close("output in evaluation", norm(&output), fixture.eval_output_norm, 1e-4 * fixture.eval_output_norm);
}

/// What less precision costs one pass: distances relative to more precision.
#[derive(Debug, Deserialize)]
struct Distances {
    loss: f64,
    output: f64,
    gradients: f64,
}

#[derive(Deserialize)]
struct Autocast {
    networks: BTreeMap<String, Distances>,
}

/// The distance between two vectors, relative to the size of the second.
fn distance(own: &[f32], other: &[f32]) -> f64 {
    let apart: Vec<f32> = own.iter().zip(other).map(|(own, other)| own - other).collect();
    norm(&apart) / norm(other)
}

/// bf16 must cost no more here than PyTorch's autocast costs PyTorch; on a GPU, too, where there is one. One loss may be near by luck, so
/// it is held to the output's distance.
fn is_as_close_as_autocast(network: &str) {
    let peer = &fixture::<Autocast>("autocast").networks[network];
    // Keras's batch norms give float32 under autocast, so that half as many values are rounded.
    let gradients = if matches!(network, "resnet_v2_101" | "inception_v3") { FEW } else { MANY };
    let case = Case::of(network);
    let gpu = gpu::open(CudaOptions { tuning: Tuning::First, ..CudaOptions::default() });
    let pass = |engine: &dyn Engine, precision, layout| {
        let mut program = case.program(engine, &case.spec(precision, layout));
        program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
        let loss = program.finish().unwrap().loss;
        (loss, program.to_vec(Values::Output).unwrap(), program.to_vec(Values::Gradients(0)).unwrap())
    };
    let exact = pass(&cpu(), Precision::Fp32, Layout::Nhwc);
    let check = |engine: &dyn Engine, layout| {
        let own = pass(engine, Precision::Bf16, layout);
        let own = Distances {
            loss: distance(&[own.0], &[exact.0]),
            output: distance(&own.1, &exact.1),
            gradients: distance(&own.2, &exact.2),
        };
        let words = format!("{network} {layout}: {own:?}, autocast: {peer:?}");
        println!("{words}");
        assert!(own.gradients < gradients * peer.gradients, "{words}");
        assert!(own.output < FEW * peer.output && own.loss < FEW * peer.output, "{words}");
        assert!(own.output > 1e-4 && own.gradients > 1e-4, "this is no bf16: {words}");
    };
    for layout in [Layout::Nhwc, Layout::Nchw] {
        check(&cpu(), layout);
        if let Some(gpu) = &gpu {
            check(gpu, layout);
        }
    }
}

/// Distances are sums of rounding errors, which another order of sums changes. An output has few values, so one of them may make most of
/// its distance.
const MANY: f64 = 1.3;
const FEW: f64 = 2.0;

macro_rules! networks {
    ($($network:ident)*) => {
        $(mod $network {
            use super::*;

            #[test]
            fn agrees_with_its_peer_in_nhwc() {
                agrees_with_its_peer(stringify!($network), Layout::Nhwc);
            }

            #[test]
            fn agrees_with_its_peer_in_nchw() {
                agrees_with_its_peer(stringify!($network), Layout::Nchw);
            }

            #[test]
            fn is_as_close_to_fp32_in_bf16_as_autocast() {
                is_as_close_as_autocast(stringify!($network));
            }
        })*
    };
}

networks! { resnet50 resnet_v2_101 vgg_19 inception_v3 inception_v4 mobilenet_v2 image_compression }
