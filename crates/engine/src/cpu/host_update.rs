//! The update rule alone, for parameters that live on the host while a device computes.

use super::flat::Update;
use super::memory::{Memory, View};
use super::pool::{Placement, Pool, allowed_cores};
use super::simd::Simd;
use crate::{EngineError, Optimizer, Place, Region};

/// Memory bandwidth bounds the update: more threads than this do not make it faster.
const MOST_THREADS: usize = 8;

/// The rule, its state, and the threads that run it.
pub(crate) struct HostUpdate {
    optimizer: Optimizer,
    state: Vec<Memory>,
    pool: Pool,
    simd: Simd,
    len: usize,
}

/// An update, of which each part of the parameters gets its own call.
#[derive(Clone, Copy)]
pub(crate) struct UpdateStep {
    pub learning_rate: f32,
    /// Updates so far, this one included.
    pub count: i32,
}

impl HostUpdate {
    pub fn new(optimizer: Optimizer, len: usize, simd: Option<Simd>) -> Result<Self, EngineError> {
        let simd = Simd::choose(simd)?;
        let state = (0..optimizer.state_per_value()).map(|_| Memory::new(len)).collect::<Result<_, _>>()?;
        let threads = allowed_cores().len().clamp(1, MOST_THREADS);
        Ok(Self { optimizer, state, pool: Pool::new(threads, Placement::Anywhere)?, simd, len })
    }

    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// One of the values that the rule keeps, for all parameters.
    pub fn state(&mut self, number: usize) -> Option<Region> {
        let memory = self.state.get_mut(number)?;
        Some(Region { place: Place::Host, address: memory.view().ptr() as u64, len: self.len })
    }

    /// Applies the rule to some parameters, whose state begins at `first`.
    ///
    /// # Safety
    /// Both regions must be alive, on the host, and nobody else's meanwhile.
    pub unsafe fn apply(
        &mut self,
        step: UpdateStep,
        parameters: Region,
        gradients: Region,
        first: usize,
    ) -> Result<(), EngineError> {
        let UpdateStep { learning_rate, count } = step;
        let len = parameters.len;
        let mut state = self.state.iter_mut().map(|memory| memory.view().part(first, len));
        let update = Update {
            optimizer: self.optimizer,
            learning_rate,
            count,
            params: View::of_region(parameters, len)?,
            grads: View::of_region(gradients, len)?,
            first: state.next(),
            second: state.next(),
        };
        drop(state);
        update.run(&self.pool, self.simd);
        Ok(())
    }
}
