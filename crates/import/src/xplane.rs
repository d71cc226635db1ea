//! Profiles of JAX and TensorFlow: `<host>.xplane.pb`, packed or not.
//!
//! ```text
//! space -> planes (a device, or the threads of the host) -> lines (a stream, or a thread) -> events
//! ```
//!
//! A file is the profile of one host, which may drive several devices: each is a rank. Where there is no device but the
//! CPU, XLA's operations name the device of the CPU that they belong to.
//!
//! The file is in memory while it is read: at most 1 GiB, and 2^23 events of it are kept. A plane is read whole or not
//! at all, because what its events are called comes after them.

mod message;
mod op;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use paceline_record::{Bytes, Nanos};

use self::message::{Fields, Held, Line, MOST_ENTRIES, Plane, Stat};
use super::{ImportError, open};
use crate::trace::{Clock, Kind, Slice, StepRange, Trace};

/// The largest file, unpacked.
const MOST_BYTES: u64 = 1 << 30;
/// Most events that are kept.
const MOST_EVENTS: usize = 1 << 23;
/// Most planes, and most tracks.
const MOST_TRACKS: usize = 1 << 16;
/// Most devices of a host.
const MOST_DEVICES: u32 = 1 << 7;
/// Most planes that a note names.
const NAMED: usize = 3;

/// Whether a file that begins like this is a profile: its first plane is a device's, or the host's.
pub fn recognise(head: &[u8]) -> bool {
    // The first plane may be longer than the head: skip its length.
    let Some((&0x0a, rest)) = head.split_first() else { return false };
    let length = rest.iter().take(10).position(|&byte| byte < 0x80).map_or(rest.len(), |last| last + 1);
    let names = [b"/device:".as_slice(), b"/host:", b"Task Environment", b"#Chip", b"Host CPUs"];
    let is_plane = |name: &[u8]| names.iter().any(|prefix| name.starts_with(prefix));
    let named = |field| matches!(field, Some((2, Held::Bytes(name))) if is_plane(name));
    Fields(&rest[length..]).take(2).any(named)
}

/// Reads a profile: a trace for each device, or one of the host if there is none.
pub fn read(path: &Path) -> Result<Vec<Trace>, ImportError> {
    let (mut bytes, mut space) = (Vec::new(), Space::default());
    match open::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes) {
        Err(source) if !open::is_damage(&source) => {
            return Err(ImportError::Io { path: path.into(), source });
        }
        read => space.torn = read.is_err(),
    }
    if bytes.len() as u64 > MOST_BYTES {
        return Err(ImportError::bad(path, "an XPlane profile of more than 1 GiB: profile fewer steps"));
    }
    space.take(&bytes);
    let traces = space.finish();
    match traces.iter().all(|trace| trace.slices.is_empty()) {
        true => {
            let notes =
                [&["no event has a duration".into()], traces[0].warnings.as_slice()].concat().join("; ");
            Err(ImportError::bad(path, format!("an XPlane profile without work: {notes}")))
        }
        false => Ok(traces),
    }
}

/// What a file holds.
#[derive(Default)]
struct Space {
    host: Rank,
    devices: BTreeMap<u32, Rank>,
    /// Names of the devices.
    names: Vec<String>,
    /// Steps that the host marks, by the name of the mark.
    host_steps: BTreeMap<String, Vec<StepRange>>,
    /// What instructions of the programs do, by their names.
    operations: HashMap<String, String>,
    /// What is added to every moment.
    origin: i64,
    /// Events that are kept.
    events: usize,
    torn: bool,
    /// Planes that are not understood.
    unread: Vec<String>,
    /// Events that are too many, have no valid time, or are sums of others.
    dropped: u64,
}

/// A trace under construction.
#[derive(Default)]
struct Rank {
    trace: Trace,
    tracks: HashMap<String, u32>,
    /// Collectives of which only the begin or the end is known.
    unpaired: u64,
}

/// An event that lasts, with what is of use.
struct Row<'a> {
    name: &'a str,
    /// Its short name, or else its name.
    label: &'a str,
    begin: Nanos,
    end: Nanos,
    correlation: u64,
    step: Option<u64>,
    /// The device of the CPU that it is an operation of.
    ordinal: Option<u32>,
    copy: Option<Copied>,
}

