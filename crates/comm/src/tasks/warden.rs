//! The launcher's side: who takes part, and what becomes of the tasks of the lost.

use super::board::{Claim, NOBODY, Task};
use super::{Board, Parts, Words, flag};

/// How far ahead a count is where there is nothing to count: less than half of where counts begin anew.
pub(super) const AHEAD: u64 = 1 << 21;

/// Keeps the roster. It never waits: [`Warden::tend`] does what can be done now.
///
/// A new roster takes effect in three moves. It is published, and every flag called, so members that sleep wake. Members
/// acknowledge it where they read nobody's gradients. When all that live have, nobody can be reading what the lost left
/// behind: claims of their unfinished tasks are freed, flags of their unfinished shards are taken back, and work goes on.
pub struct Warden<'a, M> {
    words: &'a M,
    board: Board,
    generation: u32,
    end: u64,
    /// Seats of the roster, by rank.
    roster: Vec<u32>,
    /// Seats with a living member that has been in a roster.
    attached: Vec<u32>,
    /// Seats whose members were lost, and whose tasks are still to be freed.
    lost: Vec<u32>,
    /// Whether the roster has been acknowledged, and work goes on.
    settled: bool,
    /// Whether work may go on.
    runs: bool,
    /// Which part of a step is this host's.
    parts: Parts,
    /// Steps that this host was to get the state of, where it was behind.
    awaited: Option<u64>,
}

/// Tasks that were begun and are to be done again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Shards.
    pub shards: u32,
    /// Slices.
    pub slices: u32,
    /// Parts of tests.
    pub tests: u32,
}

/// How far hosts have come when shards are dealt anew.
#[derive(Clone, Copy, Debug)]
pub struct Done<'a> {
    /// Steps done on this host.
    pub done: u64,
    /// Steps done on the furthest: at most one more, unless this host has no state at all.
    pub all: u64,
    /// Slices of the state that this host lacks where it is behind; `None` for all of them.
    pub missing: Option<&'a [(u32, u32)]>,
    /// Slices of the step at work that are not done again: see [`given`](super::given).
    pub given: &'a [(u32, u32)],
    /// Whether shards are dealt anew because a host was lost.
    pub is_loss: bool,
}

/// A roster that has taken effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// Its generation.
    pub generation: u32,
    /// Tasks to be done again.
    pub lost: Lost,
    /// The shards among them.
    pub shards: Vec<u32>,
}

impl<'a, M: Words> Warden<'a, M> {
    /// The warden of a run that ends after so many steps. Nobody takes part yet.
    pub fn new(words: &'a M, board: Board, end: u64) -> Self {
        Self {
            words,
            board,
            generation: 0,
            end,
            roster: Vec::new(),
            attached: Vec::new(),
            lost: Vec::new(),
            settled: true,
            runs: true,
            parts: Parts::whole(board.shape().shards, board.shape().slices),
            awaited: None,
        }
    }

    /// Which part of a step is this host's, by the newest roster.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The generation of the newest roster.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Seats of the newest roster, by rank.
    pub fn roster(&self) -> &[u32] {
        &self.roster
    }

    /// Steps after which the run ends.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The member that is ready in a seat.
    pub fn ready(&self, seat: u32) -> Option<u32> {
        (self.words.load(self.board.ready(seat)) & !Board::ADMITTED).checked_sub(1)
    }

    /// Notes that the process in a seat has ended, and that nothing is left of it.
    pub fn bury(&mut self, seat: u32) {
        self.words.store(self.board.ready(seat), 0);
        self.words.store(self.board.stands(seat), 0);
        self.roster.retain(|&other| other != seat);
        if self.attached.contains(&seat) {
            self.attached.retain(|&other| other != seat);
            self.lost.push(seat);
        }
    }

    /// Whether tasks of the lost wait for a roster to be published.
    pub fn has_lost(&self) -> bool {
        self.settled && !self.lost.is_empty()
    }

    /// Publishes a roster of seats whose members are ready. `runs` says whether work goes on by it, or stands still.
    ///
    /// # Panics
    /// If one of them is not.
    pub fn publish(&mut self, roster: &[u32], end: u64, runs: bool) {
        (self.roster, self.end, self.runs, self.settled) = (roster.to_vec(), end, runs, false);
        for &seat in roster {
            if !self.attached.contains(&seat) {
                self.attached.push(seat);
            }
        }
        self.generation += 1;
        let (words, generation) = (self.words, self.generation);
        let at = self.board.roster(generation);
        // Not a generation: who reads meanwhile tries again.
        words.store(at, 0);
        words.store(at + 1, roster.len() as u32);
        words.store(at + 2, end as u32);
        for (place, &seat) in roster.iter().enumerate() {
            let number = self.ready(seat).expect("invariant: whoever is taken in is ready");
            words.store(self.board.roster_place(generation, place), Board::named(seat, number));
        }
        let hosts = self.board.roster_hosts(generation);
        words.store(hosts, self.parts.hosts() as u32);
        words.store(hosts + 1, self.parts.own() as u32);
        for (place, &end) in self.parts.ends().iter().enumerate() {
            words.store(hosts + 2 + place, end);
        }
        words.store(at, generation);
        words.store(Board::GENERATION, generation);
        // Whoever sees this sees a roster that it is in, or a later one.
        for &seat in roster {
            let ready = self.board.ready(seat);
            words.store(ready, words.load(ready) | Board::ADMITTED);
        }
        #[cfg(test)]
        if words.has(super::simulation::Mistake::NoCall) {
            return;
        }
        self.board.flags().for_each(|word| flag::call(words, word, generation));
    }

