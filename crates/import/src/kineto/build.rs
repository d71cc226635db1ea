//! Builds a trace event by event: tracks, names, slices. What needs the whole trace is done at the end.

use std::collections::{BTreeMap, HashMap};

use paceline_record::{Bytes, Nanos, Rank};

use super::super::operations::{self, Source};
use super::collective::{self, Candidate};
use super::event::Event;
use super::number::{parse_micros, parse_whole};
use super::scan::Value;
use crate::trace::{Kind, Name, Slice, Trace};

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
/// The longest name of a thread or a process that is kept whole.
const MOST_LABEL: usize = 1 << 8;
/// Most unknown categories that are named.
const MOST_UNREAD: usize = 16;
/// The longest number of a process or a thread that is kept whole; some are words.
const MOST_NUMBER: usize = 1 << 6;
/// Separates a process from a thread; no text in JSON contains it.
const BETWEEN: &[u8] = b"\0";

/// The useful members of the outermost object, besides the events.
pub const MEMBERS: [&str; 4] = ["distributedInfo", "deviceProperties", "baseTimeNanoseconds", "host_name"];

/// Counts of irregular events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oddities {
    /// Events without a valid time.
    pub timeless: u64,
    /// Events without a valid duration, which count as 0.
    pub endless: u64,
    /// Ends without a begin.
    pub unbegun: u64,
    /// Events larger than the window.
    pub large: u64,
}

/// A trace under construction. Times are on the file's clock and may be negative: two's complement until the end.
#[derive(Default)]
pub struct Builder {
    /// Whether it may be by any writer: then slices are ranges, whatever they are called, and may be pairs of events.
    any: bool,
    pub(super) trace: Trace,
    pub(super) odd: Oddities,
    /// Events that are neither slices nor names.
    pub others: u64,
    pub(super) candidates: Vec<Candidate>,
    /// What names mean, in their order.
    meanings: Vec<Option<Meaning>>,
    /// Events by category that are not understood.
    pub(super) unread: BTreeMap<String, u64>,
    /// Origin of the times, in nanoseconds since 1970.
    pub(super) base: Option<i64>,
    /// Tracks by place, process and thread.
    tracks: HashMap<Vec<u8>, u32>,
    /// Names of processes, and of threads by process and thread.
    labels: HashMap<Vec<u8>, String>,
    /// Slices of each track that have begun, and their begins.
    open: HashMap<u32, Vec<(Name, i64)>>,
    opened: usize,
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

impl Builder {
    /// For a trace that is not of PyTorch's profiler.
    pub fn of_any_writer() -> Self {
        Self { any: true, ..Self::default() }
    }

    /// Whether there is no room for another event.
    pub fn is_full(&self) -> bool {
        self.trace.slices.len().max(self.opened) >= MOST_SLICES
            || self.trace.tracks.len() >= MOST_TRACKS
            || self.name_bytes >= MOST_NAME_BYTES
    }

    /// Takes a member of the outermost object besides the events. If a value cannot be read, its format is unknown.
    pub fn take_member(&mut self, key: &str, value: Value<'_>) {
        let trace = &mut self.trace;
        match key {
            "baseTimeNanoseconds" => self.base = parse_whole(value.raw).and_then(|base| base.try_into().ok()),
            "host_name" => trace.host = Some(value.plain()).filter(|host| !host.is_empty()),
            "distributedInfo" => {
                let told: serde_json::Value = serde_json::from_slice(value.raw).unwrap_or_default();
                let number = |key: &str| {
                    let text = told[key].as_str().map_or_else(|| told[key].to_string(), str::to_owned);
                    parse_whole(text.as_bytes()).and_then(|number| number.try_into().ok())
                };
                trace.backend = told["backend"].as_str().filter(|name| !name.is_empty()).map(Into::into);
                (trace.rank, trace.world) = (number("rank").map(Rank), number("world_size"));
            }
            "deviceProperties" => {
                let devices: Vec<serde_json::Value> = serde_json::from_slice(value.raw).unwrap_or_default();
                let names = devices.iter().filter_map(|device| device["name"].as_str());
                trace.devices = names.map(Into::into).collect();
            }
            _ => {}
        }
    }

    /// Takes an event.
    pub fn take(&mut self, event: &Event<'_>) {
        match event.phase {
            Some(b'M') => self.take_label(event),
            Some(b'X' | b'B' | b'E') if self.any => self.take_range(event),
            Some(b'X') => self.take_slice(event),
            // JAX ends its list with an empty event.
            None if self.any && event.name.raw.is_empty() && event.begin.is_empty() => {}
            None => self.odd.timeless += 1,
            _ => self.others += 1,
        }
    }

    /// When an event begins, in nanoseconds.
    fn begin(&mut self, event: &Event<'_>) -> Option<i64> {
        let begin = parse_micros(event.begin);
        self.odd.timeless += u64::from(begin.is_none());
        begin
    }

    fn duration(&mut self, event: &Event<'_>) -> i64 {
        let duration = parse_micros(event.duration).filter(|&duration| duration >= 0);
        self.odd.endless += u64::from(duration.is_none());
        duration.unwrap_or(0)
    }

