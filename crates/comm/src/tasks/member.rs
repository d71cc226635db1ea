//! A member's side: which task comes next, and what to wait for.

mod duty;
mod roster;
mod slices;
mod woven;

use std::ops::Range;

use paceline_record::{Nanos, Rank};

use super::board::{Claim, Task};
use super::flag::{self, Waited};
use super::{Board, Parts, Words};
use crate::deal;
pub use duty::{Dealing, Ended, ShardTask, Shards, SliceTask, Slices, Tests, Wait, Waiting};
use roster::Roster;

/// One member, in a seat.
pub struct Member<'a, M> {
    words: &'a M,
    board: Board,
    seat: u32,
    number: u32,
    dealing: Dealing,
    roster: Roster,
    /// Whether work goes on by this roster.
    goes: bool,
    /// Whether the state before the step at work may not be there by this roster.
    unchecked: bool,
    step: u64,
    /// Buckets that were found complete in this step.
    complete: u32,
    /// Buckets whose own slices were done, or found to be taken.
    past: u32,
    waits: Vec<Wait>,
    /// Generations that were acknowledged in this step.
    generations: Vec<u32>,
    spin: Nanos,
}

impl<'a, M: Words> Member<'a, M> {
    /// A member that has all it needs, in the seat that the launcher gave it. `number` is its own, never used again.
    pub fn enter(words: &'a M, board: Board, seat: u32, number: u32, dealing: Dealing, spin: Nanos) -> Self {
        board.note_doing(words, seat, 0);
        words.store(board.ready(seat), number + 1);
        Self {
            words,
            board,
            seat,
            number,
            dealing,
            roster: Roster::none(board),
            goes: false,
            unchecked: true,
            step: 0,
            complete: 0,
            past: 0,
            waits: Vec::with_capacity(64),
            generations: Vec::new(),
            spin,
        }
    }

    /// Waits until the launcher has taken it in. Returns the step that is at work, of which `about` is a recent number.
    pub fn join(&mut self, about: u64) -> (Ended, u64) {
        self.wait_to_be_in();
        let ended = self.settle();
        (ended, self.board.steps_done(self.words, about))
    }

    fn wait_to_be_in(&mut self) {
        let mut known = 0;
        // The roster that has it is the first that it acknowledges.
        loop {
            let roster = self.read_roster();
            // Asked after the roster was read: it is in, or there is a newer one, or it was dismissed before it knew.
            let was_in = self.words.load(self.board.ready(self.seat)) & Board::ADMITTED != 0;
            if roster.rank.is_some() || was_in {
                break;
            }
            // The launcher calls this flag with every roster.
            known = known.max(roster.generation);
            flag::wait_for_call(self.words, Board::GO, known);
        }
    }

    /// The generation of the roster that it works by.
    pub fn generation(&self) -> u32 {
        self.roster.generation
    }

    /// Its place in the roster.
    pub fn rank(&self) -> Rank {
        Rank(self.roster.rank.unwrap_or(0))
    }

    /// The rank of whoever sits in a seat.
    pub fn rank_of(&self, seat: u32) -> Option<Rank> {
        let place = self.roster.members.iter().position(|&named| Board::seat_of(named) == seat);
        place.map(|rank| Rank(rank as u32))
    }

    /// The numbers of the members in the roster, by rank.
    pub fn members(&self) -> impl Iterator<Item = u32> {
        self.roster.members.iter().map(|&named| Board::number_of(named))
    }

    /// Members in the roster.
    pub fn world(&self) -> u32 {
        self.roster.members.len() as u32
    }

    /// Steps after which the run ends.
    pub fn end(&self) -> u64 {
        self.roster.end
    }

    /// The part of a step that is this host's.
    pub fn parts(&self) -> &Parts {
        &self.roster.parts
    }

