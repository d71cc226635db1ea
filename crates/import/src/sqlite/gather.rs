//! Turns rows of many tables into slices of one trace per process.

use std::collections::{BTreeMap, HashMap, HashSet};

use paceline_record::{Bytes, Nanos};

use super::{Database, Fields, steps};
use crate::ImportError;
use crate::trace::{Clock, Collective, Kind, Slice, Trace, Track};

/// Times are shifted by this until the clock's origin is known, because profilers write some from before it.
/// About three years: earlier times are damage.
const BEFORE: i64 = 100_000_000_000_000_000;

/// Latest time: 146 years.
const LATEST: i64 = 1 << 62;

/// No event lasts longer: 100 days.
const LONGEST: i64 = 100 * 86_400 * 1_000_000_000;

/// Later times can only count from 1970 (this is in 2001); machines do not run that long.
const EPOCH: i64 = 1_000_000_000_000_000_000;

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
        let times = (event.begin, event.end.or(event.begin.filter(|_| is_open)));
        let (begin, end) = match times {
            // Zeros are how CUPTI says that it has no times.
            (None, _) | (_, None) | (Some(0), Some(0)) => {
                return self.complain("events have no begin or no end and were skipped");
            }
            (Some(begin), Some(end)) if end < begin => {
                return self.complain("events end before they begin and were skipped");
            }
            (Some(begin), Some(end))
                if !(-BEFORE..LATEST).contains(&begin) || end.saturating_sub(begin) > LONGEST =>
            {
                return self.complain("events have impossible times and were skipped");
            }
            (Some(begin), Some(end)) => (begin, end),
        };
        if name.is_none() {
            self.complain("events have names that are missing from the file's table of names");
        }
        if is_open {
            self.complain("ranges were never closed: they are assumed to last to the end, and are not steps");
        }
        self.first = self.first.or(event.process);
        let part = self.parts.entry(event.process.or(self.first).unwrap_or(0)).or_default();
        let tracks = &mut part.trace.tracks;
        let track = *part.places.entry(event.place).or_insert_with(|| {
            tracks.push(match event.place {
                Place::Stream { device, stream, .. } => {
                    Track { name: format!("stream {stream}"), device: Some(device) }
                }
                Place::Thread(thread) => Track { name: format!("thread {thread}"), device: None },
            });
            tracks.len() as u32 - 1
        });
        let slice = part.trace.slices.len();
        if is_open {
            part.open.insert(slice);
        }
        if let Some(operation) = event.operation {
            let operation = part.trace.names.enter(operation);
            part.trace.collectives.push(Collective { slice, operation, group: None, sequence: None });
        }
        part.trace.slices.push(Slice {
            kind: event.kind,
            name: part.trace.names.enter(name.unwrap_or("without a name")),
            begin: Nanos((begin + BEFORE) as u64),
            end: Nanos((end + BEFORE) as u64),
            track,
            correlation: event.correlation.unwrap_or(0),
            bytes: event.bytes.map(Bytes),
        });
    }

    fn complain(&mut self, what: &'static str) {
        *self.complaints.entry(what).or_default() += 1;
    }

    /// A trace for each process, with its number. Times count from `origin`, nanoseconds after 1970, if it is known.
    pub fn finish(mut self, origin: Option<i64>, warnings: &mut Vec<String>) -> Vec<(u64, Trace)> {
        warnings.extend(self.complaints.iter().map(|(what, count)| format!("{count} {what}")));
        let begins = self.parts.values().flat_map(|part| &part.trace.slices).map(|slice| slice.begin.0);
        let first = begins.min().map_or(0, |begin| begin as i64 - BEFORE);
        let (clock, shift) = match origin {
            Some(at) if (EPOCH..LATEST).contains(&at) => (Clock::Epoch, at),
            _ if first >= EPOCH => (Clock::Epoch, 0),
            _ => (Clock::Own, (-first).max(0)),
        };
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
            let last = part.trace.slices.iter().map(|slice| slice.end).max().unwrap_or_default();
            for &at in &part.open {
                part.trace.slices[at].end = last;
            }
            for slice in &mut part.trace.slices {
                // At most 2^62 + 2^62: it fits.
                slice.begin = Nanos(slice.begin.0.wrapping_add_signed(shift - BEFORE));
                slice.end = Nanos(slice.end.0.wrapping_add_signed(shift - BEFORE));
            }
            part.trace.steps = steps::find(&part.trace, |at| !part.open.contains(&at));
            part.trace.clock = clock;
            part.trace.sort();
            (process, part.trace)
        };
        self.parts.into_iter().map(finish).collect()
    }
}

/// Names of devices 0, 1, ... up to the last that a trace uses; empty where none is known.
pub fn device_names(trace: &Trace, name: impl Fn(i64) -> Option<String>) -> Vec<String> {
    let last = trace.tracks.iter().filter_map(|track| track.device).filter(|&device| device < DEVICES).max();
    let names: Vec<Option<String>> =
        last.map_or_else(Vec::new, |last| (0..=last).map(|device| name(device.into())).collect());
    match names.iter().any(Option::is_some) {
        true => names.into_iter().map(|name| name.unwrap_or_else(|| "unnamed".into())).collect(),
        false => Vec::new(),
    }
}

/// The traces with warnings about the file; an error if it is damaged and nothing is left.
pub fn conclude(
    database: Database,
    mut traces: Vec<Trace>,
    mut warnings: Vec<String>,
) -> Result<Vec<Trace>, ImportError> {
    if let (true, Some(first)) = (traces.is_empty(), database.warnings.first()) {
        return Err(database.bad(format!("nothing could be read: {first}")));
    }
    warnings.splice(0..0, database.warnings);
    if traces.is_empty() {
        warnings.push("it has no kernels, copies, calls or ranges".into());
        traces.push(Trace::default());
    }
    for trace in &mut traces {
        let names = trace.collectives.iter().map(|one| trace.names.text(trace.slices[one.slice].name));
        let backends = ["MPI_", "nccl"].into_iter();
        let mut known = names.filter_map(|name| backends.clone().find(|backend| name.starts_with(backend)));
        trace.backend = known.next().map(|backend| backend.trim_end_matches('_').to_lowercase());
    }
    traces[0].warnings = warnings;
    Ok(traces)
}
