//! A connection after its handshake.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use snow::TransportState;

use super::Secrecy;
use super::handshake::{RECORD, SEAL};

/// A record's length before its content.
const LENGTH: usize = 2;

/// Bytes of a record before they are encrypted.
const CONTENT: usize = RECORD - SEAL;

/// Encrypted bytes that are read or written at a time.
const SEALED: usize = 4 * (LENGTH + RECORD);

/// A connection whose two sides have shown each other the secret. Nothing blocks.
pub struct Stream {
    socket: TcpStream,
    other: SocketAddr,
    cipher: Option<Box<Cipher>>,
}

impl Stream {
    pub(super) fn new(
        socket: TcpStream,
        other: SocketAddr,
        secrecy: Secrecy,
        transport: TransportState,
    ) -> Self {
        let cipher = (secrecy == Secrecy::Encrypted).then(|| Box::new(Cipher::new(transport)));
        Self { socket, other, cipher }
    }

    /// The address of the other side.
    pub fn other(&self) -> SocketAddr {
        self.other
    }

    /// Whether bytes are encrypted.
    pub fn secrecy(&self) -> Secrecy {
        if self.cipher.is_some() { Secrecy::Encrypted } else { Secrecy::Plain }
    }

    /// Whether bytes arrive as they were sent: records of an encrypted stream are authenticated, and loopback is memory.
    pub(super) fn is_sound(&self) -> bool {
        self.cipher.is_some() || self.other.ip().is_loopback()
    }

    /// Reads into each buffer in turn what is there; 0 is the end. An error of the kind `WouldBlock` if nothing is there.
    pub(super) fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &mut self.cipher {
            None => retry(|| rustix::io::readv(&self.socket, into)),
            Some(cipher) => cipher.read(&self.socket, into),
        }
    }

    /// Whether [`read`](Self::read) has something that the socket does not know of any more.
    pub(super) fn holds_read(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.opened.has_some() || cipher.record().is_some())
    }

    /// Takes bytes of each buffer in turn to send them, and says how many. An error of the kind `WouldBlock` if it takes none
    /// now.
    pub(super) fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.cipher {
            None => send(&self.socket, from),
            Some(cipher) => cipher.write(&self.socket, from),
        }
    }

    /// Whether the socket has all that was taken.
    pub(super) fn is_flushed(&self) -> bool {
        self.cipher.as_ref().is_none_or(|cipher| !cipher.outgoing.has_some())
    }

    /// Sends what was taken and is not sent yet; whether that is all of it.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match &mut self.cipher {
            None => Ok(true),
            Some(cipher) => cipher.flush(&self.socket),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("other", &self.other).field("secrecy", &self.secrecy()).finish()
    }
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

fn send(socket: &TcpStream, from: &[IoSlice<'_>]) -> io::Result<usize> {
    // A lost peer is an error here and no signal to the process.
    retry(|| sendmsg(socket, from, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL))
}

/// Bytes that are filled in at one end and taken away at the other.
struct Shelf {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
}

impl Shelf {
    fn new(size: usize) -> Self {
        Self { bytes: vec![0; size].into(), begin: 0, end: 0 }
    }

    fn has_some(&self) -> bool {
        self.begin < self.end
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    fn take(&mut self, count: usize) {
        self.begin += count;
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Room behind what is filled, all of it at one piece.
    fn room(&mut self) -> &mut [u8] {
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        &mut self.bytes[self.end..]
    }
}

/// Records of a stream that is encrypted: a length in two bytes, and as many bytes.
struct Cipher {
    transport: TransportState,
    /// Records as they came.
    incoming: Shelf,
    /// The content of one record.
    opened: Shelf,
    /// Records that go out.
    outgoing: Shelf,
    /// What the next record is made of, where it does not lie at one piece.
    gathered: Box<[u8]>,
}

impl Cipher {
    fn new(transport: TransportState) -> Self {
        Self {
            transport,
            incoming: Shelf::new(SEALED),
            opened: Shelf::new(RECORD),
            outgoing: Shelf::new(SEALED),
            gathered: vec![0; CONTENT].into(),
        }
    }

    /// The length of the record that has come whole.
    fn record(&self) -> Option<usize> {
        let filled = self.incoming.filled();
        let length = usize::from(u16::from_le_bytes([*filled.first()?, *filled.get(1)?]));
        (filled.len() >= LENGTH + length).then_some(length)
    }

    fn read(&mut self, socket: &TcpStream, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut read = 0;
        for into in into {
            let mut at = 0;
            while at < into.len() {
                if self.opened.has_some() {
                    let count = self.opened.filled().len().min(into.len() - at);
                    into[at..at + count].copy_from_slice(&self.opened.filled()[..count]);
                    self.opened.take(count);
                    at += count;
                    read += count;
                } else if let Some(length) = self.record() {
                    self.open(length)?;
                } else if read > 0 {
                    return Ok(read);
                } else {
                    let came = retry(|| rustix::io::read(socket, self.incoming.room()))?;
                    if came == 0 {
                        return Ok(0);
                    }
                    self.incoming.end += came;
                }
            }
        }
        Ok(read)
    }

    fn open(&mut self, length: usize) -> io::Result<()> {
        let record = &self.incoming.filled()[LENGTH..LENGTH + length];
        let opened = self.transport.read_message(record, &mut self.opened.bytes);
        self.opened.end = opened
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a record was changed on the way"))?;
        self.incoming.take(LENGTH + length);
        Ok(())
    }

    fn write(&mut self, socket: &TcpStream, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush(socket)?;
        let mut taken = 0;
        let mut from = from.iter().map(|part| &part[..]).filter(|part| !part.is_empty());
        let mut part: &[u8] = &[];
        while self.outgoing.room().len() >= LENGTH + RECORD {
            let mut gathered = 0;
            while gathered < CONTENT {
                if part.is_empty() {
                    match from.next() {
                        Some(next) => part = next,
                        None => break,
                    }
                }
                let (now, later) = part.split_at(part.len().min(CONTENT - gathered));
                self.gathered[gathered..gathered + now.len()].copy_from_slice(now);
                gathered += now.len();
                part = later;
            }
            if gathered == 0 {
                break;
            }
            self.seal(gathered)?;
            taken += gathered;
        }
        if taken == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.flush(socket)?;
        Ok(taken)
    }

    fn seal(&mut self, length: usize) -> io::Result<()> {
        let room = self.outgoing.room();
        let sealed = self.transport.write_message(&self.gathered[..length], &mut room[LENGTH..]);
        let sealed = sealed.map_err(|error| io::Error::other(format!("cannot encrypt: {error}")))?;
        room[..LENGTH].copy_from_slice(&(sealed as u16).to_le_bytes());
        self.outgoing.end += LENGTH + sealed;
        Ok(())
    }

    fn flush(&mut self, socket: &TcpStream) -> io::Result<bool> {
        while self.outgoing.has_some() {
            match send(socket, &[IoSlice::new(self.outgoing.filled())]) {
                Ok(sent) => self.outgoing.take(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
