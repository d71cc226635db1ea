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
pub(super) mod event;
mod finish;
mod header;
pub(super) mod number;
pub(super) mod scan;
#[cfg(test)]
mod tests;
pub(super) mod window;

use std::io::{self, Read};
use std::path::Path;

use self::build::{Builder, MOST_NAME_BYTES, MOST_SLICES, MOST_TRACKS};
use self::event::Event;
use self::header::MEMBERS;
use self::scan::{Cursor, Stop};
use self::window::{Halt, Window};
use super::{ImportError, open};
use crate::trace::Trace;

/// Bytes at the start of a file that are used to recognise it.
const HEAD: usize = 1 << 16;

/// Whether the first bytes of a file, packed or not, are those of a PyTorch trace.
pub fn recognise(head: &[u8]) -> bool {
    let head = open::unpack_head(head, HEAD);
    let says = |word: &str| memchr::memmem::find(&head, word.as_bytes()).is_some();
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head).trim_ascii_start();
    let signs =
        ["\"schemaVersion\"", "\"distributedInfo\"", "\"deviceProperties\"", "\"baseTimeNanoseconds\""];
    let categories = ["\"cpu_op\"", "\"cuda_runtime\"", "\"kernel\"", "\"user_annotation\"", "\"ac2g\""];
    match text.first() {
        Some(b'{') => signs.iter().chain(&categories).any(|word| says(word)),
        Some(b'[') => categories.iter().any(|word| says(word)),
        _ => false,
    }
}

/// Reads a trace; a damaged one as far as possible, with a warning.
pub fn read(path: &Path) -> Result<Trace, ImportError> {
    let mut builder = Builder::default();
    fill(&mut builder, path)?;
    Ok(builder.finish())
}

/// Takes the events of a file in this layout, one by one.
pub(super) trait Sink {
    /// Takes an event.
    fn take(&mut self, event: &Event<'_>);
    /// Whether there is no room for another event.
    fn is_full(&self) -> bool;
    /// Takes a member of the outermost object besides the events.
    fn take_member(&mut self, key: &str, cursor: &mut Cursor<'_>) -> Result<(), Stop>;
    /// Passes an event that is too large.
    fn pass_large(&mut self);
    /// What was read so far.
    fn trace(&mut self) -> &mut Trace;
}

/// Gives all events of a file to a sink; of a damaged file those before the damage, with a warning.
pub(super) fn fill(sink: &mut impl Sink, path: &Path) -> Result<(), ImportError> {
    fill_from(sink, open::open(path)?).map_err(|failure| match failure {
        Failure::Io(source) => ImportError::Io { path: path.into(), source },
        Failure::Bad(why) => ImportError::bad(path, why),
    })
}

/// Why a stream gives no trace at all.
#[derive(Debug)]
enum Failure {
    Io(io::Error),
    Bad(String),
}

fn fill_from(sink: &mut impl Sink, source: Box<dyn Read>) -> Result<(), Failure> {
    let mut window = Window::new(source);
    let outcome = walk(&mut window, sink);
    let offset = window.offset();
    let why = match outcome {
        Ok(Found::Events) => None,
        Ok(Found::Full) => {
            sink.trace().warnings.push(format!(
                "reading stopped at byte {offset}: at most {MOST_SLICES} events on {MOST_TRACKS} threads with {} MiB of \
                 names are read; record a shorter time",
                MOST_NAME_BYTES >> 20
            ));
            None
        }
        Ok(Found::NoEvents) => return Err(Failure::Bad("no traceEvents in it: not a trace".into())),
        Err(Halt::Ended(Some(error))) if !open::is_damage(&error) => return Err(Failure::Io(error)),
        Err(Halt::Ended(Some(error))) => {
            Some(format!("the file is truncated or damaged after byte {offset} ({error})"))
        }
        Err(Halt::Ended(None)) if offset == 0 => return Err(Failure::Bad("the file is empty".into())),
        Err(Halt::Ended(None)) => {
            Some(format!("the file ends before the value at byte {offset} is complete"))
        }
        Err(Halt::Odd) => Some(format!("the text at byte {offset} is not JSON")),
        Err(Halt::Large) => Some(format!("the value at byte {offset} is too large")),
    };
    if let Some(why) = why {
        let trace = sink.trace();
        if trace.slices.is_empty() {
            return Err(Failure::Bad(format!("{why}, and no event precedes it")));
        }
        let count = trace.slices.len();
        trace.warnings.push(format!("{why}: the {count} events before it were read"));
    }
    Ok(())
}

/// What was found in the whole file.
enum Found {
    NoEvents,
    Events,
    Full,
}

fn walk(window: &mut Window, sink: &mut impl Sink) -> Result<Found, Halt> {
    let opening = window.read(|cursor| {
        cursor.skip_mark();
        let first = cursor.peek()?;
        if matches!(first, b'{' | b'[') { cursor.expect(first).map(|()| first) } else { Err(Stop::Odd) }
    })?;
    let mut found = Found::NoEvents;
    if opening == b'[' {
        found = walk_events(window, sink)?;
    } else {
        while let Some(key) = window.read(|cursor| Ok(cursor.member()?.map(|key| key.plain())))? {
            let next = window.read(|cursor| cursor.peek())?;
            match (key.as_str(), next) {
                ("traceEvents", b'[') => {
                    window.read(|cursor| cursor.expect(b'['))?;
                    found = walk_events(window, sink)?;
                    if matches!(found, Found::Full) {
                        break;
                    }
                }
                (_, b'{' | b'[' | b'"') if !MEMBERS.contains(&key.as_str()) => window.skip()?,
                _ => window.read(|cursor| sink.take_member(&key, cursor))?,
            }
        }
    }
    if !matches!(found, Found::Full) {
        check_end(window, sink);
    }
    Ok(found)
}

/// Reads the events of an array after its opening bracket.
fn walk_events(window: &mut Window, sink: &mut impl Sink) -> Result<Found, Halt> {
    loop {
        let next = window.read(|cursor| {
            let goes_on = cursor.element()?;
            if !goes_on {
                return Ok(Some(Found::Events));
            }
            sink.take(&Event::read(cursor)?);
            Ok(sink.is_full().then_some(Found::Full))
        });
        match next {
            Ok(None) => {}
            Ok(Some(found)) => return Ok(found),
            Err(Halt::Large) => {
                window.read(|cursor| cursor.element())?;
                window.skip()?;
                sink.pass_large();
            }
            Err(halt) => return Err(halt),
        }
    }
}

/// Reads to the end of the file, where a gzip file has its checksum.
fn check_end(window: &mut Window, sink: &mut impl Sink) {
    let warning = match window.read(|cursor| cursor.peek()) {
        Err(Halt::Ended(Some(error))) => {
            format!("all events were read, but the end of the file is damaged ({error})")
        }
        Err(_) => return,
        Ok(_) => format!("the text after the trace, from byte {}, was not read", window.offset()),
    };
    sink.trace().warnings.push(warning);
}
