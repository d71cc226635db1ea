//! Programs apart from single steps: passes and shards, statistics, update rules, mirrors, times, refusals.

use paceline_engine::{
    Drawing, EngineError, Homes, Layout, Numerics, Optimizer, Place, Profiling, Region, Transition, lay_out,
};
use paceline_model::{Shape, zoo};
use paceline_record::{Nanos, Phase};

use super::*;
use crate::graphs::*;
use crate::networks::losses;

#[test]
fn passes_and_shards_keep_gradients_and_statistics_apart() {
    let Some(gpu) = gpu() else { return };
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    let run = |engine: &dyn Engine| {
        let spec = Spec { shards: 2, ..Spec::new(8) };
        let mut program = engine.compile(&graph, &spec).unwrap();
        for shard in [0, 1] {
            for index in [0, 1] {
                let (images, labels) = batch_of(&graph, 8, (2 * shard + index) as u64);
                program.feed(Samples { images: &images, labels: &labels }).unwrap();
                let pass = Pass { shard, index, count: 2, stream: 9, seen: None, update: None };
                program.forward_backward(pass, &mut |_| {}).unwrap();
            }
        }
        program.finish().unwrap();
        let mut seen = Vec::new();
        for shard in [0, 1] {
            seen.push(program.to_vec(Values::Statistics(shard)).unwrap());
        }
        seen.push(program.to_vec(Values::Gradients(0)).unwrap());
        seen
    };
    for (own, other) in run(&gpu).iter().zip(run(&cpu())) {
        assert!(distance(own, &other) < 1e-3, "off by {}", distance(own, &other));
    }
}

#[test]
fn running_statistics_are_plain_means_until_their_momentum_takes_over() {
    let Some(gpu) = gpu() else { return };
    let graph = norms();
    let run = |engine: &dyn Engine, spec: &Spec, seen: &dyn Fn(u64) -> Option<u64>| {
        let mut program = engine.compile(&graph, spec).unwrap();
        for pass in 0..5 {
            let (images, labels) = batch_of(&graph, spec.batch, pass);
            // Each batch is brighter than the previous one, so that the weights of a mean show.
            let images: Vec<f32> = images.iter().map(|v| v + pass as f32).collect();
            program.feed(Samples { images: &images, labels: &labels }).unwrap();
            program.forward_backward(Pass { seen: seen(pass), ..Pass::ONLY }, &mut |_| {}).unwrap();
        }
        program.finish().unwrap();
        program.to_vec(Values::Statistics(0)).unwrap()
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
    let len = lay_out(&graph).trained;
    let mut homes = vec![vec![0.0f32; len + 16]; 2];
    let mut region = |index: usize| {
        let at = homes[index].as_mut_ptr() as u64;
        // SAFETY: it is inside of memory that outlives the programs.
        unsafe { Region::new(Place::Host, at.next_multiple_of(64), len) }
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
            assert_eq!(
                times.phases[Phase::CopyOut] > Nanos(0),
                !seen.is_empty(),
                "gradients go out where others read them"
            );
            assert!(times.phases[Phase::Update] > Nanos(0));
        }
        let all = [Values::State(0), Values::Gradients(0), Values::Parameters];
        seen.push(all.map(|values| program.to_vec(values).unwrap()));
    }
    assert!(seen[0] == seen[1] && seen[0].iter().all(|values| values.iter().any(|v| *v != 0.0)));
    // The host's update rounds in another order.
    for (own, other) in seen[2].iter().zip(&seen[0]) {
        assert!(distance(own, other) < 1e-5, "off by {}", distance(own, other));
    }
}

