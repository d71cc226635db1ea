//! Splits a rank's time, for profiles and for the steps of a run: computation, exposed communication, copies, idle device.
//!
//! Slices overlap. Time counts once, for the first of these that was under way:
//!
//! ```text
//! a device:     update, backward, forward, other kernels; collectives; copies in, copies out, copies within and fills
//! no device:    loading; update, backward, forward, other operators; collectives
//! the rest:     idle, by cause, with a device of which all work was read; otherwise unknown
//! ```
//!
//! - A kernel belongs to the update, to backward or to forward if the call that launched it is within such a mark on
//!   the host. Forward and backward are separated only if a trace marks both, and if forward has most of the
//!   computation that is neither backward nor update: a part of a network may be named `forward`, too.
//! - Several devices count as one, which is idle when all of them are.
//! - [`super::idle`] says why a device was idle.

use std::iter::Sum;
use std::ops::Index;

use paceline_lab::run::Span;
use paceline_record::{Nanos, Phase, StepRecord};
use serde::Serialize;

use super::idle::Host;
use super::operations::Source;
use super::spans::Spans;
use super::{profile, steps};
use crate::trace::{Kind, Slice, StepRange, Trace};

/// Forward has at least this part of the computation that is neither backward nor update.
const FORWARD: f64 = 0.8;

/// What takes at least this part of a trace is named.
const NOTABLE: f64 = 0.05;

/// What time went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The host was getting a batch; without a device, nothing is computed in the meantime.
    Loading,
    /// Kernels of the update, or operators without a device.
    Update,
    /// Those of backward.
    Backward,
    /// Those of forward.
    Forward,
    /// Others.
    Compute,
    /// A collective or another exchange, and no computation.
    Collective,
    /// A copy from the host.
    CopyIn,
    /// A copy to the host.
    CopyOut,
    /// A copy within a device, or a fill.
    CopyDevice,
    /// The host set up the device before its first work, or shut it down after its last.
    SetUp,
    /// The host was busy on the way to launch the next work.
    HostLate,
    /// Work waited in a stream: for another stream, for a copy, for a device that was not ready.
    Queued,
    /// Nothing was queued, and the trace shows no activity on the host.
    NothingQueued,
    /// The rest.
    Unknown,
}

const PARTS: usize = Part::Unknown as usize + 1;

/// Time by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts([Nanos; PARTS]);

impl Index<Part> for Parts {
    type Output = Nanos;

    fn index(&self, part: Part) -> &Nanos {
        &self.0[part as usize]
    }
}

impl Sum for Parts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self(std::array::from_fn(|at| sum.0[at] + one.0[at])))
    }
}

/// What the name of a range or an operator says about its time; a collective is the host's side of one.
fn mark(name: &str) -> Option<Part> {
    let begins = |start: &str| name.starts_with(start);
    if begins("enumerate(DataLoader)") {
        Some(Part::Loading)
    } else if begins("Optimizer.step#") {
        Some(Part::Update)
    } else if begins("autograd::engine::evaluate_function") || name.eq_ignore_ascii_case("backward") {
        Some(Part::Backward)
    } else if begins("DistributedDataParallel.forward") || name.eq_ignore_ascii_case("forward") {
        Some(Part::Forward)
    } else {
        Source::of_host(name).map(|_| Part::Collective)
    }
}

/// Whether an operator with this name only launches a collective.
pub fn is_exchange(name: &str) -> bool {
    mark(name) == Some(Part::Collective)
}

/// Whether a range or an operator with this name gets a batch.
pub fn is_loading(name: &str) -> bool {
    mark(name) == Some(Part::Loading)
}

/// Where a trace has work: on its devices, or on the host if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Whether a device worked, or may have: its work may be of a kind that is not read.
    pub device: bool,
    /// Whether the trace shows work of a device.
    pub shown: bool,
    /// Whether collectives are on a device; otherwise those of the host count.
    device_collectives: bool,
}

impl Sight {
    /// Inspects a trace.
    pub fn of(trace: &Trace) -> Self {
        let shown =
            || trace.slices.iter().filter(|slice| slice.kind.is_device_work() && on_device(trace, slice));
        let any = shown().next().is_some();
        Self {
            device: trace.unread || any,
            shown: any,
            device_collectives: shown().any(|slice| slice.kind == Kind::Collective),
        }
    }

    /// Whether a slice is shown as work: operators of the host are where no work of a device is, though they keep the rank
    /// busy only if there is no device.
    pub fn lists(self, trace: &Trace, slice: &Slice) -> bool {
        Self { device: self.shown, ..self }.counts(trace, slice)
    }

