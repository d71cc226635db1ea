//! The zoo against the counts and shapes that Keras and timm give.

use std::collections::{BTreeSet, HashSet};

use paceline_model::zoo::{NAMES, build, default_input, small_cnn};
use paceline_model::{
    Graph, ModelError, NodeId, Op, Shape, ShapeError, gradient_order, layer_costs, summarize,
};

fn shape_of(graph: &Graph, layer: &str) -> Shape {
    graph.nodes.iter().find(|node| node.name == layer).unwrap().shape
}

fn build_at(name: &str, h: usize, w: usize) -> Graph {
    build(name, Some((h, w)), 10).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn parameters_and_tensors_are_exactly_kerass_and_timms() {
    for (name, classes, params, tensors, untrained) in [
        ("resnet50", 10, 23_555_082, 214, 53_120),
        ("resnet50", 100, 23_739_492, 214, 53_120),
        ("mobilenet_v2", 10, 2_236_682, 158, 34_112),
        ("mobilenet_v2", 100, 2_351_972, 158, 34_112),
        ("vgg_19", 1000, 143_667_240, 38, 0),
        ("inception_v3", 1000, 23_817_352, 190, 34_432),
        ("resnet_v2_101", 1000, 44_577_896, 344, 97_664),
        ("inception_v4", 1000, 42_679_816, 449, 63_168),
        ("image_compression", 10, 11_238_723, 34, 5_088),
    ] {
        let summary = summarize(&build(name, None, classes).unwrap());
        let found = (summary.params_trainable, summary.tensors_trainable);
        assert_eq!(found, (params, tensors), "{name} with {classes} classes");
        assert_eq!(summary.params_total - params, untrained, "{name}, not trained");
    }
}

#[test]
fn products_cost_what_the_literature_says() {
    // Multiply-adds in 10^9, as papers and other profilers give them for these definitions.
    for (name, billions) in [
        ("resnet50", 3.86),
        ("resnet_v2_101", 7.20),
        ("vgg_19", 19.63),
        ("inception_v3", 5.71),
        ("inception_v4", 12.27),
        ("mobilenet_v2", 0.300),
    ] {
        let graph = build(name, None, 1000).unwrap();
        let product = |op| matches!(op, Op::Conv(_) | Op::Dense(_));
        let costs = layer_costs(&graph);
        let products = costs.iter().filter(|cost| product(graph.node(cost.node).op));
        let found = products.map(|cost| cost.flops_forward).sum::<u64>() as f64 / 2e9;
        assert!((found / billions - 1.0).abs() < 0.01, "{name}: {found} instead of {billions}");
        let summary = summarize(&graph);
        let ratio = summary.flops_backward as f64 / summary.flops_forward as f64;
        assert!((1.85..2.0).contains(&ratio), "{name}: backward is {ratio} times forward");
    }
}

#[test]
fn maps_have_kerass_sizes_at_many_inputs() {
    for (name, input, layer, expected) in [
        ("resnet50", (224, 224), "pool1_pool", (56, 56)),
        ("resnet50", (224, 224), "conv5_block3_out", (7, 7)),
        ("resnet50", (33, 47), "conv5_block3_out", (2, 2)),
        ("resnet50", (32, 32), "conv5_block3_out", (1, 1)),
        ("resnet50", (1, 1), "conv5_block3_out", (1, 1)),
        ("resnet_v2_101", (224, 224), "post_relu", (7, 7)),
        ("resnet_v2_101", (33, 47), "post_relu", (2, 2)),
        ("resnet_v2_101", (75, 299), "post_relu", (3, 10)),
        ("vgg_19", (224, 224), "block5_pool", (7, 7)),
        ("vgg_19", (33, 47), "block5_pool", (1, 1)),
        ("vgg_19", (32, 32), "block5_pool", (1, 1)),
        ("inception_v3", (299, 299), "mixed0", (35, 35)),
        ("inception_v3", (299, 299), "mixed3", (17, 17)),
        ("inception_v3", (299, 299), "mixed10", (8, 8)),
        ("inception_v3", (75, 75), "mixed10", (1, 1)),
        ("inception_v3", (75, 224), "mixed10", (1, 5)),
        ("inception_v4", (299, 299), "features.9", (35, 35)),
        ("inception_v4", (299, 299), "features.21", (8, 8)),
        ("inception_v4", (75, 75), "features.21", (1, 1)),
        ("mobilenet_v2", (224, 224), "out_relu", (7, 7)),
        ("mobilenet_v2", (33, 47), "out_relu", (2, 2)),
        ("mobilenet_v2", (32, 32), "out_relu", (1, 1)),
        ("image_compression", (256, 256), "encoder4_relu", (16, 16)),
        ("image_compression", (16, 48), "encoder4_relu", (1, 3)),
        ("image_compression", (16, 48), "picture", (16, 48)),
    ] {
        let shape = shape_of(&build_at(name, input.0, input.1), layer);
        assert_eq!((shape.h, shape.w), expected, "{name} at {input:?}, {layer}");
    }
}

#[test]
fn vgg_19_flattens_what_is_left() {
    assert_eq!(shape_of(&build_at("vgg_19", 32, 32), "flatten"), Shape::vector(512));
    assert_eq!(shape_of(&build_at("vgg_19", 64, 96), "flatten"), Shape::vector(2 * 3 * 512));
}

#[test]
fn the_stride_of_a_stage_is_where_keras_has_it() {
    let strided = |graph: &Graph| -> Vec<String> {
        let strided = graph.nodes.iter().filter(|node| matches!(node.op, Op::Conv(c) if c.stride == (2, 2)));
        strided.map(|node| node.name.clone()).collect()
    };
    assert_eq!(
        strided(&build_at("resnet50", 64, 64)),
        [
            "conv1_conv",
            "conv3_block1_0_conv",
            "conv3_block1_1_conv",
            "conv4_block1_0_conv",
            "conv4_block1_1_conv",
            "conv5_block1_0_conv",
            "conv5_block1_1_conv"
        ]
    );
    assert_eq!(
        strided(&build_at("resnet_v2_101", 64, 64)),
        ["conv1_conv", "conv2_block3_2_conv", "conv3_block4_2_conv", "conv4_block23_2_conv"]
    );
}

#[test]
fn mobilenet_v2_pads_even_maps_below_and_right_only() {
    let border = |side| {
        let graph = build_at("mobilenet_v2", side, side);
        let node = graph.nodes.iter().find(|node| node.name == "Conv1").unwrap();
        let Op::Conv(conv) = node.op else { panic!("Conv1 is {:?}", node.op) };
        (conv.border.top, conv.border.bottom, conv.border.left, conv.border.right)
    };
    assert_eq!(border(32), (0, 1, 0, 1));
    assert_eq!(border(33), (1, 1, 1, 1));
}

#[test]
fn every_graph_is_sound() {
    let small = small_cnn(Shape::new(9, 7, 1), 4).unwrap();
    let zoo = NAMES.iter().map(|name| build(name, None, 10).unwrap());
    for graph in zoo.chain([small]) {
        let names: HashSet<_> = graph.nodes.iter().map(|node| &node.name).collect();
        assert_eq!(names.len(), graph.nodes.len(), "{}: a name twice", graph.name);
        let mut read = BTreeSet::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            assert!(!node.shape.is_empty(), "{}: {} is empty", graph.name, node.name);
            assert!(node.inputs.iter().all(|input| input.0 < index), "{}: {}", graph.name, node.name);
            assert!(node.params.iter().all(|&id| graph.param(id).node == NodeId(index)));
            read.extend(node.inputs.iter().copied());
        }
        assert_eq!(read.len(), graph.nodes.len() - 1, "{}: an output that nobody reads", graph.name);
        assert_eq!(graph.nodes.last().unwrap().shape, Shape::vector(1));
    }
}

