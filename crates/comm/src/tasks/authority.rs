//! Which hosts take part, decided in one place: a pure function of what has been heard, and of the time.
//!
//! The first host's launcher keeps it. A new roster of hosts takes effect in three moves, as that of members does: it is *called*, and
//! every host stops its members where they are, drops its connections and makes new ones; each says how far it *stands*; when all
//! have, all *go*. A roster is numbered, and whatever carries another number is not heard.
//!
//! Where rosters are also written down in a place that all hosts can read, one is called only when it has been: whoever takes the first
//! host's place when that is lost begins with what is written there.
//!
//! Who comes while a training runs is a guest at first: it gets the state while the others go on. When it has come up with
//! them, all *hold* at the begin of a step, and the shards are dealt anew.

use std::collections::{BTreeMap, BTreeSet};

use paceline_record::{Host, Nanos};

use super::Parts;

mod words;

pub use words::{Decided, HostPolicy, Order, Place, Roster, Stand, Word};

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
    /// Work goes on until all can stop at once, and then by another roster.
    Holding { next: Roster, limits: BTreeMap<Host, u64>, at: Option<u64>, held: BTreeSet<Host> },
}

/// What whoever takes the place of a lost first host begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The newest roster that was granted.
    pub roster: Roster,
    /// Those of its hosts that should come back.
    pub awaited: BTreeSet<Host>,
}

/// Keeps the roster of hosts.
#[derive(Clone, Debug)]
pub struct Authority {
    policy: HostPolicy,
    /// The host that it is kept on.
    own: Host,
    hosts: BTreeMap<Host, Member>,
    roster: Roster,
    /// A roster that waits to be granted, and since when.
    proposed: Option<(Roster, Nanos)>,
    /// The newest generation that was ever granted: its number is not used again, whether it was called or not.
    spent: u64,
    /// Hosts that should come back, until when they are waited for.
    awaited: BTreeSet<Host>,
    phase: Phase,
    came: Nanos,
    complaints: Vec<Complaint>,
    orders: Vec<(Host, Order)>,
    decided: Vec<Decided>,
    over: bool,
}

impl Authority {
    /// Before anybody is there; on this host.
    pub fn new(policy: HostPolicy, own: Host, now: Nanos) -> Self {
        Self {
            policy,
            own,
            hosts: BTreeMap::new(),
            roster: Roster::default(),
            proposed: None,
            spent: 0,
            awaited: BTreeSet::new(),
            phase: Phase::Waiting { since: now },
            came: now,
            complaints: Vec::new(),
            orders: Vec::new(),
            decided: Vec::new(),
            over: false,
        }
    }

    /// In the place of one that was lost.
    pub fn resume(policy: HostPolicy, own: Host, known: Known, now: Nanos) -> Self {
        let Known { roster, awaited } = known;
        let spent = roster.generation;
        // Whoever was lost had shards, or it does no harm to believe so.
        let roster = Roster { is_loss: true, ..roster };
        Self { roster, spent, awaited, ..Self::new(policy, own, now) }
    }

    /// A roster that was proposed has been granted, and may be called.
    pub fn grant(&mut self, generation: u64, now: Nanos) {
        let Some((roster, _)) = self.proposed.take_if(|(roster, _)| roster.generation == generation) else {
            return;
        };
        self.spent = generation;
        if self.over {
            return;
        }
        let is_here = |place: &Place| self.hosts.contains_key(&place.host);
        match roster.places.iter().all(is_here) {
            true => self.accept(roster),
            // Nobody is called by a roster of somebody who is gone.
            false => self.call(roster.is_loss || self.roster.is_loss, now),
        }
        self.tend(now);
    }

    /// Whether all hosts of the roster that work goes on by are there.
    pub fn is_complete(&self) -> bool {
        self.roster.places.iter().all(|place| self.hosts.contains_key(&place.host))
    }

    /// A host that should have come back will not.
    pub fn forgets(&mut self, host: Host) {
        self.awaited.remove(&host);
    }

    /// Hosts that should come back.
    pub fn awaited(&self) -> impl Iterator<Item = Host> {
        self.awaited.iter().copied()
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
            && self.hosts.len() + self.awaited.len() + coming < self.policy.max as usize
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
        self.awaited.remove(&host);
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
            Word::Breaks { generation } => {
                let is_now = generation == self.roster.generation && matches!(self.phase, Phase::Running);
                if is_now && self.policy.elastic {
                    self.call(true, now);
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
        let gone = missed.into_iter().max_by_key(|&(host, count)| (host != self.own, count, host));
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
        if self.proposed.is_some() {
            // What has changed since counts when that is granted.
            self.roster.is_loss |= is_loss;
            return;
        }
        if (self.hosts.len() as u32) < self.policy.min {
            if !matches!(self.phase, Phase::Waiting { .. }) {
                self.phase = Phase::Waiting { since: now };
            }
            self.roster.is_loss |= is_loss;
            return;
        }
        let old = &self.roster;
        let has_shards = |host: &Host| {
            self.policy.no_guests
                || old.place_of(*host).is_some() && (!old.is_guest(*host) || self.hosts[host].caught_up)
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
        let generation = self.roster.generation.max(self.spent) + 1;
        let roster = Roster { generation, places, is_loss };
        if self.policy.asks {
            self.decided.push(Decided::Proposed(roster.clone()));
            self.proposed = Some((roster, now));
        } else {
            self.accept(roster);
        }
    }

    /// Goes over to a roster: at once, or at the begin of a step where all its hosts work and it only deals their shards anew.
    fn accept(&mut self, roster: Roster) {
        let is_here = |place: &Place| self.roster.place_of(place.host).is_some();
        let works = matches!(self.phase, Phase::Running) && !roster.is_loss && !self.roster.is_loss;
        if !works || !self.is_complete() || !roster.places.iter().all(is_here) {
            return self.install(roster);
        }
        self.orders.extend(self.roster.places.iter().map(|place| (place.host, Order::Limit)));
        let (limits, held) = (BTreeMap::new(), BTreeSet::new());
        self.phase = Phase::Holding { next: roster, limits, at: None, held };
    }

    /// Calls the hosts of a roster.
    fn install(&mut self, roster: Roster) {
        self.roster = roster;
        self.phase = Phase::Called { stands: BTreeMap::new() };
        self.complaints.clear();
        self.awaited.clear();
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
        // While all hosts of the roster work, what is proposed may wait.
        let works = matches!(self.phase, Phase::Running) && self.is_complete() && !self.roster.is_loss;
        if let Some((roster, since)) = &self.proposed
            && (!works || roster.is_loss)
            && now.since(*since) > self.policy.patience
        {
            let patience = self.policy.patience.seconds();
            self.end(&format!("the hosts that are left could not be written down within {patience:.0} s"));
        }
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
                if !self.awaited.is_empty() && now.since(*since) < self.policy.returns {
                    return;
                }
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
                    if stands.iter().all(|stand| stand.done.is_none()) {
                        return self.end("nobody who is left has the state");
                    }
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
                if (has_new || self.hosts.keys().any(is_ready)) && !is_late {
                    self.call(false, now);
                }
            }
            Phase::Holding { next, limits, at, held } => {
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
                    let next = std::mem::take(next);
                    self.install(next);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
