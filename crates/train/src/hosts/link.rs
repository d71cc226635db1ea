//! Connections for the bytes of a roster: each pair of hosts has a few, and the later of the two calls.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_comm::Deadline;
use paceline_comm::mpi::{Mpi, Quay, Roster, Running};
use paceline_comm::wire::{Sizes, Stream, Tcp, Terms, call};
use paceline_record::Host;

use super::letter::Greeting;
use crate::TrainError;

/// Streams to each host.
const STREAMS: usize = 2;

/// How long other hosts may take to connect.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a single try may take, and the pause between two.
const TRY: Duration = Duration::from_millis(1000);
const PAUSE: Duration = Duration::from_millis(20);

/// Streams that have come before they are asked for.
const MOST_WAITING: usize = 4096;

/// Where streams wait that other hosts have made, until the porter asks for them.
#[derive(Default)]
pub(crate) struct Lobby {
    waiting: Mutex<BTreeMap<(u64, Host), Vec<Stream>>>,
    came: Condvar,
}

impl Lobby {
    pub fn put(&self, generation: u64, from: Host, stream: Stream) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.values().map(Vec::len).sum::<usize>() < MOST_WAITING {
            waiting.entry((generation, from)).or_default().push(stream);
        }
        self.came.notify_all();
    }

    /// All streams from a host, when all are there; `None` if it takes too long.
    fn take(&self, generation: u64, from: Host, until: Instant, stop: &AtomicBool) -> Option<Vec<Stream>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // What is left of older rosters will never be asked for.
            waiting.retain(|&(older, _), _| older >= generation);
            if waiting.get(&(generation, from)).is_some_and(|streams| streams.len() >= STREAMS) {
                return waiting.remove(&(generation, from));
            }
            if Instant::now() >= until || stop.load(Ordering::Relaxed) {
                return None;
            }
            waiting = self.came.wait_timeout(waiting, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What a roster's connections need.
pub(crate) struct Link {
    pub run: u64,
    pub generation: u64,
    pub own: Host,
    /// The other hosts, and where the doors of those are that are to be called.
    pub others: Vec<(Host, Option<SocketAddr>)>,
    pub terms: Terms,
}

/// A thread that carries bytes: one of its own, or that of MPI.
pub(crate) enum Carrying {
    Own(JoinHandle<()>),
    Lent(Running),
}

impl Carrying {
    /// Starts some work there.
    pub fn start(
        mpi: Option<&Arc<Mpi>>,
        work: impl FnOnce(Option<&mut Quay<'_>>) + Send + 'static,
    ) -> Result<Self, TrainError> {
        let Some(mpi) = mpi else {
            let thread = thread::Builder::new().name("porter".into()).spawn(move || work(None));
            return thread.map(Self::Own).map_err(TrainError::system("start a thread"));
        };
        Ok(Self::Lent(mpi.run(move |quay| work(Some(quay)))))
    }

    pub fn is_finished(&self) -> bool {
        match self {
            Self::Own(thread) => thread.is_finished(),
            Self::Lent(running) => running.is_finished(),
        }
    }

    pub fn join(self) {
        match self {
            // Its panic was printed by its own thread.
            Self::Own(thread) => drop(thread.join()),
            Self::Lent(running) => running.join(),
        }
    }
}

/// Why hosts are not connected.
pub(crate) enum Unlinked {
    /// Nobody wants them to be any more.
    Stopped,
    /// One of them cannot be reached.
    Missing(Host, String),
}

impl Link {
    /// What a wire through MPI is made for.
    pub fn roster(&self) -> Roster {
        let hosts = self.others.iter().map(|(host, _)| *host).collect();
        Roster { run: self.run, generation: self.generation, hosts }
    }

    /// Connects with all others over TCP.
    pub fn build(&self, lobby: &Lobby, stop: &AtomicBool) -> Result<Tcp, Unlinked> {
        let until = Instant::now() + PATIENCE;
        let mut peers = Vec::new();
        // Calls first: whoever is called waits for them.
        for &(host, door) in self.others.iter().filter(|(host, _)| *host < self.own) {
            let missing = |why: String| Unlinked::Missing(host, why);
            let door = door.ok_or_else(|| missing("its address is not known".into()))?;
            let streams = (0..STREAMS).map(|_| self.call(host, door, until, stop));
            peers.push((host, streams.collect::<Result<Vec<_>, _>>()?));
        }
        for &(host, _) in self.others.iter().filter(|(host, _)| *host > self.own) {
            let streams = lobby.take(self.generation, host, until, stop);
            let why =
                || Unlinked::Missing(host, format!("it has not connected within {} s", PATIENCE.as_secs()));
            let is_stopped = stop.load(Ordering::Relaxed);
            peers.push((host, streams.ok_or_else(|| if is_stopped { Unlinked::Stopped } else { why() })?));
        }
        let first = self.others.first().map_or(self.own, |(host, _)| *host);
        Tcp::new(peers, Sizes::default()).map_err(|error| Unlinked::Missing(first, error.to_string()))
    }

    fn call(
        &self,
        host: Host,
        door: SocketAddr,
        until: Instant,
        stop: &AtomicBool,
    ) -> Result<Stream, Unlinked> {
        let greeting = Greeting::Data { run: self.run, generation: self.generation, from: self.own };
        let greeting = serde_json::to_vec(&greeting).expect("invariant: plain data");
        loop {
            let error = match call(door, &self.terms, &greeting, Deadline::after(TRY)) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if stop.load(Ordering::Relaxed) {
                return Err(Unlinked::Stopped);
            }
            if Instant::now() >= until {
                return Err(Unlinked::Missing(host, error.to_string()));
            }
            thread::sleep(PAUSE);
        }
    }
}
