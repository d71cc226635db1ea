//! Where devices exchange with each other: what a launcher and its members tell each other, beside the roster.
//!
//! The state is on the devices then, the same on all of them, and nobody's gradients come into the shared memory. What the shared
//! memory *holds* is the state after some earlier step: what a checkpoint is made of, and what newcomers and other hosts get.
//!
//! - A member says how many steps have been done to the state that its device has (*stands*).
//! - While nobody is at work, the launcher *asks* one member for its state. That member writes it and says which one is held; until it
//!   has, none is. So there is one writer at a time, and a torn state is never taken for one.
//! - At a test or a checkpoint all members are after the same step: each brings a part, and raises the flag of its slice.
//! - A group of devices has a *name*, which is used once. The launcher wants one under a number of its own, and the member with the
//!   first rank makes it up, since its process answers those who join. A *seating* says by which name the members of a roster join, as
//!   which ranks, and after which step.

use super::{Board, Words, flag};
use crate::nccl::UniqueId;

/// The first word.
pub(super) const FIRST: usize = 6;

const RUN: usize = FIRST;
const HELD: usize = FIRST + 1;
const ASKED: usize = FIRST + 2;
const WANTED: usize = FIRST + 3;
const NAMED: usize = FIRST + 4;
const BROKEN: usize = FIRST + 5;
const NAME: usize = FIRST + 6;
const SEATED: usize = NAME + NAME_WORDS;
const SEATING: usize = SEATED + 1;

const NAME_WORDS: usize = size_of::<UniqueId>() / size_of::<u32>();

/// How many words there are.
pub(super) const WORDS: usize = SEATING + NAME_WORDS + 3 - FIRST;

/// How the members of a roster join a group of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seating {
    /// The name of the group.
    pub group: UniqueId,
    /// The rank of this host's first member.
    pub first: u32,
    /// Ranks of the group, on all hosts.
    pub world: u32,
    /// Steps that are done when it begins.
    pub steps: u64,
}

fn write_name(words: &impl Words, at: usize, name: &UniqueId) {
    for (word, bytes) in (at..).zip(name.as_chunks().0) {
        words.store(word, u32::from_ne_bytes(*bytes));
    }
}

fn read_name(words: &impl Words, at: usize) -> UniqueId {
    let mut name = [0; size_of::<UniqueId>()];
    for (word, bytes) in (at..).zip(name.as_chunks_mut().0) {
        *bytes = words.load(word).to_ne_bytes();
    }
    name
}

impl Board {
    /// Shows that a seat's member is alive.
    pub fn show_life(&self, words: &impl Words, seat: u32) {
        self.note_beat(words, seat);
    }

    /// The number of the newest roster.
    pub fn generation(&self, words: &impl Words) -> u32 {
        words.load(Self::GENERATION)
    }

    /// Steps that a member has done on its device, the furthest of this host.
    pub fn run(&self, words: &impl Words) -> u64 {
        u64::from(words.load(RUN))
    }

    /// Sets that number while nobody is at work.
    pub fn reset_run(&self, words: &impl Words, steps: u64) {
        words.store(RUN, steps as u32);
    }

    /// Says how many steps have been done to the state on the device of a seat's member.
    pub fn note_stand(&self, words: &impl Words, seat: u32, steps: u64) {
        words.store(self.stands(seat), steps as u32 + 1);
        let mut known = words.load(RUN);
        while known < steps as u32
            && let Err(found) = words.exchange(RUN, known, steps as u32)
        {
            known = found;
        }
    }

    /// How many they are; `None` where it has no state.
    pub fn stand(&self, words: &impl Words, seat: u32) -> Option<u64> {
        words.load(self.stands(seat)).checked_sub(1).map(u64::from)
    }

    /// The steps done to the state that the shared memory holds; `None` where it holds none.
    pub fn held(&self, words: &impl Words) -> Option<u64> {
        words.load(HELD).checked_sub(1).map(u64::from)
    }

    /// Says which state the shared memory holds. Before it is written over it holds none.
    pub fn hold_state(&self, words: &impl Words, steps: Option<u64>) {
        words.store(HELD, steps.map_or(0, |steps| steps as u32 + 1));
    }

    /// Asks a seat's member for its state; it must not be at work.
    pub fn ask_state(&self, words: &impl Words, seat: Option<u32>) {
        words.store(ASKED, seat.map_or(0, |seat| seat + 1));
    }

    /// The seat whose member is asked for its state.
    pub fn asked_state(&self, words: &impl Words) -> Option<u32> {
        words.load(ASKED).checked_sub(1)
    }

    /// A member has written a part of the state after so many steps, or all of it.
    pub fn raise_slices(&self, words: &impl Words, slices: std::ops::Range<u32>, steps: u64) {
        for slice in slices {
            flag::raise(words, self.slice_flag(0, slice), steps);
        }
        // Nothing of it comes from other hosts.
        flag::raise(words, Self::ARRIVED, steps);
    }

