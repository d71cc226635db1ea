//! Shared memory of a launcher and its members: the words, the two states, and the gradients of all shards.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use paceline_record::{Bytes, Nanos};
use paceline_system::clock;
use rustix::thread::futex;

use super::parts::outboxes;
use super::{Bell, Board, Node, Parts, Shape, Words};
use crate::memfd::{self, PAGE};
use crate::{Area, CommError, Half};

mod sums;

/// First word of this kind of segment: "elastic1" in ASCII.
const MAGIC: u64 = u64::from_be_bytes(*b"elastic1");

/// A word has a cache line of its own.
const LINE: usize = 64;

/// How much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroundSize {
    /// What is coordinated.
    pub shape: Shape,
    /// Trained values.
    pub values: usize,
    /// Values that the update rule keeps for each of them.
    pub state: usize,
    /// Running statistics of a shard.
    pub statistics: usize,
    /// The format to which all sums of gradients are rounded, and in which they travel; as they are where there is none.
    pub half: Option<Half>,
    /// Areas for gradients: one for each shard, or none where gradients are exchanged elsewhere.
    pub gradients: u32,
}

/// Offsets in bytes.
#[derive(Clone, Copy, Debug)]
struct Plan {
    notes_at: usize,
    areas_at: usize,
    /// Length of an area of trained values, and of one of statistics.
    values: usize,
    statistics: usize,
    /// Areas for what travels between hosts.
    travelling: usize,
    size: usize,
}

impl GroundSize {
    /// Memory that it takes.
    pub fn bytes(self) -> Result<Bytes, CommError> {
        self.plan().map(|plan| Bytes(plan.size as u64))
    }

    /// Areas for what travels between hosts: the means, and nodes on their way out.
    fn travelling(self) -> usize {
        // A shard travels from where it is, but not in 16 bits.
        let least = if self.half.is_some() { 0 } else { 1 };
        let travels = self.shape.hosts > 1 && self.gradients > 0;
        if travels { 1 + outboxes(self.shape.shards, least) } else { 0 }
    }

    fn plan(self) -> Result<Plan, CommError> {
        self.checked_plan()
            .ok_or_else(|| CommError::segment(format!("{self:?} is more than can be addressed at all")))
    }

    fn checked_plan(self) -> Option<Plan> {
        let board = Board::new(self.shape);
        let area = |values: usize| values.checked_mul(size_of::<f32>())?.checked_next_multiple_of(PAGE);
        let (values, statistics) = (area(self.values)?, area(self.statistics)?);
        let notes_at = PAGE + board.words() * LINE;
        let areas_at = (notes_at + 8 * board.notes()).checked_next_multiple_of(PAGE)?;
        let shards = self.shape.shards as usize;
        let states = values.checked_mul(2 * (1 + self.state))?;
        let gradients = values.checked_mul(self.gradients as usize)?;
        let statistics_all = statistics.checked_mul(2 * shards)?;
        let travelling = self.travelling();
        let size = areas_at.checked_add(states)?.checked_add(gradients)?.checked_add(statistics_all)?;
        let size = size.checked_add(values.checked_mul(travelling)?)?;
        isize::try_from(size).ok()?;
        Some(Plan { notes_at, areas_at, values, statistics, travelling, size })
    }
}

#[repr(C)]
struct Header {
    magic: AtomicU64,
    numbers: [AtomicU64; 10],
}

impl Header {
    fn write(&self, size: GroundSize) {
        let Shape { seats, shards, buckets, slices, hosts } = size.shape;
        let numbers = [
            u64::from(seats),
            u64::from(shards),
            u64::from(buckets),
            u64::from(slices),
            size.values as u64,
            size.state as u64,
            size.statistics as u64,
            u64::from(hosts),
            size.half.map_or(0, |half| 1 + half as u64),
            u64::from(size.gradients),
        ];
        for (place, number) in self.numbers.iter().zip(numbers) {
            place.store(number, Ordering::Relaxed);
        }
        self.magic.store(MAGIC, Ordering::Release);
    }

