//! A launcher's connections with other launchers, kept by a thread of their own: whatever the launcher is busy with, others hear that
//! it lives.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_comm::mpi::Mpi;
use paceline_comm::tasks::Bell;
use paceline_comm::tasks::authority::{Order, Word};
use paceline_comm::wire::{Address, Door, Letters, Terms};
use paceline_record::{EvalRecord, Host, HostChange, HostEvent, LauncherEvent, Nanos, Step};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::first::First;
use super::letter::{Greeting, Letter, send};
use super::link::Lobby;
use super::store::Store;
use crate::{TrainError, clock};

/// How often signs of life are sent at least, in parts of the lease, and clocks read.
const BEATS: u64 = 8;

/// The longest time between two of them, however long the lease: shorter than [`LONGEST_LOOK`], or silence would not count.
const LONGEST_BEAT: Nanos = Nanos(200_000_000);

/// The time between two signs of life.
pub(super) fn beat(lease: Nanos) -> Nanos {
    Nanos(lease.0 / BEATS).min(LONGEST_BEAT)
}

/// How much longer than the lease the first host may be silent: it hears of a cut first, and decides.
const SLACK: Nanos = Nanos(500_000_000);

/// How long logs may take to be carried to the first host.
const CARRIED: Duration = Duration::from_secs(60);

/// How long it may take to tell the first host of a fault.
const CONFESSED: Duration = Duration::from_secs(1);

/// What the launcher hears.
pub(crate) enum Event {
    /// What it is to do, and where the doors of other hosts are.
    Order(Order, BTreeMap<Host, SocketAddr>),
    /// A host that was last heard then is lost.
    Missed(Nanos),
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
    /// The sender is dropped when it has been told.
    Planted {
        step: Step,
        fault: String,
        told: Sender<()>,
    },
    Leave,
}

/// The launcher's side.
pub(crate) struct Party {
    pub host: Host,
    pub run: u64,
    pub terms: Terms,
    pub lease: Nanos,
    pub mpi: Option<Arc<Mpi>>,
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
    pub mpi: Option<Arc<Mpi>>,
    pub lobby: Arc<Lobby>,
    pub side: Side,
}

pub(super) enum Side {
    First(Box<First>),
    Other(Box<Other>),
}

/// Another host's side.
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
}

impl Party {
    pub(super) fn start(keeper: Keeper, launcher: &Bell) -> Result<Self, TrainError> {
        let (tasks, asked) = mpsc::channel();
        let (tell, events) = mpsc::channel();
        let call = Bell::create()?;
        let called = Bell::attach(call.descriptor())?;
        let launcher = Bell::attach(launcher.descriptor())?;
        let Keeper { host, run, lease, .. } = keeper;
        let (terms, lobby, mpi) = (keeper.terms.clone(), keeper.lobby.clone(), keeper.mpi.clone());
        let mut at_work = AtWork { keeper, tell, launcher, outbox: VecDeque::new(), leaving: false };
        let work = move || at_work.run(&asked, &called);
        let handle = std::thread::Builder::new().name("hosts".into()).spawn(work);
        let keeper = Some(handle.map_err(TrainError::system("start a thread"))?);
        Ok(Self { host, run, terms, lease, mpi, lobby, tasks: Some(tasks), events, call, keeper })
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

    /// Tells the first host what is about to be planted in this one, and waits until that is on its way.
    pub fn confess(&self, step: Step, fault: String) {
        let (told, confessed) = mpsc::channel();
        self.ask(Task::Planted { step, fault, told });
        // Told or not, it is planted.
        let _ = confessed.recv_timeout(CONFESSED);
    }

    /// What was heard, if anything.
    pub fn event(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Waits for something to be heard.
    fn wait(&self, until: Instant) -> Option<Event> {
        self.events.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
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
        match &self.keeper.side {
            // Through a cut cable nothing comes, whatever the sockets say.
            _ if self.keeper.terms.cable.is_cut_for().is_some() => {}
            Side::First(first) => {
                // Whoever comes when all is over is not let in.
                let callers = if first.authority.is_over() { Vec::new() } else { first.entrance.files() };
                files.extend(callers.into_iter().map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN)));
                files.extend(
                    first
                        .callers
                        .iter()
                        .map(|caller| PollFd::new(&caller.letters, caller.letters.interest())),
                );
            }
            Side::Other(other) => {
                let Other { door, letters, .. } = &**other;
                files.extend(door.iter().map(|door| PollFd::from_borrowed_fd(door.as_fd(), PollFlags::IN)));
                files.push(PollFd::new(letters, letters.interest()));
            }
        }
        let time = Timespec { tv_sec: 0, tv_nsec: (beat(self.keeper.lease).0 / 2) as i64 };
        // Whatever it answers, all is looked at next.
        let _ = poll(&mut files, Some(&time));
        drop(files);
        let _ = called.silence();
    }

