//! Pictures and labels.
//!
//! Synthetic data is learnable: every class has a smooth pattern of its own, which shows in each of its pictures under
//! noise. Values have about mean 0 and variance 1. It is made from a seed, a small pool of batches before the first step, which the steps
//! then go round; loading one is handing over a pointer, so the `load` phase of a synthetic run is close to nothing.

use std::f32::consts::TAU;
use std::str::FromStr;

use paceline_engine::Samples;
use paceline_model::Shape;
use paceline_record::Rank;

use crate::{Job, TrainError};

/// What `--data` names: the form of its pictures, and how many classes they are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Height, width and channels of a picture.
    pub shape: Shape,
    /// Classes.
    pub classes: usize,
}

/// Longest side of a picture.
pub const MAX_SIDE: usize = 16_384;

const DEFAULT_CLASSES: usize = 10;

impl Data {
    /// The same with pictures of another size and another number of classes.
    pub fn resized(self, (h, w): (usize, usize), classes: usize) -> Self {
        Self { shape: Shape::new(h, w, self.shape.c), classes }
    }
}

impl FromStr for Data {
    type Err = TrainError;

    fn from_str(name: &str) -> Result<Self, TrainError> {
        let bad = |why| TrainError::Data { name: name.into(), why };
        let kind = name.strip_prefix("synthetic:").ok_or_else(|| bad("only synthetic data is there yet"))?;
        let (shape, classes) = match kind {
            "cifar10" => (Shape::new(32, 32, 3), 10),
            "imagenet" => (Shape::new(224, 224, 3), 1000),
            size => {
                let sides: Option<Vec<usize>> = size.split('x').map(|s| s.parse().ok()).collect();
                match sides.as_deref() {
                    Some(&[h, w, c]) => (Shape::new(h, w, c), DEFAULT_CLASSES),
                    _ => return Err(bad("it is neither a known set nor a size")),
                }
            }
        };
        if shape.is_empty() || shape.h.max(shape.w).max(shape.c) > MAX_SIDE {
            return Err(bad("a side is 0 or above 16384"));
        }
        Ok(Self { shape, classes })
    }
}

/// Most batches in a pool.
const POOL: usize = 8;

/// A pool stops growing at this many values, 32 MB.
const POOL_VALUES: usize = 8 << 20;

/// Strength of a class's pattern and of the noise over it; their squares sum to 1.
const PATTERN: f32 = 0.8;
const NOISE: f32 = 0.6;

struct Batch {
    images: Vec<f32>,
    labels: Vec<u32>,
}

/// Hands out batches, round and round.
pub struct Loader {
    pool: Vec<Batch>,
    next: usize,
}

impl Loader {
    /// Makes a rank's share of the data. Ranks see the same classes in different pictures.
    pub fn new(data: &Data, job: &Job, rank: Rank) -> Self {
        let values = data.shape.len() * job.batch;
        let batches = (POOL_VALUES / values.max(1)).clamp(1, POOL);
        let mut draw = Draw::new(&[job.seed, u64::from(rank.0)]);
        let pool = (0..batches).map(|_| draw_batch(data, job, &mut draw));
        Self { pool: pool.collect(), next: 0 }
    }

    /// The next batch.
    pub fn next_batch(&mut self) -> Samples<'_> {
        let batch = &self.pool[self.next];
        self.next = (self.next + 1) % self.pool.len();
        Samples { images: &batch.images, labels: &batch.labels }
    }
}

fn draw_batch(data: &Data, job: &Job, draw: &mut Draw) -> Batch {
    let mut images = vec![0.0; data.shape.len() * job.batch];
    let mut labels = vec![0; job.batch];
    for (image, label) in images.chunks_exact_mut(data.shape.len()).zip(&mut labels) {
        *label = draw.below(data.classes) as u32;
        draw_image(image, data.shape, (job.seed, *label), draw);
    }
    Batch { images, labels }
}

/// A plane wave a channel, its direction, length and phase the class's own, and uniform noise over it.
fn draw_image(image: &mut [f32], shape: Shape, (seed, class): (u64, u32), draw: &mut Draw) {
    for channel in 0..shape.c {
        let mut class = Draw::new(&[seed, u64::from(class), channel as u64, CLASSES]);
        let (down, across) = (1 + class.below(4), class.below(5));
        let phase = TAU * class.unit();
        // cos(a + b) from the cosines and sines of a and b: a few hundred of them instead of one a pixel.
        let wave = |turns: usize, side: usize, phase: f32| -> Vec<(f32, f32)> {
            let angle = |i| TAU * turns as f32 * i as f32 / side as f32 + phase;
            let point = |i: usize| (angle(i).cos(), angle(i).sin());
            (0..side).map(point).collect()
        };
        let (rows, columns) = (wave(down, shape.h, phase), wave(across, shape.w, 0.0));
        let scale = PATTERN * 2f32.sqrt();
        for (row, (cos_a, sin_a)) in image.chunks_exact_mut(shape.w * shape.c).zip(rows) {
            for (pixel, &(cos_b, sin_b)) in row.chunks_exact_mut(shape.c).zip(&columns) {
                let noise = NOISE * 12f32.sqrt() * (draw.unit() - 0.5);
                pixel[channel] = scale * (cos_a * cos_b - sin_a * sin_b) + noise;
            }
        }
    }
}

