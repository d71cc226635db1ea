//! What a launcher does as one of several hosts: it stops its members when another roster of hosts is called, says how it stands, and
//! lets them go on.

mod group;
mod phases;
mod plant;
mod stands;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use paceline_comm::tasks::authority::{Order, Roster, Stand, Word};
use paceline_comm::tasks::{Bell, Ground, Seating};
use paceline_record::log::PorterWriter;
use paceline_record::{Host, HostChange, HostEvent, LauncherEvent, Nanos, PorterHeader};

use super::control::HostStatus;
use super::lead::{Lead, Stop};
use super::state::Layout;
use crate::checkpoint::Position;
use crate::hosts::porter::{Said, Thread, Tools};
use crate::hosts::{Event, Introduction, Link, LocalHost, Parted, Party};
use crate::{Fault, Job, TrainError, clock};

/// A launcher's part among hosts.
pub(super) struct Hosting {
    /// Ends before the memory that it uses.
    porter: Option<Thread>,
    party: Party,
    is_first: bool,
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
    /// How members join a group of devices when work goes on.
    seating: Option<Seating>,
    /// How many names for such groups were wanted here, and whether this roster's is.
    names: u32,
    names_group: bool,
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
    /// A group of devices has lost a member: another roster is waited for.
    Broken,
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
            seating: None,
            names: 0,
            names_group: false,
            faults: faults.into(),
            is_first: party.is_first(),
            party,
        })
    }

    pub fn host(&self) -> Host {
        self.party.host
    }

    pub fn is_first(&self) -> bool {
        self.is_first
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
        (self.has_caught_up, self.has_finished) = (false, false);
        (self.holds, self.stands) = (None, None);
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
                Event::Leads => self.hosting.iter_mut().for_each(|hosting| hosting.is_first = true),
                Event::Gathered | Event::Stored(_) | Event::Cut => {}
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
                    self.halt_group(now)?;
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
            let is_interrupted = self.surroundings.interrupted.load(Ordering::Relaxed);
            for event in hosting.party.gather(is_interrupted) {
                self.log.append(&event)?;
            }
            hosting.local.clear();
            *self.parted = Parted::Led;
        } else if let Some(hosting) = self.hosting.take() {
            *self.parted = Parted::From(hosting.party);
        }
        Ok(())
    }

    /// Tells the others that this host ends before all is done.
    pub(super) fn part_early(&mut self, why: &TrainError) -> Result<(), TrainError> {
        let Some(hosting) = &mut self.hosting else { return Ok(()) };
        let is_over = matches!(why, TrainError::HostsEnded(_));
        if hosting.is_first() && hosting.party.hands_over && !is_over {
            hosting.porter = None;
            hosting.party.hand_over();
            *self.parted = Parted::Led;
            return Ok(());
        }
        if hosting.is_first() {
            if why.is_interruption() || self.surroundings.interrupted.load(Ordering::Relaxed) {
                hosting.party.close();
            }
            hosting.party.end(&format!("the first host ended: {}", crate::describe(why)));
        } else if !matches!(why, TrainError::HostsEnded(_)) {
            hosting.party.say(Word::Leaves(crate::describe(why)));
        }
        self.part()
    }
}
