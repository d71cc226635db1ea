//! CIFAR-10 in its binary version: six files of records, a label and then 32x32 pixels, red, green and blue one after another.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use paceline_model::Shape;
use sha2::{Digest, Sha256};

use super::pixels::{Normal, Scaler, Window};
use super::source::{Look, Reader};
use super::{Draw, Split};
use crate::TrainError;

/// Size of a picture.
pub(super) const SHAPE: Shape = Shape::new(SIDE, SIDE, 3);

/// Classes.
pub const CLASSES: usize = 10;

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;

/// Bytes of a label and a picture.
pub const RECORD: usize = 1 + 3 * PLANE;

/// Names of the files: five to learn from, and one for the test.
pub const FILES: [&str; 6] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
    "test_batch.bin",
];

/// Takes note of what the files begin with.
pub(super) fn fingerprint(folder: &Path, digest: &mut Sha256) -> Result<(), TrainError> {
    for split in [Split::Train, Split::Test] {
        for (_, file) in Cifar10::open(folder, split)?.files {
            digest.update(&file[..file.len().min(1 << 16)]);
        }
    }
    Ok(())
}

/// Takes note of all that the files hold.
pub(super) fn checksum(folder: &Path, digest: &mut Sha256) -> Result<(), TrainError> {
    for split in [Split::Train, Split::Test] {
        Cifar10::open(folder, split)?.files.iter().for_each(|(_, file)| digest.update(file));
    }
    Ok(())
}

/// Mean of each channel over the training pictures.
pub const MEAN: [f32; 3] = [0.4914, 0.4822, 0.4465];
/// Its standard deviation.
pub const DEVIATION: [f32; 3] = [0.2470, 0.2435, 0.2616];

/// Black pixels put around a picture before it is cropped.
const PAD: usize = 4;

const HELP: &str = "fetch the data again with `paceline data cifar10 DIR`";

/// The records of a split, mapped into memory, so that all workers of a host share one copy.
pub(super) struct Cifar10 {
    files: Vec<(PathBuf, Mmap)>,
    /// Records of each file.
    each: usize,
}

impl Cifar10 {
    /// Opens the files. All six of a data set have the same size; one that differs has been cut short.
    pub fn open(folder: &Path, split: Split) -> Result<Self, TrainError> {
        let names = match split {
            Split::Train => &FILES[..5],
            Split::Test => &FILES[5..],
        };
        let sizes = FILES.iter().map(|name| size_of_file(&folder.join(name)));
        let sizes = sizes.collect::<Result<Vec<u64>, _>>()?;
        let size = sizes.into_iter().max().expect("invariant: there are six");
        let files = names.iter().map(|name| map(folder.join(name), size)).collect::<Result<_, _>>()?;
        Ok(Self { files, each: size as usize / RECORD })
    }

    /// Samples.
    pub fn len(&self) -> usize {
        self.files.len() * self.each
    }

    /// A sample's label and planes.
    fn record(&self, index: usize) -> Result<(u32, &[u8]), TrainError> {
        let (path, bytes) = &self.files[index / self.each];
        let number = index % self.each;
        let record = &bytes[number * RECORD..][..RECORD];
        let label = record[0];
        if usize::from(label) >= CLASSES {
            let what = format!("record {number} has the label {label}, but labels are 0 to 9");
            return Err(TrainError::damaged(path, what, HELP));
        }
        Ok((u32::from(label), &record[1..]))
    }
}

/// Refuses files that are not there, not whole, or have labels out of range.
pub(super) fn check(folder: &Path) -> Result<(), TrainError> {
    for split in [Split::Train, Split::Test] {
        let files = Cifar10::open(folder, split)?;
        (0..files.len()).try_for_each(|index| files.record(index).map(drop))?;
    }
    Ok(())
}

fn size_of_file(path: &Path) -> Result<u64, TrainError> {
    let file = path.metadata().map_err(|error| TrainError::damaged(path, error.to_string(), HELP))?;
    Ok(file.len())
}

