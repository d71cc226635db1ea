//! What a launcher does where the state is on its members' devices, which exchange with each other (`elastic/member/woven.rs`).

use std::cmp::Reverse;

use paceline_comm::tasks::Shape;
use paceline_comm::tasks::authority::Stand;
use paceline_record::Nanos;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::{Lead, SHORT_TICK};
use crate::elastic::hosting::Hosting;
use crate::{TrainError, clock};

/// How long members may take to stop and to bring their state when a run ends early: a step, a part of a test, or a batch.
const COLLECTED: Nanos = Nanos(60_000_000_000);

impl Lead<'_, '_, '_> {
    /// Steps done, as far as this host knows.
    pub(super) fn count_done(&self) -> u64 {
        match self.on_device {
            true => self.board.run(self.ground),
            false => self.board.steps_done(self.ground, self.done),
        }
    }

    /// Steps done to the state that can be saved.
    pub(super) fn count_saved(&self) -> Option<u64> {
        match self.on_device {
            true => self.board.held(self.ground),
            false => Some(self.board.steps_done(self.ground, self.done)),
        }
    }

    fn is_complete(&self, roster: &[u32]) -> bool {
        roster.len() as u32 == self.job.workers
    }

    /// How a roster that is about to be published joins its group; whether work goes on by it. A member that is lost, or comes, breaks
    /// the group on all hosts.
    pub(super) fn seat_group(&mut self, roster: &[u32]) -> bool {
        let is_complete = self.is_complete(roster);
        let Some(hosting) = &mut self.hosting else { return false };
        let seating = hosting.take_seating().filter(|_| is_complete);
        if let Some(seating) = &seating {
            self.board.seat(self.ground, self.warden.generation() + 1, seating);
        } else {
            hosting.break_group();
        }
        if let Some(number) = hosting.want_name() {
            self.board.want_name(self.ground, number);
        }
        seating.is_some()
    }

    fn runs_group(&self) -> bool {
        self.on_device && self.hosting.as_ref().is_some_and(Hosting::runs)
    }

    /// Stops the members of a group that has failed: another roster is asked for.
    pub(super) fn mind_group(&mut self, now: Nanos) -> Result<(), TrainError> {
        if !self.runs_group() || self.board.broken(self.ground) != self.warden.generation() {
            return Ok(());
        }
        let roster = self.warden.roster().to_vec();
        self.publish(roster, now)
    }

    /// Stops the members of a group that has lost another host, which does not answer any more.
    pub(in crate::elastic) fn halt_group(&mut self, now: Nanos) -> Result<(), TrainError> {
        if !self.runs_group() {
            return Ok(());
        }
        // The authority hears of the host by itself.
        self.hosting.iter_mut().for_each(Hosting::halt);
        let roster = self.warden.roster().to_vec();
        self.publish(roster, now)
    }

    /// All members have brought their parts after the step that they are after, or all of the state has come from another host.
    pub(super) fn note_held(&mut self) {
        if self.runs_group() && self.board.held(self.ground).is_none() {
            let steps = self.board.run(self.ground);
            if self.board.steps_done(self.ground, steps) == steps {
                self.board.hold_state(self.ground, Some(steps));
            }
        }
    }

    /// Whether the shared memory holds the furthest state that a member of this host has. Where it does not, that one is asked for it.
    fn has_furthest(&self) -> bool {
        let roster = self.warden.roster();
        let stand = |&seat: &u32| Some((self.board.stand(self.ground, seat)?, Reverse(seat)));
        let Some((steps, Reverse(seat))) = roster.iter().filter_map(stand).max() else { return true };
        if self.board.held(self.ground) >= Some(steps) {
            return true;
        }
        if self.board.asked_state(self.ground).is_none_or(|asked| !roster.contains(&asked)) {
            self.board.ask_state(self.ground, Some(seat));
        }
        false
    }

    /// How this host stands by a roster, once all that it needs for that is there.
    pub(in crate::elastic) fn stand_on_devices(&self) -> Option<Stand> {
        let hosting = self.hosting.as_ref()?;
        if !self.is_complete(self.warden.roster()) || !self.has_furthest() {
            return None;
        }
        let group = match hosting.wanted_name() {
            Some(number) => Some(self.board.given_name(self.ground, number)?.to_vec()),
            None => None,
        };
        let Shape { buckets, slices, .. } = self.board.shape();
        let all = (0..buckets).flat_map(|bucket| (0..slices).map(move |slice| (bucket, slice)));
        let done = self.board.held(self.ground);
        let passed = done.is_some_and(|done| !self.calendar_is_due(done));
        Some(Stand { done, missing: all.collect(), untested: Vec::new(), passed, group })
    }

    /// Stops the members of a run that ends early, and takes their state, so that it can be saved. Whatever goes wrong, the run ends.
    pub(super) fn collect_state(&mut self) {
        let roster = self.warden.roster().to_vec();
        if !self.on_device || roster.is_empty() {
            return;
        }
        self.warden.publish(&roster, self.job.steps, false);
        let begin = clock::now();
        while clock::now().since(begin) < COLLECTED && !self.warden.roster().is_empty() {
            let mut files = vec![PollFd::new(&self.bell, PollFlags::IN)];
            files.extend(self.processes.values().map(|process| PollFd::new(&process.handle, PollFlags::IN)));
            let time = Timespec { tv_sec: 0, tv_nsec: SHORT_TICK.0 as i64 };
            // Whatever it answers, all is looked at next.
            let _ = poll(&mut files, Some(&time));
            drop(files);
            let _ = self.bell.silence();
            // What cannot be logged has ended the run already, or is told when it ends.
            let _ = self.reap(clock::now());
            self.warden.tend();
            if self.warden.is_still() && self.has_furthest() {
                return;
            }
        }
    }
}
