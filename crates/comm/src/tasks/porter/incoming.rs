//! What comes from other hosts: where it goes, and whom it lets go on.

use paceline_record::Host;

use super::item::Item;
use super::{Porter, note_span};
use crate::tasks::warden::AHEAD;
use crate::tasks::{Board, Cargo, Span, Words, flag, side};
use crate::wire::{Inbox, Tag};

impl<M: Words, C: Cargo> Porter<'_, M, C> {
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
                let number = side(step) * shape.shards as usize + shard as usize;
                is_right.then(|| note_span(&mut self.incoming[number]))
            }
            Item::Tested { part } => {
                let number = self.test_note(step, part);
                let is_right = (is_now || step == self.first) && part < shape.shards && is_its(part);
                is_right.then(|| note_span(&mut self.incoming[number]))
            }
            Item::Done | Item::Alive => Some(Span { at: std::ptr::NonNull::dangling().as_ptr(), len: 0 }),
            Item::State { bucket, slice, number } => {
                let is_right = is_slice(bucket, slice)
                    && number < self.cargo.states()
                    && (step == self.first || step == self.first + 1)
                    && self.giver(step, (bucket, slice)) == Some(place)
                    && !self.begun[self.own()].has(step, (bucket, slice));
                is_right.then(|| self.cargo.state(step, bucket, slice, number))
            }
        }
    }

    fn take(&mut self, place: usize, item: Item, step: u64) {
        let shape = self.board.shape();
        match item {
            Item::Node { bucket, slice, .. } => {
                let number = self.number(bucket, slice);
                self.nodes[number] += 1;
            }
            Item::Mean { bucket, slice } => self.raise(self.board.input_flag(bucket, slice), step + 1),
            Item::Statistics { .. } => self.count_note(step),
            Item::Result { shard } => {
                let number = side(step) * shape.shards as usize + shard as usize;
                let [loss, right] = self.incoming[number];
                self.board.note_result(self.words, step, shard, (f64::from_bits(loss), right));
                self.count_note(step);
            }
            Item::Tested { part } => {
                let [loss, right] = self.incoming[self.test_note(step, part)];
                // What is known already may be in use.
                if !flag::has_reached(self.words, self.board.test_flag(part), step) {
                    self.board.note_test(self.words, part, (f64::from_bits(loss), right));
                    self.raise(self.board.test_flag(part), step);
                }
            }
            Item::Done => {
                self.done[place] = self.done[place].max(Some(step));
            }
            Item::Alive => {}
            Item::State { bucket, slice, .. } => {
                let number = self.number(bucket, slice);
                let come = &mut self.states[usize::from(step > self.first)][number];
                *come += 1;
                if *come == self.cargo.states() && step == self.first {
                    self.raise(self.board.slice_flag(bucket, slice), step);
                }
            }
        }
    }

    /// Statistics and a result of a shard of another host have come, each on its own.
    fn count_note(&mut self, step: u64) {
        self.notes[side(step)] += 1;
        // Those of the first step wait for this host's own, which may be all that is left to do of it.
        if step != self.first {
            self.arrive(step);
        }
    }

    /// Raises the flag of a step's notes once all of other hosts' have come.
    pub(super) fn arrive(&mut self, step: u64) {
        let come = &mut self.notes[side(step)];
        let here = if step < self.first { 0 } else { self.parts.own_shards().len() as u32 };
        if *come == 2 * (self.board.shape().shards - here) {
            *come = 0;
            // Where all shards are this host's, no more come.
            let more = if here == self.board.shape().shards { AHEAD } else { 0 };
            self.raise(Board::ARRIVED, step + 1 + more);
        }
    }

    /// Whether all that is noted of this host's shards in the first step is there.
    pub(super) fn has_noted(&self) -> bool {
        let last = self.board.shape().buckets - 1;
        let flag = |shard| self.board.shard_flag(shard, last);
        self.parts.own_shards().all(|shard| flag::has_reached(self.words, flag(shard), self.first + 1))
    }

    pub(super) fn raise(&self, word: usize, count: u64) {
        if word != Board::ARRIVED {
            self.board.note_raised(self.words, word);
        }
        flag::raise(self.words, word, count);
    }
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

    fn sent(&mut self, peer: Host, tag: Tag) {
        if let Some(place) = self.place_of(peer)
            && Item::read(tag).is_some_and(|(item, _)| item != Item::Alive)
        {
            self.moved[place].note(self.words.now());
            self.flying[place] = self.flying[place].saturating_sub(1);
        }
    }

    fn lost(&mut self, peer: Host, why: &str) {
        if let Some(place) = self.place_of(peer) {
            // Nothing of it is read any more.
            self.flying[place] = 0;
        }
        self.lost.push((peer, why.into()));
    }
}
