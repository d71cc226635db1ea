//! When a device stood idle, and why: the host had asked for nothing, or what it had asked for had to wait.

use std::collections::HashMap;

use paceline_record::Nanos;
use serde::Serialize;

use super::{Window, sum};
use crate::trace::{Kind, Slice, Trace};

/// Idle time by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Idle {
    /// Nothing was queued: the host was late, or had nothing more to do.
    pub host_late: Nanos,
    /// Work was queued, but waited: for another stream, for a copy, or for its launch to arrive.
    pub queued: Nanos,
    /// The trace does not tie the next work to a call, so it cannot be told.
    pub unknown: Nanos,
}

impl Idle {
    pub(super) fn add(&mut self, other: Self) {
        self.host_late = sum(&[self.host_late, other.host_late]);
        self.queued = sum(&[self.queued, other.queued]);
        self.unknown = sum(&[self.unknown, other.unknown]);
    }
}

/// A stretch in which a device stood idle.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Gap {
    /// Which device; `None` for the host.
    pub device: Option<u32>,
    /// From the trace's begin to the gap's.
    pub from: Nanos,
    /// How long it lasted.
    pub length: Nanos,
    /// Why.
    pub idle: Idle,
    /// What the host did meanwhile: the shortest of its calls, operators and ranges that cover at least half of the gap.
    pub host: Option<String>,
}

/// When the host began to ask for work on a device.
pub(super) struct Calls {
    begins: HashMap<u64, Nanos>,
}

impl Calls {
    pub(super) fn of(trace: &Trace) -> Self {
        let mut begins = HashMap::new();
        for slice in trace.slices.iter().filter(|slice| slice.kind == Kind::Call && slice.correlation != 0) {
            // In order of their begin: the first stays.
            begins.entry(slice.correlation).or_insert(slice.begin);
        }
        Self { begins }
    }

    fn begin(&self, slice: &Slice) -> Option<Nanos> {
        self.begins.get(&slice.correlation).copied().filter(|_| slice.correlation != 0)
    }
}

/// Gaps between slices, which are in order of their begin, with moments as in the trace.
pub(super) fn find(slices: &[Slice], (begin, end): Window, calls: &Calls) -> impl Iterator<Item = Gap> {
    // When any of the work from here on was first asked for.
    let mut asked = vec![None; slices.len() + 1];
    for (at, slice) in slices.iter().enumerate().rev() {
        asked[at] = calls.begin(slice).into_iter().chain(asked[at + 1]).min();
    }
    let mut gaps = Vec::new();
    let mut free = begin;
    for (at, slice) in slices.iter().enumerate() {
        let until = slice.begin.min(end);
        if until > free {
            let known = calls.begin(slice).is_some();
            gaps.push(Gap {
                from: free,
                length: until.since(free),
                idle: cause((free, until), asked[at], known),
                ..Gap::default()
            });
        }
        free = free.max(slice.end);
    }
    if end > free {
        // Nothing comes after it, so nothing was queued.
        let length = end.since(free);
        gaps.push(Gap {
            from: free,
            length,
            idle: Idle { host_late: length, ..Idle::default() },
            ..Gap::default()
        });
    }
    gaps.into_iter()
}

fn cause((begin, end): Window, asked: Option<Nanos>, known: bool) -> Idle {
    match asked {
        Some(asked) if known || asked < end => {
            let queued = asked.clamp(begin, end);
            Idle { host_late: queued.since(begin), queued: end.since(queued), unknown: Nanos(0) }
        }
        _ => Idle { unknown: end.since(begin), ..Idle::default() },
    }
}

/// What the host did in a window.
pub(super) fn host_activity(trace: &Trace, (begin, end): Window) -> Option<String> {
    let half = end.since(begin).0.div_ceil(2);
    let host = trace.slices.iter().take_while(|slice| slice.begin < end).filter(|slice| {
        matches!(slice.kind, Kind::Call | Kind::Operator | Kind::Range)
            && slice.end.min(end).since(slice.begin.max(begin)).0 >= half
    });
    let shortest = host.min_by_key(|slice| slice.end.since(slice.begin))?;
    Some(trace.names.text(shortest.name).into())
}
