//! Chrome traces of any writer: who did what when, without steps.
//!
//! Slices are `X` events and pairs of `B` and `E` events on a thread. They nest: what a name took by itself is the time in
//! which its slice was the last that had begun of those still open on its thread, so own times add up to the time in which
//! the thread was busy. Asynchronous slices belong to no thread; they, counters, flows and samples are only counted.

mod render;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;

use paceline_lab::names;
use paceline_record::Nanos;
use serde::Serialize;

use super::kineto::build::Builder;
use super::{ImportError, open};
use crate::trace::Slice;

/// Why it is no run.
pub const NO_RUN: &str = "a Chrome trace of a program that is not known: steps are not looked for in it, so there is no run to import";

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
    match head.trim_ascii_start().first() {
        Some(b'{') => says("\"traceEvents\""),
        Some(b'[') => says("\"ph\"") && says("\"pid\""),
        _ => false,
    }
}

/// Reads a trace; a damaged one as far as possible, with a warning.
pub fn read(path: &Path) -> Result<Timeline, ImportError> {
    let mut builder = Builder::of_any_writer();
    builder.fill(path, open::open(path)?)?;
    let (places, others) = (builder.places(), builder.others);
    let mut trace = builder.finish();
    let Some((begin, end)) = trace.extent() else {
        return Err(ImportError::bad(path, "a Chrome trace in which no event of a thread has a duration"));
    };
    let places = places.into_iter().map(|place| place.map(|name| names::clean(&name)));
    let thread = |[process, thread]: [String; 2]| Thread { process, thread, ..Thread::default() };
    let mut threads: Vec<Thread> = places.map(thread).collect();
    let mut named: Vec<Named> =
        trace.names.texts().map(|name| Named { name: name.into(), ..Named::default() }).collect();
    for slice in &trace.slices {
        let name = &mut named[slice.name.0 as usize];
        name.count += 1;
        name.total = Nanos(name.total.0.saturating_add(slice.length().0));
    }
    trace.slices.sort_by_key(|slice| slice.track);
    for slices in trace.slices.chunk_by(|a, b| a.track == b.track) {
        let busy = own_times(slices, |slice, own| named[slice.name.0 as usize].own += own);
        let thread = &mut threads[slices[0].track as usize];
        (thread.slices, thread.busy) = (slices.len() as u64, busy);
    }
    threads.retain(|thread| thread.slices > 0);
    named.retain(|name| name.count > 0);
    threads.sort_by_cached_key(|one| (Reverse(one.busy), one.process.clone(), one.thread.clone()));
    named.sort_by(|a, b| (b.own, &a.name).cmp(&(a.own, &b.name)));
    let processes = threads.iter().map(|thread| thread.process.as_str()).collect::<BTreeSet<_>>().len();
    let (span, warnings) = (end.since(begin), trace.warnings);
    Ok(Timeline { span, processes, threads, names: named, others, warnings })
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
