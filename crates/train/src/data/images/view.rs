//! Which piece of a picture a network sees.

use crate::data::Draw;
use crate::data::pixels::Window;

/// Fraction of a picture's area that a random piece has, at least; it may be all of it.
const LEAST_AREA: f64 = 0.08;

/// A random piece is stretched by at most this, either way.
const STRETCH: f64 = 4.0 / 3.0;

/// Pieces tried before the middle one is taken.
const TRIES: usize = 10;

/// Of the largest piece in the middle, the fraction of its sides that is used for tests: 224 of 256.
const MIDDLE: f64 = 224.0 / 256.0;

/// A piece of a picture, and whether it is seen in a mirror.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    pub window: Window,
    pub flip: bool,
}

impl View {
    /// The middle of a picture, as after resizing its shorter side to 256 and cropping the centre to 224.
    pub fn centre(size: (usize, usize), input: (usize, usize)) -> Self {
        Self { window: middle(size, input, MIDDLE), flip: false }
    }

    /// A random piece of random size and shape, in a mirror half of the time: Szegedy et al. 2015, as torchvision does it.
    pub fn draw((height, width): (usize, usize), input: (usize, usize), mut draw: Draw) -> Self {
        let flip = draw.below(2) == 1;
        let shape = input.1 as f64 / input.0 as f64;
        for _ in 0..TRIES {
            let fraction = LEAST_AREA + (1.0 - LEAST_AREA) * f64::from(draw.unit());
            let stretch = STRETCH.powf(2.0 * f64::from(draw.unit()) - 1.0) * shape;
            let area = fraction * (height * width) as f64;
            let (w, h) = ((area * stretch).sqrt().round() as usize, (area / stretch).sqrt().round() as usize);
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let (top, left) = (draw.below(height - h + 1) as f64, draw.below(width - w + 1) as f64);
                return Self { window: Window { top, left, height: h as f64, width: w as f64 }, flip };
            }
        }
        Self { window: middle((height, width), input, 1.0), flip }
    }
}

/// A fraction of the largest window of the input's proportions that fits, in the middle.
fn middle((height, width): (usize, usize), input: (usize, usize), fraction: f64) -> Window {
    let (height, width) = (height as f64, width as f64);
    let scale = fraction * (height / input.0 as f64).min(width / input.1 as f64);
    let (h, w) = (scale * input.0 as f64, scale * input.1 as f64);
    Window { top: (height - h) / 2.0, left: (width - w) / 2.0, height: h, width: w }
}
