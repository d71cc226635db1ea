//! Splits a rank's time: computation, exposed communication, copies, idle device.
//!
//! Slices overlap. Time counts once, for the first of these that was under way:
//!
//! ```text
//! a device:     update, backward, forward, other kernels; collectives; copies in, copies out, copies within and fills
//! no device:    loading; update, backward, forward, other operators; collectives
//! the rest:     idle, by cause, with a device; no phase without one
//! ```
//!
//! - A kernel belongs to the update, to backward or to forward if the call that launched it is within such a mark on
//!   the host. Forward and backward are separated only if a trace marks both.
//! - Copies within a device and fills count as computation.
//! - [`super::idle`] says why a device was idle; time spent getting a batch counts as loading.

use paceline_lab::run::Span;
use paceline_record::{Phase, StepRecord};

use super::idle::{Causes, Host};
use super::spans::Spans;
use crate::trace::{Kind, Slice, Trace};

/// What the name of a range says about its time.
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

/// Whether an operator with this name only launches a collective.
pub fn is_exchange(name: &str) -> bool {
    Mark::of(name) == Mark::Exchange
}

/// Whether a range or an operator with this name gets a batch.
pub fn is_loading(name: &str) -> bool {
    Mark::of(name) == Mark::Load
}

/// Where a trace has work: on its devices, or on the host if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Whether a device worked.
    pub device: bool,
    /// Whether collectives are on a device; otherwise those of the host count.
    device_collectives: bool,
}

impl Sight {
    /// Inspects a trace.
    pub fn of(trace: &Trace) -> Self {
        let shown =
            || trace.slices.iter().filter(|slice| slice.kind.is_device_work() && on_device(trace, slice));
        Self {
            device: shown().next().is_some(),
            device_collectives: shown().any(|slice| slice.kind == Kind::Collective),
        }
    }

    /// Whether a slice keeps the rank busy, rather than being the host's side of device work.
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
    /// Time by phase, without overlap.
    phases: Vec<(Phase, Spans)>,
    /// When a collective was under way, hidden or not.
    busy: Spans,
    /// When a collective was exposed.
    exposed: Spans,
    idle: Causes,
    /// Whether time outside every phase is an idle device.
    device: bool,
}

impl Tiling {
    /// Tiles all the time of a rank.
    pub fn of(trace: &Trace) -> Self {
        let sight = Sight::of(trace);
        let names: Vec<Mark> = trace.names.texts().map(Mark::of).collect();
        let mark = |slice: &Slice| names.get(slice.name.0 as usize).copied().unwrap_or(Mark::None);
        let marks = Marks::of(trace, mark);
        let host = Host::of(trace);
        let mut work = Work::default();
        for slice in trace.slices.iter().filter(|slice| sight.counts(trace, slice)) {
            let spans = match slice.kind {
                Kind::Collective => &mut work.collectives,
                Kind::CopyIn => &mut work.copies_in,
                Kind::CopyOut => &mut work.copies_out,
                Kind::CopyDevice | Kind::Fill => &mut work.copies_within,
                _ if mark(slice) == Mark::Exchange || mark(slice) == Mark::Load => continue,
                _ => match host.launch(slice) {
                    Some(call) if marks.update.contains(call.begin) => &mut work.update,
                    Some(call) if marks.backward.contains(call.begin) => &mut work.backward,
                    Some(call) if marks.forward.contains(call.begin) => &mut work.forward,
                    _ => &mut work.compute,
                },
            };
            spans.push(slice.begin, slice.end);
        }
        let loading = if sight.device { Spans::default() } else { host.loading().clone() };
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
            let work = trace.slices.iter().rev().filter(|slice| sight.counts(trace, slice));
            tiling.idle = host.explain(work, &taken);
            tiling.phases.push((Phase::Load, tiling.idle.loading.clone()));
        }
        tiling
    }

    /// When a collective was exposed.
    pub fn exposed(&self) -> &Spans {
        &self.exposed
    }

    /// Fills in the phases of a step: all of its time with a device, otherwise what the trace shows.
    pub fn book(&self, span: Span, step: &mut StepRecord) {
        for (phase, spans) in &self.phases {
            step.book(*phase, spans.within(span));
        }
        step.comm_busy = self.busy.within(span);
        // Collectives come after all computation in the order above, so what is exposed is what no computation covers.
        step.overlapped = Some(step.comm_busy.since(step.phases[Phase::CommWait]));
        if self.device {
            step.book(Phase::Idle, span.end.since(span.begin).since(step.phases.total()));
            step.idle_host = self.idle.host_late.within(span);
            step.idle_queued = self.idle.queued.within(span);
            step.idle_empty = self.idle.empty.within(span);
        }
    }
}

/// Work by kind, with overlaps.
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

/// Times on the host with a known meaning, from ranges and operators.
#[derive(Default)]
struct Marks {
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
                Mark::Forward => &mut marks.forward,
                Mark::Backward => &mut marks.backward,
                Mark::Update => &mut marks.update,
                Mark::Load | Mark::Exchange | Mark::None => continue,
            };
            spans.push(slice.begin, slice.end);
        }
        if marks.forward.as_slice().is_empty() || marks.backward.as_slice().is_empty() {
            (marks.forward, marks.backward) = (Spans::default(), Spans::default());
        }
        marks
    }
}

#[cfg(test)]
pub(crate) mod tests;
