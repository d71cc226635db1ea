//! The side of connections that is called.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::call::timespec;
use super::meeting::{Failure, Meeting};
use super::{Stream, Terms};
use crate::CommError;

mod complaints;

use complaints::Complaints;

/// What a door allows its callers.
pub(super) struct Rules {
    /// Handshakes under way at a time. More callers wait in the system's queue.
    pub meetings: usize,
    /// How long a handshake may take.
    pub patience: Duration,
    /// How long a caller that shows no secret is kept while others wait.
    pub grace: Duration,
}

const RULES: Rules =
    Rules { meetings: 64, patience: Duration::from_secs(5), grace: Duration::from_millis(50) };

/// Callers that wait in the system's queue. Where it is full, the system makes callers wait for a second and try again.
const QUEUE: i32 = 1024;

/// Visitors that wait to be asked in. While so many do, nobody else is let in.
const MOST_VISITORS: usize = 256;

/// How long nobody is let in after the system refused to.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket, and a thread that does the handshakes of its callers.
///
/// It can be polled: it is readable while a visitor is there.
pub struct Door {
    address: SocketAddr,
    hall: Arc<Hall>,
    keeper: Option<JoinHandle<()>>,
}

/// A caller that has shown the secret.
#[derive(Debug)]
pub struct Visitor {
    /// What it said of itself.
    pub greeting: Vec<u8>,
    /// The connection with it.
    pub stream: Stream,
    /// Its address.
    pub from: SocketAddr,
}

/// What a door's thread and its owner share.
struct Hall {
    visitors: Mutex<VecDeque<Visitor>>,
    /// Readable while there are visitors.
    bell: OwnedFd,
    /// Readable once the thread is to look up: the door closes, or there is room for visitors again.
    call: OwnedFd,
    closed: AtomicBool,
}

