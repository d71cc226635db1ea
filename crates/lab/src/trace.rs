//! What a profiler saw of one rank, whatever profiler it was: slices of time on tracks, steps, and collectives.
//!
//! Readers of foreign formats fill this in; [`crate::import`] makes steps of a run log from it.

use std::collections::HashMap;

use paceline_record::{Bytes, Nanos, Rank};

/// Which clock moments are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The trace's own: only differences mean anything, and other ranks' traces have other origins.
    #[default]
    Own,
    /// Nanoseconds since 1970: ranks of one host can be laid over each other.
    Epoch,
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
    /// The number of a name, which is entered if it is new.
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

    /// The text of a name; empty if it is not of this table.
    pub fn text(&self, name: Name) -> &str {
        self.texts.get(name.0 as usize).map_or("", String::as_str)
    }

    /// All texts, in order of their numbers.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(String::as_str)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

/// What a slice of time went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Computation: a kernel of a device, or an operator of a processor where there is no device.
    Compute,
    /// A collective, on a device or on the host.
    Collective,
    /// A copy from host to device.
    CopyIn,
    /// A copy from device to host.
    CopyOut,
    /// A copy within or between devices.
    CopyDevice,
    /// Filling memory.
    Fill,
    /// A call of the driver or the runtime on the host.
    Call,
    /// An operator of the framework on the host; operators nest.
    Operator,
    /// A range that the user or the framework named; ranges nest.
    Range,
}

impl Kind {
    /// Whether it keeps a device busy, where the trace has one.
    pub const fn is_device_work(self) -> bool {
        matches!(
            self,
            Self::Compute | Self::Collective | Self::CopyIn | Self::CopyOut | Self::CopyDevice | Self::Fill
        )
    }
}

/// A stretch of time on a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// What it went to.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// Begin.
    pub begin: Nanos,
    /// End; not before the begin.
    pub end: Nanos,
    /// Place of its track in the trace.
    pub track: u32,
    /// What ties work on a device to the call on the host that launched it; 0 where nothing does.
    pub correlation: u64,
    /// Bytes that a copy or a collective moved.
    pub bytes: Option<Bytes>,
}

/// A stream of a device, or a thread of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// Its name, as `stream 7` or `thread 123`.
    pub name: String,
    /// Which device; `None` on the host.
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

/// What is known of a collective besides its slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// Place of its slice in the trace.
    pub slice: usize,
    /// The operation, as `all_reduce`.
    pub operation: Name,
    /// The group of ranks it runs in, where the trace names it.
    pub group: Option<Name>,
    /// Its number within the group, where the trace has one. Otherwise its place among those of the same operation and
    /// group tells which it is.
    pub sequence: Option<u64>,
}

/// What a profiler saw of one rank.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Which rank, where the trace says so.
    pub rank: Option<Rank>,
    /// Ranks of the run, where the trace says so.
    pub world: Option<u32>,
    /// What carries collectives, as `nccl` or `gloo`.
    pub backend: Option<String>,
    /// The machine's name, where the trace says so: ranks of one machine share a clock.
    pub host: Option<String>,
    /// Names of the devices.
    pub devices: Vec<String>,
    /// Which clock moments are on.
    pub clock: Clock,
    /// Names of slices.
    pub names: Names,
    /// Streams and threads.
    pub tracks: Vec<Track>,
    /// Slices in order of their begin.
    pub slices: Vec<Slice>,
    /// Collectives in order of their slices.
    pub collectives: Vec<Collective>,
    /// Steps in order; empty where the trace marks none.
    pub steps: Vec<StepRange>,
    /// What was salvaged, or could not be read: a sentence each.
    pub warnings: Vec<String>,
}

impl Trace {
    /// First begin to last end of all slices.
    pub fn extent(&self) -> Option<(Nanos, Nanos)> {
        let begin = self.slices.first()?.begin;
        Some((begin, self.slices.iter().map(|slice| slice.end).max()?))
    }

    /// Whether any device shows in it.
    pub fn has_device(&self) -> bool {
        self.tracks.iter().any(|track| track.device.is_some())
    }

    /// Sets slices in order of their begin, the longer first among equals, and keeps collectives tied to theirs.
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