    /// Goes over to another dealing among hosts, after `done` steps on this one and `all` on the furthest of them. Nobody may be at
    /// work: the newest roster stands still, and has taken effect. What was begun by the old dealing and not completed is begun again;
    /// what is complete stays. Of the state that this host has not completed where others have, only `missing` slices have to come.
    ///
    /// # Panics
    /// If somebody may be at work.
    pub fn deal(&mut self, parts: Parts, Done { done, all, missing, given, is_loss }: Done<'_>) {
        assert!(self.is_still(), "invariant: nobody is at work");
        let (words, board, shape) = (self.words, self.board, self.board.shape());
        let mut old = std::mem::replace(&mut self.parts, parts).own_shards();
        let slices =
            || (0..shape.buckets).flat_map(move |bucket| (0..shape.slices).map(move |slice| (bucket, slice)));
        let is_behind = done < all;
        // Whoever was to give it the state may be lost, and nobody else be so far: what counted as done elsewhere is not done at all.
        let is_undone = self.awaited.take().is_some_and(|awaited| done < awaited);
        if is_undone {
            old = 0..0;
        }
        self.awaited = is_behind.then_some(all);
        for shard in 0..shape.shards {
            let flags = (0..shape.buckets).map(|bucket| board.shard_flag(shard, bucket));
            if is_behind {
                // Others have done it.
                flags.for_each(|word| flag::lower(words, word, all));
                self.close(Task::Shard(shard), all);
            } else if self.parts.own_shards().contains(&shard) && !old.contains(&shard) {
                flags.for_each(|word| flag::lower(words, word, done));
                match is_loss {
                    // Whoever was lost may have begun it.
                    true => self.free(Task::Shard(shard), done + 1),
                    false => self.close(Task::Shard(shard), done),
                }
            }
        }
        // Of a step whose slices are all done here or elsewhere, only statistics and results are lacking: its shards are run for these.
        let is_done = |(bucket, slice)| {
            given.contains(&(bucket, slice))
                || flag::has_reached(words, board.slice_flag(bucket, slice), all + 1)
        };
        let is_run = |shard| flag::has_reached(words, board.shard_flag(shard, shape.buckets - 1), all + 1);
        let is_short = slices().all(is_done) && !self.parts.own_shards().all(is_run);
        for (bucket, slice) in slices() {
            if is_behind {
                let is_missing = missing.is_none_or(|missing| missing.contains(&(bucket, slice)));
                let count = if is_missing { all - 1 } else { all };
                flag::lower(words, board.slice_flag(bucket, slice), count);
            }
            // What is given is not done here, nor added up.
            let closed = all + u64::from(given.contains(&(bucket, slice)));
            if is_behind || !flag::has_reached(words, board.slice_flag(bucket, slice), all + 1) {
                self.close(Task::Slice { bucket, slice }, closed);
            }
            if shape.hosts > 1 {
                flag::lower(words, board.part_flag(bucket, slice), all);
                flag::lower(words, board.input_flag(bucket, slice), all);
                self.close(Task::Part { bucket, slice }, closed);
            }
        }
        flag::lower(words, Board::ARRIVED, if is_behind { all - 1 } else { all });
        if self.parts.has_all() && !is_behind && !is_short {
            flag::raise(words, Board::ARRIVED, all + AHEAD);
        }
    }

    /// Whether the newest roster frees tasks of the lost when it takes effect.
    pub fn frees(&self) -> bool {
        !self.settled && !self.lost.is_empty()
    }

    /// Whether nobody is at work, and nobody will be before another roster is published.
    pub fn is_still(&self) -> bool {
        self.generation == 0 || (self.settled && !self.runs)
    }

    /// Where all shards are this host's there is nobody to wait for. To be called every million steps.
    pub fn note_alone(&self, steps: u64) {
        // Nor was there before, or the first step has to show it.
        if self.parts.has_all() && flag::has_reached(self.words, Board::ARRIVED, steps + AHEAD / 4) {
            flag::raise(self.words, Board::ARRIVED, steps + AHEAD);
        }
    }

