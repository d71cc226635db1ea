//! A profile of one rank, from any profiler: slices of time on tracks, steps, and collectives.
//!
//! Readers of foreign formats fill this in; [`crate::ranks`] makes steps of a run log from it.

use std::collections::HashMap;

use paceline_lab::run::Span;
use paceline_record::{Bytes, Nanos, Rank};

/// The clock of the times in a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The trace's own clock: only differences are meaningful, and traces of other ranks have other origins.
    #[default]
    Own,
    /// Nanoseconds since 1970: ranks of one host can be compared.
    Epoch,
    /// That of one rank, which wrote about all of them.
    Writer,
}

/// September 2001: later times, in nanoseconds, can only count from 1970; machines do not run that long.
pub const EPOCH: i64 = 1_000_000_000_000_000_000;

/// The time of what is not on the clock.
const OUTSIDE: Nanos = Nanos(u64::MAX);

impl Clock {
    /// The clock of times, and what is added to them. `origin` is what they may count from, in nanoseconds since 1970.
    pub fn choose(begins: impl Iterator<Item = i64> + Clone, origin: Option<i64>) -> (Self, i64) {
        let late = begins.clone().filter(|begin| *begin >= EPOCH).count();
        match origin.filter(|origin| (EPOCH..1 << 62).contains(origin)) {
            _ if 2 * late > begins.clone().count() => (Self::Epoch, 0),
            Some(origin) => (Self::Epoch, origin),
            // Only differences are meaningful, so the earliest time may be 0.
            None => (Self::Own, -begins.min().unwrap_or(0).min(0)),
        }
    }
}

/// A name in a trace's table of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub u32);

/// Names, each kept once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    texts: Vec<String>,
    known: HashMap<String, Name>,
}

impl Names {
    /// The number of a name, added if it is new.
    pub fn enter(&mut self, text: &str) -> Name {
        if let Some(name) = self.find(text) {
            return name;
        }
        let name = Name(self.texts.len() as u32);
        self.texts.push(text.into());
        self.known.insert(text.into(), name);
        name
    }

    /// The number of a name, if it is known.
    pub fn find(&self, text: &str) -> Option<Name> {
        self.known.get(text).copied()
    }

    /// The text of a name; empty if it is not in this table.
    pub fn text(&self, name: Name) -> &str {
        self.texts.get(name.0 as usize).map_or("", String::as_str)
    }

    /// All texts, in order of their numbers.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(String::as_str)
    }
}

/// What a slice of time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Computation: a kernel of a device, or an operator on the CPU if there is no device.
    Compute,
    /// A collective, or another exchange between ranks or devices, on a device or on the host.
    Collective,
    /// A copy from host to device.
    CopyIn,
    /// A copy from device to host.
    CopyOut,
    /// A copy within a device.
    CopyDevice,
    /// Filling memory.
    Fill,
    /// A call of the driver or the runtime, on the host.
    Call,
    /// An operator of the framework on the host; operators nest.
    Operator,
    /// A range that the user or the framework named; ranges nest.
    Range,
}

impl Kind {
    /// Whether it keeps a device busy, if the trace has one.
    pub const fn is_device_work(self) -> bool {
        matches!(
            self,
            Self::Compute | Self::Collective | Self::CopyIn | Self::CopyOut | Self::CopyDevice | Self::Fill
        )
    }
}

/// A slice of time on a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// What it was spent on.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// Begin.
    pub begin: Nanos,
    /// End; not before the begin.
    pub end: Nanos,
    /// Index of its track in the trace.
    pub track: u32,
    /// Connects work on a device with the call that launched it; 0 if nothing does.
    pub correlation: u64,
    /// Bytes that a copy or a collective moved.
    pub bytes: Option<Bytes>,
}

impl Slice {
    /// From its begin to its end.
    pub const fn span(&self) -> Span {
        Span { begin: self.begin, end: self.end }
    }

    /// How long it lasts.
    pub fn length(&self) -> Nanos {
        self.end.since(self.begin)
    }
}

/// A stream of a device, or a thread of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// Its name, such as `stream 7` or `thread 123`.
    pub name: String,
    /// The device; `None` on the host.
    pub device: Option<u32>,
}

/// A training step, as the trace marks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRange {
    /// Its number.
    pub number: u64,
    /// Begin.
    pub begin: Nanos,
    /// End.
    pub end: Nanos,
}

impl StepRange {
    /// From its begin to its end.
    pub const fn span(&self) -> Span {
        Span { begin: self.begin, end: self.end }
    }
}

/// Details of a collective besides its slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// Index of its slice in the trace.
    pub slice: usize,
    /// The operation, such as `all_reduce`.
    pub operation: Name,
    /// Its group of ranks, if the trace names it.
    pub group: Option<Name>,
    /// Its number within the group, if the trace has one. Otherwise its position among those of the same operation and
    /// group identifies it.
    pub sequence: Option<u64>,
}

