//! The protocol, run by a scheduler that decides everything from a seed: who runs next, when a plain write becomes visible,
//! who is killed or stopped half-way, who joins, when the launcher notices.
//!
//! Each process is a coroutine that runs the code of [`Member`] and [`Warden`], unchanged, and hands over to the scheduler
//! before every access to shared memory. Plain writes wait in a buffer of their process and become visible one by one, in any
//! order; a word drains the buffer first, as a release does. Of a killed process's buffer a random part becomes visible.
//!
//! Tasks check all that they read against the values that a sequential run gives, so a torn, stale or half-written input
//! is found where it is read. Nobody may run a task that somebody else is running. In the end all of the state must be right.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use paceline_record::Nanos;

use super::{
    Board, Dealing, Ended, Member, Shape, ShardTask, Shards, SliceTask, Slices, Tests, Warden, Words, side,
};

/// A mistake in the protocol that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A bucket is flagged before its gradients are written.
    FlagBeforeData,
    /// Tasks of the lost are freed before all have acknowledged the roster.
    NoFence,
    /// The next state is written over the last.
    OneBuffer,
    /// Nobody is woken when a roster is published.
    NoCall,
    /// Only those are woken whom a flag tells of.
    NoWake,
    /// As many slices as members, so a slice's number changes its meaning.
    SlicesByRoster,
}

/// Words of data in a slice.
const WIDTH: usize = 3;

/// Accesses after which a run counts as stuck.
const PATIENCE: u64 = 1_000_000;

/// Steps between two tests.
const TESTED: u64 = 2;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(1, |sum, &part| mix(sum.wrapping_mul(31).wrapping_add(part)))
}

/// What a run does, drawn from its seed.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    shape: Shape,
    steps: u64,
    dealing: Dealing,
    /// One access in so many is followed by a kill, a stop, a request to leave; 0 for never.
    kills: usize,
    stops: usize,
    leaves: usize,
    /// Members that may still be started.
    spares: u32,
    mistake: Option<Mistake>,
}

impl Scenario {
    fn draw(random: &mut Random, mistake: Option<Mistake>) -> Self {
        let pick = |random: &mut Random, values: &[usize]| values[random.below(values.len())];
        let seats = 1 + random.below(4) as u32;
        Self {
            shape: Shape {
                seats,
                shards: seats + random.below(3) as u32,
                buckets: 1 + random.below(3) as u32,
                slices: 1 + random.below(3) as u32,
                hosts: 1,
            },
            steps: 2 + random.below(6) as u64,
            dealing: if random.one_in(2) { Dealing::Static } else { Dealing::Dynamic },
            kills: pick(random, &[0, 100, 200, 800]),
            stops: pick(random, &[0, 60, 300]),
            leaves: pick(random, &[0, 0, 3000]),
            spares: 4 + random.below(20) as u32,
            mistake,
        }
    }

    fn values(&self) -> usize {
        self.shape.buckets as usize * self.shape.slices as usize * WIDTH
    }

    fn range(&self, bucket: u32, slice: u32) -> std::ops::Range<usize> {
        let first = (bucket * self.shape.slices + slice) as usize * WIDTH;
        first..first + WIDTH
    }
}

/// Where data lies.
#[derive(Clone, Copy)]
struct Data(Scenario);

impl Data {
    fn state(self, side: usize, value: usize) -> usize {
        let side = if self.0.mistake == Some(Mistake::OneBuffer) { 0 } else { side };
        side * self.0.values() + value
    }

    fn gradient(self, shard: u32, value: usize) -> usize {
        (2 + shard as usize) * self.0.values() + value
    }

    fn statistic(self, side: usize, shard: u32) -> usize {
        let shards = self.0.shape.shards as usize;
        (2 + shards) * self.0.values() + side * shards + shard as usize
    }

    fn len(self) -> usize {
        self.statistic(1, self.0.shape.shards)
    }
}

