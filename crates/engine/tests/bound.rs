//! Values in memory that somebody else provides and changes: programs bound to it, updates from one place to another, and initial
//! weights without a program.

use std::ops::Range;
use std::time::Duration;

use paceline_engine::cpu::{Cpu, CpuOptions, Simd};
use paceline_engine::{
    Drawing, Engine, EngineError, Homes, Optimizer, Pass, Place, Program, Region, Samples, Spec, Transition,
    Values, draw, lay_out,
};
use paceline_model::{Graph, Shape, zoo};
use paceline_record::Nanos;

/// Memory that starts on a cache line.
struct Home(Vec<f32>);

impl Home {
    fn new(len: usize) -> Self {
        Self(vec![0.0; len + 16])
    }

    fn region(&mut self) -> Region {
        let start = self.0.as_mut_ptr().align_offset(64);
        // SAFETY: the memory outlives all that use it.
        unsafe { Region::new(Place::Host, self.0[start..].as_mut_ptr() as u64, self.0.len() - 16) }
    }

    fn values(&mut self) -> &mut [f32] {
        let (start, len) = (self.0.as_mut_ptr().align_offset(64), self.0.len() - 16);
        &mut self.0[start..start + len]
    }
}

fn engine(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, simd: None }).unwrap()
}

fn graph() -> Graph {
    zoo::build("mobilenet_v2", Some((32, 32)), 10).unwrap()
}

fn feed(program: &mut dyn Program, graph: &Graph, step: usize) {
    let images: Vec<f32> =
        (0..4 * graph.input().len()).map(|i| (((i + step) * 7919) % 2003) as f32 / 1001.0 - 1.0).collect();
    program.feed(Samples { images: &images, labels: &[0, 1, 2, 3] }).unwrap();
}

const RULES: [Optimizer; 6] = [
    Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
    Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.01 },
    Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
    Optimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 },
    Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 },
    Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 },
];

#[test]
fn tasks_on_two_buffers_give_the_bits_of_a_program_that_updates_its_own() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
    let len = lay_out(&graph).trained;
    let sets = [Simd::Avx512, Simd::Avx2, Simd::Portable].into_iter().filter(|simd| simd.available());
    for (optimizer, simd) in sets.flat_map(|simd| RULES.map(|rule| (rule, simd))) {
        let cpu = Cpu::new(CpuOptions { threads: 2, simd: Some(simd) }).unwrap();
        let spec = Spec { optimizer, ..Spec::new(4) };
        let mut own = cpu.compile(&graph, &spec).unwrap();
        let kept = optimizer.state_per_value();
        let mut states: Vec<Vec<Home>> =
            (0..2).map(|_| (0..=kept).map(|_| Home::new(len)).collect()).collect();
        let mut gradients: Vec<Home> = (0..2).map(|_| Home::new(len)).collect();
        states[0][0].values().copy_from_slice(&own.to_vec(Values::Parameters).unwrap());
        let mut program = cpu.compile(&graph, &spec).unwrap();
        let rule = program.host_update().unwrap();
        for step in 0..4 {
            feed(&mut *own, &graph, step);
            own.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
            own.apply(0.05, 0..len).unwrap();
            own.finish().unwrap();

            let regions: Vec<Vec<Region>> =
                states.iter_mut().map(|state| state.iter_mut().map(Home::region).collect()).collect();
            let (from, into) = (&regions[step % 2], &regions[(step + 1) % 2]);
            let area = gradients[step % 2].region();
            // SAFETY: the memory outlives the program, and nothing else uses it while that runs.
            let homes = unsafe { Homes::new(Some((from[0], Drawing::Leave)), vec![area]) };
            program.bind(&homes).unwrap();
            feed(&mut *program, &graph, step);
            let update = |range: Range<usize>| {
                let gradients = |part: Range<usize>, mean: &mut [f32]| {
                    let at = area.part(part);
                    // SAFETY: the gradients are final, and alive.
                    let values = unsafe { std::slice::from_raw_parts(at.address() as *const f32, at.len()) };
                    mean.copy_from_slice(values);
                };
                let updates = step as u64 + 1;
                let transition =
                    Transition { learning_rate: 0.05, updates, range, from, into, gradients: &gradients };
                // SAFETY: the regions are alive; each range is written once.
                unsafe { rule.run(&transition) }.unwrap();
            };
            // Some while backward runs, in odd pieces, and the rest behind it.
            let ends: Vec<usize> = program.slots().iter().map(|slot| slot.range.end).collect();
            let mut done = 0;
            program
                .forward_backward(Pass::ONLY, &mut |slots| {
                    if slots > 0 && ends[slots - 1] > done + 1 {
                        update(done..ends[slots - 1] - 1);
                        done = ends[slots - 1] - 1;
                    }
                })
                .unwrap();
            update(done..len);
            let what = format!("{optimizer:?} {simd}, step {step}");
            let parameters = own.to_vec(Values::Parameters).unwrap();
            assert!(states[(step + 1) % 2][0].values() == parameters, "{what}");
            for number in 0..kept {
                let state = own.to_vec(Values::State(number)).unwrap();
                assert!(states[(step + 1) % 2][number + 1].values() == state, "{what}");
            }
        }
    }
}

