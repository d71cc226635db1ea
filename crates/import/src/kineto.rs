//! PyTorch's profiler (Kineto): `.json` and `.json.gz`, in every dialect since 2021.
//!
//! ```text
//! file -> window (slides) -> event (slices of text) -> builder (tracks, names, slices) -> finish -> Trace
//! ```
//!
//! The file is streamed: besides the trace itself (48 bytes per event), memory is one window, which
//! grows to 16 MiB for a single event. Reading stops, with a warning, at 2^24 events, 2^16 tracks or 128 MiB of
//! names. A truncated or damaged file gives what comes before the damage, with a warning.

pub(super) mod build;
mod collective;
mod event;
mod finish;
mod number;
pub(super) mod scan;
#[cfg(test)]
mod tests;
pub(super) mod window;

use std::io::Read;
use std::path::Path;

use self::build::{Builder, MEMBERS, MOST_NAME_BYTES, MOST_SLICES, MOST_TRACKS};
use self::event::Event;
use self::scan::Stop;
use self::window::{Halt, Window};
use super::{ImportError, open};
use crate::trace::Trace;

/// Whether the first bytes of a file are those of a PyTorch trace.
pub fn recognise(head: &[u8]) -> bool {
    let says = |word: &&str| memchr::memmem::find(head, word.as_bytes()).is_some();
    let signs =
        ["\"schemaVersion\"", "\"distributedInfo\"", "\"deviceProperties\"", "\"baseTimeNanoseconds\""];
    // Others have kernels, too: of an operating system.
    let categories = [
        "\"cpu_op\"",
        "\"cuda_runtime\"",
        "\"gpu_memcpy\"",
        "\"user_annotation\"",
        "\"ac2g\"",
        "\"External id\"",
    ];
    match head.trim_ascii_start().first() {
        Some(b'{') => signs.iter().chain(&categories).any(says),
        Some(b'[') => categories.iter().any(says),
        _ => false,
    }
}

/// Reads a trace; a damaged one as far as possible, with a warning.
pub fn read(path: &Path) -> Result<Trace, ImportError> {
    let mut builder = Builder::default();
    builder.fill(path, open::open(path)?)?;
    Ok(builder.finish())
}

impl Builder {
    /// Takes all events of a stream; of a damaged one those before the damage, with a warning.
    pub fn fill(&mut self, path: &Path, source: Box<dyn Read>) -> Result<(), ImportError> {
        let mut window = Window::new(source);
        let outcome = self.walk(&mut window);
        let offset = window.offset();
        let why = match outcome {
            Ok(_) if self.is_full() => {
                self.trace.warnings.push(format!(
                    "reading stopped at byte {offset}: at most {MOST_SLICES} events on {MOST_TRACKS} threads with {} MiB of \
                     names are read; record a shorter time",
                    MOST_NAME_BYTES >> 20
                ));
                return Ok(());
            }
            Ok(true) => return Ok(()),
            Ok(false) => return Err(ImportError::bad(path, "no traceEvents in it: not a trace")),
            Err(Halt::Ended(Some(source))) if !open::is_damage(&source) => {
                return Err(ImportError::Io { path: path.into(), source });
            }
            Err(Halt::Ended(Some(error))) => {
                format!("the file is truncated or damaged after byte {offset} ({error})")
            }
            Err(Halt::Ended(None)) if offset == 0 => return Err(ImportError::bad(path, "the file is empty")),
            Err(Halt::Ended(None)) => {
                format!("the file ends before the value at byte {offset} is complete")
            }
            Err(Halt::Odd) => format!("the text at byte {offset} is not JSON"),
            Err(Halt::Large) => format!("the value at byte {offset} is too large"),
        };
        let count = self.trace.slices.len();
        if count == 0 {
            return Err(ImportError::bad(path, format!("{why}, and no event precedes it")));
        }
        self.trace.warnings.push(format!("{why}: the {count} events before it were read"));
        Ok(())
    }

    /// Reads until the end, or until there is no room; whether there is a list of events.
    fn walk(&mut self, window: &mut Window) -> Result<bool, Halt> {
        let opening = window.read(|cursor| {
            let first = cursor.peek()?;
            if matches!(first, b'{' | b'[') { cursor.expect(first).map(|()| first) } else { Err(Stop::Odd) }
        })?;
        let mut found = opening == b'[';
        if found {
            self.walk_events(window)?;
        } else {
            while !self.is_full()
                && let Some(key) = window.read(|cursor| Ok(cursor.member()?.map(|key| key.plain())))?
            {
                match (key.as_str(), window.read(|cursor| cursor.peek())?) {
                    ("traceEvents", b'[') => {
                        found = true;
                        window.read(|cursor| cursor.expect(b'['))?;
                        self.walk_events(window)?;
                    }
                    (_, b'{' | b'[' | b'"') if !MEMBERS.contains(&key.as_str()) => window.skip()?,
                    _ => window.read(|cursor| cursor.value().map(|value| self.take_member(&key, value)))?,
                }
            }
        }
        if !self.is_full() {
            self.check_end(window);
        }
        Ok(found)
    }

    /// Reads the events of an array after its opening bracket.
    fn walk_events(&mut self, window: &mut Window) -> Result<(), Halt> {
        while !self.is_full() {
            let goes_on = window.read(|cursor| {
                let goes_on = cursor.element()?;
                if goes_on {
                    self.take(&Event::read(cursor)?);
                }
                Ok(goes_on)
            });
            match goes_on {
                Ok(true) => {}
                Ok(false) => break,
                Err(Halt::Large) => {
                    window.read(|cursor| cursor.element())?;
                    window.skip()?;
                    self.odd.large += 1;
                }
                Err(halt) => return Err(halt),
            }
        }
        Ok(())
    }

    /// Reads to the end of the file, where a gzip file has its checksum.
    fn check_end(&mut self, window: &mut Window) {
        let warning = match window.read(|cursor| cursor.peek()) {
            Err(Halt::Ended(Some(error))) => {
                format!("all events were read, but the end of the file is damaged ({error})")
            }
            Err(_) => return,
            Ok(_) => format!("the text after the trace, from byte {}, was not read", window.offset()),
        };
        self.trace.warnings.push(warning);
    }
}
