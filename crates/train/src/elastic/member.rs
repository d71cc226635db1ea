//! A member's process: the step loop of a worker that others can do without.

mod account;
mod planted;
mod sums;
mod woven;

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use paceline_comm::Area;
use paceline_comm::tasks::{Bell, Board, Dealing, Ended, Ground, Member, ShardTask, Shards, Tests, side};
use paceline_engine::{Drawing, Driving, Homes, Place, Program, Region, StepResult, Values};
use paceline_record::log::RankWriter;
use paceline_record::{
    Bytes, Host, MemberHeader, Nanos, Phase, PhaseTimes, Rank, RankEvent, Step, StepRecord,
};
use serde::{Deserialize, Serialize};

use account::Account;
use planted::Planted;
use sums::{SumTimes, Sums};

use super::Deal;
use super::point::{self, Point};
use super::state::Layout;
use super::watch::Doing;
use crate::clock::WrongClock;
use crate::data::{Loader, TestSet, Turn};
use crate::milestone::{Calendar, mean, open_test, part_of, test_part};
use crate::worker::book::StepBook;
use crate::worker::runner::move_loading;
use crate::{Job, TrainError, affinity, clock, process};

/// How long a member spins before it sleeps, where every one has a core.
const SPIN: Nanos = Nanos(40_000);

/// The file in which the first member leaves how its engine computes, so that all others compute alike.
pub(crate) const NUMERICS_FILE: &str = "numerics.json";

/// Who a member is, and where it finds what it shares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Membership {
    pub member: paceline_record::Member,
    pub seat: u32,
    /// File descriptors of the shared memory and of the launcher's bell, and of the porter's where there is one.
    pub ground: i32,
    pub bell: i32,
    pub porter: Option<i32>,
    /// The host that it runs on, of several.
    pub host: Option<Host>,
    /// This host's place among those of this machine, and how many these are.
    pub place: (u32, u32),
    /// The clock of this host, where it is a wrong one.
    pub clock: Option<WrongClock>,
    /// Steps done when it was started.
    pub about: u64,
    /// Steps after which all that was due had been done.
    pub passed: u64,
}

