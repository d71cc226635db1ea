//! Builds a trace event by event: tracks, names, slices. What needs the whole trace is done at the end.

use std::collections::{BTreeMap, HashMap};

use paceline_record::{Bytes, Nanos};

use super::super::operations::{self, Source};
use super::collective::{self, Candidate};
use super::event::Event;
use super::number::{parse_micros, parse_whole};
use super::scan::{Cursor, Stop, Text};
use super::{Sink, header};
use crate::trace::{Kind, Name, Slice, Trace, Track};

/// Most slices that are kept: about 1 GiB.
pub const MOST_SLICES: usize = 1 << 24;
/// Most tracks.
pub const MOST_TRACKS: usize = 1 << 16;
/// Most memory for distinct names, about a million short ones.
pub const MOST_NAME_BYTES: usize = 1 << 27;
/// Memory of a name besides its text, which the table holds twice.
const NAME_COST: usize = 96;
/// The longest name that is kept whole.
const MOST_NAME: usize = 1 << 14;
/// The longest name of a thread that is kept whole.
const MOST_THREAD_NAME: usize = 1 << 8;
/// Most unknown categories that are named.
const MOST_UNREAD: usize = 16;
/// The longest number of a process or a thread that is kept whole; some are words.
const MOST_NUMBER: usize = 1 << 6;

/// Counts of irregular events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oddities {
    /// Events without a valid time.
    pub timeless: u64,
    /// Events without a valid duration, which count as 0.
    pub endless: u64,
    /// Events larger than the window.
    pub large: u64,
}

/// A trace under construction. Times are on the file's clock and may be negative: two's complement until the end.
#[derive(Default)]
pub struct Builder {
    pub(super) trace: Trace,
    pub(super) odd: Oddities,
    pub(super) candidates: Vec<Candidate>,
    /// What names mean, in their order.
    meanings: Vec<Option<Meaning>>,
    /// Events by category that are not understood.
    pub(super) unread: BTreeMap<String, u64>,
    /// Origin of the times, in nanoseconds since 1970.
    pub(super) base: Option<i64>,
    tracks: HashMap<Vec<u8>, u32>,
    thread_names: HashMap<Vec<u8>, String>,
    name_bytes: usize,
    key: Vec<u8>,
}

/// What the name of an event means.
#[derive(Clone, Copy, Debug)]
struct Meaning {
    /// The number of a step.
    step: Option<u64>,
    /// What an event of the host with this name says about a collective.
    source: Option<Source>,
    /// The operation of a collective; an event of the host has one anyway.
    operation: Option<Name>,
    /// Whether it is a collective if it is a kernel.
    kernel: bool,
}

/// Where an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Host,
    Device,
}

impl Sink for Builder {
    fn is_full(&self) -> bool {
        self.trace.slices.len() >= MOST_SLICES
            || self.trace.tracks.len() >= MOST_TRACKS
            || self.name_bytes >= MOST_NAME_BYTES
    }

    fn take(&mut self, event: &Event<'_>) {
        match event.phase {
            Some(b'X') => self.take_slice(event),
            Some(b'M') if event.name.raw == b"thread_name" => self.name_thread(event),
            None => self.odd.timeless += 1,
            _ => {}
        }
    }

    fn take_member(&mut self, key: &str, cursor: &mut Cursor<'_>) -> Result<(), Stop> {
        header::read_member(self, key, cursor)
    }

    fn pass_large(&mut self) {
        self.odd.large += 1;
    }

    fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
}

impl Builder {
    fn take_slice(&mut self, event: &Event<'_>) {
        if matches!(event.category, b"Trace" | b"python_function" | b"cuda_event") {
            return;
        }
        let name = self.name(event.name);
        let meaning = self.meaning(name);
        let exchanges = meaning.kernel || event.args.collective.is_some();
        let Some((kind, place)) = classify(event, meaning.step.is_some(), exchanges) else {
            let category = String::from_utf8_lossy(&event.category[..event.category.len().min(MOST_NUMBER)]);
            if self.unread.len() < MOST_UNREAD || self.unread.contains_key(&*category) {
                *self.unread.entry(category.into_owned()).or_default() += 1;
            }
            return;
        };
        let Some(begin) = event.begin.and_then(parse_micros) else {
            self.odd.timeless += 1;
            return;
        };
        let duration = event.duration.and_then(parse_micros).filter(|&duration| duration >= 0);
        self.odd.endless += u64::from(duration.is_none());
        let source = match place {
            Place::Host => meaning.source,
            Place::Device => (kind == Kind::Collective).then_some(Source::Device),
        };
        let bytes = match source {
            Some(source) => self.take_candidate(event, source, meaning.operation),
            None if kind.is_device_work() => event.args.bytes.and_then(parse_whole).map(Bytes),
            None => None,
        };
        let track = self.track(event, place);
        self.trace.slices.push(Slice {
            kind,
            name,
            begin: Nanos(begin as u64),
            // Both are below 2^62: the sum cannot overflow.
            end: Nanos((begin + duration.unwrap_or(0)) as u64),
            track,
            correlation: event.args.correlation.and_then(parse_whole).unwrap_or(0),
            bytes,
        });
    }

    /// What a name means, found out once.
    fn meaning(&mut self, name: Name) -> Meaning {
        let at = name.0 as usize;
        if let Some(Some(meaning)) = self.meanings.get(at) {
            return *meaning;
        }
        let text = self.trace.names.text(name);
        let (kernel, source) = (operations::of_kernel(text), Source::of_host(text));
        let step = text.strip_prefix("ProfilerStep#").and_then(|number| parse_whole(number.as_bytes()));
        let operation = kernel.map(str::to_owned).or_else(|| source.map(|_| name_operation(text)));
        let operation = operation.map(|operation| self.enter(&operation));
        let meaning = Meaning { step, source, operation, kernel: kernel.is_some() };
        self.meanings.resize(self.meanings.len().max(at + 1), None);
        self.meanings[at] = Some(meaning);
        meaning
    }

