//! Keeps what etcd knows of this host up to date, in a thread of its own: however long etcd takes to answer, nobody else waits for it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_comm::CommError;
use paceline_comm::etcd::{FirstNote, HostNote, Look, Registry};
use paceline_comm::tasks::Bell;
use paceline_comm::tasks::registry::{Entry, Record};
use paceline_record::{Host, Nanos};

use crate::{TrainError, clock};

/// How often etcd is looked at, and the lease kept.
const TURN: Duration = Duration::from_millis(300);

/// The shortest lease that etcd gives, in seconds.
const SHORTEST_LEASE: u64 = 2;

/// What etcd says to a roster that is to be written down: its number, or what is there instead.
pub(super) type Answer = Result<u64, Option<Entry>>;

/// This host's clerk at etcd. Its lease is given back when it is dropped.
pub struct Registrar {
    desk: Arc<Desk>,
    place: String,
    thread: Option<JoinHandle<()>>,
    /// How long this host's keys outlive it at most.
    lease: Nanos,
}

#[derive(Default)]
struct Desk {
    papers: Mutex<Papers>,
    changed: Condvar,
}

/// What was asked for, and what was found.
#[derive(Default)]
struct Papers {
    entered: Option<(Host, HostNote)>,
    leads: Option<FirstNote>,
    swap: Option<(u64, Record)>,
    /// It is over; the roster of this change goes, too.
    over: Option<Option<u64>>,
    is_called: bool,
    looked: Option<(Nanos, Look)>,
    /// Turns done.
    turns: u64,
    answer: Option<(u64, Record, Answer)>,
    /// Since when it has not answered, and what came instead.
    fault: Option<(Nanos, CommError)>,
    bell: Option<Bell>,
}

