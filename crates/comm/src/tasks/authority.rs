//! Which hosts take part, decided in one place: a pure function of what has been heard, and of the time.
//!
//! The first host's launcher keeps it. A new roster of hosts takes effect in three moves, as that of members does: it is *called*, and
//! every host stops its members where they are, drops its connections and makes new ones; each says how far it *stands*; when all
//! have, all *go*. A roster is numbered, and whatever carries another number is not heard.
//!
//! Who comes while a training runs is a guest at first: it gets the state while the others go on. When it has come up with
//! them, all *hold* at the begin of a step, and the shards are dealt anew.

use std::collections::{BTreeMap, BTreeSet};

use paceline_record::{Host, Nanos};
use serde::{Deserialize, Serialize};

use super::Parts;

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPolicy {
    /// With fewer hosts than this nothing runs.
    pub min: u32,
    /// More than this there never are.
    pub max: u32,
    /// Whether the training goes on without hosts that are lost.
    pub elastic: bool,
    /// How long to wait with fewer than `min`.
    pub patience: Nanos,
    /// How long the first roster waits for more than `min`, after the last one came.
    pub grace: Nanos,
    /// How long to wait for news of a host that another one misses: whoever is gone is soon heard to be.
    pub doubt: Nanos,
    /// Shards of a step.
    pub shards: u32,
}

/// A host's place in a roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The host.
    pub host: Host,
    /// Where its shards end; those of a guest end where they begin.
    pub end: u32,
}

/// A roster of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Its number.
    pub generation: u64,
    /// The hosts, in the order of their shards, guests last.
    pub places: Vec<Place>,
    /// Whether a host was lost that had shards in the roster before.
    pub is_loss: bool,
}

impl Roster {
    /// Where the shards of each host end.
    pub fn ends(&self) -> Vec<u32> {
        self.places.iter().map(|place| place.end).collect()
    }

    /// The place of a host.
    pub fn place_of(&self, host: Host) -> Option<usize> {
        self.places.iter().position(|place| place.host == host)
    }

    fn is_guest(&self, host: Host) -> bool {
        let Some(place) = self.place_of(host) else { return false };
        place > 0 && self.places[place].end == self.places[place - 1].end
    }
}

/// How far a host stands when a roster is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stand {
    /// Steps done; `None` where it has no state at all.
    pub done: Option<u64>,
    /// Slices of the step after these that it has not done; all of them, if it has no state.
    pub missing: Vec<(u32, u32)>,
    /// Parts of the test after these that it lacks.
    pub untested: Vec<u32>,
    /// Whether it has done what is due after these steps.
    pub passed: bool,
}

/// What the authority tells a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Stop members, make connections, and say how you stand.
    Call(Roster),
    /// All stand like this, in the order of the roster: go on.
    Go {
        /// The roster.
        generation: u64,
        /// By place.
        stands: Vec<Stand>,
    },
    /// Say before which step you can stop.
    Limit,
    /// Stop before this step.
    Hold(u64),
    /// All have done all.
    Bye,
    /// Save and end.
    End(String),
}

/// What a host tells the authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// An answer to [`Order::Call`].
    Stands {
        /// The roster.
        generation: u64,
        /// How it stands.
        stand: Stand,
    },
    /// Another host of the roster cannot be reached.
    Misses {
        /// The roster.
        generation: u64,
        /// That host.
        host: Host,
        /// What happened.
        why: String,
    },
    /// A guest has come up with the others.
    CaughtUp,
    /// An answer to [`Order::Limit`].
    CanHold(u64),
    /// It stands before the step that it was to hold at.
    Holds(u64),
    /// It has done all.
    Finished,
    /// It takes no part any more.
    Leaves(String),
}

/// What a decision was, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// A host was lost.
    Lost(Host, String),
    /// A host left.
    Left(Host),
    /// A roster takes effect, with the steps done before it.
    Roster(Roster, u64),
}

#[derive(Clone, Debug)]
struct Member {
    name: String,
    weight: u32,
    finished: bool,
    /// A guest that has come up with the others.
    caught_up: bool,
}