/// What the details of a copy say.
#[derive(Clone, Copy, Default)]
struct Copied {
    bytes: Option<Bytes>,
    /// The device that it goes to.
    to: Option<u32>,
}

impl Space {
    fn take(&mut self, bytes: &[u8]) {
        let (mut planes, mut room) = (Vec::new(), MOST_ENTRIES);
        for field in Fields(bytes) {
            match field {
                Some((1, Held::Bytes(message))) if planes.len() < MOST_TRACKS => {
                    match Plane::read(message, &mut room) {
                        Some(plane) if plane.name == "/host:metadata" => {
                            self.operations = message::operations(message);
                        }
                        Some(plane) => planes.push(plane),
                        None => self.torn = true,
                    }
                }
                Some((4, Held::Bytes(host))) => self.host.trace.host = Some(message::text(host)),
                Some(_) => {}
                None => self.torn = true,
            }
        }
        let begun = planes.iter().find_map(|plane| plane.stat("profile_start_time")?.number());
        let begins = planes.iter().flat_map(|plane| plane.lines.iter().map(|line| line.begin_ns));
        let clock = Clock::choose(begins, begun.and_then(|begun| i64::try_from(begun).ok()));
        (self.host.trace.clock, self.origin) = clock;
        let shows = |plane: &Plane<'_>| !plane.lines.is_empty();
        let has_device = planes.iter().any(|plane| device(&plane.name).is_some() && shows(plane));
        for plane in planes.iter().filter(|plane| shows(plane)) {
            match device(&plane.name) {
                Some(device) => self.take_device(plane, device),
                None if plane.name.starts_with("/host:") => self.take_host(plane, has_device),
                None => self.unread.push(plane.name.clone()),
            }
        }
    }

