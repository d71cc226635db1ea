//! The first host's side of the control connections: it takes hosts in, hears them, and passes on what the authority decides.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use paceline_comm::tasks::authority::{Authority, Decided, Order, Roster, Word};
use paceline_comm::tasks::registry::{Petition, Verdict};
use paceline_comm::wire::{Address, Letters};
use paceline_record::log::host_folder;
use paceline_record::{ClockReading, EvalRecord, Host, HostChange, LauncherEvent, Nanos};

use super::entrance::{Entrance, Visitor};
use super::heir::{door_at, roster_record};
use super::letter::{Back, Greeting, Hello, Letter, Welcome, send};
use super::link::Lobby;
use super::party::{Event, Heard};
use super::registrar::Registrar;
use super::silence::{Silence, beat};
use super::store::Store;
use crate::{Job, clock};

/// How often readings of clocks are logged.
const READING: Nanos = Nanos(1_000_000_000);

/// How long a host may take until its workers are ready.
const BIRTH: Nanos = Nanos(600_000_000_000);

/// Connections of callers that have not become hosts.
pub(super) const MOST_CALLERS: usize = 128;

/// The first host's side.
pub(super) struct First {
    pub host: Host,
    pub name: String,
    pub entrance: Entrance,
    /// Those who called before this host was the first.
    pub early: VecDeque<Visitor>,
    pub authority: Authority,
    pub job: Job,
    pub fingerprint: String,
    pub history: Vec<EvalRecord>,
    /// What is to be logged of the first host itself.
    pub own: Option<HostChange>,
    pub folder: PathBuf,
    pub is_last: bool,
    pub callers: Vec<Caller>,
    pub next: u32,
    /// Numbers of callers that have not taken part.
    pub free: BTreeSet<u32>,
    /// Hosts that were there when the user was last told.
    pub told: usize,
    /// Where rosters are written down before they are called.
    pub register: Option<Register>,
    /// When hosts came that were there before this one was first.
    pub came: BTreeMap<Host, Nanos>,
    /// Those of them that have not come back.
    pub missing: BTreeSet<Host>,
}

/// The first host's way to get its rosters written down.
pub(super) struct Register {
    registrar: Arc<Registrar>,
    petition: Petition,
    /// Whether the user knows that it does not answer.
    has_complained: bool,
    /// When something was last written down.
    granted: Nanos,
}

/// How long the place where rosters are written down may be silent before the user is told.
const SILENCE: Nanos = Nanos(1_000_000_000);

impl Register {
    pub fn new(registrar: Arc<Registrar>, petition: Petition) -> Self {
        Self { registrar, petition, has_complained: false, granted: Nanos(0) }
    }

    pub fn propose(&mut self, roster: Roster, next: u32) {
        self.petition.propose(roster, next);
    }

    /// Takes this host's keys away; those of the run, too, if it is over.
    pub fn leave(&self, is_over: bool) {
        self.registrar.leave(is_over.then(|| self.petition.known()));
    }

    /// Asks for what is to be written down, and tells the authority what became of it.
    fn tend(&mut self, authority: &mut Authority, next: u32, heard: &mut Heard, now: Nanos) {
        let place = self.registrar.place().to_owned();
        let replaced =
            || format!("another host leads the run by what {place} holds; this one was taken for lost");
        if let Some((known, record)) = self.petition.ask()
            && let Some(answer) = self.registrar.swap(known, record)
        {
            match self.petition.hear(answer, authority.roster().generation, authority.is_complete()) {
                Verdict::Granted(generation) => {
                    self.granted = now;
                    authority.grant(generation, now);
                }
                Verdict::Refused(_) => authority.end(&replaced()),
                Verdict::Waits | Verdict::Again => {}
            }
        }
        if let Some((at, look)) = self.registrar.looked()
            && now.since(at) < SILENCE
        {
            let gone: Vec<Host> = authority.awaited().filter(|host| !look.hosts.contains_key(host)).collect();
            gone.into_iter().for_each(|host| authority.forgets(host));
            let roster = authority.roster();
            // A look that was begun before says nothing.
            let is_new = at.since(self.granted) > SILENCE && roster.generation > 0;
            let petition = &self.petition;
            let is_replaced =
                look.entry.as_ref().is_some_and(|entry| petition.is_replaced(entry, roster.generation));
            if is_new && is_replaced && !authority.is_over() {
                authority.end(&replaced());
                return;
            }
            let is_lost = is_new && look.entry.is_none() && self.petition.ask().is_none();
            if is_lost && authority.is_complete() && !authority.is_over() {
                self.petition.restore(roster.clone(), next);
                heard
                    .0
                    .push(Event::Say(format!("{place} has no roster of this run; it is written down again")));
            }
        }
        let fault = self.registrar.fault().filter(|(since, _)| now.since(*since) > SILENCE);
        match (fault, self.has_complained) {
            (Some((_, why)), false) => {
                self.has_complained = true;
                heard.0.push(Event::Say(format!(
                    "{why}; the training goes on with the hosts that it has, and none can come or be replaced until it answers"
                )));
            }
            (None, true) => {
                self.has_complained = false;
                heard.0.push(Event::Say(format!("{place} answers again")));
            }
            _ => {}
        }
    }
}

