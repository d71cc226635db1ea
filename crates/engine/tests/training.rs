//! Training as a whole: it learns, it repeats to the bit, it keeps its state, it refuses what is wrong.

use paceline_engine::cpu::{Cpu, CpuOptions, Simd};
use paceline_engine::{
    Drawing, Engine, EngineError, Homes, Layout, Optimizer, Pass, Place, Precision, Program, Region, Samples,
    Spec, Values, lay_out,
};
use paceline_model::{Builder, Conv2d, Dense, Graph, Init, NodeId, Op, ParamId, Shape, Window, zoo};
use paceline_record::Nanos;

const SGD: Optimizer = Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };

fn engine(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, simd: None }).unwrap()
}

/// Precisions and instruction sets of this machine.
fn ways() -> Vec<(Precision, Simd)> {
    let mut all = Vec::new();
    for precision in [Precision::Fp32, Precision::Bf16] {
        let sets = Simd::ALL.into_iter().filter(|simd| simd.computes(precision) && simd.available());
        all.extend(sets.map(|simd| (precision, simd)));
    }
    all
}

/// Numbers in \[-1, 1) as a function of a seed.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Images whose class is the place of a bright stripe, under noise.
fn stripes(shape: Shape, classes: usize, batch: usize, seed: u64) -> (Vec<f32>, Vec<u32>) {
    let mut images = noise(seed, batch * shape.len());
    let labels: Vec<u32> = (0..batch).map(|n| ((n as u64 * 5 + seed) % classes as u64) as u32).collect();
    for (n, &label) in labels.iter().enumerate() {
        for y in 0..shape.h {
            if y * classes / shape.h == label as usize {
                for value in &mut images[n * shape.len() + y * shape.w * shape.c..][..shape.w * shape.c] {
                    *value += 1.0;
                }
            }
        }
    }
    (images, labels)
}

fn params(graph: &Graph, program: &mut dyn Program) -> Vec<Vec<f32>> {
    let read = |(id, param): (usize, &paceline_model::ParamInfo)| {
        let mut values = vec![0.0; param.len()];
        program.read(Values::Param(ParamId(id)), &mut values).unwrap();
        values
    };
    graph.params.iter().enumerate().map(read).collect()
}

/// Trains some steps on fresh batches; the weights and the last loss.
fn train(graph: &Graph, spec: &Spec, cpu: &Cpu, steps: u64) -> (Vec<Vec<f32>>, f32) {
    let mut program = cpu.compile(graph, spec).unwrap();
    let everything = 0..program.len(Values::Parameters);
    let mut loss = 0.0;
    for step in 0..steps {
        let (images, labels) = stripes(graph.input(), graph.classes, spec.batch, step);
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
        program.apply(0.05, everything.clone()).unwrap();
        loss = program.finish().unwrap().loss;
    }
    (params(graph, &mut *program), loss)
}

#[test]
fn recorded_numerics_give_the_same_bits_again() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 4).unwrap();
    for (precision, simd) in ways() {
        let spec = Spec { precision, ..Spec::new(8) };
        let cpu = Cpu::new(CpuOptions { threads: 2, simd: Some(simd) }).unwrap();
        let numerics = cpu.compile(&graph, &spec).unwrap().numerics();
        assert_eq!(numerics.instruction_set.as_deref(), Some(simd.to_string().as_str()));
        let again = Cpu::new(CpuOptions { threads: 1, simd: numerics.simd().unwrap() }).unwrap();
        assert!(train(&graph, &spec, &cpu, 3) == train(&graph, &spec, &again, 3), "{precision} {simd}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bits_at_any_thread_count() {
    let small = zoo::small_cnn(Shape::new(13, 9, 3), 10).unwrap();
    let mobile = zoo::build("mobilenet_v2", Some((32, 32)), 10).unwrap();
    let compression = zoo::build("image_compression", Some((32, 32)), 10).unwrap();
    for (graph, batch) in [(&small, 19), (&mobile, 6), (&compression, 3)] {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            let mut spec = Spec::new(batch);
            spec.layout = layout;
            let one = train(graph, &spec, &engine(1), 3);
            for threads in [1, 2, 3, 7] {
                let again = train(graph, &spec, &engine(threads), 3);
                assert!(one == again, "{} {layout}, {threads} threads", graph.name);
            }
            let rough = Spec { precision: Precision::Bf16, ..spec };
            let bf16 = train(graph, &rough, &engine(1), 3);
            assert!(bf16 != one, "bf16 is not fp32");
            for threads in [2, 7] {
                let again = train(graph, &rough, &engine(threads), 3);
                assert!(bf16 == again, "{} {layout} bf16, {threads} threads", graph.name);
            }
            spec.seed = 1;
            assert!(one != train(graph, &spec, &engine(1), 3), "another seed is another run");
        }
    }
}

