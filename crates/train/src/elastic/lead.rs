//! The launcher of an elastic job: starts members, replaces the lost, expels the stuck, tests, saves, and answers questions.
//!
//! One loop, which never waits for a member: it sleeps until a process ends, a member rings, somebody asks, or a tick passes.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use paceline_comm::tasks::{Bell, Board, Ground, Warden};
use paceline_record::log::LauncherWriter;
use paceline_record::{
    Bytes, Exit, Expulsion, Generation, LauncherEvent, Member, MemberChange, MemberEvent, Nanos, RankEvent,
    Recovery, RecoveryPhase, Roster, Step,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::time::Timespec;

use super::Elastic;
use super::control::{Answer, Control, EventStatus, MemberStatus, Request, Status};
use super::crew::{Crew, Decision, End, Hopeless, Occupant, Policy};
use super::follow::Follower;
use super::hosting::Hosting;
use super::member::{Membership, NUMERICS_FILE};
use super::pace::Pace;
use super::process::{Condemned, Process, oom_kills, run_of, spawn, state_of, words_file};
use super::state::{Layout, State};
use super::watch::{Doing, Sight, Stalled, Watch};
use crate::checkpoint::{Checkpoint, Position};
use crate::hosts::{Introduction, Party};
use crate::launcher::{Glance, LAST_WORDS, Surroundings};
use crate::milestone::{Calendar, eval_record};
use crate::{Fault, Job, TrainError, clock};

/// How often it looks around, and while a roster is about to take effect.
const TICK: Nanos = Nanos(50_000_000);
const SHORT_TICK: Nanos = Nanos(1_000_000);

/// How often progress is shown.
const SHOWN: Nanos = Nanos(100_000_000);

/// How long an empty seat waits after its first loss.
const PAUSE: Nanos = Nanos(100_000_000);

/// How long a process may take to end after SIGKILL.
const UNKILLABLE: Nanos = Nanos(10_000_000_000);

/// Steps after which counts that rise only with tests are brought up: they are compared by their low bits.
const REFRESH: u64 = 1 << 20;

/// How long members may take to end when all is done.
const FAREWELL: Nanos = Nanos(5_000_000_000);

/// How long a member may take to become ready.
const BIRTH: Nanos = Nanos(600_000_000_000);

/// Events that are kept for who asks.
const KEPT_EVENTS: usize = 12;

/// How long nobody may make progress with nobody at work: longer means that this program is wrong.
const DEADLOCK: Nanos = Nanos(120_000_000_000);

/// Runs an elastic job, and waits for it.
pub(crate) fn run(
    job: &Job,
    surroundings: Surroundings<'_>,
    log: &mut LauncherWriter,
    bell: Bell,
    met: Option<Introduction>,
    parted: &mut Option<Party>,
) -> Result<(), TrainError> {
    let elastic = &job.crew();
    let graph = job.graph()?;
    let layout = Arc::new(Layout::new(job, &graph));
    let ground = Arc::new(Ground::create(layout.size)?);
    let state = State { job, graph: &graph, layout: &layout, ground: &ground };
    let position = match &met {
        Some(met) if met.lacks_state => Position { history: met.history.clone(), ..Position::default() },
        _ => state.begin()?,
    };
    let board = ground.board();
    let calendar = Calendar::new(job)?;
    // A training that was interrupted in a test makes up for it.
    let passed = position.steps - u64::from(lacks_test(&position, &calendar));
    board.begin_at(&*ground, position.steps, passed);
    let steps = position.steps;
    let hosting =
        met.map(|met| Hosting::new(met, &position, ground.clone(), layout.clone(), &bell)).transpose()?;
    let lead = Lead {
        hosting,
        job,
        elastic,
        board,
        warden: Warden::new(&*ground, board, job.steps),
        state: &state,
        ground: &ground,
        bell,
        control: Control::open(&job.folder)?,
        crew: Crew::new(elastic.max, job.workers),
        policy: Policy {
            min: elastic.min,
            restarts: elastic.restarts,
            patience: Nanos((elastic.patience_s * 1e9) as u64),
            pause: PAUSE,
            starting: if job.numerics.is_some() { u32::MAX } else { 1 },
        },
        numerics: job.numerics.clone(),
        calendar,
        position,
        processes: BTreeMap::new(),
        next_member: 0,
        first: steps,
        done: steps,
        refreshed: steps,
        passed,
        began: clock::now(),
        watch: Watch::new(elastic.max),
        pace: Pace::default(),
        recovery: None,
        redo: Vec::new(),
        joined: 0,
        events: VecDeque::new(),
        last_death: None,
        stalled_since: None,
        oom: oom_kills(),
        waits: false,
        over_since: None,
        follower: Follower::new(&job.folder),
        shown: Nanos(0),
        surroundings,
        log,
        parted,
    };
    lead.run()
}

/// Whether a training that stands here was interrupted in a test, which it makes up for when it resumes.
pub fn awaits_test(job: &Job, position: &Position) -> Result<bool, TrainError> {
    Ok(job.elastic.is_some() && lacks_test(position, &Calendar::new(job)?))
}

/// Whether the test that was due where a training stands is missing.
fn lacks_test(position: &Position, calendar: &Calendar<'_>) -> bool {
    let is_tested = position.history.last().is_some_and(|test| test.steps == position.steps);
    position.steps > 0 && calendar.after(position.steps).eval && !is_tested
}

/// A roster that is about to take effect.
pub(super) struct Underway {
    /// When what it answers began to hurt, and when it was noticed.
    since: Nanos,
    noticed: Nanos,
    /// Whether somebody was lost.
    is_loss: bool,
}

/// A checkpoint that was written.
struct Saved {
    at: Nanos,
    steps: u64,
    bytes: Bytes,
}

/// What is known of a member that was lost.
pub(super) struct LastDeath {
    member: Member,
    why: String,
    words: String,
    log: PathBuf,
}

pub(super) struct Lead<'a, 's, 'l> {
    pub(super) hosting: Option<Hosting>,
    pub(super) job: &'a Job,
    pub(super) elastic: &'a Elastic,
    pub(super) state: &'a State<'a>,
    pub(super) ground: &'a Ground,
    pub(super) board: Board,
    pub(super) warden: Warden<'a, Ground>,
    pub(super) bell: Bell,
    pub(super) control: Control,
    pub(super) crew: Crew,
    pub(super) policy: Policy,
    pub(super) numerics: Option<paceline_engine::Numerics>,
    pub(super) calendar: Calendar<'a>,
    /// Where the training stood when the run began, and the tests since then.
    pub(super) position: Position,
    pub(super) processes: BTreeMap<u32, Process>,
    pub(super) next_member: u32,
    pub(super) first: u64,
    pub(super) done: u64,
    /// Steps done when counts that seldom rise were last brought up.
    pub(super) refreshed: u64,
    pub(super) passed: u64,
    pub(super) began: Nanos,
    pub(super) watch: Watch,
    pub(super) pace: Pace,
    pub(super) recovery: Option<Underway>,
    /// A generation whose lost shards are being done again, the step, and since when.
    pub(super) redo: Vec<(u32, u64, Nanos)>,
    /// Joins that were asked for by `--faults` and are done.
    pub(super) joined: usize,
    pub(super) events: VecDeque<EventStatus>,
    pub(super) last_death: Option<LastDeath>,
    /// Since when nobody works and nothing moves.
    pub(super) stalled_since: Option<(Nanos, u64)>,
    pub(super) oom: Option<u64>,
    /// Whether work stands still because there are too few.
    pub(super) waits: bool,
    /// Since when all has been done.
    pub(super) over_since: Option<Nanos>,
    pub(super) follower: Follower,
    pub(super) shown: Nanos,
    pub(super) surroundings: Surroundings<'s>,
    pub(super) log: &'l mut LauncherWriter,
    /// Where the connection with other hosts is left, for logs to be carried to the first.
    pub(super) parted: &'l mut Option<Party>,
}

