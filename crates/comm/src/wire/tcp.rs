//! A wire of TCP streams.
//!
//! A message is cut into chunks, which the streams of its peer take one by one, each when it has room. Their bytes go from
//! the sender's memory to the socket, and from the socket to the receiver's memory, without another copy unless they are
//! encrypted.

pub(super) mod incoming;
mod outgoing;

use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use paceline_record::Host;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::net::sockopt;

use self::incoming::{Reader, Unfinished};
use self::outgoing::{Queue, Writer};
use super::call::timespec;
use super::{Inbox, Secrecy, Stream, Tag, Wire};
use crate::CommError;

/// Bytes that a stream reads, and that it writes, before it is the next one's turn.
const TURN: usize = 1 << 20;

/// Events that are asked for at a time.
const EVENTS: usize = 64;

/// Sizes of a wire's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of a chunk. All hosts must have the same.
    pub chunk: usize,
    /// Bytes of each socket's buffers; `None` leaves them to the system, which lets them grow.
    pub buffer: Option<usize>,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { chunk: 256 << 10, buffer: None }
    }
}

/// A [`Wire`] of TCP streams, one or more to each peer.
pub struct Tcp {
    hosts: Vec<Host>,
    peers: Vec<Peer>,
    sizes: Sizes,
    epoll: OwnedFd,
    /// The peer whose turn is first.
    first: usize,
}

/// One peer.
struct Peer {
    host: Host,
    /// Empty once it is lost.
    lanes: Vec<Lane>,
    queue: Queue,
    unfinished: Unfinished,
}

/// One stream of a peer.
struct Lane {
    stream: Stream,
    reader: Reader,
    writer: Writer,
    /// Messages whose last bytes the stream has taken, and perhaps not given to the socket yet.
    taken: Vec<Tag>,
    /// Until the socket says otherwise.
    is_readable: bool,
    is_writable: bool,
    /// The socket has come to its end, so that no event will tell of that again.
    is_ending: bool,
    /// All that will ever come has come.
    is_over: bool,
}

impl Tcp {
    /// A wire over these streams, at least one to each host.
    ///
    /// # Errors
    /// If the system refuses.
    ///
    /// # Panics
    /// If a host has no stream, or if a chunk has no bytes or 4 GiB.
    pub fn new(peers: Vec<(Host, Vec<Stream>)>, sizes: Sizes) -> Result<Self, CommError> {
        assert!(sizes.chunk > 0 && u32::try_from(sizes.chunk).is_ok(), "chunks of {} bytes", sizes.chunk);
        let what = "make a wire";
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(CommError::system(what))?;
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        for (place, (host, streams)) in peers.iter().enumerate() {
            assert!(!streams.is_empty(), "host {} has no stream", host.0);
            for (lane, stream) in streams.iter().enumerate() {
                if let Some(buffer) = sizes.buffer {
                    sockopt::set_socket_send_buffer_size(stream, buffer).map_err(CommError::system(what))?;
                    sockopt::set_socket_recv_buffer_size(stream, buffer).map_err(CommError::system(what))?;
                }
                let data = epoll::EventData::new_u64((place as u64) << 32 | lane as u64);
                epoll::add(&epoll, stream, data, flags).map_err(CommError::system(what))?;
            }
        }
        let hosts = peers.iter().map(|(host, _)| *host).collect();
        let peers = peers.into_iter().map(|(host, streams)| Peer::new(host, streams, sizes)).collect();
        Ok(Self { hosts, peers, sizes, epoll, first: 0 })
    }

    /// Moves what can be moved without waiting; whether that was anything.
    fn turn(&mut self, inbox: &mut dyn Inbox) -> bool {
        let count = self.peers.len();
        let mut has_moved = false;
        for place in 0..count {
            has_moved |= self.peers[(self.first + place) % count].turn(inbox);
        }
        self.first = (self.first + 1) % count.max(1);
        has_moved
    }

    /// Whether something can be moved that no event will tell of.
    fn is_ready(&self) -> bool {
        self.peers.iter().any(|peer| peer.lanes.iter().any(|lane| lane.is_ready(&peer.queue)))
    }

    fn wait(&mut self, bell: BorrowedFd<'_>, wait: Duration) -> Result<(), CommError> {
        let mut polled =
            [PollFd::new(&self.epoll, PollFlags::IN), PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        match poll(&mut polled, Some(&timespec(wait))) {
            Ok(_) => {}
            // A signal is something to look at, too.
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(CommError::system("wait for other hosts")(error)),
        }
        if polled[0].revents().is_empty() {
            return Ok(());
        }
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let (events, _) = match epoll::wait(&self.epoll, &mut events, Some(&timespec(Duration::ZERO))) {
            Err(Errno::INTR) => return Ok(()),
            events => events.map_err(CommError::system("wait for other hosts"))?,
        };
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            let peer = &mut self.peers[(data >> 32) as usize];
            if let Some(lane) = peer.lanes.get_mut(data as u32 as usize) {
                let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                lane.is_ending |= flags.intersects(ends);
                lane.is_readable |= flags.intersects(ends | epoll::EventFlags::IN);
                lane.is_writable |= flags.intersects(ends | epoll::EventFlags::OUT);
            }
        }
        Ok(())
    }
}

