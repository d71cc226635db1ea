//! What each moment of a rank went to: computation, communication that shows, copies, a device that had nothing to do.
//!
//! Slices overlap. A moment counts once, for the first of these that was under way:
//!
//! ```text
//! a device:     update, backward, forward, other kernels; collectives; copies in, copies out, copies within and fills
//! no device:    loading; update, backward, forward, other operators; collectives
//! what is left: idle, by cause, with a device; no phase without one
//! ```
//!
//! - A kernel belongs to the update, to backward or to forward if the call that launched it lies within such a mark on
//!   the host. Forward is told from backward only where a trace marks both.
//! - Copies within a device and fills count as computation.
//! - In an idle moment work is **queued** if the call that launched some later work had returned [`LAUNCH`] before.
//!   Otherwise the host was **late**, if the call that launched the next work is known. The time in which a late host was
//!   getting a batch is loading.

use paceline_record::{Nanos, Phase, StepRecord};

use super::spans::Spans;
use crate::run::Span;
use crate::trace::{Kind, Slice, Trace};

/// How long work takes from the host to an idle device; until then it does not wait.
pub const LAUNCH: Nanos = Nanos(10_000);

/// What a name says of the time it stands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Load,
    Forward,
    Backward,
    Update,
    /// The host's side of a collective.
    Exchange,
    None,
}

impl Mark {
    fn of(name: &str) -> Self {
        let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
        if begins(&["enumerate(DataLoader)"]) {
            Self::Load
        } else if begins(&["Optimizer.step#"]) {
            Self::Update
        } else if begins(&["autograd::engine::evaluate_function"]) || name.eq_ignore_ascii_case("backward") {
            Self::Backward
        } else if begins(&["DistributedDataParallel.forward"]) || name.eq_ignore_ascii_case("forward") {
            Self::Forward
        } else if begins(&["c10d::", "gloo:", "nccl:", "record_param_comms"]) {
            Self::Exchange
        } else {
            Self::None
        }
    }
}

/// Whether an operator of this name only hands a collective over.
pub fn is_exchange(name: &str) -> bool {
    Mark::of(name) == Mark::Exchange
}

/// Where a trace shows work: on its devices, or on the host where it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Whether a device worked.
    pub device: bool,
    /// Whether collectives show on a device; if not, those of the host count.
    device_collectives: bool,
}

impl Sight {
    /// Looks through a trace.
    pub fn of(trace: &Trace) -> Self {
        let shown =
            || trace.slices.iter().filter(|slice| slice.kind.is_device_work() && on_device(trace, slice));
        Self {
            device: shown().next().is_some(),
            device_collectives: shown().any(|slice| slice.kind == Kind::Collective),
        }
    }

    /// Whether a slice keeps the rank busy, and is not the host's side of something that does.
    pub fn counts(self, trace: &Trace, slice: &Slice) -> bool {
        match slice.kind {
            Kind::Collective => on_device(trace, slice) || !self.device_collectives,
            Kind::Operator => !self.device,
            kind => kind.is_device_work() && (on_device(trace, slice) || !self.device),
        }
    }
}

fn on_device(trace: &Trace, slice: &Slice) -> bool {
    trace.tracks.get(slice.track as usize).is_some_and(|track| track.device.is_some())
}

/// What each moment of a rank went to.
#[derive(Clone, Debug, Default)]
pub struct Tiling {
    /// Moments by phase; no moment is in two.
    phases: Vec<(Phase, Spans)>,
    /// Moments in which a collective was under way, hidden or not.
    busy: Spans,
    /// Moments in which one was, and nothing of more weight.
    exposed: Spans,
    idle_host: Spans,
    idle_queued: Spans,
    /// Whether what no phase holds is an idle device.
    device: bool,
}

impl Tiling {
    /// Tiles all the time of a rank.
    pub fn of(trace: &Trace) -> Self {
        let sight = Sight::of(trace);
        let names: Vec<Mark> = trace.names.texts().map(Mark::of).collect();
        let mark = |slice: &Slice| names.get(slice.name.0 as usize).copied().unwrap_or(Mark::None);
        let marks = Marks::of(trace, mark);
        let launches = Launches::of(trace, sight);
        let mut work = Work::default();
        for slice in trace.slices.iter().filter(|slice| sight.counts(trace, slice)) {
            let spans = match slice.kind {
                Kind::Collective => &mut work.collectives,
                Kind::CopyIn => &mut work.copies_in,
                Kind::CopyOut => &mut work.copies_out,
                Kind::CopyDevice | Kind::Fill => &mut work.copies_within,
                _ if mark(slice) == Mark::Exchange || mark(slice) == Mark::Load => continue,
                _ => match launches.find(slice) {
                    Some(call) if marks.update.contains(call.begin) => &mut work.update,
                    Some(call) if marks.backward.contains(call.begin) => &mut work.backward,
                    Some(call) if marks.forward.contains(call.begin) => &mut work.forward,
                    _ => &mut work.compute,
                },
            };
            spans.push(slice.begin, slice.end);
        }
        let loading = if sight.device { Spans::default() } else { marks.load.clone() };
        if !sight.device {
            work.update = work.compute.intersect(&marks.update);
            work.backward = work.compute.intersect(&marks.backward);
            work.forward = work.compute.intersect(&marks.forward);
        }
        let busy = work.collectives.clone();
        let mut tiling = Self { busy, device: sight.device, ..Self::default() };
        let mut taken = Spans::default();
        for (phase, spans) in [
            (Phase::Load, loading),
            (Phase::Update, work.update),
            (Phase::Backward, work.backward),
            (Phase::Forward, work.forward),
            (Phase::Compute, work.compute),
            (Phase::CommWait, work.collectives),
            (Phase::CopyIn, work.copies_in),
            (Phase::CopyOut, work.copies_out),
            (Phase::Compute, work.copies_within),
        ] {
            let own = spans.subtract(&taken);
            taken = taken.union(&own);
            if phase == Phase::CommWait {
                tiling.exposed = own.clone();
            }
            tiling.phases.push((phase, own));
        }
        if sight.device {
            let (late, queued) = launches.explain_gaps(trace, sight, &taken);
            tiling.phases.push((Phase::Load, late.intersect(&marks.load)));
            (tiling.idle_host, tiling.idle_queued) = (late.subtract(&marks.load), queued);
        }
        tiling
    }

