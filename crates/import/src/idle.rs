//! Why a device was idle. The same split serves profiles and steps of a run.
//!
//! - **Waiting in a stream**: the call that launched some later work had returned at least [`LAUNCH`] before.
//! - Otherwise the call that launches the next work is still to come, if it is known. The **host was late** while a thread
//!   that launches work was in a call or an operator. While none was, **nothing was queued**: Python, input or sleep, which
//!   the trace does not show. The same holds after the last work. Some profilers record calls apart from what threads did
//!   otherwise: then that is unknown.
//! - Before the first work and after the last, calls that neither launch work nor wait for it **set up** the device, or shut
//!   it down.
//! - In all cases, time spent getting a batch is loading.
//! - The cause of the rest is unknown.

use std::collections::{BTreeSet, HashMap, HashSet};

use paceline_lab::run::Span;
use paceline_record::Nanos;

use super::spans::Spans;
use super::split::{Part, Sight, is_loading};
use crate::trace::{Kind, Slice, Trace};

/// Time from a launch on the host to its start on an idle device; work waits only after that.
pub const LAUNCH: Nanos = Nanos(10_000);

/// What the host did to launch work on devices.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The calls that launched work, by correlation.
    launches: HashMap<u64, Span>,
    /// When a thread that launches work was in a call or an operator.
    active: Spans,
    /// When it was in a call that neither launches work nor waits for it.
    idle_calls: Spans,
    /// When it was getting a batch.
    pub loading: Spans,
    /// Whether the trace shows what other threads did, and of those that launch work only their calls.
    apart: bool,
}

impl Host {
    /// Collects the host's activity from a trace.
    pub fn of(trace: &Trace) -> Self {
        let correlated = || trace.slices.iter().filter(|slice| slice.correlation != 0);
        let mut launches = HashMap::new();
        for call in correlated().filter(|slice| slice.kind == Kind::Call) {
            launches.entry(call.correlation).or_insert(call.span());
        }
        let work = correlated().filter(|slice| slice.kind.is_device_work());
        let asked: HashSet<u64> = work.map(|slice| slice.correlation).collect();
        let launches_work = |slice: &&Slice| slice.kind == Kind::Call && asked.contains(&slice.correlation);
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
        let named = |slice: &&Slice| matches!(slice.kind, Kind::Operator | Kind::Range);
        let mut named =
            trace.slices.iter().filter(named).filter(|slice| trace.device_of(slice).is_none()).peekable();
        let apart = !threads.is_empty()
            && named.peek().is_some()
            && named.all(|slice| !threads.contains(&slice.track));
        Self { launches, active, idle_calls, loading, apart }
    }

    /// The call that launched a slice.
    pub fn launch(&self, slice: &Slice) -> Option<Span> {
        self.launches.get(&slice.correlation).copied()
    }

    /// Explains the time outside `busy`, in which a device was idle: by cause, without overlap; the cause of the rest is
    /// unknown. `sight` tells what the work of the device is.
    pub fn explain(&self, trace: &Trace, sight: Sight, busy: &Spans) -> [(Part, Spans); 5] {
        let (mut unasked, mut queued) = (Vec::new(), Vec::new());
        let mut work = trace.slices.iter().rev().filter(|slice| sight.counts(trace, slice)).peekable();
        let mut ready: Option<Nanos> = None;
        let begins = busy.as_slice().iter().rev();
        let ends = begins.clone().skip(1).map(|span| span.end).chain([Nanos(0)]);
        let (mut before, mut after) = (Spans::default(), Spans::default());
        if let Some(work) = busy.extent().filter(|_| !self.launches.is_empty()) {
            before.push(Nanos(0), work.begin);
            after.push(work.end, Nanos(u64::MAX));
        }
        // From the last gap to the first, so that the earliest return of all later launches is known.
        for (next, from) in begins.map(|span| span.begin).zip(ends) {
            let mut known = false;
            while let Some(slice) = work.next_if(|slice| slice.begin >= next) {
                // What works on the host needs no launch.
                let on_host = trace.device_of(slice).is_none();
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
        let set_up = unasked.intersect(&before.union(&after)).intersect(&self.idle_calls);
        let unasked = unasked.subtract(&set_up);
        let host_late = unasked.intersect(&self.active);
        let silent = if self.apart { Spans::default() } else { unasked.subtract(&host_late) };
        [
            (Part::NothingQueued, silent),
            (Part::HostLate, host_late),
            (Part::Queued, collect(queued)),
            (Part::SetUp, set_up),
            (Part::Loading, loading),
        ]
    }
}
