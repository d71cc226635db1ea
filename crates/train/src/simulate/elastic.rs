//! A simulated run whose workers come and go: the logs of its members, and what a launcher tells of them.
//!
//! Members meet at the end of each step, and the roster changes there: who is ready joins, who leaves is gone. A member that is
//! lost within a step is noticed after `detect`, fenced, and its shards are done again by those that are left. Its replacement is
//! started then, on the lowest free seat that has not lost more members than `restarts`.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use paceline_comm::deal;
use paceline_model::Graph;
use paceline_record::log::{LauncherWriter, RankWriter};
use paceline_record::{
    Bytes, Exit, Expulsion, Generation, LauncherEvent, Member, MemberChange, MemberEvent, MemberHeader,
    Nanos, Phase, Rank, RankEvent, Recovery, RecoveryPhase, Roster, Step, StepRecord, Whole,
};

use super::workload::Workload;
use super::{Part, TOLD, World, scaled};
use crate::launcher::{Glance, Surroundings};
use crate::{Deal, Elastic, Fault, Job, TrainError};

/// A member counts as stalled after this long, or after so many usual steps.
const STALLED: Nanos = Nanos(1_000_000_000);
const STALLED_STEPS: u64 = 5;

/// Killed by the kernel's hardest signal.
const KILLED: Exit = Exit::Signal(9);

/// Runs an elastic job on its simulated machine.
pub(super) fn run(
    job: &Job,
    elastic: &Elastic,
    surroundings: Surroundings<'_>,
    log: &mut LauncherWriter,
) -> Result<(), TrainError> {
    let sizes: Vec<Job> =
        (1..=elastic.max).map(|workers| Job { workers, shards: Some(job.shards()), ..job.clone() }).collect();
    let mut crew = Crew::start(job, elastic, &sizes)?;
    let mut failure = None;
    for step in (0..job.steps).map(Step) {
        if surroundings.interrupted.load(Ordering::Relaxed) {
            failure = Some(TrainError::Interrupted);
            break;
        }
        let faults = crew.gather(step)?;
        failure = crew.work(step, &faults)?;
        if failure.is_some() {
            break;
        }
        if step.0.is_multiple_of(TOLD) {
            (surroundings.progress)(Glance { steps: step.0 + 1, events: &[], said: &[] });
        }
    }
    crew.end(failure.is_some())?;
    crew.told.sort_by_key(|&(at, _)| at);
    for (_, event) in &crew.told {
        log.append(event)?;
    }
    failure.map_or(Ok(()), Err)
}

/// A member that takes part.
struct Hand {
    member: Member,
    seat: u32,
    log: RankWriter,
    /// The step that it came in.
    entered: Step,
    /// Where its last step ended.
    at: Nanos,
    slow: f64,
}

/// A member that has been started, and is not ready yet.
struct Coming {
    member: Member,
    seat: u32,
    main: Nanos,
    ready: Nanos,
}

/// A member that is lost in a step.
struct Loss {
    /// Its place in the roster.
    place: usize,
    /// When it stopped working, and when that was noticed.
    at: Nanos,
    noticed: Nanos,
    fault: Fault,
}

/// A place for a member.
#[derive(Clone, Copy, Default)]
struct Seat {
    /// Members that were lost in it.
    losses: u32,
    /// Whether its member left, so that one fewer is asked for.
    given_up: bool,
}

/// How waiting for members ended.
enum Wait {
    /// Enough were there then.
    Enough(Nanos),
    /// Too few came for so many seconds; `None` where nobody was to come.
    InVain { waited: Option<f64> },
}

struct Crew<'a> {
    job: &'a Job,
    elastic: &'a Elastic,
    graph: Graph,
    /// The job for each number of workers, from 1.
    sizes: &'a [Job],
    worlds: BTreeMap<usize, World<'a>>,
    hands: Vec<Hand>,
    coming: Vec<Coming>,
    next: u32,
    generation: Generation,
    seats: Vec<Seat>,
    /// Members that are asked for.
    asked: usize,
    /// How long each step took.
    times: Vec<Nanos>,
    /// What the launcher tells, and when.
    told: Vec<(Nanos, LauncherEvent)>,
}

