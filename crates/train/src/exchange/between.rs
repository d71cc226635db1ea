//! What ranks tell each other between steps, when no gradient is under way: the memory of their gradients carries it.

use paceline_record::Step;

use super::*;
use crate::strategy::Updates;

impl Exchange {
    /// The running statistics of all shards, in their order; of this rank's alone, where ranks go their own ways.
    pub fn statistics(&mut self, program: &mut dyn Program) -> Result<Vec<Vec<f32>>, TrainError> {
        let mut own = Vec::new();
        for shard in 0..self.shards.len() {
            own.push(program.to_vec(Values::Statistics(shard))?);
        }
        let exchanges = self.plan.exchanges();
        let Some(peers) = self.peers.as_mut().filter(|_| exchanges) else {
            return Ok(own);
        };
        for (shard, values) in self.shards.clone().zip(&own) {
            // SAFETY: neither the program nor an operation uses these values now.
            unsafe { peers.segment.area(shard).write(0..values.len()) }.copy_from_slice(values);
        }
        let len = own[0].len();
        peers.collective.barrier(Deadline::after(PATIENCE))?;
        // SAFETY: all ranks have written theirs, and none writes again before the next barrier.
        let read = |shard| unsafe { peers.segment.area(shard).read(0..len) }.to_vec();
        let all = (0..self.all_shards).map(read).collect();
        peers.collective.barrier(Deadline::after(PATIENCE))?;
        Ok(all)
    }

    /// Rows of a few numbers, one a shard: those of this rank's shards become those of all.
    pub fn gather_rows<const N: usize>(&mut self, own: &[[f32; N]]) -> Result<Vec<[f32; N]>, TrainError> {
        let Some(peers) = &mut self.peers else {
            return Ok(own.to_vec());
        };
        for (shard, row) in self.shards.clone().zip(own) {
            // SAFETY: no operation is under way.
            unsafe { peers.segment.area(shard).write(0..N) }.copy_from_slice(row);
        }
        peers.collective.barrier(Deadline::after(PATIENCE))?;
        let read = |shard| {
            let mut row = [0.0; N];
            // SAFETY: all ranks have written theirs, and none writes again before the next barrier.
            row.copy_from_slice(unsafe { peers.segment.area(shard).read(0..N) });
            row
        };
        let all = (0..self.all_shards).map(read).collect();
        peers.collective.barrier(Deadline::after(PATIENCE))?;
        Ok(all)
    }

    /// Completes the state of the update rule on every rank, where each keeps up its own part only.
    pub fn complete_state(&mut self, program: &mut dyn Program) -> Result<(), TrainError> {
        if self.plan.updates != Updates::OwnSlice {
            return Ok(());
        }
        let Some(peers) = &mut self.peers else {
            return Ok(());
        };
        for kept in (0..).map(Values::State).take_while(|&kept| program.len(kept) > 0).collect::<Vec<_>>() {
            let state = program.to_vec(kept)?;
            peers.collective.values(0..state.len())?.copy_from_slice(&state);
            for bucket in &self.buckets {
                let operation = Operation::AllGather { range: bucket.range.clone() };
                let ticket = peers.collective.begin(operation, Deadline::after(PATIENCE))?;
                peers.collective.finish(ticket)?;
            }
            program.write(kept, peers.collective.values(0..state.len())?)?;
        }
        Ok(())
    }

    /// Heeds a flag that is set when this process is asked to stop.
    pub fn heed(&mut self, asked: Arc<AtomicBool>) {
        self.asked = asked;
    }

    /// Before a step: passes on that this rank was asked to stop. Rank 0 decides. No rank completes the step without what
    /// rank 0 contributes to it after this, so after the step all of them know.
    pub fn agree_to_stop(&mut self, step: Step) {
        let is_asked = self.asked.load(Ordering::Relaxed);
        let after = step.0 + 1;
        let Some(Peers { segment, .. }) = &self.peers else {
            self.stops_after = self.stops_after.or(is_asked.then_some(after));
            return;
        };
        if self.rank() != Rank(0) {
            if is_asked {
                segment.ask_to_stop();
            }
        } else if (is_asked || segment.is_asked_to_stop()) && segment.stops_after().is_none() {
            segment.stop_after(after);
        }
    }

    /// Whether all ranks stop now that so many steps are done.
    pub fn stops_after(&self, done: u64) -> bool {
        let agreed = self.peers.as_ref().map_or(self.stops_after, |peers| peers.segment.stops_after());
        agreed == Some(done)
    }

    /// Whether this rank's program holds parameters of its own, or is the first of those that share them.
    pub fn writes_parameters(&self) -> bool {
        let in_common = self.way == Way::Host && self.plan.parameters == Parameters::Common;
        !in_common || self.rank() == Rank(0)
    }
}
