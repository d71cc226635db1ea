//! How hosts talk: connections between launchers, and wires that copy bytes between them.
//!
//! Each launcher opens one [`Door`]; others [`call`] it. Both sides show that they know the job's [`Secret`] before a byte
//! of the job is read, and what they get is a [`Stream`]. [`Letters`] carries small messages over a stream; [`Tcp`] is a
//! [`Wire`], which copies large ones from memory to memory over several streams to each peer. Both can also go through
//! [MPI](crate::mpi).

mod cable;
mod call;
mod chunk;
mod door;
mod handshake;
mod letters;
mod meeting;
mod stream;
mod tcp;
mod terms;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use paceline_record::Host;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::CommError;

pub use cable::Cable;
pub use call::call;
pub(crate) use call::timespec;
pub use door::{Door, Visitor};
pub use handshake::{LONGEST_GREETING, Refusal};
pub use letters::{LONGEST_LETTER, Letters};
pub use stream::Stream;
pub use tcp::{Sizes, Tcp};
pub use terms::{Secrecy, Secret, Terms};

/// Where the other side of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// At an address of the network.
    Socket(SocketAddr),
    /// It is a rank of the same MPI job.
    Rank(u32),
}

impl Address {
    /// The address in the network, if it has one.
    pub fn socket(self) -> Option<SocketAddr> {
        match self {
            Self::Socket(address) => Some(address),
            Self::Rank(_) => None,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Socket(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Rank(rank) => write!(f, "rank {rank}"),
        }
    }
}

/// What a message is, for its receiver: a wire does not look into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub [u32; 6]);

/// Whatever copies bytes between the porters of hosts.
///
/// A wire is made for the hosts of one generation and dropped with it.
pub trait Wire {
    /// The hosts that it was made for, whether lost or not.
    fn peers(&self) -> &[Host];

    /// Queues a message for a peer; nothing comes of it if the peer is lost or none of [`peers`](Self::peers).
    ///
    /// Messages go out in about the order in which they were queued, and arrive in any. Of the messages that are on their way
    /// to a peer, no two may have the same tag.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, which nobody changes, until [`Inbox::sent`] was called with this tag or
    /// [`Inbox::lost`] with this peer, or the wire is dropped.
    unsafe fn send(&mut self, peer: Host, tag: Tag, from: *const u8, len: usize);

    /// Moves what can be moved now. If that is nothing, waits until something can be moved, `bell` is readable, or `wait`
    /// has passed.
    ///
    /// # Errors
    /// If the system refuses what every connection needs. A lost peer is not an error: the inbox hears of it.
    fn progress(
        &mut self,
        inbox: &mut dyn Inbox,
        bell: BorrowedFd<'_>,
        wait: Duration,
    ) -> Result<(), CommError>;

    /// Waits until `bell` is readable or `wait` has passed, or a little less, and moves no messages. What else goes the same way is moved.
    ///
    /// # Errors
    /// If the system refuses.
    fn idle(&mut self, bell: BorrowedFd<'_>, wait: Duration) -> Result<(), CommError> {
        doze(bell, wait)
    }
}

/// Sleeps until the bell is rung.
pub(crate) fn doze(bell: BorrowedFd<'_>, wait: Duration) -> Result<(), CommError> {
    match poll(&mut [PollFd::from_borrowed_fd(bell, PollFlags::IN)], Some(&timespec(wait))) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(CommError::system("wait for other hosts")(error)),
    }
}

/// Where a wire's messages go, and what it tells of them.
///
/// # Safety
/// What [`place`](Self::place) returns is valid for reads and writes of `len` initialised bytes that nobody else touches
/// until [`arrived`](Self::arrived) is called for that message, [`lost`](Self::lost) for that peer, or the wire is dropped.
pub unsafe trait Inbox {
    /// Where the bytes of a message go that begins to arrive; `None` if no such message is expected, and the peer is then
    /// lost.
    fn place(&mut self, peer: Host, tag: Tag, len: usize) -> Option<*mut u8>;

    /// All bytes of a message are in their place.
    fn arrived(&mut self, peer: Host, tag: Tag, len: usize);

    /// The bytes of a message are on their way and no longer read. The peer may not have them yet, but gets them even if the
    /// wire is dropped now, unless it sends something itself that is never read.
    fn sent(&mut self, peer: Host, tag: Tag);

    /// The peer's connections are closed, and nothing of it is read or written any more. Said once.
    fn lost(&mut self, peer: Host, why: &str);
}