#[test]
fn instruction_sets_agree_on_the_weights_after_a_step() {
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    let run = |simd| {
        train(&graph, &Spec::new(16), &Cpu::new(CpuOptions { threads: 1, simd: Some(simd) }).unwrap(), 1)
    };
    let plain = run(Simd::Portable);
    for simd in [Simd::Avx512, Simd::Avx2].into_iter().filter(|simd| simd.available()) {
        let (weights, loss) = run(simd);
        assert!((loss - plain.1).abs() < 1e-5, "{simd}");
        let (mut difference, mut size) = (0.0, 0.0);
        for (own, other) in weights.iter().flatten().zip(plain.0.iter().flatten()) {
            difference += f64::from(own - other).powi(2);
            size += f64::from(*other).powi(2);
        }
        assert!(difference.sqrt() < 1e-3 * size.sqrt(), "{simd}: off by {}", (difference / size).sqrt());
    }
}

/// The distance between two vectors, relative to the size of the second.
fn distance(own: &[f32], other: &[f32]) -> f64 {
    let square = |f: &dyn Fn(usize) -> f64| (0..own.len()).map(|i| f(i).powi(2)).sum::<f64>().sqrt();
    square(&|i| f64::from(own[i] - other[i])) / square(&|i| f64::from(other[i]))
}

#[test]
fn a_step_in_bf16_is_close_to_one_in_fp32_on_every_instruction_set() {
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    let (images, labels) = stripes(graph.input(), 10, 32, 3);
    let gradients = |precision, simd, layout| {
        let cpu = Cpu::new(CpuOptions { threads: 1, simd: Some(simd) }).unwrap();
        let mut program = cpu.compile(&graph, &Spec { precision, layout, ..Spec::new(32) }).unwrap();
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
        (program.to_vec(Values::Gradients(0)).unwrap(), program.to_vec(Values::Output).unwrap())
    };
    let exact = gradients(Precision::Fp32, Simd::Portable, Layout::Nhwc);
    for (precision, simd) in ways().into_iter().filter(|way| way.0 == Precision::Bf16) {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            let own = gradients(precision, simd, layout);
            let off = [distance(&own.0, &exact.0), distance(&own.1, &exact.1)];
            assert!(off[0] < 5e-2 && off[1] < 2e-2, "{simd} {layout}: {off:?}");
            assert!(off[0] > 1e-4 && off[1] > 1e-4, "{simd} {layout} is no bf16: {off:?}");
        }
    }
}

#[test]
fn activations_in_bf16_take_little_more_than_half() {
    for (name, side, batch) in
        [("resnet50", 32, 64), ("mobilenet_v2", 32, 64), ("vgg_19", 32, 64), ("resnet50", 224, 8)]
    {
        let graph = zoo::build(name, Some((side, side)), 10).unwrap();
        let arena =
            |precision| engine(1).plan(&graph, &Spec { precision, ..Spec::new(batch) }).unwrap().arena;
        let part = arena(Precision::Bf16) as f64 / arena(Precision::Fp32) as f64;
        assert!(part <= 0.55, "{name} at {side}: {part:.3}");
    }
}

#[test]
fn a_small_network_finds_the_planted_classes() {
    for precision in [Precision::Fp32, Precision::Bf16] {
        finds_the_planted_classes(precision);
    }
}

fn finds_the_planted_classes(precision: Precision) {
    let graph = zoo::small_cnn(Shape::new(16, 16, 3), 8).unwrap();
    let spec = Spec { precision, ..Spec::new(32) };
    let mut program = engine(2).compile(&graph, &spec).unwrap();
    let everything = 0..program.len(Values::Parameters);
    for step in 0..300 {
        let (images, labels) = stripes(graph.input(), 8, 32, step);
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
        program.apply(0.05, everything.clone()).unwrap();
        program.finish().unwrap();
    }
    let mut correct = 0;
    for step in 1000..1010 {
        let (images, labels) = stripes(graph.input(), 8, 32, step);
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.evaluate(spec.batch).unwrap();
        correct += program.finish().unwrap().correct;
    }
    assert!(correct >= 288, "{correct} of 320 right in evaluation mode; 40 would be chance");
}

