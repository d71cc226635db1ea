//! The side of a host that is not the first: it hears the first, and looks for another one where that is lost.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use paceline_comm::tasks::authority::Order;
use paceline_comm::tasks::registry::Entry;
use paceline_comm::wire::{Address, Door, Letters};
use paceline_record::{Host, Nanos};

use super::entrance::Visitor;
use super::first::{First, MOST_CALLERS};
use super::heir::{Heir, Sought};
use super::letter::{Greeting, Letter, send};
use super::link::Lobby;
use super::party::{Event, Heard};
use super::silence::Silence;
use crate::clock;

/// How much longer than the lease the first host may be silent: it hears of a cut first, and decides.
const SLACK: Nanos = Nanos(500_000_000);

/// Another host's side of its connection with the first.
pub(super) struct Other {
    /// Where other hosts bring it their bytes, if they do not come by themselves.
    pub door: Option<Door>,
    pub letters: Letters,
    pub silence: Silence,
    /// Whether the first host cannot be reached any more.
    pub is_cut: bool,
    /// Where it is.
    pub first: Address,
    pub workers: u32,
    /// Where its door is, if the user has said so.
    pub interface: Option<IpAddr>,
    /// The first host's number.
    pub first_host: Host,
    /// What it needs to take the first host's place, where it may.
    pub heir: Option<Box<Heir>>,
    /// Whether the first host has told it to end.
    pub is_told_to_end: bool,
    /// Those who have called it as the first host, before it knew that it is.
    pub early: VecDeque<Visitor>,
}

impl Other {
    /// Lets other hosts bring their bytes.
    pub fn take_visitors(&mut self, run: u64, lobby: &Lobby) {
        while let Some(visitor) = self.door.as_ref().and_then(Door::next) {
            match serde_json::from_slice(&visitor.greeting) {
                Ok(Greeting::Data { run: told, generation, from }) if told == run => {
                    lobby.put(generation, from, visitor.stream);
                }
                // What is written down may reach others before this host.
                Ok(Greeting::Back(_) | Greeting::Control(_))
                    if self.is_cut && self.heir.is_some() && self.early.len() < MOST_CALLERS =>
                {
                    let from = visitor.from.into();
                    let letters = Letters::new(visitor.stream);
                    self.early.push_back(Visitor { greeting: visitor.greeting, letters, from });
                }
                // Of another run, or what nobody says.
                _ => {}
            }
        }
    }

    /// Hears the first host, or looks for another one; whether this host is to take its place, and what is written down there.
    pub fn tend(
        &mut self,
        lease: Nanos,
        outbox: &mut VecDeque<Letter>,
        heard: &mut Heard,
        now: Nanos,
    ) -> Option<Option<Entry>> {
        if self.is_cut {
            return self.seek(heard, now);
        }
        let why = match self.listen(outbox, heard) {
            // It has handed over.
            Ok(_) if self.is_cut => return None,
            Ok(count) => {
                let silent = self.silence.look(count > 0, now);
                if silent <= lease + SLACK {
                    return None;
                }
                format!("it was silent for {:.1} s", silent.seconds())
            }
            Err(why) => why,
        };
        self.is_cut = true;
        let first = self.first;
        if let Some(heir) = self.heir.as_mut().filter(|_| !self.is_told_to_end) {
            heard.0.push(Event::Say(format!(
                "the first host ({first}) cannot be reached: {why}; looking for the one that takes its place"
            )));
            heir.begin(Some(why), now);
            return None;
        }
        let others = match first {
            Address::Socket(_) => " (with --elastic, a run outlives the loss of any other host)",
            Address::Rank(_) => "",
        };
        let why = format!(
            "the first host ({first}) cannot be reached: {why}; the hosts of this run meet there, so this one ends{others}"
        );
        heard.0.extend([Event::Order(Order::End(why), BTreeMap::new()), Event::Cut]);
        None
    }

    /// Looks for whoever takes the place of the first host.
    fn seek(&mut self, heard: &mut Heard, now: Nanos) -> Option<Option<Entry>> {
        let heir = self.heir.as_mut().filter(|heir| heir.seeks.is_some())?;
        match heir.seek(self.door.as_ref()?, now) {
            Sought::Waits => {}
            Sought::Found(letters, first, (host, name)) => {
                heir.follow((host, name));
                self.early.clear();
                (self.letters, self.first, self.first_host) = (*letters, first, host);
                (self.silence, self.is_cut) = (Silence::default(), false);
                heard.0.push(Event::Say(format!("host {host} ({first}) is the first now")));
            }
            Sought::Leads(entry) => return Some(entry),
            Sought::Ends(why) => {
                heir.seeks = None;
                heard.0.extend([Event::Order(Order::End(why), BTreeMap::new()), Event::Cut]);
            }
        }
        None
    }

    /// Takes the first host's place.
    pub fn lead(&mut self, entry: Option<Entry>, heard: &mut Heard, now: Nanos) -> First {
        let heir = self.heir.as_mut().expect("invariant: only an heir leads");
        let door = self.door.take().expect("invariant: hosts that connect over TCP have a door");
        let (mut first, events) = heir.lead(door, entry, now);
        first.early = std::mem::take(&mut self.early);
        heard.0.push(Event::Leads);
        heard.0.extend(events.into_iter().map(Event::Log));
        let text = format!(
            "this host, {} ({}), is the first now: the report and the weights will be here",
            first.host, first.name
        );
        heard.0.push(Event::Say(text));
        first
    }

    /// What the first host says. Gives the number of letters.
    fn listen(&mut self, outbox: &mut VecDeque<Letter>, heard: &mut Heard) -> Result<usize, String> {
        let Self { letters, first, .. } = self;
        let came = letters.progress().map_err(|error| error.to_string())?;
        for bytes in &came {
            match Letter::read(bytes)? {
                Letter::Order { order, doors } => {
                    let mut doors: BTreeMap<Host, SocketAddr> = doors.into_iter().collect();
                    // The first host's door is where this one found it, unless it has another one for bytes.
                    if let Some(first) = first.socket() {
                        doors.entry(self.first_host).or_insert(first);
                    }
                    self.is_told_to_end |= matches!(order, Order::End(_) | Order::Bye);
                    self.heir.iter_mut().for_each(|heir| heir.note(&order));
                    heard.0.push(Event::Order(order, doors));
                }
                Letter::Ping { sent } => {
                    let pong = Letter::Pong { sent, there: clock::now() };
                    // A broken connection is noticed when it is read, after what the first host said last.
                    let _ = send(letters, &pong);
                }
                Letter::Stored { is_last } => heard.0.push(Event::Stored(is_last)),
                Letter::HandsOver => {
                    if let Some(heir) = self.heir.as_mut().filter(|_| !self.is_told_to_end) {
                        heir.begin(None, clock::now());
                        self.is_cut = true;
                        heard.0.push(Event::Say(format!(
                            "the first host ({first}) leaves; looking for the one that takes its place"
                        )));
                    }
                }
                Letter::SentAway { why } => {
                    self.is_told_to_end = true;
                    let why = format!("the first host ({first}) sends this one away: {why}");
                    heard.0.push(Event::Order(Order::End(why), BTreeMap::new()));
                }
                other => return Err(format!("it says what a first host does not say: {other:?}")),
            }
        }
        while !letters.wants_write()
            && let Some(piece) = outbox.pop_front()
        {
            send(letters, &piece).map_err(|error| error.to_string())?;
        }
        Ok(came.len())
    }
}
