//! Slices: which of them a member does, and when it can.

use super::{Dealing, Member, SliceTask, Slices};
use crate::tasks::board::Task;
use crate::tasks::{Words, flag};

impl<M: Words> Member<'_, M> {
    /// Whether all shards of this host have a bucket.
    fn is_complete(&self, bucket: u32) -> bool {
        let flag = |shard| self.board.shard_flag(shard, bucket);
        let mut here = self.roster.parts.own_shards();
        here.all(|shard| flag::has_reached(self.words, flag(shard), self.step + 1))
    }

    /// Whether all has come that a slice needs of other hosts.
    pub(super) fn has_input(&self, bucket: u32, slice: u32) -> bool {
        self.is_alone() || flag::has_reached(self.words, self.board.input_flag(bucket, slice), self.step + 1)
    }

    /// Slices of each bucket.
    pub(super) fn slices(&self) -> u32 {
        #[cfg(test)]
        if self.words.has(crate::tasks::simulation::Mistake::SlicesByRoster) {
            return self.world().min(self.board.shape().slices);
        }
        self.board.shape().slices
    }

    /// Does slices that can be done, its own and, with a dynamic deal, others'; whether there was one.
    pub(super) fn do_slices(&mut self, slices: &mut impl Slices, dealing: Dealing) -> bool {
        let buckets = self.board.shape().buckets;
        while self.complete < buckets && self.is_complete(self.complete) {
            self.complete += 1;
        }
        let mut any = false;
        let own = self.own(self.slices());
        let mut first = self.past;
        if !self.is_alone() {
            // What others wait for comes first. Slices can be done in any order: their input comes when it comes.
            for bucket in self.past..self.complete {
                for slice in own.clone() {
                    any |= self.do_part(bucket, slice, slices);
                }
            }
            first = 0;
        }
        self.past = self.complete;
        for bucket in first..self.complete {
            for slice in own.clone() {
                any |= self.do_slice(bucket, slice, slices);
            }
        }
        if dealing == Dealing::Dynamic && !any {
            for bucket in 0..self.complete {
                for slice in (0..self.slices()).rev().filter(|slice| !own.contains(slice)) {
                    if self.do_part(bucket, slice, slices) || self.do_slice(bucket, slice, slices) {
                        return true;
                    }
                }
            }
        }
        any
    }

    /// Adds up what this host has of a slice that another one owns, if that is still to be done.
    fn do_part(&mut self, bucket: u32, slice: u32, slices: &mut impl Slices) -> bool {
        if self.roster.parts.is_owner(slice)
            || self.roster.parts.own_shards().is_empty()
            || self.claim(Task::Part { bucket, slice }, self.step + 1).is_none()
        {
            return false;
        }
        slices.add_part(SliceTask { step: self.step, bucket, slice }, &self.roster.parts);
        self.raise(self.board.part_flag(bucket, slice));
        self.board.note_beat(self.words, self.seat);
        true
    }

    fn do_slice(&mut self, bucket: u32, slice: u32, slices: &mut impl Slices) -> bool {
        if !self.has_input(bucket, slice)
            || self.claim(Task::Slice { bucket, slice }, self.step + 1).is_none()
        {
            return false;
        }
        slices.run(SliceTask { step: self.step, bucket, slice }, &self.roster.parts);
        self.raise(self.board.slice_flag(bucket, slice));
        // Not a beat: a roster is acknowledged only where the caller looks at it.
        self.board.note_beat(self.words, self.seat);
        true
    }
}
