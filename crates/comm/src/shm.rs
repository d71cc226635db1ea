//! The collective of processes that share a segment.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use memmap2::{MmapMut, MmapRaw};
use paceline_record::{Bytes, Nanos, Rank};
use paceline_system::clock;

use crate::control::Lane;
use crate::futex::Futex;
use crate::half::{self, Addend, RoundedSum};
use crate::handoff::{self, Wait};
use crate::ledger::{Ledger, Part, Pending};
use crate::operation::Descriptor;
use crate::reduction::Sum;
use crate::segment::Mapping;
use crate::{
    Area, Collective, CommError, Deadline, Finished, Operation, Reduction, Stage, Ticket, Underway, slice,
};

/// One rank's end of a [`Segment`](crate::Segment).
///
/// When all ranks have begun an operation, each does its own slice of it, for all: it reads the values of every area, adds
/// them up in the order of a fixed tree, and writes the result to wherever it belongs. So the same areas give the same bits
/// in every run, on every rank and in every world. Each rank works on its operations in the order in which it began them.
pub struct Shm {
    mapping: Arc<Mapping>,
    rank: Rank,
    ledger: Ledger,
    /// The operation to work on next.
    next_part: u64,
    /// How long to spin before a sleep.
    spin: Nanos,
    /// Sums that may not go to the own area yet, as others still read what is there: a mirror of it, from first need.
    mirror: Option<MmapRaw>,
}

