//! Why a device was idle. The same split serves profiles and steps of a run.
//!
//! - **Waiting in a stream**: the call that launched some later work had returned at least [`LAUNCH`] before.
//! - Otherwise the call that launches the next work is still to come, if it is known. The **host was late** while a thread
//!   that launches work was in a call or an operator. While none was, **nothing was queued**: Python, input or sleep, which
//!   the trace does not show. The same holds after the last work.
//! - Before the first work and after the last, calls that neither launch work nor wait for it **set up** the device, or shut
//!   it down.
//! - In all cases, time spent getting a batch is loading.
//! - The cause of the rest is unknown.

use std::collections::BTreeSet;

use paceline_lab::run::Span;
use paceline_record::Nanos;

use super::spans::Spans;
use super::split::is_loading;
use crate::trace::{Kind, Slice, Trace};

/// Time from a launch on the host to its start on an idle device; work waits only after that.
pub const LAUNCH: Nanos = Nanos(10_000);

/// What the host did to launch work on devices.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The calls that launched work, by correlation.
    launches: Vec<(u64, Span)>,
    /// When a thread that launches work was in a call or an operator.
    active: Spans,
    /// When it was in a call that neither launches work nor waits for it.
    idle_calls: Spans,
    /// When it was getting a batch.
    loading: Spans,
    /// Which tracks are of the host: what works there needs no launch.
    on_host: Vec<bool>,
}

/// Idle time by cause, without overlap; the cause of the rest is unknown.
#[derive(Clone, Debug, Default)]
pub struct Causes {
    /// The host was busy on the way to the next launch.
    pub host_late: Spans,
    /// Work was queued, and waited.
    pub queued: Spans,
    /// Nothing was queued, and the trace shows no activity on the host.
    pub empty: Spans,
    /// The host set up the device before its first work, or shut it down after its last.
    pub set_up: Spans,
    /// The host was getting a batch.
    pub loading: Spans,
}

impl Host {
    /// Collects the host's activity from a trace.
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
        // Of several calls with one correlation, keep the first.
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
        let waits: Vec<bool> = trace.names.texts().map(|name| name.contains("Synchronize")).collect();
        let [mut active, mut idle_calls, mut loading]: [Spans; 3] = Default::default();
        for slice in &trace.slices {
            if matches!(slice.kind, Kind::Call | Kind::Operator) && threads.contains(&slice.track) {
                // Launched work takes a while to reach the device.
                let on_its_way = if launches_work(&slice) { LAUNCH } else { Nanos(0) };
                active.push(slice.begin, Nanos(slice.end.0.saturating_add(on_its_way.0)));
            }
            if slice.kind == Kind::Call && !launches_work(&slice) && !waits[slice.name.0 as usize] {
                idle_calls.push(slice.begin, slice.end);
            }
            let said = matches!(slice.kind, Kind::Operator | Kind::Range | Kind::Compute);
            if said && loads.get(slice.name.0 as usize).copied().unwrap_or(false) {
                loading.push(slice.begin, slice.end);
            }
        }
        let on_host = trace.tracks.iter().map(|track| track.device.is_none()).collect();
        Self { launches, active, idle_calls, loading, on_host }
    }

    /// When the host was getting a batch.
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

    /// Explains the time outside `busy`, in which a device was idle. `work` is what the device did, latest begin first.
    pub fn explain<'a>(&self, work: impl Iterator<Item = &'a Slice>, busy: &Spans) -> Causes {
        let (mut unasked, mut queued) = (Vec::new(), Vec::new());
        let mut work = work.peekable();
        let mut ready: Option<Nanos> = None;
        let begins = busy.as_slice().iter().rev();
        let ends = begins.clone().skip(1).map(|span| span.end).chain([Nanos(0)]);
        let (mut edges, mut after) = (Spans::default(), Spans::default());
        if let (Some(first), Some(last)) = (busy.as_slice().first(), busy.as_slice().last())
            && !self.launches.is_empty()
        {
            after.push(last.end, Nanos(u64::MAX));
            edges.push(Nanos(0), first.begin);
            edges.push(last.end, Nanos(u64::MAX));
        }
        // From the last gap to the first, so that the earliest return of all later launches is known.
        for (next, from) in begins.map(|span| span.begin).zip(ends) {
            let mut known = false;
            while let Some(slice) = work.next_if(|slice| slice.begin >= next) {
                let on_host = self.on_host.get(slice.track as usize).is_some_and(|on_host| *on_host);
                let itself = on_host.then_some(Span { begin: slice.begin, end: slice.begin });
                if let Some(call) = self.launch(slice).or(itself) {
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
        let unasked = collect(unasked).union(&after);
        let loading = unasked.intersect(&self.loading);
        let unasked = unasked.subtract(&loading);
        let set_up = unasked.intersect(&edges).intersect(&self.idle_calls);
        let unasked = unasked.subtract(&set_up);
        let host_late = unasked.intersect(&self.active);
        Causes { empty: unasked.subtract(&host_late), host_late, queued: collect(queued), set_up, loading }
    }
}
