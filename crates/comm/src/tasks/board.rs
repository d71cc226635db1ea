//! Which word and which note is what.

use std::ops::Range;

use paceline_record::Nanos;

use super::warden::AHEAD;
use super::{Words, flag, group};

/// How much there is to coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Places for members: the most that there can be at once.
    pub seats: u32,
    /// Shards of a step, and parts of a test.
    pub shards: u32,
    /// Buckets of the gradients.
    pub buckets: u32,
    /// Slices of each bucket. It does not depend on who takes part, or a flag would change its meaning.
    pub slices: u32,
    /// The most hosts that there can be at once.
    pub hosts: u32,
}

/// Which of the two states holds the parameters before a step.
pub fn side(step: u64) -> usize {
    (step % 2) as usize
}

/// Seats that a claim can name.
const SEAT_BITS: u32 = 9;

/// A seat that nobody has: of tasks that are done elsewhere.
pub(super) const NOBODY: u32 = (1 << SEAT_BITS) - 2;

/// Words before the rosters, the last of them of [groups of devices](group).
const FIXED: usize = group::FIRST + group::WORDS;

/// Words of a roster before its seats, and behind them before the hosts.
const ROSTER_HEAD: usize = 3;
const HOSTS_HEAD: usize = 2;

/// Notes of the rosters, of a seat, and of a shard on each side.
const ROSTER_NOTES: usize = 2;
const SEAT_NOTES: usize = 2;
const SHARD_NOTES: usize = 3;

/// The words and notes of a [`Shape`].
#[derive(Clone, Copy, Debug)]
pub struct Board {
    shape: Shape,
}

/// A task that is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Shard(u32),
    Slice {
        bucket: u32,
        slice: u32,
    },
    /// What this host adds to a slice that another one adds up.
    Part {
        bucket: u32,
        slice: u32,
    },
    Test(u32),
}

/// What a claim says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// Low bits of the step's number plus 1.
    pub count: u32,
    /// Who holds it; `None` where it was taken from somebody lost.
    pub seat: Option<u32>,
}

impl Claim {
    pub fn read(value: u32) -> Self {
        let seat = value & ((1 << SEAT_BITS) - 1);
        Self { count: value >> SEAT_BITS, seat: seat.checked_sub(1) }
    }

    pub fn word(count: u64, seat: Option<u32>) -> u32 {
        (flag::count_bits(count) << SEAT_BITS) | seat.map_or(0, |seat| seat + 1)
    }

    /// Whether nobody has it in the step that makes the count `count`.
    pub fn is_free(self, count: u64) -> bool {
        let is_older = !flag::is_at_least(self.count, count);
        is_older || (self.count == flag::count_bits(count) && self.seat.is_none())
    }
}

impl Board {
    /// Words on which members sleep while they wait for the launcher.
    pub(super) const GENERATION: usize = 0;
    pub(super) const GO: usize = 1;
    pub(super) const PASSED: usize = 2;
    /// What is noted of the shards of other hosts has arrived.
    pub(super) const ARRIVED: usize = 3;
    /// Steps that may be begun.
    pub(super) const LIMIT: usize = 4;
    /// Steps that members have begun: what is due before them is passed.
    pub(super) const BEGUN: usize = 5;

    /// The words of a shape.
    ///
    /// # Panics
    /// If there is nothing to coordinate, or more than a word can name.
    pub fn new(shape: Shape) -> Self {
        let Shape { seats, shards, buckets, slices, hosts } = shape;
        let least = seats.min(shards).min(buckets).min(slices).min(hosts);
        assert!(least > 0, "invariant: there is something to do");
        assert!(seats < NOBODY, "invariant: a claim can name every seat");
        Self { shape }
    }

