//! Tests and checkpoints where they are due, and the end of a run that stops early.

use paceline_record::{Bytes, LauncherEvent, MemberChange, MemberEvent, RankEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::{LastDeath, Lead, Saved, Stop, TICK, UNKILLABLE};
use crate::checkpoint::{Checkpoint, Position};
use crate::elastic::crew::Hopeless;
use crate::elastic::hosting::Hosting;
use crate::elastic::process::Condemned;
use crate::milestone::eval_record;
use crate::{TrainError, clock};

impl Lead<'_, '_, '_> {
    /// Ends a test, writes a checkpoint, and lets members go on.
    pub(super) fn reach_milestone(&mut self) -> Result<(), TrainError> {
        let steps = self.done;
        if self.passed >= steps || !self.calendar_is_due(steps) {
            return Ok(());
        }
        let due = self.calendar.after(steps);
        if self.on_device && self.board.held(self.ground) != Some(steps) {
            return Ok(());
        }
        if due.eval && !self.board.is_tested(self.ground, steps) {
            return Ok(());
        }
        if due.eval {
            let mut examples = 0;
            let parts = (0..self.job.shards()).map(|part| {
                let (loss, counts) = self.board.test_of(self.ground, part);
                examples += (counts >> 32) as usize;
                (loss as f32, counts & u64::from(u32::MAX))
            });
            let parts: Vec<(f32, u64)> = parts.collect();
            let record = eval_record(steps, examples, self.state.graph, &parts);
            // Whoever comes to others in a test may have been told of it.
            if self.position.history.last().is_none_or(|last| last.steps < steps) {
                self.position.history.push(record);
            }
            self.tell_history();
            self.follower.add(RankEvent::Evaluated(record));
            self.log.append(&LauncherEvent::Evaluated(record))?;
        }
        if due.saving.is_some() && self.hosting.as_ref().is_none_or(Hosting::is_first) {
            self.save(steps)?;
        }
        self.passed = steps;
        self.board.pass(self.ground, steps);
        Ok(())
    }

    pub(super) fn save(&mut self, steps: u64) -> Result<(), TrainError> {
        self.write_state(steps)?.map_or(Ok(()), |saved| self.tell_saved(saved))
    }

    pub(super) fn write_state(&self, steps: u64) -> Result<Option<Saved>, TrainError> {
        let Some(saving) = &self.job.milestones.saving else { return Ok(None) };
        let numerics = self.numerics.clone().unwrap_or_default();
        let position = Position { steps, ..self.position.clone() };
        let checkpoint: Checkpoint = self.state.checkpoint(position, &numerics)?;
        let written = checkpoint.write(&saving.folder, saving.keep)?;
        Ok(Some(Saved { at: clock::now(), steps, bytes: Bytes(written.bytes) }))
    }

    pub(super) fn tell_saved(&mut self, Saved { at, steps, bytes }: Saved) -> Result<(), TrainError> {
        self.follower.add(RankEvent::Saved { at, steps, bytes });
        self.log.append(&LauncherEvent::Saved { at, steps, bytes })?;
        self.remember(format!("saved after step {steps}"));
        Ok(())
    }

    /// Saves the last complete state once no member is left, unless that has been saved.
    pub(super) fn save_last(&self) -> Result<Option<Saved>, TrainError> {
        let Some(steps) = self.count_saved() else { return Ok(None) };
        // Milestones are saved by the first host alone.
        let saves = self.hosting.as_ref().is_none_or(Hosting::is_first);
        let saved = saves
            && self.passed >= steps
            && steps > self.first
            && self.calendar.after(steps).saving.is_some();
        if steps == self.first || steps == 0 || saved {
            return Ok(None);
        }
        self.write_state(steps)
    }

    /// Kills all members, and waits until nothing is left of them.
    pub(super) fn end_all(&mut self) -> Result<(), TrainError> {
        let at = clock::now();
        let mut logged = Ok(());
        for process in self.processes.values_mut().filter(|process| process.condemned.is_none()) {
            process.condemn(Condemned::Over);
            // It is not lost: its launcher ends.
            let change = MemberChange::Left;
            let event = LauncherEvent::Member(MemberEvent { member: process.member, at, change });
            logged = logged.and(self.log.append(&event).map_err(TrainError::from));
        }
        let begin = clock::now();
        while !self.processes.is_empty() && clock::now().since(begin) < UNKILLABLE {
            let mut files: Vec<PollFd<'_>> = Vec::new();
            files.extend(self.processes.values().map(|one| PollFd::new(&one.handle, PollFlags::IN)));
            let time = Timespec { tv_sec: 0, tv_nsec: TICK.0 as i64 };
            let _ = poll(&mut files, Some(&time));
            drop(files);
            logged = logged.and(self.reap(clock::now()).map(drop));
        }
        logged
    }

    pub(super) fn explain(&mut self, stop: Stop) -> TrainError {
        match stop {
            Stop::Interrupted => TrainError::Interrupted,
            Stop::Ended(why) => TrainError::HostsEnded(why),
            Stop::Stuck(member) => TrainError::Unkillable { member },
            Stop::Hopeless(_) if self.job.elastic.is_none() => {
                let last = self.last_death.take().map(|death| {
                    let words =
                        if death.words.is_empty() { String::new() } else { format!("\n{}", death.words) };
                    format!("worker {} was lost ({}){words}", death.member, death.why)
                });
                TrainError::WorkerLost(last.unwrap_or_else(|| "a worker was lost".into()))
            }
            Stop::Hopeless(hopeless) => {
                let (there, waited) = match hopeless {
                    Hopeless::NobodyComes { there } => (there, None),
                    Hopeless::TooLong { there } => (there, Some(self.elastic.patience_s)),
                };
                let last = self.last_death.take().map(|death| {
                    let LastDeath { member, why, words, log } = death;
                    // A file without words is not kept.
                    let log = if words.is_empty() {
                        String::new()
                    } else {
                        format!("; its log is {}\n{words}", log.display())
                    };
                    format!("member {member} was lost last ({why}){log}")
                });
                TrainError::TooFew { there, min: self.elastic.min, waited, last: last.unwrap_or_default() }
            }
        }
    }
}