/// Somebody who has called.
pub(super) struct Caller {
    pub letters: Letters,
    from: Address,
    name: String,
    came: Nanos,
    silence: Silence,
    pinged: Nanos,
    /// Set once it is welcome.
    host: Host,
    /// Whether it takes part, and where its door is, if it has one.
    is_ready: bool,
    door: Option<SocketAddr>,
    best: Option<ClockReading>,
    logged: Nanos,
    store: Store,
    is_stored: bool,
    /// It does not take part any more, but may still send its logs.
    is_out: bool,
}

impl First {
    pub fn tend(&mut self, run: u64, lease: Nanos, lobby: &Lobby, heard: &mut Heard, now: Nanos) {
        if let Some(own) = self.own.take() {
            heard.log(self.host, now, own);
        }
        // Whoever comes when all is over waits for the next run.
        while !self.authority.is_over()
            && let Some(mut visitor) = self.early.pop_front().or_else(|| self.entrance.next())
        {
            match serde_json::from_slice(&visitor.greeting) {
                Ok(Greeting::Data { run: told, generation, from }) if told == run => {
                    if let Some(stream) = visitor.letters.into_stream() {
                        lobby.put(generation, from, stream);
                    }
                }
                Ok(Greeting::Control(hello)) if self.callers.len() < MOST_CALLERS => {
                    self.greet(run, hello, visitor, heard, now);
                }
                Ok(Greeting::Back(back)) => self.take_back(run, back, visitor, heard, now),
                Ok(Greeting::Measure { .. }) => {
                    let why = "it runs a training, and measures no all-reduces".into();
                    // Nothing is lost with a caller that has gone.
                    let _ = send(&mut visitor.letters, &Letter::SentAway { why });
                }
                // Of another run, or what nobody says.
                _ => {}
            }
        }
        let mut place = 0;
        while place < self.callers.len() {
            match self.hear(place, lease, heard, now) {
                Ok(()) => place += 1,
                Err(why) => {
                    let mut caller = self.callers.remove(place);
                    if !caller.is_ready {
                        // A number is used up by taking part.
                        self.free.insert(caller.host.0);
                    } else if !caller.is_out {
                        let again = match self.job.elastic {
                            Some(_) => "; the others go on, and the same command joins them again",
                            None => "",
                        };
                        let order =
                            Order::End(format!("the first host took this one for lost: {why}{again}"));
                        // It may hear of it, or be gone.
                        let _ = send(&mut caller.letters, &Letter::Order { order, doors: Vec::new() });
                        self.authority.loses(caller.host, &why, now);
                    }
                }
            }
        }
        if self.coming() > 0 {
            self.authority.expects(now);
        }
        self.authority.tend(now);
        if let Some(register) = &mut self.register {
            register.tend(&mut self.authority, self.next, heard, now);
        }
        self.pass_on(heard, now);
        let count = self.authority.hosts().count();
        if self.authority.waits() && count != self.told {
            self.told = count;
            let hosts = if count == 1 { "1 host is".into() } else { format!("{count} hosts are") };
            let (least, patience) = self.authority.needs();
            let wait = match (count as u32) < least {
                true => format!("at least {least} are needed; waiting {:.0} s for more", patience.seconds()),
                false => "waiting for more".into(),
            };
            heard.0.push(Event::Say(format!("{hosts} there; {wait}")));
        }
        let is_gathered = self.authority.is_over()
            && self.callers.iter().all(|caller| caller.is_stored || !caller.is_ready);
        if is_gathered {
            heard.0.push(Event::Gathered);
        }
    }

    /// Hosts that were let in and are getting ready.
    fn coming(&self) -> usize {
        self.callers.iter().filter(|caller| !caller.is_ready).count()
    }

    /// Tells all others that this host leaves, and that one of them takes its place.
    pub fn hand_over(&mut self) {
        for caller in &mut self.callers {
            // A broken connection is noticed by whoever is at its other end.
            let _ = send(&mut caller.letters, &Letter::HandsOver);
        }
    }

