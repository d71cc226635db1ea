//! Where devices exchange with each other: what a host has to do with their group (`elastic/member/woven.rs`).

use paceline_comm::tasks::authority::Word;
use paceline_comm::tasks::{Ground, Seating};

use super::{Hosting, Phase};

/// Steps done when a roster takes effect: on this host, unless it has no state, and on the furthest.
pub(super) struct Reached {
    pub(super) own: Option<u64>,
    pub(super) all: u64,
}

/// What flags told of parts of a state that was never complete is void, and so is what members ran that no host has. A state that is
/// about to come is not held.
pub(super) fn void_parts(ground: &Ground, passed: u64, Reached { own, all }: Reached) {
    let board = ground.board();
    if let Some(done) = own {
        board.begin_at(ground, done, passed.min(done));
    }
    if own != Some(all) {
        board.hold_state(ground, None);
    }
    board.reset_run(ground, all);
}

impl Hosting {
    /// How members join the group of this roster, once.
    pub fn take_seating(&mut self) -> Option<Seating> {
        self.seating.take()
    }

    /// Tells the authority that a group of devices at work cannot go on.
    pub fn break_group(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Broken;
            self.party.say(Word::Breaks { generation: self.roster.generation });
        }
    }

    /// Members of a group of devices stop, until another roster is called.
    pub fn halt(&mut self) {
        self.phase = Phase::Broken;
    }

    /// The number under which a new name for a group is wanted, where this host makes it up: whoever has made up the last one may
    /// be gone.
    pub fn want_name(&mut self) -> Option<u32> {
        let is_called = matches!(self.phase, Phase::Called { .. });
        self.names_group = is_called && self.roster.place_of(self.host()) == Some(0);
        self.names += u32::from(self.names_group);
        self.wanted_name()
    }

    /// The number under which it is wanted.
    pub fn wanted_name(&self) -> Option<u32> {
        self.names_group.then_some(self.names)
    }
}
