//! Connections of hosts that measure all-reduces: the first has one with each of the others, and they have one with it.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use paceline_comm::tasks::Bell;
use paceline_comm::wire::{Address, Letters};
use paceline_record::{Bytes, Host, Nanos};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::entrance::{Entrance, Visitor};
use super::letter::{Cue, Greeting, Hello, Letter, send};
use super::link::Lobby;
use super::meet::{Way, open_door, reach};
use super::{Meeting, Role};

use crate::{TrainError, clock};

/// How often signs of life are sent, in parts of the lease.
const BEATS: u64 = 8;

/// How much longer than the lease the first host may be silent: it hears of a cut first, and decides.
const SLACK: Nanos = Nanos(500_000_000);

/// How long what is still to be sent may take.
const FAREWELL: Duration = Duration::from_millis(500);

/// Another host.
struct Peer {
    letters: Letters,
    name: String,
    heard: Nanos,
    /// Whether it takes part, and where its door is, if it has one.
    is_ready: bool,
    door: Option<SocketAddr>,
    is_lost: bool,
}

impl Peer {
    fn new(letters: Letters, name: String) -> Self {
        Self { letters, name, heard: clock::now(), is_ready: false, door: None, is_lost: false }
    }
}

/// What is heard of another host.
pub(super) enum Heard {
    Letter(Letter),
    Lost(String),
}

/// All hosts of a measurement, as one of them sees it.
pub(super) struct Table {
    pub own: Host,
    pub run: u64,
    pub lobby: Arc<Lobby>,
    /// Where others come in, or bring their bytes; `None` where they need not.
    entrance: Option<Entrance>,
    lease: Nanos,
    beat: Nanos,
    /// By their numbers, from 1 on; or only the first host.
    peers: Vec<Peer>,
    /// What came with something after which this host does something else.
    pub unheard: Vec<(usize, Heard)>,
    /// All hosts but the first, or all but this one, and where the doors are of those that have one.
    doors: Vec<(Host, Option<SocketAddr>)>,
    /// What they measure.
    pub sizes: Vec<Bytes>,
}

impl Table {
    /// Waits for all others, as the first host.
    pub fn gather(
        entrance: Entrance,
        meeting: &Meeting,
        hosts: u32,
        sizes: &[Bytes],
    ) -> Result<Self, TrainError> {
        let run = clock::now().0 ^ (u64::from(std::process::id()) << 40);
        let (place, bytes) = (entrance.place(), entrance.bytes());
        let mut table = Self::new(Host(0), run, Some(entrance), meeting.lease);
        table.sizes = sizes.to_vec();
        let until = Instant::now() + Duration::from_nanos(meeting.patience.0);
        let is_local = matches!(meeting.role, Role::First { local: Some(_), .. });
        let say = |line: String| {
            if !is_local {
                eprintln!("{line}")
            }
        };
        let others =
            if hosts == 2 { "1 other host".to_owned() } else { format!("{} other hosts", hosts - 1) };
        say(format!("{}: waits for {others} {place}", meeting.name));
        loop {
            table.sleep(None);
            while let Some(visitor) = table.visitor() {
                table.greet(visitor, hosts);
            }
            for (place, heard) in table.hear() {
                let peer = &mut table.peers[place];
                match heard {
                    Heard::Letter(Letter::Ready { port, interface, .. }) if !peer.is_ready => {
                        let from = peer.letters.other();
                        let ip = interface.or(from.socket().map(|address| address.ip()));
                        (peer.is_ready, peer.door) = (true, ip.map(|ip| SocketAddr::new(ip, port)));
                        say(format!("{} ({from}) is there", peer.name));
                    }
                    // Another one may come in its place.
                    _ => peer.is_lost = true,
                }
            }
            table.peers.retain(|peer| !peer.is_lost);
            let there = 1 + table.peers.iter().filter(|peer| peer.is_ready).count();
            if there == hosts as usize {
                break;
            }
            if Instant::now() >= until {
                let error = TrainError::HostsEnded(format!(
                    "{there} of {hosts} hosts were there after {:.0} s; start the same command on each of them, or wait longer with \
                     --host-wait",
                    meeting.patience.seconds()
                ));
                table.fail(&error);
                return Err(error);
            }
        }
        // Ranks keep their numbers.
        table.peers.sort_by_key(|peer| match peer.letters.other() {
            Address::Rank(rank) => rank,
            Address::Socket(_) => 0,
        });
        table.doors = (1..).map(Host).zip(table.peers.iter().map(|peer| peer.door)).collect();
        let bytes = bytes.map(|door| (Host(0), Some(door)));
        for (place, peer) in table.peers.iter_mut().enumerate() {
            let plan = Cue::Plan {
                host: Host(1 + place as u32),
                run,
                sizes: table.sizes.clone(),
                doors: bytes.into_iter().chain(table.doors.iter().copied()).collect(),
            };
            // A broken connection is noticed when it is read.
            let _ = send(&mut peer.letters, &Letter::Cue(plan));
        }
        Ok(table)
    }

