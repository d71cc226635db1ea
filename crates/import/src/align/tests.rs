use paceline_lab::stats::random::SplitMix;

use super::*;
use crate::split::tests::Draft;

const MS: u64 = 1_000_000;

/// Two ranks whose collectives end together but for some noise, the second's clock ahead by `ahead`.
fn pair(ahead: u64, noise: u64, count: u64) -> [Trace; 2] {
    let mut draw = SplitMix(7);
    let mut drafts = [Draft::default(), Draft::default()];
    for (rank, draft) in drafts.iter_mut().enumerate() {
        let (stream, own) = (draft.stream(), ahead * rank as u64);
        for k in 0..count {
            let end = (k + 1) * 10 * MS + own + draw.below(noise as usize + 1) as u64;
            draft.collective(stream, "all_reduce", Some(k), (end - MS * (1 + rank as u64), end));
        }
        draft.step(0, (own, own + (count + 2) * 10 * MS));
    }
    drafts.map(Draft::trace)
}

fn find(traces: &[Trace]) -> Alignment {
    let steps: Vec<Vec<StepRange>> = traces.iter().map(|trace| trace.steps.clone()).collect();
    super::find(traces, &steps, &Matching::of(traces, &steps))
}

#[test]
fn clocks_are_laid_over_each_other_where_collectives_end() {
    let aligned = find(&pair(5000 * MS, 1000, 41));
    assert_eq!(aligned.common, Common::Ends(41));
    let off = aligned.offsets[1] + (5000 * MS) as i64;
    assert!(off.abs() < 500, "off by {off} ns");
    let left = aligned.uncertainty.expect("41 ends").0;
    assert!((100..1000).contains(&left), "{left} ns");
    assert!(aligned.to_string().starts_with("clocks aligned on the ends of 41 collectives, to +/- 0.00"));
    let exact = find(&pair(5000 * MS, 0, 3));
    assert_eq!((exact.offsets, exact.uncertainty), (vec![0, -((5000 * MS) as i64)], Some(Nanos(0))));
}

#[test]
fn one_wild_end_moves_nothing() {
    let mut traces = pair(70, 0, 9);
    traces[1].slices[8].end = Nanos(500 * MS);
    let aligned = find(&traces);
    assert_eq!((aligned.offsets[1], aligned.uncertainty), (-70, Some(Nanos(0))));
}

#[test]
fn ranks_of_one_host_keep_their_clock_and_others_do_not() {
    let mut traces = pair(3 * MS, 0, 5);
    for trace in &mut traces {
        (trace.clock, trace.host) = (Clock::Epoch, Some("a".into()));
    }
    assert_eq!(find(&traces).common, Common::Host);
    assert_eq!(find(&traces).offsets, [0, 0]);
    assert!(find(&traces).to_string().ends_with("their collectives end 3.000 ms apart (median)"));
    traces[1].host = Some("b".into());
    assert_eq!(find(&traces).offsets, [0, -((3 * MS) as i64)]);
    traces[1].host = None;
    assert_eq!(find(&traces).common, Common::Ends(5), "an unknown host is not the same");
}

#[test]
fn without_a_collective_in_common_it_says_so() {
    let mut traces = pair(3 * MS, 0, 0);
    let aligned = find(&traces);
    assert_eq!((aligned.common, aligned.uncertainty), (Common::FirstStep, None));
    assert_eq!(aligned.offsets, [0, -((3 * MS) as i64)]);
    assert!(aligned.to_string().ends_with("the accuracy is unknown"));
    for trace in &mut traces {
        trace.clock = Clock::Epoch;
    }
    assert_eq!((find(&traces).common, find(&traces).offsets), (Common::Epoch, vec![0, 0]));
    assert_eq!(find(&traces[..1]).common, Common::Alone);
}

#[test]
fn a_rank_is_reached_by_way_of_another() {
    let mut drafts = [Draft::default(), Draft::default(), Draft::default()];
    for (rank, groups) in [(0, ["a"].as_slice()), (1, &["a", "b"]), (2, &["b"])] {
        let draft = &mut drafts[rank];
        let stream = draft.stream();
        for (place, group) in groups.iter().enumerate() {
            let end = 100 * MS + 10 * rank as u64;
            draft.collective(stream, "all_reduce", Some(place as u64), (50 * MS + place as u64, end));
            let name = draft.0.names.enter(group);
            let last = draft.0.collectives.last_mut().expect("just made");
            (last.group, last.sequence) = (Some(name), Some(1));
        }
        draft.step(0, (0, 200 * MS));
    }
    assert_eq!(find(&drafts.map(Draft::trace)).offsets, [0, -10, -20]);
}

#[test]
fn the_window_begins_at_zero_on_the_common_clock() {
    let traces = pair(5000 * MS, 0, 3);
    let steps: Vec<Vec<StepRange>> = traces.iter().map(|trace| trace.steps.clone()).collect();
    let shifts = shifts(&find(&traces), &steps);
    assert_eq!(shifts[1].apply(Nanos(5003 * MS)), Nanos(3 * MS));
    assert_eq!(shifts[1].apply(Nanos(4000 * MS)), Nanos(0), "what lies before begins with it");
}