    fn read(&self) -> Result<GroundSize, CommError> {
        if self.magic.load(Ordering::Acquire) != MAGIC {
            return Err(CommError::segment("it does not begin as one"));
        }
        let [seats, shards, buckets, slices, values, state, statistics, hosts, half, gradients] =
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|place| self.numbers[place].load(Ordering::Relaxed));
        Ok(GroundSize {
            shape: Shape {
                seats: seats as u32,
                shards: shards as u32,
                buckets: buckets as u32,
                slices: slices as u32,
                hosts: hosts as u32,
            },
            values: values as usize,
            state: state as usize,
            statistics: statistics as usize,
            half: [Half::Fp16, Half::Bf16].into_iter().find(|&known| half == 1 + known as u64),
            gradients: gradients as u32,
        })
    }
}

/// The memory of an elastic run. It has no name and goes with the last process that holds it, however that ends.
pub struct Ground {
    map: MmapRaw,
    size: GroundSize,
    plan: Plan,
    /// Kept by its creator, for members still to be started.
    file: Option<OwnedFd>,
    /// Where this host's porter is called.
    porter: Option<Bell>,
}

impl Ground {
    /// Takes the memory, all of it at once. Processes that this one starts from now on inherit it.
    pub fn create(size: GroundSize) -> Result<Self, CommError> {
        let plan = size.plan()?;
        let available = memfd::room();
        if plan.size as u64 > available.0 {
            let (world, needed) = (size.shape.seats, Bytes(plan.size as u64));
            return Err(CommError::TooLarge { world, needed, available });
        }
        let file = memfd::create(plan.size)?;
        let map = map(file.as_fd(), plan.size)?;
        let ground = Self { map, size, plan, file: Some(file), porter: None };
        ground.header().write(size);
        Ok(ground)
    }

    /// Maps the memory that this process has inherited under this number. The descriptor stays open.
    pub fn attach(descriptor: RawFd) -> Result<Self, CommError> {
        let (file, length) = memfd::inherited(descriptor)?;
        let first = map(file, PAGE)?;
        // SAFETY: a page is mapped as long as `first` lives, it is aligned, and a header is atomics.
        let size = unsafe { &*first.as_ptr().cast::<Header>() }.read()?;
        let plan = size.plan()?;
        if plan.size != length {
            return Err(CommError::segment(format!(
                "it has {length} bytes where {size:?} takes {}",
                plan.size
            )));
        }
        Ok(Self { map: map(file, length)?, size, plan, file: None, porter: None })
    }

    /// Calls this host's porter by this bell when flags are raised.
    pub fn call_porter(&mut self, bell: Bell) {
        self.porter = Some(bell);
    }

    /// The number of the file descriptor that members inherit; `None` where this process itself has attached by one.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.file.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// How much it holds.
    pub fn size(&self) -> GroundSize {
        self.size
    }

    /// Its words.
    pub fn board(&self) -> Board {
        Board::new(self.size.shape)
    }

    fn header(&self) -> &Header {
        // SAFETY: it lies at the start of a mapping that is longer, aligned, sealed against shrinking, and lives as long as
        // `self`; it is atomics, valid whatever they hold.
        unsafe { &*self.map.as_ptr().cast() }
    }

    fn word(&self, word: usize) -> &AtomicU32 {
        let at = PAGE + word * LINE;
        assert!(at + LINE <= self.plan.notes_at, "invariant: a word of this board");
        // SAFETY: by plan it lies inside the mapping, aligned; the rest as for the header.
        unsafe { &*self.map.as_ptr().add(at).cast() }
    }

    fn noted(&self, note: usize) -> &AtomicU64 {
        let at = self.plan.notes_at + 8 * note;
        assert!(at + 8 <= self.plan.areas_at, "invariant: a note of this board");
        // SAFETY: as above.
        unsafe { &*self.map.as_ptr().add(at).cast() }
    }

    fn area(&self, offset: usize, len: usize) -> Area {
        Area::new(self.map.as_mut_ptr().wrapping_add(self.plan.areas_at + offset).cast(), len)
    }