#[test]
fn every_network_of_the_zoo_lowers_its_loss_on_a_repeated_batch() {
    for name in zoo::NAMES {
        let side = if name.starts_with("inception") { 75 } else { 32 };
        let graph = zoo::build(name, Some((side, side)), 10).unwrap();
        for precision in [Precision::Fp32, Precision::Bf16] {
            let mut program = engine(2).compile(&graph, &Spec { precision, ..Spec::new(4) }).unwrap();
            let everything = 0..program.len(Values::Parameters);
            let (images, labels) = stripes(graph.input(), 10, 4, 3);
            program.feed(Samples { images: &images, labels: &labels }).unwrap();
            let mut losses = Vec::new();
            // Without batch norm the first steps need a higher rate.
            let rate = if name == "vgg_19" { 0.02 } else { 0.005 };
            for _ in 0..8 {
                program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
                program.apply(rate, everything.clone()).unwrap();
                losses.push(program.finish().unwrap().loss);
            }
            assert!(losses.iter().all(|loss| loss.is_finite()), "{name} {precision}: {losses:?}");
            assert!(losses[7] < 0.9 * losses[0], "{name} {precision}: {losses:?}");
        }
    }
}

#[test]
fn gradients_become_ready_in_the_order_of_the_slots() {
    for name in zoo::NAMES {
        let side = if name.starts_with("inception") { 75 } else { 32 };
        let graph = zoo::build(name, Some((side, side)), 10).unwrap();
        let program = engine(1).compile(&graph, &Spec::new(1)).unwrap();
        let slots: Vec<ParamId> = program.slots().iter().map(|slot| slot.param).collect();
        assert_eq!(slots, paceline_model::gradient_order(&graph), "{name}");
        assert!(program.slots().is_sorted_by(|a, b| a.range.end <= b.range.start), "{name}");
    }
}

/// What each rule does to one weight, in PyTorch's form, in double precision.
fn update_by_hand(optimizer: Optimizer, weight: f64, gradients: &[f64], rate: f64) -> f64 {
    let (mut p, mut m, mut v) = (weight, 0.0, 0.0);
    for (step, g) in gradients.iter().enumerate() {
        match optimizer {
            Optimizer::Sgd { momentum, nesterov, weight_decay } => {
                let g = g + f64::from(weight_decay) * p;
                m = f64::from(momentum) * m + g;
                p -= rate * if nesterov { g + f64::from(momentum) * m } else { m };
            }
            Optimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
                let (beta1, beta2) = (f64::from(beta1), f64::from(beta2));
                let g = g + f64::from(weight_decay) * p;
                m = beta1 * m + (1.0 - beta1) * g;
                v = beta2 * v + (1.0 - beta2) * g * g;
                let t = step as i32 + 1;
                let root = (v / (1.0 - beta2.powi(t))).sqrt() + f64::from(epsilon);
                p -= rate * m / (1.0 - beta1.powi(t)) / root;
            }
        }
    }
    p
}

#[test]
fn update_rules_have_pytorchs_form() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
    let rules = [
        Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.1 },
        Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.01 },
        Optimizer::Sgd { momentum: 0.8, nesterov: true, weight_decay: 0.02 },
        Optimizer::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.05 },
    ];
    for optimizer in rules {
        let mut spec = Spec::new(4);
        spec.optimizer = optimizer;
        let mut program = engine(1).compile(&graph, &spec).unwrap();
        let len = program.len(Values::Parameters);
        let before = params(&graph, &mut *program);
        let mut gradients: Vec<Vec<Vec<f32>>> = Vec::new();
        for step in 0..3 {
            let (images, labels) = stripes(graph.input(), 10, 4, step);
            program.feed(Samples { images: &images, labels: &labels }).unwrap();
            program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
            let read = |(id, param): (usize, &paceline_model::ParamInfo)| {
                let mut values = vec![0.0; param.len()];
                if param.kind.trainable() {
                    program.read(Values::Gradient(ParamId(id)), &mut values).unwrap();
                }
                values
            };
            gradients.push(graph.params.iter().enumerate().map(read).collect());
            // In two parts, as a worker that owns a slice would.
            program.apply(0.01, 0..len / 3).unwrap();
            program.apply(0.01, len / 3..len).unwrap();
            program.finish().unwrap();
        }
        let after = params(&graph, &mut *program);
        for (id, param) in graph.params.iter().enumerate().filter(|(_, p)| p.kind.trainable()) {
            for i in 0..param.len() {
                let history: Vec<f64> = gradients.iter().map(|g| f64::from(g[id][i])).collect();
                let expected = update_by_hand(optimizer, f64::from(before[id][i]), &history, 0.01);
                let own = f64::from(after[id][i]);
                assert!(
                    (own - expected).abs() < 2e-6 + 1e-5 * expected.abs(),
                    "{optimizer:?}: {own}, not {expected}"
                );
            }
        }
    }
}

