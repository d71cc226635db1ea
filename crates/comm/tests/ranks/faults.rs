//! Ranks that come late, do something else, or die: every other rank is told who, and in what.

use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::{
    Collective, CommError, Deadline, Operation, Reduction, Segment, Shm, Stage, Ticket, Underway,
};
use paceline_record::{Nanos, Rank};

use crate::world::{create, perform, run, soon};

const OWN: usize = 200;

fn reduce(range: Range<usize>) -> Operation {
    Operation::AllReduce { range, reduction: Reduction::Sum }
}

fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(50))
}

fn fail(rank: &mut Shm, operation: Operation, by: Deadline) -> CommError {
    let ticket = rank.begin(operation, by).expect("a valid operation");
    rank.finish(ticket).expect_err("not all ranks take part in this")
}

#[test]
fn another_range_is_found_out_on_every_rank() {
    run(&create(3, OWN), |rank| {
        perform(rank, Operation::Barrier);
        let end = if rank.rank() == Rank(2) { 100 } else { 50 };
        let error = fail(rank, reduce(0..end), soon());
        assert_eq!(
            error.to_string(),
            "rank 2 began all-reduce (sum) of values 0..100 as its operation 1 where rank 0 began all-reduce (sum) \
             of values 0..50"
        );
    });
}

#[test]
fn another_kind_or_root_is_found_out_and_changes_no_values() {
    let others = [
        Operation::ReduceScatter { range: 0..OWN, reduction: Reduction::Sum },
        Operation::AllReduce { range: 0..OWN, reduction: Reduction::Mean },
        Operation::Reduce { range: 0..OWN, reduction: Reduction::Sum, root: Rank(0) },
        Operation::Reduce { range: 0..OWN, reduction: Reduction::Sum, root: Rank(1) },
        Operation::Barrier,
    ];
    for other in others {
        let segment = create(2, OWN);
        run(&segment, |rank| {
            let own = 1.0 + rank.rank().0 as f32;
            rank.values(0..OWN).expect("free").fill(own);
            let mine = if rank.rank() == Rank(1) { other.clone() } else { reduce(0..OWN) };
            let error = fail(rank, mine, soon());
            assert!(
                matches!(&error, CommError::Mismatch { number: 0, rank: Rank(1), began, .. } if *began == other)
            );
            // SAFETY: no rank does any work after a mismatch.
            assert!(unsafe { rank.own().read(0..OWN) }.iter().all(|&value| value == own));
        });
    }
}

#[test]
fn another_order_is_found_out_on_every_rank() {
    run(&create(4, OWN), |rank| {
        let mut ranges = [0..100, 100..OWN];
        if rank.rank() == Rank(3) {
            ranges.reverse();
        }
        let tickets = ranges.map(|range| rank.begin(reduce(range), soon()).expect("valid"));
        for ticket in tickets {
            let error = rank.finish(ticket).expect_err("rank 3 has another order");
            assert!(matches!(error, CommError::Mismatch { number: 0, rank: Rank(3), .. }), "{error}");
        }
    });
}

#[test]
fn ranks_that_never_come_are_named_when_the_deadline_passes() {
    let others_have_seen = Barrier::new(4);
    run(&create(4, OWN), |rank| {
        perform(rank, reduce(0..OWN));
        if rank.rank().0 % 2 == 0 {
            let begin = Instant::now();
            let error = fail(rank, reduce(1..OWN), shortly());
            assert!(begin.elapsed() < Duration::from_secs(5));
            let CommError::TimedOut { missing, stage, operation, waited } = error else {
                panic!("{error}");
            };
            assert_eq!((missing, stage), (vec![Rank(1), Rank(3)], Stage::Arrival));
            assert_eq!(operation, Underway { number: 1, operation: reduce(1..OWN) });
            assert!(waited > Nanos(40_000_000), "{waited:?}");
        }
        others_have_seen.wait();
    });
}

#[test]
fn a_rank_that_comes_but_does_not_do_its_part_is_named() {
    let other_has_seen = Barrier::new(3);
    run(&create(3, OWN), |rank| {
        if rank.rank() == Rank(1) {
            let _never_finished = rank.begin(reduce(0..OWN), soon()).expect("valid");
            other_has_seen.wait();
        } else {
            let error = fail(rank, reduce(0..OWN), shortly());
            assert!(
                matches!(&error, CommError::TimedOut { missing, stage: Stage::Completion, .. } if *missing == [Rank(1)]),
                "{error}"
            );
            other_has_seen.wait();
        }
    });
}

#[test]
fn a_deadline_that_has_passed_does_no_harm_where_nobody_is_late() {
    let all_have_come = Barrier::new(2);
    run(&create(2, OWN), |rank| {
        let ticket = rank.begin(reduce(0..OWN), Deadline::at(Nanos(1))).expect("valid");
        all_have_come.wait();
        rank.progress().expect("nobody dies");
        all_have_come.wait();
        rank.finish(ticket).expect("all is done");
    });
}

/// Begins an operation on all ranks, and runs `body` on all but 2, which is told dead a while later.
fn lose_rank_2(segment: &Segment, body: impl Fn(&mut Shm, Ticket) -> CommError + Sync) {
    let begun = Barrier::new(4);
    run(segment, |rank| {
        perform(rank, Operation::Barrier);
        let ticket = rank.begin(reduce(0..OWN), soon()).expect("valid");
        begun.wait();
        if rank.rank() == Rank(2) {
            // Long enough for the others to fall asleep.
            thread::sleep(Duration::from_millis(30));
            segment.mark_dead(Rank(2), "signal 9 (SIGKILL)");
        } else {
            let begin = Instant::now();
            let error = body(rank, ticket);
            assert!(begin.elapsed() < Duration::from_secs(2), "woken, not timed out");
            let CommError::PeerLost { rank: Rank(2), operation, why } = error else {
                panic!("{error}");
            };
            assert_eq!((operation.number, why.as_str()), (1, "signal 9 (SIGKILL)"));
        }
    });
}

#[test]
fn a_rank_that_dies_in_an_operation_wakes_all_that_wait_for_it() {
    lose_rank_2(&create(4, OWN), |rank, ticket| rank.finish(ticket).expect_err("rank 2 dies"));
}

#[test]
fn a_death_is_noticed_between_layers() {
    lose_rank_2(&create(4, OWN), |rank, _ticket| {
        loop {
            if let Err(error) = rank.progress() {
                return error;
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn nothing_can_be_begun_with_a_dead_rank_but_what_all_have_done_stands() {
    let segment = create(2, OWN);
    let (done, died) = (Barrier::new(2), Barrier::new(2));
    run(&segment, |rank| {
        rank.values(0..OWN).expect("free").fill(1.0);
        let ticket = rank.begin(reduce(0..OWN), soon()).expect("valid");
        done.wait();
        rank.progress().expect("nobody has died");
        done.wait();
        if rank.rank() == Rank(1) {
            segment.mark_dead(Rank(1), "exit code 101");
        }
        died.wait();
        rank.finish(ticket).expect("all had done their part");
        assert!(rank.values(0..OWN).expect("free").iter().all(|&value| value == 2.0));
        let refused = rank.barrier(soon()).expect_err("rank 1 is dead").to_string();
        assert_eq!(refused, "rank 1 was lost (exit code 101) in operation 1, barrier");
    });
}
