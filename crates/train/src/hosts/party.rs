//! A launcher's connections with other launchers, kept by a thread of their own: whatever the launcher is busy with, others hear that
//! it lives.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_comm::tasks::Bell;
use paceline_comm::tasks::authority::{Authority, Decided, Order, Word};
use paceline_comm::wire::{Door, Letters, Terms};
use paceline_record::log::host_folder;
use paceline_record::{
    ClockReading, EvalRecord, Generation, Host, HostChange, HostEvent, HostPlace, HostRoster, LauncherEvent,
    Nanos, Step,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::letter::{Greeting, Hello, Letter, Welcome, send};
use super::link::Lobby;
use super::store::Store;
use crate::{Job, TrainError, clock};

/// How often signs of life are sent, in parts of the lease, and clocks read.
const BEATS: u64 = 8;

/// How often readings of clocks are logged.
const READING: Nanos = Nanos(1_000_000_000);

/// How much longer than the lease the first host may be silent: it hears of a cut first, and decides.
const SLACK: Nanos = Nanos(500_000_000);

/// How long logs may take to be carried to the first host.
const CARRIED: Duration = Duration::from_secs(60);

/// How long a host may take until its workers are ready.
const BIRTH: Nanos = Nanos(600_000_000_000);

/// Connections of callers that have not become hosts.
const MOST_CALLERS: usize = 128;

/// What the launcher hears.
pub(crate) enum Event {
    /// What it is to do, and where the doors of other hosts are.
    Order(Order, BTreeMap<Host, SocketAddr>),
    /// What is to be logged.
    Log(LauncherEvent),
    /// What the user should know.
    Say(String),
    /// All logs of other hosts are there.
    Gathered,
    /// The first host has this host's logs; whether it has no other run.
    Stored(bool),
}

enum Task {
    Ready,
    Word(Word),
    End(String),
    History(Vec<EvalRecord>),
    Deliver(Vec<(String, String)>),
    Leave,
}

/// The launcher's side.
pub(crate) struct Party {
    pub host: Host,
    pub run: u64,
    pub terms: Terms,
    lobby: Arc<Lobby>,
    tasks: Option<Sender<Task>>,
    events: Receiver<Event>,
    call: Bell,
    keeper: Option<JoinHandle<()>>,
}

/// What the thread needs.
pub(super) struct Keeper {
    pub host: Host,
    pub run: u64,
    pub terms: Terms,
    pub lease: Nanos,
    pub lobby: Arc<Lobby>,
    pub side: Side,
}

pub(super) enum Side {
    First(Box<First>),
    Other { door: Door, letters: Letters, heard: Nanos, first: SocketAddr, workers: u32 },
}

/// The first host's side.
pub(super) struct First {
    pub door: Arc<Door>,
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
}

/// Somebody who has called.
pub(super) struct Caller {
    letters: Letters,
    from: SocketAddr,
    name: String,
    came: Nanos,
    heard: Nanos,
    pinged: Nanos,
    /// Set once it is welcome.
    host: Host,
    /// Where its door is, once it takes part.
    door: Option<SocketAddr>,
    best: Option<ClockReading>,
    logged: Nanos,
    store: Store,
    is_stored: bool,
    /// It does not take part any more, but may still send its logs.
    is_out: bool,
}

impl Party {
    pub(super) fn start(keeper: Keeper, launcher: &Bell) -> Result<Self, TrainError> {
        let (tasks, asked) = mpsc::channel();
        let (tell, events) = mpsc::channel();
        let call = Bell::create()?;
        let called = Bell::attach(call.descriptor())?;
        let launcher = Bell::attach(launcher.descriptor())?;
        let (host, run, terms, lobby) = (keeper.host, keeper.run, keeper.terms.clone(), keeper.lobby.clone());
        let mut at_work = AtWork { keeper, tell, launcher, outbox: VecDeque::new(), leaving: false };
        let work = move || at_work.run(&asked, &called);
        let handle = std::thread::Builder::new().name("hosts".into()).spawn(work);
        let keeper = Some(handle.map_err(TrainError::system("start a thread"))?);
        Ok(Self { host, run, terms, lobby, tasks: Some(tasks), events, call, keeper })
    }

    pub fn lobby(&self) -> Arc<Lobby> {
        self.lobby.clone()
    }

    pub fn is_first(&self) -> bool {
        self.host == Host(0)
    }

    fn ask(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            // The thread ends only with this.
            let _ = tasks.send(task);
            self.call.ring();
        }
    }

    /// Tells the first host that this one can take part.
    pub fn ready(&self) {
        self.ask(Task::Ready);
    }

    /// Tells the authority something.
    pub fn say(&self, word: Word) {
        self.ask(Task::Word(word));
    }

    /// Ends the run on all hosts, on the first.
    pub fn end(&self, why: &str) {
        self.ask(Task::End(why.into()));
    }

    /// Tells whoever comes later of the tests so far.
    pub fn note_history(&self, history: &[EvalRecord]) {
        self.ask(Task::History(history.to_vec()));
    }

    /// What was heard, if anything.
    pub fn event(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Waits for something to be heard.
    fn wait(&self, until: Instant) -> Option<Event> {
        match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Waits until the logs of all other hosts are there, as far as they come; what is to be logged of that.
    pub fn gather(&self) -> Vec<LauncherEvent> {
        let until = Instant::now() + CARRIED;
        let mut events = Vec::new();
        loop {
            match self.wait(until) {
                Some(Event::Log(event)) => events.push(event),
                Some(Event::Gathered) | None => return events,
                Some(_) => {}
            }
        }
    }

    /// Carries the files of a folder to the first host; whether they are there, and whether no other run follows.
    pub fn deliver(&self, folder: &Path) -> Option<bool> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            let name = entry.file_name().into_string().ok()?;
            if Store::takes(&name) {
                files.push((name, String::from_utf8_lossy(&std::fs::read(entry.path()).ok()?).into_owned()));
            }
        }
        self.ask(Task::Deliver(files));
        let until = Instant::now() + CARRIED;
        loop {
            match self.wait(until)? {
                Event::Stored(is_last) => return Some(is_last),
                Event::Order(Order::End(_), _) => return None,
                _ => {}
            }
        }
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        self.ask(Task::Leave);
        drop(self.tasks.take());
        self.call.ring();
        if let Some(keeper) = self.keeper.take() {
            // Its panic was printed by its own thread.
            let _ = keeper.join();
        }
    }
}

