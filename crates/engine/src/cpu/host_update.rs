//! The update rule by itself, on values in the host's memory that no program needs to own.

use std::ops::Range;
use std::sync::Arc;

use super::memory::View;
use super::pool::{Placement, Pool, allowed_cores};
use super::simd::{Simd, settle_streams};
use super::update::{Moved, Update};
use crate::request::{check_len, check_range};
use crate::{EngineError, Optimizer, Precision, Region};

/// Memory bandwidth bounds the update: more threads than this do not make it faster.
const MOST_THREADS: usize = 8;

/// Values whose gradients are asked for at once, 16 KB of them, so that they stay in the first cache. With gradients of four
/// shards from memory, blocks of 2048 to 32768 values took times within 5 % of each other, and blocks of 1024 took 10 to 15 % more.
const BLOCK: usize = 4096;

/// Blocks of a task.
const BLOCKS: usize = 4;

/// The update rule, and the threads that compute it ([`Program::host_update`](crate::Program::host_update)).
pub struct HostUpdate {
    optimizer: Optimizer,
    pool: Arc<Pool>,
    simd: Simd,
}

/// An update of some values from one place to another.
pub struct Transition<'a> {
    /// Learning rate.
    pub learning_rate: f32,
    /// Updates so far, this one included.
    pub updates: u64,
    /// The values, by their place in the regions.
    pub range: Range<usize>,
    /// Where all parameters are, and then each of the [values that the rule keeps](Optimizer::state_per_value) of them.
    pub from: &'a [Region],
    /// Where the new ones go, in the same order; the same memory, or other memory.
    pub into: &'a [Region],
    /// Writes the mean gradients of a part of the range. Several threads call it at once.
    pub gradients: &'a (dyn Fn(Range<usize>, &mut [f32]) + Sync),
}

impl HostUpdate {
    /// With threads of its own.
    pub(crate) fn new(optimizer: Optimizer, simd: Option<Simd>) -> Result<Self, EngineError> {
        let simd = Simd::choose(simd, Precision::Fp32)?;
        let threads = allowed_cores().len().clamp(1, MOST_THREADS);
        Ok(Self::on(Arc::new(Pool::new(threads, Placement::Anywhere)?), optimizer, simd))
    }

    /// On threads that others use at other times.
    pub(crate) fn on(pool: Arc<Pool>, optimizer: Optimizer, simd: Simd) -> Self {
        Self { optimizer, pool, simd }
    }

    /// Applies the rule, with the same bits as [`Program::apply`](crate::Program::apply) on the host. It may be called while a
    /// program whose threads it uses calls `ready`, but not while that program computes. It allocates nothing.
    ///
    /// # Safety
    /// All regions must be alive. Nobody may write to the range of `from` meanwhile, or use that of `into`.
    pub unsafe fn run(&self, transition: &Transition<'_>) -> Result<(), EngineError> {
        let Transition { learning_rate, updates, range, from, into, gradients } = transition;
        let values = 1 + self.optimizer.state_per_value();
        check_len("regions to update from", values, from.len())?;
        check_len("regions to update into", values, into.len())?;
        check_range(range, from[0].len)?;
        let moved = |number: usize| -> Result<Option<Moved>, EngineError> {
            let Some((from, into)) = from.get(number).zip(into.get(number)) else { return Ok(None) };
            let cut = |region: &Region| {
                Ok::<_, EngineError>(View::of_region(*region, range.end)?.part(range.start, range.len()))
            };
            Ok(Some(Moved { from: cut(from)?, into: cut(into)? }))
        };
        let params = moved(0)?.expect("invariant: there are parameters");
        let update = Update {
            optimizer: self.optimizer,
            learning_rate: *learning_rate,
            count: *updates as i32,
            params,
            // Each block has its own.
            grads: params.from,
            first: moved(1)?,
            second: moved(2)?,
        };
        let len = range.len();
        self.pool.each(len.div_ceil(BLOCKS * BLOCK), |task, _| {
            let mut buffer = [0.0; BLOCK];
            let first = task * BLOCKS * BLOCK;
            for offset in (first..len.min(first + BLOCKS * BLOCK)).step_by(BLOCK) {
                let buffer = &mut buffer[..BLOCK.min(len - offset)];
                gradients(range.start + offset..range.start + offset + buffer.len(), buffer);
                let block = Update { grads: View::of_slice(buffer), ..update.of(offset, buffer.len()) };
                // SAFETY: the instruction set was checked; the caller vouches for the regions, and each block is one task's.
                unsafe { self.simd.run(block) };
            }
            settle_streams();
        });
        Ok(())
    }

    /// Applies the rule to values whose gradients are ready, on all threads.
    ///
    /// # Safety
    /// The views must be alive, and nobody else's meanwhile.
    pub(crate) unsafe fn apply(&self, update: Update) {
        update.run(&self.pool, self.simd);
    }
}
