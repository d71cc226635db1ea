//! Shared memory of a launcher and its members: the words, the two states, and the gradients of all shards.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use paceline_record::{Bytes, Nanos};
use paceline_system::clock;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::thread::futex;

use super::{Board, Shape, Words};
use crate::memfd::{self, PAGE};
use crate::reduction::Sum;
use crate::{Area, CommError, Reduction};

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
}

/// Offsets in bytes.
#[derive(Clone, Copy, Debug)]
struct Plan {
    notes_at: usize,
    areas_at: usize,
    /// Length of an area of trained values, and of one of statistics.
    values: usize,
    statistics: usize,
    size: usize,
}

impl GroundSize {
    /// Memory that it takes.
    pub fn bytes(self) -> Result<Bytes, CommError> {
        self.plan().map(|plan| Bytes(plan.size as u64))
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
        let gradients = values.checked_mul(shards)?;
        let statistics_all = statistics.checked_mul(2 * shards)?;
        let size = areas_at.checked_add(states)?.checked_add(gradients)?.checked_add(statistics_all)?;
        isize::try_from(size).ok()?;
        Some(Plan { notes_at, areas_at, values, statistics, size })
    }
}

#[repr(C)]
struct Header {
    magic: AtomicU64,
    numbers: [AtomicU64; 7],
}

impl Header {
    fn write(&self, size: GroundSize) {
        let Shape { seats, shards, buckets, slices } = size.shape;
        let numbers = [
            u64::from(seats),
            u64::from(shards),
            u64::from(buckets),
            u64::from(slices),
            size.values as u64,
            size.state as u64,
            size.statistics as u64,
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
        let [seats, shards, buckets, slices, values, state, statistics] =
            [0, 1, 2, 3, 4, 5, 6].map(|place| self.numbers[place].load(Ordering::Relaxed));
        Ok(GroundSize {
            shape: Shape {
                seats: seats as u32,
                shards: shards as u32,
                buckets: buckets as u32,
                slices: slices as u32,
            },
            values: values as usize,
            state: state as usize,
            statistics: statistics as usize,
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
        let ground = Self { map: map(file.as_fd(), plan.size)?, size, plan, file: Some(file) };
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
        Ok(Self { map: map(file, length)?, size, plan, file: None })
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
        assert!(shard < self.size.shape.shards, "invariant: a shard of this run");
        let first = 2 * (1 + self.size.state) + shard as usize;
        self.area(first * self.plan.values, self.size.values)
    }

    /// The running statistics of a shard, on one side.
    pub fn statistics(&self, side: usize, shard: u32) -> Area {
        let shards = self.size.shape.shards;
        assert!(side < 2 && shard < shards, "invariant: a shard of this run");
        let before = (2 * (1 + self.size.state) + shards as usize) * self.plan.values;
        let number = side * shards as usize + shard as usize;
        self.area(before + number * self.plan.statistics, self.size.statistics)
    }
}

/// Shards whose addresses are kept on the stack.
const FEW: usize = 64;

impl Ground {
    /// The mean over all shards of a range of their gradients, added up in the order of the tree that every sum has.
    ///
    /// # Safety
    /// Nobody may write to this range of any shard's gradients meanwhile.
    ///
    /// # Panics
    /// If `into` has another length than the range.
    pub unsafe fn mean_gradients(&self, range: &Range<usize>, into: &mut [f32]) {
        assert_eq!(range.len(), into.len(), "invariant: room for the whole range");
        let shards = self.size.shape.shards;
        let part = |shard| self.gradients(shard).part(range);
        let scale = Reduction::Mean.scale(shards);
        let add = |from: &[*mut f32], into: &mut [f32]| {
            let sum = Sum { from, into: &[into.as_mut_ptr()], len: range.len(), scale };
            // SAFETY: the runs lie in their areas, and the caller vouches for them; `into` is borrowed.
            unsafe { sum.run() }
        };
        if shards as usize <= FEW {
            let mut from = [std::ptr::null_mut(); FEW];
            (0..shards).for_each(|shard| from[shard as usize] = part(shard));
            add(&from[..shards as usize], into);
        } else {
            add(&(0..shards).map(part).collect::<Vec<_>>(), into);
        }
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
}

/// Lets members call the launcher, which waits for many things at once.
pub struct Bell {
    file: OwnedFd,
}

impl Bell {
    /// A bell that processes started from now on inherit.
    pub fn create() -> Result<Self, CommError> {
        let file = rustix::event::eventfd(0, EventfdFlags::NONBLOCK);
        Ok(Self { file: file.map_err(CommError::system("create an event"))? })
    }

    /// The bell that this process has inherited under this number.
    pub fn attach(descriptor: RawFd) -> Result<Self, CommError> {
        // SAFETY: it is used in this call only, and where nothing is open under this number the system says so.
        let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let file = rustix::io::fcntl_dupfd_cloexec(file, 0);
        Ok(Self { file: file.map_err(CommError::system("find the launcher's event"))? })
    }

    /// The number of the file descriptor that members inherit.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Calls the launcher.
    pub fn ring(&self) {
        // It fails only where it has been rung four billion times and nobody looked.
        let _ = rustix::io::write(&self.file, &1_u64.to_ne_bytes());
    }

    /// Notes that the launcher has heard it.
    pub fn silence(&self) -> io::Result<()> {
        match rustix::io::read(&self.file, &mut [0_u8; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
