//! What travels between hosts, and when: the part of the launcher that carries gradients, means and notes.
//!
//! A porter only copies. It looks at flags to know what is ready to go, and raises flags for what has come. Members know nothing of it
//! but those flags.
//!
//! Nothing is sent before its receiver has room for it. A slice's owner has added it up before anybody has its mean, and nobody goes
//! on to the next step without that; so a node or a mean of the next step never finds the last one still in use. Only notes of shards
//! could come too early: they replace those of two steps ago, so they wait until the receiver has told that it is past them.
//!
//! Nothing is written over before its receiver has it. A slice is added up only when all hosts have done the steps before, guests
//! too, of which no node tells that; so nobody lacks the last mean, or a state that it needs. Who gets its whole state is not waited for
//! in the first step, which leaves that state as it is.

mod incoming;
mod item;
mod standing;

use paceline_record::{Bytes, Host, Nanos};

use super::{Board, Cargo, Parts, Span, Words, cover, flag};
use crate::wire::Wire;

use item::Item;
pub use standing::{Standing, given};

/// Notes of a shard or of a test, as they travel.
type Note = [u64; 2];

const NOTE: usize = size_of::<Note>();

/// What went to and came from a host in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes to it.
    pub sent: Bytes,
    /// Bytes from it.
    pub received: Bytes,
    /// When the first of them was sent or had come, and the last.
    pub span: Option<(Nanos, Nanos)>,
}

impl Moved {
    fn note(&mut self, now: Nanos) {
        let (begin, _) = self.span.unwrap_or((now, now));
        self.span = Some((begin, now));
    }
}

/// A host's porter, for one roster of the hosts.
pub struct Porter<'a, M, C> {
    words: &'a M,
    board: Board,
    cargo: C,
    parts: Parts,
    /// By place in the roster, as they stood when the shards were dealt, and the steps done since then.
    begun: Vec<Standing>,
    done: Vec<Option<u64>>,
    /// The step that things are sent of.
    step: u64,
    /// The first of them.
    first: u64,
    /// Of this step, which slices were sent: the mean, or this host's nodes.
    sent: Vec<bool>,
    /// What is noted of which shards of this host, and of which parts of a test, was sent to which place.
    notes_sent: Vec<bool>,
    tests_sent: Vec<bool>,
    /// Parts of a test whose results were copied, to be sent.
    tested: Vec<bool>,
    told: bool,
    /// Nodes of each slice that have come, and which slices members may add up in this step.
    nodes: Vec<u32>,
    offered: Vec<bool>,
    /// Notes of shards that have come, in even and odd steps.
    notes: [u32; 2],
    /// Values of each slice of the state that have come: of the first step, and of the one after it.
    states: [Vec<u32>; 2],
    /// Statistics for hosts that are behind.
    served: Vec<Box<[u8]>>,
    /// Notes on their way out and in: of the shards in even and odd steps; of the test after the first steps, which a host may get late
    /// that does not need it; and of tests after more steps, even and odd.
    outgoing: Vec<Note>,
    incoming: Vec<Note>,
    /// What moved in this step, by place.
    moved: Vec<Moved>,
    /// Steps whose accounts are complete.
    accounts: Vec<(u64, Vec<Moved>)>,
    lost: Vec<(Host, String)>,
    /// Signs of life sent, and which places were heard since that was last asked.
    beats: u64,
    heard: Vec<bool>,
    /// Messages to each place whose bytes may still be read.
    flying: Vec<u64>,
}

// SAFETY: addresses are those of shared memory, which any thread of the launcher may use as the protocol says.
unsafe impl<M: Sync, C> Send for Porter<'_, M, C> {}