struct AtWork {
    keeper: Keeper,
    tell: Sender<Event>,
    launcher: Bell,
    /// Pieces of files that are to be carried to the first host.
    outbox: VecDeque<Letter>,
    leaving: bool,
}

impl AtWork {
    fn run(&mut self, asked: &Receiver<Task>, called: &Bell) {
        while !self.leaving {
            self.sleep(called);
            let now = clock::now();
            while let Ok(task) = asked.try_recv() {
                self.take(task, now);
            }
            let mut heard = Heard::default();
            self.keeper.tend(&mut self.outbox, &mut heard, now);
            self.pass_on(heard);
        }
        self.farewell();
    }

    fn pass_on(&self, heard: Heard) {
        let is_any = !heard.0.is_empty();
        for event in heard.0 {
            // Nobody listens where the launcher has ended.
            let _ = self.tell.send(event);
        }
        if is_any {
            self.launcher.ring();
        }
    }

    fn sleep(&self, called: &Bell) {
        let mut files = vec![PollFd::new(called, PollFlags::IN)];
        let flags = |letters: &Letters| match letters.wants_write() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        match &self.keeper.side {
            Side::First(first) => {
                files.push(PollFd::from_borrowed_fd(first.door.as_fd(), PollFlags::IN));
                files.extend(
                    first.callers.iter().map(|caller| PollFd::new(&caller.letters, flags(&caller.letters))),
                );
            }
            Side::Other { door, letters, .. } => {
                files.push(PollFd::from_borrowed_fd(door.as_fd(), PollFlags::IN));
                files.push(PollFd::new(letters, flags(letters)));
            }
        }
        let time = Timespec { tv_sec: 0, tv_nsec: (self.keeper.lease.0 / BEATS / 2) as i64 };
        // Whatever it answers, all is looked at next.
        let _ = poll(&mut files, Some(&time));
        drop(files);
        let _ = called.silence();
    }

    fn take(&mut self, task: Task, now: Nanos) {
        match (task, &mut self.keeper.side) {
            (Task::Leave, _) => self.leaving = true,
            (Task::Ready, Side::Other { door, letters, workers, .. }) => {
                let ready = Letter::Ready { workers: *workers, port: door.address().port() };
                // A broken connection is noticed when it is read.
                let _ = send(letters, &ready);
            }
            (Task::Word(word), Side::First(first)) => first.authority.hears(Host(0), word, now),
            (Task::Word(word), Side::Other { letters, .. }) => {
                // A broken connection is noticed when it is read.
                let _ = send(letters, &Letter::Word(word));
            }
            (Task::End(why), Side::First(first)) => first.authority.end(&why),
            (Task::History(history), Side::First(first)) => first.history = history,
            (Task::Deliver(files), Side::Other { .. }) => self.outbox = Store::pieces(files),
            (Task::End(_) | Task::History(_), Side::Other { .. })
            | (Task::Deliver(_) | Task::Ready, Side::First(_)) => {}
        }
    }