/// The life of a member that began at `main`.
pub(crate) fn run(job: &Job, own: &Membership, main: Nanos) -> Result<(), TrainError> {
    own.clock.into_iter().for_each(WrongClock::plant);
    let main = own.clock.map_or(main, |clock| clock.shows(main));
    let elastic = &job.crew();
    point::listen(own.member);
    let leaves = process::leave_on_request()?;
    let seat = Rank(own.seat);
    let (place, places) = own.place;
    let pinned =
        job.pin && affinity::pin(Rank(place * elastic.max + own.seat), places * elastic.max, job.threads)?;
    let header = MemberHeader { member: own.member, seat: own.seat, host: own.host };
    let mut log = RankWriter::create_of_member(&job.folder, &header)?;
    log.append(&RankEvent::Main { at: main, pid: std::process::id() })?;
    if job.exchanges_on_device() {
        return woven::run(job, own, log, &leaves);
    }
    let engine = job.open_engine_of(seat, pinned)?;
    let mut ground = Ground::attach(own.ground)?;
    if let Some(bell) = own.porter {
        ground.call_porter(Bell::attach(bell)?);
    }
    let ground = ground;
    let bell = Bell::attach(own.bell)?;
    let graph = job.graph()?;
    let layout = Layout::new(job, &graph);
    let spec = paceline_engine::Spec { shards: 1, ..job.spec() };
    let program = engine.compile_in(&graph, &spec, &homes(&ground, Some(0), Some(0)))?;
    log.append(&RankEvent::Compiled { at: clock::now(), planned: Some(Bytes(program.plan().total())) })?;
    if job.numerics.is_none() {
        leave_numerics(&job.folder, &program.numerics())?;
    }

    let board = ground.board();
    let calendar = Calendar::new(job)?;
    let update = program.host_update()?;
    let judges = graph.judges_labels();
    let driving = program.driving();
    let in_shard = Cell::new(false);
    let mut hands = Hands {
        in_shard: &in_shard,
        job,
        ground: &ground,
        layout: &layout,
        seat: own.seat,
        program,
        loader: Loader::open(job.loading(own.member.0)?)?,
        upcoming: Vec::new(),
        test: job.milestones.eval.map(|_| open_test(job)).transpose()?,
        steps: 0,
        tally: Tally::default(),
        ahead: Vec::new(),
        slowness: Cell::new(1.0),
        judges,
    };
    let mut sums = Sums {
        ground: &ground,
        layout: &layout,
        update,
        rate: 0.0,
        times: SumTimes::default(),
        in_shard: &in_shard,
        seat: own.seat,
    };
    let dealing = match elastic.deal {
        Deal::Static => Dealing::Static,
        Deal::Dynamic => Dealing::Dynamic,
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let spin = if pinned || (places * elastic.max) as usize <= cores { SPIN } else { Nanos(0) };
    point::reach(Point::BeforeJoin);
    let mut member = Member::enter(&ground, board, own.seat, own.member.0, dealing, spin);
    bell.ring();
    let (mut ended, mut step) = member.join(own.about);
    point::reach(Point::AfterJoin);
    hands.expect(member.expected(step));

    let asked = || leaves.load(Ordering::Relaxed);
    // Who comes in while the others stand at a test or a checkpoint takes part in it, before its first step.
    if ended == Ended::Done && step > own.passed && calendar.after(step).is_any() {
        let mut before = StepRecord::open(Step(step), clock::now());
        ended = pause(&mut member, step, &calendar, &mut hands, &mut before, &asked, &bell)?;
    }
    let mut book = StepBook::open(&mut log, &graph, driving);
    let mut waits = Vec::with_capacity(64);
    let mut generations = Vec::new();
    // What it waited for before its first step is not that step's.
    member.take_waits(&mut waits, &mut generations);
    waits.clear();
    generations.clear();
    let faults = Planted { faults: &job.faults, seed: job.seed, own: own.member, entered: Step(step) };
    while ended == Ended::Done && step < member.end() {
        let rate = calendar.stage(Step(step)).learning_rate;
        book.begin(Step(step), rate);
        faults.strike(Step(step), &member, &hands.slowness, &mut book, &leaves)?;
        (sums.rate, hands.steps) = (rate, step + 1);
        ended = member.step(step, &mut hands, &mut sums, &asked)?;
        member.take_waits(&mut waits, &mut generations);
        if ended == Ended::Left {
            break;
        }
        let account = Account { board, ground: &ground, layout: &layout, member: &member, waits: &waits };
        book.add_off_core(hands.tally.off_core);
        account.book(step, &mut hands, &mut sums, &generations, book.record());
        waits.clear();
        generations.clear();
        if calendar.after(step + 1).is_any() {
            ended = pause(&mut member, step + 1, &calendar, &mut hands, book.record(), &asked, &bell)?;
            member.take_waits(&mut waits, &mut generations);
            waits.clear();
            generations.clear();
        }
        book.close()?;
        // With nothing to do, others may have gone ahead.
        step = board.steps_done(&ground, step + 1).max(step + 1);
    }
    drop(book);
    point::reach(Point::BeforeEnd);
    let peak_device = hands.program.measured().peak_device;
    log.append(&RankEvent::Done {
        at: clock::now(),
        peak_resident: process::peak_resident(),
        shared: process::shared_resident(),
        peak_device,
    })?;
    Ok(())
}

/// Tests the network and waits for the launcher, as far as that is due after so many steps.
fn pause(
    member: &mut Member<'_, Ground>,
    steps: u64,
    calendar: &Calendar<'_>,
    hands: &mut Hands<'_>,
    record: &mut StepRecord,
    leaves: &dyn Fn() -> bool,
    bell: &Bell,
) -> Result<Ended, TrainError> {
    let due = calendar.after(steps);
    hands.steps = steps;
    let begin = clock::now();
    let tested = Cell::new(begin);
    let ring = || {
        tested.set(clock::now());
        point::reach(Point::InCheckpoint);
        bell.ring();
    };
    let ended = member.pause(steps, due.eval.then_some(&mut *hands), leaves, &ring)?;
    let end = clock::now();
    let waiting = if due.saving.is_some() { Phase::Checkpoint } else { Phase::Eval };
    record.book(Phase::Eval, tested.get().since(begin));
    record.book(waiting, end.since(tested.get()));
    Ok(ended)
}

fn leave_numerics(folder: &Path, numerics: &paceline_engine::Numerics) -> Result<(), TrainError> {
    let (path, draft) = (folder.join(NUMERICS_FILE), folder.join(".numerics"));
    let text = serde_json::to_vec_pretty(numerics).expect("invariant: numerics are plain data");
    let put = || fs::write(&draft, text).and_then(|()| fs::rename(&draft, &path));
    put().map_err(TrainError::system(format!("write {}", path.display())))
}

/// Where a program finds the parameters of a side, and puts the gradients of a shard.
fn homes(ground: &Ground, side: Option<usize>, shard: Option<u32>) -> Homes {
    let parameters = side.map(|side| (region(ground.parameters(side)), Drawing::Leave));
    let gradients = shard.map(|shard| region(ground.gradients(shard))).into_iter().collect();
    // SAFETY: the ground outlives the program. Nobody writes to the parameters of a side while a task may read them, and a
    // shard's gradients are its claimant's until their flags are up.
    unsafe { Homes::new(parameters, gradients) }
}

fn region(area: Area) -> Region {
    // SAFETY: areas are as long-lived as the ground, which outlives everything that uses them.
    unsafe { Region::new(Place::Host, area.address() as u64, area.len()) }
}

/// What a member did in a step.
#[derive(Default)]
struct Tally {
    phases: PhaseTimes,
    off_core: PhaseTimes,
    in_ready: Nanos,
    examples: u64,
    redone: u64,
    /// Sum of the losses of its shards, and how many there were.
    loss: f64,
    shards: u32,
    correct: u64,
}

/// Computes shards and tests.
struct Hands<'a> {
    in_shard: &'a Cell<bool>,
    job: &'a Job,
    ground: &'a Ground,
    layout: &'a Layout,
    seat: u32,
    program: Box<dyn Program>,
    loader: Loader,
    upcoming: Vec<Turn>,
    test: Option<TestSet>,
    /// Steps done when the network is tested.
    steps: u64,
    tally: Tally,
    /// Scratch for running statistics.
    ahead: Vec<f32>,
    /// How many times slower than it could it is made to be.
    slowness: Cell<f64>,
    judges: bool,
}

