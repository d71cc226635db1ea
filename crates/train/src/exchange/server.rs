//! A parameter server: one rank averages all gradients and updates, the others fetch the result.

use super::*;

impl Exchange {
    /// The server's part: its own gradients become the mean of all shards'.
    pub(super) fn average(&mut self, range: &Range<usize>, finished: &mut Finished) {
        let cpu = clock::thread_cpu();
        self.peers().average(range);
        finished.cpu += clock::thread_cpu().since(cpu);
        finished.moved = Bytes(4 * range.len() as u64 * u64::from(self.all_shards + 1));
        finished.ended = clock::now();
    }

    /// Brings the server's parameters to all ranks.
    pub(super) fn publish(
        &mut self,
        program: &mut dyn Program,
        book: &mut StepBook<'_>,
        watch: &mut Watch,
    ) -> Result<(), TrainError> {
        let (is_server, len) = (self.plan.is_server(), self.len);
        let common = self.peers().collective.common();
        if is_server && self.plan.parameters == Parameters::AtDeviceServer {
            watch.leave_out(|| {
                book.settle(program)?;
                // SAFETY: the others read it between the two barriers below only.
                let into = unsafe { common.write(0..len) };
                book.time(Phase::CopyOut, || program.read(Values::Parameters, into))?;
                Ok::<_, TrainError>(())
            })?;
        }
        self.meet()?;
        if !is_server {
            // SAFETY: the server writes it before the barrier above and after the one below.
            let from = unsafe { common.read(0..len) };
            watch.leave_out(|| book.time(Phase::CopyIn, || program.write(Values::Parameters, from)))?;
        }
        // Nobody may update while somebody still fetches.
        self.meet()
    }
}

impl Peers {
    fn average(&mut self, range: &Range<usize>) {
        const BLOCK: usize = 4096;
        let areas = self.segment.size().areas;
        let scale = 1.0 / areas as f32;
        let mut sum = [0.0f32; BLOCK];
        for start in range.clone().step_by(BLOCK) {
            let block = start..(start + BLOCK).min(range.end);
            let sum = &mut sum[..block.len()];
            // SAFETY: all ranks have arrived and touch these values no more until the barrier that follows.
            sum.copy_from_slice(unsafe { self.segment.area(0).read(block.clone()) });
            for area in (1..areas).map(|shard| self.segment.area(shard)) {
                // SAFETY: as above.
                let values = unsafe { area.read(block.clone()) };
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            // SAFETY: these are this rank's own.
            let own = unsafe { self.collective.own().write(block.clone()) };
            own.iter_mut().zip(sum).for_each(|(own, sum)| *own = *sum * scale);
        }
    }
}