/// How a run ends before its steps are done.
pub(super) enum Stop {
    Interrupted,
    Hopeless(Hopeless),
    Stuck(u32),
    /// The hosts end it.
    Ended(String),
}

impl Lead<'_, '_, '_> {
    fn run(mut self) -> Result<(), TrainError> {
        let stop = match self.lead() {
            Ok(None) => {
                self.show();
                self.merge_samples()?;
                return self.part();
            }
            Ok(Some(stop)) => Ok(stop),
            Err(error) => Err(error),
        };
        let ended = self.end_all();
        // The state may lie on another disk than the log.
        let (saved, ended) = match self.save_last() {
            Ok(saved) => (Ok(()), ended.and(saved.map_or(Ok(()), |saved| self.tell_saved(saved)))),
            Err(error) => (Err(error), ended),
        };
        let error = stop.map_or_else(|error| error, |stop| self.explain(stop));
        self.part_early(&error)?;
        // How the run ended comes first; what could not be saved is told with it.
        match (saved, ended) {
            (Err(saving), _) => Err(TrainError::Unsaved { error: Box::new(error), saving: Box::new(saving) }),
            // A log that cannot be written has ended other runs already.
            (Ok(()), Err(log)) if error.is_interruption() => Err(log),
            (Ok(()), _) => Err(error),
        }
    }

    /// Leads until all steps are done; `Some` if it stops before.
    fn lead(&mut self) -> Result<Option<Stop>, TrainError> {
        loop {
            self.sleep()?;
            let now = clock::now();
            if self.surroundings.interrupted.load(Ordering::Relaxed) {
                return Ok(Some(Stop::Interrupted));
            }
            if let Some(member) = self.reap(now)? {
                return Ok(Some(Stop::Stuck(member)));
            }
            self.note_ready()?;
            if let Some(stop) = self.tend_hosts(now)? {
                return Ok(Some(stop));
            }
            self.done = self.board.steps_done(self.ground, self.done);
            self.pace.see(self.done, now);
            if self.done - self.refreshed > REFRESH && !self.calendar_is_due(self.done) {
                self.refreshed = self.done;
                self.board.refresh(self.ground, self.done);
                self.refresh_hosts();
            }
            self.answer(now)?;
            self.plant_joins();
            self.plant_in_host(now)?;
            self.continue_stopped(now);
            let over = self.done >= self.warden.end() && self.passed_all();
            if over && self.processes.is_empty() && self.are_hosts_done() {
                return Ok(None);
            }
            if over {
                let since = *self.over_since.get_or_insert(now);
                // Whoever was on its way comes too late, and whoever does not end by itself is ended.
                let roster = self.warden.roster();
                let is_late =
                    |process: &&mut Process| !roster.contains(&process.seat) || now.since(since) > FAREWELL;
                let late = self.processes.values_mut().filter(is_late);
                late.for_each(|process| process.condemn(Condemned::Dismissed));
            } else {
                self.expel_stalled(now)?;
                if let Some(hopeless) = self.act(now)? {
                    return Ok(Some(Stop::Hopeless(hopeless)));
                }
                self.check_deadlock(now)?;
            }
            self.tend()?;
            self.report_to_hosts()?;
            self.follow_redo()?;
            self.reach_milestone()?;
            self.show();
        }
    }

    pub(super) fn passed_all(&self) -> bool {
        !self.calendar_is_due(self.done) || self.passed >= self.done
    }

    pub(super) fn calendar_is_due(&self, steps: u64) -> bool {
        steps > self.passed && self.calendar.after(steps).is_any()
    }

    /// Sleeps until something happens, or a tick passes.
    fn sleep(&self) -> Result<(), TrainError> {
        let is_urgent = self.recovery.is_some() || !self.redo.is_empty() || self.is_fault_near();
        let tick = if is_urgent { SHORT_TICK } else { TICK };
        let mut files: Vec<PollFd<'_>> = vec![
            PollFd::new(&self.bell, PollFlags::IN),
            PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN),
        ];
        files.extend(self.processes.values().map(|process| PollFd::new(&process.handle, PollFlags::IN)));
        let time = Timespec { tv_sec: 0, tv_nsec: tick.0 as i64 };
        match poll(&mut files, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(TrainError::system("wait for members")(error.into())),
        }
        self.bell.silence().map_err(TrainError::system("hear members"))
    }

    fn tell(&mut self, member: Member, change: MemberChange) -> Result<(), TrainError> {
        let at = clock::now();
        Ok(self.log.append(&LauncherEvent::Member(MemberEvent { member, at, change }))?)
    }

    pub(super) fn remember(&mut self, what: String) {
        let seconds = clock::now().since(self.began).seconds();
        if self.events.len() == KEPT_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(EventStatus { seconds, what });
    }

    /// Starts a member in a seat.
    fn start(&mut self, seat: u32) -> Result<(), TrainError> {
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
            place: self.hosting.as_ref().map_or((0, 1), |hosting| hosting.place(self.job)),
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
    fn reap(&mut self, now: Nanos) -> Result<Option<u32>, TrainError> {
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
    fn bury(&mut self, seat: u32, now: Nanos) -> Result<(), TrainError> {
        let mut process = self.processes.remove(&seat).expect("invariant: it was there");
        // What it did before it ended counts.
        self.done = self.board.steps_done(self.ground, self.done);
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
    pub(super) fn note_loss(&mut self, since: Nanos, now: Nanos) {
        let earlier = self.recovery.take();
        self.recovery = Some(Underway {
            since: earlier.as_ref().map_or(since, |earlier| earlier.since.min(since)),
            noticed: earlier.map_or(now, |earlier| earlier.noticed),
            is_loss: true,
        });
    }

    /// How a process ended, and what that means.
    fn name_exit(&mut self, exit: Exit) -> String {
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
    fn note_ready(&mut self) -> Result<(), TrainError> {
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

    /// Does what the state of the crew asks for.
    fn act(&mut self, now: Nanos) -> Result<Option<Hopeless>, TrainError> {
        let Decision { start, roster, dismiss, give_up } = self.crew.decide(&self.policy, now);
        for seat in dismiss {
            if let Some(process) = self.processes.get_mut(&seat) {
                process.condemn(Condemned::Dismissed);
                self.crew.leaving(seat);
            }
        }
        for seat in start {
            self.start(seat)?;
        }
        match roster {
            Some((roster, _)) => self.publish(roster, now)?,
            // Whoever had left the roster before it ended may have left a task behind.
            None if self.warden.has_lost() => self.publish(self.crew.roster.clone(), now)?,
            None => {}
        }
        Ok(give_up)
    }

    pub(super) fn publish(&mut self, roster: Vec<u32>, now: Nanos) -> Result<(), TrainError> {
        let old = std::mem::replace(&mut self.crew.roster, roster.clone());
        for &seat in roster.iter().filter(|seat| !old.contains(seat)) {
            let process = self.processes.get_mut(&seat).expect("invariant: who is ready has a process");
            process.joined = Some(self.done);
            let member = process.member;
            self.tell(member, MemberChange::Joined)?;
            if self.warden.generation() > 0 {
                self.remember(format!("member {member} joined"));
            }
        }
        // Whoever is ready and not asked for any more does no new task, and ends.
        for seat in 0..self.elastic.max {
            let is_ready = matches!(self.crew.seats[seat as usize].occupant, Occupant::Ready(_));
            if is_ready && !roster.contains(&seat) {
                self.crew.leaving(seat);
                let process = self.processes.get_mut(&seat).expect("invariant: who is ready has a process");
                let member = process.member;
                if process.joined.is_none() {
                    // It waits for a roster that it will not be in.
                    process.condemn(Condemned::Dismissed);
                }
                self.tell(member, MemberChange::Left)?;
                self.remember(format!("member {member} was dismissed"));
            }
        }
        self.waits = (roster.len() as u32) < self.elastic.min;
        let underway = self.recovery.get_or_insert(Underway { since: now, noticed: now, is_loss: false });
        let since = underway.since;
        self.board.note_loss(self.ground, self.warden.generation() + 1, since);
        let runs = !self.waits && self.hosting.as_ref().is_none_or(Hosting::runs);
        self.warden.publish(&roster, self.job.steps, runs);
        let members = roster.iter().map(|seat| self.processes[seat].member).collect();
        self.log.append(&LauncherEvent::Roster(Roster {
            generation: Generation(u64::from(self.warden.generation())),
            at: clock::now(),
            step: Step(self.done),
            members,
        }))?;
        Ok(())
    }

    /// Lets a roster take effect, and tells what that took.
    fn tend(&mut self) -> Result<(), TrainError> {
        if !self.is_drained() {
            return Ok(());
        }
        let Some(fenced) = self.warden.tend() else { return Ok(()) };
        let now = clock::now();
        let Some(Underway { since, noticed, is_loss }) = self.recovery.take() else { return Ok(()) };
        if fenced.generation > 1 {
            let generation = Generation(u64::from(fenced.generation));
            let phases = [(RecoveryPhase::Detect, since, noticed), (RecoveryPhase::Fence, noticed, now)];
            for (phase, begin, end) in phases.into_iter().filter(|_| is_loss) {
                self.log.append(&LauncherEvent::Recovery(Recovery { generation, phase, begin, end }))?;
            }
            if !is_loss {
                let phase = RecoveryPhase::Fence;
                let recovery = Recovery { generation, phase, begin: noticed, end: now };
                self.log.append(&LauncherEvent::Recovery(recovery))?;
            }
        }
        if fenced.lost.shards > 0 {
            self.redo.push((fenced.generation, self.done, now));
        }
        self.begin_rebuild(now);
        Ok(())
    }

    /// Tells when the tasks of the lost have been done again.
    fn follow_redo(&mut self) -> Result<(), TrainError> {
        for (generation, step, begin) in self.redo.extract_if(.., |&mut (_, step, _)| self.done > step) {
            let end = self.board.redone(self.ground, step).unwrap_or(begin).max(begin);
            let (generation, phase) = (Generation(u64::from(generation)), RecoveryPhase::Redo);
            self.log.append(&LauncherEvent::Recovery(Recovery { generation, phase, begin, end }))?;
        }
        Ok(())
    }

    /// Ends a test, writes a checkpoint, and lets members go on.
    fn reach_milestone(&mut self) -> Result<(), TrainError> {
        let steps = self.done;
        if self.passed >= steps || !self.calendar_is_due(steps) {
            return Ok(());
        }
        let due = self.calendar.after(steps);
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

    fn save(&mut self, steps: u64) -> Result<(), TrainError> {
        self.write_state(steps)?.map_or(Ok(()), |saved| self.tell_saved(saved))
    }

    fn write_state(&self, steps: u64) -> Result<Option<Saved>, TrainError> {
        let Some(saving) = &self.job.milestones.saving else { return Ok(None) };
        let numerics = self.numerics.clone().unwrap_or_default();
        let position = Position { steps, ..self.position.clone() };
        let checkpoint: Checkpoint = self.state.checkpoint(position, &numerics)?;
        let written = checkpoint.write(&saving.folder, saving.keep)?;
        Ok(Some(Saved { at: clock::now(), steps, bytes: Bytes(written.bytes) }))
    }

    fn tell_saved(&mut self, Saved { at, steps, bytes }: Saved) -> Result<(), TrainError> {
        self.follower.add(RankEvent::Saved { at, steps, bytes });
        self.log.append(&LauncherEvent::Saved { at, steps, bytes })?;
        self.remember(format!("saved after step {steps}"));
        Ok(())
    }

    /// Saves the last complete state once no member is left, unless that has been saved.
    fn save_last(&self) -> Result<Option<Saved>, TrainError> {
        let steps = self.board.steps_done(self.ground, self.done);
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
    fn end_all(&mut self) -> Result<(), TrainError> {
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

    fn explain(&mut self, stop: Stop) -> TrainError {
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
                TrainError::HostsEnded(last.unwrap_or_else(|| "a worker was lost".into()))
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

    /// Kills whoever holds a task and does not move.
    fn expel_stalled(&mut self, now: Nanos) -> Result<(), TrainError> {
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
    fn check_deadlock(&mut self, now: Nanos) -> Result<(), TrainError> {
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
    fn plant_joins(&mut self) {
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
    fn continue_stopped(&mut self, now: Nanos) {
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
    fn show(&mut self) {
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

    fn answer(&mut self, now: Nanos) -> Result<(), TrainError> {
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

    fn status(&self, now: Nanos) -> Status {
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

    /// Puts what members noted of their samples into one file, each batch once.
    fn merge_samples(&self) -> Result<(), TrainError> {
        if !self.job.log_samples {
            return Ok(());
        }
        super::samples::merge(&self.job.folder, (0..self.next_member).map(Member))
    }
}

fn read_numerics(folder: &Path) -> Result<paceline_engine::Numerics, TrainError> {
    let path = folder.join(NUMERICS_FILE);
    let refused = || TrainError::system(format!("read {}", path.display()));
    let text = fs::read(&path).map_err(refused())?;
    serde_json::from_slice(&text).map_err(|error| refused()(error.into()))
}