impl<'a> Crew<'a> {
    /// Starts the first members; they begin their first step together.
    fn start(job: &'a Job, elastic: &'a Elastic, sizes: &'a [Job]) -> Result<Self, TrainError> {
        let mut crew = Self {
            job,
            elastic,
            graph: job.graph()?,
            sizes,
            worlds: BTreeMap::new(),
            hands: Vec::new(),
            coming: Vec::new(),
            next: 0,
            generation: Generation(0),
            seats: vec![Seat::default(); elastic.max.max(job.workers) as usize],
            asked: job.workers as usize,
            times: Vec::new(),
            told: Vec::new(),
        };
        for number in 0..job.workers {
            crew.spawn(Nanos(job.simulation.spawn.0 * u64::from(number)), number);
        }
        let begin = crew.coming.iter().map(|coming| coming.ready).max().unwrap_or_default();
        crew.admit(begin, Step(0))?;
        crew.tell_roster(begin, Step(0));
        Ok(crew)
    }

    fn members(&self) -> Vec<Member> {
        self.hands.iter().map(|hand| hand.member).collect()
    }

    /// The world of so many workers.
    fn world(&mut self, workers: usize) -> Result<&World<'a>, TrainError> {
        if !self.worlds.contains_key(&workers) {
            let job = &self.sizes[workers - 1];
            self.worlds.insert(workers, World { job, workload: Workload::of(job, &self.graph)? });
        }
        Ok(&self.worlds[&workers])
    }

    fn tell(&mut self, member: Member, at: Nanos, change: MemberChange) {
        self.told.push((at, LauncherEvent::Member(MemberEvent { member, at, change })));
    }

    fn tell_roster(&mut self, at: Nanos, step: Step) {
        let roster = Roster { generation: self.generation, at, step, members: self.members() };
        self.told.push((at, LauncherEvent::Roster(roster)));
    }

    /// Starts a member on a seat.
    fn spawn(&mut self, at: Nanos, seat: u32) {
        let (machine, member) = (&self.job.simulation, Member(self.next));
        self.next += 1;
        let main = at + machine.launch;
        let further = u64::from(self.job.workers - 1);
        let ready = main + machine.init + Nanos(machine.init_per_worker.0 * further);
        self.coming.push(Coming { member, seat, main, ready });
        self.tell(member, at, MemberChange::Spawned);
    }

    /// Starts members on the lowest free seats until there are as many as are asked for, or no seat is left.
    fn fill(&mut self, at: Nanos) {
        let restarts = self.elastic.restarts;
        for number in 0..self.seats.len() as u32 {
            let taken = self.hands.iter().any(|hand| hand.seat == number)
                || self.coming.iter().any(|coming| coming.seat == number);
            let Seat { losses, given_up } = self.seats[number as usize];
            if self.staying() < self.asked && !taken && !given_up && losses <= restarts {
                self.spawn(at, number);
            }
        }
    }

    /// Members that are there or on their way.
    fn staying(&self) -> usize {
        self.hands.len() + self.coming.len()
    }

    fn open_log(&self, coming: &Coming) -> Result<RankWriter, TrainError> {
        let header = MemberHeader { member: coming.member, seat: coming.seat, host: None };
        let mut log = RankWriter::create_of_member(&self.job.folder, &header)?.collecting();
        // It is not a process: no system uses this number.
        log.append(&RankEvent::Main { at: coming.main, pid: 0 })?;
        Ok(log)
    }

    /// Lets everybody in who is ready; says whether somebody was.
    fn admit(&mut self, at: Nanos, step: Step) -> Result<bool, TrainError> {
        let (ready, coming) =
            std::mem::take(&mut self.coming).into_iter().partition(|coming| coming.ready <= at);
        self.coming = coming;
        let ready: Vec<Coming> = ready;
        let planned = Some(self.world(self.hands.len().max(1))?.workload.memory);
        for coming in &ready {
            let mut log = self.open_log(coming)?;
            log.append(&RankEvent::Compiled { at: coming.ready, planned })?;
            self.tell(coming.member, at, MemberChange::Joined);
            let Coming { member, seat, .. } = *coming;
            self.hands.push(Hand { member, seat, log, entered: step, at, slow: 1.0 });
        }
        Ok(!ready.is_empty())
    }

    /// The faults of a step. Random ones spare whoever comes in it, or whoever replaces a victim would be the next one.
    fn due(&self, step: Step) -> Vec<Fault> {
        let planted = &self.job.faults;
        let came = |fault: &Fault| {
            let hand = self.hands.iter().find(|hand| Some(hand.member) == fault.member());
            step > Step(0) && hand.is_some_and(|hand| hand.entered == step)
        };
        let mut due = planted.due(step, self.job.seed, &self.members());
        due.retain(|fault| planted.0.contains(fault) || !came(fault));
        due
    }

    /// Between two steps: who is ready joins, who is asked to leaves. Says which faults the step has.
    fn gather(&mut self, step: Step) -> Result<Vec<Fault>, TrainError> {
        let now = self.hands.iter().map(|hand| hand.at).max().unwrap_or_default();
        let mut changed = self.admit(now, step)?;
        let faults = self.due(step);
        for &fault in &faults {
            match fault {
                Fault::Leave { member, .. } if self.hands.len() > self.elastic.min as usize => {
                    let leaves = |hand: &mut Hand| hand.member == member;
                    for mut hand in self.hands.extract_if(.., leaves).collect::<Vec<_>>() {
                        hand.log.append(&self.fault(hand.at, fault))?;
                        self.seats[hand.seat as usize].given_up = true;
                        self.asked = (self.asked - 1).max(1);
                        self.finish(hand, now, Some(MemberChange::Left))?;
                        changed = true;
                    }
                }
                Fault::Join { .. } if self.staying() < self.elastic.max as usize => {
                    self.asked = (self.asked.max(self.staying()) + 1).min(self.elastic.max as usize);
                    // Where there are to be more, every seat is worth another try.
                    self.seats.fill(Seat::default());
                    self.fill(now);
                }
                Fault::Slow { member, factor, .. } => {
                    let told = self.fault(now, fault);
                    for hand in self.hands.iter_mut().filter(|hand| hand.member == member) {
                        hand.slow = factor;
                        hand.log.append(&told)?;
                    }
                }
                _ => {}
            }
        }
        if changed && step > Step(0) {
            self.generation.0 += 1;
            self.tell_roster(now, step);
        }
        Ok(faults)
    }

    fn fault(&self, at: Nanos, fault: Fault) -> RankEvent {
        RankEvent::Fault { at, step: fault.step().unwrap_or_default(), fault: fault.to_string() }
    }

    /// Everybody's part in a step.
    fn deal(&mut self, step: Step) -> Result<Vec<Part>, TrainError> {
        let passes = self.job.accumulate as u64;
        let (count, shards) = (self.hands.len(), self.job.shards());
        let numbers: Vec<u32> = self.hands.iter().map(|hand| hand.member.0).collect();
        let slow: Vec<f64> = self.hands.iter().map(|hand| hand.slow).collect();
        let world = self.world(count)?;
        let dealt: Vec<u64> = match world.job.elastic.as_ref().map(|elastic| elastic.deal) {
            Some(Deal::Dynamic) => {
                let cost = |place: usize| slow[place] * world.pace(numbers[place], step).factor;
                let mut dealt = vec![0; count];
                for _ in 0..shards {
                    let done = |place: &usize| (dealt[*place] + 1) as f64 * cost(*place);
                    let first = (0..count).min_by(|a, b| done(a).total_cmp(&done(b)));
                    dealt[first.expect("invariant: somebody is there")] += 1;
                }
                dealt
            }
            _ => {
                let of = |place: usize| deal(shards, Rank(place as u32), count as u32).len() as u64;
                (0..count).map(of).collect()
            }
        };
        let part = |(place, (hand, shards)): (usize, (&Hand, u64))| Part {
            rank: Rank(place as u32),
            number: hand.member.0,
            begin: hand.at,
            passes: shards * passes,
            slow: hand.slow,
            lost: Nanos(0),
        };
        Ok(self.hands.iter().zip(dealt).enumerate().map(part).collect())
    }

    /// One step, with what happens to members in it.
    fn work(&mut self, step: Step, faults: &[Fault]) -> Result<Option<TrainError>, TrainError> {
        let mut parts = self.deal(step)?;
        let before = parts.iter().map(|part| part.begin).max().unwrap_or_default();
        let losses = self.suffer(step, faults, &mut parts)?;
        if losses.is_empty() {
            let records = self.world(parts.len())?.step(step, &parts);
            self.log_steps(records)?;
        } else if let Some(failure) = self.recover(step, parts, losses)? {
            return Ok(Some(failure));
        }
        let now = self.hands.iter().map(|hand| hand.at).max().unwrap_or_default();
        self.times.push(now.since(before));
        Ok(None)
    }

    fn log_steps(&mut self, records: Vec<StepRecord>) -> Result<(), TrainError> {
        let (examples, generation) = (self.job.global_batch(), self.generation);
        for (hand, mut record) in self.hands.iter_mut().zip(records) {
            record.generation = generation;
            record.whole = Some(Whole { examples, loss: record.loss, correct: None });
            hand.at = record.end;
            hand.log.append(&RankEvent::Step(record))?;
        }
        Ok(())
    }

    /// Who is lost in a step. A member that stands still for less than it takes to be stalled only loses the time, and so does
    /// everybody where nobody else goes on.
    fn suffer(&mut self, step: Step, faults: &[Fault], parts: &mut [Part]) -> Result<Vec<Loss>, TrainError> {
        if faults.is_empty() {
            return Ok(Vec::new());
        }
        let stalled = self.stalled_after();
        let detect = self.job.simulation.detect;
        let hit = |fault: &Fault| match *fault {
            Fault::Kill { .. } => true,
            Fault::Stop { time, .. } => time > stalled,
            _ => false,
        };
        let hit: Vec<Member> = faults.iter().filter(|fault| hit(fault)).filter_map(Fault::member).collect();
        let others = self.hands.iter().any(|hand| !hit.contains(&hand.member));
        let mut losses: Vec<Loss> = Vec::new();
        for &fault in faults {
            let Some(place) = self.hands.iter().position(|hand| Some(hand.member) == fault.member()) else {
                continue;
            };
            let part = parts[place];
            let at = self.world(parts.len())?.death(Part { passes: 1, ..part }, step);
            let noticed = match fault {
                Fault::Kill { .. } => at + detect,
                Fault::Stop { time, .. } if time > stalled && others => at + stalled,
                Fault::Stop { time, .. } => {
                    parts[place].lost += time;
                    let told = self.fault(at, fault);
                    self.hands[place].log.append(&told)?;
                    continue;
                }
                _ => continue,
            };
            if losses.iter().all(|loss| loss.place != place) {
                losses.push(Loss { place, at, noticed, fault });
            }
        }
        Ok(losses)
    }

    /// How long a member may make no progress.
    fn stalled_after(&self) -> Nanos {
        let mut times = self.times.clone();
        times.sort();
        let usual = times.get(times.len() / 2).copied().unwrap_or_default();
        STALLED.max(Nanos(STALLED_STEPS * usual.0))
    }

    /// Finishes a step in which members were lost: the others wait until that is dealt with, do the lost shards again, and
    /// exchange.
    fn recover(
        &mut self,
        step: Step,
        parts: Vec<Part>,
        losses: Vec<Loss>,
    ) -> Result<Option<TrainError>, TrainError> {
        let fence = self.job.simulation.fence;
        let began = losses.iter().map(|loss| loss.at).min().unwrap_or_default();
        let noticed = losses.iter().map(|loss| loss.noticed).max().unwrap_or_default();
        let fenced = noticed + fence;
        let world = self.world(parts.len())?;
        let loss = world.loss(step);
        let lost_passes: u64 = losses.iter().map(|loss| parts[loss.place].passes).sum();
        let is_lost = |place: usize| losses.iter().any(|loss| loss.place == place);
        let mut records: Vec<StepRecord> = parts
            .iter()
            .enumerate()
            .filter(|&(place, _)| !is_lost(place))
            .map(|(_, &part)| world.open(part, step).0)
            .collect();
        let own_end = |record: &StepRecord| record.begin + record.phases.total();
        let all_done = records.iter().map(own_end).max();
        for record in &mut records {
            let late = all_done.unwrap_or_default().since(own_end(record));
            record.book(Phase::CommWait, late);
            record.late_rank += late;
            record.comm_busy += late;
        }
        let last = losses.iter().max_by_key(|loss| loss.noticed).map(|loss| {
            let (member, fault) = (parts[loss.place].number, loss.fault);
            format!("member {member} was lost last, in step {step} (planted: {fault})")
        });
        self.bury(losses, fence, fenced)?;
        let there = self.hands.len() as u32;
        let resumed = match self.wait_for_enough(fenced, step)? {
            Wait::Enough(at) => at,
            Wait::InVain { waited } => {
                let (min, last) = (self.elastic.min, last.unwrap_or_default());
                return Ok(Some(TrainError::TooFew { there, min, waited, last }));
            }
        };
        // Whoever joined within the step has nothing of its own to do.
        for hand in &self.hands[records.len()..] {
            let mut record = StepRecord::open(step, hand.at);
            record.loss = Some(loss);
            records.push(record);
        }
        self.generation.0 += 1;
        self.tell_roster(resumed, step);
        let begin = resumed.max(all_done.unwrap_or_default());
        let end = self.redo(step, &mut records, lost_passes, begin)?;
        for (phase, begin, end) in [
            (RecoveryPhase::Detect, began, noticed),
            (RecoveryPhase::Fence, noticed, fenced),
            (RecoveryPhase::Redo, fenced, end),
        ] {
            let recovery = Recovery { generation: self.generation, phase, begin, end };
            self.told.push((end, LauncherEvent::Recovery(recovery)));
        }
        let world = self.world(self.hands.len())?;
        let transfer: Nanos = world.workload.parcels.iter().map(|parcel| parcel.transfer).sum();
        for (rank, record) in (0..).map(Rank).zip(&mut records) {
            let own = own_end(record);
            record.book(Phase::Recovery, end.since(own));
            record.book(Phase::CommWait, transfer);
            record.comm_busy += transfer;
            let update = world.workload.update(rank);
            record.book(Phase::Update, update);
            world.close(end + transfer + update, record);
        }
        self.log_steps(records)?;
        Ok(None)
    }

    /// Ends lost members, and starts their replacements.
    fn bury(&mut self, mut losses: Vec<Loss>, fence: Nanos, fenced: Nanos) -> Result<(), TrainError> {
        losses.sort_by_key(|loss| std::cmp::Reverse(loss.place));
        for Loss { place, at, noticed, fault } in losses {
            let mut hand = self.hands.remove(place);
            hand.log.append(&self.fault(at, fault))?;
            hand.log.flush()?;
            self.seats[hand.seat as usize].losses += 1;
            if let Fault::Stop { at: step, .. } = fault {
                self.tell(hand.member, noticed, MemberChange::Stalled { step, since: at });
                self.tell(hand.member, noticed, MemberChange::Expelled(Expulsion::Stalled));
                self.tell(hand.member, noticed + fence, MemberChange::Ended(KILLED));
            } else {
                self.tell(hand.member, noticed, MemberChange::Ended(KILLED));
                self.tell(hand.member, noticed, MemberChange::Expelled(Expulsion::Ended));
            }
        }
        self.fill(fenced);
        Ok(())
    }

    /// Waits until enough members are there to go on.
    fn wait_for_enough(&mut self, now: Nanos, step: Step) -> Result<Wait, TrainError> {
        let missing = (self.elastic.min as usize).saturating_sub(self.hands.len());
        if missing == 0 {
            return Ok(Wait::Enough(now));
        }
        let mut ready: Vec<Nanos> = self.coming.iter().map(|coming| coming.ready).collect();
        ready.sort();
        let patience = self.elastic.patience_s;
        match ready.get(missing - 1) {
            Some(&enough) if enough.since(now) <= scaled(1e9, patience) => {
                let at = enough.max(now);
                self.admit(at, step)?;
                Ok(Wait::Enough(at))
            }
            None if ready.is_empty() => Ok(Wait::InVain { waited: None }),
            _ => Ok(Wait::InVain { waited: Some(patience) }),
        }
    }

    /// Does lost passes again, dealt evenly, and says when that is done.
    fn redo(
        &mut self,
        step: Step,
        records: &mut [StepRecord],
        passes: u64,
        begin: Nanos,
    ) -> Result<Nanos, TrainError> {
        let count = self.hands.len();
        let batch = self.job.batch as u64;
        let mut end = begin;
        for (place, record) in records.iter_mut().enumerate() {
            let part = deal(passes as u32, Rank(place as u32), count as u32).len() as u64;
            let Hand { member, slow, .. } = self.hands[place];
            let world = self.world(count)?;
            let work = Part {
                rank: Rank(place as u32),
                number: member.0,
                begin,
                passes: part,
                slow,
                lost: Nanos(0),
            };
            if part > 0 {
                end = end.max(begin + world.open(work, step).0.phases.total());
            }
            record.examples += part * batch;
            record.redone += part * batch;
        }
        Ok(end)
    }

    /// Ends a member in good order.
    fn finish(&mut self, mut hand: Hand, at: Nanos, change: Option<MemberChange>) -> Result<(), TrainError> {
        let machine = &self.job.simulation;
        let further = u64::from(self.job.workers - 1);
        let tail = machine.tail + Nanos(machine.tail_per_worker.0 * further);
        let memory = self.world(self.hands.len().max(1))?.workload.memory;
        let (peak_resident, shared) = (Some(memory), Some(Bytes(0)));
        hand.log.append(&RankEvent::Done { at, peak_resident, shared, peak_device: None })?;
        hand.log.flush()?;
        if let Some(change) = change {
            self.tell(hand.member, at, change);
        }
        self.tell(hand.member, at + tail, MemberChange::Ended(Exit::Code(0)));
        Ok(())
    }

    /// Ends everybody. Whoever is still on the way is killed.
    fn end(&mut self, failed: bool) -> Result<(), TrainError> {
        let worked = self.hands.iter().map(|hand| hand.at).max();
        let told = self.told.iter().map(|&(at, _)| at).max();
        let now = if failed { worked.max(told) } else { worked }.unwrap_or_default();
        for coming in std::mem::take(&mut self.coming) {
            if coming.main <= now {
                self.open_log(&coming)?.flush()?;
            }
            self.tell(coming.member, now.max(coming.main), MemberChange::Ended(KILLED));
        }
        for mut hand in std::mem::take(&mut self.hands) {
            if failed {
                hand.log.flush()?;
                self.tell(hand.member, now, MemberChange::Ended(KILLED));
            } else {
                let at = hand.at;
                self.finish(hand, at, None)?;
            }
        }
        Ok(())
    }
}
