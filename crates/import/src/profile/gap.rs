//! When a device was idle, and why.

use std::collections::BTreeMap;

use paceline_lab::run::Span;
use paceline_record::Nanos;
use serde::Serialize;

use super::super::spans::Spans;
use super::super::split::{Part, Parts, Tiling};
use super::ROWS;
use crate::trace::{Kind, Trace};

/// Causes of idle time, and what they are called.
pub const CAUSES: [(Part, &str); 6] = [
    (Part::SetUp, "start-up and shut-down"),
    (Part::HostLate, "host late"),
    (Part::Queued, "waiting in a stream"),
    (Part::NothingQueued, "nothing queued"),
    (Part::Loading, "getting a batch"),
    (Part::Unknown, "unknown"),
];

/// Idle time by each of its [`CAUSES`].
pub type Idle = BTreeMap<Part, Nanos>;

pub(super) fn causes(parts: &Parts) -> Idle {
    CAUSES.iter().map(|&(cause, _)| (cause, parts[cause])).collect()
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
        idle: causes(&tiling.within(span)),
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
    let shortest = host.min_by_key(|slice| slice.length())?;
    Some(trace.names.text(shortest.name).into())
}