    /// Moments in which a collective was under way and nothing of more weight.
    pub fn exposed(&self) -> &Spans {
        &self.exposed
    }

    /// Books what a step's time went to: with a device all of it, otherwise what the trace shows.
    pub fn book(&self, span: Span, step: &mut StepRecord) {
        for (phase, spans) in &self.phases {
            step.book(*phase, spans.within(span));
        }
        step.comm_busy = self.busy.within(span);
        if self.device {
            step.book(Phase::Idle, span.end.since(span.begin).since(step.phases.total()));
            step.idle_host = self.idle_host.within(span);
            step.idle_queued = self.idle_queued.within(span);
        }
    }
}

/// Work by kind, overlaps and all.
#[derive(Default)]
struct Work {
    update: Spans,
    backward: Spans,
    forward: Spans,
    compute: Spans,
    collectives: Spans,
    copies_in: Spans,
    copies_out: Spans,
    copies_within: Spans,
}

/// Times of the host that its ranges and operators give a meaning.
#[derive(Default)]
struct Marks {
    load: Spans,
    forward: Spans,
    backward: Spans,
    update: Spans,
}

impl Marks {
    fn of(trace: &Trace, mark: impl Fn(&Slice) -> Mark) -> Self {
        let mut marks = Self::default();
        let said = |slice: &&Slice| matches!(slice.kind, Kind::Operator | Kind::Range | Kind::Compute);
        for slice in trace.slices.iter().filter(said).filter(|slice| !on_device(trace, slice)) {
            let spans = match mark(slice) {
                Mark::Load => &mut marks.load,
                Mark::Forward => &mut marks.forward,
                Mark::Backward => &mut marks.backward,
                Mark::Update => &mut marks.update,
                Mark::Exchange | Mark::None => continue,
            };
            spans.push(slice.begin, slice.end);
        }
        if marks.forward.as_slice().is_empty() || marks.backward.as_slice().is_empty() {
            (marks.forward, marks.backward) = (Spans::default(), Spans::default());
        }
        marks
    }
}

/// The calls that launched work of a device, by correlation.
struct Launches(Vec<(u64, Span)>);

impl Launches {
    fn of(trace: &Trace, sight: Sight) -> Self {
        let is_call = |slice: &&Slice| sight.device && slice.kind == Kind::Call && slice.correlation != 0;
        let call = |slice: &Slice| (slice.correlation, Span { begin: slice.begin, end: slice.end });
        let mut calls: Vec<(u64, Span)> = trace.slices.iter().filter(is_call).map(call).collect();
        calls.sort_by_key(|&(correlation, _)| correlation);
        Self(calls)
    }

    fn find(&self, slice: &Slice) -> Option<Span> {
        let place = self.0.partition_point(|&(correlation, _)| correlation < slice.correlation);
        self.0.get(place).filter(|call| call.0 == slice.correlation).map(|call| call.1)
    }

    /// Idle moments with a late host, and those with work queued; what is in neither cannot be told. `busy` is all the
    /// time in which the device worked.
    fn explain_gaps(&self, trace: &Trace, sight: Sight, busy: &Spans) -> (Spans, Spans) {
        let (mut late, mut queued) = (Vec::new(), Vec::new());
        let mut slices = trace.slices.iter().rev().filter(|slice| sight.counts(trace, slice)).peekable();
        let mut ready: Option<Nanos> = None;
        let begins = busy.as_slice().iter().rev();
        let ends = begins.clone().skip(1).map(|span| span.end).chain([Nanos(0)]);
        // From the last gap to the first, so that the first return of all later launches is at hand.
        for (next, from) in begins.map(|span| span.begin).zip(ends) {
            let mut known = false;
            while let Some(slice) = slices.next_if(|slice| slice.begin >= next) {
                if let Some(call) = self.find(slice) {
                    known |= slice.begin == next;
                    ready = Some(ready.map_or(call.end, |ready| ready.min(call.end)));
                }
            }
            let queued_from = ready.map_or(next, |ready| Nanos(ready.0.saturating_add(LAUNCH.0)));
            let queued_from = queued_from.clamp(from, next);
            queued.push(Span { begin: queued_from, end: next });
            if known {
                late.push(Span { begin: from, end: queued_from });
            }
        }
        let collect = |gaps: Vec<Span>| {
            let mut spans = Spans::default();
            gaps.into_iter().rev().for_each(|gap| spans.push(gap.begin, gap.end));
            spans
        };
        (collect(late), collect(queued))
    }
}

#[cfg(test)]
pub(crate) mod tests;
