//! What a launcher does as one of several hosts: it stops its members when another roster of hosts is called, says how it stands, and
//! lets them go on.

mod phases;
mod plant;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use paceline_comm::tasks::authority::{Order, Roster, Stand, Word};
use paceline_comm::tasks::{Bell, Done, Ground, Parts, Shape, Standing, given};
use paceline_record::log::PorterWriter;
use paceline_record::{Host, HostChange, HostEvent, LauncherEvent, Nanos, PorterHeader, RecoveryPhase};

use super::control::HostStatus;
use super::lead::{Lead, Stop};
use super::state::Layout;
use crate::checkpoint::Position;
use crate::hosts::porter::{Said, Start, Thread, Tools};
use crate::hosts::{Event, Introduction, Link, LocalHost, Party};
use crate::{Fault, Job, TrainError, clock};

/// A launcher's part among hosts.
pub(super) struct Hosting {
    /// Ends before the memory that it uses.
    porter: Option<Thread>,
    party: Party,
    ground: Arc<Ground>,
    layout: Arc<Layout>,
    /// The bells of porter and launcher.
    called: Arc<Bell>,
    launcher: Bell,
    log: Arc<Mutex<PorterWriter>>,
    roster: Roster,
    doors: BTreeMap<Host, SocketAddr>,
    phase: Phase,
    /// How all stand, from when they may go on.
    stands: Option<Vec<Stand>>,
    /// What is to be done then.
    deferred: Vec<Order>,
    /// Whether the state comes from another host.
    lacks_state: bool,
    /// Steps done when the roster took effect.
    first: u64,
    has_caught_up: bool,
    /// The step that members hold before.
    holds: Option<u64>,
    has_finished: bool,
    is_bye: bool,
    said: Vec<String>,
    /// Its place among the hosts that have the same cores, and how many these are.
    place: (u32, u32),
    /// Whether its members and its porter keep to cores of their own.
    pins: bool,
    /// Names and workers of the hosts that are there.
    known: BTreeMap<Host, (String, u32)>,
    local: Vec<LocalHost>,
    /// When a host was last heard that is missed now; the earliest of several.
    missed: Option<Nanos>,
    /// Since when members stand still and hosts connect.
    rebuilds: Option<Nanos>,
    /// Since when the state has been coming from another host.
    copies: Option<Nanos>,
    /// Faults that are to be planted in this host, in order of their steps.
    faults: VecDeque<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its members are not ready.
    Idle,
    /// Before the first roster.
    Ready,
    /// A roster is called; whether its hosts are connected, and whether the authority has been told how this one stands.
    Called { linked: bool, told: bool },
    /// Work goes on.
    Running,
}

impl Hosting {
    pub fn new(
        met: Introduction,
        position: &Position,
        ground: Arc<Ground>,
        layout: Arc<Layout>,
        launcher: &Bell,
    ) -> Result<Self, TrainError> {
        let Introduction { party, job, lacks_state, local, .. } = met;
        party.note_history(&position.history);
        let mut faults: Vec<Fault> =
            job.faults.0.iter().filter(|fault| fault.host() == Some(party.host)).copied().collect();
        faults.sort_by_key(Fault::step);
        let header = PorterHeader {
            host: party.host,
            name: None,
            wire: Some(if party.mpi.is_some() { "mpi" } else { "tcp" }.into()),
        };
        Ok(Self {
            porter: None,
            ground,
            layout,
            called: Arc::new(Bell::create()?),
            launcher: Bell::attach(launcher.descriptor())?,
            log: Arc::new(Mutex::new(PorterWriter::create(&job.folder, &header)?)),
            roster: Roster::default(),
            doors: BTreeMap::new(),
            phase: Phase::Idle,
            stands: None,
            deferred: Vec::new(),
            lacks_state,
            first: 0,
            has_caught_up: false,
            holds: None,
            has_finished: false,
            is_bye: false,
            said: Vec::new(),
            place: place(&job, party.host),
            pins: job.pin,
            known: BTreeMap::new(),
            local,
            missed: None,
            rebuilds: None,
            copies: None,
            faults: faults.into(),
            party,
        })
    }

    pub fn host(&self) -> Host {
        self.party.host
    }

    pub fn is_first(&self) -> bool {
        self.party.is_first()
    }

    pub fn porter_bell(&self) -> i32 {
        self.called.descriptor()
    }

    /// This host's place among those that have the same cores, and how many these are.
    pub fn place(&self) -> (u32, u32) {
        self.place
    }

