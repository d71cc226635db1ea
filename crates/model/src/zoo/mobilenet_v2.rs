//! MobileNetV2: "MobileNetV2: Inverted Residuals and Linear Bottlenecks", Sandler, Howard, Zhu, Zhmoginov, Chen, 2018,
//! arXiv:1801.04381. As in `keras.applications.MobileNetV2` at width 1. What Keras pads in front of a stride-2
//! convolution (`correct_pad`: one row less above an even map) is what SAME gives.

use crate::{BatchNorm, Builder, Conv2d, Dense, Graph, NodeId, Shape, ShapeError};

const NORM: BatchNorm = BatchNorm { momentum: 0.999, ..BatchNorm::KERAS };

/// Widening inside a block, once the first block has passed.
const EXPANSION: usize = 6;

/// Filters, blocks and stride of a stage.
const STAGES: [(usize, usize, usize); 7] =
    [(16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)];

pub(super) fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let (mut b, x) = Builder::new("mobilenet_v2", input, classes)?;
    let x = b.conv("Conv1", x, Conv2d::k(3, 3).out(32).stride(2).same())?;
    let x = b.batch_norm("bn_Conv1", x, NORM);
    let mut x = b.relu6("Conv1_relu", x);
    let strides = STAGES.into_iter().flat_map(|(filters, blocks, stride)| {
        (0..blocks).map(move |block| (filters, if block == 0 { stride } else { 1 }))
    });
    for (block, (filters, stride)) in strides.enumerate() {
        x = add_block(&mut b, block, x, filters, stride)?;
    }
    let x = b.conv("Conv_1", x, Conv2d::k(1, 1).out(1280))?;
    let x = b.batch_norm("Conv_1_bn", x, NORM);
    let x = b.relu6("out_relu", x);
    let x = b.global_avg_pool("global_average_pooling2d", x);
    let x = b.dense("predictions", x, Dense::to(classes))?;
    b.softmax_cross_entropy("loss", x)
}

fn add_block(
    b: &mut Builder,
    block: usize,
    input: NodeId,
    filters: usize,
    stride: usize,
) -> Result<NodeId, ShapeError> {
    let channels = b.shape(input).c;
    let name = match block {
        0 => "expanded_conv".to_owned(),
        _ => format!("block_{block}"),
    };
    let mut x = input;
    if block > 0 {
        x = b.conv(&format!("{name}_expand"), x, Conv2d::k(1, 1).out(EXPANSION * channels))?;
        x = b.batch_norm(&format!("{name}_expand_BN"), x, NORM);
        x = b.relu6(&format!("{name}_expand_relu"), x);
    }
    let x = b.depthwise_conv(&format!("{name}_depthwise"), x, Conv2d::k(3, 3).stride(stride).same())?;
    let x = b.batch_norm(&format!("{name}_depthwise_BN"), x, NORM);
    let x = b.relu6(&format!("{name}_depthwise_relu"), x);
    let x = b.conv(&format!("{name}_project"), x, Conv2d::k(1, 1).out(filters))?;
    let x = b.batch_norm(&format!("{name}_project_BN"), x, NORM);
    if channels == filters && stride == 1 { b.add(&format!("{name}_add"), input, x) } else { Ok(x) }
}
