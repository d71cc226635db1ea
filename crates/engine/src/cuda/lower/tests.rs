use std::ops::Range;

use paceline_model::{Builder, Conv2d, Dense, Graph, Shape, Window, zoo};

use super::*;
use crate::cuda::action::LAG;

fn networks() -> Vec<Graph> {
    ["mobilenet_v2", "image_compression", "inception_v3"]
        .map(|name| {
            let side = if name == "inception_v3" { 75 } else { 32 };
            zoo::build(name, Some((side, side)), 10).unwrap()
        })
        .into()
}

/// Bytes that a product's operand covers in the arena.
fn span(lowered: &Lowered, buffer: Buffer, map: Map, product: &Product) -> Range<usize> {
    let start = lowered.offsets[buffer.0];
    start..start + product.batch * map.len() * value_bytes(product.precision)
}

#[test]
fn what_is_read_on_the_side_is_not_written_over_by_a_product_before_it_is_joined() {
    for graph in networks() {
        for precision in [Precision::Fp32, Precision::Bf16] {
            let lowered = lower(&graph, &Spec { precision, ..Spec::new(4) });
            let products = || {
                lowered.backward.iter().filter_map(|step| match step.action {
                    Action::Product { product, direction, x, y, .. } => {
                        Some((step, &lowered.products[product], direction, x, y))
                    }
                    Action::Kernel { .. } => None,
                })
            };
            let mut sides = 0;
            for (side, read, _, x, y) in products().filter(|(step, ..)| step.track == Track::Side) {
                sides += 1;
                let reads = [span(&lowered, x, read.input, read), span(&lowered, y, read.output, read)];
                let later = |step: &Step| step.time > side.time && step.time <= side.time + LAG;
                for (step, written, direction, x, y) in products().filter(|(step, ..)| later(step)) {
                    let target = match direction {
                        Direction::Forward => span(&lowered, y, written.output, written),
                        Direction::Data => span(&lowered, x, written.input, written),
                        Direction::Filter => continue,
                    };
                    let apart = |read: &Range<usize>| read.end <= target.start || target.end <= read.start;
                    assert!(reads.iter().all(apart), "{} unit {} {}", graph.name, side.unit, step.unit);
                }
            }
            assert!(sides >= 9, "weights' gradients are computed on the side");
        }
    }
}

/// The buffers that an instruction of backward writes.
fn written(action: &Action) -> Vec<Buffer> {
    let (name, args) = match action {
        Action::Product { direction: Direction::Forward, y, .. } => return vec![*y],
        Action::Product { direction: Direction::Data, x, .. } => return vec![*x],
        Action::Product { direction: Direction::Filter, .. } => return Vec::new(),
        Action::Kernel { name, args, .. } => (name.trim_end_matches("_1").trim_end_matches("_v"), args),
    };
    let places: &[usize] = match name {
        "norm_sums" => &[4, 6],
        "norm_input" | "sweep" => &[3],
        "norm_back_once" => &[4, 5],
        "bias_sums" | "mean_back" | "stretch" | "pad" | "turn" | "dropout" => &[1, 2],
        "pool_back" | "pool_three_back_by_2" | "depthwise_back" => &[3],
        "depthwise_three_back_by" | "depthwise_three_back_by_2" => &[4, 5],
        "depthwise_three_totals" => &[6],
        "depthwise_sums" => &[5],
        other => panic!("{other} is not in this list"),
    };
    let buffer = |&place: &usize| match args.get(place) {
        Some(Arg::At(buffer, _)) => Some(*buffer),
        _ => None,
    };
    places.iter().filter_map(buffer).collect()
}

/// A value and what a layer makes of it, added up: both get the same gradient.
fn shared_gradient() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("shared_gradient", Shape::new(8, 8, 8), 5)?;
        let x = b.conv("first", x, Conv2d::k(3, 3).out(16).same())?;
        let x = b.relu("bound", x);
        let y = b.conv("second", x, Conv2d::k(3, 3).out(16).same())?;
        let x = b.add("sum", x, y)?;
        let x = b.flatten("flat", x);
        let x = b.dense("logits", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

#[test]
fn nothing_that_the_side_uses_is_written_in_place_before_it_is_joined() {
    for graph in networks().into_iter().chain([shared_gradient()]) {
        for (layout, precision) in [(Layout::Nhwc, Precision::Bf16), (Layout::Nchw, Precision::Fp32)] {
            let lowered = lower(&graph, &Spec { layout, precision, ..Spec::new(4) });
            for (index, side) in lowered.backward.iter().enumerate() {
                if side.track == Track::Main {
                    continue;
                }
                let used = side.action.buffers();
                let beside = lowered.backward[index + 1..].iter().filter(|step| step.track == Track::Main);
                for step in beside.take_while(|step| step.time <= side.time + LAG) {
                    let written = written(&step.action);
                    let clash = written.iter().find(|buffer| used.contains(buffer));
                    assert_eq!(
                        clash, None,
                        "{} {layout}: {:?} beside {:?}",
                        graph.name, step.action, side.action
                    );
                }
            }
        }
    }
}

#[test]
fn a_bias_before_batch_norm_is_left_to_it() {
    let graph = zoo::build("image_compression", Some((32, 32)), 10).unwrap();
    let lowered = lower(&graph, &Spec::new(2));
    let biases = lowered
        .forward
        .iter()
        .filter(|step| matches!(&step.action, Action::Kernel { name, .. } if name.starts_with("bias_apply")));
    assert_eq!(biases.count(), 1, "only the picture's has no batch norm behind it");
}

#[test]
fn convolutions_of_one_pixel_with_a_stride_share_the_pixels_that_they_meet() {
    let graph = zoo::build("resnet50", Some((32, 32)), 10).unwrap();
    let lowered = lower(&graph, &Spec::new(2));
    let named = |steps: &[Step], name: &str| {
        let is = |step: &&Step| matches!(&step.action, Action::Kernel { name: kernel, .. } if kernel.starts_with(name));
        steps.iter().filter(is).count()
    };
    assert_eq!(named(&lowered.forward, "avg_pool"), 3, "two in each of three stages");
    assert_eq!(named(&lowered.backward, "pool_back"), 3, "both give their gradients back together");
    assert!(lowered.products.iter().all(|product| product.kernel != (1, 1) || product.stride == (1, 1)));
}

#[test]
fn layers_with_nothing_trained_below_have_no_backward() {
    let build = || {
        let (mut b, x) = Builder::new("from_below", Shape::new(16, 16, 8), 5)?;
        let x = b.max_pool("pool", x, Window::k(3, 3).stride(2).same())?;
        let x = b.relu("bound", x);
        let x = b.depthwise_conv("window", x, Conv2d::k(3, 3).same())?;
        let x = b.global_avg_pool("mean", x);
        let x = b.dense("logits", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    let graph: Graph = build().unwrap();
    for layout in [Layout::Nhwc, Layout::Nchw] {
        let lowered = lower(&graph, &Spec { layout, ..Spec::new(2) });
        let back = lowered.backward.iter().map(|step| &lowered.outline.units[step.unit].name);
        assert!(back.clone().any(|name| name == "window"));
        assert!(back.clone().all(|name| name != "pool" && name != "bound"), "{layout}");
    }
}
