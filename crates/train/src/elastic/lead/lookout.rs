//! Who is stuck, what was planted, and what whoever asks is told.

use paceline_record::{LauncherEvent, MemberChange, Nanos, Step};
use rustix::process::Signal;

use super::{BIRTH, DEADLOCK, Lead, SHOWN};
use crate::elastic::Elastic;
use crate::elastic::control::{Answer, MemberStatus, Request, Status};
use crate::elastic::crew::Occupant;
use crate::elastic::hosting::Hosting;
use crate::elastic::process::{Condemned, Process, run_of, state_of};
use crate::elastic::watch::{Doing, Sight, Stalled};
use crate::launcher::Glance;
use crate::{Fault, TrainError, clock};

impl Lead<'_, '_, '_> {
    /// Kills whoever holds a task and does not move.
    pub(super) fn expel_stalled(&mut self, now: Nanos) -> Result<(), TrainError> {
        let sights: Vec<Sight> = self
            .processes
            .values()
            .filter(|process| process.condemned.is_none())
            .map(|process| {
                let (beat, doing) = self.board.progress_of(self.ground, process.seat);
                let run = run_of(process.child.id());
                let is_in = process.joined.is_some();
                let doing = if is_in { Doing::read(doing) } else { Doing::Nothing };
                Sight { seat: process.seat, beat, doing, run }
            })
            .collect();
        for process in self.processes.values_mut().filter(|process| process.joined.is_none()) {
            if now.since(process.started) > BIRTH {
                process.condemn(Condemned::Stalled);
            }
        }
        let stalled = self.watch.look(&sights, self.pace.median(), Step(self.done), now);
        for Stalled { seat, since, step } in stalled {
            let process = self.processes.get_mut(&seat).expect("invariant: it was just seen");
            process.condemn(Condemned::Stalled);
            let member = process.member;
            self.tell(member, MemberChange::Stalled { step, since })?;
        }
        Ok(())
    }

    /// A run in which nobody works and nothing moves would wait for ever.
    pub(super) fn check_deadlock(&mut self, now: Nanos) -> Result<(), TrainError> {
        let works = |process: &Process| {
            let (_, doing) = self.board.progress_of(self.ground, process.seat);
            Doing::read(doing) != Doing::Nothing
        };
        let is_idle = !self.waits
            && self.hosting.is_none()
            && !self.processes.is_empty()
            && !self.processes.values().any(works)
            && self.crew.seats.iter().all(|seat| !matches!(seat.occupant, Occupant::Starting(_)));
        let since = match self.stalled_since {
            Some((since, done)) if is_idle && done == self.done => since,
            _ => {
                self.stalled_since = is_idle.then_some((now, self.done));
                return Ok(());
            }
        };
        if now.since(since) > DEADLOCK {
            return Err(TrainError::Deadlock { step: Step(self.done) });
        }
        Ok(())
    }

    /// Starts the members that `--faults join@STEP` asks for.
    pub(super) fn plant_joins(&mut self) {
        let joins = self.job.faults.0.iter().filter_map(|fault| match fault {
            Fault::Join { at } => Some(at.0),
            _ => None,
        });
        let due = joins.filter(|&at| at <= self.done).count();
        if due > self.joined {
            let more = (due - self.joined) as u32;
            self.joined = due;
            let asked = (self.crew.asked.max(self.crew.staying()) + more).min(self.elastic.max);
            self.crew.ask(asked);
        }
    }

    /// Lets members go on that were stopped by a fault, when their time is over.
    pub(super) fn continue_stopped(&mut self, now: Nanos) {
        let faults = &self.job.faults.0;
        for process in self.processes.values_mut() {
            let own = faults.iter().find_map(|fault| match *fault {
                Fault::Stop { member, time, .. } if member == process.member => Some(time),
                _ => None,
            });
            let random = faults.iter().find_map(|fault| match *fault {
                Fault::RandomStop { time, .. } => Some(time),
                _ => None,
            });
            let Some(time) = own.or(random) else { continue };
            let is_stopped = state_of(process.child.id()) == Some('T');
            match process.continues {
                None if is_stopped => process.continues = Some(now + time),
                Some(until) if until <= now => {
                    process.signal(Signal::CONT);
                    process.continues = None;
                }
                _ => {}
            }
        }
    }

    /// Shows how far it is.
    pub(super) fn show(&mut self) {
        let now = clock::now();
        if now.since(self.shown) < SHOWN && !self.processes.is_empty() {
            return;
        }
        self.shown = now;
        let first = self.warden.roster().first().and_then(|seat| self.processes.get(seat));
        let events = self.follower.look(first.map(|process| process.member));
        let said = self.hosting.as_mut().map(Hosting::take_said).unwrap_or_default();
        let steps = self.done.saturating_sub(self.first);
        (self.surroundings.progress)(Glance { steps, events: &events, said: &said });
    }

    pub(super) fn answer(&mut self, now: Nanos) -> Result<(), TrainError> {
        let mut scaled = Vec::new();
        let status = || self.status(now);
        let Elastic { min, max, .. } = *self.elastic;
        // A quota takes nobody's core: it is told elsewhere.
        let cores = paceline_system::cores::allowed().map_or(1, |allowed| allowed.len());
        let threads = self.job.threads;
        let asked = self.crew.asked;
        self.control.serve(|request| match request {
            Request::Status => Answer::Status(Box::new(status())),
            Request::Scale(0) => Answer::Refused("a training needs at least 1 worker; Ctrl-C ends it".into()),
            Request::Scale(workers) if workers < min => {
                Answer::Refused(format!("it needs at least {min} workers, as --elastic {min}:{max} says"))
            }
            Request::Scale(workers) if workers > max => Answer::Refused(format!(
                "it can have at most {max} workers; start it with --elastic MIN:{workers} to allow for more"
            )),
            Request::Scale(workers) => {
                scaled.push(workers);
                let cores_needed = workers as usize * threads;
                let thread = if threads == 1 { "thread" } else { "threads" };
                let core = if cores == 1 { "core" } else { "cores" };
                let means = if cores_needed > cores {
                    format!(
                        "each keeps its {threads} {thread}; {cores_needed} threads share {cores} {core}, and each will be slower"
                    )
                } else {
                    let free = max as usize * threads <= cores && self.job.pin;
                    let whose = if free { "on cores of its own" } else { "on any of the cores" };
                    format!("each has {threads} {thread} {whose}; {} of {cores} {core} stay free", cores - cores_needed)
                };
                Answer::Scaled { workers, means }
            }
        });
        for workers in scaled {
            self.log.append(&LauncherEvent::Scaled { at: now, workers })?;
            if workers != asked {
                self.remember(format!("asked for {workers} workers instead of {asked}"));
            }
            self.crew.ask(workers);
        }
        Ok(())
    }

    pub(super) fn status(&self, now: Nanos) -> Status {
        let roster = self.warden.roster();
        let members = self.processes.values().map(|process| {
            let rank = roster.iter().position(|&seat| seat == process.seat).map(|rank| rank as u32);
            let state = match self.crew.seats[process.seat as usize].occupant {
                Occupant::Starting(_) => "starting",
                Occupant::Leaving(_) => "leaving",
                _ if rank.is_none() => "waiting",
                _ => "training",
            };
            MemberStatus { member: process.member.0, pid: process.child.id(), rank, state: state.into() }
        });
        Status {
            model: self.job.model.clone(),
            pid: std::process::id(),
            step: self.done,
            steps: self.job.steps,
            images_per_s: self.pace.steps_per_s(now).map(|steps| steps * self.job.global_batch() as f64),
            workers: self.crew.asked,
            min: self.elastic.min,
            max: self.elastic.max,
            generation: u64::from(self.warden.generation()),
            waits: self.waits,
            seconds: now.since(self.began).seconds(),
            hosts: self.hosting.as_ref().map(Hosting::status).unwrap_or_default(),
            members: members.collect(),
            events: self.events.iter().cloned().collect(),
        }
    }
}