impl Shm {
    pub(crate) fn new(mapping: Arc<Mapping>, rank: Rank) -> Self {
        let size = mapping.size();
        let spin = Nanos(mapping.header().spin.load(Ordering::Relaxed));
        Self { mapping, rank, ledger: Ledger::new(size.world, size.own), next_part: 0, spin, mirror: None }
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.world()).map(Rank)
    }

    /// Where a run of values lies in each rank's own area.
    fn runs(&self, range: &Range<usize>) -> Vec<*mut f32> {
        self.ranks().map(|rank| self.mapping.own(rank).part(range)).collect()
    }

    /// Where a run of values lies in each of the areas that are added up.
    fn addends(&self, range: &Range<usize>) -> Vec<*mut f32> {
        self.areas().map(|area| area.part(range)).collect()
    }

    fn areas(&self) -> impl Iterator<Item = Area> + Clone {
        (0..self.mapping.size().areas).map(|index| self.mapping.area(index))
    }

    fn mirror(&mut self) -> Result<Area, CommError> {
        let len = self.mapping.size().own;
        if self.mirror.is_none() {
            let map = MmapMut::map_anon((len * size_of::<f32>()).max(1))
                .map_err(CommError::system("map memory"))?;
            self.mirror = Some(map.into());
        }
        let map = self.mirror.as_ref().expect("invariant: just made");
        Ok(Area::new(map.as_mut_ptr().cast(), len))
    }

    /// An error if a rank is lost. To be called before waiting and before beginning an operation.
    fn check_alive(&self, underway: impl FnOnce() -> Underway) -> Result<(), CommError> {
        match self.mapping.header().failure() {
            Some((rank, why)) => Err(CommError::PeerLost { rank, operation: underway(), why }),
            None => Ok(()),
        }
    }

    fn have_all(&self, stage: Stage, number: u64) -> bool {
        self.ranks().all(|rank| handoff::has_reached(count_of(self.mapping.lane(rank), stage), number + 1))
    }

    /// Waits until all ranks have reached a stage of an operation under way; when the wait began and ended.
    fn wait_for_all(&mut self, stage: Stage, number: u64) -> Result<(Nanos, Nanos), CommError> {
        let begin = clock::now();
        while clock::now().since(begin) < self.spin {
            for _ in 0..8 {
                std::hint::spin_loop();
            }
            if self.have_all(stage, number) {
                return Ok((begin, clock::now()));
            }
        }
        let by = self.ledger.pending(number).by;
        for rank in self.ranks() {
            let count = count_of(self.mapping.lane(rank), stage);
            match handoff::wait(count, number + 1, by) {
                Wait::Reached => {}
                Wait::TimedOut => return Err(self.timed_out(stage, number)),
                Wait::Poisoned => {
                    let underway = self.ledger.pending(number).underway.clone();
                    self.check_alive(|| underway)?;
                    unreachable!("invariant: a reason is noted before counts are poisoned");
                }
            }
        }
        Ok((begin, clock::now()))
    }

    fn timed_out(&mut self, stage: Stage, number: u64) -> CommError {
        let missing = self
            .ranks()
            .filter(|&rank| !handoff::has_reached(count_of(self.mapping.lane(rank), stage), number + 1))
            .collect();
        let pending = self.ledger.pending(number);
        CommError::TimedOut {
            missing,
            stage,
            operation: pending.underway.clone(),
            waited: clock::now().since(pending.begun),
        }
    }

    /// Does this rank's part of its next operation, which all ranks have begun.
    fn do_part(&mut self) -> Result<(), CommError> {
        let number = self.next_part;
        let operation = self.ledger.pending(number).underway.operation.clone();
        let (last_arrival, last_rank) = self.compare_arrivals(number, &operation)?;
        let (started, cpu) = (clock::now(), clock::thread_cpu());
        let values = self.work(&operation)?;
        let part = Part {
            last_arrival,
            last_rank,
            started,
            cpu: clock::thread_cpu().since(cpu),
            moved: Bytes((values * size_of::<f32>()) as u64),
        };
        let lane = self.mapping.lane(self.rank);
        lane.slot(number).note_completion(clock::now());
        handoff::advance(&lane.done);
        self.ledger.pending(number).part = Some(part);
        self.next_part += 1;
        Ok(())
    }

    /// When the last rank began the operation, if all began the same.
    fn compare_arrivals(&self, number: u64, own: &Operation) -> Result<(Nanos, Rank), CommError> {
        let slot = |rank| self.mapping.lane(rank).slot(number);
        let expected = slot(Rank(0)).descriptor();
        let differs = |&rank: &Rank| slot(rank).descriptor() != expected;
        if let Some(rank) = self.ranks().find(differs) {
            let read = |descriptor: Descriptor| {
                descriptor.operation().ok_or_else(|| {
                    CommError::segment(format!("operation {number} cannot be read: {descriptor:?}"))
                })
            };
            return Err(CommError::Mismatch {
                number,
                rank,
                began: read(slot(rank).descriptor())?,
                other: Rank(0),
                other_began: read(expected)?,
            });
        }
        debug_assert_eq!(expected, Descriptor::from(own));
        let last = self.ranks().map(|rank| (slot(rank).arrived_at(), rank)).max();
        Ok(last.expect("invariant: at least this rank"))
    }

    /// This rank's part of an operation; the values it read and wrote.
    fn work(&mut self, operation: &Operation) -> Result<usize, CommError> {
        let (world, areas) = (self.world() as usize, self.mapping.size().areas as usize);
        let own_slice = |range: &Range<usize>| slice(range.clone(), self.rank, self.world());
        Ok(match operation {
            Operation::AllReduce { range, reduction } => {
                let part = own_slice(range);
                // SAFETY: all ranks have handed these values over, and of all of them only this one touches this slice.
                unsafe { self.add_up(&self.addends(&part), &self.runs(&part), part.len(), *reduction) };
                (areas + world) * part.len()
            }
            Operation::AllReduceHalf { range, reduction, half, halves } => {
                let part = own_slice(range);
                let sum = RoundedSum {
                    half: *half,
                    into: &self.runs(&part),
                    rounded: None,
                    len: part.len(),
                    scale: reduction.scale(areas as u32),
                };
                let rounded = self.areas().map(|area| (0, Addend::Rounded(half_run(area, *halves, &part))));
                // SAFETY: all ranks have handed these values over, rounded ones included, and of all of them only this
                // one touches this slice.
                unsafe { sum.run(rounded) };
                // The rounded values are half as long as the others.
                areas * part.len() / 2 + world * part.len()
            }
            Operation::ReduceScatter { range, reduction } => {
                let part = own_slice(range);
                let own = self.own().part(&part);
                // SAFETY: as above.
                unsafe { self.add_up(&self.addends(&part), &[own], part.len(), *reduction) };
                (areas + 1) * part.len()
            }
            Operation::AllGather { range } => {
                let part = own_slice(range);
                let runs = self.runs(&part);
                let own = runs[self.rank.0 as usize];
                for &run in runs.iter().filter(|&&run| run != own) {
                    // SAFETY: as above; two ranks' areas do not overlap.
                    unsafe { run.copy_from_nonoverlapping(own, part.len()) };
                }
                world * part.len()
            }
            Operation::ReplicatedSum { range, reduction } => {
                let into = self.mirror()?.part(range);
                // SAFETY: all ranks have handed these values over and only read them; the mirror is this rank's alone.
                unsafe { self.add_up(&self.addends(range), &[into], range.len(), *reduction) };
                (areas + 1) * range.len()
            }
            Operation::Reduce { range, reduction, root } if *root == self.rank => {
                let own = self.own().part(range);
                // SAFETY: all ranks have handed these values over, and of all of them only this one touches them.
                unsafe { self.add_up(&self.addends(range), &[own], range.len(), *reduction) };
                (areas + 1) * range.len()
            }
            Operation::Reduce { .. } | Operation::Barrier => 0,
        })
    }

    /// What a rank does for an operation before it hands its values over; the processor time it took.
    fn prepare(&mut self, operation: &Operation) -> Nanos {
        let Operation::AllReduceHalf { range, half, halves, .. } = operation else {
            return Nanos(0);
        };
        let before = clock::thread_cpu();
        for area in self.mapping.held(self.rank) {
            // SAFETY: the ledger has checked that both lie in an area, apart from each other; until this operation is
            // begun they are this rank's alone.
            unsafe {
                let values = area.read(range.clone());
                half::encode(*half, values, half_run(area, *halves, range));
            }
        }
        clock::thread_cpu().since(before)
    }

    /// # Safety
    /// As for [`Sum::run`].
    unsafe fn add_up(&self, from: &[*mut f32], into: &[*mut f32], len: usize, reduction: Reduction) {
        let scale = reduction.scale(from.len() as u32);
        let sum = Sum { from, into, len, scale };
        // SAFETY: the caller vouches for the runs.
        unsafe { sum.run() }
    }

    /// Gets this rank's part of an operation done, and those of all before it.
    fn catch_up(&mut self, number: u64) -> Result<(), CommError> {
        while self.next_part <= number {
            let current = self.next_part;
            if self.have_all(Stage::Arrival, current) {
                self.do_part()?;
                continue;
            }
            let (begin, end) = self.wait_for_all(Stage::Arrival, current)?;
            self.do_part()?;
            self.book_wait(number, current, begin, end);
        }
        Ok(())
    }

    /// Books a wait for `current` to the operation that is being finished.
    fn book_wait(&mut self, number: u64, current: u64, begin: Nanos, end: Nanos) {
        let part = self.ledger.pending(current).part;
        let last_arrival = part.map_or(end, |part| part.last_arrival);
        let waited = &mut self.ledger.pending(number).waited;
        waited.book(begin, end, last_arrival);
    }

    /// Does what can be done without waiting.
    fn do_ready_parts(&mut self) -> Result<(), CommError> {
        while self.next_part < self.ledger.next() && self.have_all(Stage::Arrival, self.next_part) {
            self.do_part()?;
        }
        Ok(())
    }

    /// Waits until all have done their part of an operation that this rank has done its own of.
    fn await_others(&mut self, number: u64) -> Result<(), CommError> {
        if !self.have_all(Stage::Completion, number) {
            self.do_ready_parts()?;
            let (begin, end) = self.wait_for_all(Stage::Completion, number)?;
            self.book_wait(number, number, begin, end);
        }
        Ok(())
    }

    /// Copies the sum to the own area, once nobody reads that any more; the processor time and bytes that it took.
    fn take_sum(&mut self, range: &Range<usize>) -> Result<(Nanos, Bytes), CommError> {
        let cpu = clock::thread_cpu();
        let from = self.mirror()?.part(range);
        let into = self.own().part(range);
        // SAFETY: all ranks have done their part, so these values are this rank's alone again; the mirror always is.
        unsafe { into.copy_from_nonoverlapping(from, range.len()) };
        let moved = Bytes((2 * range.len() * size_of::<f32>()) as u64);
        Ok((clock::thread_cpu().since(cpu), moved))
    }
}

