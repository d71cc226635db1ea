//! Shared memory of the launcher and its workers: an inherited file descriptor of a file that has no name.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::available_parallelism;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use paceline_record::{Bytes, Rank};

use crate::control::{Header, Lane, MAGIC, VERSION};
use crate::memfd::{self, PAGE};
use crate::slice::deal;
use crate::{Area, CommError, Shm};

/// How long a waiter spins before it sleeps, where every rank can have a core: about what a sleep and a wake-up cost.
const SPIN: Duration = Duration::from_micros(40);

/// How much a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSize {
    /// Ranks.
    pub world: u32,
    /// Areas that reductions add up, in this order: at least one a rank, dealt out as [`deal`] says.
    pub areas: u32,
    /// Values of each of these areas.
    pub own: usize,
    /// Values of the one area that all ranks have in common.
    pub common: usize,
}

impl SegmentSize {
    /// Memory that it takes, control block and all.
    pub fn bytes(self) -> Result<Bytes, CommError> {
        self.plan().map(|plan| Bytes(plan.size as u64))
    }

    /// Where everything lies.
    fn plan(self) -> Result<Plan, CommError> {
        if self.world == 0 {
            return Err(CommError::segment("a world has at least one rank"));
        }
        if self.areas < self.world {
            return Err(CommError::segment(format!(
                "{} areas are too few for {} ranks",
                self.areas, self.world
            )));
        }
        self.checked_plan()
            .ok_or_else(|| CommError::segment(format!("{self:?} is more than can be addressed at all")))
    }

    fn checked_plan(self) -> Option<Plan> {
        let world = self.world as usize;
        let area = |values: usize| values.checked_mul(size_of::<f32>())?.checked_next_multiple_of(PAGE);
        let own_stride = area(self.own)?;
        let lane_stride = size_of::<Lane>().next_multiple_of(PAGE);
        let own_at = lane_stride.checked_mul(world)?.checked_add(PAGE)?;
        let common_at = own_stride.checked_mul(self.areas as usize)?.checked_add(own_at)?;
        let size = area(self.common)?.checked_add(common_at)?;
        isize::try_from(size).ok()?;
        Some(Plan { lane_stride, own_at, own_stride, common_at, size })
    }
}

/// Offsets in bytes. The header is at 0, the lanes begin on the next page.
#[derive(Clone, Copy, Debug)]
struct Plan {
    lane_stride: usize,
    own_at: usize,
    own_stride: usize,
    common_at: usize,
    size: usize,
}

/// Shared memory of a launcher and its workers. It has no name and goes with the last process that holds it, however
/// that ends.
#[derive(Clone)]
pub struct Segment {
    mapping: Arc<Mapping>,
    /// Kept by its creator, for workers still to be started.
    file: Option<Arc<OwnedFd>>,
}

impl Segment {
    /// Takes the memory, all of it at once. Processes that this one starts from now on inherit it.
    pub fn create(size: SegmentSize) -> Result<Self, CommError> {
        let plan = size.plan()?;
        let available = memfd::room();
        if plan.size as u64 > available.0 {
            let (world, needed) = (size.world, Bytes(plan.size as u64));
            return Err(CommError::TooLarge { world, needed, available });
        }
        let file = memfd::create(plan.size)?;
        let mapping = Mapping::new(&file, size, plan)?;
        let header = mapping.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.world.store(size.world, Ordering::Relaxed);
        header.areas.store(size.areas, Ordering::Relaxed);
        header.own.store(size.own as u64, Ordering::Relaxed);
        header.common.store(size.common as u64, Ordering::Relaxed);
        // With fewer cores than ranks, whoever spins keeps the one it waits for from running.
        let cores = available_parallelism().map_or(1, usize::from);
        let spin = if size.world as usize <= cores { SPIN } else { Duration::ZERO };
        header.spin.store(spin.as_nanos() as u64, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(Self { mapping: Arc::new(mapping), file: Some(Arc::new(file)) })
    }

    /// The number of the file descriptor that workers inherit; `None` where this process itself has attached by one.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.file.as_ref().map(|file| file.as_raw_fd())
    }

    /// Maps a segment that this process has inherited under this number. The descriptor stays open.
    pub fn attach(descriptor: RawFd) -> Result<Self, CommError> {
        let (file, length) = memfd::inherited(descriptor)?;
        let claimed = read_header(file)?;
        let plan = claimed.plan()?;
        if plan.size != length {
            let why = format!("it has {length} bytes where {claimed:?} takes {}", plan.size);
            return Err(CommError::segment(format!("file descriptor {descriptor} is none: {why}")));
        }
        Ok(Self { mapping: Arc::new(Mapping::new(file, claimed, plan)?), file: None })
    }

    /// How much it holds.
    pub fn size(&self) -> SegmentSize {
        self.mapping.size
    }

    /// One of the areas that reductions add up.
    ///
    /// # Panics
    /// If there is no such area.
    pub fn area(&self, index: u32) -> Area {
        self.mapping.area(index)
    }

    /// The values that all ranks have in common.
    pub fn common(&self) -> Area {
        self.mapping.common()
    }

