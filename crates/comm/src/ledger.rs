//! What a rank has begun and not finished.

use std::collections::VecDeque;
use std::ops::Range;

use paceline_record::{Bytes, Nanos, Rank};
use paceline_system::clock;

use crate::{CommError, Deadline, Operation, Ticket, Underway, Waited};

/// Operations that may lie between the oldest one under way and the newest.
pub(crate) const LIMIT: u64 = 1024;

/// An operation under way.
pub(crate) struct Pending {
    pub underway: Underway,
    pub by: Deadline,
    pub begun: Nanos,
    /// This rank's part, once it is done.
    pub part: Option<Part>,
    pub waited: Waited,
    /// Processor time before it was begun.
    pub prepared: Nanos,
}

/// What a rank did for an operation.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub last_arrival: Nanos,
    pub last_rank: Rank,
    pub started: Nanos,
    pub cpu: Nanos,
    pub moved: Bytes,
}

/// Operations under way, oldest first, and the rules for beginning one.
pub(crate) struct Ledger {
    world: u32,
    own: usize,
    next: u64,
    pending: VecDeque<Pending>,
}

impl Ledger {
    /// For a rank of a world of `world`, with so many values of its own.
    pub fn new(world: u32, own: usize) -> Self {
        Self { world, own, next: 0, pending: VecDeque::new() }
    }

    /// The number of the next operation.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether the operation can be begun now.
    pub fn check(&self, operation: &Operation) -> Result<(), CommError> {
        let invalid = |why| Err(CommError::Invalid { operation: operation.clone(), why });
        if let Err(why) = self.is_free(&operation.range()) {
            return invalid(why);
        }
        if let Operation::AllReduceHalf { range, halves, .. } = operation
            && (*halves < range.end || halves.saturating_add(range.end.div_ceil(2)) > self.own)
        {
            return invalid(format!("their rounded forms do not fit behind them in {} values", self.own));
        }
        if let Operation::Reduce { root, .. } = operation
            && root.0 >= self.world
        {
            return invalid(format!("there are {} ranks", self.world));
        }
        if let Some(oldest) = self.pending.front()
            && self.next - oldest.underway.number >= LIMIT
        {
            return invalid(format!("{} is still to be finished, {LIMIT} operations ago", oldest.underway));
        }
        Ok(())
    }

    /// Whether these values exist and no operation over them is under way.
    pub fn check_free(&self, range: &Range<usize>) -> Result<(), CommError> {
        self.is_free(range).map_err(|why| CommError::Busy { range: range.clone(), why })
    }

    fn is_free(&self, range: &Range<usize>) -> Result<(), String> {
        if range.start > range.end || range.end > self.own {
            return Err(format!("each rank has values 0..{}", self.own));
        }
        let overlaps = |other: Range<usize>| range.start.max(other.start) < range.end.min(other.end);
        match self.pending.iter().find(|pending| overlaps(pending.underway.operation.range())) {
            Some(pending) => Err(format!("{} is under way", pending.underway)),
            None => Ok(()),
        }
    }

    /// Enters an operation that was checked.
    pub fn open(&mut self, operation: Operation, by: Deadline) -> Ticket {
        let number = self.next;
        self.next += 1;
        self.pending.push_back(Pending {
            underway: Underway { number, operation },
            by,
            begun: clock::now(),
            part: None,
            waited: Waited::default(),
            prepared: Nanos(0),
        });
        Ticket { number }
    }

    /// The oldest operation under way.
    pub fn oldest(&self) -> Option<&Pending> {
        self.pending.front()
    }

    /// An operation under way, by its number.
    ///
    /// # Panics
    /// If it is not under way: tickets are neither copied nor used twice.
    pub fn pending(&mut self, number: u64) -> &mut Pending {
        let place = self.place(number);
        &mut self.pending[place]
    }

    /// Removes an operation.
    ///
    /// # Panics
    /// As above.
    pub fn close(&mut self, number: u64) -> Pending {
        let place = self.place(number);
        self.pending.remove(place).expect("invariant: its place was just found")
    }

    fn place(&self, number: u64) -> usize {
        self.pending
            .binary_search_by_key(&number, |pending| pending.underway.number)
            .expect("invariant: a ticket is of an operation under way on its own collective")
    }
}