    /// Answers somebody who calls for the first time.
    fn greet(&mut self, run: u64, hello: Hello, visitor: Visitor, heard: &mut Heard, now: Nanos) {
        let Visitor { mut letters, from, .. } = visitor;
        let full = || "the run has all the hosts that it can have now".to_owned();
        let why = hello.refusal().or_else(|| (!self.authority.has_room(self.coming())).then(full));
        let name = hello.name;
        if let Some(why) = why {
            heard.0.push(Event::Say(format!("{name} ({from}) was sent away: {why}")));
            let _ = send(&mut letters, &Letter::SentAway { why });
        } else {
            let host = Host(hello.rank.or_else(|| self.free.pop_first()).unwrap_or(self.next));
            self.next = self.next.max(host.0 + 1);
            let welcome = Welcome {
                host,
                first: (self.host, self.name.clone()),
                run,
                job: self.job.clone(),
                fingerprint: self.fingerprint.clone(),
                history: self.history.clone(),
                has_begun: self.authority.roster().generation > 0 || self.job.milestones.resume.is_some(),
            };
            let _ = send(&mut letters, &Letter::Welcome(Box::new(welcome)));
            let store = Store::new(self.folder.join(host_folder(host)));
            self.callers.push(Caller::new(letters, (from, name), host, store, now));
        }
    }

    /// Answers a host that was led by the one that is lost.
    fn take_back(&mut self, run: u64, back: Back, visitor: Visitor, heard: &mut Heard, now: Nanos) {
        let Visitor { mut letters, from, .. } = visitor;
        let Back { hello, run: told, host, workers, port, interface } = back;
        let is_here = self.authority.hosts().any(|other| other == host);
        if told != run || is_here || self.authority.roster().place_of(host).is_none() {
            let why = "the others have gone on without it; the same command joins them again".to_owned();
            // Nothing is lost with a caller that has gone.
            let _ = send(&mut letters, &Letter::SentAway { why });
            return;
        }
        let store = Store::new(self.folder.join(host_folder(host)));
        let name = hello.name.clone();
        let mut caller = Caller::new(letters, (from, hello.name), host, store, now);
        (caller.door, caller.is_ready) = (door_at(interface, from, port), true);
        self.callers.push(caller);
        self.missing.remove(&host);
        // It has been there for as long as this host knows of it.
        let came = self.came.get(&host).copied().unwrap_or(now);
        heard.log(host, came, HostChange::Joined { name: name.clone(), workers });
        self.authority.joins(host, &name, workers, now);
    }