    /// Sends what is still to be sent.
    fn farewell(&mut self) {
        let until = Instant::now() + Duration::from_millis(500);
        let mut heard = Heard::default();
        self.keeper.tend(&mut self.outbox, &mut heard, clock::now());
        while self.keeper.wants_write() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
            self.keeper.tend(&mut self.outbox, &mut heard, clock::now());
        }
    }
}

/// What there is to tell the launcher.
#[derive(Default)]
struct Heard(Vec<Event>);

impl Heard {
    fn log(&mut self, host: Host, at: Nanos, change: HostChange) {
        self.0.push(Event::Log(LauncherEvent::Host(HostEvent { host, at, change })));
    }
}

impl Keeper {
    fn wants_write(&self) -> bool {
        match &self.side {
            Side::First(first) => first.callers.iter().any(|caller| caller.letters.wants_write()),
            Side::Other { letters, .. } => letters.wants_write(),
        }
    }

    fn tend(&mut self, outbox: &mut VecDeque<Letter>, heard: &mut Heard, now: Nanos) {
        let Self { run, lease, lobby, side, .. } = self;
        match side {
            Side::First(first) => first.tend(*run, *lease, lobby, heard, now),
            Side::Other { door, letters, heard: last, first, .. } => {
                while let Some(visitor) = door.next() {
                    if let Ok(Greeting::Data { run: told, generation, from }) =
                        serde_json::from_slice(&visitor.greeting)
                        && told == *run
                    {
                        lobby.put(generation, from, visitor.stream);
                    }
                }
                let lost = match listen(letters, *first, outbox, heard) {
                    Ok(0) if now.since(*last) > *lease + SLACK => {
                        Some(format!("it was silent for {:.1} s", now.since(*last).seconds()))
                    }
                    Ok(0) => None,
                    Ok(_) => {
                        *last = now;
                        None
                    }
                    Err(why) => Some(why),
                };
                if let Some(why) = lost {
                    *last = Nanos(u64::MAX / 2);
                    let why = format!(
                        "the first host ({first}) cannot be reached: {why}; a rendezvous that is kept apart from the hosts \
                         would outlive it"
                    );
                    heard.0.push(Event::Order(Order::End(why), BTreeMap::new()));
                }
            }
        }
    }
}

