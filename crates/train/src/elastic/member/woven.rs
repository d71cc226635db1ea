//! A member on a GPU of its own: the step loop of a rank in a group of GPUs on several hosts.
//!
//! The state is on the GPUs, the same on each, and they exchange through NCCL as part of their steps. What the shared memory is for
//! is said in `comm/src/tasks/group.rs`. One roster of the hosts is one group:
//!
//! 1. A roster is called, by a loss or at the start. Members stop: they leave a step that is under way by giving the group up, which ends
//!    its operations, and go back to where the step began. Whoever had completed the step keeps it: it was everybody's.
//! 2. The launcher asks the member that is furthest for its state, and if its host has the first place, its first member for the name of a
//!    new group. Both go with how the host *stands* to the first host, and from there with *go* to all.
//! 3. Hosts that are behind get the state over the wire, as always. Members that lack it read it from the shared memory, and all join the
//!    group by its name. A name is never used twice, so nobody can join an old group.
//!
//! A member that waits in NCCL looks at the roster meanwhile, so nobody waits for the lost. An error of the group is no reason to end, as
//! the state would go with the process: the member tells its launcher, and waits for the roster that answers it. It ends if none comes, or
//! if one group after another fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::tasks::{Bell, Board, Dealing, Ended, Ground, Member, Seating, Tests, side};
use paceline_engine::{Driving, EngineError, Program, Spec, Values};
use paceline_model::Graph;
use paceline_record::log::RankWriter;
use paceline_record::{Bytes, Generation, Nanos, Phase, Rank, RankEvent, Step, Whole};

use super::planted::Planted;
use super::{Membership, leave_numerics};
use crate::buckets::{self, Bucket};
use crate::data::TestSet;
use crate::device::host::OnHost;
use crate::device::{self, CUDA, Entry};
use crate::elastic::point::{self, Point};
use crate::elastic::state::Layout;
use crate::elastic::watch::Doing;
use crate::exchange::book_buckets;
use crate::milestone::{Calendar, Lent, mean, open_test, part_of, test_part};
use crate::worker::book::StepBook;
use crate::worker::runner::{Deal, Runner};
use crate::{Job, TrainError, clock, process};

/// How often a member that stands still looks at what is asked of it.
const NAP: Duration = Duration::from_millis(1);

/// How long a member whose group has failed waits for a roster that answers it: a lost host is noticed after its lease.
const ANSWERED: Duration = Duration::from_secs(90);

/// Groups that may fail one after another, without a step in between, before a member ends.
const FAILURES: u32 = 3;

/// Steps after which the state is brought to the shared memory where nothing else asks for it: counts are compared by their low bits.
const REFRESH: u64 = 1 << 20;

/// How a stretch of steps ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// All steps are done, or it was asked to leave.
    Ended,
    /// Another roster was called.
    Called,
}

/// The life of a member, from when its log is there.
pub(super) fn run(
    job: &Job,
    own: &Membership,
    mut log: RankWriter,
    leaves: &Arc<AtomicBool>,
) -> Result<(), TrainError> {
    let (place, _) = own.place;
    let engine = job.open_engine_of(Rank(place * job.workers + own.seat), false)?;
    let ground = Arc::new(Ground::attach(own.ground)?);
    let graph = job.graph()?;
    let spec = Spec { shards: 1, ..job.spec() };
    let mut program: Box<dyn Program> = match job.engine == CUDA {
        true => engine.compile(&graph, &spec)?,
        false => Box::new(OnHost::compile(&*engine, &graph, &spec)?),
    };
    log.append(&RankEvent::Compiled { at: clock::now(), planned: Some(Bytes(program.plan().total())) })?;
    if job.numerics.is_none() {
        leave_numerics(&job.folder, &program.numerics())?;
    }
    program.guard()?;
    let board = ground.board();
    point::reach(Point::BeforeJoin);
    let member = Member::enter(&*ground, board, own.seat, own.member.0, Dealing::Static, Nanos(0));
    let bell = Bell::attach(own.bell)?;
    bell.ring();
    let mut rank = WovenRank {
        buckets: buckets::cut(program.slots(), program.len(Values::Parameters), &job.exchange),
        // As one of as many workers as there are shards.
        alike: Job { workers: job.shards(), hosts: None, elastic: None, log_samples: false, ..job.clone() },
        layout: Layout::new(job, &graph),
        calendar: Calendar::new(job)?,
        test: job.milestones.eval.map(|_| open_test(job)).transpose()?,
        job,
        own,
        graph: &graph,
        ground: &ground,
        board,
        bell,
        leaves,
        member,
        program: Some(program),
        at: None,
        named: 0,
        failures: 0,
        has_trained: false,
    };
    rank.live(&mut log)?;
    point::reach(Point::BeforeEnd);
    let peak_device = rank.program().measured().peak_device;
    log.append(&RankEvent::Done {
        at: clock::now(),
        peak_resident: process::peak_resident(),
        shared: process::shared_resident(),
        peak_device,
    })?;
    Ok(())
}

