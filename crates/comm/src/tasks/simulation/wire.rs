//! A wire whose messages take any time and overtake each other. It reads its sender's memory until it says that a message is sent, and
//! writes its receiver's until it says that the message has arrived, a value at a time.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use paceline_record::Host;

use super::super::{Cargo, Node, Parts, Span, side};
use super::net::{Message, delay};
use super::scenario::{Data, Mistake};
use super::world::View;
use crate::CommError;
use crate::wire::{Inbox, Tag, Wire};

/// A message that is still read from its sender's memory.
struct Outgoing {
    peer: usize,
    tag: Tag,
    from: *const u64,
    len: usize,
    values: Vec<u64>,
}

pub struct SimWire<'a> {
    view: &'a View,
    generation: u64,
    peers: Vec<Host>,
    outgoing: Vec<Outgoing>,
    /// Peers that the inbox was told of.
    lost: Vec<usize>,
}

// SAFETY: a run stays in its thread.
unsafe impl Send for SimWire<'_> {}

impl<'a> SimWire<'a> {
    pub fn new(view: &'a View, generation: u64, peers: Vec<Host>) -> Self {
        let mut net = view.world.net.borrow_mut();
        net.wires[view.host] = generation;
        if view.world.scenario.mistake == Some(Mistake::OldGeneration) {
            net.flying[view.host].iter_mut().for_each(|message| message.target = None);
        } else {
            net.flying[view.host].retain(|message| message.generation >= generation);
        }
        Self { view, generation, peers, outgoing: Vec::new(), lost: Vec::new() }
    }

    /// Moves some of what can be moved.
    pub fn advance(&mut self, inbox: &mut dyn Inbox) {
        self.lose(inbox);
        for _ in 0..1 + self.view.world.below(4) {
            if self.view.world.one_in(2) {
                self.read(inbox);
            } else {
                self.write(inbox);
            }
        }
    }

    fn lose(&mut self, inbox: &mut dyn Inbox) {
        let (own, now, generation) = (self.view.host, self.view.world.now(), self.generation);
        for peer in self.peers.clone() {
            let other = peer.0 as usize;
            let mut net = self.view.world.net.borrow_mut();
            let is_closed = !net.alive[other]
                || net.wires[other] > generation
                || net.closed.contains(&(generation, other, own));
            // What is on its way comes before the end of a connection.
            let is_last = !net.flying[own].iter().any(|message| message.from == other);
            let is_closed = is_closed && is_last && !net.is_cut(own, other, now);
            let is_lost = net.has_expired(own, other, now) || (is_closed && self.view.world.one_in(8));
            if !is_lost || self.lost.contains(&other) {
                continue;
            }
            self.lost.push(other);
            net.closed.push((generation, own, other));
            net.flying[own].retain(|message| message.from != other);
            drop(net);
            self.outgoing.retain(|message| message.peer != other);
            inbox.lost(peer, "it is gone");
        }
    }

    fn read(&mut self, inbox: &mut dyn Inbox) {
        if self.outgoing.is_empty() {
            return;
        }
        let chosen = self.view.world.below(self.outgoing.len().min(6));
        let message = &mut self.outgoing[chosen];
        for _ in 0..2 {
            if message.values.len() < message.len {
                self.view.access();
                // SAFETY: the sender leaves its memory to the wire, which is what is tested; it is there until the run ends.
                message.values.push(unsafe { message.from.add(message.values.len()).read_unaligned() });
            }
        }
        if message.values.len() < message.len {
            return;
        }
        let Outgoing { peer, tag, values, .. } = self.outgoing.remove(chosen);
        let world = self.view.world;
        let due = world.now() + delay(&mut world.random.borrow_mut());
        let (generation, from) = (self.generation, self.view.host);
        let message = Message { generation, from, tag, values, due, target: None, written: 0 };
        world.net.borrow_mut().flying[peer].push(message);
        inbox.sent(Host(peer as u32), tag);
    }

