//! What a rank writes into its log, and when.

use paceline_engine::Program;
use paceline_record::log::RankWriter;
use paceline_record::{RankEvent, StepRecord};

use crate::TrainError;
use crate::exchange::Exchange;

/// A rank's log. Where a device computes behind the host's back, steps are written down while it is at work on later ones:
/// the last is kept until it has been compared with the other ranks.
pub(super) struct Diary<'a> {
    log: &'a mut RankWriter,
    /// Events to be written.
    told: Vec<RankEvent>,
    /// Those of the last step.
    recent: Vec<RankEvent>,
}

impl<'a> Diary<'a> {
    pub fn open(log: &'a mut RankWriter) -> Self {
        Self { log, told: Vec::new(), recent: Vec::new() }
    }

    /// Writes what can be written.
    pub fn write(&mut self) -> Result<(), TrainError> {
        Ok(self.told.drain(..).try_for_each(|event| self.log.append(&event))?)
    }

    /// The step before this one is complete.
    pub fn compare(&mut self, exchange: &mut Exchange) {
        exchange.compare_arrivals(&mut self.recent);
        self.told.append(&mut self.recent);
    }

    /// Takes a step, and what happened after it; writes it at once where nothing hides that.
    pub fn take(
        &mut self,
        record: StepRecord,
        after: Vec<RankEvent>,
        program: &dyn Program,
    ) -> Result<(), TrainError> {
        self.recent.push(RankEvent::Step(record));
        self.recent.extend(after);
        if program.runs_behind() {
            return Ok(());
        }
        self.told.append(&mut self.recent);
        self.write()
    }

    /// Writes all that is left.
    pub fn close(mut self, exchange: &mut Exchange) -> Result<(), TrainError> {
        exchange.compare_last_arrivals(&mut self.recent)?;
        self.told.append(&mut self.recent);
        self.write()
    }
}

impl Drop for Diary<'_> {
    fn drop(&mut self) {
        self.told.append(&mut self.recent);
        // Something is left only where the run has failed, and that is the error to be told.
        let _ = self.write();
    }
}