    fn take(&mut self, task: Task, now: Nanos) {
        match (task, &mut self.keeper.side) {
            (Task::Leave, _) => self.leaving = true,
            (Task::Ready, Side::Other(other)) => {
                let Other { workers, interface, .. } = **other;
                let port = other.door.as_ref().map_or(0, |door| door.address().port());
                let ready = Letter::Ready { workers, port, interface };
                // A broken connection is noticed when it is read.
                let _ = send(&mut other.letters, &ready);
            }
            (Task::Word(word), Side::First(first)) => first.authority.hears(Host(0), word, now),
            (Task::Word(word), Side::Other(other)) => {
                // A broken connection is noticed when it is read.
                let _ = send(&mut other.letters, &Letter::Word(word));
            }
            (Task::End(why), Side::First(first)) => first.authority.end(&why),
            (Task::History(history), Side::First(first)) => first.history = history,
            (Task::Deliver(_), Side::Other(other)) if other.is_cut => {
                // Nobody listens where the launcher has ended.
                let _ = self.tell.send(Event::Order(Order::End(String::new()), BTreeMap::new()));
            }
            (Task::Deliver(files), Side::Other(_)) => self.outbox = Store::pieces(files),
            (Task::Planted { step, fault, told }, Side::Other(other)) => {
                // A broken connection is noticed when it is read.
                let _ = send(&mut other.letters, &Letter::Planted { step, fault });
                drop(told);
            }
            (Task::End(_) | Task::History(_), Side::Other(_))
            | (Task::Deliver(_) | Task::Ready | Task::Planted { .. }, Side::First(_)) => {}
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

/// The longest time between two looks that counts: more means that this launcher itself stood still, and heard nobody.
const LONGEST_LOOK: Nanos = Nanos(250_000_000);

/// How long somebody has been silent while this launcher listened.
#[derive(Default)]
pub(super) struct Silence {
    looked: Option<Nanos>,
    silent: Nanos,
}

impl Silence {
    /// Takes note of whether something was heard; for how long nothing has been.
    pub fn look(&mut self, is_heard: bool, now: Nanos) -> Nanos {
        let passed = self.looked.map_or(Nanos(0), |last| now.since(last).min(LONGEST_LOOK));
        self.looked = Some(now);
        self.silent = if is_heard { Nanos(0) } else { self.silent + passed };
        self.silent
    }
}

/// What there is to tell the launcher.
#[derive(Default)]
pub(super) struct Heard(pub Vec<Event>);

impl Heard {
    pub fn log(&mut self, host: Host, at: Nanos, change: HostChange) {
        self.0.push(Event::Log(LauncherEvent::Host(HostEvent { host, at, change })));
    }
}

impl Keeper {
    fn wants_write(&self) -> bool {
        match &self.side {
            Side::First(first) => first.callers.iter().any(|caller| caller.letters.wants_write()),
            Side::Other(other) => other.letters.wants_write(),
        }
    }

    fn tend(&mut self, outbox: &mut VecDeque<Letter>, heard: &mut Heard, now: Nanos) {
        let Self { run, lease, lobby, side, .. } = self;
        match side {
            Side::First(first) => first.tend(*run, *lease, lobby, heard, now),
            Side::Other(other) => {
                let Other { door, letters, silence, is_cut, first, .. } = &mut **other;
                while let Some(visitor) = door.as_ref().and_then(Door::next) {
                    if let Ok(Greeting::Data { run: told, generation, from }) =
                        serde_json::from_slice(&visitor.greeting)
                        && told == *run
                    {
                        lobby.put(generation, from, visitor.stream);
                    }
                }
                if *is_cut {
                    return;
                }
                let why = match listen(letters, *first, outbox, heard) {
                    Ok(count) => {
                        let silent = silence.look(count > 0, now);
                        if silent <= *lease + SLACK {
                            return;
                        }
                        format!("it was silent for {:.1} s", silent.seconds())
                    }
                    Err(why) => why,
                };
                *is_cut = true;
                let why = format!(
                    "the first host ({first}) cannot be reached: {why}; the hosts of this run meet there, so this one ends (with --elastic, a run \
                     outlives the loss of any other host)"
                );
                heard.0.push(Event::Order(Order::End(why), BTreeMap::new()));
            }
        }
    }
}

/// What the first host says to another one. Gives the number of letters.
fn listen(
    letters: &mut Letters,
    first: Address,
    outbox: &mut VecDeque<Letter>,
    heard: &mut Heard,
) -> Result<usize, String> {
    let came = letters.progress().map_err(|error| error.to_string())?;
    for bytes in &came {
        match Letter::read(bytes)? {
            Letter::Order { order, doors } => {
                let mut doors: BTreeMap<Host, SocketAddr> = doors.into_iter().collect();
                // The first host's door is where this one found it, unless it has another one for bytes.
                if let Some(first) = first.socket() {
                    doors.entry(Host(0)).or_insert(first);
                }
                heard.0.push(Event::Order(order, doors));
            }
            Letter::Ping { sent } => {
                let pong = Letter::Pong { sent, there: clock::now() };
                // A broken connection is noticed when it is read, after what the first host said last.
                let _ = send(letters, &pong);
            }
            Letter::Stored { is_last } => heard.0.push(Event::Stored(is_last)),
            Letter::SentAway { why } => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_come_often_however_long_the_lease() {
        for (lease, expected) in [(200, 25), (1000, 125), (2000, 200), (30_000, 200), (3_600_000, 200)] {
            assert_eq!(beat(Nanos(lease * 1_000_000)), Nanos(expected * 1_000_000), "{lease} ms");
        }
        assert!(LONGEST_BEAT < LONGEST_LOOK);
    }

    #[test]
    fn silence_counts_only_while_somebody_listens() {
        let mut silence = Silence::default();
        let milli = |millis: u64| Nanos(millis * 1_000_000);
        assert_eq!(silence.look(true, milli(0)), Nanos(0));
        assert_eq!(silence.look(false, milli(100)), milli(100));
        // The machine stood still for an hour.
        assert_eq!(silence.look(false, milli(3_600_100)), milli(350));
        assert_eq!(silence.look(true, milli(3_600_200)), Nanos(0));
    }
}