impl<'a, M: Words, C: Cargo> Porter<'a, M, C> {
    /// The porter of a host, when all hosts stand like this.
    ///
    /// # Panics
    /// If a host of the roster is missing.
    pub fn new(words: &'a M, board: Board, cargo: C, parts: Parts, mut hosts: Vec<Standing>) -> Self {
        assert_eq!(hosts.len(), parts.hosts(), "invariant: all hosts of the roster");
        let shape = board.shape();
        let step = standing::furthest(&hosts);
        if step == 0 {
            // All have drawn the state themselves.
            hosts.iter_mut().for_each(|host| host.done = Some(0));
        }
        let slices = (shape.buckets * shape.slices) as usize;
        let (shards, places) = (shape.shards as usize, parts.hosts());
        let own = &hosts[parts.own()];
        // What need not come counts as come.
        let come = |number: u32| {
            let has = own.has(step, (number / shape.slices, number % shape.slices));
            if has { cargo.states() } else { 0 }
        };
        let states = [(0..slices as u32).map(come).collect(), vec![0; slices]];
        Self {
            words,
            board,
            cargo,
            step,
            first: step,
            sent: vec![false; slices],
            notes_sent: vec![false; shards * places],
            tests_sent: vec![false; shards * places],
            tested: vec![false; shards],
            told: false,
            nodes: vec![0; slices],
            offered: vec![false; slices],
            notes: [0; 2],
            states,
            served: Vec::new(),
            outgoing: vec![Note::default(); 5 * shards],
            incoming: vec![Note::default(); 5 * shards],
            moved: vec![Moved::default(); places],
            accounts: Vec::new(),
            lost: Vec::new(),
            beats: 0,
            heard: vec![false; places],
            flying: vec![0; places],
            parts,
            done: hosts.iter().map(|host| host.done).collect(),
            begun: hosts,
        }
    }

    /// Hosts that were lost since this was last asked, and why.
    pub fn take_lost(&mut self) -> Vec<(Host, String)> {
        std::mem::take(&mut self.lost)
    }

    /// Whether bytes of something that was sent may still be read here.
    pub fn is_sending(&self) -> bool {
        self.flying.iter().any(|&count| count > 0)
    }

    /// Shows all others that this host is there.
    pub fn beat(&mut self, wire: &mut dyn Wire) {
        self.beats += 1;
        for place in self.others() {
            let nothing = Span { at: std::ptr::null_mut(), len: 0 };
            // SAFETY: nothing is read.
            unsafe {
                wire.send(self.begun[place].host, Item::Alive.tag(self.beats), nothing.at, nothing.len)
            };
        }
    }

    /// The other hosts, and whether anything came from each since this was last asked.
    pub fn take_heard(&mut self) -> impl Iterator<Item = (Host, bool)> {
        let heard = std::mem::replace(&mut self.heard, vec![false; self.parts.hosts()]);
        let own = self.own();
        let all = self.begun.iter().map(|host| host.host).zip(heard).enumerate();
        all.filter(move |&(place, _)| place != own).map(|(_, host)| host)
    }

    /// What moved in steps that are done, since this was last asked, by place.
    pub fn take_accounts(&mut self) -> Vec<(u64, Vec<Moved>)> {
        std::mem::take(&mut self.accounts)
    }

