//! The networks that are compared.

use paceline_model::{
    BatchNorm, Border, Builder, Conv2d, ConvTranspose, Dense, Graph, Init, NodeId, Shape, ShapeError, Window,
};

/// A network around one or a few layers, with a convolution in front and a dense layer behind.
pub fn around(input: Shape, body: impl Fn(&mut Builder, NodeId) -> Result<NodeId, ShapeError>) -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("case", input, 5)?;
        let x = b.conv("in", x, Conv2d::k(1, 1).out(16).bias())?;
        let x = body(&mut b, x)?;
        let x = b.flatten("flat", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

pub const TRANSPOSE: ConvTranspose = ConvTranspose {
    out: 24,
    kernel: (3, 3),
    stride: (2, 2),
    crop: 1,
    output_padding: 1,
    bias: true,
    init: Init::He,
};

pub fn layers() -> Vec<(&'static str, Graph)> {
    let map = Shape::new(9, 7, 3);
    let norm = BatchNorm { momentum: 0.9, ..BatchNorm::KERAS };
    vec![
        ("dense", around(map, |_, x| Ok(x))),
        ("3x3", around(map, |b, x| b.conv("c", x, Conv2d::k(3, 3).out(24).same().bias()))),
        (
            "3x3 stride 2, odd border",
            around(map, |b, x| b.conv("c", x, Conv2d::k(3, 3).out(24).stride(2).same())),
        ),
        (
            "asymmetric border",
            around(Shape::new(8, 8, 3), |b, x| b.conv("c", x, Conv2d::k(3, 3).out(16).stride(2).same())),
        ),
        (
            "wide",
            around(Shape::new(8, 8, 3), |b, x| b.conv("c", x, Conv2d::k(3, 3).out(384).stride(2).same())),
        ),
        (
            "wide transposed",
            around(Shape::new(4, 4, 3), |b, x| {
                let x = b.conv("c", x, Conv2d::k(3, 3).out(384).same())?;
                b.conv_transpose("t", x, TRANSPOSE)
            }),
        ),
        ("1x7", around(map, |b, x| b.conv("c", x, Conv2d::k(1, 7).out(8).same()))),
        (
            "two of 1x1 stride 2",
            around(map, |b, x| {
                let one = b.conv("one", x, Conv2d::k(1, 1).out(24).stride(2))?;
                let other = b.conv("other", x, Conv2d::k(1, 1).out(24).stride(2).bias())?;
                b.add("both", one, other)
            }),
        ),
        ("1x1 stride 2", around(map, |b, x| b.conv("c", x, Conv2d::k(1, 1).out(32).stride(2).bias()))),
        ("odd channels", around(map, |b, x| b.conv("c", x, Conv2d::k(3, 3).out(5).same().bias()))),
        ("groups", around(map, |b, x| b.conv("c", x, Conv2d::k(3, 3).out(32).groups(2).same()))),
        ("transposed", around(map, |b, x| b.conv_transpose("c", x, TRANSPOSE))),
        ("depthwise", around(map, |b, x| b.depthwise_conv("c", x, Conv2d::k(3, 3).same()))),
        (
            "depthwise stride 2",
            around(map, |b, x| b.depthwise_conv("c", x, Conv2d::k(3, 3).stride(2).same().bias())),
        ),
        (
            "depthwise stride 2 on an even map",
            around(Shape::new(12, 10, 3), |b, x| b.depthwise_conv("c", x, Conv2d::k(3, 3).stride(2).same())),
        ),
        (
            "depthwise 5x5 to a point",
            around(Shape::new(5, 5, 3), |b, x| b.depthwise_conv("c", x, Conv2d::k(5, 5))),
        ),
        ("relu", around(map, |b, x| Ok(b.relu("r", x)))),
        (
            "relu6 of a sum",
            around(map, |b, x| {
                let y = b.conv("c", x, Conv2d::k(1, 1).out(16))?;
                let y = b.add("a", x, y)?;
                Ok(b.relu6("r", y))
            }),
        ),
        ("norm", around(map, |b, x| Ok(b.batch_norm("n", x, norm)))),
        (
            "norm, relu, of odd channels",
            around(map, |b, x| {
                let x = b.conv("c", x, Conv2d::k(3, 3).out(7).same().bias())?;
                let x = b.batch_norm("n", x, BatchNorm::TORCH);
                Ok(b.relu("r", x))
            }),
        ),
        (
            "norm with residual and relu",
            around(map, |b, x| {
                let y = b.conv("c", x, Conv2d::k(3, 3).out(16).same().bias())?;
                let y = b.batch_norm("n", y, norm);
                let y = b.add("a", x, y)?;
                let y = b.relu("r", y);
                let z = b.conv("d", y, Conv2d::k(1, 1).out(16))?;
                let z = b.batch_norm("m", z, norm);
                let z = b.add("b", z, y)?;
                Ok(b.relu6("s", z))
            }),
        ),
        (
            "norm with residual alone",
            around(map, |b, x| {
                let y = b.depthwise_conv("c", x, Conv2d::k(3, 3).same())?;
                let y = b.batch_norm("n", y, norm);
                b.add("a", x, y)
            }),
        ),
        (
            "many rows",
            around(Shape::new(40, 36, 3), |b, x| {
                let y = b.conv("c", x, Conv2d::k(3, 3).out(16).same().bias())?;
                let y = b.batch_norm("n", y, norm);
                let y = b.add("a", x, y)?;
                let y = b.relu("r", y);
                let y = b.depthwise_conv("e", y, Conv2d::k(3, 3).same())?;
                let y = b.batch_norm("m", y, norm);
                let y = b.relu6("s", y);
                b.avg_pool("p", y, Window::k(8, 9).stride(8))
            }),
        ),
        ("max pool", around(map, |b, x| b.max_pool("p", x, Window::k(3, 3).stride(2).same()))),
        (
            "pad and max pool behind relu",
            around(map, |b, x| {
                let x = b.relu("r", x);
                let x = b.pad("z", x, Border::even(1))?;
                b.max_pool("p", x, Window::k(3, 3).stride(2))
            }),
        ),
        ("avg pool", around(map, |b, x| b.avg_pool("p", x, Window::k(3, 3).stride(1).same()))),
        ("global pool", around(map, |b, x| Ok(b.global_avg_pool("p", x)))),
        ("pad", around(map, |b, x| b.pad("z", x, Border { top: 1, bottom: 0, left: 2, right: 3 }))),
        (
            "concat",
            around(map, |b, x| {
                let p = b.conv("c", x, Conv2d::k(1, 1).out(8))?;
                let q = b.conv("d", x, Conv2d::k(3, 3).out(5).same())?;
                let r = b.avg_pool("p", x, Window::k(3, 3).stride(1).same())?;
                b.concat("j", &[p, q, r, x])
            }),
        ),
        ("dropout", around(map, |b, x| b.dropout("d", x, 0.3))),
    ]
}

/// A typical first convolution: with stride 2, directly on the images.
pub fn stem(input: Shape, conv: Conv2d) -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("stem", input, 5)?;
        let x = b.conv("c", x, conv)?;
        let x = b.batch_norm("n", x, BatchNorm::KERAS);
        let x = b.relu("r", x);
        let x = b.global_avg_pool("p", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

/// Layers without anything trained below them, in front of a window.
pub fn from_below() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("from_below", Shape::new(12, 16, 8), 5)?;
        let x = b.max_pool("p", x, Window::k(3, 3).stride(2).same())?;
        let x = b.relu("r", x);
        let x = b.depthwise_conv("d", x, Conv2d::k(3, 3).same())?;
        let x = b.global_avg_pool("m", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

pub fn autoencoder() -> Graph {
    let build = || {
        let (mut b, image) = Builder::new("auto", Shape::new(8, 12, 3), 5)?;
        let x = b.conv("c", image, Conv2d::k(3, 3).out(16).stride(2).same().bias())?;
        let x = b.batch_norm("n", x, BatchNorm::KERAS);
        let x = b.relu("r", x);
        let x = b.conv_transpose("t", x, ConvTranspose { out: 8, ..TRANSPOSE })?;
        let x = b.conv("picture", x, Conv2d::k(1, 1).out(3).bias())?;
        b.mean_squared_error("loss", x, image)
    };
    build().unwrap()
}

/// A small network with every kind of layer: small enough for tools that check each memory access.
pub fn every_kind() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("every_kind", Shape::new(13, 12, 3), 5)?;
        let x = b.conv("stem", x, Conv2d::k(3, 3).out(16).stride(2).same().bias())?;
        let x = b.batch_norm("stem_norm", x, BatchNorm::KERAS);
        let x = b.relu("stem_relu", x);
        let y = b.depthwise_conv("three", x, Conv2d::k(3, 3).same())?;
        let y = b.batch_norm("three_norm", y, BatchNorm::TORCH);
        let x = b.add("residual", x, y)?;
        let x = b.relu6("residual_relu", x);
        let y = b.depthwise_conv("five", x, Conv2d::k(5, 5).same().bias())?;
        let z = b.avg_pool("mean", x, Window::k(3, 3).stride(1).same())?;
        let x = b.concat("both", &[y, z])?;
        let x = b.max_pool("most", x, Window::k(3, 3).stride(2).same())?;
        let x = b.conv_transpose("larger", x, ConvTranspose { out: 7, ..TRANSPOSE })?;
        let x = b.relu("larger_relu", x);
        let x = b.pad("border", x, Border { top: 1, bottom: 0, left: 2, right: 1 })?;
        let x = b.conv("odd", x, Conv2d::k(1, 1).out(9).bias())?;
        let x = b.dropout("drop", x, 0.3)?;
        let y = b.depthwise_conv("slow", x, Conv2d::k(3, 3).stride(2).same())?;
        let y = b.flatten("flat", y);
        let y = b.dense("narrow", y, Dense::to(12))?;
        let x = b.global_avg_pool("means", x);
        let x = b.dense("wide", x, Dense::to(12))?;
        let x = b.add("sum", x, y)?;
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

/// Batch norms of more rows than a cluster of blocks holds, and little else.
pub fn many_rows() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("many_rows", Shape::new(32, 32, 3), 5)?;
        let x = b.conv("in", x, Conv2d::k(1, 1).out(8).bias())?;
        let x = b.batch_norm("first", x, BatchNorm::KERAS);
        let x = b.relu("first_relu", x);
        let y = b.depthwise_conv("three", x, Conv2d::k(3, 3).same())?;
        let y = b.batch_norm("second", y, BatchNorm::TORCH);
        let x = b.add("residual", x, y)?;
        let x = b.relu("second_relu", x);
        let x = b.global_avg_pool("means", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

/// Batch norms of many rows that only depthwise windows read, of both strides and with a border.
pub fn behind_norms((h, w): (usize, usize)) -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("behind_norms", Shape::new(h, w, 3), 5)?;
        let x = b.conv("in", x, Conv2d::k(1, 1).out(24))?;
        let x = b.batch_norm("first", x, BatchNorm::KERAS);
        let x = b.relu6("first_relu", x);
        let x = b.depthwise_conv("one", x, Conv2d::k(3, 3).same())?;
        let x = b.batch_norm("second", x, BatchNorm::TORCH);
        let x = b.relu("second_relu", x);
        let x = b.depthwise_conv("two", x, Conv2d::k(3, 3).stride(2).same())?;
        let x = b.batch_norm("third", x, BatchNorm::KERAS);
        let x = b.global_avg_pool("means", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

/// Maps so large that each thread of a kernel has several rows, lines or tiles, as in real training.
pub fn large_maps() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("large_maps", Shape::new(64, 64, 3), 5)?;
        let x = b.conv("in", x, Conv2d::k(3, 3).out(32).same())?;
        let x = b.batch_norm("first", x, BatchNorm::KERAS);
        let x = b.relu6("first_relu", x);
        let x = b.depthwise_conv("one", x, Conv2d::k(3, 3).same())?;
        let x = b.batch_norm("second", x, BatchNorm::TORCH);
        let x = b.relu6("second_relu", x);
        let x = b.conv("wider", x, Conv2d::k(1, 1).out(96))?;
        let x = b.batch_norm("third", x, BatchNorm::KERAS);
        let x = b.relu6("third_relu", x);
        let x = b.depthwise_conv("two", x, Conv2d::k(3, 3).stride(2).same())?;
        let x = b.batch_norm("fourth", x, BatchNorm::KERAS);
        let x = b.relu("fourth_relu", x);
        let y = b.conv("square", x, Conv2d::k(3, 3).out(96).same())?;
        let y = b.batch_norm("fifth", y, BatchNorm::KERAS);
        let x = b.add("sum", x, y)?;
        let x = b.relu("sum_relu", x);
        let left = b.conv("left", x, Conv2d::k(1, 1).out(192).stride(2))?;
        let right = b.conv("right", x, Conv2d::k(1, 1).out(192).stride(2))?;
        let right = b.batch_norm("sixth", right, BatchNorm::KERAS);
        let x = b.add("joined", left, right)?;
        let x = b.depthwise_conv("three", x, Conv2d::k(3, 3).same())?;
        let x = b.max_pool("most", x, Window::k(3, 3).stride(2).same())?;
        let x = b.global_avg_pool("means", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}

/// A batch norm that a cluster of blocks holds, one behind a bias, and one whose rows are read twice.
pub fn norms() -> Graph {
    let build = || {
        let (mut b, x) = Builder::new("norms", Shape::new(40, 36, 3), 5)?;
        let x = b.conv("wide", x, Conv2d::k(3, 3).out(16).same().bias())?;
        let x = b.batch_norm("many", x, BatchNorm::KERAS);
        let x = b.relu("r", x);
        let x = b.conv("narrow", x, Conv2d::k(3, 3).out(24).stride(4).same().bias())?;
        let x = b.batch_norm("few", x, BatchNorm { momentum: 0.6, ..BatchNorm::TORCH });
        let x = b.global_avg_pool("p", x);
        let x = b.dense("out", x, Dense::to(5))?;
        b.softmax_cross_entropy("loss", x)
    };
    build().unwrap()
}
