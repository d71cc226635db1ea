//! Pictures and labels, all through one [`Loader`].
//!
//! Samples come from one endless stream: the data set in the order of epoch 0, then in that of epoch 1, and so on. A global
//! batch is the next piece of it, cut into shards; a shard is cut into passes. So each sample is used exactly once an epoch over
//! all workers, whatever the remainder, and what a shard gets depends on the seed and its place in the stream alone: never on
//! who runs it, nor on how many threads load.

pub mod cifar10;
mod draw;
mod images;
mod loader;
mod log;
mod order;
mod pixels;
mod source;
mod synthetic;
mod test_set;

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use paceline_model::Shape;
use sha2::{Digest, Sha256};

use crate::TrainError;
use cifar10::Cifar10;
pub(crate) use draw::Draw;
use images::Listing;
pub use loader::{Loader, Loading};
pub use order::{Sequence, Turn};
use source::Source;
pub use test_set::TestSet;

/// Longest side of a picture.
pub const MAX_SIDE: usize = 16_384;

/// Classes of made pictures, where only their size is given.
const DEFAULT_CLASSES: usize = 10;

/// What `--data` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    name: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Synthetic { shape: Shape, classes: usize, samples: [usize; 2] },
    Cifar10(PathBuf),
    Images(PathBuf),
}

/// How values that a network sees stand for brightness from 0 to 1: less a mean, over a deviation, channel by channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Mean of each channel.
    pub mean: [f32; 3],
    /// Standard deviation of each channel.
    pub deviation: [f32; 3],
}

impl Scale {
    /// The brightness that a value stands for, from 0 to 1.
    pub fn brightness(&self, channel: usize, value: f32) -> f32 {
        (value * self.deviation[channel] + self.mean[channel]).clamp(0.0, 1.0)
    }
}

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// What is learnt from.
    Train,
    /// What was held back to see how much was learnt.
    Test,
}

/// What is done to pictures so that no epoch is like another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Augment {
    /// Nothing.
    None,
    /// What is usual for the data: a crop after padding by 4 for CIFAR-10, a random resized crop for folders of pictures, and a
    /// flip for both. Nothing for made pictures.
    #[default]
    Standard,
}

impl Data {
    /// Natural size of a picture, and its channels.
    pub fn shape(&self) -> Shape {
        match &self.kind {
            Kind::Synthetic { shape, .. } => *shape,
            Kind::Cifar10(_) => cifar10::SHAPE,
            Kind::Images(_) => images::SHAPE,
        }
    }

    /// Classes.
    pub fn classes(&self) -> Result<usize, TrainError> {
        match &self.kind {
            Kind::Synthetic { classes, .. } => Ok(*classes),
            Kind::Cifar10(_) => Ok(cifar10::CLASSES),
            Kind::Images(folder) => Ok(images::class_names(folder)?.len()),
        }
    }

    /// Samples of an epoch, or of the test set; nominal for made pictures, which repeat.
    pub fn samples(&self, split: Split) -> Result<usize, TrainError> {
        match &self.kind {
            Kind::Synthetic { samples, .. } => Ok(samples[split as usize]),
            _ => Ok(self.open(split)?.map_or(0, |source| source.len())),
        }
    }

    /// Refuses data that is not there, not whole, or has labels out of range. Whether each of a folder's pictures can be decoded
    /// shows only when it is its turn.
    pub fn check(&self) -> Result<(), TrainError> {
        match &self.kind {
            Kind::Cifar10(folder) => cifar10::check(folder),
            _ => [Split::Train, Split::Test].into_iter().try_for_each(|split| self.open(split).map(drop)),
        }
    }

    /// How its values stand for brightness.
    pub fn scale(&self) -> Scale {
        match &self.kind {
            // Made values are about 0, few beyond 2.
            Kind::Synthetic { .. } => Scale { mean: [0.5; 3], deviation: [0.25; 3] },
            Kind::Cifar10(_) => Scale { mean: cifar10::MEAN, deviation: cifar10::DEVIATION },
            Kind::Images(_) => Scale { mean: images::MEAN, deviation: images::DEVIATION },
        }
    }

    /// Whether pictures are made rather than read.
    pub fn is_synthetic(&self) -> bool {
        matches!(self.kind, Kind::Synthetic { .. })
    }

    /// Opens the files of a split; `None` for made pictures.
    fn open(&self, split: Split) -> Result<Option<Source>, TrainError> {
        Ok(match &self.kind {
            Kind::Synthetic { .. } => None,
            Kind::Cifar10(folder) => Some(Source::Cifar10(Cifar10::open(folder, split)?.into())),
            Kind::Images(folder) => Some(Source::Images(Listing::open(folder, split)?.into())),
        })
    }

    /// What tells this data from other data, wherever it is: its kind, its samples, and of images the names, of CIFAR-10
    /// the beginning of each file. A training resumes only with the same.
    pub fn fingerprint(&self) -> Result<String, TrainError> {
        let mut digest = Sha256::new();
        let kind = match &self.kind {
            Kind::Synthetic { .. } => return Ok(self.name.clone()),
            Kind::Cifar10(folder) => {
                cifar10::fingerprint(folder, &mut digest)?;
                "cifar10"
            }
            Kind::Images(folder) => {
                for split in [Split::Train, Split::Test] {
                    images::listing::Listing::open(folder, split)?.fingerprint(&mut digest);
                }
                "images"
            }
        };
        let [train, test] = [self.samples(Split::Train)?, self.samples(Split::Test)?];
        let mark: String = digest.finalize()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{kind} of {train} + {test} samples, {mark}"))
    }

