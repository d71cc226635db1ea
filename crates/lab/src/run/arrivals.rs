//! When ranks arrived at their exchanges, where each of them told only of itself.
//!
//! A moment of waiting counts for the first exchange that is not done: until the last rank has arrived as waiting for that
//! rank, from then on as moving bytes. Exchanges are compared by their place in a step; a step in which ranks tell of
//! different numbers of them is left unsplit.

use std::collections::BTreeMap;

use paceline_record::log::{RankLog, WorkerHeader};
use paceline_record::{
    ArrivalRecord, BucketRecord, Bytes, ClockReading, Host, Nanos, Phase, Rank, Step, StepRecord,
};

use crate::hosts::clock::Clock;

/// Exchanges that make one reading of a clock.
const READING: usize = 64;

/// The exchanges of a rank by the numbers of its steps.
type Exchanges<'a> = BTreeMap<Step, &'a [ArrivalRecord]>;

fn exchanges(log: &RankLog) -> Exchanges<'_> {
    let told = log.steps.iter().filter(|step| !step.arrivals.is_empty());
    told.map(|step| (step.step, step.arrivals.as_slice())).collect()
}

/// The machine that a rank ran on; `None` where it is not told.
pub(super) fn machine(log: &RankLog) -> Option<&str> {
    match &log.header {
        WorkerHeader::Rank(header) => header.host.as_deref(),
        WorkerHeader::Member(_) => None,
    }
}

/// The clock of another machine, by the ends of exchanges that one of its ranks had in common with the first rank: an exchange
/// ends on all of them at about the same time. `None` without any.
pub(super) fn set_clock(first: &RankLog, other: &RankLog) -> Option<Clock> {
    let (first, other) = (exchanges(first), exchanges(other));
    let pairs: Vec<(Nanos, i64)> = other
        .iter()
        .filter_map(|(step, own)| Some((first.get(step)?, own)))
        .flat_map(|(first, own)| first.iter().zip(own.iter()))
        .map(|(first, own)| (first.ended, own.ended.0.wrapping_sub(first.ended.0).cast_signed()))
        .collect();
    let reading = |pairs: &[(Nanos, i64)]| {
        let mut offsets: Vec<i64> = pairs.iter().map(|&(_, offset)| offset).collect();
        offsets.sort_unstable();
        let (low, middle, high) = (offsets.len() / 4, offsets.len() / 2, offsets.len() * 3 / 4);
        let within = offsets[high.min(offsets.len() - 1)].abs_diff(offsets[low]).max(1);
        let at = pairs[pairs.len() / 2].0;
        ClockReading { host: Host(1), at, offset: offsets[middle], within: Nanos(within) }
    };
    Clock::new(pairs.chunks(READING).map(reading)).ok()
}

/// When the last rank arrived at each exchange of a step, and who that was; `None` if the ranks tell of different exchanges.
fn last_arrivals(ranks: &[RankLog], places: &[usize]) -> Option<Vec<(Nanos, Rank)>> {
    let of = |rank: usize| &ranks[rank].steps[places[rank]].arrivals;
    let count = of(0).len();
    if count == 0 || (0..ranks.len()).any(|rank| of(rank).len() != count) {
        return None;
    }
    let last = |exchange: usize| {
        let arrived = (0..ranks.len()).map(|rank| (of(rank)[exchange].begun, Rank(rank as u32)));
        arrived.max().expect("invariant: there are ranks")
    };
    Some((0..count).map(last).collect())
}

/// Turns what each rank told into exchanges of all, and splits their waits. The ranks are on one clock, and all are there.
pub(super) fn compare(ranks: &mut [RankLog]) {
    let mut places = vec![0; ranks.len()];
    let Some(steps) = ranks.first().map(|first| first.steps.len()) else { return };
    for place in 0..steps {
        let number = ranks[0].steps[place].step;
        places[0] = place;
        let all_did = (1..ranks.len()).all(|rank| {
            let found = ranks[rank].steps[places[rank]..].iter().position(|step| step.step >= number);
            let at = places[rank] + found.unwrap_or(0);
            if found.is_some() {
                places[rank] = at;
            }
            ranks[rank].steps.get(at).is_some_and(|step| step.step == number)
        });
        let Some(last) = all_did.then(|| last_arrivals(ranks, &places)).flatten() else { continue };
        for (rank, &place) in ranks.iter_mut().zip(&places) {
            split(&mut rank.steps[place], &last);
        }
    }
}