impl Desk {
    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registrar {
    /// Begins to look after a job's keys. A host's keys go when it has not been heard of for so long.
    pub fn start(registry: Registry, lease: Nanos) -> Result<Self, TrainError> {
        let seconds = (lease.seconds().ceil() as u64).max(SHORTEST_LEASE);
        let desk = Arc::new(Desk::default());
        let (place, at_desk) = (registry.place(), desk.clone());
        let work = move || work(registry, &at_desk, seconds);
        let thread = thread::Builder::new().name("registrar".into()).spawn(work);
        let thread = Some(thread.map_err(TrainError::system("start a thread"))?);
        Ok(Self { desk, place, thread, lease: Nanos(seconds * 1_000_000_000) })
    }

    /// A number that is hardly drawn twice.
    pub fn number() -> u64 {
        clock::now().0
    }

    /// Where etcd is, in words.
    pub fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn lease(&self) -> Nanos {
        self.lease
    }

    /// Who is to be told of every answer.
    pub(super) fn ring(&self, bell: Bell) {
        self.desk.papers().bell = Some(bell);
    }

    /// What is there now, or why that cannot be told. Waits for it.
    pub fn look_now(&self, until: Instant) -> Result<Look, CommError> {
        let mut papers = self.desk.papers();
        // The turn that is under way may have looked already.
        let wanted = papers.turns + 2;
        loop {
            if papers.turns >= wanted
                && let Some((_, look)) = &papers.looked
            {
                return Ok(look.clone());
            }
            let is_final = |error: &CommError| !matches!(error, CommError::NoEtcd { .. });
            if let Some((since, error)) =
                papers.fault.take_if(|(_, error)| is_final(error) || Instant::now() >= until)
            {
                let (at, why) = match &error {
                    CommError::NoEtcd { at, why } => (at.clone(), why.clone()),
                    error => (self.place.clone(), error.to_string()),
                };
                papers.fault = Some((since, CommError::NoEtcd { at, why }));
                return Err(error);
            }
            papers.is_called = true;
            self.desk.changed.notify_all();
            papers = self.desk.changed.wait_timeout(papers, TURN).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What was last seen there, and when.
    pub(super) fn looked(&self) -> Option<(Nanos, Look)> {
        self.desk.papers().looked.clone()
    }

    /// Since when etcd has not answered, and what came instead.
    pub(super) fn fault(&self) -> Option<(Nanos, String)> {
        self.desk.papers().fault.as_ref().map(|(since, error)| (*since, error.to_string()))
    }

    /// Says that this host is there.
    pub(super) fn enter(&self, host: Host, note: HostNote) {
        self.desk.papers().entered = Some((host, note));
        self.call();
    }

    /// Becomes and stays first, where nobody else is; or does not any more.
    pub fn lead(&self, note: Option<FirstNote>) {
        self.desk.papers().leads = note;
        self.call();
    }

    /// Asks for a roster to be written down in the place of that change, and again until there is an answer.
    pub(super) fn swap(&self, known: u64, record: &Record) -> Option<Answer> {
        let mut papers = self.desk.papers();
        if let Some((_, _, answer)) = papers.answer.take_if(|(to, of, _)| *to == known && of == record) {
            papers.swap = None;
            return Some(answer);
        }
        if papers.swap.as_ref().is_none_or(|(to, of)| *to != known || of != record) {
            papers.swap = Some((known, record.clone()));
            drop(papers);
            self.call();
        }
        None
    }

    /// Takes this host's keys away, and the roster, if that is still this change.
    pub(super) fn leave(&self, roster: Option<u64>) {
        self.desk.papers().over.get_or_insert(roster);
        self.call();
    }

    fn call(&self) {
        self.desk.papers().is_called = true;
        self.desk.changed.notify_all();
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.leave(None);
        if let Some(thread) = self.thread.take() {
            // Its panic was printed by its own thread. It waits for the answers of a turn and of what takes keys away, each of which has a
            // deadline.
            let _ = thread.join();
        }
    }
}

fn work(mut registry: Registry, desk: &Desk, seconds: u64) {
    loop {
        let mut papers = desk.papers();
        if !papers.is_called {
            papers = desk.changed.wait_timeout(papers, TURN).unwrap_or_else(PoisonError::into_inner).0;
        }
        papers.is_called = false;
        if let Some(roster) = papers.over {
            drop(papers);
            // Where it does not answer, leases run out by themselves.
            let _ = registry.clear(roster);
            return;
        }
        let asked = (papers.entered.clone(), papers.leads.clone(), papers.swap.clone());
        drop(papers);
        let turned = turn(&mut registry, seconds, &asked);
        let mut papers = desk.papers();
        match turned {
            Ok((look, answer)) => {
                papers.looked = Some((clock::now(), look));
                papers.answer = answer.zip(asked.2).map(|(answer, (known, record))| (known, record, answer));
                papers.fault = None;
            }
            Err(error) => {
                let since = papers.fault.take().map_or_else(clock::now, |(since, _)| since);
                papers.fault = Some((since, error));
            }
        }
        papers.turns += 1;
        papers.bell.iter().for_each(Bell::ring);
        let is_failing = papers.fault.is_some();
        drop(papers);
        desk.changed.notify_all();
        if is_failing {
            thread::sleep(TURN / 2);
        }
    }
}

type Asked = (Option<(Host, HostNote)>, Option<FirstNote>, Option<(u64, Record)>);

/// Keeps the lease, says again what is not there any more, and asks for what is wanted.
fn turn(
    registry: &mut Registry,
    seconds: u64,
    (entered, leads, swap): &Asked,
) -> Result<(Look, Option<Answer>), CommError> {
    let is_new = registry.keep(seconds)?;
    let mut look = registry.look()?;
    if let Some((host, note)) = entered
        && (is_new || look.hosts.get(host) != Some(note))
    {
        registry.enter(*host, note)?;
        look.hosts.insert(*host, note.clone());
    }
    if let Some(note) = leads
        && look.first.is_none()
    {
        look.first = Some(registry.claim(note)?);
    }
    let answer = swap.as_ref().map(|(known, record)| registry.swap(*known, record)).transpose()?;
    Ok((look, answer))
}
