//! Update and exchange as parts of a step on a GPU. Without a GPU the tests are skipped.

mod gpu;

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::sys;
use paceline_engine::cuda::{Cuda, CudaOptions, Tuning};
use paceline_engine::{
    Driving, Engine, EngineError, Exchanged, Link, Optimizer, Pass, Precision, Profiling, Program, Region,
    Samples, Spec, Values, Weave, WovenBucket,
};
use paceline_model::{Graph, Shape, zoo};
use paceline_record::{Nanos, Phase};

fn gpu() -> Option<Cuda> {
    gpu::open(CudaOptions { tuning: Tuning::First, ..CudaOptions::default() })
}

const STEPS: u64 = 5;

/// Trains; the losses and the final weights.
fn train(graph: &Graph, spec: &Spec, program: &mut dyn Program, is_woven: bool) -> (Vec<f32>, Vec<f32>) {
    let all = 0..program.len(Values::Parameters);
    let count = spec.batch * graph.input().len();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let images: Vec<f32> =
            (0..count).map(|i| (((i as u64 + step) * 7919) % 2003) as f32 / 1001.0 - 1.0).collect();
        let labels: Vec<u32> = (0..spec.batch).map(|i| (i % graph.classes) as u32).collect();
        program.feed(Samples { images: &images, labels: &labels }).unwrap();
        let rate = 0.01 / (step + 1) as f32;
        let update = Some(rate).filter(|_| is_woven);
        let mut announced = 0;
        program
            .forward_backward(Pass { stream: step, update, ..Pass::ONLY }, &mut |slots| announced = slots)
            .unwrap();
        assert_eq!(announced > 0, !is_woven, "nobody is asked for what is part of the run");
        if !is_woven {
            program.apply(rate, all.clone()).unwrap();
        }
        let times = program.finish().unwrap();
        assert!(times.phases[Phase::Update] > Nanos(0));
        losses.push(times.loss);
    }
    (losses, program.to_vec(Values::Parameters).unwrap())
}

#[test]
fn an_update_inside_the_run_gives_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    for optimizer in [
        Optimizer::default(),
        Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 },
    ] {
        for profiling in [Profiling::Phases, Profiling::Layers] {
            for precision in [Precision::Fp32, Precision::Bf16] {
                let spec = Spec { optimizer, profiling, precision, ..Spec::new(8) };
                let mut plain = gpu.compile(&graph, &spec).unwrap();
                let mut woven = gpu.compile(&graph, &spec).unwrap();
                woven.weave(None).unwrap();
                assert_eq!(woven.driving(), Driving::Woven);
                let expected = train(&graph, &spec, &mut *plain, false);
                assert!(expected == train(&graph, &spec, &mut *woven, true), "{optimizer:?} {precision}");
            }
        }
    }
}

/// A world of one rank that copies its gradients to where those of all ranks belong, and records its calls.
struct Alone {
    ranks: usize,
    asked: Arc<Mutex<Vec<(&'static str, usize)>>>,
    patience: Duration,
}

impl Link for Alone {
    fn put_gradients(
        &mut self,
        bucket: usize,
        Exchanged { own, gathered }: Exchanged,
        stream: u64,
    ) -> Result<(), EngineError> {
        self.asked.lock().unwrap().push(("gradients", bucket));
        let Some(gathered) = gathered else { return Ok(()) };
        assert_eq!(gathered.len(), self.ranks * own.len());
        for rank in 0..self.ranks {
            let to = gathered.part(rank * own.len()..(rank + 1) * own.len()).address();
            let bytes = 4 * own.len();
            // SAFETY: both regions are the program's, and the stream is too.
            let status =
                unsafe { sys::cuMemcpyDtoDAsync_v2(to, own.address(), bytes, stream as sys::CUstream) };
            assert_eq!(status, sys::CUresult::CUDA_SUCCESS);
        }
        Ok(())
    }

    fn put_parameters(&mut self, bucket: usize, _: Region, _: u64) -> Result<(), EngineError> {
        self.asked.lock().unwrap().push(("parameters", bucket));
        Ok(())
    }