    /// What it waited for since this was last asked, and the rosters that it went over to.
    pub fn take_waits(&mut self, waits: &mut Vec<Wait>, generations: &mut Vec<u32>) {
        waits.append(&mut self.waits);
        generations.append(&mut self.generations);
    }

    /// The shards that it will probably run next, after `shard` of a step.
    fn upcoming(&self, step: u64, shard: u32) -> [Option<(u64, u32)>; 3] {
        let own = self.own_shards();
        let free = |&shard: &u32| self.claim_of(Task::Shard(shard)).is_free(step + 1);
        let now = own.clone().filter(|&other| other > shard).filter(free).map(|shard| (step, shard));
        let mut next = now.chain(own.clone().map(|shard| (step + 1, shard)));
        std::array::from_fn(|_| next.next())
    }

    /// The first shards that it will probably run in a step.
    pub fn expected(&self, step: u64) -> impl Iterator<Item = (u64, u32)> {
        self.own_shards().map(move |shard| (step, shard))
    }

    /// Does its tasks of a step, until all of the step is done, whoever does it.
    pub fn step<S: Shards>(
        &mut self,
        step: u64,
        shards: &mut S,
        slices: &mut impl Slices,
        leaves: &dyn Fn() -> bool,
    ) -> Result<Ended, S::Error> {
        (self.step, self.complete, self.past) = (step, 0, 0);
        loop {
            if self.settle() == Ended::Left || leaves() {
                return Ok(Ended::Left);
            }
            if !flag::has_reached(self.words, Board::LIMIT, step + 1) {
                self.wait(Board::LIMIT, step + 1, Waiting::Roster);
                continue;
            }
            if let Some(flag) = self.unready(step) {
                self.wait(flag, step, Waiting::Hosts);
                continue;
            }
            if !self.is_alone() && !flag::has_reached(self.words, Board::BEGUN, step + 1) {
                flag::raise(self.words, Board::BEGUN, step + 1);
                self.words.ring();
            }
            if let Some(task) = self.claim_shard() {
                self.run_shard(task, shards, slices)?;
                continue;
            }
            if self.do_slices(slices, self.dealing) {
                continue;
            }
            if self.wait_in_step().is_none() {
                return Ok(Ended::Done);
            }
        }
    }

    /// What is still to come of the state before a step. All is there where a step is begun, but a host without a state may be given an
    /// older one by a new roster than it waited for.
    fn unready(&mut self, step: u64) -> Option<usize> {
        if !std::mem::take(&mut self.unchecked) || self.board.shape().hosts == 1 {
            return None;
        }
        let flag = self.board.state_flags().find(|&flag| !flag::has_reached(self.words, flag, step));
        self.unchecked = flag.is_some();
        flag
    }

    fn run_shard<S: Shards>(
        &mut self,
        task: ShardTask,
        shards: &mut S,
        slices: &mut impl Slices,
    ) -> Result<(), S::Error> {
        let buckets = self.board.shape().buckets;
        let mut raised = 0;
        shards.run(task, &mut |complete| {
            self.beat();
            #[cfg(test)]
            let complete = complete + usize::from(self.words.has(super::simulation::Mistake::FlagBeforeData));
            // The last bucket waits for the shard's results.
            let complete = (complete as u32).min(buckets - 1);
            while raised < complete {
                self.raise(self.board.shard_flag(task.shard, raised));
                raised += 1;
            }
            if self.goes {
                self.do_slices(slices, Dealing::Static);
            }
        })?;
        (raised..buckets).for_each(|bucket| self.raise(self.board.shard_flag(task.shard, bucket)));
        Ok(())
    }