    /// Calls the first host, and waits until all are there.
    pub fn join(way: &Way<'_>, meeting: &Meeting, hosts: u32) -> Result<Self, TrainError> {
        let (mut letters, local) =
            reach(way, meeting, &Greeting::Measure { hello: Hello::new(meeting), hosts })?;
        let first = letters.other();
        let (door, interface) = match way {
            Way::Call(asked) => (Some(open_door(asked, local, meeting)?), asked.interface),
            Way::Rank(_) => (None, None),
        };
        let port = door.as_ref().map_or(0, |door| door.address().port());
        // A broken connection is noticed when it is read.
        let _ = send(&mut letters, &Letter::Ready { workers: 1, port, interface });
        let entrance = door.map(|door| Entrance::Doors(vec![Arc::new(door)]));
        let mut table = Self::new(Host(u32::MAX), 0, entrance, meeting.lease + SLACK);
        table.peers.push(Peer::new(letters, "the first host".into()));
        loop {
            table.sleep(None);
            let mut all = table.hear().into_iter();
            while let Some((place, heard)) = all.next() {
                let why = match heard {
                    Heard::Letter(Letter::Cue(Cue::Alive)) => continue,
                    Heard::Letter(Letter::Cue(Cue::Plan { host, run, sizes, doors })) => {
                        (table.own, table.run, table.sizes, table.doors) = (host, run, sizes, doors);
                        if !table.doors.iter().any(|(host, _)| *host == Host(0)) {
                            table.doors.push((Host(0), first.socket()));
                        }
                        table.unheard = all.collect();
                        return Ok(table);
                    }
                    Heard::Letter(Letter::Cue(Cue::Over { why })) => return Err(TrainError::HostsEnded(why)),
                    Heard::Letter(Letter::SentAway { why }) => why,
                    Heard::Letter(other) => format!("it said {other:?}"),
                    Heard::Lost(why) => return Err(TrainError::HostsEnded(table.lost(place, &why))),
                };
                return Err(TrainError::SentAway { first, why });
            }
        }
    }

    fn new(own: Host, run: u64, entrance: Option<Entrance>, lease: Nanos) -> Self {
        Self {
            own,
            run,
            lobby: Arc::default(),
            entrance,
            lease,
            beat: Nanos(0),
            peers: Vec::new(),
            unheard: Vec::new(),
            doors: Vec::new(),
            sizes: Vec::new(),
        }
    }

    pub fn is_first(&self) -> bool {
        self.own == Host(0)
    }

    /// All hosts.
    pub fn hosts(&self) -> u32 {
        self.doors.len() as u32 + u32::from(self.is_first())
    }

    /// The other hosts, and where the doors are of those that are to be called.
    pub fn others(&self) -> Vec<(Host, Option<SocketAddr>)> {
        let mut others: Vec<_> = self.doors.iter().filter(|(host, _)| *host != self.own).copied().collect();
        others.sort();
        others
    }

    /// Says that a host of a place at this table was lost.
    pub fn lost(&self, place: usize, why: &str) -> String {
        let Peer { letters, .. } = &self.peers[place];
        match self.is_first() {
            true => self.lost_host(Host(1 + place as u32), why),
            false => format!("the first host ({}) cannot be reached: {why}", letters.other()),
        }
    }

    /// Says that a host was lost, on the first.
    pub fn lost_host(&self, host: Host, why: &str) -> String {
        format!("{} was lost: {why}", self.who(host))
    }

    /// A host with its name, on the first.
    pub fn who(&self, host: Host) -> String {
        let peer = (host.0 as usize).checked_sub(1).and_then(|place| self.peers.get(place));
        let name =
            peer.map_or_else(String::new, |peer| format!(" ({}, {})", peer.name, peer.letters.other()));
        format!("host {}{name}", host.0)
    }

