//! A long run holds no more at its end than at its beginning.

use std::fs;

use paceline_comm::{Collective, Shm};

use crate::world::{every_operation, soon};

/// Values of each rank.
pub const OWN: usize = 500;

/// What this process holds: file descriptors, mappings, resident pages.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    mappings: usize,
    pages: usize,
}

impl Held {
    fn now() -> Self {
        let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
        let resident = statm.split_whitespace().nth(1).expect("a second number");
        Self {
            descriptors: fs::read_dir("/proc/self/fd").expect("Linux").count(),
            mappings: fs::read_to_string("/proc/self/maps").expect("Linux").lines().count(),
            pages: resident.parse().expect("a number"),
        }
    }
}

fn operations(rank: &mut dyn Collective, count: usize) {
    let kinds = [every_operation(0..OWN / 2, 2), every_operation(OWN / 2..OWN, 2)];
    for i in 0..count / 2 {
        let tickets = [0, 1].map(|half| {
            let operation = kinds[half][i % kinds[half].len()].clone();
            rank.begin(operation, soon()).expect("valid")
        });
        rank.progress().expect("nobody dies");
        for ticket in tickets {
            rank.finish(ticket).expect("both take part");
        }
    }
}

/// Does far more than the ring of operations holds, and compares what the process holds.
pub fn endure(rank: &mut Shm) {
    rank.values(0..OWN).expect("free").fill(1e-3);
    // Once around the ring, and everything that is made at first need.
    operations(rank, 3000);
    let before = Held::now();
    operations(rank, 10_000);
    let after = Held::now();
    assert!(after.descriptors <= before.descriptors, "{before:?} {after:?}");
    assert!(after.mappings <= before.mappings, "{before:?} {after:?}");
    assert!(after.pages <= before.pages + 64, "{before:?} {after:?}");
}
