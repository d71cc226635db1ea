use paceline_record::{Nanos, Step};
use proptest::prelude::*;

use super::*;
use crate::idle::LAUNCH;
use crate::trace::Collective;

/// A trace to make up.
#[derive(Default)]
pub(crate) struct Draft(pub Trace);

impl Draft {
    /// A stream of a device.
    pub(crate) fn stream(&mut self) -> u32 {
        self.track(Some(0))
    }

    /// A thread of the host.
    pub(crate) fn thread(&mut self) -> u32 {
        self.track(None)
    }

    fn track(&mut self, device: Option<u32>) -> u32 {
        self.0.add_track("track", device)
    }

    pub(crate) fn slice(&mut self, track: u32, kind: Kind, name: &str, time: (u64, u64)) -> &mut Slice {
        let name = self.0.names.enter(name);
        let (begin, end) = (Nanos(time.0), Nanos(time.1));
        self.0.slices.push(Slice { kind, name, begin, end, track, correlation: 0, bytes: None });
        self.0.slices.last_mut().expect("it was pushed")
    }

    /// Work of a device and the call that launched it.
    pub(crate) fn launched(&mut self, tracks: (u32, u32), kind: Kind, call: (u64, u64), time: (u64, u64)) {
        let correlation = self.0.slices.len() as u64 + 1;
        self.slice(tracks.0, Kind::Call, "cudaLaunchKernel", call).correlation = correlation;
        self.slice(tracks.1, kind, "kernel", time).correlation = correlation;
    }

    pub(crate) fn collective(&mut self, track: u32, name: &str, sequence: Option<u64>, time: (u64, u64)) {
        self.slice(track, Kind::Collective, name, time);
        let operation = self.0.names.enter(name);
        let slice = self.0.slices.len() - 1;
        self.0.collectives.push(Collective { slice, operation, group: None, sequence });
    }

    pub(crate) fn step(&mut self, number: u64, time: (u64, u64)) {
        self.0.steps.push(crate::trace::StepRange { number, begin: Nanos(time.0), end: Nanos(time.1) });
    }

    pub(crate) fn trace(mut self) -> Trace {
        self.0.sort();
        self.0
    }
}

fn book(trace: &Trace, time: (u64, u64)) -> StepRecord {
    let span = Span { begin: Nanos(time.0), end: Nanos(time.1) };
    let mut step = StepRecord::open(Step(0), span.begin);
    step.end = span.end;
    Tiling::of(trace).book(span, &mut step);
    step
}

const US: u64 = 1000;

fn us(begin: u64, end: u64) -> (u64, u64) {
    (begin * US, end * US)
}

#[test]
fn a_step_on_a_device_is_split_to_the_nanosecond() {
    let mut draft = Draft::default();
    let (host, main, side) = (draft.thread(), draft.stream(), draft.stream());
    draft.slice(host, Kind::Operator, "aten::mm", us(0, 900));
    draft.launched((host, main), Kind::CopyIn, us(90, 95), us(100, 150));
    draft.launched((host, main), Kind::Compute, us(110, 115), us(140, 400));
    draft.launched((host, side), Kind::Collective, us(120, 125), us(300, 500));
    draft.launched((host, main), Kind::Compute, us(130, 135), us(600, 700));
    draft.launched((host, main), Kind::CopyOut, us(800, 805), us(810, 830));
    draft.slice(main, Kind::Fill, "memset", us(950, 960));
    let step = book(&draft.trace(), us(0, 1000));
    let got: Vec<(Phase, u64)> = step.phases.iter().map(|(phase, time)| (phase, time.0 / US)).collect();
    let expected = [
        (Phase::CopyIn, 40),
        (Phase::Compute, 260 + 100 + 10),
        (Phase::CopyOut, 20),
        (Phase::CommWait, 100),
        (Phase::Idle, 100 + 100 + 110 + 120 + 40),
    ];
    assert_eq!(got, expected);
    assert_eq!(step.phases.total(), Nanos(1000 * US));
    assert_eq!(step.comm_busy, Nanos(200 * US));
    assert_eq!(
        step.idle_host,
        Nanos((100 + 110) * US),
        "an operator went on, and the calls had not returned"
    );
    assert_eq!(step.idle_empty, Nanos(40 * US), "after the last work");
    assert_eq!(step.idle_queued, Nanos(100 * US), "the second kernel had been launched long before");
}