    fn write(&mut self, inbox: &mut dyn Inbox) {
        let (own, world) = (self.view.host, self.view.world);
        let takes_old = world.scenario.mistake == Some(Mistake::OldGeneration);
        let net = world.net.borrow();
        let can_come = |message: &Message| {
            (message.generation == self.generation || (takes_old && message.generation < self.generation))
                && message.due <= world.now()
                && !net.is_cut(own, message.from, world.now())
        };
        let all = net.flying[own].iter().enumerate();
        let coming: Vec<usize> = all.filter(|(_, message)| can_come(message)).map(|(at, _)| at).collect();
        drop(net);
        if coming.is_empty() {
            return;
        }
        let chosen = coming[world.below(coming.len())];
        // Nobody else takes from it, so numbers stay; only the end grows.
        let (peer, tag, len, target) = {
            let message = &world.net.borrow().flying[own][chosen];
            (Host(message.from as u32), message.tag, 8 * message.values.len(), message.target)
        };
        let Some(target) = target.or_else(|| inbox.place(peer, tag, len).map(<*mut u8>::cast)) else {
            assert!(takes_old, "{tag:?} of {peer:?} was not expected");
            world.net.borrow_mut().flying[own].remove(chosen);
            return;
        };
        for _ in 0..2 {
            self.view.access();
            let message = &mut world.net.borrow_mut().flying[own][chosen];
            message.target = Some(target);
            if let Some(&value) = message.values.get(message.written) {
                // SAFETY: the receiver leaves its memory to the wire, which is what is tested; it is there until the run ends.
                unsafe { *target.add(message.written) = value };
                message.written += 1;
            }
        }
        let mut net = world.net.borrow_mut();
        if net.flying[own][chosen].written == len / 8 {
            net.flying[own].remove(chosen);
            drop(net);
            inbox.arrived(peer, tag, len);
        }
    }
}

impl Wire for SimWire<'_> {
    fn peers(&self) -> &[Host] {
        &self.peers
    }

    unsafe fn send(&mut self, peer: Host, tag: Tag, from: *const u8, len: usize) {
        let peer = peer.0 as usize;
        if self.lost.contains(&peer) {
            return;
        }
        let is_new = self.outgoing.iter().all(|other| (other.peer, other.tag) != (peer, tag));
        assert!(is_new, "two messages have the tag {tag:?}");
        self.outgoing.push(Outgoing { peer, tag, from: from.cast(), len: len / 8, values: Vec::new() });
    }

    fn progress(&mut self, inbox: &mut dyn Inbox, _: BorrowedFd<'_>, _: Duration) -> Result<(), CommError> {
        self.advance(inbox);
        Ok(())
    }
}

/// The cargo of a simulated host.
pub struct SimCargo<'a>(pub &'a View);

impl SimCargo<'_> {
    fn data(&self) -> Data {
        Data(self.0.world.scenario)
    }

    /// The slice of an area, of which this is where a value lies.
    fn span(&self, bucket: u32, slice: u32, at: impl Fn(usize) -> usize) -> Span {
        let range = self.data().0.range(bucket, slice);
        Span { at: self.0.memory().address(at(range.start)), len: 8 * range.len() }
    }
}

impl Cargo for SimCargo<'_> {
    fn own_node(&self, parts: &Parts, node: Node, bucket: u32, slice: u32) -> Span {
        self.span(bucket, slice, |value| self.data().node(parts, node, value))
    }

    fn node(&self, node: Node, bucket: u32, slice: u32) -> Span {
        self.span(bucket, slice, |value| self.data().gradient(node.first, value))
    }

    fn mean(&self, bucket: u32, slice: u32) -> Span {
        self.span(bucket, slice, |value| self.data().mean(value))
    }

    fn statistics(&self, steps: u64, shard: u32) -> Span {
        Span { at: self.0.memory().address(self.data().statistic(side(steps), shard)), len: 8 }
    }

    fn state(&self, steps: u64, bucket: u32, slice: u32, number: u32) -> Span {
        self.span(bucket, slice, |value| self.data().state(side(steps), number as usize, value))
    }

    fn states(&self) -> u32 {
        1 + self.data().0.kept() as u32
    }
}
