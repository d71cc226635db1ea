//! Turns rows of many tables into slices of one trace per process.

use std::collections::{BTreeMap, HashMap, HashSet};

use paceline_record::{Bytes, Nanos};

use super::{Database, Fields, steps};
use crate::ImportError;
use crate::trace::{Clock, Kind, Slice, Trace};

/// Profilers write some times from before the clock's origin; those of more than about three years before are damage.
const BEFORE: i64 = 100_000_000_000_000_000;

/// Latest time: 146 years.
const LATEST: i64 = 1 << 62;

/// No event lasts longer: 100 days.
const LONGEST: i64 = 100 * 86_400 * 1_000_000_000;

/// Most devices whose names are listed.
const DEVICES: u32 = 256;

/// Where an event took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A stream; each context of a device counts its own.
    Stream { device: u32, context: u32, stream: u32 },
    /// A thread of the host.
    Thread(u64),
}

/// A row, whatever table it is from.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    pub kind: Kind,
    pub begin: Option<i64>,
    /// A range may lack it.
    pub end: Option<i64>,
    /// The process, if the row names it.
    pub process: Option<u64>,
    pub place: Place,
    /// What ties it to the call that launched it.
    pub correlation: Option<u64>,
    pub bytes: Option<u64>,
    /// What is exchanged with other ranks or devices, if anything.
    pub operation: Option<&'a str>,
}

impl<'a> Event<'a> {
    /// An event on a thread of the host, from columns 0 and 1: start, end.
    pub fn on_host(row: &Fields<'_, '_>, kind: Kind, process: Option<u64>, thread: u64) -> Self {
        Self {
            kind,
            begin: row.integer(0),
            end: row.integer(1),
            process,
            place: Place::Thread(thread),
            correlation: None,
            bytes: None,
            operation: None,
        }
    }

    /// The same as an exchange, if it is one.
    pub fn exchanging(self, operation: Option<&'a str>) -> Self {
        Self { kind: operation.map_or(self.kind, |_| Kind::Collective), operation, ..self }
    }
}

#[derive(Default)]
struct Part {
    trace: Trace,
    places: HashMap<Place, u32>,
    /// Ranges without an end.
    open: HashSet<usize>,
}

/// Processes by their numbers.
type Processes = Vec<(u64, Trace)>;

/// What was read so far.
#[derive(Default)]
pub struct Gather {
    parts: BTreeMap<u64, Part>,
    /// The first process that a row named, used if a row names none.
    first: Option<u64>,
    complaints: BTreeMap<&'static str, u64>,
}

impl Gather {
    /// Adds an event; one with invalid times is counted and skipped.
    pub fn add(&mut self, event: Event<'_>, name: Option<&str>) {
        let is_open = event.end.is_none() && event.kind == Kind::Range;
        let end = event.end.or(event.begin.filter(|_| is_open));
        let Some((begin, end)) = event.begin.zip(end).filter(|times| *times != (0, 0)) else {
            // Zeros are how CUPTI says that it has no times.
            return self.complain("events have no begin or no end and were skipped");
        };
        if end < begin {
            return self.complain("events end before they begin and were skipped");
        }
        if !(-BEFORE..LATEST).contains(&begin) || end.saturating_sub(begin) > LONGEST {
            return self.complain("events have impossible times and were skipped");
        }
        if name.is_none() {
            self.complain("events have names that are missing from the file's table of names");
        }
        if is_open {
            self.complain("ranges were never closed: they are assumed to last to the end, and are not steps");
        }
        self.first = self.first.or(event.process);
        let part = self.parts.entry(event.process.or(self.first).unwrap_or(0)).or_default();
        let trace = &mut part.trace;
        let track = *part.places.entry(event.place).or_insert_with(|| match event.place {
            Place::Stream { device, stream, .. } => trace.add_track(format!("stream {stream}"), Some(device)),
            Place::Thread(thread) => trace.add_track(format!("thread {thread}"), None),
        });
        if is_open {
            part.open.insert(trace.slices.len());
        }
        event.operation.into_iter().for_each(|operation| trace.add_collective(operation));
        trace.slices.push(Slice {
            kind: event.kind,
            name: trace.names.enter(name.unwrap_or("without a name")),
            begin: Nanos(begin as u64),
            end: Nanos(end as u64),
            track,
            correlation: event.correlation.unwrap_or(0),
            bytes: event.bytes.map(Bytes),
        });
    }