#[test]
fn kernels_belong_to_where_they_were_launched() {
    let mut draft = Draft::default();
    let (host, autograd, stream) = (draft.thread(), draft.thread(), draft.stream());
    draft.slice(host, Kind::Range, "DistributedDataParallel.forward", us(0, 10));
    draft.slice(autograd, Kind::Operator, "autograd::engine::evaluate_function: MmBackward0", us(10, 20));
    draft.slice(host, Kind::Range, "Optimizer.step#SGD.step", us(20, 30));
    for (launch, begin) in [(1, 100), (11, 200), (21, 300), (31, 400)] {
        draft.launched((host, stream), Kind::Compute, us(launch, launch + 1), us(begin, begin + 50));
    }
    // What forward holds is most of the rest, or else it is not the whole of it.
    for (others, [forward, backward, compute]) in [(10, [50, 50, 10]), (40, [0, 0, 140])] {
        draft.0.slices.last_mut().expect("the last kernel").end = Nanos((400 + others) * US);
        let step = book(&Draft(draft.0.clone()).trace(), us(100, 400 + others));
        let got = [Phase::Forward, Phase::Backward, Phase::Compute].map(|phase| step.phases[phase].0 / US);
        assert_eq!(got, [forward, backward, compute]);
        assert_eq!(step.phases[Phase::Update], Nanos(50 * US));
        assert_eq!((step.phases[Phase::Idle], step.idle_queued), (Nanos(150 * US), Nanos(150 * US)));
    }
}

#[test]
fn forward_and_backward_are_not_separated_if_only_one_is_marked() {
    let mut draft = Draft::default();
    let host = draft.thread();
    draft.slice(host, Kind::Operator, "aten::mm", us(0, 40));
    draft.slice(host, Kind::Operator, "autograd::engine::evaluate_function: MmBackward0", us(40, 100));
    let step = book(&draft.trace(), us(0, 100));
    assert_eq!(step.phases.iter().collect::<Vec<_>>(), [(Phase::Compute, Nanos(100 * US))]);
}

#[test]
fn a_host_that_is_late_for_a_batch_is_loading() {
    let mut draft = Draft::default();
    let (host, stream) = (draft.thread(), draft.stream());
    draft.slice(host, Kind::Range, "enumerate(DataLoader)#_Iter.__next__", us(10, 70));
    draft.launched((host, stream), Kind::Compute, us(80, 85), us(90, 100));
    let step = book(&draft.trace(), us(0, 100));
    assert_eq!((step.phases[Phase::Load], step.phases[Phase::Idle]), (Nanos(60 * US), Nanos(30 * US)));
    assert_eq!((step.idle_host, step.idle_empty), (Nanos(10 * US), Nanos(20 * US)), "late from its call on");
}

#[test]
fn without_a_device_operators_compute_and_the_rest_is_left_open() {
    let mut draft = Draft::default();
    let (host, gloo) = (draft.thread(), draft.thread());
    draft.slice(host, Kind::Range, "enumerate(DataLoader)#_Iter.__next__", us(0, 10));
    draft.slice(host, Kind::Operator, "aten::stack", us(2, 8));
    draft.slice(host, Kind::Range, "forward", us(10, 40));
    draft.slice(host, Kind::Operator, "aten::conv2d", us(12, 30));
    draft.slice(host, Kind::Operator, "aten::mkldnn_convolution", us(13, 29));
    draft.slice(
        host,
        Kind::Operator,
        "autograd::engine::evaluate_function: ConvolutionBackward0",
        us(40, 60),
    );
    draft.slice(host, Kind::Operator, "c10d::allreduce_", us(60, 61));
    draft.collective(gloo, "gloo:all_reduce", None, us(50, 80));
    draft.slice(host, Kind::Range, "Optimizer.step#SGD.step", us(85, 95));
    draft.slice(host, Kind::Operator, "aten::add_", us(86, 90));
    let step = book(&draft.trace(), us(0, 100));
    let got: Vec<(Phase, u64)> = step.phases.iter().map(|(phase, time)| (phase, time.0 / US)).collect();
    let expected = [
        (Phase::Load, 10),
        (Phase::Forward, 18),
        (Phase::Backward, 20),
        (Phase::CommWait, 20),
        (Phase::Update, 4),
    ];
    assert_eq!(got, expected);
    assert_eq!((step.comm_busy, step.phases[Phase::Idle]), (Nanos(30 * US), Nanos(0)));
}

