//! A step allocates nothing, on one thread or several.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::{Engine, Pass, Samples, Spec, Values};
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
    for threads in [1, 2] {
        for layout in [paceline_engine::Layout::Nhwc, paceline_engine::Layout::Nchw] {
            let graph = zoo::build("mobilenet_v2", Some((32, 32)), 10).unwrap();
            let engine = Cpu::new(CpuOptions { threads, simd: None }).unwrap();
            let mut program = engine.compile(&graph, &Spec { layout, ..Spec::new(4) }).unwrap();
            let everything = 0..program.len(Values::Parameters);
            let (images, labels) = (vec![0.5; 4 * graph.input().len()], [0, 1, 2, 3]);
            let mut step = || {
                program.feed(Samples { images: &images, labels: &labels }).unwrap();
                program.forward_backward(Pass::ONLY, &mut |_| {}).unwrap();
                program.apply(0.01, everything.clone()).unwrap();
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
