use paceline_lab::run::Span;
use paceline_record::{Phase, StepRecord};

use super::*;
use crate::ranks::{Told, join};
use crate::split::tests::Draft;
use crate::trace::{Collective, Kind, Slice, StepRange, Track};

/// A trace in microseconds: kind, name, begin, end, track, correlation, bytes. Tracks 0 and 1 are streams of device 0,
/// track 2 of device 1, track 3 is a thread.
fn trace(slices: &[(Kind, &str, u64, u64, u32, u64, u64)]) -> Trace {
    let track = |name: &str, device| Track { name: name.into(), device };
    let mut trace = Trace {
        devices: vec!["Tesla".into()],
        tracks: vec![track("a", Some(0)), track("b", Some(0)), track("c", Some(1)), track("thread", None)],
        ..Trace::default()
    };
    for &(kind, name, begin, end, track, correlation, bytes) in slices {
        let name = trace.names.enter(name);
        if kind == Kind::Collective {
            let operation = trace.names.enter("all_reduce");
            trace.collectives.push(Collective {
                slice: trace.slices.len(),
                operation,
                group: None,
                sequence: None,
            });
        }
        let (begin, end) = (Nanos(1_000_000 + 1000 * begin), Nanos(1_000_000 + 1000 * end));
        let bytes = (bytes > 0).then_some(Bytes(bytes));
        trace.slices.push(Slice { kind, name, begin, end, track, correlation, bytes });
    }
    trace.sort();
    trace
}

fn summarise_all(trace: &Trace) -> Profile {
    summarise(trace, &Cut::default()).expect("a trace with work")
}

fn cut<'a>(from: Option<f64>, to: Option<f64>, range: Option<&'a str>) -> Cut<'a> {
    Cut { from, to, range }
}

/// Idle time with these causes only.
fn idle(causes: &[(Part, Nanos)]) -> Option<Idle> {
    Some(CAUSES.iter().map(|(cause, _)| (*cause, Nanos(0))).chain(causes.iter().copied()).collect())
}

const fn us(micros: u64) -> Nanos {
    Nanos(1000 * micros)
}

/// 0..100 us: gemm 10..40 and 50..60 us, a copy 35..50 us, an all-reduce 55..75 us, nothing but the host after that.
fn planted() -> Trace {
    let mut trace = trace(&[
        (Kind::Range, "step 1", 0, 100, 3, 0, 0),
        (Kind::Call, "cudaLaunchKernel", 4, 6, 3, 1, 0),
        (Kind::Compute, "gemm", 10, 40, 0, 1, 0),
        (Kind::CopyIn, "Memcpy HtoD", 35, 50, 1, 2, 30_000),
        (Kind::Compute, "gemm", 50, 60, 0, 3, 0),
        (Kind::Collective, "ncclKernel", 55, 75, 1, 4, 0),
        (Kind::Operator, "DataLoader.next", 76, 95, 3, 0, 0),
        (Kind::Call, "cudaLaunchKernel", 90, 92, 3, 5, 0),
        (Kind::Compute, "relu", 95, 100, 0, 5, 0),
    ]);
    trace.steps.push(StepRange { number: 1, begin: Nanos(1_000_000), end: Nanos(1_100_000) });
    trace
}

#[test]
fn the_window_is_shared_out_without_overlap() {
    let profile = summarise_all(&planted());
    let expected = [
        (Share::Compute, Some(us(45))),
        (Share::Collective, Some(us(15))),
        (Share::HostCopies, Some(us(10))),
        (Share::DeviceCopies, Some(us(0))),
        (Share::Idle, Some(us(30))),
        (Share::Unknown, None),
    ];
    assert_eq!(profile.shares, BTreeMap::from(expected));
    assert_eq!(profile.dominant, Some(Share::Compute));
    assert_eq!(profile.devices.len(), 1);
    assert_eq!((profile.devices[0].busy, profile.devices[0].utilisation), (us(70), Some(0.7)));
    assert_eq!((profile.steps, profile.step_median), (1, Some(us(100))));
}