#[test]
fn the_host_s_side_of_a_collective_of_a_device_does_not_count() {
    let mut draft = Draft::default();
    let (host, stream) = (draft.thread(), draft.stream());
    draft.collective(host, "nccl:all_reduce", None, us(0, 90));
    draft.collective(stream, "ncclDevKernel_AllReduce", None, us(50, 60));
    let step = book(&draft.trace(), us(0, 100));
    assert_eq!(step.comm_busy, Nanos(10 * US));
    let mut draft = Draft::default();
    let (host, stream) = (draft.thread(), draft.stream());
    draft.collective(host, "gloo:all_reduce", None, us(0, 90));
    draft.slice(stream, Kind::Compute, "gemm", us(50, 60));
    assert_eq!(
        book(&draft.trace(), us(0, 100)).phases[Phase::CommWait],
        Nanos(80 * US),
        "gloo beside a device"
    );
}

/// Work of a device: kind, begin, length, and how long before the begin its launch returned, where that is known.
type Planted = (usize, u64, u64, Option<u64>);

const KINDS: [Kind; 6] =
    [Kind::Compute, Kind::Collective, Kind::CopyIn, Kind::CopyOut, Kind::CopyDevice, Kind::Fill];

/// What a moment went to, found by looking at all slices: an index into phases, or idle late, queued, unknown, nothing queued.
fn look(work: &[Planted], t: u64) -> usize {
    let order = [0, 1, 2, 3, 4, 5];
    let under_way = |kind: usize| work.iter().any(|w| w.0 == kind && w.1 <= t && t < w.1 + w.2);
    if let Some(kind) = order.into_iter().find(|&kind| under_way(kind)) {
        return kind;
    }
    let in_a_call = |w: &Planted| {
        let returned = w.1.saturating_sub(w.3.unwrap_or(0));
        w.3.is_some() && (returned.saturating_sub(3)..returned + LAUNCH.0).contains(&t)
    };
    let on_the_host = if work.iter().any(in_a_call) { 6 } else { 9 };
    let Some(next) = work.iter().filter(|w| w.2 > 0 && w.1 > t).map(|w| w.1).min() else {
        let worked = work.iter().any(|w| w.2 > 0);
        return if worked && work.iter().any(|w| w.3.is_some()) { on_the_host } else { 8 };
    };
    let later = || work.iter().filter(|w| w.1 >= next);
    let ready = later().filter_map(|w| Some(w.1.saturating_sub(w.3?) + LAUNCH.0)).min();
    match ready {
        Some(ready) if ready <= t => 7,
        _ if later().any(|w| w.1 == next && w.3.is_some()) => on_the_host,
        _ => 8,
    }
}

proptest! {
    #[test]
    fn the_parts_are_those_of_a_count_of_every_nanosecond(
        work in prop::collection::vec(
            (0usize..6, 10_000u64..10_300, 0u64..40, prop::option::of(9_800u64..10_300)), 0..14),
        cut in (10_000u64..10_300, 0u64..300),
    ) {
        let mut draft = Draft::default();
        let (host, streams) = (draft.thread(), [draft.stream(), draft.stream(), draft.stream()]);
        for (at, &(kind, begin, length, launched)) in work.iter().enumerate() {
            let correlation = launched.map_or(0, |_| at as u64 + 1);
            let time = (begin, begin + length);
            draft.slice(streams[at % 3], KINDS[kind], "work", time).correlation = correlation;
            if let Some(before) = launched {
                let returned = begin.saturating_sub(before);
                draft.slice(host, Kind::Call, "launch", (returned.saturating_sub(3), returned)).correlation = correlation;
            }
        }
        let time = (cut.0, cut.0 + cut.1);
        let step = book(&draft.trace(), time);
        let mut counts = [0u64; 10];
        if !work.is_empty() {
            (time.0..time.1).for_each(|t| counts[look(&work, t)] += 1);
            prop_assert_eq!(step.phases.total(), Nanos(cut.1), "the parts are the whole");
        }
        prop_assert_eq!(step.phases[Phase::Compute], Nanos(counts[0] + counts[4] + counts[5]));
        prop_assert_eq!(step.phases[Phase::CommWait], Nanos(counts[1]));
        prop_assert_eq!(step.phases[Phase::CopyIn], Nanos(counts[2]));
        prop_assert_eq!(step.phases[Phase::CopyOut], Nanos(counts[3]));
        prop_assert_eq!(step.phases[Phase::Idle], Nanos(counts[6] + counts[7] + counts[8] + counts[9]));
        prop_assert_eq!((step.idle_host, step.idle_queued), (Nanos(counts[6]), Nanos(counts[7])));
        prop_assert_eq!(step.idle_empty, Nanos(counts[9]));
        let under_way = |t: &u64| work.iter().any(|w| w.0 == 1 && w.1 <= *t && *t < w.1 + w.2);
        prop_assert_eq!(step.comm_busy, Nanos((time.0..time.1).filter(under_way).count() as u64));
    }
}
