//! The side of a connection that begins it.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::meeting::{Failure, Meeting};
use super::{LONGEST_GREETING, Stream, Terms};
use crate::{CommError, Deadline};

/// Connects to a door and shows the secret there. The greeting, of at most [`LONGEST_GREETING`] bytes, is for whoever opened
/// the door. Both sides have shown each other the secret when this returns; the door may still close the connection.
///
/// # Errors
/// [`Unreached`](CommError::Unreached) if nobody answers before the deadline, and [`Refused`](CommError::Refused) if whoever
/// does is of another kind, version, secrecy or secret.
///
/// # Panics
/// If the greeting is too long.
pub fn call(
    address: SocketAddr,
    terms: &Terms,
    greeting: &[u8],
    deadline: Deadline,
) -> Result<Stream, CommError> {
    assert!(greeting.len() <= LONGEST_GREETING, "a greeting of {} bytes is too long", greeting.len());
    let unreached = |why: String| CommError::Unreached { address, why };
    let broken = |error: io::Error| match error.kind() {
        io::ErrorKind::TimedOut => unreached("no answer in time".into()),
        io::ErrorKind::ConnectionRefused => unreached("nobody listens there".into()),
        _ => unreached(error.to_string()),
    };
    if let Some(cut) = terms.cable.is_cut_for() {
        std::thread::sleep(cut.min(deadline.left()));
    }
    let left = deadline.left();
    if left.is_zero() {
        return Err(unreached("no answer in time".into()));
    }
    let socket = TcpStream::connect_timeout(&address, left).map_err(broken)?;
    let mut meeting = Meeting::calling(socket, address, terms, greeting).map_err(broken)?;
    loop {
        match meeting.advance() {
            Ok(Some(shaken)) => return Ok(meeting.into_stream(shaken.transport, terms)),
            Ok(None) => {}
            Err(Failure::Refused(refusal)) => return Err(CommError::Refused { address, refusal }),
            Err(Failure::Closed) => {
                return Err(unreached("it closed the connection in the handshake".into()));
            }
            Err(Failure::Broken(error)) => return Err(broken(error)),
        }
        let left = deadline.left();
        if left.is_zero() {
            return Err(unreached(
                "the handshake was not finished in time; perhaps something else listens there".into(),
            ));
        }
        let interest = meeting.interest();
        match poll(&mut [PollFd::new(&meeting, interest)], Some(&timespec(left))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(broken(error.into())),
        }
    }
}

/// A time to wait, for the system.
pub(crate) fn timespec(time: Duration) -> Timespec {
    // A day stands for ever: the system refuses what does not fit its own clock.
    let time = time.min(Duration::from_secs(86_400));
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as _ }
}