    /// The parameters, on one side.
    pub fn parameters(&self, side: usize) -> Area {
        self.of_state(side, 0)
    }

    /// One of the values that the update rule keeps, on one side.
    pub fn state(&self, side: usize, number: usize) -> Area {
        assert!(number < self.size.state, "invariant: the rule keeps it");
        self.of_state(side, 1 + number)
    }

    fn of_state(&self, side: usize, number: usize) -> Area {
        assert!(side < 2, "invariant: there are two sides");
        self.area((side * (1 + self.size.state) + number) * self.plan.values, self.size.values)
    }

    /// The gradients of a shard.
    pub fn gradients(&self, shard: u32) -> Area {
        assert!(shard < self.size.gradients, "invariant: a shard of this run");
        let first = 2 * (1 + self.size.state) + shard as usize;
        self.area(first * self.plan.values, self.size.values)
    }

    /// The running statistics of a shard, on one side.
    pub fn statistics(&self, side: usize, shard: u32) -> Area {
        let shards = self.size.shape.shards;
        assert!(side < 2 && shard < shards, "invariant: a shard of this run");
        let before = (2 * (1 + self.size.state) + self.size.gradients as usize) * self.plan.values;
        let number = side * shards as usize + shard as usize;
        self.area(before + number * self.plan.statistics, self.size.statistics)
    }
}

impl Ground {
    /// The mean of the gradients over all shards of all hosts, slice by slice: here for other hosts, or from the one that added it up.
    pub fn means(&self) -> Area {
        self.travelling(0)
    }

    /// Where a node is put on its way out, if it has more than one shard or is rounded, by its number among these: the first one where the mean will be,
    /// which comes once the owner of the slice has the node.
    pub fn outbox(&self, number: usize) -> Area {
        self.travelling(number)
    }

    fn travelling(&self, number: usize) -> Area {
        assert!(number < self.plan.travelling, "invariant: there are outboxes for all nodes");
        let shards = self.size.shape.shards as usize;
        let before = (2 * (1 + self.size.state) + self.size.gradients as usize) * self.plan.values
            + 2 * shards * self.plan.statistics;
        self.area(before + number * self.plan.values, self.size.values)
    }

    /// Where a node of this host lies for a slice of which it is a part.
    pub fn node(&self, parts: &Parts, node: Node) -> Area {
        let is_put = |other: &Node| other.level > 0 || self.size.half.is_some();
        if !is_put(&node) {
            return self.gradients(node.first);
        }
        let put = parts.nodes(parts.own()).filter(is_put);
        self.outbox(put.take_while(|other| other.first < node.first).count())
    }
}

fn map(file: BorrowedFd<'_>, len: usize) -> Result<MmapRaw, CommError> {
    let options = MmapOptions::new().len(len).populate().map_raw(&file);
    options.map_err(CommError::system("map shared memory"))
}

impl Words for Ground {
    fn load(&self, word: usize) -> u32 {
        self.word(word).load(Ordering::Acquire)
    }

    fn store(&self, word: usize, value: u32) {
        self.word(word).store(value, Ordering::Release);
    }

    fn exchange(&self, word: usize, current: u32, new: u32) -> Result<(), u32> {
        let word = self.word(word);
        word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).map(|_| ())
    }

    fn sleep(&self, word: usize, value: u32) {
        // Whatever the system answers, whoever called looks at the word again.
        let _ = futex::wait(self.word(word), futex::Flags::empty(), value, None);
    }

    fn wake(&self, word: usize) {
        // It cannot fail on an address that is mapped and aligned.
        let _ = futex::wake(self.word(word), futex::Flags::empty(), i32::MAX as u32);
    }

    fn note(&self, note: usize) -> u64 {
        self.noted(note).load(Ordering::Relaxed)
    }

    fn set_note(&self, note: usize, value: u64) {
        self.noted(note).store(value, Ordering::Relaxed);
    }

    fn now(&self) -> Nanos {
        clock::now()
    }

    fn ring(&self) {
        if let Some(bell) = &self.porter {
            bell.ring();
        }
    }
}

#[cfg(test)]
mod tests;