fn with_dropout(rate: f32) -> Graph {
    let (mut b, x) = Builder::new("dropout", Shape::new(1, 1, 1), 2).unwrap();
    let x = b.conv("spread", x, Conv2d::k(1, 1).out(4000)).unwrap();
    let x = b.dropout("drop", x, rate).unwrap();
    let x = b.dense("head", x, Dense { out: 2, bias: false, init: Init::Glorot }).unwrap();
    b.softmax_cross_entropy("loss", x).unwrap()
}

#[test]
fn dropout_drops_its_fraction_and_scales_the_rest_in_training_only() {
    let graph = with_dropout(0.3);
    let find = |name: &str| ParamId(graph.params.iter().position(|p| p.name == name).unwrap());
    let (spread, head) = (find("spread/kernel"), find("head/kernel"));
    let mut program = engine(1).compile(&graph, &Spec::new(1)).unwrap();
    program.write(Values::Param(spread), &[1.0; 4000]).unwrap();
    let run = |program: &mut dyn Program, stream: u64| {
        program.feed(Samples { images: &[1.0], labels: &[1] }).unwrap();
        program.forward_backward(Pass { stream, ..Pass::ONLY }, &mut |_| {}).unwrap();
        let mut gradient = vec![0.0; 8000];
        program.read(Values::Gradient(head), &mut gradient).unwrap();
        gradient
    };
    let first = run(&mut *program, 7);
    let dropped = first.chunks(2).filter(|pair| pair[0] == 0.0).count();
    assert!((1100..1300).contains(&dropped), "{dropped} of 4000 dropped at rate 0.3");
    let kept: Vec<f32> = first.chunks(2).map(|pair| pair[0].abs()).filter(|g| *g > 0.0).collect();
    assert!(kept.iter().all(|g| (g - kept[0]).abs() < 1e-6), "the rest share one scale");
    assert!(first != run(&mut *program, 8), "each stream draws a mask of its own");
    let mut again = engine(1).compile(&graph, &Spec::new(1)).unwrap();
    again.write(Values::Param(spread), &[1.0; 4000]).unwrap();
    assert!(first == run(&mut *again, 7), "the mask follows from the seed");
    let mut mask_of_input = vec![0.0; 4000];
    again.read(Values::Gradient(spread), &mut mask_of_input).unwrap();
    for (input, head) in mask_of_input.iter().zip(first.chunks(2)) {
        assert_eq!(*input == 0.0, head[0] == 0.0, "backward uses forward's mask");
    }
    let mut weights = vec![0.0; 8000];
    program.read(Values::Param(head), &mut weights).unwrap();
    program.evaluate(1).unwrap();
    let mut logits = [0.0; 2];
    program.read(Values::Output, &mut logits).unwrap();
    let expected: f32 = weights.chunks(2).map(|pair| pair[0]).sum();
    assert!((logits[0] - expected).abs() < 1e-3, "evaluation keeps everything");
}

#[test]
fn evaluation_neither_trains_nor_moves_the_running_statistics() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
    let mut program = engine(1).compile(&graph, &Spec::new(4)).unwrap();
    let before = params(&graph, &mut *program);
    let (images, labels) = stripes(graph.input(), 10, 4, 1);
    program.feed(Samples { images: &images, labels: &labels }).unwrap();
    program.evaluate(4).unwrap();
    assert!(before == params(&graph, &mut *program));
}

