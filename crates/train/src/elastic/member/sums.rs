//! Slices: adding up gradients, and the update.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use paceline_comm::slice;
use paceline_comm::tasks::{Ground, Parts, SliceTask, Slices, side};
use paceline_engine::{HostUpdate, Region, Transition};
use paceline_record::{Nanos, Rank};

use super::region;
use crate::clock;
use crate::elastic::point;
use crate::elastic::point::Point;
use crate::elastic::state::Layout;
use crate::elastic::watch::Doing;

/// Time of slices.
#[derive(Default)]
pub(super) struct SumTimes {
    pub(super) all: Nanos,
    /// Of that, adding up; the rest is the update.
    pub(super) adding: Nanos,
    /// Of all, what was done between the layers of a shard.
    pub(super) within: Nanos,
    pub(super) moved: u64,
}

/// Adds up slices, and updates.
pub(super) struct Sums<'a> {
    pub(super) ground: &'a Ground,
    pub(super) layout: &'a Layout,
    pub(super) update: HostUpdate,
    pub(super) rate: f32,
    pub(super) times: SumTimes,
    /// Whether the member is computing a shard.
    pub(super) in_shard: &'a Cell<bool>,
    pub(super) seat: u32,
}

impl Slices for Sums<'_> {
    fn add_part(&mut self, task: SliceTask, parts: &Parts) {
        let range = self.range(task);
        self.note(Doing::Computing);
        let begin = clock::now();
        // SAFETY: all shards of this host have flagged this bucket, so nobody writes to it before the step is done, and this slice of
        // the outboxes is its claimant's.
        unsafe { self.ground.add_part(parts, &range) };
        let all = clock::now().since(begin);
        self.times.all += all;
        self.times.adding += all;
        if self.in_shard.get() {
            self.times.within += all;
        } else {
            self.note(Doing::Nothing);
        }
        self.times.moved += 4 * (range.len() * parts.own_shards().len()) as u64;
    }

    fn run(&mut self, task: SliceTask, parts: &Parts) {
        let SliceTask { step, slice: number, .. } = task;
        let range = self.range(task);
        point::reach(Point::BeforeSlice);
        if range.is_empty() {
            return;
        }
        self.note(Doing::Computing);
        let travels = self.layout.size.shape.hosts > 1;
        let is_owner = parts.is_owner(number);
        let regions = |side: usize| -> [Region; 3] {
            let kept = self.layout.size.state;
            let state = |number| region(self.ground.state(side, number));
            let parameters = region(self.ground.parameters(side));
            [
                parameters,
                if kept > 0 { state(0) } else { parameters },
                if kept > 1 { state(1) } else { parameters },
            ]
        };
        let (from, into) = (regions(side(step)), regions(side(step + 1)));
        let count = 1 + self.layout.size.state;
        let adding = AtomicU64::new(0);
        let begin = clock::now();
        let transition = Transition {
            learning_rate: self.rate,
            updates: step + 1,
            range: range.clone(),
            from: &from[..count],
            into: &into[..count],
            gradients: &|part, into| {
                let begin = clock::now();
                // SAFETY: all shards have flagged this bucket, here or through the porter, so nobody writes to it before the step is
                // done; this slice of the means is its claimant's, or has come.
                unsafe {
                    match (travels, is_owner) {
                        (false, _) => self.ground.mean_gradients(&part, into),
                        (true, true) => self.ground.mean_of_parts(parts, &part, into),
                        (true, false) => self.ground.read_mean(&part, into),
                    }
                }
                adding.fetch_add(clock::now().since(begin).0, Ordering::Relaxed);
                point::reach(Point::InSlice);
            },
        };
        // SAFETY: nobody writes to the state before the step, and this slice of the next one is its claimant's.
        let done = unsafe { self.update.run(&transition) };
        done.expect("invariant: slices lie in the parameters");
        let all = clock::now().since(begin);
        self.times.all += all;
        if self.in_shard.get() {
            self.times.within += all;
        }
        self.times.adding += Nanos(adding.into_inner()).min(all);
        let values = range.len() * (self.layout.size.shape.shards as usize + 2 * count);
        self.times.moved += 4 * values as u64;
        if !self.in_shard.get() {
            self.note(Doing::Nothing);
        }
    }
}

impl Sums<'_> {
    pub(super) fn note(&self, doing: Doing) {
        self.ground.board().note_doing(self.ground, self.seat, doing as u64);
    }

    pub(super) fn range(&self, task: SliceTask) -> Range<usize> {
        let bucket = self.layout.buckets[task.bucket as usize].range.clone();
        slice(bucket, Rank(task.slice), self.layout.size.shape.slices)
    }
}
