//! Why a device stood idle: one split, for the screen of a profile and for the steps of a run.
//!
//! - **Waiting in a stream**: the call that launched some later work had returned [`LAUNCH`] before.
//! - Otherwise the call that launched the next work is still to come, if it is known at all. The **host was late** while a
//!   thread that launches work was in a call or an operator, on its way there. While none was, **nothing was queued**:
//!   Python, input or sleep, which the trace does not show. So it is after the last work.
//! - In both, the time in which a batch was being got is loading.
//! - What is left, the trace cannot tell.

use std::collections::BTreeSet;

use paceline_record::Nanos;

use super::spans::Spans;
use super::split::is_loading;
use crate::run::Span;
use crate::trace::{Kind, Slice, Trace};

/// How long work takes from the host to an idle device; until then it does not wait.
pub const LAUNCH: Nanos = Nanos(10_000);

/// What the host did about the work of devices.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The calls that launched work, by correlation.
    launches: Vec<(u64, Span)>,
    /// Moments in which a thread that launches work was in a call or an operator.
    active: Spans,
    /// Moments in which it was getting a batch.
    loading: Spans,
}

/// Idle moments by cause; no moment is in two, and those in none cannot be told.
#[derive(Clone, Debug, Default)]
pub struct Causes {
    /// The host was on its way to the next launch.
    pub host_late: Spans,
    /// Work was queued, and waited.
    pub queued: Spans,
    /// Nothing was queued, and the host showed nothing.
    pub empty: Spans,
    /// A batch was being got.
    pub loading: Spans,
}

impl Host {
    /// Looks through a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut launches = Vec::new();
        let mut asked: Vec<u64> = Vec::new();
        for slice in trace.slices.iter().filter(|slice| slice.correlation != 0) {
            if slice.kind == Kind::Call {
                launches.push((slice.correlation, Span { begin: slice.begin, end: slice.end }));
            } else if slice.kind.is_device_work() {
                asked.push(slice.correlation);
            }
        }
        // Of several calls of one correlation the first stays the first.
        launches.sort_by_key(|&(correlation, _)| correlation);
        asked.sort_unstable();
        let launches_work = |slice: &&Slice| {
            slice.kind == Kind::Call
                && slice.correlation != 0
                && asked.binary_search(&slice.correlation).is_ok()
        };
        let threads: BTreeSet<u32> =
            trace.slices.iter().filter(launches_work).map(|slice| slice.track).collect();
        let loads: Vec<bool> = trace.names.texts().map(is_loading).collect();
        let (mut active, mut loading) = (Spans::default(), Spans::default());
        for slice in &trace.slices {
            if matches!(slice.kind, Kind::Call | Kind::Operator) && threads.contains(&slice.track) {
                // What was handed over is still on its way for a while.
                let on_its_way = if launches_work(&slice) { LAUNCH } else { Nanos(0) };
                active.push(slice.begin, Nanos(slice.end.0.saturating_add(on_its_way.0)));
            }
            let said = matches!(slice.kind, Kind::Operator | Kind::Range | Kind::Compute);
            if said && loads.get(slice.name.0 as usize).copied().unwrap_or(false) {
                loading.push(slice.begin, slice.end);
            }
        }
        Self { launches, active, loading }
    }

    /// Moments in which the host was getting a batch.
    pub fn loading(&self) -> &Spans {
        &self.loading
    }

    /// The call that launched a slice.
    pub fn launch(&self, slice: &Slice) -> Option<Span> {
        let place = self.launches.partition_point(|&(correlation, _)| correlation < slice.correlation);
        let known =
            self.launches.get(place).filter(|call| slice.correlation != 0 && call.0 == slice.correlation);
        known.map(|call| call.1)
    }

    /// Explains the moments that are not in `busy`, all the time in which a device worked. `work` is what it did, the last
    /// to begin first.
    pub fn explain<'a>(&self, work: impl Iterator<Item = &'a Slice>, busy: &Spans) -> Causes {
        let (mut unasked, mut queued) = (Vec::new(), Vec::new());
        let mut work = work.peekable();
        let mut ready: Option<Nanos> = None;
        let begins = busy.as_slice().iter().rev();
        let ends = begins.clone().skip(1).map(|span| span.end).chain([Nanos(0)]);
        let mut after = Spans::default();
        if let Some(last) = busy.as_slice().last().filter(|_| !self.launches.is_empty()) {
            after.push(last.end, Nanos(u64::MAX));
        }
        // From the last gap to the first, so that the first return of all later launches is at hand.
        for (next, from) in begins.map(|span| span.begin).zip(ends) {
            let mut known = false;
            while let Some(slice) = work.next_if(|slice| slice.begin >= next) {
                if let Some(call) = self.launch(slice) {
                    known |= slice.begin == next;
                    ready = Some(ready.map_or(call.end, |ready| ready.min(call.end)));
                }
            }
            let queued_from = ready.map_or(next, |ready| Nanos(ready.0.saturating_add(LAUNCH.0)));
            let queued_from = queued_from.clamp(from, next);
            queued.push(Span { begin: queued_from, end: next });
            if known {
                unasked.push(Span { begin: from, end: queued_from });
            }
        }
        let collect = |gaps: Vec<Span>| {
            let mut spans = Spans::default();
            gaps.into_iter().rev().for_each(|gap| spans.push(gap.begin, gap.end));
            spans
        };
        let unasked = collect(unasked);
        let late = unasked.intersect(&self.active).subtract(&self.loading);
        let unasked = unasked.union(&after);
        Causes {
            empty: unasked.subtract(&self.loading).subtract(&late),
            host_late: late,
            queued: collect(queued),
            loading: unasked.intersect(&self.loading),
        }
    }
}
