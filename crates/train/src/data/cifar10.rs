//! CIFAR-10 in its binary version: six files of records, a label and then 32x32 pixels, red, green and blue one after another.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use paceline_model::Shape;

use super::source::{Look, Reader};
use super::{Draw, Split};
use crate::TrainError;

/// Size of a picture.
pub const SHAPE: Shape = Shape::new(SIDE, SIDE, 3);

/// Classes.
pub const CLASSES: usize = 10;

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;

/// Bytes of a label and a picture.
const RECORD: usize = 1 + 3 * PLANE;

/// Files of training pictures, and the one for the test.
const TRAIN: [&str; 5] =
    ["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"];
const TEST: [&str; 1] = ["test_batch.bin"];

/// Mean and standard deviation of each channel over the training pictures.
pub const MEAN: [f32; 3] = [0.4914, 0.4822, 0.4465];
pub const DEVIATION: [f32; 3] = [0.2470, 0.2435, 0.2616];

/// Black pixels put around a picture before it is cropped.
const PAD: usize = 4;

const HELP: &str = "fetch the data anew with `paceline data cifar10 DIR`";

/// The files of a split, mapped into memory, so that all workers of a host share one copy.
pub struct Cifar10 {
    files: Vec<(PathBuf, Mmap)>,
    /// Records of each file.
    each: usize,
}

impl Cifar10 {
    /// Opens the files. All six of a data set have the same size; one that differs has been cut short.
    pub fn open(folder: &Path, split: Split) -> Result<Self, TrainError> {
        let names: &[&str] = match split {
            Split::Train => &TRAIN,
            Split::Test => &TEST,
        };
        let sizes = TRAIN.iter().chain(&TEST).map(|name| size_of_file(&folder.join(name)));
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
pub fn check(folder: &Path) -> Result<(), TrainError> {
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
pub struct Pictures {
    files: Arc<Cifar10>,
    table: Box<[[f32; 256]; 3]>,
}

impl Pictures {
    pub fn new(files: Arc<Cifar10>, _input: (usize, usize)) -> Self {
        Self { files, table: normal_table(MEAN, DEVIATION) }
    }
}

/// What becomes of each value of each channel, by the same operations as torchvision's ToTensor and Normalize.
fn normal_table(mean: [f32; 3], deviation: [f32; 3]) -> Box<[[f32; 256]; 3]> {
    let mut table = Box::new([[0.0; 256]; 3]);
    for (channel, values) in table.iter_mut().enumerate() {
        for (byte, value) in values.iter_mut().enumerate() {
            *value = (byte as f32 / 255.0 - mean[channel]) / deviation[channel];
        }
    }
    table
}

impl Reader for Pictures {
    fn read(&mut self, index: u32, look: Look, image: &mut [f32]) -> Result<u32, TrainError> {
        let (label, planes) = self.files.record(index as usize)?;
        let crop = match look {
            Look::Plain => Crop { down: 0, across: 0, flip: false },
            Look::Varied(draw) => Crop::draw(draw),
        };
        crop.write(planes, &self.table, image);
        Ok(label)
    }
}

/// A window on the padded picture, and whether it is seen in a mirror.
struct Crop {
    /// Rows and columns that the window lies away from the picture's own.
    down: isize,
    across: isize,
    flip: bool,
}

impl Crop {
    fn draw(mut draw: Draw) -> Self {
        let mut shift = || draw.below(2 * PAD + 1) as isize - PAD as isize;
        Self { down: shift(), across: shift(), flip: draw.below(2) == 1 }
    }

    fn write(&self, planes: &[u8], table: &[[f32; 256]; 3], image: &mut [f32]) {
        let inside =
            |at: usize, by: isize| Some(at as isize + by).filter(|at| (0..SIDE as isize).contains(at));
        for (y, row) in image.chunks_exact_mut(SIDE * 3).enumerate() {
            for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
                let x = if self.flip { SIDE - 1 - x } else { x };
                for (channel, value) in pixel.iter_mut().enumerate() {
                    let byte = match (inside(y, self.down), inside(x, self.across)) {
                        (Some(y), Some(x)) => planes[channel * PLANE + y as usize * SIDE + x as usize],
                        _ => 0,
                    };
                    *value = table[channel][usize::from(byte)];
                }
            }
        }
    }
}
