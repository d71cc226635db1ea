//! Where samples are read from.

use std::sync::Arc;

use super::Draw;
use super::cifar10::{self, Cifar10};
use super::images::{self, Listing};
use crate::TrainError;

/// Keeps the draws of augmentation apart from others.
const AUGMENT: u64 = 0xa0c3;

/// Open files, shared by all who read them.
#[derive(Clone)]
pub enum Source {
    Cifar10(Arc<Cifar10>),
    Images(Arc<Listing>),
}

/// Reads samples one at a time, with memory of its own.
pub trait Reader: Send {
    /// Writes a sample's picture, normalised, and returns its label.
    fn read(&mut self, index: u32, look: Look, image: &mut [f32]) -> Result<u32, TrainError>;
}

/// How a picture is looked at.
pub enum Look {
    /// As it is.
    Plain,
    /// Changed at random, by these numbers.
    Varied(Draw),
}

impl Look {
    /// Changes that depend on the seed, the epoch and the sample alone.
    pub fn varied(seed: u64, epoch: u64, index: u32) -> Self {
        Self::Varied(Draw::new(&[seed, epoch, u64::from(index), AUGMENT]))
    }
}

impl Source {
    /// Samples.
    pub fn len(&self) -> usize {
        match self {
            Self::Cifar10(files) => files.len(),
            Self::Images(files) => files.len(),
        }
    }

    /// Somebody who reads pictures of a size.
    pub fn reader(&self, input: (usize, usize)) -> Box<dyn Reader> {
        match self {
            Self::Cifar10(files) => Box::new(cifar10::Pictures::new(files.clone(), input)),
            Self::Images(files) => Box::new(images::Pictures::new(files.clone(), input)),
        }
    }
}
