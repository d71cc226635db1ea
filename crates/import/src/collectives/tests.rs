use super::*;
use crate::ranks::{Told, join};
use crate::split::tests::Draft;
use crate::trace::{Clock, Kind};

const MS: u64 = 1_000_000;

/// The step in which the only other rank waited for rank 1.
fn late_by(time: u64) -> LateStep {
    let waited = Nanos(time * MS);
    LateStep { step: Step(3), rank: Rank(1), waited, longest: Some(waited) }
}

fn ms(begin: u64, end: u64) -> (u64, u64) {
    (begin * MS, end * MS)
}

/// A rank of one host whose main thread computes at these times, and two threads that exchange at those.
fn rank(number: u32, steps: &[(u64, u64)], computes: &[(u64, u64)], exchanges: &[(&str, u64, u64)]) -> Trace {
    let mut draft = Draft::default();
    let (main, threads) = (draft.thread(), [draft.thread(), draft.thread()]);
    for (number, &(begin, end)) in steps.iter().enumerate() {
        draft.step(2 + number as u64, ms(begin, end));
    }
    for &(begin, end) in computes {
        draft.slice(main, Kind::Operator, "aten::conv2d", ms(begin, end));
    }
    for (place, &(operation, begin, end)) in exchanges.iter().enumerate() {
        draft.collective(threads[place % 2], operation, None, ms(begin, end));
    }
    draft.0.rank = Some(Rank(number));
    (draft.0.clock, draft.0.host) = (Clock::Epoch, Some("host".into()));
    draft.trace()
}

/// Rank 1 sleeps for 80 ms at the begin of step 3; both ranks then broadcast twice at once.
fn sleeper() -> Vec<Trace> {
    let calm = [("broadcast", 1, 2), ("broadcast", 1, 3), ("all_reduce", 50, 60)];
    let waiting = [("broadcast", 101, 183), ("broadcast", 101, 183), ("all_reduce", 230, 240)];
    let sleeping = [("broadcast", 181, 183), ("broadcast", 181, 183), ("all_reduce", 231, 240)];
    let steps = [(0, 100), (100, 280)];
    let computes = [(3, 55), (60, 100), (183, 235), (240, 280)];
    vec![
        rank(0, &steps, &computes, &[calm, waiting].concat()),
        rank(1, &steps, &computes, &[calm, sleeping].concat()),
    ]
}

#[test]
fn a_sleeping_rank_is_named_and_its_sleep_counts_once() {
    let run = join(sleeper(), &Told::default()).expect("two ranks of one run");
    let late = &run.traced.as_ref().expect("traces").late;
    assert_eq!(late[0], late_by(80));
    let waited = &run.ranks[0].steps[1];
    assert_eq!(waited.late_rank, Nanos(80 * MS), "two broadcasts waited at once");
    assert_eq!(waited.phases[paceline_record::Phase::CommWait], Nanos((183 - 101 + 5) * MS));
    let buckets: Vec<(Rank, u64, u64)> = waited
        .buckets
        .iter()
        .map(|bucket| (bucket.last_rank, bucket.waited_late.0 / MS, bucket.waited_transfer.0 / MS))
        .collect();
    assert_eq!(buckets, [(Rank(1), 80, 2), (Rank(1), 0, 0), (Rank(1), 0, 5)]);
}

#[test]
fn waiting_of_several_ranks_is_reported_per_rank_and_in_total() {
    let steps = [(0, 100)];
    let traces = vec![
        rank(0, &steps, &[], &[("all_reduce", 10, 50)]),
        rank(1, &steps, &[], &[("all_reduce", 20, 50)]),
        rank(2, &steps, &[], &[("all_reduce", 40, 50)]),
    ];
    let traced = join(traces, &Told::default()).expect("three ranks of one run").traced.expect("traces");
    let [LateStep { rank, waited, longest, .. }] = traced.late[..] else { panic!("{:?}", traced.late) };
    assert_eq!((rank, waited, longest), (Rank(2), Nanos(50 * MS), Some(Nanos(30 * MS))));
    let said = traced.sentences();
    let wanted = "in step 2, the others waited up to 30.0 ms each, 50.0 ms in total, for rank 2";
    assert!(said.iter().any(|sentence| sentence == wanted), "{said:?}");
}