/// The largest resident size of this process so far, in bytes.
fn peak_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn the_planned_peak_is_what_is_used() {
    // In a process of its own, since other tests would be counted too.
    if std::env::var_os("PLAN_ALONE").is_none() {
        let this = std::env::current_exe().unwrap();
        let status = std::process::Command::new(this)
            .args(["--exact", "the_planned_peak_is_what_is_used"])
            .env("PLAN_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let graph = zoo::build("mobilenet_v2", Some((64, 64)), 10).unwrap();
    let spec = Spec { optimizer: SGD, ..Spec::new(64) };
    let (images, labels) = stripes(graph.input(), 10, 64, 1);
    let before = peak_resident();
    let mut program = engine(1).compile(&graph, &spec).unwrap();
    let planned = program.plan().total();
    assert_eq!(planned, engine(1).plan(&graph, &spec).unwrap().total());
    let everything = 0..program.len(Values::Parameters);
    for _ in 0..2 {
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
        program.apply(0.01, everything.clone()).unwrap();
    }
    let used = peak_resident() - before;
    let (planned, used) = (planned as f64, used as f64);
    assert!((0.95 * planned..1.05 * planned + 12e6).contains(&used), "planned {planned}, used {used}");
    let plan = program.plan();
    assert!(3 * plan.arena < 2 * plan.arena_unshared, "buffers share memory: {plan:?}");
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
    let refusal = |spec: Spec| engine(1).plan(&graph, &spec).unwrap_err().to_string();
    assert!(refusal(Spec::new(0)).contains("--batch"));
    assert!(refusal(Spec { precision: Precision::Tf32, ..Spec::new(1) }).contains("fp32 or bf16"));
    for simd in [Simd::Amx, Simd::Avx512Bf16] {
        let error = match Cpu::new(CpuOptions { threads: 1, simd: Some(simd) }) {
            Ok(cpu) => cpu.plan(&graph, &Spec::new(1)).expect_err("it is for bf16"),
            Err(error) => error,
        };
        let words = error.to_string();
        assert!(
            words.contains("--precision bf16") || words.contains(&format!("cannot run {simd}")),
            "{words}"
        );
    }
    let (mut b, x) = Builder::new("wide", Shape::new(40, 40, 3), 2).unwrap();
    let x = b.max_pool("wide", x, Window::k(17, 17).stride(2)).unwrap();
    let x = b.conv("c", x, Conv2d::k(1, 1).out(2)).unwrap();
    let x = b.global_avg_pool("mean", x);
    let wide = b.softmax_cross_entropy("loss", x).unwrap();
    let error = engine(1).plan(&wide, &Spec { precision: Precision::Bf16, ..Spec::new(1) }).unwrap_err();
    assert!(error.to_string().contains("more than 256 values"), "{error}");
    assert!(engine(1).plan(&wide, &Spec::new(1)).is_ok());
    let large = zoo::build("resnet50", Some((224, 224)), 10).unwrap();
    match engine(1).plan(&large, &Spec::new(1 << 20)) {
        Err(EngineError::TooLarge { needed_mb, available_mb, .. }) => assert!(needed_mb > available_mb),
        other => panic!("{other:?}"),
    }
    assert!(engine(1).compile(&large, &Spec::new(1 << 20)).is_err());
    assert!(Cpu::new(CpuOptions { threads: 0, simd: None }).is_err());

    let mut program = engine(1).compile(&graph, &Spec::new(2)).unwrap();
    let images = vec![0.0; 2 * graph.input().len()];
    let labels = [0, 10];
    let error = program.feed(Samples { images: &images[1..], labels: &labels }).unwrap_err();
    assert!(matches!(error, EngineError::WrongLength { what: "images", .. }));
    let error = program.feed(Samples { images: &images, labels: &labels[1..] }).unwrap_err();
    assert!(matches!(error, EngineError::WrongLength { what: "labels", .. }));
    let error = program.feed(Samples { images: &images, labels: &labels }).unwrap_err();
    assert!(matches!(error, EngineError::BadLabel { sample: 1, label: 10, classes: 10 }));
    let len = program.len(Values::Parameters);
    assert!(program.apply(0.1, 0..len + 1).is_err());
    assert!(program.read(Values::Param(ParamId(0)), &mut [0.0]).is_err());
    let moving = graph.params.iter().position(|p| !p.kind.trainable()).unwrap();
    assert!(
        program.read(Values::Gradient(ParamId(moving)), &mut vec![0.0; graph.params[moving].len()]).is_err()
    );
}

#[test]
fn layers_are_timed_on_request() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
    let mut spec = Spec::new(4);
    assert!(engine(1).compile(&graph, &spec).unwrap().measured().layers.is_empty());
    spec.profiling = paceline_engine::Profiling::Layers;
    let mut program = engine(1).compile(&graph, &spec).unwrap();
    let (images, labels) = stripes(graph.input(), 10, 4, 1);
    for _ in 0..3 {
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
    }
    let times = program.measured().layers;
    let convolutions = graph.nodes.iter().filter(|node| matches!(node.op, Op::Conv(_))).count();
    let named =
        |id: usize| times.iter().any(|time| time.name.split(" + ").any(|n| n == graph.node(NodeId(id)).name));
    assert!((1..graph.nodes.len()).all(named), "every layer but the input is in the table");
    let busy =
        times.iter().filter(|time| time.calls == 3 && time.forward > Nanos(0) && time.backward_flops > 0);
    assert!(busy.count() >= convolutions);
}

#[test]
fn passes_add_up_to_the_gradient_of_one_large_batch() {
    // Without batch norm, whose statistics are those of each pass.
    for layout in [Layout::Nhwc, Layout::Nchw] {
        let (mut b, input) = Builder::new("plain", Shape::new(6, 6, 3), 5).unwrap();
        let x = b.conv("conv", input, Conv2d::k(3, 3).out(12).same().bias()).unwrap();
        let x = b.relu("relu", x);
        let x = b.depthwise_conv("depthwise", x, Conv2d::k(3, 3).same().bias()).unwrap();
        let x = b.global_avg_pool("mean", x);
        let x = b.dense("head", x, Dense::to(5)).unwrap();
        let graph = b.softmax_cross_entropy("loss", x).unwrap();
        let gradient = |batch: usize, passes: usize| {
            let spec = Spec { layout, ..Spec::new(batch) };
            let mut program = engine(1).compile(&graph, &spec).unwrap();
            let (images, labels) = stripes(graph.input(), 5, 12, 3);
            let mut ready = Vec::new();
            for index in 0..passes {
                let samples = index * batch..(index + 1) * batch;
                let pixels = samples.start * graph.input().len()..samples.end * graph.input().len();
                program.feed(Samples { images: &images[pixels], labels: &labels[samples] }).unwrap();
                ready.clear();
                program
                    .forward_backward(Pass { index, count: passes, ..Pass::ONLY }, &mut |slots| {
                        ready.push(slots)
                    })
                    .unwrap();
                assert!(ready.first() == Some(&0) && ready.is_sorted(), "{ready:?}");
                let complete = if index + 1 == passes { program.slots().len() } else { 0 };
                assert_eq!(ready.last(), Some(&complete), "all gradients become ready, in the last pass");
            }
            let read = |(id, param): (usize, &paceline_model::ParamInfo)| {
                let mut values = vec![0.0; param.len()];
                program.read(Values::Gradient(ParamId(id)), &mut values).unwrap();
                values
            };
            graph.params.iter().enumerate().flat_map(read).collect::<Vec<f32>>()
        };
        let whole = gradient(12, 1);
        for passes in [2, 3, 4] {
            for (own, one) in gradient(12 / passes, passes).iter().zip(&whole) {
                assert!((own - one).abs() < 1e-5, "{layout}, {passes} passes: {own}, not {one}");
            }
        }
    }
}

#[test]
fn a_program_works_in_memory_that_it_was_given() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
    let spec = Spec::new(4);
    let cpu = engine(1);
    let values = lay_out(&graph).trained;
    // One cache line more, to start on its boundary.
    let mut memory = vec![0.0f32; 2 * values + 32];
    let start = memory.as_mut_ptr().align_offset(64);
    let region = |offset: usize, len: usize, memory: &mut Vec<f32>| {
        let address = memory[start + offset..].as_mut_ptr() as u64;
        // SAFETY: the memory outlives all that use it.
        unsafe { Region::new(Place::Host, address, len) }
    };
    let gap = values.next_multiple_of(16);
    let (parameters, gradients) = (region(0, values, &mut memory), region(gap, values, &mut memory));
    // SAFETY: the memory outlives the programs, and nothing else uses it while they run.
    let homes = unsafe { Homes::new(Some((parameters, Drawing::Draw)), vec![gradients]) };
    let own = train(&graph, &spec, &cpu, 2);
    let mut program = cpu.compile_in(&graph, &spec, &homes).unwrap();
    let everything = 0..values;
    for step in 0..2 {
        let (images, labels) = stripes(graph.input(), 10, 4, step);
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
        program.apply(0.05, everything.clone()).unwrap();
    }
    assert!(own.0 == params(&graph, &mut *program));
    drop(program);
    assert!(memory[start..start + values].iter().any(|v| *v != 0.0), "the weights lie there");

    let kept = memory[start..start + values].to_vec();
    // SAFETY: as above.
    let homes = unsafe { Homes::new(Some((parameters, Drawing::Leave)), Vec::new()) };
    drop(cpu.compile_in(&graph, &spec, &homes).unwrap());
    assert!(kept == memory[start..start + values], "left as they were");
    let short = parameters.part(0..values - 1);
    // SAFETY: as above.
    let homes = unsafe { Homes::new(None, vec![short]) };
    assert!(matches!(cpu.compile_in(&graph, &spec, &homes), Err(EngineError::WrongLength { .. })));
}