    /// Says that the group of a roster has failed although its members live, as far as this one knows.
    pub fn note_broken(&self, words: &impl Words, generation: u32) {
        words.store(BROKEN, generation);
    }

    /// The last roster whose group has failed.
    pub fn broken(&self, words: &impl Words) -> u32 {
        words.load(BROKEN)
    }

    /// Wants a name for a new group, under a number that was not used before.
    pub fn want_name(&self, words: &impl Words, number: u32) {
        words.store(WANTED, number);
    }

    /// The number under which a name is wanted; 0 before the first.
    pub fn wanted_name(&self, words: &impl Words) -> u32 {
        words.load(WANTED)
    }

    /// Gives a name, under the number by which it was wanted.
    pub fn give_name(&self, words: &impl Words, number: u32, name: &UniqueId) {
        words.store(NAMED, 0);
        write_name(words, NAME, name);
        words.store(NAMED, number);
    }

    /// The name that was given under a number.
    pub fn given_name(&self, words: &impl Words, number: u32) -> Option<UniqueId> {
        let is_given = || words.load(NAMED) == number;
        is_given().then(|| read_name(words, NAME)).filter(|_| is_given())
    }

    /// Says how the members of a roster join their group. It is said before the roster is published.
    pub fn seat(&self, words: &impl Words, generation: u32, seating: &Seating) {
        words.store(SEATED, 0);
        write_name(words, SEATING, &seating.group);
        for (word, number) in
            (SEATING + NAME_WORDS..).zip([seating.first, seating.world, seating.steps as u32])
        {
            words.store(word, number);
        }
        words.store(SEATED, generation);
    }

    /// How the members of a roster join their group; `None` once another roster has one.
    pub fn seating(&self, words: &impl Words, generation: u32) -> Option<Seating> {
        let is_it = || words.load(SEATED) == generation;
        let number = |place: usize| words.load(SEATING + NAME_WORDS + place);
        let read = || Seating {
            group: read_name(words, SEATING),
            first: number(0),
            world: number(1),
            steps: u64::from(number(2)),
        };
        is_it().then(read).filter(|_| is_it())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{Ground, GroundSize, Shape};

    fn ground() -> Ground {
        let shape = Shape { seats: 2, shards: 4, buckets: 1, slices: 2, hosts: 2 };
        let size = GroundSize { shape, values: 10, state: 1, statistics: 3, half: None, gradients: 0 };
        Ground::create(size).expect("memory")
    }

    #[test]
    fn a_name_is_found_under_its_own_number_alone() {
        let ground = ground();
        let board = ground.board();
        assert_eq!((board.wanted_name(&ground), board.given_name(&ground, 1)), (0, None));
        board.want_name(&ground, 1);
        let name: UniqueId = std::array::from_fn(|place| place as u8);
        board.give_name(&ground, 1, &name);
        assert_eq!(board.given_name(&ground, 1), Some(name));
        board.want_name(&ground, 2);
        assert_eq!(board.given_name(&ground, 2), None, "that of another roster is not taken for it");
    }

    #[test]
    fn a_seating_is_that_of_its_roster_alone() {
        let ground = ground();
        let board = ground.board();
        let seating = Seating { group: [7; 128], first: 2, world: 4, steps: 9 };
        board.seat(&ground, 3, &seating);
        assert_eq!(board.seating(&ground, 3), Some(seating));
        assert_eq!(board.seating(&ground, 2), None);
        assert_eq!(board.seating(&ground, 4), None);
    }

    #[test]
    fn members_stand_where_they_said_and_the_furthest_is_how_far_a_host_has_run() {
        let ground = ground();
        let board = ground.board();
        assert_eq!((board.stand(&ground, 0), board.run(&ground)), (None, 0));
        board.note_stand(&ground, 0, 5);
        board.note_stand(&ground, 1, 4);
        assert_eq!((board.stand(&ground, 0), board.stand(&ground, 1)), (Some(5), Some(4)));
        assert_eq!(board.run(&ground), 5);
        board.reset_run(&ground, 4);
        assert_eq!(board.run(&ground), 4);
    }

    #[test]
    fn a_state_is_held_once_it_is_said_to_be_and_its_flags_tell_of_it() {
        let ground = ground();
        let board = ground.board();
        assert_eq!(board.held(&ground), None);
        board.begin_at(&ground, 3, 3);
        board.raise_slices(&ground, 0..1, 8);
        assert_eq!(board.steps_done(&ground, 3), 3, "a part is missing");
        board.raise_slices(&ground, 1..2, 8);
        assert_eq!(board.steps_done(&ground, 3), 8);
        board.hold_state(&ground, Some(8));
        assert_eq!(board.held(&ground), Some(8));
        board.hold_state(&ground, None);
        assert_eq!(board.held(&ground), None);
    }
}