    /// Reads a device: its streams, or the operations of XLA where it has none.
    fn take_device(&mut self, plane: &Plane<'_>, device: u32) {
        let at = device as usize;
        let named = ["gpu_device_name", "device_type_string"].iter().find_map(|name| plane.stat(name));
        self.names.resize(self.names.len().max(at + 1), String::new());
        self.names[at] = named.map(|stat| plane.text(stat)).unwrap_or_default();
        let has = |name: &str| plane.lines.iter().any(|line| line.name.starts_with(name));
        let (streams, transfers) = (has("Stream #"), has("Async XLA Ops"));
        // The other lines repeat these, or show no work.
        let wanted = |line: &&Line<'_>| match line.name.as_str() {
            "Steps" => true,
            "XLA Ops" | "Async XLA Ops" => !streams,
            name => name.starts_with("Stream #"),
        };
        for line in plane.lines.iter().filter(wanted) {
            let (rows, name) = (self.rows(plane, line), line.name.as_str());
            let rank = self.devices.entry(device).or_default();
            let track = rank.track(name, Some(device));
            match name {
                "Steps" => rank.trace.steps.extend(rows.iter().filter_map(device_step)),
                "XLA Ops" => rank.take_ops(&rows, track, &self.operations, transfers),
                "Async XLA Ops" => rank.take_transfers(&rows, track, &self.operations),
                _ => rank.take_stream(&rows, track),
            }
        }
    }

    /// Reads the threads of the host. Operations of XLA are work of a device, if the file has no other device.
    fn take_host(&mut self, plane: &Plane<'_>, has_device: bool) {
        for line in &plane.lines {
            let mut ops: BTreeMap<u32, Vec<Row<'_>>> = BTreeMap::new();
            // Python's functions are left out: there may be millions.
            for row in self.rows(plane, line).into_iter().filter(|row| !row.name.starts_with('$')) {
                if let Some(ordinal) = row.ordinal.filter(|_| !has_device) {
                    ops.entry(ordinal).or_default().push(row);
                    continue;
                }
                if let Some(number) = row.step {
                    let step = StepRange { number, begin: row.begin, end: row.end };
                    self.host_steps.entry(row.name.into()).or_default().push(step);
                }
                // TensorFlow's operators are called `name:type`, and for short `type`.
                let is_operator = row.name.strip_suffix(row.label).is_some_and(|name| name.ends_with(':'));
                let exchange =
                    ["Collective", "Nccl", "Horovod"].iter().any(|prefix| row.label.starts_with(prefix));
                let track = self.host.track(&line.name, None);
                match row.correlation {
                    0 if is_operator && exchange => self.host.push_collective(&row, row.label, track),
                    0 if is_operator => self.host.push(&row, row.name, Kind::Operator, track),
                    0 => self.host.push(&row, row.name, Kind::Range, track),
                    _ => self.host.push(&row, row.name, Kind::Call, track),
                }
            }
            for (ordinal, rows) in ops {
                let rank = self.devices.entry(ordinal).or_default();
                let track = rank.track(&line.name, Some(ordinal));
                rank.take_ops(&rows, track, &self.operations, false);
            }
        }
    }

    /// The events of a line that last, longer ones first among those that begin together.
    fn rows<'a>(&mut self, plane: &'a Plane<'_>, line: &Line<'_>) -> Vec<Row<'a>> {
        let [step, correlation, op, ordinal, copy] =
            ["step_num", "correlation_id", "hlo_op", "device_ordinal", "memcpy_details"]
                .map(|name| plane.key(name));
        let mut rows = Vec::new();
        for event in line.events() {
            let Some(event) = event else {
                self.torn = true;
                break;
            };
            let stat = |key: Option<i64>| event.stats.iter().find(|stat| Some(stat.what) == key);
            let number = |key| stat(key).and_then(Stat::number);
            let begin = i128::from(self.origin) + i128::from(line.begin_ns);
            let moment = |ps: i128| {
                u64::try_from(begin + ps.div_euclid(1000)).ok().filter(|ns| ns >> 62 == 0).map(Nanos)
            };
            let offset = i128::from(event.offset_ps.unwrap_or(0));
            let times = moment(offset).zip(moment(offset + i128::from(event.duration_ps)));
            let room = self.events < MOST_EVENTS;
            let valid = |(begin, end): &(Nanos, Nanos)| begin <= end && room && event.occurrences.is_none();
            let Some((begin, end)) = times.filter(valid) else {
                self.dropped += 1;
                continue;
            };
            if begin == end {
                continue;
            }
            self.events += 1;
            let (name, short) =
                plane.events.get(&event.what).map_or(("(no name)", ""), |(name, short)| (name, short));
            rows.push(Row {
                name,
                label: if short.is_empty() { name } else { short },
                begin,
                end,
                correlation: number(correlation).unwrap_or(0),
                step: number(step),
                ordinal: stat(op).and_then(|_| in_range(number(ordinal).unwrap_or(0))),
                copy: stat(copy).map(|stat| copied(&plane.text(stat))),
            });
        }
        rows.sort_by_key(|row| (row.begin, std::cmp::Reverse(row.end)));
        rows
    }

    /// Gives each device the host's slices and steps, and says what was left out.
    fn finish(mut self) -> Vec<Trace> {
        let length = |steps: &[StepRange]| steps.iter().map(|step| step.end.since(step.begin).0).sum::<u64>();
        let kinds = self.host_steps.len();
        // Training and validation may both count their steps.
        let marked = self.host_steps.into_iter().max_by_key(|(_, steps)| length(steps));
        let (mark, steps) = marked.unwrap_or_default();
        let more = if self.unread.len() > NAMED { ", ..." } else { "" };
        self.unread.truncate(NAMED);
        // Without the host, why a device was idle is unknown.
        let room = self.host.trace.slices.len().saturating_mul(self.devices.len()) <= MOST_EVENTS;
        let notes = [
            (self.torn, "the file is truncated or damaged: only whole planes were read".to_owned()),
            (!self.unread.is_empty(), format!("not read: {}{more}", self.unread.join(", "))),
            (
                self.dropped > 0,
                format!("{} events without a valid time, or too many, were not read", self.dropped),
            ),
            (!room, "the host has too many events for that many devices: it was left out".into()),
            (kinds > 1, format!("{kinds} kinds of steps are marked: only those called {mark:?} count")),
        ];
        let host = &mut self.host.trace;
        host.warnings.extend(notes.into_iter().filter(|(holds, _)| *holds).map(|(_, note)| note));
        (host.unread, host.devices, host.steps) = (self.torn || self.dropped > 0, self.names, steps);
        if self.devices.is_empty() {
            host.sort();
            return vec![self.host.trace];
        }
        let host = &self.host.trace;
        let mut ranks: Vec<Trace> = self.devices.into_values().map(|rank| rank.finish(host, room)).collect();
        // What holds of all devices is said once.
        if let [first, others @ ..] = ranks.as_mut_slice() {
            others.iter_mut().for_each(|rank| rank.warnings.retain(|note| !first.warnings.contains(note)));
        }
        ranks
    }
}