    /// What it coordinates.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    fn seats(&self) -> usize {
        self.shape.seats as usize
    }

    fn shards(&self) -> usize {
        self.shape.shards as usize
    }

    fn slices(&self) -> usize {
        self.shape.buckets as usize * self.shape.slices as usize
    }

    /// Slices whose parts travel.
    fn travelling(&self) -> usize {
        if self.shape.hosts > 1 { self.slices() } else { 0 }
    }

    fn number(&self, bucket: u32, slice: u32) -> usize {
        (bucket * self.shape.slices + slice) as usize
    }

    fn roster_len(&self) -> usize {
        ROSTER_HEAD + self.seats() + HOSTS_HEAD + self.shape.hosts as usize
    }

    pub(super) fn roster(&self, generation: u32) -> usize {
        FIXED + (generation % 2) as usize * self.roster_len()
    }

    /// Where a roster tells of hosts: how many, which place is this one's, and where the shards of each end.
    pub(super) fn roster_hosts(&self, generation: u32) -> usize {
        self.roster(generation) + ROSTER_HEAD + self.seats()
    }

    pub(super) fn roster_place(&self, generation: u32, place: usize) -> usize {
        self.roster(generation) + ROSTER_HEAD + place
    }

    /// How a roster names a member. The seat alone would not do: whoever is started in it while the old roster still holds
    /// would take itself for the one that was lost.
    pub(super) fn named(seat: u32, number: u32) -> u32 {
        (number << SEAT_BITS) | seat
    }

    pub(super) fn seat_of(named: u32) -> u32 {
        named & ((1 << SEAT_BITS) - 1)
    }

    pub(super) fn number_of(named: u32) -> u32 {
        named >> SEAT_BITS
    }

    pub(super) fn acknowledged(&self, seat: u32) -> usize {
        FIXED + 2 * self.roster_len() + seat as usize
    }

    /// In a seat's word: its member has been in a roster. Who waits for its first one would else wait for ever where that has
    /// been replaced by one without it.
    pub(super) const ADMITTED: u32 = 1 << 31;

    /// The word that says which member, plus 1, is ready in a seat.
    pub(super) fn ready(&self, seat: u32) -> usize {
        self.acknowledged(0) + self.seats() + seat as usize
    }

    /// The word that says how many steps, plus 1, were done to the state that a seat's member has on its device.
    pub(super) fn stands(&self, seat: u32) -> usize {
        self.ready(0) + self.seats() + seat as usize
    }

    /// The word of the claim of a task.
    pub(super) fn claim(&self, task: Task) -> usize {
        let first = self.stands(0) + self.seats();
        match task {
            Task::Shard(shard) => first + shard as usize,
            Task::Test(part) => first + self.shards() + part as usize,
            Task::Slice { bucket, slice } => first + 2 * self.shards() + self.number(bucket, slice),
            Task::Part { bucket, slice } => {
                first + 2 * self.shards() + self.slices() + self.number(bucket, slice)
            }
        }
    }

    fn first_flag(&self) -> usize {
        self.claim(Task::Shard(0)) + 2 * self.shards() + self.slices() + self.travelling()
    }

    /// The flag of a shard's bucket.
    pub(super) fn shard_flag(&self, shard: u32, bucket: u32) -> usize {
        self.first_flag() + shard as usize * self.shape.buckets as usize + bucket as usize
    }

    pub(super) fn test_flag(&self, part: u32) -> usize {
        self.shard_flag(0, 0) + self.shards() * self.shape.buckets as usize + part as usize
    }

    /// The flag of what this host adds to a slice that another one adds up.
    pub(super) fn part_flag(&self, bucket: u32, slice: u32) -> usize {
        self.test_flag(0) + self.shards() + self.number(bucket, slice)
    }

    /// The flag of what came from other hosts for a slice: their parts, or the mean.
    pub(super) fn input_flag(&self, bucket: u32, slice: u32) -> usize {
        self.part_flag(0, 0) + self.travelling() + self.number(bucket, slice)
    }

    pub(super) fn slice_flag(&self, bucket: u32, slice: u32) -> usize {
        self.input_flag(0, 0) + self.travelling() + self.number(bucket, slice)
    }

    /// All words that somebody may sleep on.
    pub(super) fn flags(&self) -> impl Iterator<Item = usize> + use<> {
        [Self::GO, Self::PASSED, Self::ARRIVED, Self::LIMIT, Self::BEGUN]
            .into_iter()
            .chain(self.first_flag()..self.words())
    }

    /// Number of words.
    pub fn words(&self) -> usize {
        self.slice_flag(0, 0) + self.slices()
    }

    /// When a seat's member last showed progress.
    fn beat(&self, seat: u32) -> usize {
        ROSTER_NOTES + SEAT_NOTES * seat as usize
    }

    /// What its member is doing.
    fn doing(&self, seat: u32) -> usize {
        self.beat(seat) + 1
    }

    fn result(&self, shard: u32, step: u64) -> usize {
        self.beat(self.shape.seats) + SHARD_NOTES * (side(step) * self.shards() + shard as usize)
    }

    fn tested(&self, part: u32) -> usize {
        self.beat(self.shape.seats) + SHARD_NOTES * (2 * self.shards() + part as usize)
    }

    /// The last step, plus 1, that a shard was begun in for a second time.
    fn again(&self, shard: u32) -> usize {
        self.tested(self.shape.shards) + shard as usize
    }

    /// When a flag was raised.
    fn raised(&self, flag: usize) -> usize {
        self.again(self.shape.shards) + flag - self.first_flag()
    }

    /// Number of notes.
    pub fn notes(&self) -> usize {
        self.raised(self.words())
    }

    /// Sets all flags and claims to `steps` steps done, and what is due after steps to `passed`.
    pub fn begin_at(&self, words: &impl Words, steps: u64, passed: u64) {
        for claim in self.claim(Task::Shard(0))..self.first_flag() {
            words.store(claim, Claim::word(passed, None));
        }
        for word in (self.first_flag()..self.words()).chain([Self::ARRIVED, Self::BEGUN]) {
            flag::lower(words, word, steps);
        }
        for word in self.tests().chain([Self::PASSED]) {
            flag::lower(words, word, passed);
        }
        flag::lower(words, Self::LIMIT, steps + AHEAD);
    }

    fn tests(&self) -> impl Iterator<Item = usize> + use<> {
        let first = self.test_flag(0);
        first..first + self.shards()
    }

    /// Brings counts up to `steps` that rise only where a test or a checkpoint is due, and none is due up to there: counts are
    /// compared by their low bits, so none may fall far behind.
    pub fn refresh(&self, words: &impl Words, steps: u64) {
        for word in self.tests().chain([Self::PASSED]) {
            flag::raise(words, word, steps);
        }
        for part in 0..self.shape.shards {
            let word = self.claim(Task::Test(part));
            let value = words.load(word);
            if Claim::read(value).is_free(steps) {
                // Whoever claims it meanwhile has brought it up.
                let _ = words.exchange(word, value, Claim::word(steps, None));
            }
        }
    }

    /// Flags of all that is there when a step is done.
    pub(super) fn state_flags(&self) -> impl Iterator<Item = usize> + use<> {
        let arrived = (self.shape.hosts > 1).then_some(Self::ARRIVED);
        (self.slice_flag(0, 0)..self.words()).chain(arrived)
    }

    /// Steps that are done, of which `about` is a recent number.
    pub fn steps_done(&self, words: &impl Words, about: u64) -> u64 {
        self.state_flags().map(|word| flag::count(words, word, about)).min().unwrap_or(about)
    }

    /// Slices of the step after so many that are not done.
    pub fn missing(&self, words: &impl Words, steps: u64) -> Vec<(u32, u32)> {
        let Shape { buckets, slices, .. } = self.shape;
        let all = (0..buckets).flat_map(|bucket| (0..slices).map(move |slice| (bucket, slice)));
        let is_done = |bucket, slice| flag::has_reached(words, self.slice_flag(bucket, slice), steps + 1);
        all.filter(|&(bucket, slice)| !is_done(bucket, slice)).collect()
    }

    /// Parts of the test after so many steps that are not done.
    pub fn untested(&self, words: &impl Words, steps: u64) -> Vec<u32> {
        (0..self.shape.shards)
            .filter(|&part| !flag::has_reached(words, self.test_flag(part), steps))
            .collect()
    }

    /// Whether all parts of the test after so many steps are done.
    pub fn is_tested(&self, words: &impl Words, steps: u64) -> bool {
        (0..self.shape.shards).all(|part| flag::has_reached(words, self.test_flag(part), steps))
    }

    /// Lets members go on after the tests and checkpoints that follow so many steps.
    pub fn pass(&self, words: &impl Words, steps: u64) {
        flag::raise(words, Self::PASSED, steps);
    }

    /// When a seat's member last showed progress, and what it has been doing.
    pub fn progress_of(&self, words: &impl Words, seat: u32) -> (Nanos, u64) {
        (Nanos(words.note(self.beat(seat))), words.note(self.doing(seat)))
    }

    pub(super) fn note_beat(&self, words: &impl Words, seat: u32) {
        words.set_note(self.beat(seat), words.now().0);
    }

    /// Notes what a seat's member is doing from now on, in its caller's own code; 0 for nothing.
    pub fn note_doing(&self, words: &impl Words, seat: u32, doing: u64) {
        words.set_note(self.doing(seat), doing);
        self.note_beat(words, seat);
    }

    /// Notes the result of a shard: its loss, and how many guesses were right.
    pub fn note_result(&self, words: &impl Words, step: u64, shard: u32, (loss, correct): (f64, u64)) {
        let at = self.result(shard, step);
        words.set_note(at, loss.to_bits());
        words.set_note(at + 1, correct);
        words.set_note(at + 2, step + 1);
    }

    /// The results of all shards of a step that is done, handed to `visit` in order; `false` where later steps have replaced
    /// some of them, or they are not known here: a member with nothing to do may fall behind, and so may a host.
    pub fn results(&self, words: &impl Words, step: u64, mut visit: impl FnMut(f64, u64)) -> bool {
        let mut is_known = true;
        for shard in 0..self.shape.shards {
            let at = self.result(shard, step);
            visit(f64::from_bits(words.note(at)), words.note(at + 1));
            is_known &= words.note(at + 2) == step + 1;
        }
        // The step after the next one replaces them.
        is_known && self.steps_done(words, step + 1) <= step + 1
    }

    /// What was noted of a shard.
    pub(super) fn result_of(&self, words: &impl Words, step: u64, shard: u32) -> [u64; 2] {
        let at = self.result(shard, step);
        [words.note(at), words.note(at + 1)]
    }

    /// Notes the result of a part of a test.
    pub fn note_test(&self, words: &impl Words, part: u32, (loss, correct): (f64, u64)) {
        let at = self.tested(part);
        words.set_note(at, loss.to_bits());
        words.set_note(at + 1, correct);
    }

    /// The result of a part of a test that is done.
    pub fn test_of(&self, words: &impl Words, part: u32) -> (f64, u64) {
        let at = self.tested(part);
        (f64::from_bits(words.note(at)), words.note(at + 1))
    }

    pub(super) fn note_again(&self, words: &impl Words, step: u64, shard: u32) {
        words.set_note(self.again(shard), step + 1);
    }

    /// When the last of a step's shards that were begun for a second time was completed; `None` where there was none.
    pub fn redone(&self, words: &impl Words, step: u64) -> Option<Nanos> {
        let again = |&shard: &u32| words.note(self.again(shard)) == step + 1;
        (0..self.shape.shards).filter(again).map(|shard| self.shard_done(words, shard)).max()
    }

    /// Notes since when the members of a roster's generation have suffered from what it answers.
    pub fn note_loss(&self, words: &impl Words, generation: u32, since: Nanos) {
        words.set_note((generation % 2) as usize, since.0);
    }

    /// Since when they have.
    pub fn loss(&self, words: &impl Words, generation: u32) -> Nanos {
        Nanos(words.note((generation % 2) as usize))
    }

    pub(super) fn note_raised(&self, words: &impl Words, flag: usize) {
        words.set_note(self.raised(flag), words.now().0);
    }

    /// When the last of these shards completed a bucket of the step at work, and which one it was; `None` if there are none.
    pub fn last_arrival(&self, words: &impl Words, bucket: u32, shards: Range<u32>) -> Option<(Nanos, u32)> {
        let at = |shard| Nanos(words.note(self.raised(self.shard_flag(shard, bucket))));
        shards.map(|shard| (at(shard), shard)).max()
    }

    /// When a shard was completed, all its buckets and its results.
    pub fn shard_done(&self, words: &impl Words, shard: u32) -> Nanos {
        let flags = (0..self.shape.buckets).map(|bucket| self.shard_flag(shard, bucket));
        flags.map(|flag| Nanos(words.note(self.raised(flag)))).max().expect("invariant: there is a bucket")
    }

    /// When the last slice of a bucket was done.
    pub fn bucket_done(&self, words: &impl Words, bucket: u32) -> Nanos {
        let flags = (0..self.shape.slices).map(|slice| self.slice_flag(bucket, slice));
        flags.map(|flag| Nanos(words.note(self.raised(flag)))).max().expect("invariant: there is a slice")
    }

    /// Which seat holds a shard of the step after `steps` steps, if one does.
    pub fn holder(&self, words: &impl Words, shard: u32, steps: u64) -> Option<u32> {
        let claim = Claim::read(words.load(self.claim(Task::Shard(shard))));
        claim.seat.filter(|_| claim.count == flag::count_bits(steps + 1))
    }
}
