//! ResNet-50: "Deep Residual Learning for Image Recognition", He, Zhang, Ren, Sun, 2015, arXiv:1512.03385.
//! As in `keras.applications.ResNet50`: a stage's stride sits in its first 1x1, and convolutions have biases.

use crate::{BatchNorm, Border, Builder, Conv2d, Dense, Graph, NodeId, Shape, ShapeError, Window};

const NORM: BatchNorm = BatchNorm { epsilon: 1.001e-5, ..BatchNorm::KERAS };

/// Name, filters, blocks and stride of a stage.
const STAGES: [(&str, usize, usize, usize); 4] =
    [("conv2", 64, 3, 1), ("conv3", 128, 4, 2), ("conv4", 256, 6, 2), ("conv5", 512, 3, 2)];

pub(super) fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let (mut b, x) = Builder::new("resnet50", input, classes)?;
    let x = b.conv("conv1_conv", x, Conv2d::k(7, 7).out(64).stride(2).border(Border::even(3)).bias())?;
    let x = b.batch_norm("conv1_bn", x, NORM);
    let x = b.relu("conv1_relu", x);
    let x = b.pad("pool1_pad", x, Border::even(1))?;
    let mut x = b.max_pool("pool1_pool", x, Window::k(3, 3).stride(2))?;
    for (stage, filters, blocks, stride) in STAGES {
        for block in 1..=blocks {
            let name = format!("{stage}_block{block}");
            let shortcut = match block {
                1 => Shortcut::Projection { stride },
                _ => Shortcut::Identity,
            };
            x = add_block(&mut b, &name, x, filters, shortcut)?;
        }
    }
    let x = b.global_avg_pool("avg_pool", x);
    let x = b.dense("predictions", x, Dense::to(classes))?;
    b.softmax_cross_entropy("loss", x)
}

enum Shortcut {
    Identity,
    Projection { stride: usize },
}

fn add_block(
    b: &mut Builder,
    name: &str,
    x: NodeId,
    filters: usize,
    shortcut: Shortcut,
) -> Result<NodeId, ShapeError> {
    let (shortcut, stride) = match shortcut {
        Shortcut::Identity => (x, 1),
        Shortcut::Projection { stride } => {
            let projection = Conv2d::k(1, 1).out(4 * filters).stride(stride).bias();
            let y = b.conv(&format!("{name}_0_conv"), x, projection)?;
            (b.batch_norm(&format!("{name}_0_bn"), y, NORM), stride)
        }
    };
    let x = b.conv(&format!("{name}_1_conv"), x, Conv2d::k(1, 1).out(filters).stride(stride).bias())?;
    let x = b.batch_norm(&format!("{name}_1_bn"), x, NORM);
    let x = b.relu(&format!("{name}_1_relu"), x);
    let x = b.conv(&format!("{name}_2_conv"), x, Conv2d::k(3, 3).out(filters).same().bias())?;
    let x = b.batch_norm(&format!("{name}_2_bn"), x, NORM);
    let x = b.relu(&format!("{name}_2_relu"), x);
    let x = b.conv(&format!("{name}_3_conv"), x, Conv2d::k(1, 1).out(4 * filters).bias())?;
    let x = b.batch_norm(&format!("{name}_3_bn"), x, NORM);
    let x = b.add(&format!("{name}_add"), shortcut, x)?;
    Ok(b.relu(&format!("{name}_out"), x))
}
