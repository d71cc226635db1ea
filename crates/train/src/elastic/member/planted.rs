//! Faults that a member plants in itself.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use paceline_comm::tasks::{Ground, Member};
use paceline_record::{RankEvent, Step};

use crate::elastic::point;
use crate::faults::{Fault, Faults};
use crate::worker::book::StepBook;
use crate::{TrainError, clock};

/// Faults that this member was asked to plant in itself.
pub(super) struct Planted<'a> {
    pub(super) faults: &'a Faults,
    pub(super) seed: u64,
    pub(super) own: paceline_record::Member,
    /// The step that it came in. Random faults spare it then, or whoever replaces a victim would be the next one.
    pub(super) entered: Step,
}

impl Planted<'_> {
    pub(super) fn strike(
        &self,
        step: Step,
        member: &Member<'_, Ground>,
        slowness: &Cell<f64>,
        book: &mut StepBook<'_>,
        leaves: &Arc<AtomicBool>,
    ) -> Result<(), TrainError> {
        if self.faults.is_empty() {
            return Ok(());
        }
        let members: Vec<_> = member.members().map(paceline_record::Member).collect();
        for fault in self.faults.due(step, self.seed, &members) {
            let is_random = !self.faults.0.contains(&fault);
            if fault.member() != Some(self.own) || (is_random && step == self.entered && step.0 > 0) {
                continue;
            }
            book.tell(&RankEvent::Fault { at: clock::now(), step, fault: fault.to_string() })?;
            match fault {
                Fault::Kill { .. } => point::arm(point::Strike::Kill),
                Fault::Stop { .. } => point::arm(point::Strike::Stop),
                Fault::Slow { factor, .. } => slowness.set(factor),
                Fault::Leave { .. } => leaves.store(true, Ordering::Relaxed),
                // Not for this process.
                Fault::Join { .. }
                | Fault::KillHost { .. }
                | Fault::CutHost { .. }
                | Fault::Clock { .. }
                | Fault::RandomKill { .. }
                | Fault::RandomStop { .. } => {}
            }
        }
        Ok(())
    }
}