#[test]
fn nan_is_not_hidden() {
    for (precision, simd) in ways() {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
            let cpu = Cpu::new(CpuOptions { threads: 1, simd: Some(simd) }).unwrap();
            let mut program = cpu.compile(&graph, &Spec { layout, precision, ..Spec::new(4) }).unwrap();
            let images = vec![f32::NAN; 4 * graph.input().len()];
            program.feed(Samples { images: &images, labels: &[0, 1, 2, 3] }).unwrap();
            program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
            assert!(program.finish().unwrap().loss.is_nan(), "{precision} {simd} {layout}");
        }
    }
}

#[test]
fn a_network_that_is_far_too_large_is_refused_before_it_is_planned() {
    let graph = zoo::build("vgg_19", Some((16_384, 16_384)), 10).unwrap();
    let before = peak_resident();
    assert!(matches!(engine(1).plan(&graph, &Spec::new(64)), Err(EngineError::TooLarge { .. })));
    assert!(peak_resident() - before < 200 << 20, "refusing takes little memory");
}

#[test]
fn each_shard_has_gradients_and_statistics_of_its_own() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
    let spec = Spec::new(4);
    // What each of three batches gives a program that sees nothing else.
    let alone = |seed: u64| {
        let mut program = engine(1).compile(&graph, &spec).unwrap();
        let (images, labels) = stripes(graph.input(), 10, 4, seed);
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
        [Values::Gradients(0), Values::Statistics(0)].map(|values| program.to_vec(values).unwrap())
    };
    let len = lay_out(&graph).trained;
    let mut memory = vec![0.0f32; 3 * len.next_multiple_of(16) + 16];
    let start = memory.as_mut_ptr().align_offset(64);
    let homes: Vec<Region> = (0..3)
        .map(|shard| {
            let address = memory[start + shard * len.next_multiple_of(16)..].as_mut_ptr() as u64;
            // SAFETY: the memory outlives all that use it.
            unsafe { Region::new(Place::Host, address, len) }
        })
        .collect();
    let shared = Spec { shards: 3, ..spec };
    // SAFETY: the memory outlives the program, and nothing else uses it while that runs.
    let given = unsafe { Homes::new(None, homes) };
    let mut program = engine(1).compile_in(&graph, &shared, &given).unwrap();
    for shard in [2, 0, 1] {
        let (images, labels) = stripes(graph.input(), 10, 4, shard as u64);
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        program.forward_backward(Pass { shard, ..Pass::ONLY }, &mut |_| {}).unwrap();
    }
    for shard in 0..3 {
        let [gradients, statistics] = alone(shard as u64);
        let own = program.to_vec(Values::Gradients(shard)).unwrap();
        assert!(own == gradients, "gradients of shard {shard}");
        let own = program.to_vec(Values::Statistics(shard)).unwrap();
        assert!(own == statistics, "statistics of shard {shard}");
    }
    assert!(program.forward_backward(Pass { shard: 3, ..Pass::ONLY }, &mut |_| {}).is_err());
}

