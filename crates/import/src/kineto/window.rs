//! A byte stream seen through a window that slides and grows if a value needs it.

use std::io::{self, Read};

use super::scan::{Cursor, Skip, Stop};

// Small in tests, so that small files slide and grow it.
const FIRST: usize = if cfg!(test) { 1 << 6 } else { 1 << 18 };
/// The largest value that is read whole.
pub const MOST: usize = 1 << 24;

/// Why nothing more is read.
#[derive(Debug)]
pub enum Halt {
    /// The stream ends here, possibly with an error.
    Ended(Option<io::Error>),
    /// The text is not JSON here.
    Odd,
    /// The value is larger than the window may grow.
    Large,
}

/// The part of a stream that is in memory.
pub struct Window {
    source: Box<dyn Read>,
    buffer: Vec<u8>,
    /// How large the buffer may get, for now.
    room: usize,
    at: usize,
    passed: u64,
    failed: Option<io::Error>,
}

impl Window {
    /// The begin of a stream.
    pub fn new(source: Box<dyn Read>) -> Self {
        Self { source, buffer: Vec::new(), room: FIRST, at: 0, passed: 0, failed: None }
    }

    /// Bytes of the stream before the window.
    pub fn offset(&self) -> u64 {
        self.passed + self.at as u64
    }

    /// Reads something at the current position and advances. `read` is called again from the same position if it
    /// ran out of input and there is more, so it must have no side effects unless it succeeds.
    pub fn read<T>(&mut self, mut read: impl FnMut(&mut Cursor<'_>) -> Result<T, Stop>) -> Result<T, Halt> {
        loop {
            let mut cursor = Cursor::new(&self.buffer[self.at..]);
            match read(&mut cursor) {
                Ok(value) => {
                    self.at += cursor.at();
                    return Ok(value);
                }
                Err(Stop::Odd) => return Err(Halt::Odd),
                Err(Stop::Short) => self.fill()?,
            }
        }
    }

    /// Skips an array, an object or a string of any size.
    pub fn skip(&mut self) -> Result<(), Halt> {
        let mut skip = Skip::default();
        loop {
            if let Some(end) = skip.feed(&self.buffer[self.at..]) {
                self.at += end;
                return Ok(());
            }
            self.at = self.buffer.len();
            self.fill()?;
        }
    }

    /// Fills the window, so that a value is read only a few times, however small the pieces are.
    fn fill(&mut self) -> Result<(), Halt> {
        self.buffer.drain(..self.at);
        self.passed += self.at as u64;
        self.at = 0;
        let before = self.buffer.len();
        if before == self.room {
            if before >= MOST {
                return Err(Halt::Large);
            }
            self.room = 2 * before;
        }
        if self.failed.is_none() {
            self.buffer.reserve_exact(self.room - before);
            let free = (self.room - before) as u64;
            // Data before the error is read first.
            self.failed = self.source.by_ref().take(free).read_to_end(&mut self.buffer).err();
        }
        if self.buffer.len() == before { Err(Halt::Ended(self.failed.take())) } else { Ok(()) }
    }
}
