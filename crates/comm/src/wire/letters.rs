//! Small messages, over a stream or between ranks of MPI.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;

use super::{Address, Cable, Stream};
use crate::CommError;
use crate::mpi::RankLetters;

/// The longest letter in bytes.
pub const LONGEST_LETTER: usize = 16 << 20;

/// Bytes of letters that wait to be sent.
const MOST_WAITING: usize = 64 << 20;

/// About as many bytes are read in one call.
const MOST_READ: usize = 32 << 20;

/// Length and CRC-32C of a letter, both little-endian.
const HEAD: usize = 8;

/// Sends and receives letters, for loops that poll. Nothing blocks.
pub struct Letters {
    way: Way,
    /// What came with the [first](Letters::first).
    unread: Vec<Vec<u8>>,
}

enum Way {
    Stream(Box<StreamLetters>),
    Ranks(RankLetters),
}

impl Letters {
    /// Letters over a stream.
    pub fn new(stream: Stream) -> Self {
        Self { way: Way::Stream(Box::new(StreamLetters::new(stream))), unread: Vec::new() }
    }

    pub(crate) fn between_ranks(letters: RankLetters) -> Self {
        Self { way: Way::Ranks(letters), unread: Vec::new() }
    }

    /// Lets them go through a cable from now on, where they do not go over a stream, which has its own.
    pub fn set_cable(&mut self, cable: &Cable) {
        if let Way::Ranks(letters) = &mut self.way {
            letters.set_cable(cable);
        }
    }

    /// Where the other side is.
    pub fn other(&self) -> Address {
        match &self.way {
            Way::Stream(letters) => letters.stream.other().into(),
            Way::Ranks(letters) => letters.other(),
        }
    }

    /// Queues a letter of at most [`LONGEST_LETTER`] bytes and sends what can be sent at once.
    ///
    /// # Errors
    /// [`Disconnected`](CommError::Disconnected) if the connection broke, or if the other side does not read its letters.
    ///
    /// # Panics
    /// If the letter is too long.
    pub fn send(&mut self, letter: &[u8]) -> Result<(), CommError> {
        assert!(letter.len() <= LONGEST_LETTER, "a letter of {} bytes is too long", letter.len());
        match &mut self.way {
            Way::Stream(letters) => letters.send(letter),
            Way::Ranks(letters) => letters.send(letter),
        }
    }

    /// What to poll for.
    pub fn interest(&self) -> PollFlags {
        match &self.way {
            Way::Stream(letters) if letters.wants_write() => PollFlags::IN | PollFlags::OUT,
            // Between ranks they go by themselves.
            _ => PollFlags::IN,
        }
    }

    /// Whether something is still to be sent.
    pub fn wants_write(&self) -> bool {
        match &self.way {
            Way::Stream(letters) => letters.wants_write(),
            Way::Ranks(letters) => letters.is_waiting(),
        }
    }

    /// Sends what can be sent, and returns the letters that came.
    ///
    /// # Errors
    /// [`Disconnected`](CommError::Disconnected) if the connection broke, after the letters that came before that.
    pub fn progress(&mut self) -> Result<Vec<Vec<u8>>, CommError> {
        let mut all = mem::take(&mut self.unread);
        let came = match &mut self.way {
            Way::Stream(letters) => letters.progress(),
            Way::Ranks(letters) => letters.progress(),
        };
        match came {
            Ok(came) => all.extend(came),
            Err(error) if all.is_empty() => return Err(error),
            // It is said again.
            Err(_) => {}
        }
        Ok(all)
    }

    /// The same for the first letter alone, where who reads the next ones follows from it.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub fn first(&mut self) -> Result<Option<Vec<u8>>, CommError> {
        let mut came = self.progress()?.into_iter();
        let first = came.next();
        self.unread = came.collect();
        Ok(first)
    }

    /// The stream that nothing has been sent on yet; `None` where there is none.
    pub fn into_stream(self) -> Option<Stream> {
        match self.way {
            Way::Stream(letters) => Some(letters.stream),
            Way::Ranks(_) => None,
        }
    }
}

/// Letters over a stream.
struct StreamLetters {
    stream: Stream,
    outgoing: VecDeque<Vec<u8>>,
    /// Bytes of the first that are sent.
    sent: usize,
    /// Bytes of all of them that are not.
    waiting: usize,
    incoming: Incoming,
    /// Why nothing can be sent any more. What came before can still be read.
    mute: Option<String>,
    /// Why nothing can be read any more either.
    broken: Option<String>,
}

impl StreamLetters {
    fn new(stream: Stream) -> Self {
        Self {
            stream,
            outgoing: VecDeque::new(),
            sent: 0,
            waiting: 0,
            incoming: Incoming::default(),
            mute: None,
            broken: None,
        }
    }

