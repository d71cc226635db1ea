//! How a host stands when a roster of hosts is called, and how it goes on by it.

use paceline_comm::tasks::authority::{Stand, Word};
use paceline_comm::tasks::{Done, Parts, Seating, Shape, Standing, given};
use paceline_record::{Nanos, RecoveryPhase};

use super::group::{Reached, void_parts};
use super::{Hosting, Phase};
use crate::elastic::lead::Lead;
use crate::hosts::porter::Start;
use crate::{TrainError, clock};

impl Lead<'_, '_, '_> {
    /// Tells the authority what it waits for.
    pub(super) fn report_progress(&mut self) -> Result<(), TrainError> {
        let done = self.board.steps_done(self.ground, self.done);
        let is_due = self.calendar_is_due(done);
        let on_device = self.on_device;
        let stands = |hosting: &Hosting| matches!(hosting.phase, Phase::Called { linked: true, told: false });
        let is_asked = on_device && self.warden.is_still() && self.hosting.as_ref().is_some_and(stands);
        let on_devices = is_asked.then(|| self.stand_on_devices()).flatten();
        let Some(hosting) = &mut self.hosting else { return Ok(()) };
        if hosting.phase == Phase::Idle && self.warden.generation() > 0 {
            // From here on it takes others no more than a moment to let it in.
            hosting.phase = Phase::Ready;
            hosting.party.ready();
        }
        if let Phase::Called { linked: true, told: told @ false } = &mut hosting.phase
            && self.warden.is_still()
        {
            let stand = if on_device {
                let Some(stand) = on_devices else { return Ok(()) };
                stand
            } else if hosting.lacks_state {
                let Shape { shards, buckets, slices, .. } = self.board.shape();
                let all = (0..buckets).flat_map(|bucket| (0..slices).map(move |slice| (bucket, slice)));
                Stand {
                    done: None,
                    missing: all.collect(),
                    untested: (0..shards).collect(),
                    passed: false,
                    group: None,
                }
            } else {
                let untested = if is_due { self.board.untested(self.ground, done) } else { Vec::new() };
                let missing = self.board.missing(self.ground, done);
                Stand { done: Some(done), missing, untested, passed: !is_due, group: None }
            };
            *told = true;
            let generation = hosting.roster.generation;
            hosting.party.say(Word::Stands { generation, stand });
        }
        hosting.lacks_state &= !hosting.runs() || done < hosting.first;
        if hosting.runs() && hosting.is_guest() && !hosting.has_caught_up && done > hosting.first {
            hosting.has_caught_up = true;
            hosting.party.say(Word::CaughtUp);
        }
        if let Some(step) = hosting.holds.filter(|&step| done >= step) {
            hosting.holds = None;
            hosting.party.say(Word::Holds(step));
        }
        if !hosting.lacks_state
            && let Some(since) = hosting.copies.take()
        {
            self.log_recovery(RecoveryPhase::State, since, clock::now())?;
        }
        Ok(())
    }

    /// All hosts stand like this: work goes on.
    pub(super) fn go(&mut self, mut stands: Vec<Stand>, now: Nanos) -> Result<(), TrainError> {
        if self.on_device && stands.iter().all(|stand| stand.done.is_none()) {
            return Err(TrainError::HostsEnded("no host has the state of the training any more".into()));
        }
        let hosting = self.hosting.as_mut().expect("invariant: hosts go");
        let first = stands.iter().filter_map(|stand| stand.done).max().unwrap_or(0);
        if first == 0 {
            // Everybody has drawn the same weights.
            stands.iter_mut().for_each(|stand| stand.done = Some(0));
        }
        let place = hosting.roster.place_of(hosting.party.host);
        let place = place.expect("invariant: who is told to go is in the roster");
        let own = stands[place].clone();
        let group = stands[0].group.clone();
        if self.on_device {
            void_parts(self.ground, self.passed, Reached { own: own.done, all: first });
        }
        if own.done.is_none() {
            let has_passed = stands.iter().any(|stand| stand.done == Some(first) && stand.passed);
            self.passed = first - u64::from(!has_passed);
            self.board.begin_at(self.ground, first - 1, self.passed);
            (self.first, self.done, self.refreshed) = (first, first - 1, first - 1);
        } else if hosting.lacks_state {
            self.state.begin()?;
        }
        // It counts as missing until all of it has come.
        hosting.lacks_state = own.done.is_none();
        hosting.copies = hosting.lacks_state.then_some(now);
        hosting.first = first;
        if own.done.is_some_and(|done| done < first) {
            // What was due before the step that others have done is past.
            self.passed = self.passed.max(first - 1);
            self.board.refresh(self.ground, first - 1);
        }
        let parts = Parts::new(hosting.roster.ends(), place, self.board.shape().slices);
        let done = own.done.unwrap_or(first.saturating_sub(1));
        let missing = own.done.is_some().then_some(&own.missing[..]);
        let is_loss = hosting.roster.is_loss;
        let hosts = hosting.roster.places.iter().map(|place| place.host);
        let standings = hosts.zip(stands).map(|(host, stand)| {
            let Stand { done, missing, untested, .. } = stand;
            Standing { host, done, missing, untested }
        });
        let standings: Vec<Standing> = standings.collect();
        let given = given(self.board, &standings);
        if self.on_device {
            let known = hosting.wanted_name().and_then(|number| self.board.given_name(self.ground, number));
            let name = group.and_then(|name| name.try_into().ok());
            // A name is void where whoever made it up is gone.
            let name = name.filter(|name| place > 0 || known.as_ref() == Some(name));
            let (first_rank, world) = (parts.own_shards().start, self.board.shape().shards);
            hosting.seating = name.map(|group| Seating { group, first: first_rank, world, steps: first });
        }
        self.warden.deal(parts.clone(), Done { done, all: first, missing, given: &given, is_loss });
        self.warden.release(first);
        if let Some(porter) = &mut hosting.porter {
            porter.start(Start { parts, standings });
        }
        hosting.phase = Phase::Running;
        if self.warden.generation() > 0 {
            let roster = self.warden.roster().to_vec();
            self.publish(roster, now)?;
        }
        Ok(())
    }
}
