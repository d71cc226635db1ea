mod samples;

use paceline_record::Phase;

use super::*;
use crate::split::tests::Draft;
use crate::trace::Kind;

/// A rank that shows these steps, each 100 ns long, of which it computes 60.
fn rank(number: Option<u32>, steps: std::ops::Range<u64>) -> Trace {
    let mut draft = Draft::default();
    let stream = draft.stream();
    for step in steps {
        draft.step(step, (1000 + 100 * step, 1100 + 100 * step));
        draft.slice(stream, Kind::Compute, "gemm", (1000 + 100 * step, 1060 + 100 * step));
    }
    draft.0.rank = number.map(Rank);
    draft.trace()
}

fn numbers(rank: &ImportedRank) -> Vec<u64> {
    rank.steps.iter().map(|step| step.step.0).collect()
}

#[test]
fn only_steps_that_all_ranks_show_are_kept() {
    let told = Told { model: "resnet50".into(), batch: Some(32) };
    let run = join(vec![rank(Some(1), 2..9), rank(Some(0), 4..7)], &told).expect("steps in common");
    assert_eq!((numbers(&run.ranks[0]), numbers(&run.ranks[1])), (vec![4, 5, 6], vec![4, 5, 6]));
    assert!(run.warnings.iter().any(|warning| warning.contains("not all ranks have: up to 4 of 7")));
    assert_eq!((run.case.workers, run.case.batch_per_worker), (2, Some(32)));
    let step = &run.ranks[1].steps[0];
    assert_eq!((step.begin, step.end, step.examples), (Nanos(0), Nanos(100), 32));
    assert_eq!((step.phases[Phase::Compute], step.phases[Phase::Idle]), (Nanos(60), Nanos(40)));
}

#[test]
fn traces_that_make_no_run_together_are_refused() {
    let refused = |traces| join(traces, &Told::default()).expect_err("no run").to_string();
    assert!(refused(vec![]).contains("there are none"));
    assert!(refused(vec![rank(Some(0), 0..2), rank(Some(0), 0..2)]).contains("two are of rank 0"));
    assert!(refused(vec![rank(Some(0), 0..2), rank(Some(1), 5..7)]).contains("no step is in all of them"));
    assert!(refused(vec![Trace::default()]).contains("a trace without kernels"));
    let mut endless = rank(Some(0), 0..1);
    endless.steps[0].end = Nanos(u64::MAX);
    assert!(refused(vec![endless]).contains("more than 30 days"));
}

#[test]
fn a_trace_without_steps_is_one() {
    let mut trace = rank(None, 0..3);
    trace.steps.clear();
    let run = join(vec![trace], &Told::default()).expect("one trace");
    let step = &run.ranks[0].steps[0];
    assert_eq!(
        (step.end, step.phases[Phase::Compute], step.phases[Phase::Idle]),
        (Nanos(260), Nanos(180), Nanos(80))
    );
    assert!(run.warnings[0].starts_with("no steps are marked"));
}

#[test]
fn ranks_with_gaps_are_renumbered_with_a_warning() {
    let mut traces = vec![rank(Some(4), 0..2), rank(Some(0), 0..2)];
    traces[0].world = Some(8);
    traces[0].warnings = vec!["torn".into()];
    let run = join(traces, &Told::default()).expect("two of eight");
    assert_eq!(run.ranks[1].rank, Rank(1));
    assert_eq!(run.case.settings["ranks"], "2 of 8", "not to be compared with a run of two");
    assert_eq!(run.traced.as_ref().expect("traces").numbers, [Rank(0), Rank(4)]);
    for expected in ["recorded: ranks 0, 4; their logs are numbered from 0", "2 of 8 ranks", "rank 4: torn"] {
        assert!(run.warnings.iter().any(|warning| warning.contains(expected)), "{:?}", run.warnings);
    }
}

#[test]
fn ranks_of_an_unknown_number_are_not_all() {
    let part = |traces: Vec<Trace>| {
        join(traces, &Told::default()).expect("a run").case.settings.get("ranks").cloned()
    };
    assert_eq!(part(vec![rank(None, 0..2)]), None, "nothing says that there were more");
    assert_eq!(part(vec![rank(Some(0), 0..2), rank(Some(1), 0..2)]), None);
    let some = |count: u32| Some(format!("{count} of {UNKNOWN_RANKS}"));
    assert_eq!(part(vec![rank(Some(3), 0..2)]), some(1), "there is a rank 0");
    assert_eq!(part(vec![rank(Some(0), 0..2), rank(Some(2), 0..2)]), some(2));
    let mut exchanging = Draft::default();
    let stream = exchanging.stream();
    exchanging.collective(stream, "allreduce", None, (10, 40));
    assert_eq!(part(vec![exchanging.trace()]), some(1), "it exchanges with somebody");
    let mut two = Draft::default();
    let streams = [two.0.add_track("first", Some(0)), two.0.add_track("second", Some(1))];
    streams.into_iter().for_each(|stream| two.collective(stream, "allreduce", None, (10, 40)));
    assert_eq!(part(vec![two.trace()]), None, "perhaps with itself");
}

#[test]
fn operators_beside_work_that_was_not_read_are_shown_and_not_counted() {
    let mut draft = Draft::default();
    let host = draft.thread();
    for (name, begin, end) in [("aten::linear", 10, 40), ("aten::addmm", 15, 35), ("aten::relu", 60, 110)] {
        draft.slice(host, Kind::Operator, name, (begin, end));
    }
    draft.0.unread = true;
    draft.0.warnings = vec!["not read (7 mtia_ccp_events)".into()];
    let run = join(vec![draft.trace()], &Told::default()).expect("operators");
    let step = &run.ranks[0].steps[0];
    assert_eq!((step.end, step.phases.total()), (Nanos(100), Nanos(0)), "what the device did is unknown");
    let kernels = run.traced.as_ref().expect("a trace").kernels.iter();
    let shown: Vec<_> = kernels.map(|row| (row.name.as_str(), row.total)).collect();
    assert_eq!(shown, [("aten::relu", Nanos(50)), ("aten::linear", Nanos(30))], "the outermost");
    let known = run.origin().phases;
    assert!(!known.contains(&Phase::Compute) && !known.contains(&Phase::Idle), "{known:?}");
    assert!(run.warnings.iter().any(|warning| warning.contains("mtia_ccp_events")), "{:?}", run.warnings);
}