/// All states and statistics as one process alone would compute them.
struct Truth {
    states: Vec<Vec<u64>>,
    statistics: Vec<Vec<u64>>,
}

fn gradient(step: u64, shard: u32, value: usize, state: u64) -> u64 {
    hash(&[step, u64::from(shard), value as u64, state])
}

fn statistic(step: u64, shard: u32, before: u64) -> u64 {
    hash(&[step, u64::from(shard), before, 77])
}

fn tested(steps: u64, part: u32, state: u64) -> u64 {
    hash(&[steps, u64::from(part), state, 99]) >> 12
}

impl Truth {
    fn of(scenario: &Scenario) -> Self {
        let mut states = vec![(0..scenario.values() as u64).map(mix).collect::<Vec<_>>()];
        let mut statistics = vec![(0..u64::from(scenario.shape.shards)).map(mix).collect::<Vec<_>>()];
        for step in 0..scenario.steps {
            let last = &states[step as usize];
            let next = last.iter().enumerate().map(|(value, &state)| {
                let sum = (0..scenario.shape.shards).fold(0_u64, |sum, shard| {
                    sum.wrapping_mul(3).wrapping_add(gradient(step, shard, value, state))
                });
                hash(&[state, sum])
            });
            let next = next.collect();
            let moved = (0..).zip(&statistics[step as usize]);
            let moved = moved.map(|(shard, &before)| statistic(step, shard, before)).collect();
            states.push(next);
            statistics.push(moved);
        }
        Self { states, statistics }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Note(usize),
    Data(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Runs,
    Sleeps(usize),
    /// Stopped by a signal, in whatever condition it was.
    Stopped(Option<usize>),
    Ended,
}

struct Process {
    condition: Condition,
    /// Plain writes that nobody else sees yet.
    buffer: Vec<(Place, u64)>,
    leaves: bool,
    /// The task that it is running.
    running: Option<(u64, u64)>,
    /// How slow it is at the moment: it is passed over so many times of so many and one.
    slow: usize,
}

struct World {
    scenario: Scenario,
    truth: Truth,
    words: RefCell<Vec<u32>>,
    notes: RefCell<Vec<u64>>,
    data: RefCell<Vec<u64>>,
    processes: RefCell<Vec<Process>>,
    random: RefCell<Random>,
    accesses: Cell<u64>,
    /// Shards that were begun more than once.
    again: Cell<u64>,
}

impl World {
    fn new(scenario: Scenario, seed: u64) -> Rc<Self> {
        let board = Board::new(scenario.shape);
        let truth = Truth::of(&scenario);
        let mut data = vec![0; Data(scenario).len()];
        for (value, &state) in truth.states[0].iter().enumerate() {
            data[Data(scenario).state(0, value)] = state;
        }
        for (shard, &statistic) in (0..).zip(&truth.statistics[0]) {
            data[Data(scenario).statistic(0, shard)] = statistic;
        }
        Rc::new(Self {
            scenario,
            truth,
            words: vec![0; board.words()].into(),
            notes: vec![0; board.notes()].into(),
            data: data.into(),
            processes: Vec::new().into(),
            random: Random(seed ^ 0xa11ce).into(),
            accesses: Cell::new(0),
            again: Cell::new(0),
        })
    }

    fn apply(&self, (place, value): (Place, u64)) {
        match place {
            Place::Note(at) => self.notes.borrow_mut()[at] = value,
            Place::Data(at) => self.data.borrow_mut()[at] = value,
        }
    }

    /// Makes some of a process's writes visible; the first to each place first.
    fn leak(&self, process: usize, one_in: usize) {
        let mut random = self.random.borrow_mut();
        let buffer = &mut self.processes.borrow_mut()[process].buffer;
        while !buffer.is_empty() && random.one_in(one_in) {
            let (place, _) = buffer[random.below(buffer.len())];
            let first = buffer.iter().position(|&(other, _)| other == place).expect("it is there");
            self.apply(buffer.remove(first));
        }
    }

    fn drain(&self, process: usize) {
        let writes = std::mem::take(&mut self.processes.borrow_mut()[process].buffer);
        writes.into_iter().for_each(|write| self.apply(write));
    }

    fn begin(&self, process: usize, task: (u64, u64)) {
        let mut processes = self.processes.borrow_mut();
        assert!(processes.iter().all(|other| other.running != Some(task)), "two run the same task at once");
        processes[process].running = Some(task);
    }

    fn end(&self, process: usize) {
        self.processes.borrow_mut()[process].running = None;
    }
}

/// A process's view of the world.
struct View {
    world: Rc<World>,
    process: usize,
    yielder: *const Yielder<(), ()>,
}

impl View {
    /// Lets others run first.
    fn access(&self) {
        self.world.accesses.set(self.world.accesses.get() + 1);
        // SAFETY: the yielder lives as long as the coroutine's body, which owns this view.
        unsafe { (*self.yielder).suspend(()) };
        self.world.leak(self.process, 2);
    }

    fn read(&self, place: Place) -> u64 {
        self.access();
        let processes = self.world.processes.borrow();
        let own = processes[self.process].buffer.iter().rev().find(|&&(other, _)| other == place);
        match (own, place) {
            (Some(&(_, value)), _) => value,
            (None, Place::Note(at)) => self.world.notes.borrow()[at],
            (None, Place::Data(at)) => self.world.data.borrow()[at],
        }
    }

    fn write(&self, place: Place, value: u64) {
        self.access();
        self.world.processes.borrow_mut()[self.process].buffer.push((place, value));
    }
}

impl Words for View {
    fn load(&self, word: usize) -> u32 {
        self.access();
        self.world.words.borrow()[word]
    }

    fn store(&self, word: usize, value: u32) {
        self.access();
        self.world.drain(self.process);
        self.world.words.borrow_mut()[word] = value;
    }

    fn exchange(&self, word: usize, current: u32, new: u32) -> Result<(), u32> {
        self.access();
        self.world.drain(self.process);
        let word = &mut self.world.words.borrow_mut()[word];
        if *word != current {
            return Err(*word);
        }
        *word = new;
        Ok(())
    }

    fn sleep(&self, word: usize, value: u32) {
        self.access();
        self.world.drain(self.process);
        if self.world.words.borrow()[word] != value || self.world.random.borrow_mut().one_in(50) {
            return;
        }
        self.world.processes.borrow_mut()[self.process].condition = Condition::Sleeps(word);
        self.access();
    }

    fn wake(&self, word: usize) {
        self.access();
        for process in self.world.processes.borrow_mut().iter_mut() {
            match &mut process.condition {
                Condition::Sleeps(on) if *on == word => process.condition = Condition::Runs,
                Condition::Stopped(on) if *on == Some(word) => *on = None,
                _ => {}
            }
        }
    }

    fn note(&self, note: usize) -> u64 {
        self.read(Place::Note(note))
    }

    fn set_note(&self, note: usize, value: u64) {
        self.write(Place::Note(note), value);
    }

    fn now(&self) -> Nanos {
        Nanos(self.world.accesses.get())
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.world.scenario.mistake == Some(mistake)
    }
}

/// The tasks of a member.
struct Hands<'a> {
    view: &'a View,
    board: Board,
}

impl Hands<'_> {
    fn data(&self) -> Data {
        Data(self.view.world.scenario)
    }