    /// Lets members begin no step from the returned one on, which none of them has begun: the second after the `about` steps done.
    pub fn limit(&self, about: u64) -> u64 {
        loop {
            let step = self.board.steps_done(self.words, about) + 2;
            self.hold(step);
            // Whoever began it before it saw the limit had found all before it done.
            if self.board.steps_done(self.words, about) < step {
                return step;
            }
        }
    }

    /// Lets members begin no step from this one on.
    pub fn hold(&self, step: u64) {
        flag::lower(self.words, Board::LIMIT, step);
    }

    /// Lets members begin steps without a limit. To be called every million steps.
    pub fn release(&self, steps: u64) {
        flag::lower(self.words, Board::LIMIT, steps + AHEAD);
    }

    /// Whether all that live have acknowledged the newest roster.
    pub fn is_acknowledged(&self) -> bool {
        #[cfg(test)]
        if self.words.has(super::simulation::Mistake::NoFence) {
            return true;
        }
        let has = |&seat: &u32| self.words.load(self.board.acknowledged(seat)) == self.generation;
        self.attached.iter().all(has)
    }

    /// Whether no member that lives is at a shard or a test. Rosters are acknowledged half-way through these, and where work goes on
    /// by them they go on too; but they may be dealt to another host where it stands still.
    fn is_idle(&self) -> bool {
        #[cfg(test)]
        if self.words.has(super::simulation::Mistake::ShardsNotFenced) {
            return true;
        }
        let shape = self.board.shape();
        // What a lost one has left is not its successor's, who has not begun anything.
        self.attached.iter().filter(|seat| !self.lost.contains(seat)).all(|&seat| {
            (0..shape.shards).all(|shard| {
                let mut flags = (0..shape.buckets).map(|bucket| self.board.shard_flag(shard, bucket));
                let test = std::iter::once(self.board.test_flag(shard));
                self.unfinished(Task::Shard(shard), seat, &mut flags).is_none()
                    && self.unfinished(Task::Test(shard), seat, test).is_none()
            })
        })
    }

    /// Lets the newest roster take effect, if it can now.
    pub fn tend(&mut self) -> Option<Fenced> {
        if self.settled || !self.is_acknowledged() || !(self.runs || self.is_idle()) {
            return None;
        }
        let mut fenced = Fenced { generation: self.generation, lost: Lost::default(), shards: Vec::new() };
        for seat in std::mem::take(&mut self.lost) {
            self.free_tasks(seat, &mut fenced);
        }
        self.settled = true;
        if self.runs {
            flag::raise(self.words, Board::GO, u64::from(self.generation));
        }
        Some(fenced)
    }

    fn free_tasks(&self, seat: u32, fenced: &mut Fenced) {
        let shape = self.board.shape();
        for shard in 0..shape.shards {
            let flags = || (0..shape.buckets).map(|bucket| self.board.shard_flag(shard, bucket));
            if let Some(count) = self.unfinished(Task::Shard(shard), seat, flags()) {
                flags().for_each(|word| flag::lower(self.words, word, count - 1));
                self.free(Task::Shard(shard), count);
                fenced.lost.shards += 1;
                fenced.shards.push(shard);
            }
            let test = std::iter::once(self.board.test_flag(shard));
            if let Some(count) = self.unfinished(Task::Test(shard), seat, test) {
                self.free(Task::Test(shard), count);
                fenced.lost.tests += 1;
            }
        }
        for bucket in 0..shape.buckets {
            for slice in 0..shape.slices {
                let task = Task::Slice { bucket, slice };
                let done = std::iter::once(self.board.slice_flag(bucket, slice));
                if let Some(count) = self.unfinished(task, seat, done) {
                    self.free(task, count);
                    fenced.lost.slices += 1;
                }
                let part = Task::Part { bucket, slice };
                let done = std::iter::once(self.board.part_flag(bucket, slice));
                if shape.hosts > 1
                    && let Some(count) = self.unfinished(part, seat, done)
                {
                    self.free(part, count);
                }
            }
        }
    }

    /// The count that a task's flags should have come to, where a seat claimed it and did not complete it.
    fn unfinished(&self, task: Task, seat: u32, mut flags: impl Iterator<Item = usize>) -> Option<u64> {
        let claim = Claim::read(self.words.load(self.board.claim(task)));
        if claim.seat != Some(seat) {
            return None;
        }
        // Flags and claims are compared by their low bits, which are those of any count near them.
        let count = u64::from(claim.count) + (1 << 32);
        flags.any(|word| !flag::has_reached(self.words, word, count)).then_some(count)
    }

    /// Takes a task from all steps up to this count. Members pass through steps that are done, late ones after a new dealing, and a task
    /// that is free there would be done once more.
    fn close(&self, task: Task, count: u64) {
        self.words.store(self.board.claim(task), Claim::word(count, Some(NOBODY)));
    }

    fn free(&self, task: Task, count: u64) {
        self.words.store(self.board.claim(task), Claim::word(count, None));
    }
}
