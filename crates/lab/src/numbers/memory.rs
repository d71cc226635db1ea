//! Peak memory: measured by the system, planned by the engine.
//!
//! For workers on devices it is device memory, for others the memory of the process. Memory shared by ranks counts once in
//! the total, and in equal parts per worker. Of several repeats, the largest counts. Where workers come and go, the total is
//! that of the roster that took most, of those whose members all told.

use paceline_record::log::RankLog;
use paceline_record::{Bytes, Who};
use serde::Serialize;

use crate::Run;

/// Bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Of the worker that took most.
    pub per_worker: Bytes,
    /// Of all workers together.
    pub total: Bytes,
}

/// The most that any repeat took; `None` if a rank did not log it.
pub fn peak(repeats: &[&Run]) -> Option<Memory> {
    most(repeats, peak_of)
}

/// What the engine planned for its program.
pub fn planned(repeats: &[&Run]) -> Option<Memory> {
    most(repeats, |ranks| {
        let all: Option<Vec<Bytes>> = ranks.iter().map(|rank| rank.planned).collect();
        let all = all?;
        Some(Memory { per_worker: *all.iter().max()?, total: Bytes(all.iter().map(|bytes| bytes.0).sum()) })
    })
}

fn most(repeats: &[&Run], of: fn(&[&RankLog]) -> Option<Memory>) -> Option<Memory> {
    let all: Option<Vec<Memory>> = repeats.iter().map(|run| of_run(run, of)).collect();
    all?.into_iter().max_by_key(|memory| memory.total)
}

fn of_run(run: &Run, of: fn(&[&RankLog]) -> Option<Memory>) -> Option<Memory> {
    let Some(membership) = &run.membership else { return of(&run.ranks.iter().collect::<Vec<_>>()) };
    let together = membership.rosters.iter().filter_map(|roster| {
        let there = |log: &&RankLog| matches!(log.header.who(), Who::Member(member) if roster.members.contains(&member));
        of(&run.ranks.iter().filter(there).collect::<Vec<_>>())
    });
    together.max_by_key(|memory| memory.total)
}

fn peak_of(ranks: &[&RankLog]) -> Option<Memory> {
    let devices: Option<Vec<u64>> = ranks.iter().map(|rank| rank.peak_device.map(|bytes| bytes.0)).collect();
    if let Some(devices) = devices.filter(|devices| !devices.is_empty()) {
        let most = devices.iter().copied().max().unwrap_or_default();
        return Some(Memory { per_worker: Bytes(most), total: Bytes(devices.iter().sum()) });
    }
    let mut private = Vec::new();
    let mut shared = 0;
    for rank in ranks {
        let common = rank.shared.map_or(0, |bytes| bytes.0);
        private.push(rank.peak_resident?.0.saturating_sub(common));
        shared = common.max(shared);
    }
    Some(Memory {
        per_worker: Bytes(private.iter().max()? + shared / ranks.len() as u64),
        total: Bytes(private.iter().sum::<u64>() + shared),
    })
}
