//! Members: how they are started, how they end, and what is left of them.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use paceline_record::{Exit, Expulsion, Member, MemberChange, Nanos};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{LastDeath, Lead, UNKILLABLE, Underway, read_numerics};
use crate::elastic::crew::{End, Occupant};
use crate::elastic::hosting::Hosting;
use crate::elastic::member::Membership;
use crate::elastic::process::{Condemned, Process, oom_kills, spawn, words_file};
use crate::launcher::LAST_WORDS;
use crate::{Job, TrainError, clock};

impl Lead<'_, '_, '_> {
    /// Starts a member in a seat.
    pub(super) fn start(&mut self, seat: u32) -> Result<(), TrainError> {
        let member = Member(self.next_member);
        self.next_member += 1;
        self.tell(member, MemberChange::Spawned)?;
        let own = Membership {
            member,
            seat,
            ground: self.ground.descriptor().expect("invariant: it was created here"),
            bell: self.bell.descriptor(),
            porter: self.hosting.as_ref().map(Hosting::porter_bell),
            host: self.hosting.as_ref().map(Hosting::host),
            place: self.hosting.as_ref().map_or((0, 1), Hosting::place),
            clock: clock::planted(),
            about: self.done,
            passed: self.passed,
        };
        let job = Job { numerics: self.numerics.clone(), ..self.job.clone() };
        let child = spawn(job, own, &self.surroundings.program)?;
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|error| TrainError::system("watch a member")(error.into()))?;
        let process = Process {
            member,
            seat,
            child,
            handle,
            condemned: None,
            reaped: false,
            continues: None,
            started: clock::now(),
            joined: None,
        };
        self.processes.insert(seat, process);
        self.crew.started(seat, member);
        Ok(())
    }

    /// Takes note of all that have ended. Gives the member that will not end, if there is one.
    pub(super) fn reap(&mut self, now: Nanos) -> Result<Option<u32>, TrainError> {
        let ended: Vec<u32> = self
            .processes
            .iter_mut()
            .filter_map(|(&seat, process)| process.child.try_wait().ok().flatten().map(|_| seat))
            .collect();
        for seat in ended {
            self.bury(seat, now)?;
        }
        let stuck = self
            .processes
            .values()
            .find(|process| process.condemned.is_some_and(|(_, since)| now.since(since) > UNKILLABLE));
        Ok(stuck.map(|process| process.member.0))
    }

    /// Nothing is left of the process in a seat: its tasks are anybody's.
    pub(super) fn bury(&mut self, seat: u32, now: Nanos) -> Result<(), TrainError> {
        let mut process = self.processes.remove(&seat).expect("invariant: it was there");
        // What it did before it ended counts.
        self.done = self.count_done();
        let status = process.child.wait().map_err(TrainError::system("reap a member"))?;
        process.reaped = true;
        let exit = match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or_default()),
        };
        let member = process.member;
        let (beat, _) = self.board.progress_of(self.ground, seat);
        let was_in = self.warden.roster().contains(&seat);
        self.warden.bury(seat);
        if self.board.asked_state(self.ground) == Some(seat) {
            self.board.ask_state(self.ground, None);
        }
        self.tell(member, MemberChange::Ended(exit))?;
        let words = words_file(&self.job.folder, member);
        if fs::metadata(&words).is_ok_and(|file| file.len() == 0) {
            // An empty file does no harm.
            let _ = fs::remove_file(&words);
        }
        let is_leaving = matches!(self.crew.seats[seat as usize].occupant, Occupant::Leaving(_));
        let is_over = self.done >= self.warden.end() && self.passed_all();
        let lost = End::Lost { worked: process.joined.is_some_and(|step| step < self.done) };
        let end = match process.condemned {
            Some((Condemned::Stalled, _)) => lost,
            Some((Condemned::Dismissed | Condemned::Over, _)) => End::Dismissed,
            None if is_leaving || (is_over && exit.is_success()) => End::Dismissed,
            None if exit.is_success() => End::Left,
            None => lost,
        };
        self.crew.ended(seat, end, &self.policy, now);
        let why = match (end, process.condemned) {
            (End::Lost { .. }, Some(_)) => Some((Expulsion::Stalled, "made no progress".to_owned())),
            (End::Lost { .. }, None) => Some((Expulsion::Ended, self.name_exit(exit))),
            (End::Left, _) => {
                self.tell(member, MemberChange::Left)?;
                self.remember(format!("member {member} left"));
                None
            }
            (End::Dismissed, _) => None,
        };
        if let Some((expulsion, why)) = why {
            self.tell(member, MemberChange::Expelled(expulsion))?;
            self.remember(format!("member {member} was lost: {why}"));
            let text = fs::read(&words).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n");
            self.last_death = Some(LastDeath { member, why, words: last, log: words });
        }
        if was_in && matches!(end, End::Lost { .. }) {
            self.note_loss(if beat > self.began { beat } else { now }, now);
        } else if was_in {
            self.recovery.get_or_insert(Underway { since: now, noticed: now, is_loss: false });
        }
        Ok(())
    }

    /// Somebody was lost at about a moment, which was noticed now.
    pub(in crate::elastic) fn note_loss(&mut self, since: Nanos, now: Nanos) {
        let earlier = self.recovery.take();
        self.recovery = Some(Underway {
            since: earlier.as_ref().map_or(since, |earlier| earlier.since.min(since)),
            noticed: earlier.map_or(now, |earlier| earlier.noticed),
            is_loss: true,
        });
    }

    /// How a process ended, and what that means.
    pub(super) fn name_exit(&mut self, exit: Exit) -> String {
        if exit == Exit::Signal(9) {
            let now = oom_kills();
            if let (Some(before), Some(now)) = (self.oom, now)
                && now > before
            {
                self.oom = Some(now);
                return format!("{exit}, when the system ran out of memory and killed processes");
            }
        }
        exit.to_string()
    }

    /// Takes note of members that have become ready.
    pub(super) fn note_ready(&mut self) -> Result<(), TrainError> {
        for seat in 0..self.elastic.max {
            let Occupant::Starting(member) = self.crew.seats[seat as usize].occupant else { continue };
            if self.warden.ready(seat) != Some(member.0) {
                continue;
            }
            if self.numerics.is_none() {
                self.numerics = Some(read_numerics(&self.job.folder)?);
                self.policy.starting = u32::MAX;
            }
            self.crew.ready(seat);
        }
        Ok(())
    }
}
