//! A small classifier for tests, ours: most layer kinds of the zoo in a few thousand parameters.

use crate::{BatchNorm, Builder, Conv2d, Dense, Graph, ModelError, Shape, Window};

/// Builds the small test network for any input of at least 1x1x1; it is not in [`super::NAMES`].
pub fn small_cnn(input: Shape, classes: usize) -> Result<Graph, ModelError> {
    if classes == 0 {
        return Err(ModelError::Classes { model: "small_cnn".to_owned() });
    }
    let (mut b, x) = Builder::new("small_cnn", input, classes)?;
    let x = b.conv("conv1", x, Conv2d::k(3, 3).out(16).same())?;
    let x = b.batch_norm("conv1_bn", x, BatchNorm::KERAS);
    let x = b.relu("conv1_relu", x);
    let x = b.conv("conv2", x, Conv2d::k(3, 3).out(24).stride(2).same())?;
    let x = b.batch_norm("conv2_bn", x, BatchNorm::KERAS);
    let x = b.relu("conv2_relu", x);
    let x = b.depthwise_conv("depthwise", x, Conv2d::k(3, 3).same())?;
    let x = b.batch_norm("depthwise_bn", x, BatchNorm::KERAS);
    let x = b.relu6("depthwise_relu", x);
    let shortcut = b.max_pool("pool", x, Window::k(2, 2).stride(2).same())?;
    let x = b.conv("project", shortcut, Conv2d::k(1, 1).out(24).bias())?;
    let x = b.add("add", shortcut, x)?;
    let x = b.global_avg_pool("avg_pool", x);
    let x = b.dense("predictions", x, Dense::to(classes))?;
    Ok(b.softmax_cross_entropy("loss", x)?)
}
