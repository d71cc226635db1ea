//! What a host that is not the first does when that is lost, where rosters are written down: it finds the one that takes its place, or
//! takes it itself.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use paceline_comm::etcd::FirstNote;
use paceline_comm::tasks::authority::{Authority, HostPolicy, Known, Order, Roster};
use paceline_comm::tasks::registry::{Entry, Petition};
use paceline_comm::wire::{Address, Door, Letters, Terms, call};
use paceline_comm::{CommError, Deadline};
use paceline_record::{
    EvalRecord, Generation, Host, HostChange, HostEvent, HostPlace, HostRoster, LauncherEvent, Nanos, Step,
};

use super::entrance::Entrance;
use super::first::{First, Register};
use super::letter::{Back, Greeting, Hello};
use super::registrar::Registrar;
use crate::{Job, clock};

/// How long a call of the new first host may take, and how long to wait before the next one.
const CALL: std::time::Duration = std::time::Duration::from_secs(1);
const PAUSE: Nanos = Nanos(100_000_000);

/// A host that may become first.
pub(super) struct Heir {
    pub registrar: Arc<Registrar>,
    pub policy: HostPolicy,
    /// What it would tell others that come.
    pub job: Job,
    pub fingerprint: String,
    pub history: Vec<EvalRecord>,
    pub folder: PathBuf,
    pub hello: Hello,
    pub terms: Terms,
    pub run: u64,
    pub host: Host,
    pub workers: u32,
    pub interface: Option<IpAddr>,
    pub lease: Nanos,
    /// The first host's number and name.
    pub first: (Host, String),
    /// The newest roster that it was called by.
    pub roster: Roster,
    /// Rosters that took effect.
    pub seen: Vec<HostRoster>,
    /// What became of the hosts that were first before.
    pub lost: Vec<HostEvent>,
    pub seeks: Option<Seek>,
}

/// A search for whoever is first now.
pub(super) struct Seek {
    since: Nanos,
    /// Why the first host is lost; `None` where it left.
    lost: Option<String>,
    called: Nanos,
}

/// What came of a look around.
pub(super) enum Sought {
    /// Nothing yet.
    Waits,
    /// Another host is first, and knows of this one.
    Found(Box<Letters>, Address, (Host, String)),
    /// This host is first.
    Leads(Option<Entry>),
    /// There is nobody to go on with.
    Ends(String),
}

impl Heir {
    /// Takes note of what the first host says.
    pub fn note(&mut self, order: &Order) {
        match order {
            Order::Call(roster) => self.roster = roster.clone(),
            Order::Go { generation, stands } if *generation == self.roster.generation => {
                let done = stands.iter().filter_map(|stand| stand.done).max().unwrap_or(0);
                self.seen.push(roster_record(&self.roster, done, clock::now()));
            }
            _ => {}
        }
    }

    /// The first host is lost, or has left: begins to look for the one that takes its place.
    pub fn begin(&mut self, lost: Option<String>, now: Nanos) {
        self.seeks = Some(Seek { since: now, lost, called: Nanos(0) });
    }

    pub fn seek(&mut self, door: &Door, now: Nanos) -> Sought {
        let Some(seek) = &mut self.seeks else { return Sought::Waits };
        let sought = now.since(seek.since);
        let (old, name) = &self.first;
        let lost = match &seek.lost {
            Some(why) => format!("the first host, {old} ({name}), cannot be reached: {why}"),
            None => format!("the first host, {old} ({name}), has left"),
        };
        let long = Nanos(self.registrar.lease().0 * 2 + self.lease.0);
        let give_up = |more: String| Sought::Ends(format!("{lost}; {more}"));
        let looked = self.registrar.looked().filter(|(at, _)| *at > seek.since);
        let Some((_, look)) = looked else {
            if sought <= self.policy.patience {
                return Sought::Waits;
            }
            let fault = self.registrar.fault().map_or_else(String::new, |(_, fault)| format!(" ({fault})"));
            return give_up(format!("neither can {}{fault}", self.registrar.place()));
        };
        let known = self.roster.generation;
        let entry = look.entry.filter(|entry| entry.record.run == self.run);
        match look.first {
            Some(note) if note.host == *old => {
                // Its lease runs out if it is gone. Others may hear it while this host does not.
                if sought > long {
                    return give_up(
                        "it is still there for others, who go on; the same command joins them again".into(),
                    );
                }
            }
            Some(note) if note.host == self.host => return Sought::Leads(entry),
            Some(note) => {
                self.registrar.lead(None);
                if now.since(seek.called) < PAUSE {
                    return Sought::Waits;
                }
                seek.called = now;
                let name = look.hosts.get(&note.host).map(|host| host.name.clone());
                return self.call(&note, name.unwrap_or_default(), door);
            }
            None if known == 0 && sought > long => {
                return give_up(
                    "the training had not begun here, and nobody has taken its place; start it again".into(),
                );
            }
            None if known == 0 => {}
            None if entry.as_ref().is_some_and(|entry| entry.record.excludes(self.host, known)) => {
                return give_up(
                    "the others have gone on without this host; the same command joins them again".into(),
                );
            }
            None => {
                let by = u64::from(std::process::id()) << 32 ^ now.0;
                self.registrar.lead(Some(FirstNote { by, host: self.host, at: door.address() }));
            }
        }
        match sought > self.policy.patience {
            true => {
                give_up(format!("nobody has taken its place within {:.0} s", self.policy.patience.seconds()))
            }
            false => Sought::Waits,
        }
    }