impl Hall {
    fn visitors(&self) -> MutexGuard<'_, VecDeque<Visitor>> {
        self.visitors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ring(bell: &OwnedFd) {
    // It fails only where the count is at its end, and then it is readable.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

fn silence(bell: &OwnedFd) {
    // It fails only where it is silent.
    let _ = rustix::io::read(bell, &mut [0; 8]);
}

impl Door {
    /// Listens at an address; port 0 is any free one. `tell` gets a line for each caller that is sent away, or one for many.
    ///
    /// # Errors
    /// [`NoDoor`](CommError::NoDoor) if it cannot listen there.
    pub fn open(
        address: SocketAddr,
        terms: &Terms,
        tell: impl Fn(String) + Send + 'static,
    ) -> Result<Self, CommError> {
        Self::open_with(address, terms, RULES, tell)
    }

    pub(super) fn open_with(
        address: SocketAddr,
        terms: &Terms,
        rules: Rules,
        tell: impl Fn(String) + Send + 'static,
    ) -> Result<Self, CommError> {
        let no_door = |source: io::Error| CommError::NoDoor { address, source };
        let listener = TcpListener::bind(address).map_err(no_door)?;
        listener.set_nonblocking(true).map_err(no_door)?;
        // Again, with a longer queue than the standard library asks for.
        rustix::net::listen(&listener, QUEUE).map_err(|error| no_door(error.into()))?;
        let bound = listener.local_addr().map_err(no_door)?;
        let bell = || {
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
                .map_err(CommError::system("make an event"))
        };
        let hall =
            Arc::new(Hall { visitors: Mutex::default(), bell: bell()?, call: bell()?, closed: false.into() });
        let keeper = Keeper {
            listener,
            terms: terms.clone(),
            rules,
            hall: hall.clone(),
            meetings: VecDeque::new(),
            complaints: Complaints::new(tell),
            pause: None,
        };
        let keeper = thread::Builder::new().name("door".into()).spawn(move || keeper.run());
        let keeper = Some(keeper.map_err(CommError::system("start the thread of a door"))?);
        Ok(Self { address: bound, hall, keeper })
    }

    /// Where it listens, with the port that it has.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next visitor, if one is there.
    pub fn next(&self) -> Option<Visitor> {
        let mut visitors = self.hall.visitors();
        let visitor = visitors.pop_front();
        if visitors.is_empty() {
            silence(&self.hall.bell);
        }
        if visitors.len() + 1 == MOST_VISITORS {
            ring(&self.hall.call);
        }
        visitor
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.hall.bell.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.hall.closed.store(true, Ordering::Release);
        ring(&self.hall.call);
        if let Some(keeper) = self.keeper.take() {
            // Its panic was printed by its own thread.
            let _ = keeper.join();
        }
    }
}

/// A handshake with its beginning.
struct Guest {
    meeting: Meeting,
    since: Instant,
}

/// The thread of a door.
struct Keeper<T> {
    listener: TcpListener,
    terms: Terms,
    rules: Rules,
    hall: Arc<Hall>,
    /// The oldest first.
    meetings: VecDeque<Guest>,
    complaints: Complaints<T>,
    /// Nobody is let in until then.
    pause: Option<Instant>,
}

impl<T: Fn(String)> Keeper<T> {
    fn run(mut self) {
        let mut ready = Vec::new();
        while !self.hall.closed.load(Ordering::Acquire) {
            let knocked = self.wait(&mut ready);
            let now = Instant::now();
            self.meet(&ready, now);
            self.send_away_late(now);
            match knocked {
                Ok(true) => self.let_in(now),
                Ok(false) => {}
                Err(error) => {
                    self.complaints.note(now, || format!("cannot wait for callers: {error}"));
                    thread::sleep(PAUSE);
                }
            }
            self.complaints.look(now);
        }
        self.complaints.close();
    }

    /// Waits until there is something to do; `ready` are the meetings that can go on, by their place. Whether somebody
    /// knocks.
    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<bool> {
        ready.clear();
        if let Some(cut) = self.terms.cable.is_cut_for() {
            self.stand_still(cut)?;
            return Ok(false);
        }
        let now = Instant::now();
        let is_open =
            self.pause.is_none_or(|until| until <= now) && self.hall.visitors().len() < MOST_VISITORS;
        let has_room = self.meetings.len() < self.rules.meetings || self.idle(now).is_some();
        let silent = self.meetings.iter().find(|guest| !guest.meeting.is_promising());
        let moments = [
            self.meetings.front().map(|guest| guest.since + self.rules.patience),
            silent.filter(|_| !has_room).map(|guest| guest.since + self.rules.grace),
            self.pause.filter(|until| *until > now),
            self.complaints.due(),
        ];
        let until = moments.into_iter().flatten().min();
        let timeout = until.map(|until| timespec(until.saturating_duration_since(now)));
        let interests: Vec<PollFlags> =
            self.meetings.iter_mut().map(|guest| guest.meeting.interest()).collect();
        let mut polled = Vec::with_capacity(2 + self.meetings.len());
        polled.push(PollFd::new(&self.hall.call, PollFlags::IN));
        polled.extend(
            self.meetings
                .iter()
                .zip(interests)
                .map(|(guest, interest)| PollFd::new(&guest.meeting, interest)),
        );
        if is_open && has_room {
            polled.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !polled[0].revents().is_empty() {
            silence(&self.hall.call);
        }
        let meetings = &polled[1..1 + self.meetings.len()];
        ready.extend(meetings.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(i, _)| i));
        Ok(polled.get(1 + self.meetings.len()).is_some_and(|listener| !listener.revents().is_empty()))
    }

    /// Waits for the cable to be whole again, or to be called.
    fn stand_still(&self, cut: Duration) -> io::Result<()> {
        match poll(&mut [PollFd::new(&self.hall.call, PollFlags::IN)], Some(&timespec(cut.min(PAUSE)))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        silence(&self.hall.call);
        Ok(())
    }

    /// Goes on with the meetings that can.
    fn meet(&mut self, ready: &[usize], now: Instant) {
        // From behind, so that those to come keep their places.
        for &place in ready.iter().rev() {
            let guest = &mut self.meetings[place];
            let from = guest.meeting.other();
            match guest.meeting.advance() {
                Ok(None) => {}
                Ok(Some(shaken)) => {
                    let guest = self.meetings.remove(place).expect("invariant: it is there");
                    let stream = guest.meeting.into_stream(shaken.transport, &self.terms);
                    let mut visitors = self.hall.visitors();
                    visitors.push_back(Visitor { greeting: shaken.greeting, stream, from });
                    ring(&self.hall.bell);
                }
                Err(failure) => {
                    self.meetings.remove(place);
                    self.complaints.note(now, || match failure {
                        Failure::Refused(refusal) => format!("sent away {from}: {refusal}"),
                        Failure::Closed => {
                            format!("sent away {from}: it closed the connection in the handshake")
                        }
                        Failure::Broken(error) => format!("sent away {from}: {error}"),
                    });
                }
            }
        }
    }

    fn send_away_late(&mut self, now: Instant) {
        while let Some(guest) = self.meetings.pop_front_if(|guest| guest.since + self.rules.patience <= now) {
            let (from, patience) = (guest.meeting.other(), self.rules.patience.as_secs_f64());
            self.complaints.note(now, || format!("sent away {from}: no handshake within {patience} s"));
        }
    }

    /// Lets callers in while there is room for them.
    fn let_in(&mut self, now: Instant) {
        self.pause = None;
        while self.meetings.len() < self.rules.meetings || self.idle(now).is_some() {
            let result =
                self.listener.accept().and_then(|(socket, from)| Meeting::called(socket, from, &self.terms));
            match result {
                Ok(meeting) => {
                    if self.meetings.len() >= self.rules.meetings {
                        self.make_room(now);
                    }
                    self.meetings.push_back(Guest { meeting, since: now });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A caller that has gone before it was let in.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.complaints.note(now, || format!("cannot let anybody in: {error}"));
                    self.pause = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    /// The oldest that may be sent away for another.
    fn idle(&self, now: Instant) -> Option<usize> {
        self.meetings
            .iter()
            .position(|guest| !guest.meeting.is_promising() && guest.since + self.rules.grace <= now)
    }

    fn make_room(&mut self, now: Instant) {
        if let Some(guest) = self.idle(now).and_then(|place| self.meetings.remove(place)) {
            let from = guest.meeting.other();
            self.complaints
                .note(now, || format!("sent away {from}: it showed no secret while others waited"));
        }
    }
}