fn map(path: PathBuf, size: u64) -> Result<(PathBuf, Mmap), TrainError> {
    let damaged = |what: String| TrainError::damaged(&path, what, HELP);
    let file = File::open(&path).map_err(|error| damaged(error.to_string()))?;
    // SAFETY: the file is only read. Nobody changes a data set while it is trained on; whoever cuts a file short then gets the
    // process killed, as with any mapped file.
    let bytes = unsafe { Mmap::map(&file) }.map_err(|error| damaged(error.to_string()))?;
    if bytes.len() as u64 != size {
        return Err(damaged(format!(
            "it has {} bytes, but the largest of the six files has {size}",
            bytes.len()
        )));
    }
    if bytes.is_empty() || bytes.len() % RECORD != 0 {
        return Err(damaged(format!("its {size} bytes are no whole number of records of {RECORD}")));
    }
    Ok((path, bytes))
}

/// Pictures as a network reads them: normalised, channels last.
pub(super) struct Pictures {
    files: Arc<Cifar10>,
    normal: Normal,
    /// For networks that read another size.
    scaler: Option<Scaler>,
    pixels: [u8; 3 * PLANE],
}

impl Pictures {
    pub fn new(files: Arc<Cifar10>, input: (usize, usize)) -> Self {
        let scaler = (input != (SIDE, SIDE)).then(|| Scaler::new(input));
        Self { files, normal: Normal::new(MEAN, DEVIATION), scaler, pixels: [0; 3 * PLANE] }
    }
}

impl Reader for Pictures {
    fn read(&mut self, index: u32, look: Look, image: &mut [f32]) -> Result<u32, TrainError> {
        let (label, planes) = self.files.record(index as usize)?;
        let crop = match look {
            Look::Plain => Crop::WHOLE,
            Look::Varied(draw) => Crop::draw(draw),
        };
        match &mut self.scaler {
            None => crop.cut(planes, |pixel| self.normal.of(pixel), image.as_chunks_mut().0),
            Some(scaler) => {
                crop.cut(planes, |pixel| pixel, self.pixels.as_chunks_mut().0);
                self.normal.write(scaler.scale(&self.pixels, (SIDE, SIDE), WHOLE), image);
            }
        }
        Ok(label)
    }
}

const WHOLE: Window = Window { top: 0.0, left: 0.0, height: SIDE as f64, width: SIDE as f64 };

/// A window on the padded picture, and whether it is seen in a mirror.
#[derive(Clone, Copy, Debug)]
struct Crop {
    /// Rows of the padded picture above the window, and columns to its left.
    top: usize,
    left: usize,
    flip: bool,
}

impl Crop {
    const WHOLE: Self = Self { top: PAD, left: PAD, flip: false };

    fn draw(mut draw: Draw) -> Self {
        let mut offset = || draw.below(2 * PAD + 1);
        Self { top: offset(), left: offset(), flip: draw.below(2) == 1 }
    }

    /// Takes the window out of three planes and writes each pixel in some form.
    fn cut<T: Copy>(self, planes: &[u8], form: impl Fn([u8; 3]) -> [T; 3], pixels: &mut [[T; 3]]) {
        let black = form([0; 3]);
        let (from, before) = (self.left.saturating_sub(PAD), PAD.saturating_sub(self.left));
        let seen = SIDE - from - before;
        let before = if self.flip { SIDE - seen - before } else { before };
        for (y, row) in pixels.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
            let y = (y + self.top).wrapping_sub(PAD);
            if y >= SIDE {
                row.fill(black);
                continue;
            }
            let (left, row) = row.split_at_mut(before);
            let (row, right) = row.split_at_mut(seen);
            left.fill(black);
            right.fill(black);
            let [red, green, blue] =
                [0, 1, 2].map(|channel| &planes[channel * PLANE + y * SIDE + from..][..seen]);
            let source = red.iter().zip(green).zip(blue).map(|((&r, &g), &b)| form([r, g, b]));
            if self.flip {
                row.iter_mut().rev().zip(source).for_each(|(pixel, value)| *pixel = value);
            } else {
                row.iter_mut().zip(source).for_each(|(pixel, value)| *pixel = value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
