//! Faults that a host plants in itself.

use std::time::Duration;

use paceline_record::{HostChange, HostEvent, LauncherEvent, Nanos, Step};
use rustix::process::{Signal, getpid, kill_process};

use crate::elastic::lead::Lead;
use crate::{Fault, TrainError};

/// So many steps before a fault the launcher looks more often, so as not to be late.
const NEAR: u64 = 8;

impl Lead<'_, '_, '_> {
    /// Whether a fault is about to be planted in this host.
    pub(in crate::elastic) fn is_fault_near(&self) -> bool {
        let next = self.hosting.as_ref().and_then(|hosting| hosting.faults.front()?.step());
        next.is_some_and(|step| step.0 <= self.done + NEAR)
    }

    /// Plants the faults that are due in this host.
    pub(in crate::elastic) fn plant_in_host(&mut self, now: Nanos) -> Result<(), TrainError> {
        let Some(hosting) = self.hosting.as_mut().filter(|hosting| hosting.runs()) else { return Ok(()) };
        let (done, first) = (Step(self.done), Step(self.first));
        while let Some(fault) = hosting.faults.pop_front_if(|fault| fault.step() <= Some(done)) {
            if fault.step().is_some_and(|at| at < first) {
                // It was not there then.
                continue;
            }
            if hosting.is_first() {
                let change = HostChange::Planted { step: done, fault: fault.to_string() };
                let event = HostEvent { host: hosting.host(), at: now, change };
                self.log.append(&LauncherEvent::Host(event))?;
            } else {
                hosting.party.confess(done, fault.to_string());
            }
            match fault {
                Fault::KillHost { .. } => {
                    kill_process(getpid(), Signal::KILL)
                        .map_err(|error| TrainError::system("kill this host")(error.into()))?;
                }
                Fault::CutHost { time, .. } => {
                    hosting.party.terms.cable.cut(Duration::from_nanos(time.0));
                }
                // A clock was planted before, and other faults are planted in members.
                _ => {}
            }
        }
        Ok(())
    }
}
