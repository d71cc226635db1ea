//! What travels between hosts, and when: the part of the launcher that carries gradients, means and notes.
//!
//! A porter only copies. It looks at flags to know what is ready to go, and raises flags for what has come. Members know nothing of it
//! but those flags.
//!
//! Nothing is sent before its receiver has room for it. A slice's owner has added it up before anybody has its mean, and nobody goes
//! on to the next step without that; so a node or a mean of the next step never finds the last one still in use. Only notes of shards
//! could come too early: they replace those of two steps ago, so they wait until the receiver has told that it is past them. A guest
//! has no nodes that others wait for: means wait for it too, and nobody goes on to the next step before guests have them.

use paceline_record::{Bytes, Host, Nanos};

use super::{Board, Cargo, Node, Parts, Span, Words, flag};
use crate::wire::{Inbox, Tag, Wire};

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    /// A node of a slice, for its owner.
    Node { bucket: u32, slice: u32, node: Node },
    /// The mean of a slice, from its owner.
    Mean { bucket: u32, slice: u32 },
    /// Running statistics of a shard after the step.
    Statistics { shard: u32 },
    /// Loss and right guesses of a shard.
    Result { shard: u32 },
    /// The result of a part of a test after so many steps.
    Tested { part: u32 },
    /// So many steps are done on the sender.
    Done,
    /// A slice of the state after so many steps.
    State { bucket: u32, slice: u32, number: u32 },
    /// Nothing but that the sender is there, so many times.
    Alive,
}

impl Item {
    fn tag(self, step: u64) -> Tag {
        let (kind, numbers) = match self {
            Self::Node { bucket, slice, node } => (1, [bucket, slice, node.first, node.level]),
            Self::Mean { bucket, slice } => (2, [bucket, slice, 0, 0]),
            Self::Statistics { shard } => (3, [shard, 0, 0, 0]),
            Self::Result { shard } => (4, [shard, 0, 0, 0]),
            Self::Tested { part } => (5, [part, 0, 0, 0]),
            Self::Done => (6, [0; 4]),
            Self::State { bucket, slice, number } => (7, [bucket, slice, number, 0]),
            Self::Alive => (8, [0; 4]),
        };
        let [a, b, c, d] = numbers;
        Tag([kind, step as u32, a, b, c, d])
    }

    fn read(Tag([kind, step, a, b, c, d]): Tag) -> Option<(Self, u64)> {
        let item = match kind {
            1 => Self::Node { bucket: a, slice: b, node: Node { first: c, level: d } },
            2 => Self::Mean { bucket: a, slice: b },
            3 => Self::Statistics { shard: a },
            4 => Self::Result { shard: a },
            5 => Self::Tested { part: a },
            6 => Self::Done,
            7 => Self::State { bucket: a, slice: b, number: c },
            8 => Self::Alive,
            _ => return None,
        };
        Some((item, u64::from(step)))
    }
}

/// How far a host of the roster had come when the shards were dealt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The host.
    pub host: Host,
    /// Steps done; `None` where it has no state at all.
    pub done: Option<u64>,
    /// Slices of the step after these that it has not done; all of them, if it has no state.
    pub missing: Vec<(u32, u32)>,
    /// Parts of the test after these that it lacks.
    pub untested: Vec<u32>,
}

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
    /// Of this step, which slices were sent to which place: the mean, or this host's nodes.
    sent: Vec<bool>,
    /// Which shards of this host were sent to which place.
    notes_sent: Vec<bool>,
    tests_sent: Vec<bool>,
    told: bool,
    /// Nodes of each slice that have come.
    nodes: Vec<u32>,
    /// Notes of shards that have come in this step, or in the one that this host was behind by.
    notes: u32,
    /// Values of each slice of the state that have come.
    states: Vec<u32>,
    /// Notes on their way out and in: of the shards in even and odd steps, and of tests.
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
}

// SAFETY: addresses are those of shared memory, which any thread of the launcher may use as the protocol says.
unsafe impl<M: Sync, C> Send for Porter<'_, M, C> {}