    /// Becomes a rank. Each can be taken once in the life of a segment.
    pub fn join(&self, rank: Rank) -> Result<Shm, CommError> {
        if rank.0 >= self.size().world {
            let world = self.size().world;
            return Err(CommError::segment(format!("there is no rank {rank} in a world of {world}")));
        }
        if !self.mapping.lane(rank).take() {
            return Err(CommError::segment(format!("rank {rank} is already taken")));
        }
        Ok(Shm::new(Arc::clone(&self.mapping), rank))
    }

    /// Asks whoever decides when ranks stop to do so.
    pub fn ask_to_stop(&self) {
        self.mapping.header().stop_asked.store(1, Ordering::SeqCst);
    }

    /// Whether somebody has asked.
    pub fn is_asked_to_stop(&self) -> bool {
        self.mapping.header().stop_asked.load(Ordering::SeqCst) != 0
    }

    /// Lets all ranks stop when so many steps are done. One rank decides, before it takes part in the last of them.
    pub fn stop_after(&self, steps: u64) {
        self.mapping.header().stop_after.store(steps, Ordering::SeqCst);
    }

    /// The steps after which all ranks stop, if that has been decided.
    pub fn stops_after(&self) -> Option<u64> {
        Some(self.mapping.header().stop_after.load(Ordering::SeqCst)).filter(|&steps| steps > 0)
    }

    /// Tells all ranks that one has died, and why: whoever waits for it, now or later, stops waiting. The first death
    /// counts. Not for a rank that did all it was to do.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn mark_dead(&self, rank: Rank, why: &str) {
        let world = self.size().world;
        assert!(rank.0 < world, "rank {rank} is not one of a world of {world}");
        // Whoever finds a count poisoned finds the reason noted.
        if self.mapping.header().fail(rank, why) {
            (0..world).for_each(|rank| self.mapping.lane(Rank(rank)).poison());
        }
    }
}

/// What the header of a file says that it holds.
fn read_header(file: BorrowedFd<'_>) -> Result<SegmentSize, CommError> {
    let map = MmapOptions::new().len(PAGE).map_raw(&file).map_err(CommError::system("map shared memory"))?;
    // SAFETY: a page is mapped as long as `map` lives, it is aligned, and a header is atomics, valid whatever they hold.
    let header = unsafe { &*map.as_ptr().cast::<Header>() };
    if header.magic.load(Ordering::Acquire) != MAGIC {
        return Err(CommError::segment("it does not begin as one"));
    }
    let version = header.version.load(Ordering::Relaxed);
    if version != VERSION {
        return Err(CommError::segment(format!(
            "it has version {version}; this program uses version {VERSION}"
        )));
    }
    let values = |count: u64| {
        usize::try_from(count).map_err(|_| CommError::segment(format!("{count} values cannot be addressed")))
    };
    Ok(SegmentSize {
        world: header.world.load(Ordering::Relaxed),
        areas: header.areas.load(Ordering::Relaxed),
        own: values(header.own.load(Ordering::Relaxed))?,
        common: values(header.common.load(Ordering::Relaxed))?,
    })
}

/// A segment in this process's address space.
pub(crate) struct Mapping {
    map: MmapRaw,
    size: SegmentSize,
    plan: Plan,
}

impl Mapping {
    fn new(file: impl std::os::fd::AsFd, size: SegmentSize, plan: Plan) -> Result<Self, CommError> {
        // The pages exist; entering them all now keeps faults out of the first operations.
        let map = MmapOptions::new()
            .len(plan.size)
            .populate()
            .map_raw(&file.as_fd())
            .map_err(CommError::system("map shared memory"))?;
        Ok(Self { map, size, plan })
    }

    /// How much it holds.
    pub fn size(&self) -> SegmentSize {
        self.size
    }

    /// What it is, and who died.
    pub fn header(&self) -> &Header {
        // SAFETY: it lies at the start of a mapping that is longer, aligned, sealed against shrinking, and lives as long
        // as `self`; it is atomics, valid whatever they hold.
        unsafe { &*self.map.as_ptr().cast() }
    }

    /// A rank's part of the control block.
    pub fn lane(&self, rank: Rank) -> &Lane {
        assert!(rank.0 < self.size.world, "invariant: a rank of this world");
        let at = PAGE + rank.0 as usize * self.plan.lane_stride;
        // SAFETY: by plan it lies inside the mapping, on a page boundary; the rest as for the header.
        unsafe { &*self.map.as_ptr().add(at).cast() }
    }

    /// One of the areas that reductions add up.
    pub fn area(&self, index: u32) -> Area {
        assert!(index < self.size.areas, "invariant: an area of this segment");
        let at = self.plan.own_at + index as usize * self.plan.own_stride;
        Area::new(self.map.as_mut_ptr().wrapping_add(at).cast(), self.size.own)
    }

    /// The areas that a rank holds.
    pub fn held(&self, rank: Rank) -> impl Iterator<Item = Area> {
        deal(self.size.areas, rank, self.size.world).map(|index| self.area(index))
    }

    /// The first area of a rank: its own values, where results go.
    pub fn own(&self, rank: Rank) -> Area {
        self.area(deal(self.size.areas, rank, self.size.world).start)
    }

    /// The values that all ranks have in common.
    pub fn common(&self) -> Area {
        let at = self.map.as_mut_ptr().wrapping_add(self.plan.common_at);
        Area::new(at.cast(), self.size.common)
    }
}

#[cfg(test)]
mod tests;
