//! The seam between training and whatever moves values between ranks.

use std::ops::Range;

use paceline_record::{Bytes, Nanos, Rank};

use crate::{Area, CommError, Deadline, Operation};

/// One rank's end of a group of ranks that work on common values.
///
/// All ranks begin the same operations in the same order. Between [`begin`](Self::begin) and [`finish`](Self::finish) the
/// values of an operation belong to the collective; several may be under way at once, over values that do not overlap. The
/// work is done by the thread that calls: in [`progress`](Self::progress) and [`finish`](Self::finish).
pub trait Collective: Send {
    /// The number of this rank.
    fn rank(&self) -> Rank;

    /// The number of ranks.
    fn world(&self) -> u32;

    /// This rank's own values. They may be read and written while no operation over them is under way.
    fn own(&self) -> Area;

    /// Values of which all ranks share one copy. No operation touches them; who reads and writes them when is up to the
    /// ranks, with [`barrier`](Self::barrier) between.
    fn common(&self) -> Area;

    /// Own values, to read and write; refused while an operation over them is under way.
    fn values(&mut self, range: Range<usize>) -> Result<&mut [f32], CommError>;

    /// Hands values over and returns at once. The deadline holds for everything that is left to do in this operation.
    fn begin(&mut self, operation: Operation, by: Deadline) -> Result<Ticket, CommError>;

    /// Does what can be done now for the operations under way, without waiting. A rank calls it from time to time while it
    /// has other work.
    fn progress(&mut self) -> Result<(), CommError>;

    /// Waits until all ranks have done their part, doing this rank's meanwhile, and gives the values back.
    fn finish(&mut self, ticket: Ticket) -> Result<Finished, CommError>;

    /// Waits until all ranks have come here.
    fn barrier(&mut self, by: Deadline) -> Result<Finished, CommError> {
        let ticket = self.begin(Operation::Barrier, by)?;
        self.finish(ticket)
    }
}

/// An operation that was begun, to be finished.
#[must_use = "values stay with the collective until the operation is finished"]
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The number of the operation: the first that a rank begins is 0.
    pub(crate) number: u64,
}

/// What became of an operation. Moments are on the host's monotonic clock, which all ranks share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its number.
    pub number: u64,
    /// The operation itself.
    pub operation: Operation,
    /// When this rank began it.
    pub begun: Nanos,
    /// When the last rank began it: before, nothing could be done.
    pub last_arrival: Nanos,
    /// The rank that began it last.
    pub last_rank: Rank,
    /// When this rank began to work on its part.
    pub started: Nanos,
    /// When the last part was done.
    pub ended: Nanos,
    /// Processor time that this rank worked for it.
    pub cpu: Nanos,
    /// Time that this rank was blocked in [`Collective::finish`].
    pub waited: Waited,
    /// What this rank read and wrote.
    pub moved: Bytes,
}

/// Time that a rank was blocked, by reason. The rank's own work in between does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// For the last rank to begin.
    pub late_rank: Nanos,
    /// For others to move bytes.
    pub transfer: Nanos,
}

impl Waited {
    /// The sum of both.
    pub fn total(self) -> Nanos {
        self.late_rank + self.transfer
    }

    /// Books a wait that ended at `end`, in an operation whose last rank arrived at `last_arrival`.
    pub(crate) fn book(&mut self, begin: Nanos, end: Nanos, last_arrival: Nanos) {
        let turn = last_arrival.clamp(begin, end);
        self.late_rank += turn.since(begin);
        self.transfer += end.since(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_split_where_the_last_rank_arrives() {
        let mut waited = Waited::default();
        waited.book(Nanos(10), Nanos(20), Nanos(13));
        assert_eq!((waited.late_rank, waited.transfer), (Nanos(3), Nanos(7)));
        waited.book(Nanos(30), Nanos(35), Nanos(13));
        assert_eq!((waited.late_rank, waited.transfer), (Nanos(3), Nanos(12)));
        waited.book(Nanos(40), Nanos(44), Nanos(50));
        assert_eq!(waited.total(), Nanos(19));
    }
}