/// A member, its program, and how far they are.
struct WovenRank<'a> {
    job: &'a Job,
    alike: Job,
    own: &'a Membership,
    graph: &'a Graph,
    layout: Layout,
    calendar: Calendar<'a>,
    test: Option<TestSet>,
    ground: &'a Arc<Ground>,
    board: Board,
    bell: Bell,
    leaves: &'a Arc<AtomicBool>,
    member: Member<'a, Ground>,
    /// `None` while a runner has it.
    program: Option<Box<dyn Program>>,
    buckets: Vec<Bucket>,
    /// Steps that were done to the state on the device.
    at: Option<u64>,
    /// The last number under which it gave a name to a group.
    named: u32,
    /// Groups that failed since the last step.
    failures: u32,
    /// Whether it has been in a group before.
    has_trained: bool,
}

impl WovenRank<'_> {
    fn program(&mut self) -> &mut dyn Program {
        &mut **self.program.as_mut().expect("invariant: no runner has it")
    }

    fn live(&mut self, log: &mut RankWriter) -> Result<(), TrainError> {
        self.member.join_alone();
        let Some(mut seating) = self.enter_group()? else { return Ok(()) };
        let mut book = StepBook::open(log, self.graph, Driving::Woven);
        while self.train(&seating, &mut book)? == Flow::Called {
            // What is recorded goes before the group, which waits for that.
            self.program().weave(None)?;
            match self.enter_group()? {
                Some(next) => seating = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Goes over from roster to roster until it is in the group of one; `None` where it is in the roster no more.
    fn enter_group(&mut self) -> Result<Option<Seating>, TrainError> {
        while self.stand_by()? == Ended::Done {
            // There is none once another roster has been published.
            if let Some(seating) = self.board.seating(&**self.ground, self.member.generation())
                && self.fetch_state(&seating)?
                && self.join_group(&seating)?
            {
                point::reach(Point::AfterJoin);
                return Ok(Some(seating));
            }
        }
        Ok(None)
    }

    /// Goes over to the newest roster, and does what the launcher asks for until work goes on.
    fn stand_by(&mut self) -> Result<Ended, TrainError> {
        let Self { member, program, ground, board, layout, bell, at, named, own, .. } = self;
        let program = program.as_mut().expect("invariant: no runner has it");
        let words = &***ground;
        member.stand_by(|member| {
            if board.asked_state(words) == Some(own.seat)
                && let Some(steps) = *at
            {
                board.hold_state(words, None);
                write_state(&mut **program, words, layout, steps)?;
                let statistics = program.to_vec(Values::Statistics(0))?;
                let shards = board.shape().shards;
                (0..shards).for_each(|shard| write_statistics(words, steps, shard, &statistics));
                board.raise_slices(words, 0..board.shape().slices, steps);
                board.hold_state(words, Some(steps));
                board.ask_state(words, None);
                bell.ring();
            }
            let wanted = board.wanted_name(words);
            if wanted != *named && member.rank() == Rank(0) {
                *named = wanted;
                board.give_name(words, wanted, &device::new_group()?);
                bell.ring();
            }
            thread::sleep(NAP);
            Ok(())
        })
    }

    /// Gets the state that the group begins with; `false` where another roster was called meanwhile.
    fn fetch_state(&mut self, seating: &Seating) -> Result<bool, TrainError> {
        let steps = seating.steps;
        if self.at != Some(steps) {
            while self.board.held(&**self.ground) != Some(steps) {
                if self.member.is_called() {
                    return Ok(false);
                }
                thread::sleep(NAP);
            }
            let shard = seating.first + self.member.rank().0;
            let Self { program, ground, layout, .. } = self;
            let program = program.as_mut().expect("invariant: no runner has it");
            read_state(&mut **program, ground, layout, steps)?;
            read_statistics(&mut **program, ground, steps, shard)?;
            self.at = Some(steps);
        }
        self.program().resume_at(steps);
        self.board.note_stand(&**self.ground, self.own.seat, steps);
        Ok(true)
    }

    /// Joins the group of a roster; `false` where another roster was called meanwhile.
    fn join_group(&mut self, seating: &Seating) -> Result<bool, TrainError> {
        let rank = Rank(seating.first + self.member.rank().0);
        let plan = self.job.update.plan(rank, seating.world);
        let (ground, board, seat) = (self.ground.clone(), self.board, self.own.seat);
        let generation = self.member.generation();
        let recall = Box::new(move || {
            board.show_life(&*ground, seat);
            board.generation(&*ground) != generation
        });
        let entry = Entry { group: seating.group, recall };
        point::reach(Point::BeforeGroup);
        let weave = match device::weave_until(plan, entry, &self.buckets, &self.job.exchange) {
            Ok(weave) => weave,
            Err(error) => return self.await_answer(error).map(|()| false),
        };
        self.program().weave(Some(weave))?;
        if self.program().driving() != Driving::Woven {
            let why = "this engine cannot exchange on its device".to_owned();
            return Err(EngineError::Unsupported(why).into());
        }
        Ok(true)
    }

    /// The group has failed: waits for a roster that answers that. Where none comes, it is this member that has failed.
    fn await_answer(&mut self, error: TrainError) -> Result<(), TrainError> {
        if self.member.is_called() {
            return Ok(());
        }
        self.failures += 1;
        if self.failures > FAILURES {
            return Err(error);
        }
        if self.job.elastic.is_some() {
            self.board.note_broken(&**self.ground, self.member.generation());
            self.bell.ring();
        }
        let by = Instant::now() + ANSWERED;
        while !self.member.is_called() {
            if Instant::now() > by || self.leaves.load(Ordering::Relaxed) {
                return Err(error);
            }
            self.member.show_life();
            thread::sleep(NAP);
        }
        Ok(())
    }

    /// Trains in a group, until all is done or another roster is called.
    fn train(&mut self, seating: &Seating, book: &mut StepBook<'_>) -> Result<Flow, TrainError> {
        let rank = Rank(seating.first + self.member.rank().0);
        let first = seating.steps;
        let mut program = self.program.take().expect("invariant: no runner has it");
        // A test or a checkpoint that was due when the roster was called.
        if self.is_due(first)
            && !self.member.has_passed(first)
            && self.reach(first, &mut *program, book)? == Flow::Called
        {
            self.program = Some(program);
            return Ok(Flow::Called);
        }
        let alike = self.alike.clone();
        let mut runner = Runner::open(&alike, rank, first, program)?;
        let deal = Deal::new(&alike, rank, Driving::Woven);
        let (job, own) = (self.job, self.own);
        let faults = Planted { faults: &job.faults, seed: job.seed, own: own.member, entered: Step(first) };
        let slowness = std::cell::Cell::new(1.0);
        let mut is_redone = std::mem::replace(&mut self.has_trained, true);
        let mut flow = Flow::Ended;
        for step in first..self.member.end() {
            if self.member.is_called() {
                flow = Flow::Called;
                break;
            }
            if self.leaves.load(Ordering::Relaxed) {
                break;
            }
            let stage = self.calendar.stage(Step(step));
            book.begin(Step(step), stage.learning_rate);
            if std::mem::take(&mut is_redone) {
                // Since the last step that was done.
                let record = book.record();
                let lost = clock::now().since(record.begin);
                record.book(Phase::Recovery, lost);
            }
            faults.strike(Step(step), &self.member, &slowness, book, self.leaves)?;
            // Loading, recording and the exchange may take long; who waits in an exchange shows that it lives.
            self.note(Doing::Loading);
            point::reach(Point::InShard);
            let begun = Instant::now();
            let mut turns = deal.turns(stage);
            let ran = turns.try_for_each(|turn| runner.run(&turn, book, &mut |_| {}));
            self.note(Doing::Nothing);
            if let Err(error) = ran {
                self.program = Some(runner.into_program());
                return self.leave_step(step, error).map(|()| Flow::Called);
            }
            if slowness.get() > 1.0 {
                thread::sleep(begun.elapsed().mul_f64(slowness.get() - 1.0));
            }
            let record = book.record();
            record.generation = Generation(u64::from(self.member.generation()));
            // What others' samples came to is in their logs.
            record.whole = Some(Whole { examples: self.job.global_batch(), loss: None, correct: None });
            book_buckets(&self.buckets, rank, runner.program(), record)?;
            (self.at, self.failures) = (Some(step + 1), 0);
            self.board.note_stand(&**self.ground, self.own.seat, step + 1);
            point::reach(Point::AfterFlag);
            if self.is_due(step + 1) {
                flow = self.reach(step + 1, runner.program(), book)?;
            }
            book.close()?;
            book.complete(|_| {});
            if flow == Flow::Called {
                break;
            }
        }
        self.program = Some(runner.into_program());
        Ok(flow)
    }

    /// A step has come to nothing: goes back to where it began, and waits for the next roster.
    fn leave_step(&mut self, step: u64, error: TrainError) -> Result<(), TrainError> {
        if !matches!(error, TrainError::Engine(EngineError::Exchange(_))) {
            return Err(error);
        }
        self.program().undo()?;
        self.program().weave(None)?;
        self.program().resume_at(step);
        self.await_answer(error)
    }

    fn note(&self, doing: Doing) {
        self.board.note_doing(&**self.ground, self.own.seat, doing as u64);
    }

    fn is_due(&self, steps: u64) -> bool {
        steps > 0 && (self.calendar.after(steps).is_any() || steps.is_multiple_of(REFRESH))
    }

    /// Brings the state to the shared memory, tests the network and waits for the launcher, as far as that is due.
    fn reach(
        &mut self,
        steps: u64,
        program: &mut dyn Program,
        book: &mut StepBook<'_>,
    ) -> Result<Flow, TrainError> {
        let due = self.calendar.after(steps);
        let begin = clock::now();
        let ground = self.ground.clone();
        let words = &*ground;
        let here = self.member.rank().0;
        self.board.hold_state(words, None);
        if here == 0 {
            write_state(program, words, &self.layout, steps)?;
        }
        // Of other hosts' shards nothing is known here: the mean of all is to be that of this host's.
        let statistics = program.to_vec(Values::Statistics(0))?;
        let shape = self.board.shape();
        let seats = self.member.world();
        for shard in (0..shape.shards).filter(|shard| shard % seats == here) {
            write_statistics(words, steps, shard, &statistics);
        }
        self.board.raise_slices(words, here..here + 1, steps);
        self.bell.ring();
        while self.board.steps_done(words, steps) < steps {
            if self.member.is_called() {
                return Ok(Flow::Called);
            }
            thread::sleep(NAP);
        }
        let brought = clock::now();
        if due.eval && !self.test(steps, program)? {
            return Ok(Flow::Called);
        }
        let tested = clock::now();
        point::reach(Point::InCheckpoint);
        self.bell.ring();
        let waits = |member: &Member<'_, Ground>| match due.is_any() {
            true => !member.has_passed(steps),
            false => self.board.held(words) != Some(steps),
        };
        while waits(&self.member) {
            if self.member.is_called() {
                return Ok(Flow::Called);
            }
            thread::sleep(NAP);
        }
        let record = book.record();
        record.book(Phase::Eval, tested.since(brought));
        let saving = if due.saving.is_some() { Phase::Checkpoint } else { Phase::Eval };
        record.book(saving, brought.since(begin) + clock::now().since(tested));
        Ok(Flow::Ended)
    }

    /// Does its parts of the test; `false` where another roster was called meanwhile.
    fn test(&mut self, steps: u64, program: &mut dyn Program) -> Result<bool, TrainError> {
        self.note(Doing::Loading);
        let ground = self.ground.clone();
        let len = self.layout.size.statistics;
        // SAFETY: all members of this host have written theirs, and write there again after the test.
        let read = |shard| unsafe { ground.statistics(side(steps), shard).read(0..len) }.to_vec();
        let all: Vec<Vec<f32>> = (0..self.board.shape().shards).map(read).collect();
        let Self { member, test, board, job, own, .. } = self;
        let lent = Lent::put(program, &mean(&all))?;
        let test = test.as_mut().expect("invariant: what is tested is open");
        let mut parts = Parts { job, board: *board, ground: &ground, program: &mut *program, test };
        let tested = member.test_alone(steps, &mut parts, &|| {
            board.note_doing(&*ground, own.seat, Doing::Nothing as u64);
            thread::sleep(NAP);
        })?;
        lent.give_back(program)?;
        self.note(Doing::Nothing);
        Ok(tested)
    }
}

/// Parts of a test.
struct Parts<'a> {
    job: &'a Job,
    board: Board,
    ground: &'a Ground,
    program: &'a mut dyn Program,
    test: &'a mut TestSet,
}