    fn state(&self, step: u64, value: usize) -> u64 {
        let found = self.view.read(Place::Data(self.data().state(side(step), value)));
        let expected = self.view.world.truth.states[step as usize][value];
        assert_eq!(found, expected, "the state before step {step} is wrong");
        found
    }
}

impl Shards for Hands<'_> {
    type Error = ();

    fn run(&mut self, task: ShardTask, progress: &mut dyn FnMut(usize)) -> Result<(), ()> {
        let ShardTask { step, shard, again, .. } = task;
        let (view, data, scenario) = (self.view, self.data(), self.view.world.scenario);
        view.world.begin(view.process, (step, u64::from(shard)));
        view.world.again.set(view.world.again.get() + u64::from(again));
        let before = view.read(Place::Data(data.statistic(side(step), shard)));
        assert_eq!(
            before, view.world.truth.statistics[step as usize][shard as usize],
            "statistics are wrong"
        );
        progress(0);
        for bucket in 0..scenario.shape.buckets {
            let values =
                scenario.range(bucket, 0).start..scenario.range(bucket, scenario.shape.slices - 1).end;
            for value in values.clone() {
                // Gradients are added up in place: half-way they are wrong.
                view.write(Place::Data(data.gradient(shard, value)), 13);
            }
            for value in values {
                let found = self.state(step, value);
                view.write(Place::Data(data.gradient(shard, value)), gradient(step, shard, value, found));
            }
            progress(bucket as usize + 1);
        }
        view.write(Place::Data(data.statistic(side(step + 1), shard)), statistic(step, shard, before));
        self.board.note_result(view, step, shard, (0.0, hash(&[step, u64::from(shard)])));
        view.world.end(view.process);
        Ok(())
    }
}