/// A host that misses another one.
#[derive(Clone, Debug)]
struct Complaint {
    at: Nanos,
    by: Host,
    missed: Host,
    why: String,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Too few are there.
    Waiting { since: Nanos },
    /// A roster was called.
    Called { stands: BTreeMap<Host, Stand> },
    /// Work goes on.
    Running,
    /// Work goes on until all can stop at once.
    Holding { limits: BTreeMap<Host, u64>, at: Option<u64>, held: BTreeSet<Host> },
}

/// Keeps the roster of hosts.
#[derive(Clone, Debug)]
pub struct Authority {
    policy: HostPolicy,
    hosts: BTreeMap<Host, Member>,
    roster: Roster,
    phase: Phase,
    came: Nanos,
    complaints: Vec<Complaint>,
    orders: Vec<(Host, Order)>,
    decided: Vec<Decided>,
    over: bool,
}

impl Authority {
    /// Before anybody is there.
    pub fn new(policy: HostPolicy, now: Nanos) -> Self {
        Self {
            policy,
            hosts: BTreeMap::new(),
            roster: Roster::default(),
            phase: Phase::Waiting { since: now },
            came: now,
            complaints: Vec::new(),
            orders: Vec::new(),
            decided: Vec::new(),
            over: false,
        }
    }

    /// What is to be told to whom, in order, since this was last asked.
    pub fn take_orders(&mut self) -> Vec<(Host, Order)> {
        std::mem::take(&mut self.orders)
    }

    /// What was decided since this was last asked.
    pub fn take_decided(&mut self) -> Vec<Decided> {
        std::mem::take(&mut self.decided)
    }

    /// The newest roster.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Hosts that are there.
    pub fn hosts(&self) -> impl Iterator<Item = Host> {
        self.hosts.keys().copied()
    }

    /// Whether too few are there to begin or to go on.
    pub fn waits(&self) -> bool {
        !self.over && matches!(self.phase, Phase::Waiting { .. })
    }

    /// Whether another host can be taken in, beside so many that are getting ready.
    pub fn has_room(&self, coming: usize) -> bool {
        !self.over
            && self.hosts.len() + coming < self.policy.max as usize
            && self.hosts.values().all(|member| !member.finished)
            && (self.roster.generation == 0 || self.policy.elastic)
    }

    /// Whether all is done, or given up.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// A host is getting ready: it is waited for, however long that takes.
    pub fn expects(&mut self, now: Nanos) {
        if let Phase::Waiting { since } = &mut self.phase {
            *since = now;
        }
    }

    /// The least number of hosts, and how long more are waited for with fewer.
    pub fn needs(&self) -> (u32, Nanos) {
        (self.policy.min, self.policy.patience)
    }

    /// A host has come that has the same job and so many workers.
    pub fn joins(&mut self, host: Host, name: &str, weight: u32, now: Nanos) {
        self.hosts.insert(host, Member { name: name.into(), weight, finished: false, caught_up: false });
        self.came = now;
        self.tend(now);
    }

    /// A host cannot be reached.
    pub fn loses(&mut self, host: Host, why: &str, now: Nanos) {
        let named = self.named(host);
        if self.hosts.remove(&host).is_none() || self.over {
            return;
        }
        self.decided.push(Decided::Lost(host, why.into()));
        self.without(host, &format!("{named} was lost: {why}"), now);
    }