/// The exchanges of a step with who came last to each.
fn split(step: &mut StepRecord, last: &[(Nanos, Rank)]) {
    let (arrivals, waits) = (std::mem::take(&mut step.arrivals), std::mem::take(&mut step.waits));
    let mut reached = Nanos(0);
    for (arrival, &(last_arrival, last_rank)) in arrivals.iter().zip(last) {
        reached = reached.max(arrival.begun);
        // Nobody waits for who comes after it was done: clocks of several machines differ a little.
        let late_until = last_arrival.min(arrival.ended);
        let waited_late = overlap(&waits, reached, late_until);
        reached = reached.max(late_until);
        let waited_transfer = overlap(&waits, reached, arrival.ended);
        reached = reached.max(arrival.ended);
        step.buckets.push(BucketRecord {
            bytes: arrival.bytes,
            begun: arrival.begun,
            last_arrival,
            last_rank,
            ended: arrival.ended,
            waited_late,
            waited_transfer,
            cpu: arrival.cpu,
            // At least once in and once out; more is not known.
            moved: Bytes(arrival.bytes.0.saturating_mul(2)),
        });
    }
    let late: Nanos = step.buckets.iter().map(|bucket| bucket.waited_late).sum();
    step.late_rank = late.min(step.phases[Phase::CommWait]);
}

fn overlap(waits: &[(Nanos, Nanos)], begin: Nanos, end: Nanos) -> Nanos {
    waits.iter().map(|&(since, until)| end.min(until).since(begin.max(since))).sum()
}

#[cfg(test)]
mod tests {
    use paceline_record::RankHeader;

    use super::*;

    const US: u64 = 1000;

    /// A rank with one step of two exchanges, the second of which it is blocked on from `waits` to `until`.
    fn rank(rank: u32, begun: [u64; 2], ended: [u64; 2], wait: (u64, u64)) -> RankLog {
        let mut step = StepRecord::open(Step(0), Nanos(0));
        step.end = Nanos(1000 * US);
        let exchange = |at: usize| ArrivalRecord {
            bytes: Bytes(8),
            begun: Nanos(begun[at] * US),
            ended: Nanos(ended[at] * US),
            cpu: Nanos(0),
        };
        step.arrivals = vec![exchange(0), exchange(1)];
        step.waits = vec![(Nanos(wait.0 * US), Nanos(wait.1 * US))];
        step.book(Phase::CommWait, Nanos((wait.1 - wait.0) * US));
        RankLog { steps: vec![step], ..RankLog::empty(WorkerHeader::Rank(RankHeader::new(Rank(rank), 2))) }
    }

    #[test]
    fn a_wait_is_for_the_late_rank_until_it_comes_and_for_bytes_from_then_on() {
        let mut ranks =
            [rank(0, [100, 200], [420, 500], (200, 500)), rank(1, [400, 450], [420, 500], (450, 500))];
        compare(&mut ranks);
        let waited = |rank: usize, at: usize| {
            let bucket = &ranks[rank].steps[0].buckets[at];
            (bucket.last_rank.0, bucket.waited_late.0 / US, bucket.waited_transfer.0 / US)
        };
        // From 200 to 400 for rank 1, 20 for the bytes of the first; then rank 1 came last to the second at 450.
        assert_eq!([waited(0, 0), waited(0, 1)], [(1, 200, 20), (1, 30, 50)]);
        assert_eq!([waited(1, 0), waited(1, 1)], [(1, 0, 0), (1, 0, 50)]);
        assert_eq!(ranks[0].steps[0].late_rank, Nanos(230 * US));
        assert!(ranks[0].steps[0].arrivals.is_empty());
    }

    #[test]
    fn ranks_that_tell_of_different_exchanges_are_left_as_they_are() {
        let mut ranks =
            [rank(0, [100, 200], [420, 500], (200, 500)), rank(1, [400, 450], [420, 500], (450, 500))];
        ranks[1].steps[0].arrivals.pop();
        compare(&mut ranks);
        assert!(ranks[0].steps[0].buckets.is_empty() && ranks[0].steps[0].late_rank == Nanos(0));
    }

    #[test]
    fn another_machines_clock_is_set_by_the_ends_of_common_exchanges() {
        let step = |number: u64, shift: u64| {
            let mut step = StepRecord::open(Step(number), Nanos(0));
            let at = 1_000_000_000 + number * 100_000_000;
            step.arrivals = vec![ArrivalRecord {
                bytes: Bytes(8),
                begun: Nanos(at + shift),
                ended: Nanos(at + shift + 1000),
                cpu: Nanos(0),
            }];
            step
        };
        let log = |shift: u64| RankLog {
            steps: (0..200).map(|number| step(number, shift)).collect(),
            ..RankLog::empty(WorkerHeader::Rank(RankHeader::new(Rank(0), 2)))
        };
        let clock = set_clock(&log(0), &log(77_000_000_000)).expect("common exchanges");
        assert_eq!(clock.moment(Nanos(80_000_000_000)), Some(Nanos(3_000_000_000)));
        assert_eq!(set_clock(&log(0), &RankLog { steps: Vec::new(), ..log(0) }), None);
    }
}