struct Sums<'a>(Hands<'a>);

impl Slices for Sums<'_> {
    fn add_part(&mut self, _: SliceTask, _: &super::Parts) {
        unreachable!("invariant: there is one host")
    }

    fn run(&mut self, task: SliceTask, _: &super::Parts) {
        let SliceTask { step, bucket, slice } = task;
        let (view, data, scenario) = (self.0.view, self.0.data(), self.0.view.world.scenario);
        let outer = view.world.processes.borrow_mut()[view.process].running.take();
        view.world.begin(view.process, (step, 1_000 + u64::from(bucket * 100 + slice)));
        for value in scenario.range(bucket, slice) {
            let state = self.0.state(step, value);
            let mut sum = 0_u64;
            for shard in 0..scenario.shape.shards {
                let found = view.read(Place::Data(data.gradient(shard, value)));
                assert_eq!(found, gradient(step, shard, value, state), "a gradient of step {step} is wrong");
                sum = sum.wrapping_mul(3).wrapping_add(found);
            }
            view.write(Place::Data(data.state(side(step + 1), value)), 17);
            view.write(Place::Data(data.state(side(step + 1), value)), hash(&[state, sum]));
        }
        view.world.processes.borrow_mut()[view.process].running = outer;
    }
}

struct Examiner<'a> {
    hands: Hands<'a>,
    steps: u64,
}

impl Tests for Examiner<'_> {
    type Error = ();

    fn run(&mut self, part: u32, progress: &mut dyn FnMut()) -> Result<(), ()> {
        let view = self.hands.view;
        view.world.begin(view.process, (self.steps, 10_000 + u64::from(part)));
        let state = self.hands.state(self.steps, 0);
        progress();
        self.hands.board.note_test(view, part, (0.0, tested(self.steps, part, state)));
        view.world.end(view.process);
        Ok(())
    }
}