#[test]
fn work_is_summed_by_name() {
    let profile = summarise_all(&planted());
    let rows: Vec<_> =
        profile.kernels.iter().map(|row| (row.name.as_str(), row.count, row.total, row.mean)).collect();
    assert_eq!(rows, [("gemm", 2, us(40), us(20)), ("relu", 1, us(5), us(5))]);
    assert!((profile.kernels[0].fraction - 40.0 / 45.0).abs() < 1e-12);
    assert_eq!((profile.kernels_total.count, profile.kernels_total.total), (3, us(45)));
    let copy = &profile.copies[0];
    assert_eq!(copy.bytes, Some(Bytes(30_000)));
    assert!((copy.bytes_per_s.unwrap() - 2e9).abs() < 1.0);
    assert_eq!((profile.collectives[0].name.as_str(), profile.collectives[0].bytes), ("all_reduce", None));
    assert_eq!(profile.ranges[0].name, "step 1");
}

#[test]
fn gaps_have_their_cause() {
    let profile = summarise_all(&planted());
    // 0..10: the host was in a call from 4 on, and the work on its way. 75..95: it was in an operator from 76 on.
    assert_eq!(profile.idle, idle(&[(Part::HostLate, us(6 + 19)), (Part::NothingQueued, us(4 + 1))]));
    let longest = &profile.gaps[0];
    assert_eq!((longest.from, longest.length), (us(75), us(20)));
    assert_eq!(longest.host.as_deref(), Some("DataLoader.next"));
    // Work that was asked for early and runs late was queued all the while, whatever the next work is.
    let early = trace(&[
        (Kind::Call, "a", 0, 0, 3, 1, 0),
        (Kind::Compute, "x", 0, 10, 0, 0, 0),
        (Kind::Compute, "y", 30, 40, 0, 0, 0),
        (Kind::Compute, "z", 40, 50, 0, 1, 0),
    ]);
    assert_eq!(summarise_all(&early).idle, idle(&[(Part::Queued, us(20))]));
    let untold = trace(&[(Kind::Compute, "x", 0, 10, 0, 0, 0), (Kind::Compute, "y", 30, 40, 0, 0, 0)]);
    assert_eq!(summarise_all(&untold).idle, idle(&[(Part::Unknown, us(20))]));
}

/// Three steps of a host that runs ahead of its device, work outside them, and a fourth that is hardly begun.
fn lagging() -> Trace {
    let mut draft = Draft::default();
    let (host, main, side) = (draft.thread(), draft.stream(), draft.stream());
    let ms = |begin: u64, end: u64| (begin * 1_000_000, end * 1_000_000);
    draft.launched((host, side), Kind::Collective, ms(0, 1), ms(2, 5));
    for step in 0..3 {
        let begin = 10 + 10 * step;
        draft.step(step, ms(begin, begin + 10));
        for at in 0..20 {
            let work = 12 + 80 * step + 4 * at;
            let kind = [Kind::Compute, Kind::Compute, Kind::CopyIn, Kind::Collective][at as usize % 4];
            let stream = if kind == Kind::Collective { side } else { main };
            // Collectives are half hidden behind computation.
            let length = if kind == Kind::Collective { 6 } else { 4 };
            draft.launched((host, stream), kind, ms(begin, begin + 1), ms(work, work + length));
        }
    }
    draft.step(3, ms(40, 300));
    draft.launched((host, main), Kind::Compute, ms(290, 291), ms(295, 296));
    for (at, slice) in draft.0.slices.iter().enumerate().filter(|(_, slice)| slice.kind == Kind::Collective) {
        let one = Collective { slice: at, operation: slice.name, group: None, sequence: None };
        draft.0.collectives.push(one);
    }
    draft.trace()
}

/// The same without its marks: start-up and shut-down are outside its work.
fn unmarked(mut trace: Trace) -> Trace {
    trace.steps.clear();
    trace
}

