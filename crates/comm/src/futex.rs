//! A word in shared memory that processes can sleep on.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};

use crate::Deadline;
use crate::handoff::{Slept, Word};

/// A futex that is not private to a process, on cache lines of its own (two, as they are fetched in pairs).
#[repr(C, align(128))]
pub(crate) struct Futex(AtomicU32);

impl Word for Futex {
    fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn add(&self, value: u32) -> u32 {
        self.0.fetch_add(value, Ordering::AcqRel)
    }

    fn set(&self, bits: u32) -> u32 {
        self.0.fetch_or(bits, Ordering::AcqRel)
    }

    fn clear(&self, bits: u32) {
        self.0.fetch_and(!bits, Ordering::AcqRel);
    }

    fn sleep(&self, value: u32, by: Deadline) -> Slept {
        let everyone = NonZeroU32::MAX;
        let answer = futex::wait_bitset(&self.0, Flags::empty(), value, Some(&by.timespec()), everyone);
        // Whatever the system answers, the deadline holds.
        if answer == Err(Errno::TIMEDOUT) || by.has_passed() { Slept::TimedOut } else { Slept::Woken }
    }

    fn wake(&self) {
        // It cannot fail on an address that is mapped and aligned.
        let _ = futex::wake(&self.0, Flags::empty(), i32::MAX as u32);
    }
}