impl Rank {
    fn track(&mut self, name: &str, device: Option<u32>) -> u32 {
        let trace = &mut self.trace;
        let name = if trace.tracks.len() < MOST_TRACKS { name } else { "others" };
        *self.tracks.entry(name.to_owned()).or_insert_with(|| trace.add_track(name, device))
    }

    fn push(&mut self, row: &Row<'_>, name: &str, kind: Kind, track: u32) {
        let name = self.trace.names.enter(name);
        let Row { begin, end, correlation, copy, .. } = *row;
        let bytes = copy.and_then(|copy| copy.bytes);
        self.trace.slices.push(Slice { kind, name, begin, end, track, correlation, bytes });
    }

    fn push_collective(&mut self, row: &Row<'_>, operation: &str, track: u32) {
        self.trace.add_collective(&operation.replace('-', "_"));
        self.push(row, row.label, Kind::Collective, track);
    }

    /// The trace of a device, with what its host did.
    fn finish(self, host: &Trace, room: bool) -> Trace {
        let mut trace = self.trace;
        (trace.host, trace.devices) = (host.host.clone(), host.devices.clone());
        (trace.clock, trace.unread) = (host.clock, host.unread);
        trace.warnings.clone_from(&host.warnings);
        if self.unpaired > 0 {
            trace.warnings.push(format!(
                "of {} collectives only the begin or the end is known: how much of them computation hid is unknown",
                self.unpaired
            ));
        }
        let launched = trace.slices.iter().any(|slice| slice.correlation != 0);
        trace.steps_on_device = !trace.steps.is_empty();
        if !trace.steps_on_device && !host.steps.is_empty() {
            trace.steps.clone_from(&host.steps);
            if !launched {
                let note = "the host marks the steps, and launches are not shown: work counts for the step in which it ran";
                trace.warnings.push(note.into());
            }
        }
        let first = trace.tracks.len() as u32;
        trace.tracks.extend(host.tracks.iter().cloned());
        // The host's side of a collective is none of the device's.
        for slice in host.slices.iter().filter(|slice| room && slice.kind != Kind::Collective) {
            let name = trace.names.enter(host.names.text(slice.name));
            trace.slices.push(Slice { name, track: first + slice.track, ..*slice });
        }
        trace.sort();
        trace
    }
}

/// A step that a device marks: it is called by its number.
fn device_step(row: &Row<'_>) -> Option<StepRange> {
    let number = row.step.or_else(|| row.name.parse().ok())?;
    Some(StepRange { number, begin: row.begin, end: row.end })
}

/// The number of the device that a plane is of.
fn device(plane: &str) -> Option<u32> {
    let number = plane.strip_prefix("/device:GPU:").or_else(|| plane.strip_prefix("/device:TPU:"))?;
    in_range(number.parse().ok()?)
}

fn in_range(device: u64) -> Option<u32> {
    u32::try_from(device).ok().filter(|&device| device < MOST_DEVICES)
}

/// Reads the details of a copy: `kind_src:pageable kind_dst:device size:4096 dest:0 async:1`.
fn copied(details: &str) -> Copied {
    let mut copied = Copied::default();
    for (what, value) in details.split([' ', '\n']).filter_map(|word| word.split_once(':')) {
        match what {
            "size" | "num_bytes" => copied.bytes = value.parse().ok().map(Bytes),
            "dest" => copied.to = value.parse().ok(),
            _ => {}
        }
    }
    copied
}
