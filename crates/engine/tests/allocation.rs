//! A step allocates nothing, on one thread or several.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::{
    Drawing, Engine, Homes, Pass, Place, Precision, Region, Samples, Spec, Transition, Values,
};
use paceline_model::zoo;

struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_allocates_nothing() {
    let precisions = [Precision::Fp32, Precision::Bf16];
    for (threads, precision) in [1, 2].into_iter().flat_map(|threads| precisions.map(|p| (threads, p))) {
        for layout in [paceline_engine::Layout::Nhwc, paceline_engine::Layout::Nchw] {
            let graph = zoo::build("mobilenet_v2", Some((32, 32)), 10).unwrap();
            let engine = Cpu::new(CpuOptions { threads, simd: None }).unwrap();
            let mut program = engine.compile(&graph, &Spec { layout, precision, ..Spec::new(4) }).unwrap();
            let everything = 0..program.len(Values::Parameters);
            let (images, labels) = (vec![0.5; 4 * graph.input().len()], [0, 1, 2, 3]);
            let mut memory = vec![0.0; 4 * everything.end + 16];
            let start = memory.as_mut_ptr().align_offset(64);
            let mut areas = memory[start..].chunks_exact_mut(everything.end).map(|area| {
                // SAFETY: the memory outlives all that use it.
                unsafe { Region::new(Place::Host, area.as_mut_ptr() as u64, area.len()) }
            });
            let [from, into] = [(); 2].map(|()| [(); 2].map(|()| areas.next().unwrap()));
            // SAFETY: as above, and nothing else uses it meanwhile.
            let homes = unsafe { Homes::new(Some((from[0], Drawing::Leave)), Vec::new()) };
            let rule = program.host_update().unwrap();
            let mut step = || {
                program.bind(&homes).unwrap();
                program.feed(Samples { images: &images, labels: &labels }).unwrap();
                program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
                program.apply(0.01, everything.clone()).unwrap();
                let (range, gradients) = (everything.clone(), &|_, mean: &mut [f32]| mean.fill(0.5));
                let transition = Transition {
                    learning_rate: 0.01,
                    updates: 1,
                    range,
                    from: &from,
                    into: &into,
                    gradients,
                };
                // SAFETY: as above.
                unsafe { rule.run(&transition) }.unwrap();
                program.finish().unwrap();
            };
            step();
            let before = COUNT.load(Ordering::Relaxed);
            step();
            step();
            assert_eq!(COUNT.load(Ordering::Relaxed) - before, 0, "{threads} threads, {layout}");
        }
    }
}
