//! Pictures in files: a folder for each class, JPEG and PNG, decoded, cropped and resized on the fly.
//!
//! Where the folder has `train` and `val` (or `test`), those are the splits. Else a tenth of each class is held back for the test,
//! chosen by the files' names alone. Pictures become RGB: grey is spread, CMYK converted, alpha and the lower half of 16 bits
//! dropped. An orientation noted in a file is not applied, as with torchvision.

mod decode;
pub mod listing;
mod view;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use paceline_model::Shape;

pub use listing::{Listing, class_names};

use super::pixels::{Normal, Scaler};
use super::source::{Look, Reader};
use crate::TrainError;
use decode::Decoder;
use view::View;

/// Natural size of a picture for a network.
pub const SHAPE: Shape = Shape::new(224, 224, 3);

/// Mean and standard deviation of ImageNet's channels.
pub const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
pub const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

const HELP: &str = "replace it or take it away";

/// Pictures as a network reads them: normalised, channels last.
pub struct Pictures {
    files: Arc<Listing>,
    input: (usize, usize),
    normal: Normal,
    scaler: Scaler,
    bytes: Vec<u8>,
    decoder: Decoder,
}

impl Pictures {
    pub fn new(files: Arc<Listing>, input: (usize, usize)) -> Self {
        Self {
            files,
            input,
            normal: Normal::new(MEAN, DEVIATION),
            scaler: Scaler::new(input),
            bytes: Vec::new(),
            decoder: Decoder::default(),
        }
    }

    fn read_file(&mut self, path: &Path) -> Result<(), TrainError> {
        self.bytes.clear();
        let read = File::open(path).and_then(|mut file| file.read_to_end(&mut self.bytes));
        read.map(drop).map_err(|error| TrainError::damaged(path, format!("it cannot be read: {error}"), HELP))
    }
}

impl Reader for Pictures {
    fn read(&mut self, index: u32, look: Look, image: &mut [f32]) -> Result<u32, TrainError> {
        let (label, path) = self.files.sample(index as usize);
        self.read_file(&path)?;
        let size = self.decoder.decode(&self.bytes).map_err(|what| TrainError::damaged(&path, what, HELP))?;
        let view = match look {
            Look::Plain => View::centre(size, self.input),
            Look::Varied(draw) => View::draw(size, self.input, draw),
        };
        let pixels = self.scaler.scale(self.decoder.pixels(), size, view.window);
        if view.flip {
            for row in pixels.chunks_exact_mut(self.input.1 * 3) {
                row.as_chunks_mut::<3>().0.reverse();
            }
        }
        self.normal.write(pixels, image);
        Ok(label)
    }
}

#[cfg(test)]
mod tests;