/// The life of a member.
fn live(view: View, board: Board, seat: u32, number: u32) {
    let leaves = || view.world.processes.borrow()[view.process].leaves;
    let hands = || Hands { view: &view, board };
    let scenario = view.world.scenario;
    let mut member = Member::enter(&view, board, seat, number, scenario.dealing, Nanos(0));
    let (ended, mut step) = member.join(0);
    if ended == Ended::Left {
        return;
    }
    // Who comes in while the others stand at a test takes part in it.
    if step > 0 && step.is_multiple_of(TESTED) {
        let mut examiner = Examiner { hands: hands(), steps: step };
        if member.pause(step, Some(&mut examiner), &leaves, &|| {}) != Ok(Ended::Done) {
            return;
        }
    }
    while step < member.end() {
        if member.step(step, &mut hands(), &mut Sums(hands()), &leaves) != Ok(Ended::Done) {
            return;
        }
        let mut results = Vec::new();
        if board.results(&view, step, |_, result| results.push(result)) {
            let expected = (0..scenario.shape.shards).map(|shard| hash(&[step, u64::from(shard)]));
            assert!(expected.eq(results), "a result of step {step} is wrong");
        }
        step += 1;
        if step.is_multiple_of(TESTED) {
            let mut examiner = Examiner { hands: hands(), steps: step };
            if member.pause(step, Some(&mut examiner), &leaves, &|| {}) != Ok(Ended::Done) {
                return;
            }
        }
    }
}

type Body = Coroutine<(), (), ()>;

/// A run: the launcher, its members, and what befalls them.
struct Simulation {
    world: Rc<World>,
    board: Board,
    bodies: Vec<Option<Body>>,
    stacks: Vec<DefaultStack>,
    random: Random,
}

impl Simulation {
    fn spawn(&mut self, body: impl FnOnce(View) + 'static) -> usize {
        let process = self.bodies.len();
        self.world.processes.borrow_mut().push(Process {
            condition: Condition::Runs,
            buffer: Vec::new(),
            leaves: false,
            running: None,
            slow: 0,
        });
        let stack = self.stacks.pop().unwrap_or_else(|| DefaultStack::new(256 << 10).expect("a stack"));
        let world = self.world.clone();
        let body = Coroutine::with_stack(stack, move |yielder, ()| {
            body(View { world, process, yielder });
        });
        self.bodies.push(Some(body));
        process
    }

    fn resume(&mut self, process: usize) {
        let mut body = self.bodies[process].take().expect("it lives");
        match body.resume(()) {
            CoroutineResult::Yield(()) => self.bodies[process] = Some(body),
            CoroutineResult::Return(()) => {
                self.world.drain(process);
                self.bury(process, body);
            }
        }
    }

    /// Ends a process where it is.
    fn kill(&mut self, process: usize) {
        if let Some(mut body) = self.bodies[process].take() {
            self.world.leak(process, 2);
            // SAFETY: what its stack holds is forgotten, as the memory of a killed process is; nothing borrows from it.
            unsafe { body.force_reset() };
            self.bury(process, body);
        }
    }

    fn bury(&mut self, process: usize, body: Body) {
        self.stacks.push(body.into_stack());
        let process = &mut self.world.processes.borrow_mut()[process];
        (process.condition, process.running) = (Condition::Ended, None);
        process.buffer.clear();
    }

    fn living(&self) -> Vec<usize> {
        let processes = self.world.processes.borrow();
        (1..processes.len()).filter(|&other| processes[other].condition != Condition::Ended).collect()
    }

    /// Something happens to a member.
    fn befall(&mut self) {
        let Scenario { kills, stops, leaves, .. } = self.world.scenario;
        let mut strikes = |one_in: usize| one_in > 0 && self.random.one_in(one_in);
        let (kill, stop, leave) = (strikes(kills), strikes(stops), strikes(leaves));
        if !(kill || stop || leave) {
            return;
        }
        let living = self.living();
        if living.is_empty() {
            return;
        }
        let victim = living[self.random.below(living.len())];
        if kill {
            return self.kill(victim);
        }
        let process = &mut self.world.processes.borrow_mut()[victim];
        if leave {
            process.leaves = true;
            return;
        }
        process.condition = match process.condition {
            Condition::Sleeps(word) => Condition::Stopped(Some(word)),
            Condition::Runs => Condition::Stopped(None),
            other => other,
        };
    }