impl Hands<'_> {
    fn board(&self) -> Board {
        self.ground.board()
    }

    fn note(&self, doing: Doing) {
        self.board().note_doing(self.ground, self.seat, doing as u64);
    }

    /// Begins to load what will be needed first.
    fn expect(&mut self, shards: impl Iterator<Item = (u64, u32)>) {
        self.upcoming.clear();
        self.upcoming.extend(shards.map(|(step, shard)| Turn { step, shard, pass: 0 }));
        self.loader.expect(&self.upcoming);
    }

    fn turns_after(&mut self, task: &ShardTask, pass: usize) {
        let passes = self.job.accumulate;
        let depth = self.loader.depth();
        let ShardTask { step, shard, .. } = *task;
        let own = (pass + 1..passes).map(|pass| Turn { step, shard, pass });
        let next = task.upcoming.into_iter().flatten().filter(|&(step, _)| step < self.job.steps);
        let next = next.flat_map(|(step, shard)| (0..passes).map(move |pass| Turn { step, shard, pass }));
        self.upcoming.clear();
        self.upcoming.extend(own.chain(next).take(depth));
    }

    fn load_and_feed(&mut self, turn: Turn, phases: &mut PhaseTimes) -> Result<(), TrainError> {
        let board = self.board();
        self.note(Doing::Loading);
        let begin = clock::now();
        let batch = self.loader.batch(turn, &self.upcoming)?;
        phases[Phase::Load] += clock::now().since(begin);
        board.note_doing(self.ground, self.seat, Doing::Computing as u64);
        let begin = clock::now();
        self.program.feed(batch)?;
        if self.program.driving() != Driving::Direct {
            phases[Phase::CopyIn] += clock::now().since(begin);
        }
        Ok(())
    }

    fn pass(
        &mut self,
        task: &ShardTask,
        index: usize,
        phases: &mut PhaseTimes,
        progress: &mut dyn FnMut(usize),
    ) -> Result<StepResult, TrainError> {
        let turn = Turn { step: task.step, shard: task.shard, pass: index };
        self.turns_after(task, index);
        self.load_and_feed(turn, phases)?;
        let pass = self.job.pass_of(task.step, task.shard, index);
        let mut brake = Brake { slowness: self.slowness.get(), last: clock::now(), slept: Nanos(0) };
        let (buckets, mut complete) = (&self.layout.buckets, 0);
        self.program.forward_backward(pass, &mut |slots| {
            brake.apply();
            while buckets.get(complete).is_some_and(|bucket| slots > bucket.last_slot) {
                complete += 1;
            }
            if complete > 0 {
                point::reach(Point::BeforeFlag);
            }
            progress(complete);
            if complete > 0 {
                point::reach(Point::AfterFlag);
            }
        })?;
        let mut result = self.program.finish()?;
        // A slow worker computes slowly.
        result.in_ready = result.in_ready.since(brake.slept);
        result.phases[Phase::Backward] += brake.slept;
        for phase in [Phase::CommWait, Phase::Backward, Phase::Forward] {
            let asleep = brake.slept.min(result.off_core[phase]);
            result.off_core[phase] = result.off_core[phase].since(asleep);
            brake.slept = brake.slept.since(asleep);
        }
        if self.program.driving() == Driving::Direct && self.job.pin {
            move_loading(&mut result, Nanos(self.loader.cpu().0 / self.job.threads as u64));
        }
        // Before the shard counts as done: what is noted twice can be told apart, what is not noted cannot.
        self.loader.log(turn)?;
        Ok(result)
    }
}