    /// The number of the step that a range with this name is.
    pub(super) fn step(&self, name: Name) -> Option<u64> {
        self.meanings.get(name.0 as usize).copied().flatten()?.step
    }

    /// Records a possible collective, before its slice; returns the bytes that go into it.
    fn take_candidate(
        &mut self,
        event: &Event<'_>,
        source: Source,
        operation: Option<Name>,
    ) -> Option<Bytes> {
        let args = &event.args;
        let told = args.collective.filter(|told| !told.raw.is_empty());
        let operation = match (told, operation) {
            (None, Some(operation)) => operation,
            _ => self.enter(&name_operation(&told.unwrap_or(event.name).plain())),
        };
        let candidate = Candidate {
            slice: self.trace.slices.len() as u32,
            source,
            operation,
            waits: self.trace.names.text(operation).starts_with("wait"),
            group: args.group.filter(|group| !group.raw.is_empty()).map(|group| self.name(group)),
            sequence: args.sequence.and_then(parse_whole),
        };
        self.candidates.push(candidate);
        collective::count_bytes(args)
    }

    fn name_thread(&mut self, event: &Event<'_>) {
        let Some(name) = event.args.name else { return };
        if self.thread_names.len() < MOST_TRACKS {
            let key = [head(event.process), b"/", head(event.thread)].concat();
            let name = shorten(name.plain(), MOST_THREAD_NAME);
            self.thread_names.entry(key).or_insert_with(|| name.trim().to_owned());
        }
    }

    fn track(&mut self, event: &Event<'_>, place: Place) -> u32 {
        self.key.clear();
        self.key.push(place as u8);
        self.key.extend(head(event.process));
        self.key.push(b'/');
        self.key.extend(head(event.thread));
        if let Some(&track) = self.tracks.get(&self.key) {
            return track;
        }
        let device = (place == Place::Device).then(|| {
            let number = event.args.device.and_then(parse_whole).or_else(|| parse_whole(event.process));
            number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
        });
        let what = if device.is_some() { "stream" } else { "thread" };
        let track = self.trace.tracks.len() as u32;
        let name = format!("{what} {}", String::from_utf8_lossy(head(event.thread)));
        self.trace.tracks.push(Track { name, device });
        self.tracks.insert(self.key.clone(), track);
        track
    }

    fn name(&mut self, text: Text<'_>) -> Name {
        match std::str::from_utf8(text.raw) {
            Ok(plain) if !text.escaped && plain.len() <= MOST_NAME => self.enter(plain),
            _ => {
                let plain = shorten(text.plain(), MOST_NAME);
                self.enter(&plain)
            }
        }
    }

    fn enter(&mut self, text: &str) -> Name {
        let names = &mut self.trace.names;
        names.find(text).unwrap_or_else(|| {
            self.name_bytes += 2 * text.len() + NAME_COST;
            names.enter(text)
        })
    }

    /// Sets the names of threads.
    pub(super) fn rename_tracks(&mut self) {
        for (key, &track) in &self.tracks {
            if let Some(name) = self.thread_names.get(&key[1..]) {
                self.trace.tracks[track as usize].name.clone_from(name);
            }
        }
    }
}

/// Kind and place of an event; `None` if its category is unknown, so that it may be work of a device.
fn classify(event: &Event<'_>, is_step: bool, exchanges: bool) -> Option<(Kind, Place)> {
    use Place::{Device, Host};
    Some(match event.category {
        b"kernel" | b"Kernel" if exchanges => (Kind::Collective, Device),
        b"kernel" | b"Kernel" => (Kind::Compute, Device),
        b"gpu_memcpy" | b"Memcpy" => (copy_kind(event.name.raw), Device),
        b"gpu_memset" | b"Memset" => (Kind::Fill, Device),
        b"gpu_user_annotation" | b"cuda_sync" => (Kind::Range, Device),
        b"cuda_runtime" | b"cuda_driver" | b"Runtime" => (Kind::Call, Host),
        b"cpu_op" | b"Operator" | b"" if !is_step => (Kind::Operator, Host),
        b"cpu_op" | b"Operator" | b"" | b"user_annotation" | b"overhead" | b"cpu_instant_event" => {
            (Kind::Range, Host)
        }
        other if other.ends_with(b"_runtime") || other.ends_with(b"_driver") => (Kind::Call, Host),
        _ => return None,
    })
}

/// The operation of a collective, or its name, where that says none.
fn name_operation(text: &str) -> String {
    let own = || text.rsplit(':').next().unwrap_or(text).to_owned();
    operations::operation(text).map_or_else(own, str::to_owned)
}

/// The direction of a copy: `Memcpy HtoD (Pinned -> Device)`, or `CopyHostToDevice` on AMD's devices.
fn copy_kind(name: &[u8]) -> Kind {
    let says = |word: &[u8]| memchr::memmem::find(name, word).is_some();
    if says(b"HtoD") || says(b"HtoA") || says(b"HostToDevice") {
        Kind::CopyIn
    } else if says(b"DtoH") || says(b"AtoH") || says(b"DeviceToHost") {
        Kind::CopyOut
    } else {
        Kind::CopyDevice
    }
}

/// What identifies a process or a thread.
fn head(number: &[u8]) -> &[u8] {
    &number[..number.len().min(MOST_NUMBER)]
}

fn shorten(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('\u{2026}');
    }
    text
}
