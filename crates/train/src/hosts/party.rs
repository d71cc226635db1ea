//! A launcher's connections with other launchers, kept by a thread of their own: whatever the launcher is busy with, others hear that
//! it lives.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_comm::mpi::Mpi;
use paceline_comm::tasks::Bell;
use paceline_comm::tasks::authority::{Order, Word};
use paceline_comm::wire::Terms;
use paceline_record::{EvalRecord, Host, HostChange, HostEvent, LauncherEvent, Nanos, Step};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::first::First;
use super::letter::{Letter, send};
use super::link::Lobby;
use super::other::Other;
use super::registrar::Registrar;
use super::silence::beat;
use super::store::Store;
use crate::{TrainError, clock};

/// How long logs may take to be carried to the first host.
const CARRIED: Duration = Duration::from_secs(60);

/// The same where an MPI job is being ended: whoever asked for that does not wait for long.
const CARRIED_IN_HASTE: Duration = Duration::from_millis(200);

/// How long it may take to tell the first host of a fault.
const CONFESSED: Duration = Duration::from_secs(1);

/// What the launcher hears.
pub(crate) enum Event {
    /// What it is to do, and where the doors of other hosts are.
    Order(Order, BTreeMap<Host, SocketAddr>),
    /// The first host cannot be reached any more, and none takes its place.
    Cut,
    /// A host that was last heard then is lost.
    Missed(Nanos),
    /// What is to be logged.
    Log(LauncherEvent),
    /// What the user should know.
    Say(String),
    /// This host is the first from now on.
    Leads,
    /// All logs of other hosts are there.
    Gathered,
    /// The first host has this host's logs; whether it has no other run.
    Stored(bool),
}

enum Task {
    Ready,
    Word(Word),
    End(String),
    Close,
    HandOver,
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

/// What a launcher was to the others when it ended.
#[derive(Default)]
pub(crate) enum Parted {
    /// Alone, or it has ended before it met them.
    #[default]
    Alone,
    /// One of them; the first gets its logs through this.
    From(Party),
    /// The first, if not from the start.
    Led,
}

/// The launcher's side.
pub(crate) struct Party {
    pub host: Host,
    pub run: u64,
    pub terms: Terms,
    pub lease: Nanos,
    pub mpi: Option<Arc<Mpi>>,
    /// Whether others go on where the first host ends.
    pub hands_over: bool,
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
    pub hands_over: bool,
    pub registrar: Option<Arc<Registrar>>,
    pub lobby: Arc<Lobby>,
    pub side: Side,
}

pub(super) enum Side {
    First(Box<First>),
    Other(Box<Other>),
}

impl Party {
    pub(super) fn start(keeper: Keeper, launcher: &Bell) -> Result<Self, TrainError> {
        let (tasks, asked) = mpsc::channel();
        let (tell, events) = mpsc::channel();
        let call = Bell::create()?;
        let called = Bell::attach(call.descriptor())?;
        let launcher = Bell::attach(launcher.descriptor())?;
        if let Some(registrar) = &keeper.registrar {
            registrar.ring(Bell::attach(call.descriptor())?);
        }
        let Keeper { host, run, lease, hands_over, .. } = keeper;
        let (terms, lobby, mpi) = (keeper.terms.clone(), keeper.lobby.clone(), keeper.mpi.clone());
        let mut at_work = AtWork { keeper, tell, launcher, outbox: VecDeque::new(), leaving: false };
        let work = move || at_work.run(&asked, &called);
        let handle = std::thread::Builder::new().name("hosts".into()).spawn(work);
        let keeper = Some(handle.map_err(TrainError::system("start a thread"))?);
        Ok(Self { host, run, terms, lease, mpi, hands_over, lobby, tasks: Some(tasks), events, call, keeper })
    }

    pub fn lobby(&self) -> Arc<Lobby> {
        self.lobby.clone()
    }

    /// Whether this host is the first from the start.
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

    /// No other run follows, whatever was planned, on the first.
    pub fn close(&self) {
        self.ask(Task::Close);
    }

    /// Tells the others that one of them takes this host's place, on the first.
    pub fn hand_over(&self) {
        self.ask(Task::HandOver);
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
    pub fn gather(&self, is_interrupted: bool) -> Vec<LauncherEvent> {
        let is_hasty = is_interrupted && self.mpi.is_some();
        let until = Instant::now() + if is_hasty { CARRIED_IN_HASTE } else { CARRIED };
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
                Event::Cut => return None,
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
                let Other { door, letters, is_cut, .. } = &**other;
                files.extend(door.iter().map(|door| PollFd::from_borrowed_fd(door.as_fd(), PollFlags::IN)));
                // A broken connection is readable for ever.
                files.extend((!is_cut).then(|| PollFd::new(letters, letters.interest())));
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
            (Task::Word(word), Side::First(first)) => first.authority.hears(first.host, word, now),
            (Task::Word(word), Side::Other(other)) => {
                // A broken connection is noticed when it is read.
                let _ = send(&mut other.letters, &Letter::Word(word));
            }
            (Task::End(why), Side::First(first)) => first.authority.end(&why),
            (Task::Close, Side::First(first)) => first.is_last = true,
            (Task::HandOver, Side::First(first)) => first.hand_over(),
            (Task::History(history), Side::First(first)) => first.history = history,
            (Task::Deliver(_), Side::Other(other)) if other.is_cut => {
                // Nobody listens where the launcher has ended.
                let _ = self.tell.send(Event::Cut);
            }
            (Task::Deliver(files), Side::Other(_)) => self.outbox = Store::pieces(files),
            (Task::Planted { step, fault, told }, Side::Other(other)) => {
                // A broken connection is noticed when it is read.
                let _ = send(&mut other.letters, &Letter::Planted { step, fault });
                drop(told);
            }
            (Task::History(history), Side::Other(other)) => {
                other.heir.iter_mut().for_each(|heir| heir.history.clone_from(&history));
            }
            (Task::End(_) | Task::Close | Task::HandOver, Side::Other(_))
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
        if let Side::First(first) = &self.keeper.side {
            // Other runs of a study begin where this one ends.
            let register = first.register.iter().filter(|_| first.is_last || !first.authority.is_over());
            register.for_each(|register| register.leave(first.authority.is_over()));
        }
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
                other.take_visitors(*run, lobby);
                if let Some(entry) = other.tend(*lease, outbox, heard, now) {
                    let first = other.lead(entry, heard, now);
                    *side = Side::First(Box::new(first));
                }
            }
        }
    }
}
