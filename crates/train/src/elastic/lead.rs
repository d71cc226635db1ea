//! The launcher of an elastic job: starts members, replaces the lost, expels the stuck, tests, saves, and answers questions.
//!
//! One loop, which never waits for a member: it sleeps until a process ends, a member rings, somebody asks, or a tick passes.

mod closing;
mod devices;
mod lives;
mod lookout;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use paceline_comm::tasks::{Bell, Board, Ground, Warden};
use paceline_record::log::LauncherWriter;
use paceline_record::{
    Bytes, Generation, LauncherEvent, Member, MemberChange, MemberEvent, Nanos, Recovery, RecoveryPhase,
    Roster, Step,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::Elastic;
use super::control::{Control, EventStatus};
use super::crew::{Crew, Decision, Hopeless, Occupant, Policy};
use super::follow::Follower;
use super::hosting::Hosting;
use super::member::NUMERICS_FILE;
use super::pace::Pace;
use super::process::{Condemned, Process, oom_kills};
use super::state::{Layout, State};
use super::watch::Watch;
use crate::checkpoint::Position;
use crate::hosts::{Introduction, Parted};
use crate::launcher::Surroundings;
use crate::milestone::Calendar;
use crate::{Job, TrainError, clock};

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
    parted: &mut Parted,
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
    let on_device = job.exchanges_on_device();
    let lacks_state = met.as_ref().is_some_and(|met| met.lacks_state);
    board.hold_state(&*ground, Some(position.steps).filter(|_| !lacks_state));
    board.reset_run(&*ground, position.steps);
    let steps = position.steps;
    let hosting =
        met.map(|met| Hosting::new(met, &position, ground.clone(), layout.clone(), &bell)).transpose()?;
    let lead = Lead {
        hosting,
        on_device,
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
    /// Whether the state is on its members' devices, which exchange with each other.
    pub(super) on_device: bool,
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
    /// Where it is left what this host was to the others.
    pub(super) parted: &'l mut Parted,
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
        self.collect_state();
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
            // An interruption after all work was done changes nothing.
            if self.surroundings.interrupted.load(Ordering::Relaxed) && !self.is_over() {
                return Ok(Some(Stop::Interrupted));
            }
            if let Some(member) = self.reap(now)? {
                return Ok(Some(Stop::Stuck(member)));
            }
            self.note_ready()?;
            if let Some(stop) = self.tend_hosts(now)? {
                return Ok(Some(stop));
            }
            self.mind_group(now)?;
            self.done = self.count_done();
            self.pace.see(self.done, now);
            if self.done.saturating_sub(self.refreshed) > REFRESH && !self.calendar_is_due(self.done) {
                self.refreshed = self.done;
                self.board.refresh(self.ground, self.done);
                self.refresh_hosts();
            }
            self.answer(now)?;
            self.plant_joins();
            self.plant_in_host(now)?;
            self.continue_stopped(now);
            let over = self.is_over();
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
            self.note_held();
            self.report_to_hosts()?;
            self.follow_redo()?;
            self.reach_milestone()?;
            self.show();
        }
    }

    /// Whether all steps are done, and the tests and checkpoints after them.
    fn is_over(&self) -> bool {
        self.done >= self.warden.end() && self.passed_all()
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
        let runs = match self.on_device {
            true => self.seat_group(&roster),
            false => !self.waits && self.hosting.as_ref().is_none_or(Hosting::runs),
        };
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
