//! Turns rows of many tables into slices of one trace per process.

use std::collections::{BTreeMap, HashMap, HashSet};

use paceline_record::{Bytes, Nanos};

use super::steps;
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

/// Where an event took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A stream of a device.
    Stream {
        /// The device's number.
        device: u32,
        /// The context that the stream belongs to: each counts its own streams.
        context: u32,
        /// The stream's number.
        stream: u32,
    },
    /// A thread of the host.
    Thread(u64),
}

/// A row, whatever table it is from.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// What the time went to.
    pub kind: Kind,
    /// Begin.
    pub begin: Option<i64>,
    /// End; a range may lack it.
    pub end: Option<i64>,
    /// Where it took place.
    pub place: Place,
    /// What ties it to the call that launched it.
    pub correlation: Option<u64>,
    /// Bytes moved.
    pub bytes: Option<u64>,
}

/// Origin of the times.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// The file does not say.
    Unknown,
    /// This many nanoseconds after 1970.
    After1970(i64),
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
    without_time: u64,
    backwards: u64,
    implausible: u64,
    open: u64,
}

impl Gather {
    /// Adds an event of a process; one with invalid times is counted and skipped. A collective has its
    /// `operation`.
    pub fn add(&mut self, process: u64, event: Event, name: &str, operation: Option<&str>) {
        let Some(begin) = event.begin else {
            self.without_time += 1;
            return;
        };
        let is_open = event.end.is_none() && event.kind == Kind::Range;
        let Some(end) = event.end.or(is_open.then_some(begin)) else {
            self.without_time += 1;
            return;
        };
        if end < begin {
            self.backwards += 1;
            return;
        }
        if !(-BEFORE..LATEST).contains(&begin) || end.saturating_sub(begin) > LONGEST {
            self.implausible += 1;
            return;
        }
        let part = self.parts.entry(process).or_default();
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
            self.open += 1;
        }
        if let Some(operation) = operation {
            let operation = part.trace.names.enter(operation);
            part.trace.collectives.push(Collective { slice, operation, group: None, sequence: None });
        }
        part.trace.slices.push(Slice {
            kind: event.kind,
            name: part.trace.names.enter(name),
            begin: later(begin),
            end: later(end),
            track,
            correlation: event.correlation.unwrap_or(0),
            bytes: event.bytes.map(Bytes),
        });
    }

    /// The traces sorted by process, with its number, and what was skipped, one sentence each.
    pub fn finish(mut self, origin: Origin) -> (Vec<(u64, Trace)>, Vec<String>) {
        let mut warnings = self.complaints();
        let begins = self.parts.values().flat_map(|part| &part.trace.slices).map(|slice| slice.begin.0);
        let first = begins.min().map_or(0, |begin| begin as i64 - BEFORE);
        let (clock, shift) = match origin {
            Origin::After1970(at) if (EPOCH..LATEST).contains(&at) => (Clock::Epoch, at),
            _ if first >= EPOCH => (Clock::Epoch, 0),
            _ => (Clock::Own, (-first).max(0)),
        };
        if clock == Clock::Own && shift > 0 {
            warnings
                .push(format!("its times start at {:.6} s and are counted from there", first as f64 * 1e-9));
        }
        self.drop_bystanders(&mut warnings);
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
        (self.parts.into_iter().map(finish).collect(), warnings)
    }

    /// Workers of a data loader are not ranks: they neither use a device nor take part in collectives.
    fn drop_bystanders(&mut self, warnings: &mut Vec<String>) {
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
    }

    fn complaints(&self) -> Vec<String> {
        let counts = [
            (self.without_time, "have no begin or no end and were skipped"),
            (self.backwards, "end before they begin and were skipped"),
            (self.implausible, "have impossible times and were skipped"),
            (self.open, "ranges were never closed: they are assumed to last to the end, and are not steps"),
        ];
        let said = counts.iter().filter(|(count, _)| *count > 0);
        said.map(|(count, what)| match what.starts_with("ranges") {
            true => format!("{count} {what}"),
            false => format!("{count} events {what}"),
        })
        .collect()
    }
}

fn later(moment: i64) -> Nanos {
    Nanos((moment + BEFORE) as u64)
}
