//! What operations do to values: against a serial program, bit for bit.

use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use paceline_comm::{Collective, CommError, Operation, Reduction, Segment, SegmentSize, Shm, Waited, slice};
use paceline_record::{Bytes, Nanos, Rank};
use proptest::prelude::*;

use crate::model::Model;
use crate::world::{bits, create, every_operation, perform, run, soon};

/// Values of a segment in these tests.
const OWN: usize = 1000;

fn lengths() -> [usize; 11] {
    [0, 1, 2, 15, 16, 17, 63, 65, OWN / 2 + 1, OWN - 1, OWN]
}

fn load(rank: &mut dyn Collective, model: &Model) {
    let own = &model.0[rank.rank().0 as usize];
    rank.values(0..OWN).expect("nothing is under way").copy_from_slice(own);
}

fn check(rank: &mut dyn Collective, expected: &Model, context: &dyn std::fmt::Display) {
    let place = rank.rank().0 as usize;
    let got = rank.values(0..OWN).expect("nothing is under way");
    assert!(bits(got) == bits(&expected.0[place]), "rank {place} after {context}");
}

/// Every operation over every length, at the start of the area and at its end.
fn do_everything(rank: &mut dyn Collective) {
    for len in lengths() {
        for range in [0..len, OWN - len..OWN] {
            for operation in every_operation(range, rank.world()) {
                let mut model = Model::new(len as u64, rank.world(), OWN);
                load(rank, &model);
                model.apply(&operation);
                perform(rank, operation.clone());
                check(rank, &model, &operation);
            }
        }
    }
    for range in [0..OWN + 1, OWN + 1..OWN + 1, Range { start: 5, end: 4 }] {
        let refused = rank.begin(Operation::AllGather { range }, soon());
        assert!(matches!(refused, Err(CommError::Invalid { .. })));
    }
}

#[test]
fn every_operation_in_every_world_gives_what_a_serial_program_gives() {
    for world in 1..=9 {
        run(&create(world, OWN), |rank| do_everything(rank));
    }
}

#[test]
fn the_same_world_gives_the_same_bits_in_every_run_and_on_every_rank() {
    let once = || {
        run(&create(5, OWN), |rank| {
            let model = Model::new(7, 5, OWN);
            load(rank, &model);
            // Whoever comes when must not matter.
            thread::sleep(Duration::from_micros(u64::from(rank.rank().0 * 7919 % 500)));
            let range = 3..OWN;
            perform(rank, Operation::AllReduce { range, reduction: Reduction::Mean });
            bits(&rank.values(3..OWN).expect("free")[..])
        })
    };
    let first = once();
    assert!(first.iter().all(|rank| *rank == first[0]));
    for _ in 0..20 {
        assert!(once() == first);
    }
}

#[test]
fn sums_over_areas_are_the_same_bits_in_every_world_and_by_every_operation() {
    const AREAS: u32 = 6;
    let model = Model::new(11, AREAS, OWN);
    let range = 5..OWN / 2;
    let half = Operation::AllReduceHalf {
        range: range.clone(),
        reduction: Reduction::Mean,
        half: paceline_comm::Half::Bf16,
        halves: OWN / 2,
    };
    let reduction = Reduction::Mean;
    let mut in_32_bits = Vec::new();
    for operation in [
        Operation::AllReduce { range: range.clone(), reduction },
        Operation::ReduceScatter { range: range.clone(), reduction },
        Operation::ReplicatedSum { range: range.clone(), reduction },
        Operation::Reduce { range: range.clone(), reduction, root: Rank(0) },
        half,
    ] {
        let mut sums = Vec::new();
        for world in [1, 2, 3, 4, 6] {
            let size = SegmentSize { world, areas: AREAS, own: OWN, common: 0 };
            let segment = Segment::create(size).expect("memory for a small segment");
            for (index, values) in (0..).zip(&model.0) {
                // SAFETY: no rank has joined yet.
                unsafe { segment.area(index).write(0..OWN) }.copy_from_slice(values);
            }
            let parts = run(&segment, |rank| {
                perform(rank, operation.clone());
                let part = match operation {
                    Operation::ReduceScatter { .. } => slice(range.clone(), rank.rank(), world),
                    Operation::Reduce { root, .. } if root != rank.rank() => 0..0,
                    _ => range.clone(),
                };
                bits(rank.values(part).expect("free"))
            });
            match operation {
                Operation::ReduceScatter { .. } | Operation::Reduce { .. } => sums.push(parts.concat()),
                _ => {
                    assert!(parts.iter().all(|part| *part == parts[0]), "{operation} in a world of {world}");
                    sums.push(parts[0].clone());
                }
            }
        }
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{operation}");
        if !matches!(operation, Operation::AllReduceHalf { .. }) {
            in_32_bits.push(sums[0].clone());
        }
        let first = model.0.iter().fold(0.0, |sum, values| sum + values[5]) / AREAS as f32;
        assert!((f32::from_bits(sums[0][0]) - first).abs() <= 0.02 * first.abs(), "{operation}");
    }
    assert!(in_32_bits.iter().all(|sum| *sum == in_32_bits[0]));
}

