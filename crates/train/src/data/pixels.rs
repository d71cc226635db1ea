//! Pixels on their way to a network: 8-bit red, green and blue, resized, normalised.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

/// What becomes of each value of each channel, by the same operations as torchvision's ToTensor and Normalize.
pub struct Normal([[f32; 256]; 3]);

impl Normal {
    pub fn new(mean: [f32; 3], deviation: [f32; 3]) -> Self {
        let value = |channel: usize, byte: usize| (byte as f32 / 255.0 - mean[channel]) / deviation[channel];
        Self(std::array::from_fn(|channel| std::array::from_fn(|byte| value(channel, byte))))
    }

    /// A pixel's values.
    pub fn of(&self, [r, g, b]: [u8; 3]) -> [f32; 3] {
        let Self([red, green, blue]) = self;
        [red[usize::from(r)], green[usize::from(g)], blue[usize::from(b)]]
    }

    /// Writes the values of many.
    pub fn write(&self, pixels: &[u8], values: &mut [f32]) {
        for (value, pixel) in values.as_chunks_mut().0.iter_mut().zip(pixels.as_chunks().0) {
            *value = self.of(*pixel);
        }
    }
}

/// A piece of a picture, in pixels and parts of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub top: f64,
    pub left: f64,
    pub height: f64,
    pub width: f64,
}

/// Resizes pictures by linear interpolation, over as many pixels as shrink to one.
pub struct Scaler {
    resizer: Resizer,
    size: (u32, u32),
    pixels: Vec<u8>,
}

impl Scaler {
    /// For pictures that get this height and width.
    pub fn new((height, width): (usize, usize)) -> Self {
        Self {
            resizer: Resizer::new(),
            size: (height as u32, width as u32),
            pixels: vec![0; height * width * 3],
        }
    }

    /// Brings a piece of a picture of some height and width to this one's size.
    pub fn scale(&mut self, pixels: &[u8], (height, width): (usize, usize), window: Window) -> &mut [u8] {
        let from = TypedImageRef::<U8x3>::from_buffer(width as u32, height as u32, pixels)
            .expect("invariant: a picture has all its pixels");
        let mut to = TypedImage::<U8x3>::from_buffer(self.size.1, self.size.0, &mut self.pixels)
            .expect("invariant: made for this size");
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(
            window.left,
            window.top,
            window.width,
            window.height,
        );
        // Not `resize`, which brings the code for all other kinds of pixels into the program: minutes of compiling.
        self.resizer
            .resize_typed(&from, &mut to, &options)
            .expect("invariant: the window lies in the picture");
        &mut self.pixels
    }
}