impl Wire for Tcp {
    fn peers(&self) -> &[Host] {
        &self.hosts
    }

    unsafe fn send(&mut self, peer: Host, tag: Tag, from: *const u8, len: usize) {
        if let Some(peer) = self.peers.iter_mut().find(|known| known.host == peer && !known.lanes.is_empty())
        {
            // SAFETY: the caller keeps the bytes until this peer's queue is done with them or gone.
            unsafe { peer.queue.push(tag, from, len, self.sizes.chunk) };
        }
    }

    fn progress(
        &mut self,
        inbox: &mut dyn Inbox,
        bell: BorrowedFd<'_>,
        wait: Duration,
    ) -> Result<(), CommError> {
        if self.turn(inbox) {
            return Ok(());
        }
        let wait = if self.is_ready() { Duration::ZERO } else { wait };
        self.wait(bell, wait)?;
        self.turn(inbox);
        Ok(())
    }
}

impl fmt::Debug for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tcp").field("hosts", &self.hosts).field("sizes", &self.sizes).finish()
    }
}

impl Peer {
    fn new(host: Host, streams: Vec<Stream>, sizes: Sizes) -> Self {
        let lane = |stream| Lane {
            stream,
            reader: Reader::new(),
            writer: Writer::new(),
            taken: Vec::new(),
            is_readable: true,
            is_writable: true,
            is_ending: false,
            is_over: false,
        };
        Self {
            host,
            lanes: streams.into_iter().map(lane).collect(),
            queue: Queue::new(),
            unfinished: Unfinished::new(host, sizes.chunk),
        }
    }

    fn turn(&mut self, inbox: &mut dyn Inbox) -> bool {
        let mut has_moved = false;
        for lane in &mut self.lanes {
            let moved = lane
                .read(&mut self.unfinished, inbox)
                .and_then(|read| Ok(lane.write(self.host, &mut self.queue, inbox)? | read));
            match moved {
                Ok(moved) => has_moved |= moved,
                Err(why) => {
                    self.lose(&why, inbox);
                    return true;
                }
            }
        }
        // Streams end one by one, and what is still in another one counts.
        if !self.lanes.is_empty() && self.lanes.iter().all(|lane| lane.is_over) {
            let is_torn = !self.unfinished.is_empty();
            self.lose(
                if is_torn {
                    "it closed its connections within a message"
                } else {
                    "it closed its connections"
                },
                inbox,
            );
            return true;
        }
        has_moved
    }

    /// Closes all that there is of the peer.
    fn lose(&mut self, why: &str, inbox: &mut dyn Inbox) {
        self.lanes.clear();
        self.queue = Queue::new();
        self.unfinished.clear();
        inbox.lost(self.host, why);
    }
}

impl Lane {
    fn is_ready(&self, queue: &Queue) -> bool {
        self.has_read() || (self.is_writable && (self.writer.is_busy() || queue.has_chunk()))
    }

    fn has_read(&self) -> bool {
        !self.is_over && (self.is_readable || self.stream.holds_read())
    }

    /// Reads for one turn; whether anything came.
    fn read(&mut self, unfinished: &mut Unfinished, inbox: &mut dyn Inbox) -> Result<bool, String> {
        let mut read = 0;
        while self.has_read() && read < TURN {
            let [payload, head] = self.reader.room();
            let room = payload.len() + head.len();
            match self.stream.read(&mut [IoSliceMut::new(payload), IoSliceMut::new(head)]) {
                Ok(0) if self.reader.is_between() => {
                    self.is_over = true;
                    break;
                }
                Ok(0) => return Err("it closed a connection within a message".into()),
                Ok(came) => {
                    self.reader.advance(came, unfinished, inbox)?;
                    read += came;
                    // A socket that gives less than it was asked for is empty; an end that is there already is not told again.
                    if came < room && self.stream.secrecy() == Secrecy::Plain && !self.is_ending {
                        self.is_readable = false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_readable = false,
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(read > 0)
    }

    /// Writes for one turn; whether anything went.
    fn write(&mut self, host: Host, queue: &mut Queue, inbox: &mut dyn Inbox) -> Result<bool, String> {
        let mut written = 0;
        while self.is_writable && written < TURN {
            if !self.writer.is_busy() && !self.writer.begin(queue, !self.stream.is_sound()) {
                break;
            }
            match self.stream.write(&self.writer.parts()) {
                Ok(went) => {
                    written += went;
                    self.taken.extend(self.writer.advance(went, queue));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) => return Err(error.to_string()),
            }
        }
        if self.is_writable || !self.taken.is_empty() {
            self.is_writable &= self.stream.flush().map_err(|error| error.to_string())?;
            if self.stream.is_flushed() {
                self.taken.drain(..).for_each(|tag| inbox.sent(host, tag));
            }
        }
        Ok(written > 0)
    }
}
