//! The pictures that were held back.

use paceline_engine::Samples;
use paceline_model::Shape;

use super::source::{Look, Reader};
use super::synthetic::Motif;
use super::{Batch, Data, Split};
use crate::TrainError;

/// The test set, batch by batch, in its own order.
pub struct TestSet {
    len: usize,
    batch: usize,
    supply: Supply,
}

enum Supply {
    Made(Vec<Batch>),
    Read { reader: Box<dyn Reader>, batch: Batch },
}

impl TestSet {
    /// Opens it for a network that reads pictures of size `input` and tells `classes` apart.
    pub fn open(
        data: &Data,
        input: (usize, usize),
        classes: usize,
        seed: u64,
        batch: usize,
    ) -> Result<Self, TrainError> {
        data.check_classes(classes)?;
        let shape = Shape::new(input.0, input.1, data.shape().c);
        let (len, supply) = match data.open(Split::Test)? {
            None => {
                let motif = Motif { shape, classes, seed };
                (data.samples(Split::Test)?, Supply::Made(motif.draw_test(batch)))
            }
            Some(source) => {
                let reader = source.reader(input);
                (source.len(), Supply::Read { reader, batch: Batch::new(batch, shape.len()) })
            }
        };
        Ok(Self { len, batch, supply })
    }

    /// Samples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A full batch from sample `first` on, and how many of its samples count: beyond the last the batch repeats it.
    pub fn batch(&mut self, first: usize) -> Result<(Samples<'_>, usize), TrainError> {
        let live = self.len.saturating_sub(first).min(self.batch);
        match &mut self.supply {
            Supply::Made(pool) => Ok((pool[first / self.batch % pool.len()].samples(), live)),
            Supply::Read { reader, batch } => {
                let values = batch.images.len() / batch.labels.len();
                let samples = batch.images.chunks_exact_mut(values).zip(&mut batch.labels);
                for (index, (image, label)) in (first..).zip(samples) {
                    let index = index.min(self.len - 1);
                    *label = reader.read(index as u32, Look::Plain, image)?;
                }
                Ok((batch.samples(), live))
            }
        }
    }
}
