//! Ranks as threads of the test: each attaches to the segment by itself, so that it has a mapping of its own as a process
//! has.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use paceline_comm::{Collective, Deadline, Operation, Reduction, Segment, SegmentSize, Shm};
use paceline_record::Rank;

/// Long enough for a busy machine, short enough for a test that hangs.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

pub fn create(world: u32, own: usize) -> Segment {
    Segment::create(SegmentSize { world, areas: world, own, common: 0 }).expect("memory for a small segment")
}

/// Runs a body on every rank at once; what each gave, in the order of the ranks.
pub fn run<T: Send>(segment: &Segment, body: impl Fn(&mut Shm) -> T + Sync) -> Vec<T> {
    let descriptor = segment.descriptor().expect("created by this process");
    let body = &body;
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..segment.size().world)
            .map(|rank| {
                scope.spawn(move || {
                    let segment = Segment::attach(descriptor).expect("the segment is open");
                    body(&mut segment.join(Rank(rank)).expect("the rank is free"))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("the rank did not panic")).collect()
    })
}

/// Every kind of operation over a range.
pub fn every_operation(range: Range<usize>, world: u32) -> Vec<Operation> {
    let mut all = vec![Operation::Barrier, Operation::AllGather { range: range.clone() }];
    for reduction in [Reduction::Sum, Reduction::Mean] {
        let range = range.clone();
        all.extend([
            Operation::AllReduce { range: range.clone(), reduction },
            Operation::ReduceScatter { range: range.clone(), reduction },
            Operation::ReplicatedSum { range: range.clone(), reduction },
            Operation::Reduce { range, reduction, root: Rank(world - 1) },
        ]);
    }
    all
}

/// Begins and finishes.
pub fn perform(rank: &mut dyn Collective, operation: Operation) -> paceline_comm::Finished {
    let ticket = rank.begin(operation, soon()).expect("a valid operation");
    rank.finish(ticket).expect("all ranks take part")
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
