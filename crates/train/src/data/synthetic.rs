//! Made pictures.
//!
//! They are learnable: every class has a smooth pattern of its own, which shows in each of its pictures under noise. Values have
//! about mean 0 and variance 1. Each shard has a small pool of batches, made from the seed when it is first needed, which its steps
//! then go round; loading one is handing over a pointer, so the `load` phase of a synthetic run is close to nothing.

use std::f32::consts::TAU;

use paceline_model::Shape;

use super::order::{Course, Drawn, Turn};
use super::{Batch, Draw};

/// Most batches in a pool.
pub const POOL: usize = 8;

/// A pool stops growing at this many values, 32 MB.
const POOL_VALUES: usize = 8 << 20;

/// All shards' pools together, at this many, 256 MB. It is all shards, not a worker's, so that a shard's pool does not depend on
/// who runs it.
const ALL_VALUES: usize = 64 << 20;

/// Strength of a class's pattern and of the noise over it; their squares sum to 1.
const PATTERN: f32 = 0.8;
const NOISE: f32 = 0.6;

/// Keeps the draws of classes apart from those of pictures.
const CLASSES: u64 = 0xc1a5;

/// Keeps the test set's pictures apart from those of the shards.
const TEST: u64 = 0x7e57 << 32;

/// What is drawn: pictures of a size, in so many classes.
#[derive(Clone, Copy)]
pub struct Motif {
    pub shape: Shape,
    pub classes: usize,
    pub seed: u64,
}

/// The pools of all shards. Shards see the same classes in different pictures.
pub struct Pools {
    motif: Motif,
    course: Course,
    /// Batches of a pool.
    each: usize,
    /// Each shard's; empty until it is needed.
    pools: Vec<Vec<Batch>>,
}

impl Pools {
    pub fn new(motif: Motif, course: Course) -> Self {
        let values = motif.shape.len() * course.batch;
        let each =
            pool_size(values).min(ALL_VALUES / values.max(1) / course.all_shards.max(1) as usize).max(1);
        let pools = (0..course.all_shards).map(|_| Vec::new()).collect();
        Self { motif, course, each, pools }
    }

    /// Makes what a shard will ever be handed, unless it is there.
    pub fn prepare(&mut self, shard: u32) {
        let pool = &mut self.pools[shard as usize];
        if pool.is_empty() {
            *pool = self.motif.draw_pool(u64::from(shard), self.each, self.course.batch);
        }
    }

    /// The batch of a turn.
    pub fn batch(&mut self, turn: Turn) -> &Batch {
        self.prepare(turn.shard);
        &self.pools[turn.shard as usize][self.number(turn)]
    }

    /// The samples of a turn. Made pictures repeat within what would be an epoch, so they have none.
    pub fn drawn(&self, turn: Turn) -> impl Iterator<Item = Drawn> {
        let first = (turn.shard as usize * self.each + self.number(turn)) * self.course.batch;
        (first as u32..).take(self.course.batch).map(|index| Drawn { epoch: 0, index })
    }

    /// Which of its pool's batches a turn gets.
    fn number(&self, turn: Turn) -> usize {
        let count = turn.step * self.course.passes as u64 + turn.pass as u64;
        (count % self.each as u64) as usize
    }
}

/// Batches in one pool.
fn pool_size(values: usize) -> usize {
    (POOL_VALUES / values.max(1)).clamp(1, POOL)
}

impl Motif {
    /// The pictures of a test set.
    pub fn draw_test(&self, batch: usize) -> Vec<Batch> {
        self.draw_pool(TEST, pool_size(self.shape.len() * batch), batch)
    }

    fn draw_pool(&self, key: u64, batches: usize, batch: usize) -> Vec<Batch> {
        let mut draw = Draw::new(&[self.seed, key]);
        (0..batches).map(|_| self.draw_batch(&mut draw, batch)).collect()
    }

    fn draw_batch(&self, draw: &mut Draw, samples: usize) -> Batch {
        let mut batch = Batch::new(samples, self.shape.len());
        for (image, label) in batch.images.chunks_exact_mut(self.shape.len()).zip(&mut batch.labels) {
            *label = draw.below(self.classes) as u32;
            self.draw_image(image, *label, draw);
        }
        batch
    }

    /// A plane wave a channel, its direction, length and phase the class's own, and uniform noise over it.
    fn draw_image(&self, image: &mut [f32], class: u32, draw: &mut Draw) {
        let shape = self.shape;
        for channel in 0..shape.c {
            let mut class = Draw::new(&[self.seed, u64::from(class), channel as u64, CLASSES]);
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
}

#[cfg(test)]
mod tests;