#[test]
fn an_update_over_the_old_values_is_the_same_and_leaves_others_alone() {
    let graph = graph();
    let len = lay_out(&graph).trained;
    for threads in [1, 3] {
        let mut program = engine(threads).compile(&graph, &Spec::new(4)).unwrap();
        feed(&mut *program, &graph, 0);
        program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
        let gradients = program.to_vec(Values::Gradients(0)).unwrap();
        let old = program.to_vec(Values::Parameters).unwrap();
        let mut state: Vec<Home> = (0..2).map(|_| Home::new(len)).collect();
        state[0].values().copy_from_slice(&old);
        let regions: Vec<Region> = state.iter_mut().map(Home::region).collect();
        let range = 1001..len - 77;
        let transition = Transition {
            learning_rate: 0.1,
            updates: 1,
            range: range.clone(),
            from: &regions,
            into: &regions,
            gradients: &|part, mean| mean.copy_from_slice(&gradients[part]),
        };
        let rule = program.host_update().unwrap();
        // SAFETY: the regions are alive, and nobody else uses them.
        unsafe { rule.run(&transition) }.unwrap();
        program.apply(0.1, range.clone()).unwrap();
        let new = program.to_vec(Values::Parameters).unwrap();
        assert!(new[range.clone()] != old[range], "something changed");
        assert!(state[0].values() == new && state[1].values() == program.to_vec(Values::State(0)).unwrap());
    }
}

#[test]
fn an_update_refuses_regions_that_are_missing_or_short() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
    let len = lay_out(&graph).trained;
    let rule = engine(1).compile(&graph, &Spec::new(4)).unwrap().host_update().unwrap();
    let mut homes: Vec<Home> = (0..2).map(|_| Home::new(len)).collect();
    let whole: Vec<Region> = homes.iter_mut().map(Home::region).collect();
    let short = [whole[0], whole[1].part(0..len - 1)];
    for (from, into) in [(&whole[..1], &whole[..]), (&whole[..], &whole[..1]), (&whole[..], &short[..])] {
        let gradients = &|_, _: &mut [f32]| unreachable!("refused before");
        let transition = Transition { learning_rate: 0.1, updates: 1, range: 0..len, from, into, gradients };
        // SAFETY: the regions are alive.
        let refused = unsafe { rule.run(&transition) };
        assert!(matches!(refused, Err(EngineError::WrongLength { .. })));
    }
}

#[test]
fn a_program_refuses_memory_that_does_not_fit_and_keeps_its_own() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 10).unwrap();
    let len = lay_out(&graph).trained;
    let mut program = engine(1).compile(&graph, &Spec::new(4)).unwrap();
    let before = program.to_vec(Values::Parameters).unwrap();
    let mut home = Home::new(len);
    let region = home.region();
    let short = region.part(0..len - 1);
    for (parameters, gradients) in [
        (Some((region, Drawing::Draw)), vec![short]),
        (Some((short, Drawing::Draw)), vec![]),
        (Some((region, Drawing::Draw)), vec![region; 2]),
    ] {
        // SAFETY: the memory outlives the program, and nothing else uses it.
        let homes = unsafe { Homes::new(parameters, gradients) };
        assert!(program.bind(&homes).is_err());
        assert!(program.to_vec(Values::Parameters).unwrap() == before);
    }
    // SAFETY: as above.
    let only_gradients = unsafe { Homes::new(None, vec![region]) };
    program.bind(&only_gradients).unwrap();
    feed(&mut *program, &graph, 0);
    program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
    assert!(program.to_vec(Values::Parameters).unwrap() == before, "what is left out stays");
    assert!(home.values().iter().any(|value| *value != 0.0), "gradients go where they are bound to");
}

#[test]
fn weights_drawn_without_a_program_are_those_it_would_begin_with() {
    for (name, threads) in [("mobilenet_v2", 3), ("resnet50", 1)] {
        let graph = zoo::build(name, Some((32, 32)), 10).unwrap();
        let places = lay_out(&graph);
        let mut program = engine(1).compile(&graph, &Spec { seed: 5, ..Spec::new(1) }).unwrap();
        let mut parameters = vec![f32::NAN; places.trained];
        let mut statistics = vec![f32::NAN; places.statistics_len];
        draw(&graph, 5, threads, &mut parameters, &mut statistics).unwrap();
        assert!(parameters == program.to_vec(Values::Parameters).unwrap(), "{name}");
        assert!(statistics == program.to_vec(Values::Statistics(0)).unwrap(), "{name}");
        assert!(draw(&graph, 5, threads, &mut parameters[1..], &mut statistics).is_err());
    }
}

#[test]
fn whoever_listens_is_called_during_the_whole_run_and_takes_no_time_from_its_phases() {
    // Large enough that its forward takes a while.
    let graph = zoo::small_cnn(Shape::new(160, 160, 3), 10).unwrap();
    let mut program = engine(1).compile(&graph, &Spec::new(4)).unwrap();
    feed(&mut *program, &graph, 0);
    let pause = Duration::from_millis(20);
    let (mut early, mut calls, mut last) = (0, 0, 0);
    program
        .forward_backward(Pass::ONLY, &mut |slots| {
            assert!(slots >= last, "what is final stays final");
            last = slots;
            early += u32::from(slots == 0);
            calls += 1;
            std::thread::sleep(pause);
        })
        .unwrap();
    assert_eq!(last, program.slots().len());
    let result = program.finish().unwrap();
    assert!(early > 1 && calls > early, "{early} of {calls} calls before a gradient is final");
    assert!(result.in_ready >= Nanos(pause.as_nanos() as u64 * u64::from(calls)));
}