/// Makes a worker slower than it could be.
struct Brake {
    slowness: f64,
    last: Nanos,
    slept: Nanos,
}

impl Brake {
    fn apply(&mut self) {
        if self.slowness > 1.0 {
            let begin = clock::now();
            let worked = begin.since(self.last).seconds();
            thread::sleep(Duration::from_secs_f64(worked * (self.slowness - 1.0)));
            self.last = clock::now();
            self.slept += self.last.since(begin);
        }
    }
}

impl Shards for Hands<'_> {
    type Error = TrainError;

    fn run(&mut self, task: ShardTask, progress: &mut dyn FnMut(usize)) -> Result<(), TrainError> {
        let ShardTask { step, shard, again, .. } = task;
        point::reach(Point::InShard);
        self.note(Doing::Computing);
        self.program.bind(&homes(self.ground, Some(side(step)), Some(shard)))?;
        // SAFETY: these are the shard's alone: of the side before the step they are read only, the others are its claimant's.
        let (before, after) = unsafe {
            let whole = 0..self.layout.size.statistics;
            let now = self.ground.statistics(side(step), shard).read(whole.clone());
            (now, self.ground.statistics(side(step + 1), shard).write(whole))
        };
        self.program.write(Values::Statistics(0), before)?;
        let passes = self.job.accumulate;
        let (mut phases, mut loss, mut correct) = (PhaseTimes::default(), 0.0, 0);
        for index in 0..passes {
            self.in_shard.set(true);
            let result = self.pass(&task, index, &mut phases, progress)?;
            self.in_shard.set(false);
            phases += result.phases;
            self.tally.in_ready += result.in_ready;
            self.tally.off_core += result.off_core;
            loss += result.loss / passes as f32;
            correct += result.correct as u64;
        }
        self.program.read(Values::Statistics(0), after)?;
        self.board().note_result(self.ground, step, shard, (f64::from(loss), correct));
        let examples = (self.job.batch * passes) as u64;
        let tally = &mut self.tally;
        tally.examples += examples;
        tally.loss += f64::from(loss);
        tally.shards += 1;
        tally.correct += correct;
        if again {
            tally.redone += examples;
            tally.phases[Phase::Recovery] += phases.total();
        } else {
            tally.phases += phases;
        }
        point::reach(Point::BeforeLastFlag);
        self.note(Doing::Nothing);
        Ok(())
    }
}

impl Tests for Hands<'_> {
    type Error = TrainError;

    fn run(&mut self, part: u32, progress: &mut dyn FnMut()) -> Result<(), TrainError> {
        self.note(Doing::Testing);
        point::reach(Point::InTest);
        let now = side(self.steps);
        self.program.bind(&homes(self.ground, Some(now), None))?;
        let shards = self.job.shards();
        // SAFETY: the next step has not begun, so nobody writes to this side.
        let read = |shard| unsafe { self.ground.statistics(now, shard).read(0..self.layout.size.statistics) };
        let all: Vec<Vec<f32>> = (0..shards).map(|shard| read(shard).to_vec()).collect();
        self.ahead = mean(&all);
        self.program.write(Values::Statistics(0), &self.ahead)?;
        let test = self.test.as_mut().expect("invariant: what is tested is open");
        let range = part_of(test.len(), part, shards);
        let examples = range.len() as u64;
        let (loss, correct) = test_part(test, &mut *self.program, range, self.job.batch, progress)?;
        self.board().note_test(self.ground, part, (f64::from(loss), (examples << 32) | correct));
        self.note(Doing::Nothing);
        Ok(())
    }
}