    pub fn runs(&self) -> bool {
        self.phase == Phase::Running
    }

    pub fn take_said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    /// The hosts that the first one knows of.
    pub fn status(&self) -> Vec<HostStatus> {
        let ends = self.roster.ends();
        let of = |(&host, (name, workers)): (&Host, &(String, u32))| {
            let place = self.roster.place_of(host);
            let begin = |place: usize| place.checked_sub(1).map_or(0, |before| ends[before]);
            let shards = place.map_or(0, |place| ends[place] - begin(place));
            let state = match (place, shards) {
                (None, _) => "coming",
                (Some(_), 0) => "following",
                _ => "training",
            };
            HostStatus { host: host.0, name: name.clone(), workers: *workers, shards, state: state.into() }
        };
        self.known.iter().map(of).collect()
    }

    /// Takes note of who is there.
    fn note(&mut self, event: &LauncherEvent) {
        let LauncherEvent::Host(HostEvent { host, change, .. }) = event else { return };
        match change {
            HostChange::Joined { name, workers } => {
                self.known.insert(*host, (name.clone(), *workers));
            }
            HostChange::Lost { .. } | HostChange::Left => {
                self.known.remove(host);
            }
            _ => {}
        }
    }

    fn is_guest(&self) -> bool {
        let ends = self.roster.ends();
        self.roster.place_of(self.host()).is_some_and(|place| place > 0 && ends[place] == ends[place - 1])
    }

    /// Leaves the old roster, and begins to connect with the hosts of the new one.
    fn call(&mut self, roster: Roster, doors: BTreeMap<Host, SocketAddr>) -> Result<(), TrainError> {
        // Nothing of the old roster is sent or received from here on.
        self.porter = None;
        (self.roster, self.doors) = (roster, doors);
        (self.has_caught_up, self.holds, self.stands) = (false, None, None);
        self.deferred.clear();
        let own = self.host();
        let others = self.roster.places.iter().map(|place| place.host).filter(|&host| host != own);
        let link = Link {
            run: self.party.run,
            generation: self.roster.generation,
            own,
            others: others.map(|host| (host, self.doors.get(&host).copied())).collect(),
            terms: self.party.terms.clone(),
        };
        self.phase = Phase::Called { linked: false, told: false };
        let tools = Tools {
            ground: self.ground.clone(),
            layout: self.layout.clone(),
            lobby: self.party.lobby(),
            mpi: self.party.mpi.clone(),
            called: self.called.clone(),
            launcher: Bell::attach(self.launcher.descriptor())?,
            lease: self.party.lease,
            share: Some(self.place).filter(|&(_, places)| self.pins && places > 1),
            log: self.log.clone(),
        };
        self.porter = Some(Thread::spawn(link, tools)?);
        Ok(())
    }
}

fn place(job: &Job, host: Host) -> (u32, u32) {
    match job.hosts {
        Some(hosts) if hosts.local => (host.0 % hosts.max, hosts.max),
        _ => (0, 1),
    }
}