#[test]
fn samples_that_fill_up_a_batch_do_not_count() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
    let (images, labels) = stripes(graph.input(), 10, 4, 1);
    let pixels = graph.input().len();
    let mut program = engine(1).compile(&graph, &Spec::new(4)).unwrap();
    let mut judge = |images: &[f32], live: usize| {
        program.feed(Samples { images, labels: &labels }).unwrap();
        program.evaluate(live).unwrap();
        let result = program.finish().unwrap();
        (result.loss, result.correct)
    };
    let mut singly = (0.0, 0);
    for (image, &label) in images.chunks_exact(pixels).zip(&labels).take(3) {
        let own_label = judge_one(&graph, image, label);
        singly = (singly.0 + own_label.0 / 3.0, singly.1 + own_label.1);
    }
    let three = judge(&images, 3);
    assert!((three.0 - singly.0).abs() < 1e-5, "{} and {}", three.0, singly.0);
    assert_eq!(three.1, singly.1);
    let mut other = images.clone();
    other[3 * pixels..].fill(9.0);
    assert_eq!(judge(&other, 3), three, "whatever fills up");
    assert_ne!(judge(&other, 4).0, three.0);
    assert!(program.evaluate(5).is_err());
}

fn judge_one(graph: &Graph, image: &[f32], label: u32) -> (f32, usize) {
    let mut program = engine(1).compile(graph, &Spec::new(1)).unwrap();
    program.feed(Samples { images: image, labels: &[label] }).unwrap();
    program.evaluate(1).unwrap();
    let result = program.finish().unwrap();
    (result.loss, result.correct)
}