/// What [`every_operation`] lists.
const KINDS: usize = 10;

/// Operations that are under way at once, and the order in which they are finished.
type Round = (Vec<Operation>, Vec<usize>);

/// A world, and what its ranks do.
fn program() -> impl Strategy<Value = (u32, Vec<Round>)> {
    let round = |world: u32| {
        let cuts = proptest::collection::vec(0..=OWN, 1..8);
        let kinds = proptest::collection::vec(0..KINDS, 8);
        (cuts, kinds)
            .prop_map(move |(mut cuts, kinds)| {
                cuts.sort_unstable();
                let ranges = cuts.windows(2).map(|pair| pair[0]..pair[1]);
                let choose = |(range, kind): (_, usize)| every_operation(range, world).remove(kind);
                ranges.zip(kinds).map(choose).collect::<Vec<_>>()
            })
            .prop_flat_map(|operations| {
                let order: Vec<usize> = (0..operations.len()).collect();
                (Just(operations), Just(order).prop_shuffle())
            })
    };
    (1..6_u32).prop_flat_map(move |world| (Just(world), proptest::collection::vec(round(world), 1..5)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn operations_under_way_at_once_give_what_a_serial_program_gives(
        (world, rounds) in program(),
        seed in any::<u64>(),
        progresses in 0..3_u32,
    ) {
        let mut model = Model::new(seed, world, OWN);
        let start = model.clone();
        rounds.iter().flat_map(|(operations, _)| operations).for_each(|operation| model.apply(operation));
        run(&create(world, OWN), |rank| {
            load(rank, &start);
            for (operations, order) in &rounds {
                let mut tickets: Vec<_> = operations
                    .iter()
                    .map(|operation| Some(rank.begin(operation.clone(), soon()).expect("disjoint")))
                    .collect();
                (0..progresses).for_each(|_| rank.progress().expect("nobody dies"));
                for &place in order {
                    let ticket = tickets[place].take().expect("each once");
                    let finished = rank.finish(ticket).expect("all take part");
                    assert_eq!(finished.operation, operations[place]);
                }
            }
            check(rank, &model, &"all rounds");
        });
    }
}

fn reduce(range: Range<usize>) -> Operation {
    Operation::AllReduce { range, reduction: Reduction::Sum }
}

#[test]
fn a_late_rank_is_told_apart_from_moving_bytes() {
    let nap = Duration::from_millis(200);
    let told = run(&create(3, OWN), |rank| {
        rank.barrier(soon()).expect("all take part");
        if rank.rank() == Rank(1) {
            thread::sleep(nap);
        }
        perform(rank, reduce(0..OWN))
    });
    for (rank, told) in told.iter().enumerate() {
        assert_eq!((told.last_rank, told.number), (Rank(1), 1));
        assert!(told.begun <= told.last_arrival && told.last_arrival <= told.started);
        assert!(told.started <= told.ended);
        assert!(told.cpu > Nanos(0) && told.cpu < Nanos(10_000_000), "{told:?}");
        let late = told.waited.late_rank;
        if rank == 1 {
            assert_eq!(late, Nanos(0), "it waited for nobody");
        } else {
            assert!(late > Nanos(50_000_000), "{told:?}");
            assert!(told.waited.transfer < late, "{told:?}");
        }
    }
    let ends: Vec<_> = told.iter().map(|told| (told.last_arrival, told.ended)).collect();
    assert!(ends.iter().all(|&end| end == ends[0]), "all ranks tell the same: {ends:?}");
    assert_eq!(told[1].begun, told[0].last_arrival);
}

#[test]
fn progress_does_the_work_so_that_finish_need_not_wait() {
    let (begun, worked) = (Barrier::new(3), Barrier::new(3));
    run(&create(3, OWN), |rank| {
        let own = rank.rank().0 as f32;
        rank.values(0..OWN).expect("free").fill(own);
        let tickets =
            [0..OWN / 2, OWN / 2..OWN].map(|range| rank.begin(reduce(range), soon()).expect("valid"));
        begun.wait();
        rank.progress().expect("nobody dies");
        worked.wait();
        for ticket in tickets {
            assert_eq!(rank.finish(ticket).expect("all is done").waited, Waited::default());
        }
        assert!(rank.values(0..OWN).expect("free").iter().all(|&value| value == 3.0));
    });
}

#[test]
fn values_are_counted_once_read_and_once_written() {
    let own = 48;
    let moved = run(&create(3, own), |rank| {
        every_operation(0..own, 3)
            .into_iter()
            .map(|operation| perform(rank, operation).moved)
            .collect::<Vec<_>>()
    });
    let values = |count: u64| Bytes(4 * count);
    // Barrier and all-gather, then twice all-reduce, reduce-scatter, replicated sum and reduce to rank 2.
    let reductions = |root| [values(96), values(64), values(48 * 4 + 48 * 2), root];
    let expected = |root| [&[values(0), values(48)], &reductions(root)[..], &reductions(root)].concat();
    assert_eq!(moved[1], expected(values(0)), "the root does all of a reduce");
    assert_eq!(moved[2], expected(values(48 * 4)));
}

#[test]
fn a_replicated_sum_changes_no_values_that_others_still_read() {
    let (begun, first, second) = (Barrier::new(2), Barrier::new(2), Barrier::new(2));
    run(&create(2, OWN), |rank| {
        let own = 1.0 + rank.rank().0 as f32;
        rank.values(0..OWN).expect("free").fill(own);
        let operation = Operation::ReplicatedSum { range: 0..OWN, reduction: Reduction::Sum };
        let ticket = rank.begin(operation, soon()).expect("valid");
        begun.wait();
        if rank.rank() == Rank(0) {
            rank.progress().expect("nobody dies");
        }
        first.wait();
        // SAFETY: rank 0 has done its part, rank 1 will after the next barrier; nobody writes now.
        let values = unsafe { rank.own().read(0..OWN) };
        assert!(values.iter().all(|&value| value == own), "values are as they were handed over");
        second.wait();
        rank.finish(ticket).expect("both take part");
        assert!(rank.values(0..OWN).expect("free").iter().all(|&value| value == 3.0));
    });
}

#[test]
fn values_under_way_belong_to_the_collective() {
    run(&create(2, OWN), |rank| {
        let ticket = rank.begin(reduce(100..200), soon()).expect("valid");
        let refused = rank.values(199..300).map(drop).expect_err("under way").to_string();
        assert_eq!(
            refused,
            "cannot touch values 199..300: operation 0, all-reduce (sum) of values 100..200 is under way"
        );
        let overlapping = rank.begin(reduce(0..101), soon()).map(drop).expect_err("under way");
        assert!(matches!(overlapping, CommError::Invalid { .. }));
        rank.values(200..300).expect("beside it").fill(1.0);
        rank.finish(ticket).expect("both take part");
        rank.values(0..OWN).expect("all is given back");
    });
}

#[test]
fn more_operations_than_can_be_under_way_are_refused_and_do_no_harm() {
    let begin = |rank: &mut Shm| rank.begin(Operation::Barrier, soon());
    run(&create(2, 1), |rank| {
        let mut tickets: Vec<_> = (0..1024).map(|_| begin(rank).expect("room")).collect();
        let refused = begin(rank).expect_err("no room").to_string();
        assert!(refused.contains("operation 0, barrier is still to be finished"), "{refused}");
        // Only the oldest makes room, however many others are finished.
        rank.finish(tickets.remove(5)).expect("both take part");
        begin(rank).expect_err("no room");
        rank.finish(tickets.remove(0)).expect("both take part");
        tickets.push(begin(rank).expect("room"));
        for ticket in tickets {
            rank.finish(ticket).expect("both take part");
        }
    });
}
