//! Who takes part, as the launcher has published it.

use super::Member;
use crate::tasks::{Board, Parts, Words};

/// Who takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Roster {
    pub(super) generation: u32,
    /// Members, as the roster names them, by rank.
    pub(super) members: Vec<u32>,
    /// This member's rank; `None` where it is not of them.
    pub(super) rank: Option<u32>,
    /// Steps after which the run ends.
    pub(super) end: u64,
    /// The part of a step that is this host's.
    pub(super) parts: Parts,
}

impl Roster {
    /// Before there is one.
    pub(super) fn none(board: Board) -> Self {
        let parts = Parts::whole(board.shape().shards, board.shape().slices);
        Self { generation: 0, members: Vec::new(), rank: None, end: 0, parts }
    }
}

impl<M: Words> Member<'_, M> {
    pub(super) fn read_roster(&self) -> Roster {
        let words = self.words;
        loop {
            let generation = words.load(Board::GENERATION);
            let at = self.board.roster(generation);
            let is_it = || generation > 0 && words.load(at) == generation;
            if is_it() {
                let count = words.load(at + 1).min(self.board.shape().seats);
                let end = words.load(at + 2);
                let member = |place| words.load(self.board.roster_place(generation, place));
                let members: Vec<u32> = (0..count as usize).map(member).collect();
                let hosts = self.board.roster_hosts(generation);
                let count = words.load(hosts).min(self.board.shape().hosts);
                let place = words.load(hosts + 1);
                let ends: Vec<u32> = (0..count as usize).map(|place| words.load(hosts + 2 + place)).collect();
                if is_it() {
                    let parts = Parts::new(ends, place as usize, self.board.shape().slices);
                    let own = Board::named(self.seat, self.number);
                    let rank = members.iter().position(|&member| member == own).map(|rank| rank as u32);
                    return Roster { generation, members, rank, end: u64::from(end), parts };
                }
            } else if generation == 0 {
                return Roster::none(self.board);
            }
        }
    }
}