#[test]
fn smoothed_labels_give_the_loss_and_the_gradient_that_pytorch_defines() {
    // cross_entropy(x, y, label_smoothing=e) is (1 - e) * ce(y) + e / K * sum of ce(k), and its gradient p - target.
    let (mut b, x) = Builder::new("logits", Shape::new(1, 1, 3), 4).unwrap();
    let x = b.dense("head", x, Dense::to(4)).unwrap();
    let graph = b.softmax_cross_entropy("loss", x).unwrap();
    let find = |name: &str| ParamId(graph.params.iter().position(|p| p.name == name).unwrap());
    let (kernel, bias) = (find("head/kernel"), find("head/bias"));
    let loss = |smoothing: f32, bias_values: &[f32; 4], evaluation: bool| {
        let spec = Spec { label_smoothing: smoothing, ..Spec::new(1) };
        let mut program = engine(1).compile(&graph, &spec).unwrap();
        program.write(Values::Param(kernel), &[0.0; 12]).unwrap();
        program.write(Values::Param(bias), bias_values).unwrap();
        program.feed(Samples { images: &[0.0; 3], labels: &[2] }).unwrap();
        let mut gradient = [0.0; 4];
        if evaluation {
            program.evaluate(1).unwrap();
        } else {
            program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
            program.read(Values::Gradient(bias), &mut gradient).unwrap();
        }
        (program.finish().unwrap().loss, gradient)
    };
    let logits = [0.5, -1.0, 2.0, 0.25f32];
    let sum: f64 = logits.iter().map(|&v| f64::from(v).exp()).sum();
    let surprise: Vec<f64> = logits.iter().map(|&v| sum.ln() - f64::from(v)).collect();
    let expected = 0.9 * surprise[2] + 0.1 / 4.0 * surprise.iter().sum::<f64>();
    let (found, gradient) = loss(0.1, &logits, false);
    assert!((f64::from(found) - expected).abs() < 1e-6, "{found}, not {expected}");
    for class in 0..4 {
        let target = 0.025 + if class == 2 { 0.9 } else { 0.0 };
        let expected = f64::from(logits[class]).exp() / sum - target;
        assert!((f64::from(gradient[class]) - expected).abs() < 1e-6, "class {class}");
    }
    let (plain, _) = loss(0.1, &logits, true);
    assert!((f64::from(plain) - surprise[2]).abs() < 1e-6, "labels are as they are in evaluation");
    assert!(engine(1).compile(&graph, &Spec { label_smoothing: 1.0, ..Spec::new(1) }).is_err());
}

#[test]
fn running_statistics_are_means_until_their_momentum_takes_over() {
    let (mut b, x) = Builder::new("norm", Shape::new(1, 1, 1), 2).unwrap();
    let x = b.batch_norm(
        "norm",
        x,
        paceline_model::BatchNorm { momentum: 0.75, ..paceline_model::BatchNorm::KERAS },
    );
    let x = b.dense("head", x, Dense::to(2)).unwrap();
    let graph = b.softmax_cross_entropy("loss", x).unwrap();
    let mean = ParamId(graph.params.iter().position(|p| p.name == "norm/moving_mean").unwrap());
    let run = |seen: fn(u64) -> Option<u64>| -> Vec<f32> {
        let mut program = engine(1).compile(&graph, &Spec::new(2)).unwrap();
        let batches = [1.0f32, 3.0, 5.0, 11.0, 1.0];
        (0..)
            .zip(batches)
            .map(|(pass, value)| {
                program.feed(Samples { images: &[value, value], labels: &[0, 1] }).unwrap();
                program.forward_backward(Pass { seen: seen(pass), ..Pass::ONLY }, &mut |_| {}).unwrap();
                let mut found = [0.0];
                program.read(Values::Param(mean), &mut found).unwrap();
                found[0]
            })
            .collect()
    };
    // 1, (1 + 3) / 2, (1 + 3 + 5) / 3, and then three quarters of the old.
    assert_eq!(run(Some), [1.0, 2.0, 3.0, 5.0, 4.0]);
    assert_eq!(run(|_| None)[..2], [0.25, 0.25 * 0.75 + 0.75], "from the value it starts from");
}

/// FNV-1a over the bits of all values.
fn fingerprint(values: &[Vec<f32>]) -> u64 {
    let bytes = values.iter().flatten().flat_map(|value| value.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The fingerprints are those of commit a8b1d94, the last one without bf16 on the CPU.
#[test]
fn fp32_keeps_the_bits_that_it_had_before_there_was_bf16() {
    let networks =
        [("mobilenet_v2", Layout::Nhwc), ("mobilenet_v2", Layout::Nchw), ("resnet50", Layout::Nhwc)];
    for (simd, expected) in [
        (Simd::Portable, [0xf23b_f126_f4b5_f2ef, 0xb84b_bff5_5d3c_5b10, 0x08b8_425d_4765_8a66]),
        (Simd::Avx2, [0x4ddf_6e9e_eb77_8c31, 0xe623_06d4_de03_aa44, 0x6940_ee18_0772_b235]),
        (Simd::Avx512, [0x4ddf_6e9e_eb77_8c31, 0x6cf7_fbbf_7d9a_940d, 0x6940_ee18_0772_b235]),
    ] {
        if !simd.available() {
            continue;
        }
        let cpu = Cpu::new(CpuOptions { threads: 1, simd: Some(simd) }).unwrap();
        let found = networks.map(|(name, layout)| {
            let graph = zoo::build(name, Some((32, 32)), 10).unwrap();
            fingerprint(&train(&graph, &Spec { layout, optimizer: SGD, ..Spec::new(3) }, &cpu, 2).0)
        });
        assert_eq!(found, expected, "{simd}");
    }
}