#[test]
fn the_screen_and_the_run_tell_the_same() {
    for trace in [planted(), lagging(), unmarked(planted()), unmarked(lagging())] {
        let profile = summarise_all(&trace);
        let is_marked = !trace.steps.is_empty();
        let run = join(vec![trace], &Told::default()).expect("one rank");
        let steps = &run.ranks[0].steps;
        let sum = |time: &dyn Fn(&StepRecord) -> Nanos| steps.iter().map(time).sum::<Nanos>();
        let phases = |phases: &[Phase]| sum(&|step| phases.iter().map(|phase| step.phases[*phase]).sum());
        assert_eq!(
            profile.time(Share::Compute) + profile.time(Share::DeviceCopies),
            phases(&[Phase::Compute])
        );
        assert_eq!(profile.time(Share::Collective), phases(&[Phase::CommWait]));
        assert_eq!(profile.time(Share::HostCopies), phases(&[Phase::CopyIn, Phase::CopyOut]));
        assert_eq!(profile.time(Share::Idle), phases(&[Phase::Idle, Phase::Load]));
        let told = profile.idle.expect("all work is known");
        assert_eq!(told[&Part::HostLate], sum(&|step| step.idle_host));
        assert_eq!(told[&Part::Queued], sum(&|step| step.idle_queued));
        assert_eq!(told[&Part::NothingQueued], sum(&|step| step.idle_empty));
        assert_eq!(profile.length, sum(&|step| step.end.since(step.begin)));
        assert_eq!(profile.kernels_total.count, run_kernels(&run));
        assert_eq!(profile.steps, if is_marked { steps.len() } else { 0 });
        assert_eq!(profile.warnings.join("\n").contains("no steps are marked"), !is_marked);
    }
}

fn run_kernels(run: &crate::Imported) -> u64 {
    run.traced.iter().flat_map(|traced| &traced.kernels).map(|kernel| kernel.count).sum()
}

#[test]
fn work_belongs_to_the_step_that_launched_it_however_late_it_is_done() {
    let profile = summarise_all(&lagging());
    assert_eq!((profile.steps, profile.kernels_total.count), (3, 30));
    let listed = |list: &[Work]| list.iter().map(|row| row.count).sum::<u64>();
    assert_eq!((listed(&profile.copies), listed(&profile.collectives)), (15, 15));
    // 20 pieces of 4 ms each, one after the other; the last collective ends 2 ms later.
    let ms = |time: u64| Nanos(time * 1_000_000);
    assert_eq!((profile.from, profile.length), (ms(10), ms(12 + 240 + 2 - 10)));
    assert_eq!(profile.shares[&Share::Idle], Some(ms(2)));
    assert_eq!(
        profile.step_median,
        Some(ms(80)),
        "the first waits 2 ms for its work, the last ends 2 ms later"
    );
    let said = profile.warnings.join("\n");
    assert!(said.contains("step 3 was left out: it is not whole, with 1 pieces of work where"), "{said}");
    assert!(said.contains("1 collective outside the marked steps, 3.00 ms in all, is not counted"), "{said}");
}

#[test]
fn idle_time_is_unknown_where_work_was_not_read() {
    let mut trace = planted();
    trace.unread = true;
    let profile = summarise_all(&trace);
    assert_eq!((profile.shares[&Share::Idle], profile.shares[&Share::Unknown]), (None, Some(us(30))));
    assert_eq!((profile.idle.as_ref(), profile.gaps.len(), profile.devices[0].utilisation), (None, 0, None));
    let text = render(&profile);
    assert!(text.contains("30.0 % unknown") && !text.contains("idle"), "{text}");
    let run = join(vec![trace], &Told::default()).expect("one rank");
    let known = run.origin().phases;
    assert!(!known.contains(&Phase::Idle) && known.contains(&Phase::Compute), "{known:?}");
    let step = &run.ranks[0].steps[0];
    assert_eq!((step.phases[Phase::Idle], step.idle_host), (Nanos(0), Nanos(0)));
}

