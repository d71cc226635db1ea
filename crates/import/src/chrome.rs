//! Chrome traces of any writer: who did what when, without steps.
//!
//! Slices are `X` events and pairs of `B` and `E` events on a thread. They nest: what a name took by itself is the time in
//! which its slice was the last that had begun of those still open on its thread, so own times add up to the time in which
//! the thread was busy. Asynchronous slices belong to no thread; they, counters, flows and samples are only counted.

mod render;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use paceline_lab::names;
use paceline_record::Nanos;
use serde::Serialize;

use super::ImportError;
use super::kineto::build::{MOST_SLICES, MOST_TRACKS};
use super::kineto::event::Event;
use super::kineto::number::parse_micros;
use super::kineto::scan::{Cursor, Stop};
use super::kineto::{Sink, fill};
use crate::trace::{Kind, Name, Slice, Trace};

/// The longest name that is kept whole.
const MOST_NAME: usize = 1 << 10;
/// Most different names.
const MOST_NAMES: usize = 1 << 17;
/// The longest number of a process or a thread that is kept whole; some are words.
const MOST_NUMBER: usize = 1 << 6;

/// Why it is no run.
pub const NO_RUN: &str =
    "a Chrome trace that marks no steps: there is no run to import; use `paceline explain` to see it";

/// What a trace shows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timeline {
    /// From the first begin to the last end.
    pub span: Nanos,
    /// Number of processes with slices.
    pub processes: usize,
    /// Threads with slices, the busiest first.
    pub threads: Vec<Thread>,
    /// Names, those that took most time by themselves first.
    pub names: Vec<Named>,
    /// Events that are not slices of a thread.
    pub others: u64,
    /// What was salvaged or skipped, one sentence each.
    pub warnings: Vec<String>,
}

/// What one thread did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Thread {
    /// The process, by its name if it has one.
    pub process: String,
    /// The thread, by its name if it has one.
    pub thread: String,
    /// Number of its slices.
    pub slices: u64,
    /// Time in which any slice was open.
    pub busy: Nanos,
}

/// All slices of one name.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Named {
    /// The name.
    pub name: String,
    /// Number of slices.
    pub count: u64,
    /// Their time, with what is nested in them.
    pub total: Nanos,
    /// Their time without what is nested in them.
    pub own: Nanos,
}

/// Whether a file that begins like this is a Chrome trace.
pub fn recognise(head: &[u8]) -> bool {
    let says = |word: &str| memchr::memmem::find(head, word.as_bytes()).is_some();
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    match text.first() {
        Some(b'{') => says("\"traceEvents\""),
        Some(b'[') => says("\"ph\"") && says("\"pid\""),
        _ => false,
    }
}

/// Reads a trace; a damaged one as far as possible, with a warning.
pub fn read(path: &Path) -> Result<Timeline, ImportError> {
    let mut builder = Builder::default();
    fill(&mut builder, path)?;
    match builder.trace.slices.is_empty() {
        true => Err(ImportError::bad(path, "a Chrome trace in which no event of a thread has a duration")),
        false => Ok(builder.finish()),
    }
}

/// A timeline under construction. Times may be negative: two's complement until the end.
#[derive(Default)]
struct Builder {
    trace: Trace,
    /// Tracks by process and thread.
    tracks: HashMap<(Vec<u8>, Vec<u8>), u32>,
    process_names: HashMap<Vec<u8>, String>,
    thread_names: HashMap<(Vec<u8>, Vec<u8>), String>,
    /// Slices of each track that have begun, and their begins.
    open: HashMap<u32, Vec<(Name, i64)>>,
    opened: usize,
    others: u64,
    large: u64,
    /// Events without a valid time, and ends without a begin.
    odd: u64,
}

impl Sink for Builder {
    fn is_full(&self) -> bool {
        let slices = self.trace.slices.len().max(self.opened);
        slices >= MOST_SLICES || self.tracks.len() >= MOST_TRACKS || self.trace.names.len() >= MOST_NAMES
    }

    fn take(&mut self, event: &Event<'_>) {
        let begin = event.begin.and_then(parse_micros);
        match (event.phase, begin) {
            (Some(b'M'), _) => self.take_name(event),
            // JAX ends its list with an empty event.
            (None, None) if event.name.raw.is_empty() => {}
            (Some(b'X' | b'B' | b'E'), None) | (None, _) => self.odd += 1,
            (Some(b'X'), Some(begin)) => match event.duration.map_or(Some(0), parse_micros) {
                Some(duration @ 0..) => {
                    let (name, track) = (self.name(event), self.track(event));
                    self.push(name, begin, begin + duration, track);
                }
                _ => self.odd += 1,
            },
            (Some(b'B'), Some(begin)) => {
                let (name, track) = (self.name(event), self.track(event));
                self.open.entry(track).or_default().push((name, begin));
                self.opened += 1;
            }
            (Some(b'E'), Some(end)) => {
                let track = self.track(event);
                match self.open.get_mut(&track).and_then(Vec::pop) {
                    Some((name, begin)) if begin <= end => self.push(name, begin, end, track),
                    _ => self.odd += 1,
                }
            }
            _ => self.others += 1,
        }
    }

    fn take_member(&mut self, _: &str, cursor: &mut Cursor<'_>) -> Result<(), Stop> {
        cursor.value().map(drop)
    }

    fn pass_large(&mut self) {
        self.large += 1;
    }

    fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
}

impl Builder {
    fn name(&mut self, event: &Event<'_>) -> Name {
        let raw = &event.name.raw[..event.name.raw.len().min(MOST_NAME)];
        let names = &mut self.trace.names;
        match std::str::from_utf8(raw) {
            Ok(plain) if !event.name.escaped => names.enter(plain),
            _ => names.enter(&event.name.plain().chars().take(MOST_NAME).collect::<String>()),
        }
    }

    fn take_name(&mut self, event: &Event<'_>) {
        let Some(name) = event.args.name.filter(|_| self.thread_names.len() < MOST_TRACKS) else { return };
        let name = names::clean(&name.plain());
        let (process, thread) = place(event);
        match event.name.raw {
            b"process_name" if self.process_names.len() < MOST_TRACKS => {
                self.process_names.insert(process, name);
            }
            b"thread_name" => {
                self.thread_names.insert((process, thread), name);
            }
            _ => {}
        }
    }

    fn track(&mut self, event: &Event<'_>) -> u32 {
        let next = self.tracks.len() as u32;
        *self.tracks.entry(place(event)).or_insert(next)
    }

    fn push(&mut self, name: Name, begin: i64, end: i64, track: u32) {
        let (begin, end) = (Nanos(begin as u64), Nanos(end as u64));
        self.trace.slices.push(Slice {
            kind: Kind::Range,
            name,
            begin,
            end,
            track,
            correlation: 0,
            bytes: None,
        });
    }

    fn finish(mut self) -> Timeline {
        let slices = &mut self.trace.slices;
        let first = slices.iter().map(|slice| slice.begin.0 as i64).min().unwrap_or(0);
        for slice in slices.iter_mut() {
            let shift = |moment: Nanos| Nanos((moment.0 as i64).abs_diff(first));
            (slice.begin, slice.end) = (shift(slice.begin), shift(slice.end));
        }
        slices.sort_by_key(|slice| (slice.track, slice.begin, std::cmp::Reverse(slice.end)));
        let text = |number: &[u8]| names::clean(&String::from_utf8_lossy(number));
        let mut threads = vec![Thread::default(); self.tracks.len()];
        for (place, &track) in &self.tracks {
            let process = self.process_names.get(&place.0).map(|name| format!("{name} ({})", text(&place.0)));
            let thread = self.thread_names.get(place).map(|name| format!("{name} ({})", text(&place.1)));
            let thread_of = &mut threads[track as usize];
            thread_of.process = process.unwrap_or_else(|| text(&place.0));
            thread_of.thread = thread.unwrap_or_else(|| text(&place.1));
        }
        let mut named: Vec<Named> =
            self.trace.names.texts().map(|name| Named { name: name.into(), ..Named::default() }).collect();
        for slices in self.trace.slices.chunk_by(|a, b| a.track == b.track) {
            let busy = own_times(slices, |slice, own| named[slice.name.0 as usize].own += own);
            let thread = &mut threads[slices[0].track as usize];
            (thread.slices, thread.busy) = (slices.len() as u64, busy);
        }
        for slice in &self.trace.slices {
            let name = &mut named[slice.name.0 as usize];
            name.count += 1;
            name.total = Nanos(name.total.0.saturating_add(slice.end.since(slice.begin).0));
        }
        threads.retain(|thread| thread.slices > 0);
        named.retain(|name| name.count > 0);
        threads.sort_by(|a, b| (b.busy, &a.process, &a.thread).cmp(&(a.busy, &b.process, &b.thread)));
        named.sort_by(|a, b| (b.own, &a.name).cmp(&(a.own, &b.name)));
        let processes = threads.iter().map(|thread| thread.process.as_str()).collect::<BTreeSet<_>>().len();
        let unended: usize = self.open.values().map(Vec::len).sum();
        let mut warnings = self.trace.warnings;
        let notes = [
            (self.odd, "events have no valid time or no begin: skipped"),
            (unended as u64, "slices have no end: skipped"),
            (self.large, "events are too large: skipped"),
        ];
        warnings.extend(
            notes.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")),
        );
        let span = self.trace.slices.iter().map(|slice| slice.end).max().unwrap_or_default();
        Timeline { span, processes, threads, names: named, others: self.others, warnings }
    }
}

/// Gives each slice of a thread the time in which it was the last to begin of those that were open; returns their sum.
fn own_times(slices: &[Slice], mut give: impl FnMut(&Slice, Nanos)) -> Nanos {
    let mut open: Vec<&Slice> = Vec::new();
    let (mut now, mut busy) = (Nanos(0), Nanos(0));
    let mut pass = |open: &mut Vec<&Slice>, until: Nanos| {
        while let Some(last) = open.pop() {
            let end = last.end.min(until);
            give(last, end.since(now));
            busy += end.since(now);
            now = now.max(end);
            if last.end > until {
                open.push(last);
                break;
            }
        }
        now = now.max(until);
    };
    for slice in slices {
        pass(&mut open, slice.begin);
        open.push(slice);
    }
    pass(&mut open, Nanos(u64::MAX));
    busy
}

/// The process and the thread of an event.
fn place(event: &Event<'_>) -> (Vec<u8>, Vec<u8>) {
    let head = |number: &[u8]| number[..number.len().min(MOST_NUMBER)].to_vec();
    (head(event.process), head(event.thread))
}