    /// What tells it from other data in the same place, on another host: all of CIFAR-10's bytes; of images the names and sizes of all,
    /// and the bytes of as many as take a moment to read, spread over all of them.
    pub fn checksum(&self) -> Result<String, TrainError> {
        let mut digest = Sha256::new();
        match &self.kind {
            Kind::Synthetic { .. } => return Ok(self.name.clone()),
            Kind::Cifar10(folder) => cifar10::checksum(folder, &mut digest)?,
            Kind::Images(folder) => {
                for split in [Split::Train, Split::Test] {
                    images::listing::Listing::open(folder, split)?.checksum(&mut digest)?;
                }
            }
        }
        Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The folder that it is read from.
    fn folder(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Synthetic { .. } => None,
            Kind::Cifar10(folder) | Kind::Images(folder) => Some(folder),
        }
    }

    /// The name of the same data in another folder.
    fn name_in(&self, folder: &Path) -> String {
        match &self.kind {
            Kind::Synthetic { .. } => self.name.clone(),
            Kind::Cifar10(_) => format!("cifar10:{}", folder.display()),
            Kind::Images(_) => format!("images:{}", folder.display()),
        }
    }

    /// Its name with a path that is right from anywhere.
    pub fn absolute(&self) -> String {
        let folder = self.folder().and_then(|folder| std::path::absolute(folder).ok());
        folder.map_or_else(|| self.name.clone(), |folder| self.name_in(&folder))
    }

    /// Its name with a path from `folder`, whose parent exists; `None` where it is not read from a folder.
    pub(crate) fn relative_to(&self, folder: &Path) -> Option<String> {
        let data = self.folder()?.canonicalize().ok()?;
        let from = folder.parent()?.canonicalize().ok()?.join(folder.file_name()?);
        Some(self.name_in(&relative(&from, &data)))
    }

    /// The absolute name of data that `name` says relative to `folder`, if it is there.
    pub(crate) fn found_from(folder: &Path, name: &str) -> Option<String> {
        let data: Self = name.parse().ok()?;
        let path = folder.join(data.folder()?).canonicalize().ok()?;
        Some(data.name_in(&path))
    }

    /// Refuses a network that cannot tell all the classes apart.
    pub fn check_classes(&self, told: usize) -> Result<(), TrainError> {
        let classes = self.classes()?;
        if told < classes && !self.is_synthetic() {
            let why = format!("it has {classes} classes, but --classes says {told}");
            return Err(TrainError::Data { name: self.name.clone(), why });
        }
        Ok(())
    }
}

impl FromStr for Data {
    type Err = TrainError;

    fn from_str(name: &str) -> Result<Self, TrainError> {
        let bad = |why: &str| TrainError::Data { name: name.into(), why: why.into() };
        let kind = match name.split_once(':') {
            Some((_, "")) => return Err(bad("nothing follows the colon")),
            Some(("synthetic", kind)) => parse_synthetic(kind).map_err(bad)?,
            Some(("cifar10", folder)) => Kind::Cifar10(folder.into()),
            Some(("images", folder)) => Kind::Images(folder.into()),
            _ => return Err(bad("there is no such data")),
        };
        Ok(Self { name: name.into(), kind })
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The way from one absolute path to another.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let common = from.components().zip(to.components()).take_while(|(from, to)| from == to).count();
    let up = from.components().skip(common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(common)).collect()
}

fn parse_synthetic(kind: &str) -> Result<Kind, &'static str> {
    let (shape, classes, samples) = match kind {
        "cifar10" => (Shape::new(32, 32, 3), 10, [50_000, 10_000]),
        "imagenet" => (Shape::new(224, 224, 3), 1000, [1_281_167, 1_000]),
        size => {
            let sides: Option<Vec<usize>> = size.split('x').map(|s| s.parse().ok()).collect();
            match sides.as_deref() {
                Some(&[h, w, c]) => (Shape::new(h, w, c), DEFAULT_CLASSES, [50_000, 10_000]),
                _ => return Err("it is neither a known set nor a size"),
            }
        }
    };
    if shape.is_empty() || shape.h.max(shape.w).max(shape.c) > MAX_SIDE {
        return Err("a side is 0 or above 16384");
    }
    Ok(Kind::Synthetic { shape, classes, samples })
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Standard => "standard",
        })
    }
}

impl FromStr for Augment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "standard" => Ok(Self::Standard),
            _ => Err(format!("unknown augmentation '{text}'; use none or standard")),
        }
    }
}

/// A batch in memory.
#[derive(Default)]
struct Batch {
    images: Vec<f32>,
    labels: Vec<u32>,
}

impl Batch {
    fn new(samples: usize, values: usize) -> Self {
        Self { images: vec![0.0; samples * values], labels: vec![0; samples] }
    }

    fn samples(&self) -> paceline_engine::Samples<'_> {
        paceline_engine::Samples { images: &self.images, labels: &self.labels }
    }
}

#[cfg(test)]
mod tests;