/// What the first host says to another one. Gives the number of letters.
fn listen(
    letters: &mut Letters,
    first: SocketAddr,
    outbox: &mut VecDeque<Letter>,
    heard: &mut Heard,
) -> Result<usize, String> {
    let came = letters.progress().map_err(|error| error.to_string())?;
    for bytes in &came {
        match Letter::read(bytes)? {
            Letter::Order { order, doors } => {
                let mut doors: BTreeMap<Host, SocketAddr> = doors.into_iter().collect();
                // The first host's door is where this one found it.
                doors.insert(Host(0), first);
                heard.0.push(Event::Order(order, doors));
            }
            Letter::Ping { sent } => {
                let pong = Letter::Pong { sent, there: clock::now() };
                send(letters, &pong).map_err(|error| error.to_string())?;
            }
            Letter::Stored { is_last } => heard.0.push(Event::Stored(is_last)),
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

impl First {
    fn tend(&mut self, run: u64, lease: Nanos, lobby: &Lobby, heard: &mut Heard, now: Nanos) {
        if let Some(own) = self.own.take() {
            heard.log(Host(0), now, own);
        }
        while let Some(visitor) = self.door.next() {
            match serde_json::from_slice(&visitor.greeting) {
                Ok(Greeting::Data { run: told, generation, from }) if told == run => {
                    lobby.put(generation, from, visitor.stream);
                }
                Ok(Greeting::Control(hello)) if self.callers.len() < MOST_CALLERS => {
                    self.greet(run, hello, Letters::new(visitor.stream), visitor.from, heard, now);
                }
                Ok(Greeting::Measure { .. }) => {
                    let why = "it runs a training, and measures no all-reduces".into();
                    // Nothing is lost with a caller that has gone.
                    let _ = send(&mut Letters::new(visitor.stream), &Letter::SentAway { why });
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
                    let caller = self.callers.remove(place);
                    if caller.door.is_some() && !caller.is_out && !caller.is_stored {
                        self.authority.loses(caller.host, &why, now);
                    }
                }
            }
        }
        self.authority.tend(now);
        self.pass_on(heard, now);
        let is_gathered = self.authority.is_over()
            && self.callers.iter().all(|caller| caller.is_stored || caller.door.is_none());
        if is_gathered {
            heard.0.push(Event::Gathered);
        }
    }

    /// Answers somebody who calls for the first time.
    fn greet(
        &mut self,
        run: u64,
        hello: Hello,
        mut letters: Letters,
        from: SocketAddr,
        heard: &mut Heard,
        now: Nanos,
    ) {
        let full = || "the run has all the hosts that it can have now".to_owned();
        let why = hello.refusal().or_else(|| (!self.authority.has_room()).then(full));
        let name = hello.name;
        if let Some(why) = why {
            heard.0.push(Event::Say(format!("{name} ({from}) was sent away: {why}")));
            let _ = send(&mut letters, &Letter::SentAway { why });
        } else {
            let host = Host(self.next);
            self.next += 1;
            let welcome = Welcome {
                host,
                run,
                job: self.job.clone(),
                fingerprint: self.fingerprint.clone(),
                history: self.history.clone(),
                has_begun: self.authority.roster().generation > 0 || self.job.milestones.resume.is_some(),
            };
            let _ = send(&mut letters, &Letter::Welcome(Box::new(welcome)));
            self.callers.push(Caller {
                letters,
                from,
                name,
                came: now,
                heard: now,
                pinged: Nanos(0),
                host,
                door: None,
                best: None,
                logged: Nanos(0),
                store: Store::new(self.folder.join(host_folder(host))),
                is_stored: false,
                is_out: false,
            });
        }
    }

    /// Hears a caller; an error if it is lost.
    fn hear(&mut self, place: usize, lease: Nanos, heard: &mut Heard, now: Nanos) -> Result<(), String> {
        let caller = &mut self.callers[place];
        let host = caller.host;
        let letters = caller.letters.progress().map_err(|error| error.to_string())?;
        if !letters.is_empty() {
            caller.heard = now;
        }
        for bytes in letters {
            let caller = &mut self.callers[place];
            match Letter::read(&bytes)? {
                Letter::Ready { workers, port } if caller.door.is_none() => {
                    if !self.authority.has_room() {
                        let why = "the run has all the hosts that it can have now".to_owned();
                        let _ = send(&mut caller.letters, &Letter::SentAway { why: why.clone() });
                        return Err(why);
                    }
                    caller.door = Some(SocketAddr::new(caller.from.ip(), port));
                    let name = caller.name.clone();
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
                Letter::Word(Word::Leaves) if caller.door.is_some() => {
                    caller.is_out = true;
                    self.authority.hears(host, Word::Leaves, now);
                }
                Letter::Word(word) if caller.door.is_some() => self.authority.hears(host, word, now),
                Letter::Pong { sent, there } => caller.read_clock(sent, there, heard, now),
                Letter::File { name, text } if name.is_empty() && text.is_empty() => {
                    caller.store.finish().map_err(|error| format!("its logs cannot be stored: {error}"))?;
                    caller.is_stored = true;
                    heard.0.extend(caller.best.take().map(|best| Event::Log(LauncherEvent::Clock(best))));
                    heard.log(host, now, HostChange::Gathered);
                    let _ = send(&mut caller.letters, &Letter::Stored { is_last: self.is_last });
                }
                Letter::File { name, text } => {
                    caller
                        .store
                        .add(&name, &text)
                        .map_err(|error| format!("its logs cannot be stored: {error}"))?;
                }
                other => return Err(format!("it says what a host does not say: {other:?}")),
            }
        }
        let caller = &mut self.callers[place];
        let silent = now.since(caller.heard);
        if caller.door.is_some() && silent > lease && !caller.is_stored {
            return Err(format!("it was silent for {:.1} s", silent.seconds()));
        }
        if caller.door.is_none() && now.since(caller.came) > BIRTH {
            return Err("it did not say whether it takes part".into());
        }
        if now.since(caller.pinged) >= Nanos(lease.0 / BEATS) {
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
                Decided::Roster(roster, steps) => {
                    let mut first_shard = 0;
                    let hosts = roster.places.iter().map(|place| {
                        let shards = place.end - first_shard;
                        let place = HostPlace { host: place.host, first_shard, shards };
                        first_shard += shards;
                        place
                    });
                    heard.0.push(Event::Log(LauncherEvent::Hosts(HostRoster {
                        generation: Generation(roster.generation),
                        at: now,
                        step: Step(steps),
                        hosts: hosts.collect(),
                    })));
                }
            }
        }
        let doors: Vec<(Host, SocketAddr)> =
            self.callers.iter().filter_map(|caller| Some((caller.host, caller.door?))).collect();
        for (host, order) in self.authority.take_orders() {
            if host == Host(0) {
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
