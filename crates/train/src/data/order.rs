//! Which samples a shard gets, and when.

use std::ops::Range;

use super::Draw;

/// Keeps the draws of orders apart from others.
const ORDER: u64 = 0x0bde;

/// A sample's place in the stream: its number in the data set, and the epoch in which it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    pub epoch: u64,
    pub index: u32,
}

/// The stream of samples. It remembers the order of one epoch, so it is quick where positions rise.
pub struct Order {
    seed: u64,
    epoch: Option<u64>,
    permutation: Vec<u32>,
}

impl Order {
    pub fn new(seed: u64, samples: usize) -> Self {
        Self { seed, epoch: None, permutation: (0..samples as u32).collect() }
    }

    /// The sample at a position of the stream.
    pub fn at(&mut self, position: u64) -> Drawn {
        let samples = self.permutation.len() as u64;
        let epoch = position / samples;
        if self.epoch != Some(epoch) {
            self.shuffle(epoch);
        }
        Drawn { epoch, index: self.permutation[(position % samples) as usize] }
    }

    /// Fisher and Yates, from the same start each time.
    fn shuffle(&mut self, epoch: u64) {
        let mut draw = Draw::new(&[self.seed, epoch, ORDER]);
        for (place, index) in self.permutation.iter_mut().zip(0..) {
            *place = index;
        }
        for place in (1..self.permutation.len()).rev() {
            self.permutation.swap(place, draw.below(place + 1));
        }
        self.epoch = Some(epoch);
    }
}

/// How the stream is cut into steps, shards and passes, and which of them are a rank's.
#[derive(Clone, Debug)]
pub struct Course {
    pub batch: usize,
    pub passes: usize,
    pub shards: Range<u32>,
    pub all_shards: u32,
    pub from_step: u64,
}

/// One pass of one shard in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub step: u64,
    pub shard: u32,
    pub pass: usize,
}

impl Course {
    /// What a rank's batch with this number is for.
    pub fn turn(&self, number: u64) -> Turn {
        let passes = self.passes as u64;
        let in_step = self.shards.len() as u64 * passes;
        let within = number % in_step;
        Turn {
            step: self.from_step + number / in_step,
            shard: self.shards.start + (within / passes) as u32,
            pass: (within % passes) as usize,
        }
    }

    /// Where in the stream its samples begin.
    pub fn position(&self, turn: Turn) -> u64 {
        let passes = self.passes as u64;
        let shard = turn.step * u64::from(self.all_shards) + u64::from(turn.shard);
        (shard * passes + turn.pass as u64) * self.batch as u64
    }
}
