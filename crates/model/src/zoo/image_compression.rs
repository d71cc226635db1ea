//! Image compression: an autoencoder with no paper behind it, the "Image Compression Model with
//! Conv2DTranspose" of ElasticDL's benchmark report. Four halvings, four doublings, judged against
//! its own input.

use crate::{BatchNorm, Builder, Conv2d, ConvTranspose, Graph, Init, Shape, ShapeError};

const ENCODER: [usize; 4] = [48, 96, 384, 768];
const DECODER: [usize; 4] = [768, 384, 64, 32];

pub(super) fn build(input: Shape, classes: usize) -> Result<Graph, ShapeError> {
    let (mut b, image) = Builder::new("image_compression", input, classes)?;
    let mut x = image;
    for (layer, out) in (1..).zip(ENCODER) {
        x = b.conv(&format!("encoder{layer}_conv"), x, Conv2d::k(3, 3).out(out).stride(2).same().bias())?;
        x = b.batch_norm(&format!("encoder{layer}_bn"), x, BatchNorm::KERAS);
        x = b.relu(&format!("encoder{layer}_relu"), x);
    }
    for (layer, out) in (1..).zip(DECODER) {
        let double = ConvTranspose {
            out,
            kernel: (3, 3),
            stride: (2, 2),
            crop: 1,
            output_padding: 1,
            bias: true,
            init: Init::Glorot,
        };
        x = b.conv_transpose(&format!("decoder{layer}_conv"), x, double)?;
        x = b.batch_norm(&format!("decoder{layer}_bn"), x, BatchNorm::KERAS);
        x = b.relu(&format!("decoder{layer}_relu"), x);
    }
    let x = b.conv("picture", x, Conv2d::k(1, 1).out(input.c).bias())?;
    b.mean_squared_error("loss", x, image)
}