/// The count that tells about a stage.
fn count_of(lane: &Lane, stage: Stage) -> &Futex {
    match stage {
        Stage::Arrival => &lane.arrived,
        Stage::Completion => &lane.done,
    }
}

/// Where the rounded form of a run of values begins in an area.
fn half_run(area: Area, halves: usize, range: &Range<usize>) -> *mut u16 {
    area.address().wrapping_add(halves).cast::<u16>().wrapping_add(range.start)
}

impl Collective for Shm {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world(&self) -> u32 {
        self.mapping.size().world
    }

    fn own(&self) -> Area {
        self.mapping.own(self.rank)
    }

    fn common(&self) -> Area {
        self.mapping.common()
    }

    fn values(&mut self, range: Range<usize>) -> Result<&mut [f32], CommError> {
        self.ledger.check_free(&range)?;
        // SAFETY: they exist; other ranks touch them in operations only, of which none is under way over them, nor can
        // be begun while `self` stays borrowed; and no other process can have joined as this rank.
        Ok(unsafe { self.own().write(range) })
    }

    fn begin(&mut self, operation: Operation, by: Deadline) -> Result<Ticket, CommError> {
        self.ledger.check(&operation)?;
        let number = self.ledger.next();
        self.check_alive(|| Underway { number, operation: operation.clone() })?;
        let descriptor = Descriptor::from(&operation);
        let prepared = self.prepare(&operation);
        let ticket = self.ledger.open(operation, by);
        self.ledger.pending(number).prepared = prepared;
        let begun = self.ledger.pending(number).begun;
        let lane = self.mapping.lane(self.rank);
        lane.slot(number).note_arrival(descriptor, begun);
        handoff::advance(&lane.arrived);
        Ok(ticket)
    }