/// A profile of one rank.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The rank, if the trace says so.
    pub rank: Option<Rank>,
    /// Number of ranks, if the trace says so.
    pub world: Option<u32>,
    /// The collective backend, such as `nccl` or `gloo`.
    pub backend: Option<String>,
    /// The machine's name, if known: ranks of one machine share a clock.
    pub host: Option<String>,
    /// Names of the devices.
    pub devices: Vec<String>,
    /// The clock of the times in a trace.
    pub clock: Clock,
    /// Names of slices.
    pub names: Names,
    /// Streams and threads.
    pub tracks: Vec<Track>,
    /// Slices in order of their begin.
    pub slices: Vec<Slice>,
    /// Collectives in order of their slices.
    pub collectives: Vec<Collective>,
    /// Steps in order; empty if the trace marks none.
    pub steps: Vec<StepRange>,
    /// Whether steps are marked on a device only: they begin and end with its work.
    pub steps_on_device: bool,
    /// Whether it may have work of devices that was not read: then it is unknown when they were idle.
    pub unread: bool,
    /// What was salvaged or could not be read, one sentence each.
    pub warnings: Vec<String>,
}

impl Trace {
    /// First begin to last end of all slices.
    pub fn extent(&self) -> Option<(Nanos, Nanos)> {
        let begin = self.slices.first()?.begin;
        Some((begin, self.slices.iter().map(|slice| slice.end).max()?))
    }

    /// Whether it has a device.
    pub fn has_device(&self) -> bool {
        self.tracks.iter().any(|track| track.device.is_some())
    }

    /// The device that a slice is on; `None` on the host.
    pub fn device_of(&self, slice: &Slice) -> Option<u32> {
        self.tracks.get(slice.track as usize)?.device
    }

    /// Moves times that may be negative, kept as two's complement, to a clock. What does not fit on it goes in [`Self::sort`].
    pub fn place(&mut self, (clock, shift): (Clock, i64)) {
        self.clock = clock;
        let place = |moment: Nanos| u64::try_from((moment.0 as i64).checked_add(shift)?).ok().map(Nanos);
        for slice in &mut self.slices {
            let placed = place(slice.begin).zip(place(slice.end));
            (slice.begin, slice.end) = placed.unwrap_or((OUTSIDE, OUTSIDE));
        }
    }

    /// Adds a stream of a device, or a thread of the host.
    pub fn add_track(&mut self, name: impl Into<String>, device: Option<u32>) -> u32 {
        self.tracks.push(Track { name: name.into(), device });
        self.tracks.len() as u32 - 1
    }

    /// Says that the slice that comes next is a collective.
    pub fn add_collective(&mut self, operation: &str) {
        let (slice, operation) = (self.slices.len(), self.names.enter(operation));
        self.collectives.push(Collective { slice, operation, group: None, sequence: None });
    }

    /// Sorts slices by begin, longer ones first among equals, updates the collectives, and leaves out what is not on the
    /// clock.
    pub fn sort(&mut self) {
        let mut order: Vec<u32> = (0..self.slices.len() as u32).collect();
        order.sort_by_key(|&at| {
            let slice = &self.slices[at as usize];
            (slice.begin, std::cmp::Reverse(slice.end), at)
        });
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old as usize] = new;
        }
        self.slices = order.iter().map(|&at| self.slices[at as usize]).collect();
        for collective in &mut self.collectives {
            collective.slice = place[collective.slice];
        }
        self.collectives.sort_by_key(|collective| collective.slice);
        self.slices.truncate(self.slices.partition_point(|slice| slice.begin < OUTSIDE));
        self.collectives.retain(|collective| collective.slice < self.slices.len());
        self.steps.sort_by_key(|step| step.begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorting_keeps_collectives_tied_to_their_slices() {
        let mut trace = Trace::default();
        let name = trace.names.enter("all_reduce");
        assert_eq!(trace.names.enter("all_reduce"), name);
        let slice = |begin, end| Slice {
            kind: Kind::Collective,
            name,
            begin: Nanos(begin),
            end: Nanos(end),
            track: 0,
            correlation: 0,
            bytes: None,
        };
        trace.slices = vec![slice(5, 6), slice(1, 2), slice(1, 9)];
        trace.collectives = vec![Collective { slice: 0, operation: name, group: None, sequence: Some(7) }];
        trace.sort();
        assert_eq!(trace.slices, [slice(1, 9), slice(1, 2), slice(5, 6)]);
        assert_eq!(trace.collectives[0].slice, 2);
        assert_eq!(trace.extent(), Some((Nanos(1), Nanos(9))));
    }
}