#[test]
fn what_dominates_is_named() {
    let copies = trace(&[(Kind::CopyIn, "in", 0, 60, 0, 0, 1), (Kind::Compute, "x", 50, 80, 1, 0, 0)]);
    let profile = summarise_all(&copies);
    assert_eq!(profile.dominant, Some(Share::HostCopies));
    assert!(render(&profile).contains("copies between host and device dominate"));
    let late = trace(&[
        (Kind::Compute, "x", 0, 1, 0, 0, 0),
        (Kind::Call, "launch", 98, 99, 3, 7, 0),
        (Kind::Compute, "x", 99, 100, 0, 7, 0),
    ]);
    let profile = summarise_all(&late);
    assert_eq!(profile.dominant, Some(Share::Idle));
    let text = render(&profile).replace("\n  ", " ");
    assert!(text.contains("no thread that launches work is in a call or an operator (Python"), "{text}");
    assert!(!text.contains("copies between"), "no copy is in it: {text}");
    assert!(text.contains("the device is idle most of the time"), "{text}");
    let thirds = trace(&[
        (Kind::Compute, "x", 0, 32, 0, 0, 0),
        (Kind::CopyIn, "in", 32, 65, 1, 0, 1),
        (Kind::Compute, "x", 99, 100, 0, 0, 0),
    ]);
    let text = render(&summarise_all(&thirds));
    assert!(text.contains("idle time of the device is the largest part"), "{text}");
    let both = trace(&[(Kind::Compute, "x", 0, 90, 0, 0, 0), (Kind::CopyOut, "out", 90, 100, 0, 0, 1)]);
    assert!(
        render(&summarise_all(&both))
            .contains("computation dominates; copies between host and device take 10.0 %")
    );
}

#[test]
fn several_devices_are_separate() {
    let two = trace(&[(Kind::Compute, "x", 0, 100, 0, 0, 0), (Kind::Compute, "x", 0, 25, 2, 0, 0)]);
    let profile = summarise_all(&two);
    let use_of: Vec<_> =
        profile.devices.iter().map(|one| (one.device, one.name.as_deref(), one.utilisation)).collect();
    assert_eq!(use_of, [(0, Some("Tesla"), Some(1.0)), (1, None, Some(0.25))]);
    assert_eq!(profile.shares[&Share::Idle], Some(us(0)));
    assert!(render(&profile).contains("2 devices count as one, which is idle when all of them are"));
}

#[test]
fn without_a_device_the_host_is_summarised() {
    let mut host = trace(&[
        (Kind::Compute, "aten::conv2d", 0, 30, 3, 0, 0),
        (Kind::Collective, "gloo", 20, 50, 3, 0, 8),
    ]);
    host.tracks.iter_mut().for_each(|track| track.device = None);
    let profile = summarise_all(&host);
    assert!(!profile.has_device);
    assert_eq!((profile.time(Share::Compute), profile.time(Share::Collective)), (us(30), us(20)));
    assert!(render(&profile).contains("no device in the profile"));
}

#[test]
fn collectives_of_the_host_are_communication_but_keep_no_device_busy() {
    let mixed =
        trace(&[(Kind::Collective, "MPI_Allreduce", 0, 80, 3, 0, 0), (Kind::Compute, "x", 80, 100, 0, 0, 0)]);
    let profile = summarise_all(&mixed);
    assert_eq!(profile.devices[0].busy, us(20));
    assert_eq!((profile.time(Share::Collective), profile.collectives[0].total), (us(80), us(80)));
}

#[test]
fn a_window_cuts_by_time_or_by_name() {
    let trace = planted();
    let profile = summarise(&trace, &cut(Some(20e-6), Some(55e-6), None)).unwrap();
    assert_eq!((profile.from, profile.length), (us(20), us(35)));
    assert_eq!((profile.time(Share::Compute), profile.time(Share::HostCopies)), (us(25), us(10)));
    assert_eq!((profile.kernels[0].total, profile.kernels[0].count), (us(25), 2));
    assert!((profile.copies[0].bytes_per_s.unwrap() - 2e9).abs() < 1.0, "of the whole copy");
    assert_eq!(profile.steps, 0);
    assert!(render(&profile).starts_with("35.0 us, starting at 20.0 us of 100.0 us\n"));
    let stretch = |begin, end| [Span { begin: Nanos(begin), end: Nanos(end) }];
    let named = |from, name| summarise(&trace, &cut(from, None, Some(name))).unwrap().window;
    assert_eq!(named(None, "dataloader").as_slice(), stretch(1_076_000, 1_095_000));
    assert_eq!(named(Some(80e-6), "step 1").as_slice(), stretch(1_080_000, 1_100_000));
    let unknown = summarise(&trace, &cut(None, None, Some("epoch"))).unwrap_err();
    assert_eq!(unknown, "no range is named \"epoch\"; the ranges are step 1");
    for (from, to) in
        [(Some(5.0), None), (Some(-1.0), None), (None, Some(f64::NAN)), (Some(30e-6), Some(20e-6))]
    {
        assert!(summarise(&trace, &cut(from, to, None)).is_err(), "{from:?} {to:?}");
    }
    assert!(summarise(&Trace::default(), &Cut::default()).is_err());
}

