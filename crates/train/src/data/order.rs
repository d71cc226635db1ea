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

/// One pass of one shard in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// The step.
    pub step: u64,
    /// The shard, among those of all ranks.
    pub shard: u32,
    /// The pass, from 0.
    pub pass: usize,
}

/// The turns of a rank that runs the same shards in each step.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// The shards, among those of all ranks.
    pub shards: Range<u32>,
    /// Passes of a shard in a step.
    pub passes: usize,
    /// Steps done before.
    pub from_step: u64,
}

impl Sequence {
    /// The turn with this number, from 0.
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
}

/// How the stream is cut into steps, shards and passes.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    pub batch: usize,
    pub passes: usize,
    pub all_shards: u32,
}

impl Course {
    /// Where in the stream a turn's samples are.
    pub fn positions(&self, turn: Turn) -> Range<u64> {
        let shard = turn.step * u64::from(self.all_shards) + u64::from(turn.shard);
        let before = shard * self.passes as u64 + turn.pass as u64;
        before * self.batch as u64..(before + 1) * self.batch as u64
    }
}