    fn watch(&mut self, waited: Duration) -> Result<(), EngineError> {
        if waited < self.patience { Ok(()) } else { Err(EngineError::Exchange("nobody answers".into())) }
    }
}

/// Buckets of so many slots each.
fn buckets(program: &dyn Program, each: usize, len: usize) -> Vec<Range<usize>> {
    let starts: Vec<usize> = program.slots().iter().step_by(each).map(|slot| slot.range.start).collect();
    let ends = starts[1..].iter().copied().chain([len]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

#[test]
fn an_exchange_inside_the_run_gives_the_same_bits_in_any_buckets() {
    let Some(gpu) = gpu() else { return };
    let network = zoo::build("mobilenet_v2", Some((32, 32)), 10).unwrap();
    let spec = Spec { precision: Precision::Bf16, ..Spec::new(8) };
    let expected = train(&network, &spec, &mut *gpu.compile(&network, &spec).unwrap(), false);
    for (each, overlap, gathered) in
        [(7, true, None), (1000, true, None), (20, false, None), (20, true, Some(4))]
    {
        let mut program = gpu.compile(&network, &spec).unwrap();
        let len = program.len(Values::Parameters);
        let ranges = buckets(&*program, each, len);
        let asked = Arc::default();
        let link = Alone {
            ranks: gathered.unwrap_or(1),
            asked: Arc::clone(&asked),
            patience: Duration::from_secs(60),
        };
        let whole = |range: &Range<usize>| WovenBucket { range: range.clone(), updated: range.clone() };
        let weave =
            Weave { buckets: ranges.iter().map(whole).collect(), overlap, gathered, link: Box::new(link) };
        program.weave(Some(weave)).unwrap();
        assert_eq!(program.driving(), Driving::Woven);
        let got = train(&network, &spec, &mut *program, true);
        assert!(
            got == expected,
            "{each} slots a bucket, overlap {overlap}: {:?}, not {:?}",
            got.0,
            expected.0
        );
        // Once in the first step, once for the recording; later steps replay.
        let asked = asked.lock().unwrap();
        assert_eq!(asked.len(), 2 * 2 * ranges.len(), "{asked:?}");
        let times = program.bucket_times().unwrap();
        assert_eq!(times.len(), ranges.len());
        for pair in times.windows(2) {
            assert!(pair[0].begun >= pair[0].ended && pair[0].ended >= pair[1].ended, "in order: {times:?}");
        }
    }
}

#[test]
fn a_slice_that_another_rank_updates_is_left_alone() {
    let Some(gpu) = gpu() else { return };
    let graph = zoo::small_cnn(Shape::new(12, 12, 3), 10).unwrap();
    let spec = Spec::new(8);
    let mut program = gpu.compile(&graph, &spec).unwrap();
    let len = program.len(Values::Parameters);
    let before = program.to_vec(Values::Parameters).unwrap();
    let link = Alone { ranks: 1, asked: Arc::default(), patience: Duration::from_secs(60) };
    let bucket = WovenBucket { range: 0..len, updated: 16..64 };
    let weave = Weave { buckets: vec![bucket], overlap: true, gathered: None, link: Box::new(link) };
    program.weave(Some(weave)).unwrap();
    train(&graph, &spec, &mut *program, true);
    let after = program.to_vec(Values::Parameters).unwrap();
    let changed: Vec<usize> = (0..len).filter(|&i| before[i] != after[i]).collect();
    assert!(!changed.is_empty() && changed.iter().all(|i| (16..64).contains(i)), "{changed:?}");
}

#[test]
fn a_wait_ends_when_the_other_ranks_are_given_up() {
    let Some(gpu) = gpu() else { return };
    let network = zoo::build("resnet50", Some((64, 64)), 10).unwrap();
    let spec = Spec::new(64);
    let mut program = gpu.compile(&network, &spec).unwrap();
    let len = program.len(Values::Parameters);
    let link = Alone { ranks: 1, asked: Arc::default(), patience: Duration::ZERO };
    let bucket = WovenBucket { range: 0..len, updated: 0..len };
    let weave = Weave { buckets: vec![bucket], overlap: true, gathered: None, link: Box::new(link) };
    program.weave(Some(weave)).unwrap();
    let images = vec![0.5; 64 * 64 * 64 * 3];
    program.feed(Samples { images: &images, labels: &[1; 64] }).unwrap();
    let error = program.forward_backward(Pass { update: Some(0.1), ..Pass::ONLY }, &mut |_| {});
    let error = error.expect_err("no patience").to_string();
    assert!(error.contains("nobody answers"), "{error}");
}
