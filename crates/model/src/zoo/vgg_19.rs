//! VGG-19: "Very Deep Convolutional Networks for Large-Scale Image Recognition", Simonyan, Zisserman, 2014,
//! arXiv:1409.1556. As in `keras.applications.VGG19`: no dropout, and the head takes whatever map is left.

use crate::{Builder, Conv2d, Dense, Graph, Shape, ShapeError, Window};

/// Filters and convolutions of a block.
const BLOCKS: [(usize, usize); 5] = [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)];

pub(super) fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let (mut b, mut x) = Builder::new("vgg_19", input, classes)?;
    for (block, (filters, convs)) in (1..).zip(BLOCKS) {
        for conv in 1..=convs {
            let name = format!("block{block}_conv{conv}");
            x = b.conv(&name, x, Conv2d::k(3, 3).out(filters).same().bias())?;
            x = b.relu(&format!("{name}_relu"), x);
        }
        x = b.max_pool(&format!("block{block}_pool"), x, Window::k(2, 2).stride(2))?;
    }
    x = b.flatten("flatten", x);
    for name in ["fc1", "fc2"] {
        x = b.dense(name, x, Dense::to(4096))?;
        x = b.relu(&format!("{name}_relu"), x);
    }
    let x = b.dense("predictions", x, Dense::to(classes))?;
    b.softmax_cross_entropy("loss", x)
}