    /// A host says something.
    pub fn hears(&mut self, host: Host, word: Word, now: Nanos) {
        if !self.hosts.contains_key(&host) || self.over {
            return;
        }
        match word {
            Word::Stands { generation, stand } => {
                if let Phase::Called { stands } = &mut self.phase
                    && generation == self.roster.generation
                {
                    stands.insert(host, stand);
                }
            }
            Word::Misses { generation, host: missed, why } => {
                if generation == self.roster.generation && self.hosts.contains_key(&missed) {
                    self.complaints.push(Complaint { at: now, by: host, missed, why });
                }
            }
            Word::CaughtUp => {
                self.hosts.entry(host).and_modify(|member| member.caught_up = true);
            }
            Word::CanHold(limit) => {
                if let Phase::Holding { limits, .. } = &mut self.phase {
                    limits.insert(host, limit);
                }
            }
            Word::Holds(step) => {
                if let Phase::Holding { at, held, .. } = &mut self.phase
                    && *at == Some(step)
                {
                    held.insert(host);
                }
            }
            Word::Finished => {
                self.hosts.entry(host).and_modify(|member| member.finished = true);
            }
            Word::Leaves(why) => {
                let why = format!("{} left: {why}", self.named(host));
                self.hosts.remove(&host);
                self.decided.push(Decided::Left(host));
                self.without(host, &why, now);
            }
        }
        self.tend(now);
    }

    /// Decides who goes where hosts cannot reach each other, once it is clear that both live: whoever is missed by most, or the one that
    /// came later.
    fn settle_complaints(&mut self, now: Nanos) {
        let is_due = |complaint: &Complaint| now.since(complaint.at) >= self.policy.doubt;
        if !self.complaints.iter().any(is_due) {
            return;
        }
        let mut missed: BTreeMap<Host, u32> = BTreeMap::new();
        for complaint in &self.complaints {
            *missed.entry(complaint.missed).or_default() += 1;
            *missed.entry(complaint.by).or_default() += 1;
        }
        let gone = missed.into_iter().max_by_key(|&(host, count)| (host != Host(0), count, host));
        let Some((gone, _)) = gone else { return };
        let mut complaints = self.complaints.iter();
        let complaint = complaints.find(|complaint| complaint.missed == gone || complaint.by == gone);
        let Some(Complaint { by, missed, why, .. }) = complaint.cloned() else { return };
        let other = self.named(if by == gone { missed } else { by });
        self.orders.push((gone, Order::End(format!("{other} cannot be reached from here: {why}"))));
        self.loses(gone, &format!("{other} and it cannot reach each other: {why}"), now);
    }

    fn named(&self, host: Host) -> String {
        match self.hosts.get(&host) {
            Some(member) => format!("host {} ({})", host.0, member.name),
            None => format!("host {}", host.0),
        }
    }

    /// Ends the run on all hosts.
    pub fn end(&mut self, why: &str) {
        if !std::mem::replace(&mut self.over, true) {
            for &host in self.hosts.keys() {
                self.orders.push((host, Order::End(why.into())));
            }
        }
    }

    /// Goes on without a host.
    fn without(&mut self, host: Host, why: &str, now: Nanos) {
        if self.roster.place_of(host).is_none() {
            return;
        }
        if !self.policy.elastic && self.hosts.values().any(|member| !member.finished) {
            return self.end(why);
        }
        let is_loss = self.roster.is_loss || !self.roster.is_guest(host);
        self.call(is_loss, now);
    }

    /// Calls a roster of all who are there; those who had shards keep to shards, others are guests while some have.
    fn call(&mut self, is_loss: bool, now: Nanos) {
        if (self.hosts.len() as u32) < self.policy.min {
            if !matches!(self.phase, Phase::Waiting { .. }) {
                self.phase = Phase::Waiting { since: now };
            }
            self.roster.is_loss |= is_loss;
            return;
        }
        let old = &self.roster;
        let has_shards = |host: &Host| {
            old.place_of(*host).is_some() && (!old.is_guest(*host) || self.hosts[host].caught_up)
        };
        let mut trainers: Vec<Host> = self.hosts.keys().copied().filter(has_shards).collect();
        if trainers.is_empty() {
            trainers = self.hosts.keys().copied().collect();
        }
        // Who has shards may have none left over for others.
        trainers.truncate(self.policy.shards as usize);
        let guests = self.hosts.keys().copied().filter(|host| !trainers.contains(host));
        let weights: Vec<u32> = trainers.iter().map(|host| self.hosts[host].weight).collect();
        let ends = Parts::deal(self.policy.shards, &weights);
        let places = trainers.iter().copied().zip(ends).map(|(host, end)| Place { host, end });
        let guests = guests.map(|host| Place { host, end: self.policy.shards });
        let places: Vec<Place> = places.chain(guests).collect();
        self.roster = Roster { generation: self.roster.generation + 1, places, is_loss };
        self.phase = Phase::Called { stands: BTreeMap::new() };
        self.complaints.clear();
        for place in &self.roster.places {
            self.orders.push((place.host, Order::Call(self.roster.clone())));
        }
    }