impl<'a, M: Words, C: Cargo> Porter<'a, M, C> {
    /// The porter of a host, when all hosts stand like this.
    ///
    /// # Panics
    /// If a host of the roster is missing.
    pub fn new(words: &'a M, board: Board, cargo: C, parts: Parts, hosts: Vec<Standing>) -> Self {
        assert_eq!(hosts.len(), parts.hosts(), "invariant: all hosts of the roster");
        let shape = board.shape();
        let step = hosts.iter().filter_map(|host| host.done).max().unwrap_or(0);
        let slices = (shape.buckets * shape.slices) as usize;
        let (shards, places) = (shape.shards as usize, parts.hosts());
        let own = &hosts[parts.own()];
        // What need not come counts as come.
        let mut states = vec![0; slices];
        if own.done == Some(step) {
            states.fill(cargo.states());
        }
        Self {
            words,
            board,
            cargo,
            step,
            first: step,
            sent: vec![false; slices * places],
            notes_sent: vec![false; shards * places],
            tests_sent: vec![false; shards],
            told: false,
            nodes: vec![0; slices],
            notes: 0,
            states,
            outgoing: vec![Note::default(); 3 * shards],
            incoming: vec![Note::default(); 3 * shards],
            moved: vec![Moved::default(); places],
            accounts: Vec::new(),
            lost: Vec::new(),
            beats: 0,
            heard: vec![false; places],
            parts,
            done: hosts.iter().map(|host| host.done).collect(),
            begun: hosts,
        }
    }