    /// A stopped member is continued, or expelled, after a while.
    fn continue_stopped(&mut self) {
        let stopped = |process: &Process| matches!(process.condition, Condition::Stopped(_));
        let victim = self.world.processes.borrow().iter().position(stopped);
        let Some(victim) = victim.filter(|_| self.random.one_in(500)) else { return };
        if self.random.one_in(2) {
            return self.kill(victim);
        }
        let process = &mut self.world.processes.borrow_mut()[victim];
        if let Condition::Stopped(on) = process.condition {
            process.condition = on.map_or(Condition::Runs, Condition::Sleeps);
        }
    }

    fn run(&mut self) {
        let scenario = self.world.scenario;
        let orders: Rc<RefCell<Orders>> = Rc::default();
        let (told, board) = (orders.clone(), self.board);
        let launcher = self.spawn(move |view| lead(&view, board, &told));
        let mut spares = scenario.spares;
        let mut numbers = 0;
        let mut ready = Vec::new();
        while self.bodies[launcher].is_some() {
            assert!(self.world.accesses.get() < PATIENCE, "the run is stuck");
            let start = std::mem::take(&mut orders.borrow_mut().start);
            for seat in start {
                spares = spares.saturating_sub(1);
                let (number, board) = (numbers, self.board);
                numbers += 1;
                let process = self.spawn(move |view| live(view, board, seat, number));
                orders.borrow_mut().started.push((seat, process));
            }
            self.continue_stopped();
            let processes = self.world.processes.borrow();
            let runs = |&one: &usize| processes[one].condition == Condition::Runs;
            ready.clear();
            ready.extend((0..processes.len()).filter(runs));
            drop(processes);
            let next = self.choose(&ready);
            self.resume(next);
            if self.random.one_in(60) {
                // The launcher mostly sleeps until something happens.
                let paces = if next == launcher { [0, 2, 4, 8, 12, 12] } else { [0, 0, 0, 5, 50, 500] };
                let slow = paces[self.random.below(6)];
                self.world.processes.borrow_mut()[next].slow = slow;
            }
            // Without a spare nobody dies, or nobody would be left.
            if spares > 0 {
                self.befall();
            }
        }
    }

    /// One of those that can run; a slow one seldom, while there are others.
    fn choose(&mut self, ready: &[usize]) -> usize {
        for _ in 0..8 {
            let next = ready[self.random.below(ready.len())];
            let slow = self.world.processes.borrow()[next].slow;
            if slow == 0 || self.random.one_in(slow + 1) {
                return next;
            }
        }
        ready[ready.len() - 1]
    }

    fn check(&self) {
        assert!(self.living().is_empty(), "a member outlives the run");
        let (world, scenario) = (&self.world, self.world.scenario);
        let data = world.data.borrow();
        for (value, &expected) in world.truth.states[scenario.steps as usize].iter().enumerate() {
            let found = data[Data(scenario).state(side(scenario.steps), value)];
            assert_eq!(found, expected, "value {value} is wrong in the end");
        }
    }
}

/// What the launcher asks of the system, and what it hears.
#[derive(Default)]
struct Orders {
    /// Seats to be filled.
    start: Vec<u32>,
    /// Who sits where, by process.
    started: Vec<(u32, usize)>,
}

