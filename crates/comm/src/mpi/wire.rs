//! A wire through MPI.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::time::{Duration, Instant};

use paceline_record::Host;

use super::RESIGNED;
use super::dock::{Dock, Head, Kind};
use crate::CommError;
use crate::wire::{Cable, Inbox, Tag, Wire, doze};

/// Chunks that come from a rank before it is the next one's turn.
const TURN: usize = 16;

/// What a wire is made for.
#[derive(Clone, Debug)]
pub struct Roster {
    /// What tells this run from others.
    pub run: u64,
    /// The roster's number.
    pub generation: u64,
    /// The other hosts, whose numbers are ranks.
    pub hosts: Vec<Host>,
}

/// A [`Wire`] through MPI: hosts are ranks.
pub(super) struct MpiWire<'a> {
    dock: &'a mut Dock,
    roster: Roster,
    peers: Vec<Peer>,
    cable: Cable,
}

struct Peer {
    host: Host,
    /// Messages that go out, the first of them in part.
    queue: VecDeque<Outgoing>,
    /// The message that comes. One comes after another.
    incoming: Option<Incoming>,
    is_lost: bool,
}

struct Outgoing {
    tag: Tag,
    from: *const u8,
    len: usize,
    sent: usize,
}

struct Incoming {
    tag: Tag,
    into: *mut u8,
    len: usize,
    came: usize,
}

impl<'a> MpiWire<'a> {
    pub fn new(dock: &'a mut Dock, roster: Roster, cable: Cable) -> Self {
        let peer = |&host: &Host| Peer { host, queue: VecDeque::new(), incoming: None, is_lost: false };
        let peers = roster.hosts.iter().map(peer).collect();
        dock.begin_wire(roster.run, roster.generation);
        Self { dock, roster, peers, cable }
    }

    /// Moves what can be moved now; whether that was anything.
    fn turn(&mut self, inbox: &mut dyn Inbox) -> Result<bool, CommError> {
        let mut has_moved = self.dock.tend()?;
        for place in 0..self.peers.len() {
            let peer = &mut self.peers[place];
            // The other one is to have something to do while what came from it is copied.
            for _ in 0..TURN {
                let has_sent = peer.send(self.dock, &self.roster, inbox)?;
                let has_received = peer.receive(self.dock, &self.roster, inbox)?;
                has_moved |= has_sent || has_received;
                if !has_received {
                    break;
                }
            }
        }
        Ok(has_moved)
    }
}

impl Peer {
    /// Takes the next chunk, if it is there and of this wire.
    fn receive(
        &mut self,
        dock: &mut Dock,
        roster: &Roster,
        inbox: &mut dyn Inbox,
    ) -> Result<bool, CommError> {
        let rank = self.host.0;
        let Some((head, bytes)) = dock.front(rank)? else { return Ok(false) };
        if head.kind != Kind::Cargo || (head.run, head.generation) != (roster.run, roster.generation) {
            return Ok(false);
        }
        if !self.is_lost
            && let Err(why) = self.take(&head, bytes, inbox)
        {
            self.lose(why, inbox);
        }
        dock.advance(rank)?;
        Ok(true)
    }

    fn take(&mut self, head: &Head, bytes: &[u8], inbox: &mut dyn Inbox) -> Result<(), &'static str> {
        let (tag, len) = (Tag(head.tag), head.whole as usize);
        if head.at == 0 && self.incoming.is_none() {
            let into = inbox.place(self.host, tag, len).ok_or("it sent what nobody expected")?;
            self.incoming = Some(Incoming { tag, into, len, came: 0 });
        }
        let message = self.incoming.as_mut().ok_or("it sent the middle of a message first")?;
        if (message.tag, message.len, message.came as u64) != (tag, len, head.at) {
            return Err("it sent parts of messages that do not belong together");
        }
        // SAFETY: the inbox vouches for the place, and a chunk lies inside its message.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), message.into.add(message.came), bytes.len()) };
        message.came += bytes.len();
        if message.came == message.len {
            self.incoming = None;
            inbox.arrived(self.host, tag, len);
        }
        Ok(())
    }

    /// Sends chunks while there are berths for them.
    fn send(&mut self, dock: &mut Dock, roster: &Roster, inbox: &mut dyn Inbox) -> Result<bool, CommError> {
        let mut has_moved = false;
        while let Some(message) = self.queue.front_mut() {
            let len = (message.len - message.sent).min(dock.chunk());
            let head = Head {
                kind: Kind::Cargo,
                run: roster.run,
                generation: roster.generation,
                tag: message.tag.0,
                whole: message.len as u64,
                at: message.sent as u64,
            };
            // SAFETY: whoever sent the message vouches for its bytes.
            if !unsafe { dock.load(self.host.0, &head, message.from.wrapping_add(message.sent), len) }? {
                break;
            }
            has_moved = true;
            message.sent += len;
            if message.sent == message.len {
                inbox.sent(self.host, message.tag);
                self.queue.pop_front();
            }
        }
        Ok(has_moved)
    }

    fn lose(&mut self, why: &str, inbox: &mut dyn Inbox) {
        (self.is_lost, self.incoming) = (true, None);
        self.queue.clear();
        inbox.lost(self.host, why);
    }
}

impl Wire for MpiWire<'_> {
    fn peers(&self) -> &[Host] {
        &self.roster.hosts
    }

    unsafe fn send(&mut self, peer: Host, tag: Tag, from: *const u8, len: usize) {
        if let Some(peer) = self.peers.iter_mut().find(|other| other.host == peer && !other.is_lost) {
            peer.queue.push_back(Outgoing { tag, from, len, sent: 0 });
        }
    }

    fn progress(
        &mut self,
        inbox: &mut dyn Inbox,
        bell: BorrowedFd<'_>,
        wait: Duration,
    ) -> Result<(), CommError> {
        if let Some(cut) = self.cable.is_cut_for() {
            return doze(bell, wait.min(cut));
        }
        let until = Instant::now().checked_add(wait);
        loop {
            match self.turn(inbox) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // MPI is gone, and with it all peers.
                Err(error) => {
                    let why = error.to_string();
                    let there = self.peers.iter_mut().filter(|peer| !peer.is_lost);
                    there.for_each(|peer| peer.lose(&why, inbox));
                    return doze(bell, wait.min(RESIGNED));
                }
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() || self.dock.nap(Some(bell), left)? {
                return Ok(());
            }
        }
    }

    fn idle(&mut self, bell: BorrowedFd<'_>, wait: Duration) -> Result<(), CommError> {
        match self.dock.tend() {
            Ok(true) => Ok(()),
            Ok(false) => self.dock.nap(Some(bell), wait).map(drop),
            Err(_) => doze(bell, wait.min(RESIGNED)),
        }
    }
}

impl Drop for MpiWire<'_> {
    fn drop(&mut self) {
        self.dock.end_wire();
    }
}