    /// Whether a slice keeps the rank busy, rather than being the host's side of device work.
    pub fn counts(self, trace: &Trace, slice: &Slice) -> bool {
        match slice.kind {
            // Calls of MPI are no launches: they exchange by themselves.
            Kind::Collective => {
                let mpi = || trace.names.text(slice.name).starts_with("MPI_");
                on_device(trace, slice) || !self.device_collectives || mpi()
            }
            Kind::Operator => !self.device,
            kind => kind.is_device_work() && (on_device(trace, slice) || !self.device),
        }
    }
}

fn on_device(trace: &Trace, slice: &Slice) -> bool {
    trace.device_of(slice).is_some()
}

/// What each moment of a rank went to.
#[derive(Clone, Debug, Default)]
pub struct Tiling {
    /// The whole steps that the trace marks, with the work that was launched in them.
    pub steps: Vec<StepRange>,
    /// What was left out, one sentence each.
    pub notes: Vec<String>,
    /// Whether time without work is idle time of a device.
    pub knows_idle: bool,
    /// Time by part, without overlap and without the unknown.
    parts: [Spans; PARTS - 1],
    /// When anything worked.
    pub busy: Spans,
    /// When operators of the host ran, if they are all that the trace shows beside work that was not read.
    operators: Spans,
    /// When a collective was under way, hidden or not.
    exchanging: Spans,
    /// Whether there may be computation that was not read.
    unread: bool,
}

impl Tiling {
    /// Tiles all the time of a rank.
    pub fn of(trace: &Trace) -> Self {
        let sight = Sight::of(trace);
        let host = Host::of(trace);
        let (steps, notes) = steps::find(trace, sight, &host);
        let marks: Vec<Option<Part>> = trace.names.texts().map(mark).collect();
        let mark = |slice: &Slice| marks.get(slice.name.0 as usize).copied().flatten();
        let marked = find_marked(trace, mark);
        let mut parts: [Spans; PARTS - 1] = Default::default();
        let mut add = |part: Part, slice: &Slice| parts[part as usize].push(slice.begin, slice.end);
        for slice in trace.slices.iter().filter(|slice| sight.counts(trace, slice)) {
            match slice.kind {
                Kind::Collective => add(Part::Collective, slice),
                Kind::CopyIn => add(Part::CopyIn, slice),
                Kind::CopyOut => add(Part::CopyOut, slice),
                Kind::CopyDevice | Kind::Fill => add(Part::CopyDevice, slice),
                _ if matches!(mark(slice), Some(Part::Collective | Part::Loading)) => {}
                _ => {
                    let launched = |call: Span| marked.iter().find(|(_, open)| open.contains(call.begin));
                    let own = host.launch(slice).and_then(launched);
                    add(own.map_or(Part::Compute, |(part, _)| *part), slice);
                }
            }
        }
        if !sight.device {
            let compute = parts[Part::Compute as usize].clone();
            marked.iter().for_each(|(part, open)| parts[*part as usize] = compute.intersect(open));
            parts[Part::Loading as usize] = host.loading.clone();
        }
        let mut tiling =
            Self { steps, notes, exchanging: parts[Part::Collective as usize].clone(), ..Self::default() };
        if sight.device && !sight.shown {
            let listed = trace.slices.iter().filter(|slice| sight.lists(trace, slice));
            listed.for_each(|slice| tiling.operators.push(slice.begin, slice.end));
        }
        tiling.join_unsure(&mut parts);
        for spans in &mut parts[..=Part::CopyDevice as usize] {
            *spans = spans.subtract(&tiling.busy);
            tiling.busy = tiling.busy.union(spans);
        }
        if sight.device && !trace.unread {
            tiling.knows_idle = true;
            for (cause, spans) in host.explain(trace, sight, &tiling.busy) {
                parts[cause as usize] = spans;
            }
        }
        tiling.parts = parts;
        tiling.unread = trace.unread;
        let notes = tiling.work().map(|work| tiling.note_set_up(trace, work));
        tiling.notes.extend(notes.into_iter().flatten().flatten());
        tiling
    }