/// The launcher: fills every seat, and goes over to a new roster when somebody ends or is ready.
fn lead(view: &View, board: Board, orders: &RefCell<Orders>) {
    let scenario = view.world.scenario;
    board.begin_at(view, 0, 0);
    let mut warden = Warden::new(view, board, scenario.steps);
    let mut asked: Vec<u32> = Vec::new();
    let mut passed = 0;
    // Members that fewer are asked for than, until they have ended.
    let mut dismissed: Vec<u32> = Vec::new();
    loop {
        view.access();
        let ended: Vec<(u32, usize)> = {
            let processes = view.world.processes.borrow();
            let mut orders = orders.borrow_mut();
            let (ended, alive) = orders
                .started
                .iter()
                .partition(|&&(_, process)| processes[process].condition == Condition::Ended);
            orders.started = alive;
            ended
        };
        for &(seat, _) in &ended {
            warden.bury(seat);
            asked.retain(|&other| other != seat);
            dismissed.retain(|&other| other != seat);
        }
        if let [seat, _, ..] = *warden.roster()
            && view.world.random.borrow_mut().one_in(100)
        {
            dismissed.push(seat);
        }
        let done = board.steps_done(view, passed);
        if done == scenario.steps && (!done.is_multiple_of(TESTED) || passed == done) {
            if orders.borrow().started.is_empty() && asked.is_empty() {
                return;
            }
        } else {
            for seat in (0..scenario.shape.seats).filter(|seat| !asked.contains(seat)).collect::<Vec<_>>() {
                asked.push(seat);
                orders.borrow_mut().start.push(seat);
            }
        }
        let mut wanted: Vec<u32> = asked.clone();
        wanted.sort_unstable();
        wanted.retain(|&seat| warden.ready(seat).is_some() && !dismissed.contains(&seat));
        if warden.has_lost() || wanted != warden.roster() {
            warden.publish(&wanted, scenario.steps, !wanted.is_empty());
        }
        warden.tend();
        if done > passed && done.is_multiple_of(TESTED) && board.is_tested(view, done) {
            for part in 0..scenario.shape.shards {
                let state = view.world.truth.states[done as usize][0];
                assert_eq!(board.test_of(view, part).1, tested(done, part, state), "a test is wrong");
            }
            passed = done;
            board.pass(view, done);
        }
    }
}

/// Runs a seed; what was found, if anything.
fn run(seed: u64, mistake: Option<Mistake>, stacks: &mut Vec<DefaultStack>) -> Result<u64, String> {
    let mut random = Random(seed);
    let scenario = Scenario::draw(&mut random, mistake);
    let mut simulation = Simulation {
        world: World::new(scenario, seed),
        board: Board::new(scenario.shape),
        bodies: Vec::new(),
        stacks: std::mem::take(stacks),
        random,
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        simulation.run();
        simulation.check();
    }));
    let again = simulation.world.again.get();
    for process in 0..simulation.bodies.len() {
        simulation.kill(process);
    }
    *stacks = std::mem::take(&mut simulation.stacks);
    match outcome {
        Ok(()) => Ok(again),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Err(format!("seed {seed}: {} in {scenario:?}", text.unwrap_or_default()))
        }
    }
}

/// Seeds of a run: `PACELINE_SEEDS` of them, or as many as suit a test.
fn seeds(usual: u64) -> u64 {
    std::env::var("PACELINE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn whatever_befalls_members_the_state_is_that_of_an_undisturbed_run() {
    let count = seeds(4_000);
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let half = |first: u64| {
        let mut stacks = Vec::new();
        let outcomes = (first..count).step_by(2).map(|seed| run(seed, None, &mut stacks));
        outcomes.collect::<Result<Vec<u64>, String>>().map(|again| again.into_iter().sum::<u64>())
    };
    let again = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        [half(0), other.join().expect("it does not panic")]
    });
    std::panic::set_hook(quiet);
    let again: u64 = again.into_iter().map(|sum| sum.unwrap_or_else(|error| panic!("{error}"))).sum();
    // The seeds reach what they are for.
    assert!(again > count / 2, "only {again} shards were begun twice in {count} runs");
}

#[test]
fn every_planted_mistake_is_found() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mistakes = [
        Mistake::FlagBeforeData,
        Mistake::NoFence,
        Mistake::OneBuffer,
        Mistake::NoCall,
        Mistake::NoWake,
        Mistake::SlicesByRoster,
    ];
    let found = mistakes.map(|mistake| {
        let mut stacks = Vec::new();
        (mistake, (0..20_000).find_map(|seed| run(seed, Some(mistake), &mut stacks).err()))
    });
    std::panic::set_hook(quiet);
    for (mistake, found) in found {
        assert!(found.is_some(), "{mistake:?} was not found");
    }
}
