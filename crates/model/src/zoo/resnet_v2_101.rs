//! ResNet v2 101: "Identity Mappings in Deep Residual Networks", He, Zhang, Ren, Sun, 2016, arXiv:1603.05027.
//! As in `keras.applications.ResNet101V2`: a stage's stride sits in its last block, whose shortcut is a 1x1 max pool,
//! and a block's first two convolutions have no bias.

use crate::{BatchNorm, Border, Builder, Conv2d, Dense, Graph, NodeId, Shape, ShapeError, Window};

const NORM: BatchNorm = BatchNorm { epsilon: 1.001e-5, ..BatchNorm::KERAS };

/// Name, filters and blocks of a stage, and what the last block's shortcut does.
const STAGES: [(&str, usize, usize, Shortcut); 4] = [
    ("conv2", 64, 3, Shortcut::Subsample("max_pooling2d")),
    ("conv3", 128, 4, Shortcut::Subsample("max_pooling2d_1")),
    ("conv4", 256, 23, Shortcut::Subsample("max_pooling2d_2")),
    ("conv5", 512, 3, Shortcut::Identity),
];

#[derive(Clone, Copy)]
enum Shortcut {
    Identity,
    Projection,
    /// Every second row and column, by a layer of this name.
    Subsample(&'static str),
}

pub(super) fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let (mut b, x) = Builder::new("resnet_v2_101", input, classes)?;
    let x = b.conv("conv1_conv", x, Conv2d::k(7, 7).out(64).stride(2).border(Border::even(3)).bias())?;
    let x = b.pad("pool1_pad", x, Border::even(1))?;
    let mut x = b.max_pool("pool1_pool", x, Window::k(3, 3).stride(2))?;
    for (stage, filters, blocks, last) in STAGES {
        for block in 1..=blocks {
            let name = format!("{stage}_block{block}");
            let shortcut = match block {
                1 => Shortcut::Projection,
                _ if block == blocks => last,
                _ => Shortcut::Identity,
            };
            x = add_block(&mut b, &name, x, filters, shortcut)?;
        }
    }
    let x = b.batch_norm("post_bn", x, NORM);
    let x = b.relu("post_relu", x);
    let x = b.global_avg_pool("avg_pool", x);
    let x = b.dense("predictions", x, Dense::to(classes))?;
    b.softmax_cross_entropy("loss", x)
}

fn add_block(
    b: &mut Builder,
    name: &str,
    x: NodeId,
    filters: usize,
    shortcut: Shortcut,
) -> Result<NodeId, ShapeError> {
    let preact = b.batch_norm(&format!("{name}_preact_bn"), x, NORM);
    let preact = b.relu(&format!("{name}_preact_relu"), preact);
    let (shortcut, stride) = match shortcut {
        Shortcut::Identity => (x, 1),
        Shortcut::Projection => {
            let projection = Conv2d::k(1, 1).out(4 * filters).bias();
            (b.conv(&format!("{name}_0_conv"), preact, projection)?, 1)
        }
        Shortcut::Subsample(pool) => (b.max_pool(pool, x, Window::k(1, 1).stride(2))?, 2),
    };
    let x = b.conv(&format!("{name}_1_conv"), preact, Conv2d::k(1, 1).out(filters))?;
    let x = b.batch_norm(&format!("{name}_1_bn"), x, NORM);
    let x = b.relu(&format!("{name}_1_relu"), x);
    let middle = Conv2d::k(3, 3).out(filters).stride(stride).border(Border::even(1));
    let x = b.conv(&format!("{name}_2_conv"), x, middle)?;
    let x = b.batch_norm(&format!("{name}_2_bn"), x, NORM);
    let x = b.relu(&format!("{name}_2_relu"), x);
    let x = b.conv(&format!("{name}_3_conv"), x, Conv2d::k(1, 1).out(4 * filters).bias())?;
    b.add(&format!("{name}_out"), shortcut, x)
}
