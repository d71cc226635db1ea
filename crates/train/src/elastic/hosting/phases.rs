//! What the time goes to when hosts are lost or come: the phases follow each other without a gap.

use paceline_record::{Generation, LauncherEvent, Nanos, Recovery, RecoveryPhase};

use super::{Hosting, Phase};
use crate::TrainError;
use crate::elastic::lead::Lead;

impl Hosting {
    /// Takes note that a host is missed that was last heard then.
    pub(super) fn miss(&mut self, since: Nanos) {
        self.missed = Some(self.missed.map_or(since, |earlier| earlier.min(since)));
    }
}

impl Lead<'_, '_, '_> {
    /// Members stand still: what remains until work goes on is the hosts' connecting. Before the first step nothing is held up.
    pub(in crate::elastic) fn begin_rebuild(&mut self, now: Nanos) {
        if let Some(hosting) = &mut self.hosting
            && matches!(hosting.phase, Phase::Called { .. })
            && hosting.roster.generation > 1
            && !hosting.lacks_state
        {
            hosting.rebuilds = Some(now);
        }
    }

    pub(super) fn end_rebuild(&mut self, now: Nanos) -> Result<(), TrainError> {
        match self.hosting.as_mut().and_then(|hosting| hosting.rebuilds.take()) {
            Some(since) => self.log_recovery(RecoveryPhase::Rebuild, since, now),
            None => Ok(()),
        }
    }

    pub(super) fn log_recovery(
        &mut self,
        phase: RecoveryPhase,
        begin: Nanos,
        end: Nanos,
    ) -> Result<(), TrainError> {
        let generation = Generation(u64::from(self.warden.generation()));
        Ok(self.log.append(&LauncherEvent::Recovery(Recovery { generation, phase, begin, end }))?)
    }
}
