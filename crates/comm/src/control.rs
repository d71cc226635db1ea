//! The control block at the start of a segment: what it is, how far each rank is, what each rank has begun, and who died.
//!
//! All of it is atomics, so that any process may look at any time; what belongs together is ordered by the counts of
//! [`Lane`]: a rank fills a [`Slot`] before it advances the count that announces it.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use paceline_record::{Nanos, Rank};

use crate::futex::Futex;
use crate::handoff;
use crate::ledger::LIMIT;
use crate::operation::Descriptor;

/// First word of every segment: "paceline" in ASCII.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"paceline");

/// To be raised with every change to this layout.
pub(crate) const VERSION: u32 = 3;

/// Operations that each rank's ring holds. A rank has finished an operation before it begins the one [`LIMIT`] later, and
/// finishing means that all have begun. So whoever begins the one twice as far on has finished the one half-way, all
/// others have begun that, and nobody will look at the first any more.
const RING: usize = 2 * LIMIT as usize;

/// Longest reason for a death, in bytes.
const REASON: usize = 256;

/// [`Header::failed`] while the reason is being written.
const FAILING: u32 = u32::MAX;

/// What a segment is, and who died.
#[repr(C)]
pub(crate) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub world: AtomicU32,
    pub areas: AtomicU32,
    pub own: AtomicU64,
    pub common: AtomicU64,
    /// Nanoseconds that a waiter spins before it sleeps.
    pub spin: AtomicU64,
    /// 1 once somebody has asked all ranks to stop.
    pub stop_asked: AtomicU32,
    /// 0, then the steps after which all ranks stop.
    pub stop_after: AtomicU64,
    /// 0 while all live, then 1 + the rank that died first.
    failed: AtomicU32,
    reason_len: AtomicU32,
    reason: [AtomicU8; REASON],
}

impl Header {
    /// Records which rank died and why; `false` if another death was recorded first.
    pub fn fail(&self, rank: Rank, why: &str) -> bool {
        let first = self.failed.compare_exchange(0, FAILING, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err() {
            return false;
        }
        let why = &why[..why.floor_char_boundary(REASON)];
        for (into, byte) in self.reason.iter().zip(why.bytes()) {
            into.store(byte, Ordering::Relaxed);
        }
        self.reason_len.store(why.len() as u32, Ordering::Relaxed);
        self.failed.store(rank.0 + 1, Ordering::Release);
        true
    }

    /// The rank that died first, and why.
    pub fn failure(&self) -> Option<(Rank, String)> {
        let failed = self.failed.load(Ordering::Acquire);
        if failed == 0 || failed == FAILING {
            return None;
        }
        let len = self.reason_len.load(Ordering::Relaxed) as usize;
        let bytes: Vec<u8> =
            self.reason[..len.min(REASON)].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        Some((Rank(failed - 1), String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// One rank's part of the control block.
#[repr(C)]
pub(crate) struct Lane {
    /// Operations it has begun.
    pub arrived: Futex,
    /// Operations it has done its part of.
    pub done: Futex,
    /// 1 once a process has claimed it.
    taken: AtomicU32,
    ring: [Slot; RING],
}

impl Lane {
    /// Claims it for this process; `false` if another process already has.
    pub fn take(&self) -> bool {
        self.taken.swap(1, Ordering::Relaxed) == 0
    }

    /// What the rank records about an operation.
    pub fn slot(&self, number: u64) -> &Slot {
        &self.ring[(number % RING as u64) as usize]
    }

    /// Makes everyone stop waiting for this rank.
    pub fn poison(&self) {
        handoff::poison(&self.arrived);
        handoff::poison(&self.done);
    }
}

/// What a rank records about one operation, on a cache line of its own.
#[repr(C, align(64))]
pub(crate) struct Slot {
    kind: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    arrived_at: AtomicU64,
    done_at: AtomicU64,
}

impl Slot {
    /// Records what was begun, and when. The caller then advances [`Lane::arrived`].
    pub fn note_arrival(&self, descriptor: Descriptor, at: Nanos) {
        self.kind.store(descriptor.kind, Ordering::Relaxed);
        self.start.store(descriptor.start, Ordering::Relaxed);
        self.end.store(descriptor.end, Ordering::Relaxed);
        self.arrived_at.store(at.0, Ordering::Relaxed);
    }

    /// Records when the rank's part was done. The caller then advances [`Lane::done`].
    pub fn note_completion(&self, at: Nanos) {
        self.done_at.store(at.0, Ordering::Relaxed);
    }

    /// What was begun.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor {
            kind: self.kind.load(Ordering::Relaxed),
            start: self.start.load(Ordering::Relaxed),
            end: self.end.load(Ordering::Relaxed),
        }
    }

    /// When it was begun.
    pub fn arrived_at(&self) -> Nanos {
        Nanos(self.arrived_at.load(Ordering::Relaxed))
    }

    /// When the rank's part was done.
    pub fn done_at(&self) -> Nanos {
        Nanos(self.done_at.load(Ordering::Relaxed))
    }
}

// The header fits the room kept for it, and readers of any version find what they check first where it always was.
const _: () = assert!(size_of::<Header>() <= 4096);
const _: () = assert!(offset_of!(Header, magic) == 0 && offset_of!(Header, version) == 8);

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            magic: AtomicU64::new(MAGIC),
            version: AtomicU32::new(VERSION),
            world: AtomicU32::new(2),
            areas: AtomicU32::new(2),
            own: AtomicU64::new(0),
            common: AtomicU64::new(0),
            spin: AtomicU64::new(0),
            stop_asked: AtomicU32::new(0),
            stop_after: AtomicU64::new(0),
            failed: AtomicU32::new(0),
            reason_len: AtomicU32::new(0),
            reason: std::array::from_fn(|_| AtomicU8::new(0)),
        }
    }

    #[test]
    fn the_first_death_counts_and_keeps_its_reason() {
        let header = header();
        assert_eq!(header.failure(), None);
        assert!(header.fail(Rank(1), "signal 9"));
        assert!(!header.fail(Rank(0), "exit code 1"));
        assert_eq!(header.failure(), Some((Rank(1), "signal 9".into())));
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let header = header();
        header.fail(Rank(0), &"é".repeat(REASON));
        let (_, why) = header.failure().expect("somebody died");
        assert_eq!(why, "é".repeat(REASON / 2));
    }
}
