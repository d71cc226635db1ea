//! Batches by step, shard and pass: read ahead of time by threads, or taken from a pool.

use std::path::PathBuf;

use paceline_engine::Samples;
use paceline_model::Shape;
use paceline_record::Nanos;

use super::log::SampleLog;
use super::order::{Course, Order, Turn};
use super::source::Source;
use super::synthetic::{Motif, Pools};
use super::{Augment, Data, Split};
use crate::TrainError;

mod ring;
use ring::{Recipe, Ring};

/// All that determines what a turn's batch is, and how it is loaded.
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
    /// Shards of all ranks.
    pub all_shards: u32,
    /// What is done to pictures.
    pub augment: Augment,
    /// Threads that load.
    pub threads: usize,
    /// Where [`Loader::log`] writes, for debugging.
    pub log: Option<PathBuf>,
}

/// Hands out the batch of any turn. It loads ahead of time what it is told to expect.
pub struct Loader {
    course: Course,
    supply: Supply,
    log: Option<Log>,
}

enum Supply {
    Made(Pools),
    Read(Ring),
}

/// The log, and of samples that are read their order, from which it knows them.
struct Log {
    file: SampleLog,
    order: Order,
}

impl Loader {
    /// Opens the data.
    pub fn open(loading: Loading) -> Result<Self, TrainError> {
        let Loading { data, input, classes, seed, batch, passes, all_shards, augment, threads, log } =
            loading;
        data.check_classes(classes)?;
        let course = Course { batch, passes, all_shards };
        let shape = Shape::new(input.0, input.1, data.shape().c);
        let source = data.open(Split::Train)?;
        let log = match log {
            Some(path) => {
                let samples = source.as_ref().map_or(0, Source::len);
                Some(Log { file: SampleLog::open(&path)?, order: Order::new(seed, samples) })
            }
            None => None,
        };
        let supply = match source {
            None => Supply::Made(Pools::new(Motif { shape, classes, seed }, course)),
            Some(source) => {
                Supply::Read(Ring::start(&Recipe { source, shape, seed, course, augment }, threads)?)
            }
        };
        Ok(Self { course, supply, log })
    }

    /// How many upcoming turns it loads ahead of time; more than that may be named.
    pub fn depth(&self) -> usize {
        match &self.supply {
            Supply::Made(_) => 0,
            Supply::Read(ring) => ring.depth(),
        }
    }

    /// Begins to load what will be asked for first.
    pub fn expect(&mut self, upcoming: &[Turn]) {
        match &mut self.supply {
            Supply::Made(pools) => upcoming.iter().for_each(|turn| pools.prepare(turn.shard)),
            Supply::Read(ring) => ring.expect(upcoming),
        }
    }

    /// The batch of a turn. It waits only where it is not ready: what nobody foresaw is loaded next, before all others.
    /// `upcoming` are the turns that will probably be asked for after it, in order; what is ready and not among them is given
    /// up.
    pub fn batch(&mut self, turn: Turn, upcoming: &[Turn]) -> Result<Samples<'_>, TrainError> {
        let batch = match &mut self.supply {
            Supply::Made(pools) => pools.batch(turn),
            Supply::Read(ring) => ring.batch(turn, upcoming)?,
        };
        Ok(batch.samples())
    }

    /// Writes to the log which samples a turn has; nothing where no log is kept.
    pub fn log(&mut self, turn: Turn) -> Result<(), TrainError> {
        let Some(Log { file, order }) = &mut self.log else { return Ok(()) };
        match &self.supply {
            Supply::Made(pools) => file.append(turn, pools.drawn(turn)),
            Supply::Read(_) => {
                file.append(turn, self.course.positions(turn).map(|position| order.at(position)))
            }
        }
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
pub(super) mod tests;