/// Keeps the draws of classes apart from those of pictures.
const CLASSES: u64 = 0xc1a5;

/// Seeded random numbers: the generator of Steele, Lea and Flood (2014).
pub(crate) struct Draw(u64);

impl Draw {
    /// A stream that depends on each of the keys and on their order.
    pub fn new(keys: &[u64]) -> Self {
        let mut draw = Self(0);
        for key in keys {
            draw.0 = draw.next().wrapping_add(*key);
        }
        draw.0 = draw.next();
        draw
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// From 0 up to 1, 24 bits of it.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Standard normal (Box and Muller 1958); less than six away from 0.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * f64::from(1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * f64::from(self.unit())).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::job;

    fn loader(seed: u64, rank: u32) -> Loader {
        let job = Job { seed, batch: 64, ..job("case".as_ref()) };
        let data: Data = job.data.parse().expect("a known name");
        Loader::new(&data, &job, Rank(rank))
    }

    #[test]
    fn names_say_form_and_classes() {
        for (name, shape, classes) in [
            ("synthetic:cifar10", Shape::new(32, 32, 3), 10),
            ("synthetic:imagenet", Shape::new(224, 224, 3), 1000),
            ("synthetic:96x64x3", Shape::new(96, 64, 3), 10),
        ] {
            assert_eq!(name.parse::<Data>().expect(name), Data { shape, classes });
        }
    }

    #[test]
    fn bad_names_are_refused_with_the_good_ones() {
        for name in ["", "cifar10", "synthetic:", "synthetic:32", "synthetic:0x3x3", "synthetic:9x99999x3"] {
            let message = name.parse::<Data>().expect_err(name).to_string();
            assert!(message.contains("synthetic:cifar10"), "{message}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_pictures_and_others_give_others() {
        let (mut a, mut b) = (loader(1, 0), loader(1, 0));
        assert_eq!(a.next_batch().images, b.next_batch().images);
        assert_ne!(a.next_batch().images, loader(2, 0).next_batch().images);
        assert_ne!(loader(1, 0).next_batch().images, loader(1, 1).next_batch().images);
    }

    #[test]
    fn values_have_about_mean_zero_and_variance_one() {
        let mut loader = loader(3, 0);
        let images = loader.next_batch().images;
        let n = images.len() as f32;
        let mean = images.iter().sum::<f32>() / n;
        let variance = images.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n;
        assert!(mean.abs() < 0.05, "{mean}");
        assert!((variance - 1.0).abs() < 0.1, "{variance}");
    }

    #[test]
    fn the_class_shows_in_the_picture() {
        // The mean picture of each class, from the first batches, tells the class of every picture of the last.
        let mut loader = loader(5, 0);
        let len = 32 * 32 * 3;
        let mut means = vec![vec![0.0f32; len]; 10];
        for _ in 0..POOL - 1 {
            let batch = loader.next_batch();
            for (image, &label) in batch.images.chunks_exact(len).zip(batch.labels) {
                for (mean, value) in means[label as usize].iter_mut().zip(image) {
                    *mean += value;
                }
            }
        }
        let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>().sqrt();
        let batch = loader.next_batch();
        for (image, &label) in batch.images.chunks_exact(len).zip(batch.labels) {
            let likeness = |class: &usize| -> f32 {
                let mean = &means[*class];
                mean.iter().zip(image).map(|(a, b)| a * b).sum::<f32>() / norm(mean)
            };
            let best = (0..10).max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            assert_eq!(best, Some(label as usize));
        }
    }

    #[test]
    fn a_pool_of_large_pictures_is_small() {
        let data: Data = "synthetic:imagenet".parse().expect("a known name");
        let job = Job { batch: 64, ..job("case".as_ref()) };
        assert_eq!(Loader::new(&data, &job, Rank(0)).pool.len(), 1);
    }

    #[test]
    fn the_pool_goes_round() {
        let mut loader = loader(1, 0);
        let first = loader.next_batch().labels.to_vec();
        for _ in 1..POOL {
            loader.next_batch();
        }
        assert_eq!(loader.next_batch().labels, first);
    }
}