    /// Hosts that were lost since this was last asked, and why.
    pub fn take_lost(&mut self) -> Vec<(Host, String)> {
        std::mem::take(&mut self.lost)
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

    /// Whether a host still needs the mean of a slice of the step that is sent. In the first one some have it from the roster before.
    fn needs(&self, place: usize, bucket: u32, slice: u32) -> bool {
        let host = &self.begun[place];
        self.step > self.first || host.done != Some(self.first) || host.missing.contains(&(bucket, slice))
    }

    /// Sends what hosts lack that are behind, if it is this host that gives it to them.
    pub fn serve(&mut self, wire: &mut dyn Wire) {
        let donor = self.begun.iter().position(|host| host.done == Some(self.first));
        if donor != Some(self.own()) || self.first == 0 {
            return;
        }
        let behind: Vec<usize> =
            self.others().filter(|&place| self.begun[place].done != Some(self.first)).collect();
        for place in behind {
            for (bucket, slice) in self.begun[place].missing.clone() {
                for number in 0..self.cargo.states() {
                    let span = self.cargo.state(self.first, bucket, slice, number);
                    self.send(wire, place, Item::State { bucket, slice, number }, self.first, span);
                }
            }
            for shard in 0..self.board.shape().shards {
                self.send_notes(wire, place, shard, self.first - 1);
            }
        }
    }

    fn send(&mut self, wire: &mut dyn Wire, place: usize, item: Item, step: u64, span: Span) {
        self.moved[place].sent.0 += span.len as u64;
        self.moved[place].note(self.words.now());
        // SAFETY: what is flagged is not written again before the receiver has it, as said above; notes are this porter's own, and are
        // replaced two steps later.
        unsafe { wire.send(self.begun[place].host, item.tag(step), span.at, span.len) };
    }

    /// Sends all that is ready to go.
    pub fn post(&mut self, wire: &mut dyn Wire) {
        loop {
            let count = self.step + 1;
            let mut is_all = true;
            for (bucket, slice) in self.slices() {
                is_all &= self.post_slice(wire, bucket, slice);
            }
            for shard in self.parts.own_shards() {
                is_all &= self.post_notes(wire, shard);
                self.post_test(wire, shard);
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
            self.check_arrived();
            self.sent.fill(false);
            self.notes_sent.fill(false);
            self.tests_sent.fill(false);
        }
    }

    fn tell(&mut self, wire: &mut dyn Wire, steps: u64) {
        for place in self.others() {
            self.send(wire, place, Item::Done, steps, Span { at: std::ptr::null_mut(), len: 0 });
        }
    }

    /// Sends a mean, or this host's nodes of one, to all who have room for it; whether all have it.
    fn post_slice(&mut self, wire: &mut dyn Wire, bucket: u32, slice: u32) -> bool {
        let (step, first) = (self.step, self.number(bucket, slice) * self.parts.hosts());
        let is_owner = self.parts.is_owner(slice);
        let flag =
            if is_owner { self.board.slice_flag(bucket, slice) } else { self.board.part_flag(bucket, slice) };
        if !flag::has_reached(self.words, flag, step + 1) {
            return false;
        }
        let owner = self.parts.owner(slice);
        let mut is_all = true;
        for place in self.others().filter(|&place| is_owner || place == owner) {
            if self.sent[first + place] {
                continue;
            }
            if self.parts.guests().contains(&place) && self.is_before(place) {
                is_all = false;
                continue;
            }
            self.sent[first + place] = true;
            if !self.needs(place, bucket, slice) {
                continue;
            }
            if is_owner {
                let span = self.cargo.mean(bucket, slice);
                self.send(wire, place, Item::Mean { bucket, slice }, step, span);
                continue;
            }
            for node in self.parts.clone().nodes(self.own()) {
                let span = self.cargo.own_node(&self.parts, node, bucket, slice);
                self.send(wire, place, Item::Node { bucket, slice, node }, step, span);
            }
        }
        is_all
    }

    /// Whether a host is not known to have come to this step.
    fn is_before(&self, place: usize) -> bool {
        self.done[place].is_none_or(|done| done < self.step)
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
            if self.is_before(place) {
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
        let number = super::side(step) * self.board.shape().shards as usize + shard as usize;
        self.outgoing[number] = self.board.result_of(self.words, step, shard);
        let span = note_span(&mut self.outgoing[number]);
        self.send(wire, place, Item::Result { shard }, step, span);
    }

    /// Sends the result of a part of the test that follows the steps done, once it is there.
    fn post_test(&mut self, wire: &mut dyn Wire, part: u32) {
        let count = flag::count(self.words, self.board.test_flag(part), self.step);
        if self.tests_sent[part as usize] || count != self.step || self.step == 0 {
            return;
        }
        self.tests_sent[part as usize] = true;
        let number = 2 * self.board.shape().shards as usize + part as usize;
        let (loss, right) = self.board.test_of(self.words, part);
        self.outgoing[number] = [loss.to_bits(), right];
        let span = note_span(&mut self.outgoing[number]);
        for place in self.others() {
            if self.step > self.first || self.begun[place].untested.contains(&part) {
                self.send(wire, place, Item::Tested { part }, self.step, span);
            }
        }
    }

    fn place_of(&self, host: Host) -> Option<usize> {
        self.begun.iter().position(|other| other.host == host)
    }

    /// Where a message of a peer goes, if it makes sense.
    fn span(&mut self, place: usize, item: Item, step: u64) -> Option<Span> {
        let shape = self.board.shape();
        let is_slice = |bucket: u32, slice: u32| bucket < shape.buckets && slice < shape.slices;
        // A peer can be a step ahead; one that was behind is told of the step before.
        let is_now = step == self.step || step == self.step + 1;
        let serves = self.is_behind() && self.begun[place].done == Some(self.first);
        let is_served = serves && step + 1 == self.first && self.step == self.first;
        let is_its = |shard: u32| self.parts.shards(place).contains(&shard);
        match item {
            Item::Node { bucket, slice, node } => {
                let is_right = is_slice(bucket, slice)
                    && self.parts.is_owner(slice)
                    && self.parts.nodes(place).any(|other| other == node);
                (is_now && is_right).then(|| self.cargo.node(node, bucket, slice))
            }
            Item::Mean { bucket, slice } => {
                let is_right = is_slice(bucket, slice) && self.parts.owner(slice) == place;
                (is_now && is_right).then(|| self.cargo.mean(bucket, slice))
            }
            Item::Statistics { shard } => {
                let is_right = shard < shape.shards && ((is_now && is_its(shard)) || is_served);
                is_right.then(|| self.cargo.statistics(step + 1, shard))
            }
            Item::Result { shard } => {
                let is_right = shard < shape.shards && ((is_now && is_its(shard)) || is_served);
                let number = super::side(step) * shape.shards as usize + shard as usize;
                is_right.then(|| note_span(&mut self.incoming[number]))
            }
            Item::Tested { part } => {
                let number = 2 * shape.shards as usize + part as usize;
                let is_right = is_now && part < shape.shards && is_its(part);
                is_right.then(|| note_span(&mut self.incoming[number]))
            }
            Item::Done | Item::Alive => Some(Span { at: std::ptr::NonNull::dangling().as_ptr(), len: 0 }),
            Item::State { bucket, slice, number } => {
                let is_right = is_slice(bucket, slice) && number < self.cargo.states() && serves;
                let is_missing = self.begun[self.own()].missing.contains(&(bucket, slice));
                (is_right && is_missing && step == self.first)
                    .then(|| self.cargo.state(step, bucket, slice, number))
            }
        }
    }

    fn take(&mut self, place: usize, item: Item, step: u64) {
        let shape = self.board.shape();
        match item {
            Item::Node { bucket, slice, .. } => {
                let number = self.number(bucket, slice);
                self.nodes[number] += 1;
                let all: usize = self.others().map(|place| self.parts.nodes(place).count()).sum();
                if self.nodes[number] as usize == all {
                    self.nodes[number] = 0;
                    self.raise(self.board.input_flag(bucket, slice), step + 1);
                }
            }
            Item::Mean { bucket, slice } => self.raise(self.board.input_flag(bucket, slice), step + 1),
            Item::Statistics { .. } => self.count_note(step),
            Item::Result { shard } => {
                let number = super::side(step) * shape.shards as usize + shard as usize;
                let [loss, right] = self.incoming[number];
                self.board.note_result(self.words, step, shard, (f64::from_bits(loss), right));
                self.count_note(step);
            }
            Item::Tested { part } => {
                let [loss, right] = self.incoming[2 * shape.shards as usize + part as usize];
                // What is known already may be in use.
                if !flag::has_reached(self.words, self.board.test_flag(part), step) {
                    self.board.note_test(self.words, part, (f64::from_bits(loss), right));
                    self.raise(self.board.test_flag(part), step);
                }
            }
            Item::Done => {
                self.done[place] = self.done[place].max(Some(step));
                self.check_arrived();
            }
            Item::Alive => {}
            Item::State { bucket, slice, .. } => {
                let number = self.number(bucket, slice);
                self.states[number] += 1;
                if self.states[number] == self.cargo.states() {
                    self.raise(self.board.slice_flag(bucket, slice), step);
                }
            }
        }
    }

    /// Statistics and a result of a shard of another host have come, each on its own.
    fn count_note(&mut self, step: u64) {
        self.notes += 1;
        if step < self.first {
            if self.notes == 2 * self.board.shape().shards {
                self.notes = 0;
                self.raise(Board::ARRIVED, step + 1);
            }
            return;
        }
        self.check_arrived();
    }

    /// Lets members go on to the next step when the notes of all other hosts have come, and guests have all that they need of this one.
    fn check_arrived(&mut self) {
        let all = 2 * (self.board.shape().shards - self.parts.own_shards().len() as u32);
        let own = self.own();
        let next = Some(self.step + 1);
        // A guest has nothing that another one needs.
        let guests = self.parts.guests();
        let mut guests = if guests.contains(&own) { 0..0 } else { guests };
        if self.notes == all && guests.all(|place| self.done[place] >= next) && self.parts.hosts() > 1 {
            self.notes = 0;
            self.raise(Board::ARRIVED, self.step + 1);
        }
    }

    fn raise(&self, word: usize, count: u64) {
        if word != Board::ARRIVED {
            self.board.note_raised(self.words, word);
        }
        flag::raise(self.words, word, count);
    }
}

fn note_span(note: &mut Note) -> Span {
    Span { at: note.as_mut_ptr().cast(), len: NOTE }
}

// SAFETY: places are those of shared memory that the protocol leaves to this porter until it raises a flag, or its own notes, of which
// each is one message's at a time.
unsafe impl<M: Words, C: Cargo> Inbox for Porter<'_, M, C> {
    fn place(&mut self, peer: Host, tag: Tag, len: usize) -> Option<*mut u8> {
        let (item, step) = Item::read(tag)?;
        let place = self.place_of(peer)?;
        let span = self.span(place, item, step)?;
        (span.len == len).then_some(span.at)
    }

    fn arrived(&mut self, peer: Host, tag: Tag, len: usize) {
        let Some((place, (item, step))) = self.place_of(peer).zip(Item::read(tag)) else { return };
        self.heard[place] = true;
        if item == Item::Alive {
            return;
        }
        self.moved[place].received.0 += len as u64;
        self.moved[place].note(self.words.now());
        self.take(place, item, step);
    }

    fn sent(&mut self, peer: Host, _: Tag) {
        if let Some(place) = self.place_of(peer) {
            self.moved[place].note(self.words.now());
        }
    }

    fn lost(&mut self, peer: Host, why: &str) {
        self.lost.push((peer, why.into()));
    }
}