#[test]
fn a_program_goes_on_in_memory_that_it_is_bound_to() {
    let Some(gpu) = gpu() else { return };
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    let spec = Spec::new(8);
    let len = lay_out(&graph).trained;
    let mut memory = vec![vec![0.0f32; len + 16]; 6];
    let mut regions = memory.iter_mut().map(|home| {
        let at = home.as_mut_ptr() as u64;
        // SAFETY: it is inside of memory that outlives the programs.
        unsafe { Region::new(Place::Host, at.next_multiple_of(64), len) }
    });
    // Parameters, velocity and gradients, twice.
    let [one, other] = [(); 2].map(|()| [(); 3].map(|()| regions.next().unwrap()));
    let homes = |buffer: [Region; 3], drawing| {
        // SAFETY: all outlive the programs, and nobody else uses them while those run.
        unsafe { Homes::new(Some((buffer[0], drawing)), vec![buffer[2]]) }
    };
    let batch = batch_of(&graph, 8, 1);
    let samples = Samples { images: &batch.0, labels: &batch.1 };
    let mut own = gpu.compile(&graph, &spec).unwrap();
    assert!(matches!(own.bind(&homes(one, Drawing::Leave)), Err(EngineError::Unsupported(_))));
    let mut bound = gpu.compile_in(&graph, &spec, &homes(one, Drawing::Draw)).unwrap();
    let rule = bound.host_update().unwrap();
    for step in 0..4 {
        let (from, into) = if step % 2 == 0 { (one, other) } else { (other, one) };
        bound.bind(&homes(from, Drawing::Leave)).unwrap();
        let pass = Pass { stream: step, ..Pass::ONLY };
        let mut told = Vec::new();
        for program in [&mut own, &mut bound] {
            told.clear();
            program.feed(samples).unwrap();
            program.forward_backward(pass, &mut |slots| told.push(slots)).unwrap();
            program.finish().unwrap();
            assert!(told[0] == 0 && told.is_sorted() && told.last() == Some(&program.slots().len()));
        }
        let gradients = bound.to_vec(Values::Gradients(0)).unwrap();
        let transition = Transition {
            learning_rate: 0.1,
            updates: step + 1,
            range: 0..len,
            from: &from[..2],
            into: &into[..2],
            gradients: &|part, mean| mean.copy_from_slice(&gradients[part]),
        };
        // SAFETY: the regions are alive, and nobody else uses them.
        unsafe { rule.run(&transition) }.unwrap();
        own.apply(0.1, 0..len).unwrap();
        own.finish().unwrap();
        bound.bind(&homes(into, Drawing::Leave)).unwrap();
        let [own, bound] = [&mut own, &mut bound].map(|program| program.to_vec(Values::Parameters).unwrap());
        // The host's update rounds in another order.
        assert!(distance(&own, &bound) < 1e-5, "step {step}: off by {}", distance(&own, &bound));
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
            for phase in [Phase::CopyIn, Phase::Forward, Phase::Backward, Phase::Update] {
                assert!(result.phases[phase] > Nanos(0), "{phase}");
            }
        }
        let layers = program.measured().layers;
        assert_eq!(layers.is_empty(), profiling == Profiling::Phases);
        assert!(layers.iter().all(|layer| layer.calls == 2), "the first run is left out");
        assert!(program.measured().peak_device.is_some_and(|bytes| bytes.0 > program.plan().total() / 2));
    }
}

#[test]
fn recorded_numerics_give_the_same_bits_or_are_refused() {
    if gpu().is_none() {
        return;
    }
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    for (precision, tuning) in [(Precision::Fp32, Tuning::Last), (Precision::Bf16, Tuning::First)] {
        let spec = Spec { precision, ..Spec::new(8) };
        let open = |tuning| Cuda::new(CudaOptions { tuning, ..CudaOptions::default() });
        let first = open(tuning).unwrap();
        let numerics = first.compile(&graph, &spec).unwrap().numerics();
        assert!(!numerics.algorithms.is_empty() && numerics.libraries.len() == 2, "{numerics:?}");
        assert!(numerics.algorithms.iter().all(|algorithm| !algorithm.name.is_empty()), "{numerics:?}");
        let again = open(Tuning::Recorded(numerics.clone())).unwrap();
        assert_eq!(again.compile(&graph, &spec).unwrap().numerics(), numerics);
        assert_eq!(losses(&first, &graph, &spec, 0.01), losses(&again, &graph, &spec, 0.01));
        let refusal = |error: Option<EngineError>| error.expect("it is refused").to_string();
        let error = refusal(again.compile(&graph, &Spec { batch: 9, ..spec }).err());
        assert!(error.contains("no algorithm for"), "{error}");
        let mut gone = numerics.clone();
        gone.algorithms[0].number = 999;
        let error = refusal(open(Tuning::Recorded(gone)).unwrap().compile(&graph, &spec).err());
        assert!(error.contains("number 999"), "{error}");
        let older = Numerics { libraries: Default::default(), ..numerics };
        assert!(refusal(open(Tuning::Recorded(older)).err()).contains("was none"));
    }
}

#[test]
fn a_second_thread_is_refused_as_long_as_the_first_has_an_engine_or_a_program() {
    let Some(gpu) = gpu() else { return };
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    let open_elsewhere = || {
        let open = || Cuda::new(CudaOptions::default()).map(drop);
        std::thread::scope(|scope| scope.spawn(open).join().expect("no panic"))
    };
    let refused = |result: Result<(), EngineError>| result.expect_err("refused").to_string();
    assert!(refused(open_elsewhere()).contains("another thread"));
    let mut program = gpu.compile(&graph, &Spec::new(8)).unwrap();
    drop(gpu);
    assert!(refused(open_elsewhere()).contains("another thread"), "a program is left");
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| program.evaluate(8)).join().expect("no panic"));
    assert!(refused(elsewhere).contains("another thread"));
    drop(program);
    open_elsewhere().expect("nobody uses the GPU any more");
}

#[test]
fn what_a_gpu_cannot_do_is_refused_with_the_reason() {
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
