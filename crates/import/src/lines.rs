//! Text files line by line, with bounded memory per line.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::{ImportError, open};

/// Longest line that is read; longer ones are skipped.
const LONGEST: u64 = 1 << 20;

/// The lines of a file.
pub(super) struct Lines<R> {
    source: R,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Lines that were skipped because they are too long.
    pub passed_over: u64,
}

impl Lines<BufReader<Box<dyn Read>>> {
    /// Opens a file, packed or not.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        Ok(Self::new(BufReader::new(open::open(path)?), path))
    }
}

impl<R: BufRead> Lines<R> {
    pub fn new(source: R, path: &Path) -> Self {
        Self { source, path: path.into(), buffer: Vec::new(), passed_over: 0 }
    }

    /// The next line without its end; `None` at the end of the file. Invalid UTF-8 is replaced.
    pub fn next(&mut self) -> Result<Option<String>, ImportError> {
        self.read().map_err(|source| ImportError::Io { path: self.path.clone(), source })
    }

    fn read(&mut self) -> io::Result<Option<String>> {
        loop {
            self.buffer.clear();
            let read = self.source.by_ref().take(LONGEST).read_until(b'\n', &mut self.buffer)?;
            if read == 0 {
                return Ok(None);
            }
            if self.buffer.last() == Some(&b'\n') || (read as u64) < LONGEST {
                let line = String::from_utf8_lossy(&self.buffer);
                return Ok(Some(line.trim_end_matches(['\n', '\r']).into()));
            }
            self.passed_over += 1;
            while self.buffer.last().is_some_and(|&byte| byte != b'\n') {
                self.buffer.clear();
                self.source.by_ref().take(LONGEST).read_until(b'\n', &mut self.buffer)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> (Vec<String>, u64) {
        let mut lines = Lines::new(text, Path::new("test"));
        let all = std::iter::from_fn(|| lines.next().expect("memory can be read")).collect();
        (all, lines.passed_over)
    }

    #[test]
    fn lines_end_as_on_any_system_and_may_hold_anything() {
        let (lines, _) = all(b"one\r\n\ntw\xffo\nlast");
        assert_eq!(lines, ["one", "", "tw\u{fffd}o", "last"]);
    }

    #[test]
    fn an_endless_line_is_passed_over_and_the_next_one_read() {
        let mut text = vec![b'x'; 3 * LONGEST as usize];
        text.extend(b"\nnext\n");
        assert_eq!(all(&text), (vec!["next".into()], 1));
        let endless = vec![b'x'; 2 * LONGEST as usize];
        assert_eq!(all(&endless), (vec![], 1));
    }
}