    /// Sentences on the calls that took longest to set up a device and to shut it down, if that is notable.
    fn note_set_up(&self, trace: &Trace, work: Span) -> [Option<String>; 2] {
        let (begin, end) = trace.extent().unwrap_or_default();
        let edges = [(begin, work.begin, "before its first work"), (work.end, end, "after its last work")];
        edges.map(|(from, to, when)| {
            let calls = trace.slices.iter().filter(|slice| slice.kind == Kind::Call);
            let set_up = |slice: &&Slice| {
                let span = Span { begin: slice.begin.max(from), end: slice.end.min(to) };
                if span.begin < span.end { self.parts[Part::SetUp as usize].within(span) } else { Nanos(0) }
            };
            let longest = calls.max_by_key(set_up)?;
            let (time, name) = (set_up(&longest), trace.names.text(longest.name));
            let what = match (from == begin, name.starts_with("cu")) {
                (true, true) => "start-up of the CUDA context",
                (true, false) => "start-up",
                (false, _) => "shut-down",
            };
            let sentence = || format!("{what}: the host spends {} in {name} {when}", profile::time(time));
            (time.seconds() >= NOTABLE * end.since(begin).seconds() && !time.is_zero()).then(sentence)
        })
    }

    /// First begin to last end of all work.
    pub fn work(&self) -> Option<Span> {
        self.busy.union(&self.operators).extent()
    }

    /// Forward and backward are computation like any other if forward is only a part of it.
    fn join_unsure(&self, parts: &mut [Spans; PARTS - 1]) {
        let whole = [StepRange { number: 0, begin: Nanos(0), end: Nanos(u64::MAX) }];
        let steps = if self.steps.is_empty() { &whole } else { self.steps.as_slice() };
        let within =
            |spans: &Spans| -> f64 { steps.iter().map(|step| spans.within(step.span()).seconds()).sum() };
        let [loading, update, backward, forward, compute, ..] = &*parts;
        let told = backward.union(forward).union(update).union(loading);
        let others = compute.subtract(&told);
        let sure = within(forward) >= FORWARD * (within(forward) + within(&others));
        if !sure {
            parts[Part::Compute as usize] = compute.union(forward).union(backward);
            (parts[Part::Backward as usize], parts[Part::Forward as usize]) = Default::default();
        }
    }

    /// When a collective was exposed.
    pub fn exposed(&self) -> &Spans {
        &self.parts[Part::Collective as usize]
    }

    /// What a span went to.
    pub fn within(&self, span: Span) -> Parts {
        let mut parts = Parts::default();
        for (time, spans) in parts.0.iter_mut().zip(&self.parts) {
            *time = spans.within(span);
        }
        let known: Nanos = parts.0.iter().copied().sum();
        parts.0[Part::Unknown as usize] = span.end.since(span.begin).since(known);
        parts
    }

    /// Fills in the phases of a step: all of its time if idle time is known, otherwise what the trace shows.
    pub fn book(&self, span: Span, step: &mut StepRecord) {
        let parts = self.within(span);
        for (part, phase) in [
            (Part::Loading, Phase::Load),
            (Part::Update, Phase::Update),
            (Part::Backward, Phase::Backward),
            (Part::Forward, Phase::Forward),
            (Part::Compute, Phase::Compute),
            (Part::CopyDevice, Phase::Compute),
            (Part::Collective, Phase::CommWait),
            (Part::CopyIn, Phase::CopyIn),
            (Part::CopyOut, Phase::CopyOut),
        ] {
            step.book(phase, parts[part]);
        }
        step.comm_busy = self.exchanging.within(span);
        // Collectives come after all computation in the order above, so what is exposed is what no computation covers.
        step.overlapped = (!self.unread).then(|| step.comm_busy.since(parts[Part::Collective]));
        if self.knows_idle {
            step.book(Phase::Idle, span.end.since(span.begin).since(step.phases.total()));
            step.idle_host = parts[Part::HostLate];
            step.idle_queued = parts[Part::Queued];
            step.idle_empty = parts[Part::NothingQueued];
        }
    }
}

/// Times on the host with a known meaning, from ranges and operators: update, backward and forward.
fn find_marked(trace: &Trace, mark: impl Fn(&Slice) -> Option<Part>) -> Vec<(Part, Spans)> {
    let mut marked =
        [Part::Update, Part::Backward, Part::Forward].map(|part| (part, Spans::default())).to_vec();
    let said = |slice: &&Slice| matches!(slice.kind, Kind::Operator | Kind::Range | Kind::Compute);
    for slice in trace.slices.iter().filter(said).filter(|slice| !on_device(trace, slice)) {
        let own = marked.iter_mut().find(|(part, _)| mark(slice) == Some(*part));
        own.into_iter().for_each(|(_, open)| open.push(slice.begin, slice.end));
    }
    // Backward and forward are told only together.
    if marked[1..].iter().any(|(_, open)| open.as_slice().is_empty()) {
        marked.truncate(1);
    }
    marked
}

#[cfg(test)]
pub(crate) mod tests;