#[test]
fn the_last_to_arrive_waits_for_nobody_however_long_it_takes() {
    let traces = vec![
        rank(0, &[(0, 100)], &[], &[("all_reduce", 10, 20)]),
        rank(1, &[(0, 100)], &[], &[("all_reduce", 12, 40)]),
    ];
    let run = join(traces, &Told::default()).expect("two ranks of one run");
    let first = |rank: usize| run.ranks[rank].steps[0].buckets[0];
    assert_eq!((first(1).last_rank, first(1).waited_late), (Rank(1), Nanos(0)));
    assert_eq!(first(1).waited_transfer, Nanos(28 * MS));
    assert_eq!(first(0).waited_late, Nanos(0), "it was as short as can be");
    assert_eq!((first(0).last_arrival, first(0).ended), (Nanos(12 * MS), Nanos(20 * MS)));
}

#[test]
fn waiting_behind_computation_does_not_show() {
    let traces = vec![
        rank(0, &[(0, 100)], &[(0, 30)], &[("all_reduce", 10, 60)]),
        rank(1, &[(0, 100)], &[(0, 50)], &[("all_reduce", 50, 60)]),
    ];
    let run = join(traces, &Told::default()).expect("two ranks of one run");
    let step = &run.ranks[0].steps[0];
    assert_eq!((step.late_rank, step.comm_busy), (Nanos(20 * MS), Nanos(50 * MS)));
    assert_eq!(step.buckets[0].waited_transfer, Nanos(10 * MS));
}

#[test]
fn without_order_nothing_is_claimed() {
    let traces = vec![
        rank(0, &[(0, 100)], &[], &[("all_reduce", 10, 60), ("broadcast", 70, 80)]),
        rank(1, &[(0, 100)], &[], &[("all_reduce", 10, 20), ("all_reduce", 50, 60), ("broadcast", 72, 80)]),
    ];
    let run = join(traces, &Told::default()).expect("two ranks of one run");
    assert_eq!(run.ranks[0].steps[0].buckets.len(), 1);
    assert_eq!(run.ranks[0].steps[0].late_rank, Nanos(2 * MS));
    assert!(run.warnings.iter().any(|warning| warning.starts_with("3 collectives could not be matched")));
}

#[test]
fn sequence_numbers_match_where_order_would_not() {
    let mut drafts = [Draft::default(), Draft::default()];
    for (draft, numbers) in drafts.iter_mut().zip([[4u64, 5], [5, 6]]) {
        let stream = draft.stream();
        for (place, number) in numbers.into_iter().enumerate() {
            let begin = 10 * place as u64;
            draft.collective(stream, "all_reduce", Some(number), ms(begin, begin + 5));
        }
        draft.step(0, ms(0, 100));
    }
    let traces = drafts.map(Draft::trace);
    let steps: Vec<_> = traces.iter().map(|trace| trace.steps.clone()).collect();
    let matching = Matching::of(&traces, &steps);
    let groups: Vec<Vec<(usize, usize)>> = matching
        .groups
        .iter()
        .map(|group| group.iter().map(|part| (part.rank, part.slice)).collect())
        .collect();
    assert_eq!((groups, matching.unmatched), (vec![vec![(0, 1), (1, 0)]], 2));
}

proptest::proptest! {
    #[test]
    fn waiting_adds_up_to_what_shows(
        exchanges in proptest::collection::vec((0u64..80, 1u64..30, 0u64..20), 1..8),
        computes in proptest::collection::vec((0u64..90, 1u64..20), 0..5),
    ) {
        let parts = |rank: u64| -> Vec<(&str, u64, u64)> {
            exchanges.iter().map(|&(begin, length, late)| {
                let arrives = begin + late * rank;
                ("all_reduce", arrives, (begin + length).max(arrives + 1))
            }).collect()
        };
        let computes: Vec<(u64, u64)> = computes.iter().map(|&(begin, length)| (begin, begin + length)).collect();
        let traces = vec![rank(0, &[(0, 200)], &computes, &parts(0)), rank(1, &[(0, 200)], &computes, &parts(1))];
        let run = join(traces, &Told::default()).expect("two ranks of one run");
        for rank in &run.ranks {
            let step = &rank.steps[0];
            let late: Nanos = step.buckets.iter().map(|bucket| bucket.waited_late).sum();
            let moved: Nanos = step.buckets.iter().map(|bucket| bucket.waited_transfer).sum();
            proptest::prop_assert_eq!(late, step.late_rank);
            proptest::prop_assert_eq!(late + moved, step.phases[paceline_record::Phase::CommWait]);
        }
    }
}