    fn send(&mut self, letter: &[u8]) -> Result<(), CommError> {
        if self.waiting + HEAD + letter.len() > MOST_WAITING {
            self.broken =
                Some(format!("it does not read its letters, and {MOST_WAITING} bytes of them wait"));
        }
        self.check(self.broken.as_ref().or(self.mute.as_ref()))?;
        let mut bytes = Vec::with_capacity(HEAD + letter.len());
        bytes.extend((letter.len() as u32).to_le_bytes());
        bytes.extend(crc_fast::crc32_iscsi(letter).to_le_bytes());
        bytes.extend(letter);
        self.waiting += bytes.len();
        self.outgoing.push_back(bytes);
        self.write();
        self.check(self.mute.as_ref())
    }

    fn wants_write(&self) -> bool {
        self.mute.is_none() && (!self.outgoing.is_empty() || !self.stream.is_flushed())
    }

    fn progress(&mut self) -> Result<Vec<Vec<u8>>, CommError> {
        let mut letters = Vec::new();
        if self.stream.cable().is_cut_for().is_some() {
            return Ok(letters);
        }
        if self.broken.is_none() {
            self.write();
            self.broken = self.read(&mut letters).err();
        }
        if letters.is_empty() {
            self.check(self.broken.as_ref().or(self.mute.as_ref()))?;
        }
        Ok(letters)
    }

    fn check(&self, why: Option<&String>) -> Result<(), CommError> {
        match why {
            Some(why) => {
                Err(CommError::Disconnected { address: self.stream.other().into(), why: why.clone() })
            }
            None => Ok(()),
        }
    }

    /// Writes what can be written.
    fn write(&mut self) {
        if self.mute.is_none()
            && self.stream.cable().is_cut_for().is_none()
            && let Err(error) = self.try_write()
        {
            self.outgoing.clear();
            self.mute = Some(error.to_string());
        }
    }

    fn try_write(&mut self) -> io::Result<()> {
        while let Some(first) = self.outgoing.front() {
            match self.stream.write(&[IoSlice::new(&first[self.sent..])]) {
                Ok(written) => {
                    self.sent += written;
                    self.waiting -= written;
                    if self.sent == first.len() {
                        self.outgoing.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.stream.flush()?;
        Ok(())
    }

    fn read(&mut self, letters: &mut Vec<Vec<u8>>) -> Result<(), String> {
        let mut bytes = [0; 16 << 10];
        let mut read = 0;
        // What the stream holds must not stay behind: no poll would tell of it.
        while read < MOST_READ || self.stream.holds_read() {
            match self.stream.read(&mut [IoSliceMut::new(&mut bytes)]) {
                Ok(0) if self.incoming.is_between() => return Err("it closed the connection".into()),
                Ok(0) => return Err("it closed the connection within a letter".into()),
                Ok(came) => {
                    self.incoming.take(&bytes[..came], letters)?;
                    read += came;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }
}

impl AsFd for Letters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Stream(letters) => letters.stream.as_fd(),
            Way::Ranks(letters) => letters.as_fd(),
        }
    }
}

impl fmt::Debug for Letters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Letters").field("other", &self.other()).finish_non_exhaustive()
    }
}

/// The letter that comes, as far as it is there.
#[derive(Default)]
pub(super) struct Incoming {
    head: [u8; HEAD],
    headed: usize,
    letter: Vec<u8>,
}

impl Incoming {
    fn is_between(&self) -> bool {
        self.headed == 0
    }

    /// Bytes of memory that it has taken.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.letter.capacity()
    }

    /// Takes bytes as they come, and adds the letters that they complete.
    pub fn take(&mut self, mut bytes: &[u8], letters: &mut Vec<Vec<u8>>) -> Result<(), String> {
        loop {
            let (now, later) = bytes.split_at(bytes.len().min(HEAD - self.headed));
            self.head[self.headed..self.headed + now.len()].copy_from_slice(now);
            self.headed += now.len();
            if self.headed < HEAD {
                return Ok(());
            }
            let word = |at: usize| {
                u32::from_le_bytes(self.head[at..at + 4].try_into().expect("invariant: four bytes"))
            };
            let (length, sum) = (word(0) as usize, word(4));
            if length > LONGEST_LETTER {
                return Err(format!("it announced a letter of {length} bytes"));
            }
            // The letter grows as it comes, whatever was announced.
            let (now, rest) = later.split_at(later.len().min(length - self.letter.len()));
            self.letter.extend_from_slice(now);
            if self.letter.len() < length {
                return Ok(());
            }
            if crc_fast::crc32_iscsi(&self.letter) != sum {
                return Err("a letter was damaged on the way".into());
            }
            letters.push(mem::take(&mut self.letter));
            self.headed = 0;
            bytes = rest;
        }
    }
}
