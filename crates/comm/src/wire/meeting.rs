//! A handshake on a socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use snow::TransportState;

use super::handshake::{Handshake, Shaken};
use super::stream::Stream;
use super::{Refusal, Terms};

/// A connection on which the handshake is under way. Nothing blocks.
pub(super) struct Meeting {
    socket: TcpStream,
    other: SocketAddr,
    handshake: Handshake,
}

/// What became of a handshake that failed.
pub(super) enum Failure {
    /// The two cannot talk.
    Refused(Refusal),
    /// The other side closed the connection.
    Closed,
    /// The system's answer.
    Broken(io::Error),
}

impl Meeting {
    /// Begins as the side that calls.
    pub fn calling(socket: TcpStream, other: SocketAddr, terms: &Terms, greeting: &[u8]) -> io::Result<Self> {
        Self::new(socket, other, Handshake::caller(terms, greeting))
    }

    /// Begins as the side that is called.
    pub fn called(socket: TcpStream, other: SocketAddr, terms: &Terms) -> io::Result<Self> {
        Self::new(socket, other, Handshake::door(terms))
    }

    fn new(socket: TcpStream, other: SocketAddr, handshake: Handshake) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, other, handshake })
    }

    /// The other side.
    pub fn other(&self) -> SocketAddr {
        self.other
    }

    /// Whether the other side has shown the secret, if only in a recording.
    pub fn is_promising(&self) -> bool {
        self.handshake.is_promising()
    }

    /// What to wait for.
    pub fn interest(&mut self) -> PollFlags {
        if self.handshake.out().is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    /// Goes on as far as the socket allows; `None` if that is not to the end.
    pub fn advance(&mut self) -> Result<Option<Shaken>, Failure> {
        loop {
            self.flush()?;
            if !self.handshake.out().is_empty() {
                return Ok(None);
            }
            if let Some(shaken) = self.handshake.finish() {
                return Ok(Some(shaken));
            }
            // No more than is wanted: what follows is the stream's.
            let mut bytes = [0; 4096];
            let wanted = self.handshake.wants().min(bytes.len());
            match self.socket.read(&mut bytes[..wanted]) {
                Ok(0) => return Err(Failure::Closed),
                Ok(read) => self.handshake.take(&bytes[..read]).map_err(|refusal| self.refuse(refusal))?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::Broken(error)),
            }
        }
    }

    /// The connection after the handshake that left this.
    pub fn into_stream(self, transport: TransportState, terms: &Terms) -> Stream {
        Stream::new(self.socket, self.other, terms, transport)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        while !self.handshake.out().is_empty() {
            match self.socket.write(self.handshake.out()) {
                Ok(written) => drop(self.handshake.out().drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::Broken(error)),
            }
        }
        Ok(())
    }

    /// Lets the other side know as far as it can be known without waiting.
    fn refuse(&mut self, refusal: Refusal) -> Failure {
        let _ = self.flush();
        let _ = self.socket.shutdown(Shutdown::Write);
        // A socket that is closed with unread bytes takes back what it sent.
        let _ = self.socket.read(&mut [0; 4096]);
        Failure::Refused(refusal)
    }
}

impl AsFd for Meeting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
