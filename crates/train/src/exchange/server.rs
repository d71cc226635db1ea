//! A parameter server: one rank updates, the others fetch the result.

use super::*;

impl Exchange {
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