    /// Answers somebody who calls the first host.
    fn greet(&mut self, mut visitor: Visitor, hosts: u32) {
        let why = match serde_json::from_slice(&visitor.greeting) {
            Ok(Greeting::Measure { hello, hosts: asked }) => {
                let refusal = if asked != hosts {
                    Some(format!("--hosts is {asked} there, and {hosts} on the first host"))
                } else if self.peers.len() + 1 >= hosts as usize {
                    Some("it has all its hosts".into())
                } else {
                    hello.refusal()
                };
                match refusal {
                    None => {
                        self.peers.push(Peer::new(visitor.letters, hello.name));
                        return;
                    }
                    Some(why) => why,
                }
            }
            Ok(Greeting::Control(_) | Greeting::Back(_)) => {
                "it measures all-reduces, and runs no training".into()
            }
            // Of another measurement, or what nobody says.
            Ok(Greeting::Data { .. }) | Err(_) => return,
        };
        eprintln!("{} was sent away: {why}", visitor.from);
        // Nothing is lost with a caller that has gone.
        let _ = send(&mut visitor.letters, &Letter::SentAway { why });
    }

    fn visitor(&self) -> Option<Visitor> {
        self.entrance.as_ref()?.next()
    }

    /// Takes in streams of other hosts.
    pub fn take_visitors(&mut self) {
        while let Some(visitor) = self.visitor() {
            match serde_json::from_slice(&visitor.greeting) {
                Ok(Greeting::Data { run, generation, from }) if run == self.run => {
                    if let Some(stream) = visitor.letters.into_stream() {
                        self.lobby.put(generation, from, stream);
                    }
                }
                _ if self.is_first() => self.greet(visitor, self.hosts()),
                _ => {}
            }
        }
    }

    /// Waits until there is something to hear, or to say.
    pub fn sleep(&self, called: Option<&Bell>) {
        if !self.unheard.is_empty() {
            return;
        }
        let mut files: Vec<PollFd<'_>> =
            self.peers.iter().map(|peer| PollFd::new(&peer.letters, peer.letters.interest())).collect();
        files.extend(called.map(|called| PollFd::from_borrowed_fd(called.as_fd(), PollFlags::IN)));
        // Streams wait for a host that does not know yet whose they are.
        if self.run != 0 {
            let callers = self.entrance.iter().flat_map(Entrance::files);
            files.extend(callers.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN)));
        }
        let time = Timespec { tv_sec: 0, tv_nsec: (self.lease.0 / BEATS / 2).min(999_999_999) as i64 };
        // Whatever it answers, all is looked at next.
        let _ = poll(&mut files, Some(&time));
    }

    /// What others have said, by their places.
    pub fn hear(&mut self) -> Vec<(usize, Heard)> {
        let now = clock::now();
        if now.since(self.beat) >= Nanos(self.lease.0 / BEATS) {
            self.beat = now;
            self.tell(&Cue::Alive);
        }
        let mut all = std::mem::take(&mut self.unheard);
        for (place, peer) in self.peers.iter_mut().enumerate() {
            let lost = match peer.letters.progress() {
                Ok(letters) if letters.is_empty() => {
                    let silent = now.since(peer.heard);
                    (silent > self.lease).then(|| format!("it was silent for {:.1} s", silent.seconds()))
                }
                Ok(letters) => {
                    peer.heard = now;
                    let letters: Result<Vec<Letter>, String> =
                        letters.iter().map(|letter| Letter::read(letter)).collect();
                    match letters {
                        Ok(letters) => {
                            all.extend(letters.into_iter().map(|letter| (place, Heard::Letter(letter))));
                            None
                        }
                        Err(why) => Some(why),
                    }
                }
                Err(error) => Some(error.to_string()),
            };
            all.extend(lost.map(|why| (place, Heard::Lost(why))));
        }
        all.retain(|(_, heard)| !matches!(heard, Heard::Letter(Letter::Cue(Cue::Alive))));
        all
    }

    /// Takes it that all others have just been heard.
    pub fn listen_again(&mut self) {
        self.peers.iter_mut().for_each(|peer| peer.heard = clock::now());
    }

    /// Tells all others, or the first host.
    pub fn tell(&mut self, cue: &Cue) {
        for peer in &mut self.peers {
            // A broken connection is noticed when it is read.
            let _ = send(&mut peer.letters, &Letter::Cue(cue.clone()));
        }
    }

    /// Tells others that this host cannot go on, or that nobody can.
    pub fn fail(&mut self, error: &TrainError) {
        let why = crate::describe(error);
        match error {
            _ if self.is_first() => self.tell(&Cue::Over { why }),
            // It is what the first host has said.
            TrainError::HostsEnded(_) => {}
            _ => self.tell(&Cue::Failed { why }),
        }
        self.flush();
    }

    /// Sends what is still to be sent.
    pub fn flush(&mut self) {
        let until = Instant::now() + FAREWELL;
        while self.peers.iter().any(|peer| peer.letters.wants_write()) && Instant::now() < until {
            sleep(Duration::from_millis(2));
            for peer in &mut self.peers {
                // It is over, whatever they say.
                let _ = peer.letters.progress();
            }
        }
    }
}