    /// Does what can be done now.
    pub fn tend(&mut self, now: Nanos) {
        if self.over {
            return;
        }
        self.settle_complaints(now);
        if self.over {
            return;
        }
        let count = self.hosts.len() as u32;
        let has_run = self.roster.generation > 0;
        let mut left = self.roster.places.iter().filter_map(|place| self.hosts.get(&place.host)).peekable();
        if left.peek().is_some() && left.all(|member| member.finished) {
            self.over = true;
            // Whoever came too late to be taken in has done nothing.
            let late = || Order::End("all steps were done before this host could take part".into());
            let order = |host| self.roster.place_of(host).map_or_else(late, |_| Order::Bye);
            self.orders.extend(self.hosts.keys().map(|&host| (host, order(host))));
            return;
        }
        let is_new = |host: &&Host| self.roster.place_of(**host).is_none();
        let has_new = self.hosts.keys().any(|host| is_new(&host));
        match &mut self.phase {
            Phase::Waiting { since } => {
                let waited = now.since(*since) > self.policy.patience;
                let is_enough = count >= self.policy.min;
                let is_all = count >= self.policy.max || has_run || now.since(self.came) >= self.policy.grace;
                if is_enough && (is_all || waited) {
                    let is_loss = self.roster.is_loss;
                    self.call(is_loss, now);
                } else if waited {
                    let (min, count) = (self.policy.min, self.hosts.len());
                    self.end(&format!(
                        "only {count} of at least {min} hosts {} within {:.0} s",
                        if has_run { "were left" } else { "came" },
                        self.policy.patience.seconds()
                    ));
                }
            }
            Phase::Called { stands } => {
                let is_complete = self.roster.places.iter().all(|place| stands.contains_key(&place.host));
                if is_complete {
                    let stands: Vec<Stand> = self
                        .roster
                        .places
                        .iter()
                        .filter_map(|place| stands.get(&place.host).cloned())
                        .collect();
                    let done = stands.iter().filter_map(|stand| stand.done).max().unwrap_or(0);
                    let generation = self.roster.generation;
                    self.decided.push(Decided::Roster(self.roster.clone(), done));
                    for place in &self.roster.places {
                        self.orders.push((place.host, Order::Go { generation, stands: stands.clone() }));
                    }
                    // What a host stood by is past.
                    self.roster.is_loss = false;
                    self.phase = Phase::Running;
                }
            }
            Phase::Running => {
                let is_late = self.hosts.values().any(|member| member.finished);
                let is_ready = |host: &Host| self.roster.is_guest(*host) && self.hosts[host].caught_up;
                if has_new && !is_late {
                    self.call(false, now);
                } else if self.hosts.keys().any(is_ready) && !is_late {
                    let limits = BTreeMap::new();
                    self.phase = Phase::Holding { limits, at: None, held: BTreeSet::new() };
                    self.orders.extend(self.roster.places.iter().map(|place| (place.host, Order::Limit)));
                }
            }
            Phase::Holding { limits, at, held } => {
                let is_late = self.hosts.values().any(|member| member.finished);
                let all =
                    |told: &dyn Fn(&Host) -> bool| self.roster.places.iter().all(|place| told(&place.host));
                if at.is_none() && all(&|host| limits.contains_key(host)) {
                    *at = limits.values().copied().max();
                    if let Some(step) = *at {
                        self.orders
                            .extend(self.roster.places.iter().map(|place| (place.host, Order::Hold(step))));
                    }
                } else if all(&|host| held.contains(host)) && !is_late {
                    self.call(false, now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