impl Lead<'_, '_, '_> {
    /// Hears and obeys; `Some` if the run ends.
    pub(super) fn tend_hosts(&mut self, now: Nanos) -> Result<Option<Stop>, TrainError> {
        while let Some(event) = self.hosting.as_ref().and_then(|hosting| hosting.party.event()) {
            match event {
                Event::Log(event) => {
                    self.hosting.iter_mut().for_each(|hosting| hosting.note(&event));
                    self.log.append(&event)?;
                }
                Event::Say(text) => {
                    self.remember(text.clone());
                    self.hosting.iter_mut().for_each(|hosting| hosting.said.push(text.clone()));
                }
                Event::Order(order, doors) => {
                    if let Some(stop) = self.obey(order, doors, now)? {
                        return Ok(Some(stop));
                    }
                }
                Event::Missed(since) => self.hosting.iter_mut().for_each(|hosting| hosting.miss(since)),
                Event::Gathered | Event::Stored(_) => {}
            }
        }
        while let Some(said) = self.hosting.as_ref().and_then(|hosting| hosting.porter.as_ref()?.said()) {
            let hosting = self.hosting.as_mut().expect("invariant: its porter has just spoken");
            match said {
                Said::Linked => {
                    if let Phase::Called { linked, .. } = &mut hosting.phase {
                        *linked = true;
                    }
                }
                Said::Misses(host, why) => {
                    hosting.miss(now);
                    let generation = hosting.roster.generation;
                    hosting.party.say(Word::Misses { generation, host, why });
                }
                Said::Failed(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Does what had to wait for members to stand still, and tells the authority what it waits for.
    pub(super) fn report_to_hosts(&mut self) -> Result<(), TrainError> {
        // A member that has become ready meanwhile may have been told to wait, and not know it yet.
        if self.warden.is_still()
            && let Some(stands) = self.hosting.as_mut().and_then(|hosting| hosting.stands.take())
        {
            // After all that has been logged before.
            let now = clock::now();
            self.end_rebuild(now)?;
            self.go(stands, now)?;
            let deferred = self.hosting.as_mut().map(|hosting| std::mem::take(&mut hosting.deferred));
            for order in deferred.into_iter().flatten() {
                self.obey(order, BTreeMap::new(), now)?;
            }
        }
        self.report_progress()
    }

    fn obey(
        &mut self,
        order: Order,
        doors: BTreeMap<Host, SocketAddr>,
        now: Nanos,
    ) -> Result<Option<Stop>, TrainError> {
        let Some(hosting) = &mut self.hosting else { return Ok(None) };
        match order {
            Order::Call(roster) => {
                let is_loss = roster.is_loss;
                let missed = hosting.missed.take();
                hosting.call(roster, doors)?;
                if self.warden.generation() > 0 {
                    self.end_rebuild(now)?;
                    if is_loss {
                        self.note_loss(missed.unwrap_or(now), now);
                    }
                    let roster = self.warden.roster().to_vec();
                    self.publish(roster, now)?;
                }
            }
            Order::Go { generation, stands } => {
                if generation == hosting.roster.generation {
                    hosting.stands = Some(stands);
                }
            }
            // What follows a roster is done when that has taken effect.
            order @ (Order::Limit | Order::Hold(_)) if hosting.stands.is_some() => {
                hosting.deferred.push(order)
            }
            Order::Limit => {
                let limit = self.warden.limit(self.done);
                hosting.party.say(Word::CanHold(limit));
            }
            Order::Hold(step) => {
                self.warden.hold(step);
                hosting.holds = Some(step);
            }
            Order::Bye => hosting.is_bye = true,
            Order::End(why) => return Ok(Some(Stop::Ended(why))),
        }
        Ok(None)
    }

    /// Tells the authority what it waits for.
    fn report_progress(&mut self) -> Result<(), TrainError> {
        let done = self.board.steps_done(self.ground, self.done);
        let is_due = self.calendar_is_due(done);
        let Some(hosting) = &mut self.hosting else { return Ok(()) };
        if hosting.phase == Phase::Idle && self.warden.generation() > 0 {
            // From here on it takes others no more than a moment to let it in.
            hosting.phase = Phase::Ready;
            hosting.party.ready();
        }
        if let Phase::Called { linked: true, told: told @ false } = &mut hosting.phase
            && self.warden.is_still()
        {
            *told = true;
            let stand = if hosting.lacks_state {
                let Shape { shards, buckets, slices, .. } = self.board.shape();
                let all = (0..buckets).flat_map(|bucket| (0..slices).map(move |slice| (bucket, slice)));
                Stand { done: None, missing: all.collect(), untested: (0..shards).collect(), passed: false }
            } else {
                let untested = if is_due { self.board.untested(self.ground, done) } else { Vec::new() };
                let missing = self.board.missing(self.ground, done);
                Stand { done: Some(done), missing, untested, passed: !is_due }
            };
            let generation = hosting.roster.generation;
            hosting.party.say(Word::Stands { generation, stand });
        }
        hosting.lacks_state &= !hosting.runs() || done < hosting.first;
        if hosting.runs() && hosting.is_guest() && !hosting.has_caught_up && done > hosting.first {
            hosting.has_caught_up = true;
            hosting.party.say(Word::CaughtUp);
        }
        if let Some(step) = hosting.holds.filter(|&step| done >= step) {
            hosting.holds = None;
            hosting.party.say(Word::Holds(step));
        }
        if !hosting.lacks_state
            && let Some(since) = hosting.copies.take()
        {
            self.log_recovery(RecoveryPhase::State, since, clock::now())?;
        }
        Ok(())
    }

    /// All hosts stand like this: work goes on.
    fn go(&mut self, mut stands: Vec<Stand>, now: Nanos) -> Result<(), TrainError> {
        let hosting = self.hosting.as_mut().expect("invariant: hosts go");
        let first = stands.iter().filter_map(|stand| stand.done).max().unwrap_or(0);
        if first == 0 {
            // Everybody has drawn the same weights.
            stands.iter_mut().for_each(|stand| stand.done = Some(0));
        }
        let place = hosting.roster.place_of(hosting.party.host);
        let place = place.expect("invariant: who is told to go is in the roster");
        let own = stands[place].clone();
        if own.done.is_none() {
            let has_passed = stands.iter().any(|stand| stand.done == Some(first) && stand.passed);
            self.passed = first - u64::from(!has_passed);
            self.board.begin_at(self.ground, first - 1, self.passed);
            (self.first, self.done, self.refreshed) = (first, first - 1, first - 1);
        } else if hosting.lacks_state {
            self.state.begin()?;
        }
        // It counts as missing until all of it has come.
        hosting.lacks_state = own.done.is_none();
        hosting.copies = hosting.lacks_state.then_some(now);
        hosting.first = first;
        if own.done.is_some_and(|done| done < first) {
            // What was due before the step that others have done is past.
            self.passed = self.passed.max(first - 1);
            self.board.refresh(self.ground, first - 1);
        }
        let parts = Parts::new(hosting.roster.ends(), place, self.board.shape().slices);
        let done = own.done.unwrap_or(first.saturating_sub(1));
        let missing = own.done.is_some().then_some(&own.missing[..]);
        let is_loss = hosting.roster.is_loss;
        let hosts = hosting.roster.places.iter().map(|place| place.host);
        let standings = hosts.zip(stands).map(|(host, stand)| {
            let Stand { done, missing, untested, .. } = stand;
            Standing { host, done, missing, untested }
        });
        let standings: Vec<Standing> = standings.collect();
        let given = given(self.board, &standings);
        self.warden.deal(parts.clone(), Done { done, all: first, missing, given: &given, is_loss });
        self.warden.release(first);
        if let Some(porter) = &mut hosting.porter {
            porter.start(Start { parts, standings });
        }
        hosting.phase = Phase::Running;
        if self.warden.generation() > 0 {
            let roster = self.warden.roster().to_vec();
            self.publish(roster, now)?;
        }
        Ok(())
    }

    pub(super) fn refresh_hosts(&mut self) {
        if let Some(hosting) = &self.hosting
            && hosting.runs()
        {
            self.warden.note_alone(self.done);
            if hosting.holds.is_none() {
                self.warden.release(self.done);
            }
        }
    }

    /// Whether what a lost member left behind can be written again: the porter sends nodes from where it lies.
    pub(super) fn is_drained(&self) -> bool {
        let porter = self.hosting.as_ref().and_then(|hosting| hosting.porter.as_ref());
        // Members raise no flag for it once all have acknowledged the roster.
        !self.warden.frees() || (self.warden.is_acknowledged() && porter.is_none_or(Thread::is_drained))
    }

    /// Whether other hosts need nothing any more of this one, which has done all.
    pub(super) fn are_hosts_done(&mut self) -> bool {
        let Some(hosting) = &mut self.hosting else { return true };
        if !hosting.has_finished && hosting.runs() {
            hosting.has_finished = true;
            hosting.party.say(Word::Finished);
        }
        hosting.is_bye
    }

    pub(super) fn tell_history(&self) {
        if let Some(hosting) = &self.hosting {
            hosting.party.note_history(&self.position.history);
        }
    }

    /// All is done: the first host gets the others' logs.
    pub(super) fn part(&mut self) -> Result<(), TrainError> {
        let Some(hosting) = &mut self.hosting else { return Ok(()) };
        hosting.porter = None;
        if hosting.is_first() {
            for event in hosting.party.gather() {
                self.log.append(&event)?;
            }
            hosting.local.clear();
        } else {
            *self.parted = self.hosting.take().map(|hosting| hosting.party);
        }
        Ok(())
    }

    /// Tells the others that this host ends before all is done.
    pub(super) fn part_early(&mut self, why: &TrainError) -> Result<(), TrainError> {
        let Some(hosting) = &mut self.hosting else { return Ok(()) };
        if hosting.is_first() {
            hosting.party.end(&format!("the first host ended: {}", crate::describe(why)));
        } else if !matches!(why, TrainError::HostsEnded(_)) {
            hosting.party.say(Word::Leaves(crate::describe(why)));
        }
        self.part()
    }
}