    /// Does its parts of a test after so many steps, waits for the others', then for the launcher.
    pub fn pause<T: Tests>(
        &mut self,
        steps: u64,
        tests: Option<&mut T>,
        leaves: &dyn Fn() -> bool,
        ring: &dyn Fn(),
    ) -> Result<Ended, T::Error> {
        if let Some(tests) = tests
            && self.test(steps, tests, leaves)? == Ended::Left
        {
            return Ok(Ended::Left);
        }
        ring();
        loop {
            if self.settle() == Ended::Left {
                return Ok(Ended::Left);
            }
            if self.wait(Board::PASSED, steps, Waiting::Launcher) == Waited::Reached {
                return Ok(Ended::Done);
            }
        }
    }

    fn test<T: Tests>(
        &mut self,
        steps: u64,
        tests: &mut T,
        leaves: &dyn Fn() -> bool,
    ) -> Result<Ended, T::Error> {
        loop {
            if self.settle() == Ended::Left || leaves() {
                return Ok(Ended::Left);
            }
            let own = self.own_shards();
            let here = self.roster.parts.own_shards();
            let others = here.rev().filter(|_| self.dealing == Dealing::Dynamic);
            // What another host did before it was lost is not done again: the state may go on meanwhile.
            let is_done = |part: u32| flag::has_reached(self.words, self.board.test_flag(part), steps);
            let claimed = own
                .chain(others)
                .find(|&part| !is_done(part) && self.claim(Task::Test(part), steps).is_some());
            if let Some(part) = claimed {
                tests.run(part, &mut || self.beat())?;
                self.raise_to(self.board.test_flag(part), steps);
                continue;
            }
            let missing = (0..self.board.shape().shards)
                .map(|part| self.board.test_flag(part))
                .find(|&flag| !flag::has_reached(self.words, flag, steps));
            match missing {
                Some(flag) => {
                    self.wait(flag, steps, Waiting::Tests);
                }
                None => return Ok(Ended::Done),
            }
        }
    }

    /// Shows that it is alive, and acknowledges a new roster. It must not be reading anybody's gradients.
    fn beat(&mut self) {
        self.board.note_beat(self.words, self.seat);
        if self.words.load(Board::GENERATION) != self.roster.generation {
            self.acknowledge();
        }
        if !self.goes {
            self.goes =
                flag::has_reached(self.words, Board::GO, u64::from(self.roster.generation)) && self.is_in();
        }
    }

    fn is_in(&self) -> bool {
        self.roster.rank.is_some()
    }

    /// Goes over to the newest roster, and waits until work goes on by it.
    fn settle(&mut self) -> Ended {
        loop {
            self.beat();
            if !self.is_in() {
                return Ended::Left;
            }
            if self.goes {
                return Ended::Done;
            }
            self.wait(Board::GO, u64::from(self.roster.generation), Waiting::Roster);
        }
    }

    fn acknowledge(&mut self) {
        self.roster = self.read_roster();
        (self.goes, self.unchecked) = (false, true);
        // Flags may be taken back, and other slices are its own.
        (self.complete, self.past) = (0, 0);
        self.generations.push(self.roster.generation);
        self.words.store(self.board.acknowledged(self.seat), self.roster.generation);
    }

    fn own(&self, count: u32) -> Range<u32> {
        self.roster.rank.map_or(0..0, |rank| deal(count, Rank(rank), self.world()))
    }

    /// Of this host's shards, and of its parts of a test.
    fn own_shards(&self) -> Range<u32> {
        let here = self.roster.parts.own_shards();
        let own = self.own(here.len() as u32);
        here.start + own.start..here.start + own.end
    }

    fn is_alone(&self) -> bool {
        self.roster.parts.hosts() == 1
    }

    fn claim_of(&self, task: Task) -> Claim {
        Claim::read(self.words.load(self.board.claim(task)))
    }

    /// Claims a task of the step that makes the count `count`; whether somebody lost had it before.
    fn claim(&self, task: Task, count: u64) -> Option<bool> {
        let word = self.board.claim(task);
        let value = self.words.load(word);
        let claim = Claim::read(value);
        if !claim.is_free(count) {
            return None;
        }
        let again = claim.count == flag::count_bits(count);
        let own = Claim::word(count, Some(self.seat));
        self.words.exchange(word, value, own).is_ok().then_some(again)
    }