    fn call(&self, note: &FirstNote, name: String, door: &Door) -> Sought {
        let back = Greeting::Back(Back {
            hello: self.hello.clone(),
            run: self.run,
            host: self.host,
            workers: self.workers,
            port: door.address().port(),
            interface: self.interface,
        });
        let greeting = serde_json::to_vec(&back).expect("invariant: plain data");
        match call(note.at, &self.terms, &greeting, Deadline::after(CALL)) {
            Ok(stream) => {
                let letters = Letters::new(stream);
                let address = letters.other();
                Sought::Found(Box::new(letters), address, (note.host, name))
            }
            Err(error @ CommError::Refused { .. }) => Sought::Ends(error.to_string()),
            Err(_) => Sought::Waits,
        }
    }

    /// Another host is first now.
    pub fn follow(&mut self, first: (Host, String)) {
        let gone = self.gone();
        self.lost.push(gone);
        self.first = first;
    }

    /// What became of the host that was first.
    fn gone(&mut self) -> HostEvent {
        let (at, lost) = self.seeks.take().map_or((clock::now(), None), |seek| (seek.since, seek.lost));
        let change = lost.map_or(HostChange::Left, |why| HostChange::Lost { why });
        HostEvent { host: self.first.0, at, change }
    }

    /// Takes the first host's place: its side of the connections, and what is to be logged of the time before.
    pub fn lead(&mut self, door: Door, entry: Option<Entry>, now: Nanos) -> (First, Vec<LauncherEvent>) {
        let gone = self.gone();
        let (lost, lost_name) = self.first.clone();
        let newer = entry.as_ref().map(|entry| &entry.record.roster);
        let newer = newer.filter(|newer| newer.generation > self.roster.generation);
        let roster = newer.unwrap_or(&self.roster).clone();
        let others = roster.places.iter().map(|place| place.host);
        let awaited: BTreeSet<Host> = others.filter(|&host| host != lost && host != self.host).collect();
        let highest = roster.places.iter().map(|place| place.host.0).max().unwrap_or(0);
        let next = entry.as_ref().map_or(0, |entry| entry.record.next).max(highest + 1);
        let mut authority =
            Authority::resume(self.policy, self.host, Known { roster, awaited: awaited.clone() }, now);
        authority.joins(self.host, &self.hello.name, self.workers, now);
        let by = u64::from(std::process::id()) << 32 ^ now.0;
        let register = Register::new(self.registrar.clone(), Petition::new(self.run, by, entry.as_ref()));
        let first = First {
            host: self.host,
            name: self.hello.name.clone(),
            entrance: Entrance::Doors(vec![Arc::new(door)]),
            early: VecDeque::new(),
            authority,
            job: self.job.clone(),
            fingerprint: self.fingerprint.clone(),
            history: self.history.clone(),
            own: None,
            folder: self.folder.clone(),
            is_last: true,
            callers: Vec::new(),
            next,
            free: BTreeSet::new(),
            told: 0,
            register: Some(register),
            came: self.came(),
            missing: awaited,
        };
        let log =
            |host: Host, at: Nanos, change: HostChange| LauncherEvent::Host(HostEvent { host, at, change });
        let began = first.came.get(&self.host).copied().unwrap_or(now);
        let own = HostChange::Joined { name: self.hello.name.clone(), workers: self.workers };
        let mut events = vec![log(self.host, began, own)];
        if let Some(&came) = first.came.get(&lost) {
            events.push(log(lost, came, HostChange::Joined { name: lost_name, workers: self.job.workers }));
        }
        events.extend(self.seen.iter().cloned().map(LauncherEvent::Hosts));
        events.extend(self.lost.drain(..).chain([gone]).map(LauncherEvent::Host));
        (first, events)
    }

    /// When each host was first seen in a roster.
    fn came(&self) -> std::collections::BTreeMap<Host, Nanos> {
        let mut came = std::collections::BTreeMap::new();
        for roster in &self.seen {
            for place in &roster.hosts {
                came.entry(place.host).or_insert(roster.at);
            }
        }
        came
    }
}

/// A roster that takes effect, for the log.
pub(super) fn roster_record(roster: &Roster, done: u64, at: Nanos) -> HostRoster {
    let mut first_shard = 0;
    let hosts = roster.places.iter().map(|place| {
        let shards = place.end - first_shard;
        let place = HostPlace { host: place.host, first_shard, shards };
        first_shard += shards;
        place
    });
    HostRoster { generation: Generation(roster.generation), at, step: Step(done), hosts: hosts.collect() }
}

/// Where a host's door is: at an address that the user has named, or where it calls from.
pub(super) fn door_at(interface: Option<IpAddr>, from: Address, port: u16) -> Option<SocketAddr> {
    let ip = interface.or(from.socket().map(|address| address.ip()));
    ip.map(|ip| SocketAddr::new(ip, port))
}
