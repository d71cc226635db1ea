//! Words that tell how many steps something has been done for, and that members sleep on.
//!
//! A flag holds a count, the low bits of the roster's generation, and whether somebody sleeps on it. All of it is one word, so
//! there is no order between two words to get wrong. The count rises when a task is done. The launcher *calls* every flag
//! when it publishes a roster: it writes the new generation into the word, so whoever is about to sleep does not, and whoever
//! sleeps wakes and looks at the roster. Nobody sleeps with a deadline: the launcher sees who is lost and who is stuck, and its
//! members end with it.

use super::Words;

/// Somebody may be asleep on this word.
const SLEEPERS: u32 = 1;
const GENERATION_SHIFT: u32 = 1;
/// Low bits of the generation. A member that has not acknowledged a roster may be a few of them behind, never half of these.
const GENERATION_MASK: u32 = 0xff << GENERATION_SHIFT;
const COUNT_SHIFT: u32 = 9;
/// Counts wrap at 2^23; no two that are compared are ever half of that apart.
const COUNT_BITS: u32 = u32::BITS - COUNT_SHIFT;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// The count was reached.
    Reached,
    /// There is a newer roster than the waiter knows.
    Called,
}

/// The low bits of a count, as a flag holds them.
pub(super) fn count_bits(count: u64) -> u32 {
    (count as u32) & (u32::MAX >> COUNT_SHIFT)
}

/// Whether a count, given by its low bits, has come to `count`.
pub(super) fn is_at_least(bits: u32, count: u64) -> bool {
    ((bits.wrapping_sub(count as u32) << (u32::BITS - COUNT_BITS)) as i32) >= 0
}

fn count_of(value: u32) -> u32 {
    value >> COUNT_SHIFT
}

fn with_count(value: u32, count: u64) -> u32 {
    (count_bits(count) << COUNT_SHIFT) | (value & GENERATION_MASK)
}

fn is_newer(value: u32, generation: u32) -> bool {
    let told = ((value & GENERATION_MASK) >> GENERATION_SHIFT) as u8;
    (told.wrapping_sub(generation as u8) as i8) > 0
}

/// Whether the flag has come to `count`.
pub(super) fn has_reached(words: &impl Words, word: usize, count: u64) -> bool {
    is_at_least(count_of(words.load(word)), count)
}

/// The count near `about`, which is at most a few steps away.
pub(super) fn count(words: &impl Words, word: usize, about: u64) -> u64 {
    let bits = count_of(words.load(word));
    let ahead = (bits.wrapping_sub(about as u32) << (u32::BITS - COUNT_BITS)) as i32;
    about.wrapping_add_signed(i64::from(ahead >> (u32::BITS - COUNT_BITS)))
}

/// Raises the flag to `count`, and wakes who waits for it. A flag that is there already stays.
pub(super) fn raise(words: &impl Words, word: usize, count: u64) {
    change(words, word, |value| {
        let reached = is_at_least(count_of(value), count);
        (!reached).then(|| with_count(value, count))
    });
}

/// Takes the flag back to `count`. Nobody may act on it meanwhile.
pub(super) fn lower(words: &impl Words, word: usize, count: u64) {
    change(words, word, |value| Some(with_count(value, count)));
}

/// Makes everybody who waits, or is about to, look at the roster of this generation. Those who sleep are woken even where the
/// word tells of none: whoever was killed between raising a flag and waking its sleepers has left them asleep.
pub(super) fn call(words: &impl Words, word: usize, generation: u32) {
    let bits = (generation << GENERATION_SHIFT) & GENERATION_MASK;
    change(words, word, |value| Some((value & !(GENERATION_MASK | SLEEPERS)) | bits));
    #[cfg(test)]
    if words.has(super::simulation::Mistake::NoWake) {
        return;
    }
    words.wake(word);
}

/// Changes a word to one without sleepers, and wakes those that it had.
fn change(words: &impl Words, word: usize, mut change: impl FnMut(u32) -> Option<u32>) {
    let mut value = words.load(word);
    while let Some(new) = change(value) {
        match words.exchange(word, value, new) {
            Ok(()) if value & SLEEPERS != 0 => return words.wake(word),
            Ok(()) => return,
            Err(found) => value = found,
        }
    }
}

/// Sleeps until a roster newer than `generation` is there.
pub(super) fn wait_for_call(words: &impl Words, word: usize, generation: u32) {
    // Half-way round: a count that is never reached.
    let never = u64::from(count_of(words.load(word))) + (1 << (COUNT_BITS - 1)) - 1;
    while wait(words, word, never, generation) == Waited::Reached {}
}

/// Sleeps until the flag has come to `count`, or a roster newer than `generation` is there.
pub(super) fn wait(words: &impl Words, word: usize, count: u64, generation: u32) -> Waited {
    loop {
        let value = words.load(word);
        if is_at_least(count_of(value), count) {
            return Waited::Reached;
        }
        if is_newer(value, generation) {
            return Waited::Called;
        }
        if value & SLEEPERS == 0 && words.exchange(word, value, value | SLEEPERS).is_err() {
            continue;
        }
        words.sleep(word, value | SLEEPERS);
    }
}
