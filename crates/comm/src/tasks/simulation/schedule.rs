//! Who runs next, and what befalls processes and hosts.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use super::super::{Board, side};
use super::launcher::lead;
use super::member::live;
use super::scenario::{Data, Fates, Mistake, Random, Scenario};
use super::truth::kept;
use super::world::{Condition, Outcome, Process, View, World};

/// Accesses after which a run counts as stuck, on each host.
const PATIENCE: u64 = 1_000_000;

type Body = Coroutine<(), (), ()>;

/// A run: launchers, their members, and what befalls them.
struct Simulation {
    world: &'static World,
    board: Board,
    bodies: Vec<Option<Body>>,
    /// The processes of the launchers that have begun, by host.
    launchers: Vec<usize>,
    stacks: Vec<DefaultStack>,
    random: Random,
    spares: u32,
    /// Members that were started.
    numbers: u32,
    strokes: u32,
}

impl Simulation {
    fn spawn(&mut self, host: usize, body: impl FnOnce(View) + 'static) -> usize {
        let process = self.bodies.len();
        self.world.processes.borrow_mut().push(Process {
            host,
            condition: Condition::Runs,
            buffer: Vec::new(),
            leaves: false,
            running: None,
            slow: 0,
        });
        let stack = self.stacks.pop().unwrap_or_else(|| DefaultStack::new(256 << 10).expect("a stack"));
        let world = self.world;
        let body = Coroutine::with_stack(stack, move |yielder, ()| {
            body(View { world, process, host, yielder });
        });
        self.bodies.push(Some(body));
        process
    }

    /// A host begins.
    fn enter(&mut self) {
        let (host, board) = (self.launchers.len(), self.board);
        self.world.net.borrow_mut().alive[host] = true;
        let launcher = self.spawn(host, move |view| lead(&view, board));
        self.launchers.push(launcher);
    }

