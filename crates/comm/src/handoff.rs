//! How a rank tells others how far it is, and how they wait for it.
//!
//! A rank counts what it has done in a 32-bit word that only it advances; all others may read it, sleep on it, and set the
//! two bits below the count. Everything that matters is in that one word, so there is no order between two words to get
//! wrong: a sleeper first sets [`SLEEPERS`] and then sleeps only while the word is unchanged, and whoever advances the
//! count sees the bit in the very value it replaces. What the rank wrote before it advanced is visible to whoever has seen
//! the count. The tests run this code, unchanged, through every interleaving that loom can find.

use crate::Deadline;

/// Nobody will advance this count any more; waiting is in vain.
const POISONED: u32 = 1;
/// Somebody may be asleep on this word.
const SLEEPERS: u32 = 2;
/// One more.
const ONE: u32 = 4;

/// A 32-bit word that ranks share and can sleep on: a futex, or loom's model of one.
pub(crate) trait Word {
    /// Its value; sees what was written before it was advanced (acquire).
    fn load(&self) -> u32;
    /// Adds, wrapping, and gives the old value; publishes what was written before (acquire and release).
    fn add(&self, value: u32) -> u32;
    /// Sets bits and gives the old value (acquire and release).
    fn set(&self, bits: u32) -> u32;
    /// Clears bits (acquire and release).
    fn clear(&self, bits: u32);
    /// Sleeps while it has this value, until a wake, the deadline, or for no reason.
    fn sleep(&self, value: u32, by: Deadline) -> Slept;
    /// Wakes all that sleep on it.
    fn wake(&self);
}

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// Something may have changed.
    Woken,
    /// The deadline passed.
    TimedOut,
}

/// How waiting for a count ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It was reached.
    Reached,
    /// It never will be.
    Poisoned,
    /// It was not in time.
    TimedOut,
}

/// Counts one more, and wakes who waited for it.
pub(crate) fn advance<W: Word>(word: &W) {
    let before = word.add(ONE);
    if before & SLEEPERS != 0 {
        word.clear(SLEEPERS);
        word.wake();
    }
}

/// Gives the count up for lost, and wakes who waited for it.
pub(crate) fn poison<W: Word>(word: &W) {
    word.set(POISONED);
    word.wake();
}

/// Whether the count has come to `count`. Counts wrap at 2^30; no two ranks are ever half of that apart.
pub(crate) fn has_reached<W: Word>(word: &W, count: u64) -> bool {
    is_reached(word.load(), count)
}

fn is_reached(value: u32, count: u64) -> bool {
    // Shifted so that the difference, of 30 bits, has its sign where an i32 has it.
    let ahead = (value >> 2).wrapping_sub(count as u32) << 2;
    ahead as i32 >= 0
}

/// Sleeps until the count has come to `count`.
pub(crate) fn wait<W: Word>(word: &W, count: u64, by: Deadline) -> Wait {
    loop {
        let mut seen = word.load();
        if is_reached(seen, count) {
            return Wait::Reached;
        }
        if seen & POISONED != 0 {
            return Wait::Poisoned;
        }
        if seen & SLEEPERS == 0 {
            if word.set(SLEEPERS) != seen {
                continue;
            }
            seen |= SLEEPERS;
        }
        if word.sleep(seen, by) == Slept::TimedOut {
            return if has_reached(word, count) { Wait::Reached } else { Wait::TimedOut };
        }
    }
}

#[cfg(test)]
mod tests;