    fn complain(&mut self, what: &'static str) {
        *self.complaints.entry(what).or_default() += 1;
    }

    /// A trace for each process, with its number, and what was left out. Times count from `origin`, nanoseconds after 1970, if
    /// it is known; `device` names devices of processes. It is an error if the file is damaged and nothing is left.
    pub fn finish(
        mut self,
        database: Database,
        origin: Option<i64>,
        device: impl Fn(u64, i64) -> Option<String>,
    ) -> Result<(Processes, Vec<String>), ImportError> {
        if let (true, Some(first)) = (self.parts.is_empty(), database.warnings.first()) {
            return Err(database.bad(format!("nothing could be read: {first}")));
        }
        let mut warnings = database.warnings;
        warnings.extend(self.complaints.iter().map(|(what, count)| format!("{count} {what}")));
        let slices = self.parts.values().flat_map(|part| &part.trace.slices);
        let clock = Clock::choose(slices.map(|slice| slice.begin.0 as i64), origin);
        // Workers of a data loader are not ranks: they neither use a device nor take part in exchanges.
        let works = |part: &Part| part.trace.has_device() || !part.trace.collectives.is_empty();
        if self.parts.values().any(works) {
            self.parts.retain(|process, part| {
                if !works(part) {
                    let count = part.trace.slices.len();
                    warnings.push(format!(
                        "process {process} uses no device: skipped its {count} calls and ranges"
                    ));
                }
                works(part)
            });
        }
        let finish = |(process, mut part): (u64, Part)| {
            let last = part.trace.slices.iter().map(|slice| slice.end.0 as i64).max().unwrap_or_default();
            for &at in &part.open {
                part.trace.slices[at].end = Nanos(last as u64);
            }
            part.trace.place(clock);
            part.trace.steps = steps::find(&part.trace, |at| !part.open.contains(&at));
            part.trace.sort();
            part.trace.devices = device_names(&part.trace, |number| device(process, number));
            part.trace.backend = backend(&part.trace);
            (process, part.trace)
        };
        let mut traces: Processes = self.parts.into_iter().map(finish).collect();
        if traces.is_empty() {
            warnings.push("it has no kernels, copies, calls or ranges".into());
            traces.push((0, Trace::default()));
        }
        Ok((traces, warnings))
    }
}

/// Names of devices 0, 1, ... up to the last that a trace uses; empty where none is known.
fn device_names(trace: &Trace, name: impl Fn(i64) -> Option<String>) -> Vec<String> {
    let last = trace.tracks.iter().filter_map(|track| track.device).filter(|&device| device < DEVICES).max();
    let names: Vec<Option<String>> =
        last.map_or_else(Vec::new, |last| (0..=last).map(|device| name(device.into())).collect());
    match names.iter().any(Option::is_some) {
        true => names.into_iter().map(|name| name.unwrap_or_else(|| "unnamed".into())).collect(),
        false => Vec::new(),
    }
}

/// What exchanges: MPI or NCCL.
fn backend(trace: &Trace) -> Option<String> {
    let mut names = trace.collectives.iter().map(|one| trace.names.text(trace.slices[one.slice].name));
    let backends = [("MPI_", "mpi"), ("nccl", "nccl")];
    names
        .find_map(|name| backends.iter().find(|(prefix, _)| name.starts_with(prefix)))
        .map(|(_, own)| (*own).into())
}