    /// Hears a caller; an error if it is lost.
    fn hear(&mut self, place: usize, lease: Nanos, heard: &mut Heard, now: Nanos) -> Result<(), String> {
        let caller = &mut self.callers[place];
        let host = caller.host;
        let letters = caller.letters.progress().map_err(|error| error.to_string())?;
        let silent = caller.silence.look(!letters.is_empty(), now);
        for bytes in letters {
            let caller = &mut self.callers[place];
            match Letter::read(&bytes)? {
                Letter::Ready { workers, port, interface } if !caller.is_ready => {
                    if !self.authority.has_room(0) {
                        let why = "the run has all the hosts that it can have now".to_owned();
                        let _ = send(&mut caller.letters, &Letter::SentAway { why: why.clone() });
                        return Err(why);
                    }
                    caller.door = door_at(interface, caller.from, port);
                    caller.is_ready = true;
                    let name = caller.name.clone();
                    heard.0.push(Event::Say(format!("host {} ({name}) has come", host.0)));
                    heard.log(host, now, HostChange::Joined { name, workers });
                    let name = caller.name.clone();
                    self.authority.joins(host, &name, workers, now);
                }
                Letter::Differs { why } => {
                    heard
                        .0
                        .push(Event::Say(format!("{} ({}) was sent away: {why}", caller.name, caller.from)));
                    return Err(why);
                }
                Letter::Word(Word::Leaves(why)) if caller.is_ready => {
                    caller.is_out = true;
                    let name = caller.name.clone();
                    heard.0.push(Event::Say(format!("host {} ({name}) leaves: {why}", host.0)));
                    self.authority.hears(host, Word::Leaves(why), now);
                }
                Letter::Word(word) if caller.is_ready => self.authority.hears(host, word, now),
                Letter::Planted { step, fault } if caller.is_ready => {
                    heard.log(host, now, HostChange::Planted { step, fault });
                }
                Letter::Pong { sent, there } => caller.read_clock(sent, there, heard, now),
                Letter::File { name, text } if name.is_empty() && text.is_empty() => {
                    caller.store.finish().map_err(|error| format!("its logs cannot be stored: {error}"))?;
                    caller.is_stored = true;
                    heard.0.extend(caller.best.take().map(|best| Event::Log(LauncherEvent::Clock(best))));
                    heard.log(host, now, HostChange::Gathered);
                    let _ = send(&mut caller.letters, &Letter::Stored { is_last: self.is_last });
                }
                Letter::File { name, text } => {
                    // Logs are sent when a launcher has ended.
                    if !std::mem::replace(&mut caller.is_out, true) {
                        self.authority.loses(host, "it has ended", now);
                    }
                    self.callers[place]
                        .store
                        .add(&name, &text)
                        .map_err(|error| format!("its logs cannot be stored: {error}"))?;
                }
                other => return Err(format!("it says what a host does not say: {other:?}")),
            }
        }
        let caller = &mut self.callers[place];
        if caller.is_ready && silent > lease && !caller.is_stored {
            heard.0.push(Event::Missed(Nanos(now.0.saturating_sub(silent.0))));
            return Err(format!("it was silent for {:.1} s", silent.seconds()));
        }
        if !caller.is_ready && now.since(caller.came) > BIRTH {
            return Err("it did not say whether it takes part".into());
        }
        if now.since(caller.pinged) >= beat(lease) {
            caller.pinged = now;
            send(&mut caller.letters, &Letter::Ping { sent: clock::now() })
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Sends orders to whom they are for, and tells what was decided.
    fn pass_on(&mut self, heard: &mut Heard, now: Nanos) {
        for decided in self.authority.take_decided() {
            match decided {
                Decided::Lost(host, why) => {
                    let name = self.name_of(host);
                    heard.0.push(Event::Say(format!("host {}{name} was lost: {why}", host.0)));
                    heard.log(host, now, HostChange::Lost { why });
                }
                Decided::Left(host) => heard.log(host, now, HostChange::Left),
                Decided::Proposed(roster) => {
                    if let Some(register) = &mut self.register {
                        register.propose(roster, self.next);
                    }
                }
                Decided::Roster(roster, steps) => {
                    for host in std::mem::take(&mut self.missing) {
                        let why = "it did not come to the host that took the first one's place".to_owned();
                        heard.0.push(Event::Say(format!("host {} was lost: {why}", host.0)));
                        heard.log(host, now, HostChange::Lost { why });
                    }
                    heard.0.push(Event::Log(LauncherEvent::Hosts(roster_record(&roster, steps, now))));
                }
            }
        }
        let doors = self.callers.iter().filter_map(|caller| Some((caller.host, caller.door?)));
        let own = self.entrance.bytes().map(|door| (self.host, door));
        let doors: Vec<(Host, SocketAddr)> = own.into_iter().chain(doors).collect();
        for (host, order) in self.authority.take_orders() {
            if host == self.host {
                heard.0.push(Event::Order(order, doors.iter().copied().collect()));
            } else if let Some(caller) = self.callers.iter_mut().find(|caller| caller.host == host) {
                caller.is_out |= matches!(order, Order::End(_));
                // A broken connection is noticed when it is read.
                let _ = send(&mut caller.letters, &Letter::Order { order, doors: doors.clone() });
            }
        }
    }

    fn name_of(&self, host: Host) -> String {
        let caller = self.callers.iter().find(|caller| caller.host == host);
        caller.map_or_else(String::new, |caller| format!(" ({}, {})", caller.name, caller.from))
    }
}

impl Caller {
    /// Somebody who is welcome and has not said yet whether it takes part.
    fn new(letters: Letters, (from, name): (Address, String), host: Host, store: Store, came: Nanos) -> Self {
        Self {
            letters,
            from,
            name,
            came,
            silence: Silence::default(),
            pinged: Nanos(0),
            host,
            is_ready: false,
            door: None,
            best: None,
            logged: Nanos(0),
            store,
            is_stored: false,
            is_out: false,
        }
    }

    fn read_clock(&mut self, sent: Nanos, there: Nanos, heard: &mut Heard, now: Nanos) {
        let received = clock::now();
        let middle = sent.0 / 2 + received.0 / 2;
        let reading = ClockReading {
            host: self.host,
            at: Nanos(middle),
            offset: there.0.wrapping_sub(middle) as i64,
            within: Nanos(received.since(sent).0.div_ceil(2)),
        };
        if self.best.is_none_or(|best| reading.within < best.within) {
            self.best = Some(reading);
        }
        if now.since(self.logged) >= READING
            && let Some(best) = self.best.take()
        {
            self.logged = now;
            heard.0.push(Event::Log(LauncherEvent::Clock(best)));
        }
    }
}