    fn own(&self) -> usize {
        self.parts.own()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<M, C> {
        let own = self.own();
        (0..self.parts.hosts()).filter(move |&place| place != own)
    }

    fn number(&self, bucket: u32, slice: u32) -> usize {
        (bucket * self.board.shape().slices + slice) as usize
    }

    fn slices(&self) -> impl Iterator<Item = (u32, u32)> + use<M, C> {
        let shape = self.board.shape();
        (0..shape.buckets).flat_map(move |bucket| (0..shape.slices).map(move |slice| (bucket, slice)))
    }

    /// Whether this host's state had to come from the others, or has to.
    fn is_behind(&self) -> bool {
        self.begun[self.own()].done != Some(self.first)
    }

    /// Who gives a slice of the state after so many steps, the first or one more, to those that lack it; `None` where nobody has it.
    fn giver(&self, steps: u64, slice: (u32, u32)) -> Option<usize> {
        self.begun.iter().position(|host| host.done == Some(self.first) && host.has(steps, slice))
    }

    /// Whether a slice of the step that is sent was done by the roster before.
    fn is_given(&self, bucket: u32, slice: u32) -> bool {
        self.step == self.first && self.giver(self.first + 1, (bucket, slice)).is_some()
    }

    /// Sends what hosts lack of the state, if it is this host that gives it to them.
    pub fn serve(&mut self, wire: &mut dyn Wire) {
        for steps in [self.first, self.first + 1] {
            for (bucket, slice) in self.slices() {
                if self.giver(steps, (bucket, slice)) != Some(self.own()) {
                    continue;
                }
                for place in self.others() {
                    if self.begun[place].has(steps, (bucket, slice)) {
                        continue;
                    }
                    for number in 0..self.cargo.states() {
                        let span = self.cargo.state(steps, bucket, slice, number);
                        self.send(wire, place, Item::State { bucket, slice, number }, steps, span);
                    }
                }
            }
        }
        let donor = self.begun.iter().position(|host| host.done == Some(self.first));
        if donor != Some(self.own()) {
            return;
        }
        let behind: Vec<usize> =
            self.others().filter(|&place| self.begun[place].done != Some(self.first)).collect();
        if behind.is_empty() {
            return;
        }
        for shard in 0..self.board.shape().shards {
            // Members may replace them before they are sent.
            let Span { at, len } = self.cargo.statistics(self.first, shard);
            // SAFETY: nobody is at work before hosts go on, so nobody writes there.
            let mut copy: Box<[u8]> = unsafe { std::slice::from_raw_parts(at, len) }.into();
            let span = Span { at: copy.as_mut_ptr(), len };
            self.served.push(copy);
            for &place in &behind {
                self.send(wire, place, Item::Statistics { shard }, self.first - 1, span);
                self.send_result(wire, place, shard, self.first - 1);
            }
        }
    }

    fn send(&mut self, wire: &mut dyn Wire, place: usize, item: Item, step: u64, span: Span) {
        self.flying[place] += 1;
        self.moved[place].sent.0 += span.len as u64;
        self.moved[place].note(self.words.now());
        // SAFETY: what is flagged is not written again before the receiver has it, as said above; notes are this porter's own, and are
        // replaced two steps later.
        unsafe { wire.send(self.begun[place].host, item.tag(step), span.at, span.len) };
    }

    /// Whether all hosts have done the steps before the one at work, but those that get their whole state in it.
    fn is_level(&self) -> bool {
        #[cfg(test)]
        if self.words.has(super::simulation::Mistake::MeanDropped) {
            return true;
        }
        let is_new = |place: usize| self.step == self.first && self.begun[place].done.is_none();
        self.others().all(|place| self.done[place] >= Some(self.step) || is_new(place))
    }

    /// Raises the flags of slices of the step at work that were given, once members have begun it: else a host could pass a test that is
    /// due before it.
    fn accept(&mut self) {
        if self.step > self.first {
            return;
        }
        for (bucket, slice) in self.slices() {
            let number = self.number(bucket, slice);
            if self.states.iter().all(|come| come[number] == self.cargo.states()) && !self.offered[number] {
                self.offered[number] = true;
                self.raise(self.board.slice_flag(bucket, slice), self.first + 1);
            }
        }
    }

    /// Lets members add up the slices whose nodes have all come.
    fn offer(&mut self) {
        if !self.is_level() {
            return;
        }
        let all: usize = self.others().map(|place| self.parts.nodes(place).count()).sum();
        for (bucket, slice) in self.slices() {
            let number = self.number(bucket, slice);
            let is_complete = self.nodes[number] as usize == all && !self.is_given(bucket, slice);
            if self.parts.is_owner(slice) && !self.offered[number] && is_complete {
                (self.offered[number], self.nodes[number]) = (true, 0);
                self.raise(self.board.input_flag(bucket, slice), self.step + 1);
            }
        }
    }

    /// Sends all that is ready to go.
    pub fn post(&mut self, wire: &mut dyn Wire) {
        loop {
            // Once members have begun the step, results of the test before it are there, and stay until slices of it are done.
            let has_begun = flag::has_reached(self.words, Board::BEGUN, self.step + 1);
            for part in self.parts.own_shards() {
                self.post_test(wire, part);
            }
            if self.step == self.first && self.has_noted() {
                self.arrive(self.first);
            }
            if has_begun {
                self.accept();
                self.offer();
            }
            let count = self.step + 1;
            let mut is_all = has_begun;
            for (bucket, slice) in self.slices() {
                let number = self.number(bucket, slice);
                if has_begun && !self.sent[number] {
                    self.sent[number] = self.post_slice(wire, bucket, slice);
                    is_all &= self.sent[number];
                }
            }
            for shard in self.parts.own_shards() {
                is_all &= self.post_notes(wire, shard);
            }
            let is_done = self.board.steps_done(self.words, self.step) >= count;
            if !self.told && self.board.steps_done(self.words, self.step) >= self.step {
                // Of a host that was behind: it no longer is.
                self.told = true;
                self.tell(wire, self.step);
            }
            if !(is_all && is_done) {
                return;
            }
            self.accounts.push((self.step, std::mem::take(&mut self.moved)));
            self.moved.resize(self.parts.hosts(), Moved::default());
            self.step += 1;
            self.tell(wire, self.step);
            self.sent.fill(false);
            self.offered.fill(false);
            self.notes_sent.fill(false);
            self.tests_sent.fill(false);
            self.tested.fill(false);
        }
    }

    fn tell(&mut self, wire: &mut dyn Wire, steps: u64) {
        for place in self.others() {
            self.send(wire, place, Item::Done, steps, Span { at: std::ptr::null_mut(), len: 0 });
        }
    }

    fn post_slice(&mut self, wire: &mut dyn Wire, bucket: u32, slice: u32) -> bool {
        let step = self.step;
        if self.is_given(bucket, slice) {
            return true;
        }
        if self.parts.is_owner(slice) {
            if !flag::has_reached(self.words, self.board.slice_flag(bucket, slice), step + 1) {
                return false;
            }
            let span = self.cargo.mean(bucket, slice);
            for place in self.others() {
                self.send(wire, place, Item::Mean { bucket, slice }, step, span);
            }
            return true;
        }
        if self.parts.own_shards().is_empty() {
            return true;
        }
        let is_added = flag::has_reached(self.words, self.board.part_flag(bucket, slice), step + 1);
        #[cfg(test)]
        let is_added = is_added || self.words.has(super::simulation::Mistake::NodeTooEarly);
        if !is_added {
            return false;
        }
        let owner = self.parts.owner(slice);
        for node in cover(self.parts.own_shards()) {
            let span = self.cargo.own_node(&self.parts, node, bucket, slice);
            self.send(wire, owner, Item::Node { bucket, slice, node }, step, span);
        }
        true
    }

    /// Sends what is noted of a shard to all who have room for it; whether all have it.
    fn post_notes(&mut self, wire: &mut dyn Wire, shard: u32) -> bool {
        let last = self.board.shape().buckets - 1;
        if !flag::has_reached(self.words, self.board.shard_flag(shard, last), self.step + 1) {
            return false;
        }
        let mut is_all = true;
        for place in self.others() {
            let number = shard as usize * self.parts.hosts() + place;
            if self.notes_sent[number] {
                continue;
            }
            let has_room = self.done[place] >= Some(self.step);
            #[cfg(test)]
            let has_room = has_room || self.words.has(super::simulation::Mistake::NotesTooEarly);
            if !has_room {
                is_all = false;
                continue;
            }
            self.notes_sent[number] = true;
            self.send_notes(wire, place, shard, self.step);
        }
        is_all
    }

    fn send_notes(&mut self, wire: &mut dyn Wire, place: usize, shard: u32, step: u64) {
        let span = self.cargo.statistics(step + 1, shard);
        self.send(wire, place, Item::Statistics { shard }, step, span);
        self.send_result(wire, place, shard, step);
    }

    fn send_result(&mut self, wire: &mut dyn Wire, place: usize, shard: u32, step: u64) {
        let number = super::side(step) * self.board.shape().shards as usize + shard as usize;
        self.outgoing[number] = self.board.result_of(self.words, step, shard);
        let span = note_span(&mut self.outgoing[number]);
        self.send(wire, place, Item::Result { shard }, step, span);
    }

    fn test_note(&self, steps: u64, part: u32) -> usize {
        let kind = if steps == self.first { 2 } else { 3 + super::side(steps) };
        kind * self.board.shape().shards as usize + part as usize
    }

    /// Sends the result of a part of the test that follows the steps done, once it is there, to all who have room for it: they are past
    /// the test before.
    fn post_test(&mut self, wire: &mut dyn Wire, part: u32) {
        let number = self.test_note(self.step, part);
        if !self.tested[part as usize] {
            let count = flag::count(self.words, self.board.test_flag(part), self.step);
            if count != self.step || self.step == 0 {
                return;
            }
            self.tested[part as usize] = true;
            let (loss, right) = self.board.test_of(self.words, part);
            self.outgoing[number] = [loss.to_bits(), right];
        }
        for place in self.others() {
            let sent = part as usize * self.parts.hosts() + place;
            if self.tests_sent[sent] || self.done[place] < Some(self.step) {
                continue;
            }
            self.tests_sent[sent] = true;
            // Of one that was behind nobody knows; it lacks them all.
            let host = &self.begun[place];
            let is_lacking = host.done != Some(self.first) || host.untested.contains(&part);
            if self.step > self.first || is_lacking {
                let span = note_span(&mut self.outgoing[number]);
                self.send(wire, place, Item::Tested { part }, self.step, span);
            }
        }
    }

    fn place_of(&self, host: Host) -> Option<usize> {
        self.begun.iter().position(|other| other.host == host)
    }
}

fn note_span(note: &mut Note) -> Span {
    Span { at: note.as_mut_ptr().cast(), len: NOTE }
}