    fn claim_shard(&self) -> Option<ShardTask> {
        let step = self.step;
        let take = |shard: u32| {
            let again = self.claim(Task::Shard(shard), step + 1)?;
            if again {
                self.board.note_again(self.words, step, shard);
            }
            Some(ShardTask { step, shard, again, upcoming: self.upcoming(step, shard) })
        };
        self.own_shards().find_map(take).or_else(|| {
            // What its owner would come to last.
            let here = self.roster.parts.own_shards();
            let others = here.rev().filter(|_| self.dealing == Dealing::Dynamic);
            others.into_iter().find_map(take)
        })
    }

    fn raise(&mut self, flag: usize) {
        self.raise_to(flag, self.step + 1);
    }

    fn raise_to(&mut self, flag: usize, count: u64) {
        self.board.note_raised(self.words, flag);
        flag::raise(self.words, flag, count);
        if !self.is_alone() {
            self.words.ring();
        }
    }

    /// Waits for something of this step that somebody else does; `None` where nothing is missing.
    fn wait_in_step(&mut self) -> Option<Waited> {
        let shape = self.board.shape();
        let count = self.step + 1;
        let is_missing = |&flag: &usize| !flag::has_reached(self.words, flag, count);
        if self.complete < shape.buckets {
            let bucket = self.complete;
            let here = self.roster.parts.own_shards();
            let mut flags = here.map(|shard| self.board.shard_flag(shard, bucket));
            let flag = flags.find(is_missing);
            return Some(
                flag.map_or(Waited::Reached, |flag| self.wait(flag, count, Waiting::Gradients(bucket))),
            );
        }
        let slices = self.slices();
        let mut flags = (0..shape.buckets)
            .flat_map(|bucket| (0..slices).map(move |slice| (bucket, slice)))
            .map(|(bucket, slice)| self.board.slice_flag(bucket, slice));
        let missing = flags.find(is_missing);
        if shape.hosts == 1 {
            return missing.map(|flag| self.wait(flag, count, Waiting::Slices));
        }
        // Its own slices wait for other hosts; then for whoever has the others; then for what is noted of other hosts' shards.
        let own = self.own(slices);
        let undone = (0..shape.buckets)
            .flat_map(|bucket| own.clone().map(move |slice| (bucket, slice)))
            .filter(|&(bucket, slice)| is_missing(&self.board.slice_flag(bucket, slice)))
            .find(|&(bucket, slice)| self.claim_of(Task::Slice { bucket, slice }).is_free(count));
        if let Some((bucket, slice)) = undone {
            let input = self.board.input_flag(bucket, slice);
            // It may have come in this moment.
            let is_there = self.has_input(bucket, slice);
            return Some(if is_there { Waited::Reached } else { self.wait(input, count, Waiting::Hosts) });
        }
        if let Some(flag) = missing {
            return Some(self.wait(flag, count, Waiting::Slices));
        }
        let arrived = flag::has_reached(self.words, Board::ARRIVED, count);
        (!arrived).then(|| self.wait(Board::ARRIVED, count, Waiting::Hosts))
    }

    fn wait(&mut self, word: usize, count: u64, on: Waiting) -> Waited {
        let begin = self.words.now();
        let mut reached = flag::has_reached(self.words, word, count);
        while !reached && self.words.now().since(begin) < self.spin {
            for _ in 0..8 {
                std::hint::spin_loop();
            }
            reached = flag::has_reached(self.words, word, count);
        }
        let waited = match reached {
            true => Waited::Reached,
            false => flag::wait(self.words, word, count, self.roster.generation),
        };
        let end = self.words.now();
        self.board.note_beat(self.words, self.seat);
        if end > begin {
            self.waits.push(Wait { on, begin, end });
        }
        waited
    }
}