impl Tests for Parts<'_> {
    type Error = TrainError;

    fn run(&mut self, part: u32, progress: &mut dyn FnMut()) -> Result<(), TrainError> {
        point::reach(Point::InTest);
        let range = part_of(self.test.len(), part, self.job.shards());
        let examples = range.len() as u64;
        let (loss, correct) = test_part(self.test, self.program, range, self.job.batch, progress)?;
        self.board.note_test(self.ground, part, (f64::from(loss), (examples << 32) | correct));
        Ok(())
    }
}

/// Parameters and what the update rule keeps, by where the program and the shared memory have them.
fn kept(layout: &Layout) -> impl Iterator<Item = (Values, Option<usize>)> {
    let state = (0..layout.size.state).map(|number| (Values::State(number), Some(number)));
    std::iter::once((Values::Parameters, None)).chain(state)
}

fn write_state(
    program: &mut dyn Program,
    ground: &Ground,
    layout: &Layout,
    steps: u64,
) -> Result<(), TrainError> {
    for (values, number) in kept(layout) {
        let area =
            number.map_or_else(|| ground.parameters(side(steps)), |number| ground.state(side(steps), number));
        // SAFETY: one member at a time writes the state, and nobody reads it before it is held.
        program.read(values, unsafe { area.write(0..layout.size.values) })?;
    }
    Ok(())
}

fn read_state(
    program: &mut dyn Program,
    ground: &Ground,
    layout: &Layout,
    steps: u64,
) -> Result<(), TrainError> {
    for (values, number) in kept(layout) {
        let area =
            number.map_or_else(|| ground.parameters(side(steps)), |number| ground.state(side(steps), number));
        // SAFETY: it is held, and the members of the group write it again only after a step of all of them.
        program.write(values, unsafe { area.read(0..layout.size.values) })?;
    }
    Ok(())
}

fn read_statistics(
    program: &mut dyn Program,
    ground: &Ground,
    steps: u64,
    shard: u32,
) -> Result<(), TrainError> {
    let area = ground.statistics(side(steps), shard);
    // SAFETY: as above.
    let statistics = unsafe { area.read(0..area.len()) };
    Ok(program.write(Values::Statistics(0), statistics)?)
}

fn write_statistics(ground: &Ground, steps: u64, shard: u32, values: &[f32]) {
    // SAFETY: each shard's are written by one member at a time, and nobody reads them before all are.
    unsafe { ground.statistics(side(steps), shard).write(0..values.len()) }.copy_from_slice(values);
}