#[test]
fn the_gradient_order_holds_every_trained_parameter_once() {
    for name in NAMES {
        let graph = build(name, None, 10).unwrap();
        let order = gradient_order(&graph);
        let unique: HashSet<_> = order.iter().collect();
        assert_eq!(unique.len(), order.len(), "{name}");
        assert_eq!(order.len() as u64, summarize(&graph).tensors_trainable, "{name}");
        assert!(order.is_sorted_by_key(|&id| std::cmp::Reverse(graph.param(id).node)), "{name}");
    }
}

#[test]
fn the_autoencoder_is_judged_against_its_own_input() {
    let graph = build_at("image_compression", 32, 48);
    let loss = graph.nodes.last().unwrap();
    assert_eq!(loss.op, Op::MeanSquaredError);
    assert_eq!(loss.inputs, [graph.output(), NodeId(0)]);
    assert_eq!(graph.node(graph.output()).shape, graph.input());
}

#[test]
fn sizes_that_a_network_does_not_accept_are_rejected_with_advice() {
    for (name, input, parts) in [
        ("image_compression", (40, 64), ["40x64", "multiples of 16", "--input 48x64"]),
        ("inception_v3", (74, 299), ["74x299", "inception_v3", "--input 75x75"]),
        ("inception_v4", (299, 74), ["299x74", "inception_v4", "--input 75x75"]),
        ("vgg_19", (31, 32), ["31x32", "vgg_19", "--input 32x32"]),
        ("resnet50", (0, 32), ["0x32", "resnet50", "--input 1x1"]),
        ("resnet50", (usize::MAX, 32), ["layer input", "x32x3", "2^40"]),
        ("image_compression", (usize::MAX, 32), ["layer input", "x32x3", "2^40"]),
    ] {
        let error = build(name, Some(input), 10).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}

#[test]
fn the_shortest_side_admitted_is_the_shortest_that_works() {
    for name in NAMES {
        let least = (1..=80).find(|&side| build(name, Some((side, side)), 2).is_ok());
        let expected = match name {
            "vgg_19" => 32,
            "inception_v3" | "inception_v4" => 75,
            "image_compression" => 16,
            _ => 1,
        };
        assert_eq!(least, Some(expected), "{name}");
    }
}

#[test]
fn classes_are_one_or_more() {
    for name in NAMES {
        assert!(matches!(build(name, None, 0), Err(ModelError::Classes { .. })), "{name}");
        assert!(build(name, None, 1).is_ok(), "{name}");
    }
    let many = build("resnet50", None, usize::MAX);
    assert!(matches!(many, Err(ModelError::Shape(ShapeError::NotAdmitted { .. }))));
}

#[test]
fn an_unknown_model_is_answered_with_the_closest_and_all_names() {
    let error = build("resnet-50", None, 10).unwrap_err().to_string();
    assert!(error.starts_with("unknown model \"resnet-50\": did you mean resnet50?"), "{error}");
    assert!(NAMES.iter().all(|name| error.contains(name)), "{error}");
    assert!(default_input("transformer").is_err());
}

#[test]
fn defaults_are_the_papers_sizes() {
    assert_eq!(default_input("resnet50").unwrap(), (224, 224));
    assert_eq!(default_input("inception_v4").unwrap(), (299, 299));
    assert_eq!(default_input("image_compression").unwrap(), (256, 256));
    assert_eq!(summarize(&build("inception_v3", None, 10).unwrap()).input, "299x299");
}

#[test]
fn the_small_network_takes_any_image_and_stays_small() {
    for (h, w, c) in [(1, 1, 1), (2, 3, 3), (32, 32, 3)] {
        let graph = small_cnn(Shape::new(h, w, c), 10).unwrap();
        assert!((3_000..9_000).contains(&summarize(&graph).params_total));
    }
    assert!(small_cnn(Shape::new(8, 8, 3), 0).is_err());
}