    fn resume(&mut self, process: usize) {
        let mut body = self.bodies[process].take().expect("it lives");
        match body.resume(()) {
            CoroutineResult::Yield(()) => self.bodies[process] = Some(body),
            CoroutineResult::Return(()) => {
                self.world.drain(process);
                self.bury(process, body);
                if let Some(host) = self.launchers.iter().position(|&launcher| launcher == process) {
                    // Its members end with it.
                    self.raze(host);
                }
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

    /// Ends all processes of a host.
    fn raze(&mut self, host: usize) {
        self.world.net.borrow_mut().alive[host] = false;
        self.world.hosts[host].start.borrow_mut().clear();
        let here: Vec<usize> = {
            let processes = self.world.processes.borrow();
            (0..processes.len()).filter(|&other| processes[other].host == host).collect()
        };
        here.into_iter().for_each(|process| self.kill(process));
    }

    /// Living members.
    fn living(&self) -> Vec<usize> {
        let processes = self.world.processes.borrow();
        let lives = |&other: &usize| {
            processes[other].condition != Condition::Ended && !self.launchers.contains(&other)
        };
        (0..processes.len()).filter(lives).collect()
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

    /// Something happens to a host, or to the way between two.
    fn strike(&mut self) {
        let Some(fates) = self.world.scenario.fates else { return };
        let random = &mut self.random;
        let mut strikes = |one_in: usize| one_in > 0 && random.one_in(one_in);
        let (kill, cut, join) = (strikes(fates.kills), strikes(fates.cuts), strikes(fates.joins));
        if join && self.launchers.len() < self.world.hosts.len() {
            self.enter();
        }
        if !(kill || cut) || self.strokes == 0 {
            return;
        }
        self.strokes -= 1;
        let (random, now) = (&mut self.random, self.world.now());
        let hosts = self.launchers.len();
        // The first host is lost seldom where nothing is left to see then.
        let victim = if !fates.registry && random.one_in(12) { 0 } else { random.below(hosts) };
        let mut net = self.world.net.borrow_mut();
        if cut && fates.registry && random.one_in(3) {
            net.has_struck = true;
            let registry = self.world.hosts.len();
            match random.below(4) {
                0 => net.registry.go_down(now + random.below(12_000) as u64),
                1 => net.registry.forget(),
                _ => {
                    let heals = (!random.one_in(3)).then(|| random.below(12_000) as u64);
                    net.cut([victim, registry], heals, now, random);
                }
            }
            return;
        }
        if cut {
            let other = random.below(hosts);
            let heals = (!random.one_in(2)).then(|| random.below(8_000) as u64);
            if other != victim {
                net.cut([victim, other], heals, now, random);
            }
            return;
        }
        if victim == 0 && !fates.registry && !random.one_in(6) {
            return;
        }
        // Somebody is left.
        if fates.registry && net.alive.iter().filter(|&&alive| alive).count() < 2 {
            return;
        }
        net.has_struck = true;
        if random.one_in(2) {
            // Nothing more is heard of it, not even the end of its connections.
            for other in (0..self.world.hosts.len()).filter(|&other| other != victim) {
                net.cut([victim, other], None, now, random);
            }
        }
        drop(net);
        self.raze(victim);
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

    /// Starts the members that launchers ask for.
    fn start(&mut self) {
        for (host, memory) in self.world.hosts.iter().enumerate() {
            let start = std::mem::take(&mut *memory.start.borrow_mut());
            for seat in start {
                self.spares = self.spares.saturating_sub(1);
                let (number, board) = (self.numbers, self.board);
                self.numbers += 1;
                let process = self.spawn(host, move |view| live(&view, board, seat, number));
                memory.started.borrow_mut().push((seat, process));
            }
        }
    }

    fn run(&mut self) {
        let scenario = self.world.scenario;
        (0..scenario.fates.map_or(1, |fates| fates.first)).for_each(|_| self.enter());
        let patience = PATIENCE * scenario.hosts() as u64;
        let mut ready = Vec::new();
        while self.launchers.iter().any(|&launcher| self.bodies[launcher].is_some()) {
            assert!(self.world.now() < patience, "the run is stuck");
            self.start();
            self.continue_stopped();
            let processes = self.world.processes.borrow();
            let runs = |&one: &usize| processes[one].condition == Condition::Runs;
            ready.clear();
            ready.extend((0..processes.len()).filter(runs));
            drop(processes);
            let next = self.choose(&ready);
            let burst = if scenario.fates.is_some() { self.random.pick(&[0, 0, 1, 3, 10, 30]) } else { 0 };
            self.world.burst.set(burst as u32);
            self.resume(next);
            if self.random.one_in(60) {
                // A launcher mostly sleeps until something happens.
                let is_launcher = self.launchers.contains(&next);
                let paces = if is_launcher { [0, 2, 4, 8, 12, 12] } else { [0, 0, 0, 5, 50, 500] };
                let slow = paces[self.random.below(6)];
                self.world.processes.borrow_mut()[next].slow = slow;
            }
            // Without a spare nobody dies, or nobody would be left.
            if self.spares > 0 {
                self.befall();
            }
            self.strike();
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
        if let Some(Fates { registry: true, cuts: 0, elastic: true, min: 1, .. }) = self.world.scenario.fates
        {
            let mut left = self.world.hosts.iter().filter(|memory| memory.outcome.get().is_some());
            let is_done = |memory: &super::world::Memory| memory.outcome.get() == Some(Outcome::Finished);
            let has_state = left.clone().any(|memory| memory.has_state.get());
            assert!(!has_state || left.any(is_done), "nobody finished, though somebody was left who could");
        }
        for memory in &self.world.hosts {
            match memory.outcome.get() {
                Some(Outcome::Finished) => self.check_state(memory, self.world.scenario.steps),
                Some(Outcome::Stopped(Some(done))) => self.check_state(memory, done),
                Some(Outcome::Stopped(None)) | None => {}
            }
        }
    }

    /// Checks all that a checkpoint after so many steps would hold.
    fn check_state(&self, memory: &super::world::Memory, steps: u64) {
        let (world, at) = (self.world, Data(self.world.scenario));
        for (value, &expected) in world.truth.states[steps as usize].iter().enumerate() {
            let found = memory.datum(at.state(side(steps), 0, value));
            assert_eq!(found, expected, "value {value} is wrong in the end");
            for kind in 0..world.scenario.kept() {
                let found = memory.datum(at.state(side(steps), 1 + kind, value));
                assert_eq!(found, kept(expected), "what is kept of value {value} is wrong in the end");
            }
        }
        for (shard, &expected) in (0..).zip(&world.truth.statistics[steps as usize]) {
            let found = memory.datum(at.statistic(side(steps), shard));
            assert_eq!(found, expected, "statistics of shard {shard} are wrong in the end");
        }
    }
}

/// Runs a seed; what was found, if anything.
pub fn run(seed: u64, mistake: Option<Mistake>, stacks: &mut Vec<DefaultStack>) -> Result<u64, String> {
    let mut random = Random(seed);
    let scenario = Scenario::draw(&mut random, mistake);
    let world = Box::into_raw(Box::new(World::new(scenario, seed)));
    let mut simulation = Simulation {
        // SAFETY: it is freed below, when all processes are gone.
        world: unsafe { &*world },
        board: Board::new(scenario.shape),
        bodies: Vec::new(),
        launchers: Vec::new(),
        stacks: std::mem::take(stacks),
        random,
        spares: scenario.spares,
        numbers: 0,
        strokes: scenario.fates.map_or(0, |fates| fates.strokes),
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        simulation.run();
        simulation.check();
    }));
    let again = simulation.world.again.get();
    let at = simulation.world.now();
    for process in 0..simulation.bodies.len() {
        simulation.kill(process);
    }
    *stacks = std::mem::take(&mut simulation.stacks);
    drop(simulation);
    // SAFETY: it came from a box, and nothing refers to it any more.
    drop(unsafe { Box::from_raw(world) });
    match outcome {
        Ok(()) => Ok(again),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Err(format!("seed {seed}, access {at}: {} in {scenario:?}", text.unwrap_or_default()))
        }
    }
}