    /// Takes a slice, or the begin or the end of one.
    fn take_range(&mut self, event: &Event<'_>) {
        let Some(moment) = self.begin(event) else { return };
        let track = self.track(event, Place::Host);
        let open = self.open.entry(track).or_default();
        let (name, begin, end) = match event.phase {
            Some(b'B') => {
                let name = self.name(event.name);
                self.open.entry(track).or_default().push((name, moment));
                self.opened += 1;
                return;
            }
            Some(b'E') => match open.pop() {
                Some((name, begin)) if begin <= moment => (name, begin, moment),
                _ => return self.odd.unbegun += 1,
            },
            _ => (self.name(event.name), moment, moment + self.duration(event)),
        };
        let (begin, end) = (Nanos(begin as u64), Nanos(end as u64));
        let (kind, correlation, bytes) = (Kind::Range, 0, None);
        self.trace.slices.push(Slice { kind, name, begin, end, track, correlation, bytes });
    }

    fn take_slice(&mut self, event: &Event<'_>) {
        if matches!(event.category, b"Trace" | b"python_function" | b"cuda_event") {
            return;
        }
        let name = self.name(event.name);
        let meaning = self.meaning(name);
        let exchanges = meaning.kernel || event.args.collective.told().is_some();
        let Some((kind, place)) = classify(event, meaning.step.is_some(), exchanges) else {
            let category = String::from_utf8_lossy(&event.category[..event.category.len().min(MOST_NUMBER)]);
            if self.unread.len() < MOST_UNREAD || self.unread.contains_key(&*category) {
                *self.unread.entry(category.into_owned()).or_default() += 1;
            }
            return;
        };
        let Some(begin) = self.begin(event) else { return };
        // Both are below 2^62: the sum cannot overflow.
        let end = begin + self.duration(event);
        let source = match place {
            Place::Host => meaning.source,
            Place::Device => (kind == Kind::Collective).then_some(Source::Device),
        };
        let bytes = match source {
            Some(source) => self.take_candidate(event, source, meaning.operation),
            None if kind.is_device_work() => parse_whole(event.args.bytes).map(Bytes),
            None => None,
        };
        let track = self.track(event, place);
        self.trace.slices.push(Slice {
            kind,
            name,
            begin: Nanos(begin as u64),
            end: Nanos(end as u64),
            track,
            correlation: parse_whole(event.args.correlation).unwrap_or(0),
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
        let told = args.collective.told();
        let operation = match (told, operation) {
            (None, Some(operation)) => operation,
            _ => self.enter(&name_operation(&told.unwrap_or(event.name).plain())),
        };
        let candidate = Candidate {
            slice: self.trace.slices.len() as u32,
            source,
            operation,
            waits: self.trace.names.text(operation).starts_with("wait"),
            group: args.group.told().map(|group| self.name(group)),
            sequence: parse_whole(args.sequence),
        };
        self.candidates.push(candidate);
        collective::count_bytes(args)
    }

    /// Takes the name of a process or a thread.
    fn take_label(&mut self, event: &Event<'_>) {
        let Some(name) = event.args.name.told().filter(|_| self.labels.len() < 2 * MOST_TRACKS) else {
            return;
        };
        let key = match event.name.raw {
            b"thread_name" => [head(event.process), BETWEEN, head(event.thread)].concat(),
            b"process_name" => head(event.process).to_vec(),
            _ => return,
        };
        let name = shorten(name.plain(), MOST_LABEL);
        self.labels.entry(key).or_insert_with(|| name.trim().to_owned());
    }

    fn track(&mut self, event: &Event<'_>, place: Place) -> u32 {
        self.key.clear();
        self.key.push(place as u8);
        for piece in [head(event.process), BETWEEN, head(event.thread)] {
            self.key.extend(piece);
        }
        if let Some(&track) = self.tracks.get(&self.key) {
            return track;
        }
        let device = (place == Place::Device).then(|| {
            let number = parse_whole(event.args.device).or_else(|| parse_whole(event.process));
            number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
        });
        let what = if device.is_some() { "stream" } else { "thread" };
        let name = format!("{what} {}", String::from_utf8_lossy(head(event.thread)));
        let track = self.trace.add_track(name, device);
        self.tracks.insert(self.key.clone(), track);
        track
    }

    fn name(&mut self, text: Value<'_>) -> Name {
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
            if let Some(name) = self.labels.get(&key[1..]) {
                self.trace.tracks[track as usize].name.clone_from(name);
            }
        }
    }

    /// Process and thread of each track, with their names.
    pub fn places(&self) -> Vec<[String; 2]> {
        let mut places = vec![<[String; 2]>::default(); self.tracks.len()];
        for (key, &track) in &self.tracks {
            let length = key[1..].iter().position(|byte| BETWEEN.contains(byte)).unwrap_or_default();
            let (process, thread) = (&key[1..=length], &key[length + 2..]);
            places[track as usize] = [(process, process), (&key[1..], thread)].map(|(key, number)| {
                let number = String::from_utf8_lossy(number);
                self.labels.get(key).map_or_else(|| number.to_string(), |name| format!("{name} ({number})"))
            });
        }
        places
    }

    /// Slices that have begun and not ended.
    pub(super) fn unended(&self) -> u64 {
        self.open.values().map(|open| open.len() as u64).sum()
    }
}

/// Kind and place of an event; `None` if its category is unknown, so that it may be work of a device.
fn classify(event: &Event<'_>, is_step: bool, exchanges: bool) -> Option<(Kind, Place)> {
    use Place::{Device, Host};
    let name = || String::from_utf8_lossy(event.name.raw);
    Some(match event.category {
        b"kernel" | b"Kernel" if exchanges => (Kind::Collective, Device),
        b"kernel" | b"Kernel" => (operations::of_runtime(&name()).unwrap_or(Kind::Compute), Device),
        b"gpu_memcpy" | b"Memcpy" => (operations::of_copy(&name()), Device),
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
