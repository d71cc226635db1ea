//! A world of one.

use std::ops::Range;

use memmap2::{MmapMut, MmapRaw};
use paceline_record::{Bytes, Rank};

use crate::ledger::Ledger;
use crate::{Area, Collective, CommError, Deadline, Finished, Operation, Ticket};

/// A collective of one rank: the values of all are its own, and every operation leaves them as they are.
pub struct Solo {
    own: MmapRaw,
    common: MmapRaw,
    sizes: [usize; 2],
    ledger: Ledger,
}

impl Solo {
    /// With so many own and common values, zero at first. Memory that is not touched is not taken.
    pub fn new(own: usize, common: usize) -> Result<Self, CommError> {
        let map = |values: usize| {
            let bytes = values.saturating_mul(size_of::<f32>()).max(1);
            MmapMut::map_anon(bytes).map(MmapRaw::from).map_err(CommError::system("map memory"))
        };
        Ok(Self { own: map(own)?, common: map(common)?, sizes: [own, common], ledger: Ledger::new(1, own) })
    }
}

impl Collective for Solo {
    fn rank(&self) -> Rank {
        Rank(0)
    }

    fn world(&self) -> u32 {
        1
    }

    fn own(&self) -> Area {
        Area::new(self.own.as_mut_ptr().cast(), self.sizes[0])
    }

    fn common(&self) -> Area {
        Area::new(self.common.as_mut_ptr().cast(), self.sizes[1])
    }

    fn values(&mut self, range: Range<usize>) -> Result<&mut [f32], CommError> {
        self.ledger.check_free(&range)?;
        // SAFETY: they exist, are in no operation, and stay borrowed with `self`.
        Ok(unsafe { self.own().write(range) })
    }

    fn begin(&mut self, operation: Operation, by: Deadline) -> Result<Ticket, CommError> {
        self.ledger.check(&operation)?;
        Ok(self.ledger.open(operation, by))
    }

    fn progress(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    fn finish(&mut self, ticket: Ticket) -> Result<Finished, CommError> {
        let pending = self.ledger.close(ticket.number);
        Ok(Finished {
            number: ticket.number,
            operation: pending.underway.operation,
            begun: pending.begun,
            last_arrival: pending.begun,
            last_rank: self.rank(),
            started: pending.begun,
            ended: pending.begun,
            cpu: Default::default(),
            waited: pending.waited,
            moved: Bytes(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Reduction;

    #[test]
    fn a_world_of_one_keeps_its_values_and_the_contract() {
        let mut solo = Solo::new(10, 5).expect("memory");
        let by = Deadline::after(Duration::from_secs(1));
        solo.values(0..10).expect("free").fill(3.0);
        let mean = Operation::AllReduce { range: 2..10, reduction: Reduction::Mean };
        let ticket = solo.begin(mean.clone(), by).expect("valid");
        solo.progress().expect("nothing to do");
        assert!(matches!(solo.values(9..10), Err(CommError::Busy { .. })));
        assert!(matches!(solo.begin(mean.clone(), by), Err(CommError::Invalid { .. })));
        assert!(solo.values(0..2).is_ok(), "outside of the operation");
        let finished = solo.finish(ticket).expect("nobody to wait for");
        assert_eq!((finished.number, finished.operation), (0, mean));
        assert_eq!(solo.values(0..10).expect("free again"), [3.0; 10]);
        solo.barrier(by).expect("nobody to wait for");
        let from_another = solo.broadcast(0..1, Rank(1), by);
        assert!(matches!(from_another, Err(CommError::Invalid { .. })));
        assert_eq!(solo.common().len(), 5);
    }
}
