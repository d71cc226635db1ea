//! Our products compared with those of the `gemm` crate: each convolution of a network, forward and backward.
//!
//! `cargo run --release -p paceline-engine --example products [MODEL] [HxW] [BATCH]`
//!
//! Ours is the whole layer: gathering, packing, bias and its gradient, real taps only. `gemm` gets the same products
//! as plain matrices that are already unfolded, padding included, which is the best case for it. Each time is the
//! minimum of several alternating rounds. GFLOP/s count the nominal work for both, so that they compare as times do.

use std::collections::BTreeMap;
use std::time::Instant;

use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::{Engine, Pass, Profiling, Samples, Spec};
use paceline_model::{Graph, Op, zoo};

const ROUNDS: usize = 12;

/// Rows, depth and columns of a product.
type Product = (usize, usize, usize);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = |index: usize, default: &str| arguments.get(index).map_or(default, |text| text).to_owned();
    let (model, input, batch) = (text(0, "resnet50"), text(1, "32x32"), text(2, "64"));
    let (h, w) = input.split_once('x').expect("the input is HxW");
    let side = |text: &str| text.parse().expect("the input is HxW");
    let batch: usize = batch.parse().expect("the batch is a number");
    let graph = zoo::build(&model, Some((side(h), side(w))), 10).expect("the zoo has it");

    let ours = least_times(&graph, batch);
    println!(
        "{:>6} {:>5} {:>5}  {:>5}  {:>15}  {:>15}  {:>15}",
        "rows", "depth", "cols", "times", "ours fwd", "gemm fwd", "ours : gemm"
    );
    let mut total = (0.0, 0.0);
    for ((rows, depth, cols), (count, forward, backward)) in products(&graph, batch, &ours) {
        let flops = 2.0 * (rows * depth * cols) as f64;
        let gemm_forward = gemm_time(rows, depth, cols);
        let gemm_backward = gemm_time(rows, cols, depth) + gemm_time(depth, rows, cols);
        println!(
            "{rows:>6} {depth:>5} {cols:>5}  {count:>5}  fwd {:>4.0} bwd {:>4.0}  fwd {:>4.0} bwd {:>4.0}  fwd {:.2} bwd {:.2}",
            flops / forward * 1e-9,
            2.0 * flops / backward * 1e-9,
            flops / gemm_forward * 1e-9,
            2.0 * flops / gemm_backward * 1e-9,
            gemm_forward / forward,
            gemm_backward / backward,
        );
        total.0 += count as f64 * (forward + backward);
        total.1 += count as f64 * (gemm_forward + gemm_backward);
    }
    println!(
        "all of them: ours {:.1} ms, gemm {:.1} ms, {:.2} times",
        total.0 * 1e3,
        total.1 * 1e3,
        total.1 / total.0
    );
}

/// Least time of each layer over some steps, in nanoseconds.
fn least_times(graph: &Graph, batch: usize) -> BTreeMap<String, (u64, u64)> {
    let engine = Cpu::new(CpuOptions { threads: 1, simd: None }).expect("a thread is to be had");
    let mut spec = Spec::new(batch);
    spec.profiling = Profiling::Layers;
    let mut program = engine.compile(graph, &spec).expect("it compiles");
    let images: Vec<f32> =
        (0..batch * graph.input().len()).map(|i| ((i * 7919) % 997) as f32 / 500.0 - 1.0).collect();
    let labels: Vec<u32> = (0..batch).map(|i| (i % graph.classes) as u32).collect();
    program.feed(Samples { images: &images, labels: &labels }).expect("the batch fits");
    let mut least = BTreeMap::new();
    let mut before = program.measured().layers;
    for _ in 0..ROUNDS {
        program.forward_backward(Pass::ONLY, &mut |_| {}).expect("it runs");
        let after = program.measured().layers;
        for (old, new) in before.iter().zip(&after) {
            let entry = least.entry(new.name.clone()).or_insert((u64::MAX, u64::MAX));
            entry.0 = entry.0.min(new.forward.since(old.forward).0);
            entry.1 = entry.1.min(new.backward.since(old.backward).0);
        }
        before = after;
    }
    least
}

/// The distinct products of a network's convolutions: how often, and mean seconds forward and backward.
fn products(
    graph: &Graph,
    batch: usize,
    times: &BTreeMap<String, (u64, u64)>,
) -> BTreeMap<Product, (usize, f64, f64)> {
    let mut all: BTreeMap<Product, (usize, f64, f64)> = BTreeMap::new();
    for node in &graph.nodes {
        let Op::Conv(conv) = node.op else { continue };
        let input = graph.node(node.inputs[0]);
        if conv.groups > 1 || input.op == Op::Input {
            continue;
        }
        let depth = conv.kernel.0 * conv.kernel.1 * input.shape.c;
        let (forward, backward) = times[&node.name];
        let entry = all.entry((batch * node.shape.pixels(), depth, conv.out)).or_default();
        let count = entry.0 as f64;
        entry.1 = (entry.1 * count + forward as f64 * 1e-9) / (count + 1.0);
        entry.2 = (entry.2 * count + backward as f64 * 1e-9) / (count + 1.0);
        entry.0 += 1;
    }
    all
}

/// Least seconds of one plain product.
fn gemm_time(rows: usize, depth: usize, cols: usize) -> f64 {
    let (a, b) = (vec![0.5f32; rows * depth], vec![0.25f32; depth * cols]);
    let mut c = vec![0.0f32; rows * cols];
    let mut least = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        // SAFETY: the matrices have the sizes and strides given.
        unsafe {
            gemm::gemm(
                rows,
                cols,
                depth,
                c.as_mut_ptr(),
                1,
                cols as isize,
                false,
                a.as_ptr(),
                1,
                depth as isize,
                b.as_ptr(),
                1,
                cols as isize,
                0.0f32,
                1.0f32,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
        least = least.min(start.elapsed().as_secs_f64());
    }
    least
}
