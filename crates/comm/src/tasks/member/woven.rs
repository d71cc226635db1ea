//! A member whose state is on a device, which exchanges with others by itself ([`group`](super::super::group)): it takes part in
//! rosters and tests, and does no tasks of a step.
//!
//! It sleeps in `nap`, its caller's own, for a moment at a time: it has more to look at than one flag.

use super::{Ended, Member, Tests};
use crate::tasks::board::Task;
use crate::tasks::{Board, Words, flag};

impl<M: Words> Member<'_, M> {
    /// Waits until the launcher has named it in a roster, whether work goes on by that or not.
    pub fn join_alone(&mut self) {
        self.wait_to_be_in();
    }

    /// Whether there is a newer roster than it works by.
    pub fn is_called(&self) -> bool {
        self.words.load(Board::GENERATION) != self.roster.generation
    }

    /// Goes over to the newest roster, and waits until work goes on by it. `nap` also does what the launcher asks of members that stand
    /// still.
    pub fn stand_by<E>(&mut self, mut nap: impl FnMut(&Self) -> Result<(), E>) -> Result<Ended, E> {
        loop {
            self.beat();
            if !self.is_in() {
                return Ok(Ended::Left);
            }
            if self.goes {
                return Ok(Ended::Done);
            }
            nap(self)?;
        }
    }

    /// Shows that it is alive.
    pub fn show_life(&self) {
        self.board.note_beat(self.words, self.seat);
    }

    /// Whether what was due after so many steps has been done.
    pub fn has_passed(&self, steps: u64) -> bool {
        flag::has_reached(self.words, Board::PASSED, steps)
    }

    /// Does its parts of a test after so many steps, of which the members of this host do all, and waits for the others'. `false`
    /// where another roster was called meanwhile.
    pub fn test_alone<T: Tests>(
        &mut self,
        steps: u64,
        tests: &mut T,
        nap: &dyn Fn(),
    ) -> Result<bool, T::Error> {
        let parts = self.board.shape().shards;
        for part in self.own(parts) {
            let is_done = flag::has_reached(self.words, self.board.test_flag(part), steps);
            if is_done || self.is_called() || self.claim(Task::Test(part), steps).is_none() {
                continue;
            }
            tests.run(part, &mut || self.show_life())?;
            self.raise_to(self.board.test_flag(part), steps);
        }
        while !self.board.is_tested(self.words, steps) {
            if self.is_called() {
                return Ok(false);
            }
            nap();
        }
        Ok(true)
    }
}
