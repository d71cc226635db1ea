//! When a device was idle, and why.

use paceline_lab::run::Span;
use paceline_record::Nanos;
use serde::Serialize;

use super::super::spans::Spans;
use super::super::split::{Part, Parts, Tiling};
use super::ROWS;
use crate::trace::{Kind, Trace};

/// Idle time by cause; [`Part`] has the definitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Idle {
    /// The host set up the device before its first work, or shut it down after its last.
    pub set_up: Nanos,
    /// The host was busy on the way to launch the next work.
    pub host_late: Nanos,
    /// Work waited in a stream.
    pub queued: Nanos,
    /// Nothing was queued, and the trace shows no activity on the host.
    pub nothing_queued: Nanos,
    /// The host was getting a batch.
    pub loading: Nanos,
    /// The trace does not connect the next work with a call.
    pub unknown: Nanos,
}

impl Idle {
    pub(super) fn of(parts: &Parts) -> Self {
        Self {
            set_up: parts[Part::SetUp],
            host_late: parts[Part::HostLate],
            queued: parts[Part::Queued],
            nothing_queued: parts[Part::NothingQueued],
            loading: parts[Part::Loading],
            unknown: parts[Part::Unknown],
        }
    }

    /// All of them with their names.
    pub fn causes(&self) -> [(Nanos, &'static str); 6] {
        [
            (self.set_up, "start-up and shut-down"),
            (self.host_late, "host late"),
            (self.queued, "waiting in a stream"),
            (self.nothing_queued, "nothing queued"),
            (self.loading, "getting a batch"),
            (self.unknown, "unknown"),
        ]
    }
}

/// A time in which all devices were idle.
#[derive(Clone, Debug, Serialize)]
pub struct Gap {
    /// From the trace's begin to the gap's.
    pub from: Nanos,
    /// Its length.
    pub length: Nanos,
    /// The cause.
    pub idle: Idle,
    /// What the host did in the meantime: the shortest call, operator or range that covers at least half of the gap.
    pub host: Option<String>,
}

/// The longest gaps of a window.
pub(super) fn longest(trace: &Trace, tiling: &Tiling, window: &Spans) -> Vec<Gap> {
    let origin = trace.extent().unwrap_or_default().0;
    let mut spans = window.subtract(&tiling.busy).as_slice().to_vec();
    spans.sort_by_key(|span| (std::cmp::Reverse(span.end.since(span.begin)), span.begin));
    spans.truncate(ROWS / 2);
    let gap = |span: Span| Gap {
        from: span.begin.since(origin),
        length: span.end.since(span.begin),
        idle: Idle::of(&tiling.within(span)),
        host: host_activity(trace, span),
    };
    spans.into_iter().map(gap).collect()
}

fn host_activity(trace: &Trace, Span { begin, end }: Span) -> Option<String> {
    let half = end.since(begin).0.div_ceil(2);
    let host = trace.slices.iter().take_while(|slice| slice.begin < end).filter(|slice| {
        matches!(slice.kind, Kind::Call | Kind::Operator | Kind::Range)
            && slice.end.min(end).since(slice.begin.max(begin)).0 >= half
    });
    let shortest = host.min_by_key(|slice| slice.end.since(slice.begin))?;
    Some(trace.names.text(shortest.name).into())
}
