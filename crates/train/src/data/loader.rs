//! Batches for a rank's steps: made ahead of time by threads, or taken from a pool.

use std::ops::Range;
use std::path::PathBuf;

use paceline_engine::Samples;
use paceline_model::Shape;
use paceline_record::Nanos;

use super::log::SampleLog;
use super::order::Course;
use super::synthetic::{Motif, Pools};
use super::{Augment, Batch, Data, Split};
use crate::TrainError;

mod ring;
use ring::{Recipe, Ring};

/// All that determines what a rank is handed.
#[derive(Clone, Debug)]
pub struct Loading {
    /// The data.
    pub data: Data,
    /// Height and width of the pictures that the network reads.
    pub input: (usize, usize),
    /// Classes that the network tells apart.
    pub classes: usize,
    /// Seed of order, augmentation and made pictures.
    pub seed: u64,
    /// Samples of one pass.
    pub batch: usize,
    /// Passes of a shard in a step.
    pub passes: usize,
    /// This rank's shards of each global batch.
    pub shards: Range<u32>,
    /// Shards of all ranks.
    pub all_shards: u32,
    /// Steps done before.
    pub from_step: u64,
    /// What is done to pictures.
    pub augment: Augment,
    /// Threads that load.
    pub threads: usize,
    /// Where to note which samples were handed out, for debugging.
    pub log: Option<PathBuf>,
}

/// Hands out the batches of a rank's steps, shard by shard, pass by pass.
pub struct Loader {
    course: Course,
    supply: Supply,
    log: Option<SampleLog>,
    /// Batches handed out.
    number: u64,
}

enum Supply {
    Made(Pools),
    Read(Ring),
}

impl Loader {
    /// Opens the data and begins to load.
    pub fn open(loading: Loading) -> Result<Self, TrainError> {
        let Loading { data, input, classes, seed, batch, passes, shards, all_shards, from_step, .. } =
            loading;
        data.check_classes(classes)?;
        let course = Course { batch, passes, shards, all_shards, from_step };
        let shape = Shape::new(input.0, input.1, data.shape().c);
        let supply = match data.open(Split::Train)? {
            None => Supply::Made(Pools::new(&Motif { shape, classes, seed }, &course)),
            Some(source) => {
                let recipe = Recipe { source, shape, seed, course: course.clone(), augment: loading.augment };
                Supply::Read(Ring::start(recipe, loading.threads)?)
            }
        };
        let log = loading.log.map(|path| SampleLog::open(&path)).transpose()?;
        Ok(Self { course, supply, log, number: 0 })
    }

    /// The next batch. It waits only where none is ready.
    pub fn next_batch(&mut self) -> Result<Samples<'_>, TrainError> {
        let turn = self.course.turn(self.number);
        let batch: &Batch = match &mut self.supply {
            Supply::Made(pools) => pools.batch(turn),
            Supply::Read(ring) => ring.next(self.number)?,
        };
        self.number += 1;
        if let Some(log) = &mut self.log {
            log.append(turn, &batch.drawn)?;
        }
        Ok(batch.samples())
    }

    /// Processor time of the threads that load, since this was last asked.
    pub fn cpu(&mut self) -> Nanos {
        match &mut self.supply {
            Supply::Made(_) => Nanos(0),
            Supply::Read(ring) => ring.cpu(),
        }
    }
}

#[cfg(test)]
mod tests;