    fn progress(&mut self) -> Result<(), CommError> {
        self.do_ready_parts()?;
        match self.ledger.oldest() {
            Some(pending) => self.check_alive(|| pending.underway.clone()),
            None => Ok(()),
        }
    }

    fn finish(&mut self, ticket: Ticket) -> Result<Finished, CommError> {
        let number = ticket.number;
        self.catch_up(number)?;
        let operation = self.ledger.pending(number).underway.operation.clone();
        let is_barrier = operation == Operation::Barrier;
        if !is_barrier {
            self.await_others(number)?;
        }
        let extra = match &operation {
            Operation::ReplicatedSum { range, .. } => Some(self.take_sum(range)?),
            _ => None,
        };
        let Pending { begun, part, waited, prepared, .. } = self.ledger.close(number);
        let part = part.expect("invariant: this rank has caught up");
        let done_at = |rank| self.mapping.lane(rank).slot(number).done_at();
        let ended = match extra {
            _ if is_barrier => part.last_arrival,
            Some(_) => clock::now(),
            None => self.ranks().map(done_at).max().expect("invariant: at least this rank"),
        };
        let (cpu, moved) = extra.unwrap_or_default();
        Ok(Finished {
            number,
            operation,
            begun,
            last_arrival: part.last_arrival,
            last_rank: part.last_rank,
            started: part.started,
            ended,
            cpu: prepared + part.cpu + cpu,
            waited,
            moved: Bytes(part.moved.0 + moved.0),
        })
    }
}
