//! When a device was idle, and why.

use paceline_lab::run::Span;
use paceline_record::Nanos;
use serde::Serialize;

use super::super::idle::Causes;
use super::super::spans::Spans;
use super::sum;
use crate::trace::{Kind, Trace};

/// Idle time by cause; [`crate::idle`] has the definitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Idle {
    /// The host was busy on the way to launch the next work.
    pub host_late: Nanos,
    /// Work waited in a stream: for another stream, for a copy, for a device that was not ready.
    pub queued: Nanos,
    /// Nothing was queued, and the trace shows no activity on the host.
    pub nothing_queued: Nanos,
    /// The host was getting a batch.
    pub loading: Nanos,
    /// The trace does not connect the next work with a call.
    pub unknown: Nanos,
}

impl Idle {
    fn of(causes: &Causes, gap: Span) -> Self {
        let [host_late, queued, nothing_queued, loading] =
            [&causes.host_late, &causes.queued, &causes.empty, &causes.loading]
                .map(|cause| cause.within(gap));
        let known = sum(&[host_late, queued, nothing_queued, loading]);
        Self { host_late, queued, nothing_queued, loading, unknown: gap.end.since(gap.begin).since(known) }
    }

    pub(super) fn add(&mut self, other: Self) {
        let Self { host_late, queued, nothing_queued, loading, unknown } = other;
        for (all, one) in [
            (&mut self.host_late, host_late),
            (&mut self.queued, queued),
            (&mut self.nothing_queued, nothing_queued),
            (&mut self.loading, loading),
            (&mut self.unknown, unknown),
        ] {
            *all = sum(&[*all, one]);
        }
    }

    /// All of them with their names.
    pub fn causes(&self) -> [(Nanos, &'static str); 5] {
        [
            (self.host_late, "host late"),
            (self.queued, "waiting in a stream"),
            (self.nothing_queued, "nothing queued"),
            (self.loading, "getting a batch"),
            (self.unknown, "unknown"),
        ]
    }
}

/// A time in which a device was idle.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Gap {
    /// The device; `None` for the host.
    pub device: Option<u32>,
    /// From the trace's begin to the gap's.
    pub from: Nanos,
    /// Its length.
    pub length: Nanos,
    /// The cause.
    pub idle: Idle,
    /// What the host did in the meantime: the shortest call, operator or range that covers at least half of the gap.
    pub host: Option<String>,
}

/// The gaps of a window in which a device was not busy, with moments as in the trace.
pub(super) fn find(busy: &Spans, window: &Spans, causes: &Causes) -> impl Iterator<Item = Gap> {
    let gaps = window.subtract(busy);
    let gap = |&gap: &Span| Gap {
        from: gap.begin,
        length: gap.end.since(gap.begin),
        idle: Idle::of(causes, gap),
        ..Gap::default()
    };
    gaps.as_slice().iter().map(gap).collect::<Vec<_>>().into_iter()
}

/// What the host did during a span.
pub(super) fn host_activity(trace: &Trace, Span { begin, end }: Span) -> Option<String> {
    let half = end.since(begin).0.div_ceil(2);
    let host = trace.slices.iter().take_while(|slice| slice.begin < end).filter(|slice| {
        matches!(slice.kind, Kind::Call | Kind::Operator | Kind::Range)
            && slice.end.min(end).since(slice.begin.max(begin)).0 >= half
    });
    let shortest = host.min_by_key(|slice| slice.end.since(slice.begin))?;
    Some(trace.names.text(shortest.name).into())
}