#[test]
fn a_range_that_is_open_again_and_again_is_looked_at_only_while_it_is() {
    let mut twice = trace(&[
        (Kind::Range, "forward", 0, 20, 3, 0, 0),
        (Kind::Compute, "gemm", 10, 50, 0, 0, 0),
        (Kind::Range, "forward", 40, 60, 3, 0, 0),
    ]);
    let forward = cut(None, None, Some("forward"));
    let profile = summarise(&twice, &forward).unwrap();
    assert_eq!((profile.length, profile.stretches), (us(40), 2));
    assert_eq!((profile.time(Share::Compute), profile.shares[&Share::Idle]), (us(20), Some(us(20))));
    assert_eq!((profile.kernels[0].count, profile.kernels[0].total), (1, us(20)));
    assert!(render(&profile).contains("in 2 pieces"));
    // A device's account of the same range changes nothing; without the host's it counts.
    let name = twice.names.enter("forward");
    let (begin, end) = (Nanos(1_010_000), Nanos(1_050_000));
    twice.slices.push(Slice { kind: Kind::Range, name, begin, end, track: 0, correlation: 0, bytes: None });
    twice.sort();
    assert_eq!(summarise(&twice, &forward).unwrap().stretches, 2);
    assert_eq!(summarise_all(&twice).ranges[0].count, 2);
    twice.slices.retain(|slice| slice.track == 0);
    let profile = summarise(&twice, &forward).unwrap();
    assert_eq!((profile.length, profile.shares[&Share::Idle]), (us(40), Some(us(0))));
}

#[test]
fn damaged_times_do_not_overflow_sums() {
    let mut far = trace(&[(Kind::Compute, "x", 0, 1, 0, 0, 0)]);
    let slice = far.slices[0];
    far.tracks = (0..9).map(|device| Track { name: "a".into(), device: Some(device) }).collect();
    far.slices = (0..9).map(|track| Slice { track, ..slice }).collect();
    far.slices.push(Slice { begin: Nanos(u64::MAX / 2), end: Nanos(u64::MAX / 2 + 1), ..slice });
    let profile = summarise_all(&far);
    assert!(profile.shares[&Share::Idle] > Some(Nanos(u64::MAX / 3)));
    assert!(render(&profile).contains("idle"));
}

#[test]
fn a_rate_is_of_the_copies_that_say_how_much_they_move_and_fills_have_none() {
    let told = trace(&[
        (Kind::CopyIn, "Memcpy HtoD", 0, 10, 0, 0, 20_000),
        (Kind::CopyIn, "Memcpy HtoD", 10, 40, 0, 0, 0),
        (Kind::Fill, "Memset", 40, 41, 0, 0, 4_000_000),
    ]);
    let profile = summarise_all(&told);
    let [copy, fill] = profile.copies.as_slice() else { panic!("{:?}", profile.copies) };
    assert_eq!((copy.count, copy.sized, copy.bytes), (2, 1, Some(Bytes(20_000))));
    assert!((copy.bytes_per_s.unwrap() - 2e9).abs() < 1.0, "30 us of copies moved nobody knows what");
    assert_eq!((fill.bytes, fill.bytes_per_s), (Some(Bytes(4_000_000)), None));
    assert!(render(&profile).contains("20.0 kB in 1 of 2  2.00"), "{}", render(&profile));
}

#[test]
fn every_share_says_what_it_is_of() {
    let text = render(&summarise_all(&planted()));
    for of in ["% of kernels", "% of copies", "% of exchanges", "% of 100.0 us"] {
        assert!(text.contains(of), "{of}: {text}");
    }
}

#[test]
fn the_screen_is_this() {
    let mut trace = planted();
    trace.warnings.push("the profiler reported an error: Dropped events".into());
    insta::assert_snapshot!(render(&summarise_all(&trace)));
}
