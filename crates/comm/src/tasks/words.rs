//! The memory that a launcher and its members share, as far as the protocol sees it.

use paceline_record::Nanos;

/// Words of 32 bits by number, on which processes can sleep, and notes of 64 bits beside them.
///
/// Words order what was written before them: who has seen a word's value sees all that its writer had written. Notes order
/// nothing; they are read where a word says that they have been written.
pub trait Words {
    /// A word's value.
    fn load(&self, word: usize) -> u32;
    /// Sets a word that only one process writes.
    fn store(&self, word: usize, value: u32);
    /// Sets a word if it still has the value `current`; else gives the one that it has.
    fn exchange(&self, word: usize, current: u32, new: u32) -> Result<(), u32>;
    /// Sleeps while the word has this value, until somebody wakes it, or for no reason.
    fn sleep(&self, word: usize, value: u32);
    /// Wakes all that sleep on a word.
    fn wake(&self, word: usize);
    /// A note's value.
    fn note(&self, note: usize) -> u64;
    /// Sets a note.
    fn set_note(&self, note: usize, value: u64);
    /// The time.
    fn now(&self) -> Nanos;
    /// Tells this host's porter that a flag was raised.
    fn ring(&self) {}

    /// A mistake that tests plant.
    #[cfg(test)]
    fn has(&self, _mistake: super::simulation::Mistake) -> bool {
        false
    }
}
