//! The memory of each host, and each process's view of it.

use std::cell::{Cell, RefCell};

use corosensei::Yielder;
use paceline_record::Nanos;

use super::super::{Board, Words};
use super::net::Net;
use super::scenario::{Data, Mistake, Random, Scenario};
use super::truth::{Truth, kept};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Note(usize),
    Data(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Runs,
    Sleeps(usize),
    /// Stopped by a signal, in whatever condition it was.
    Stopped(Option<usize>),
    Ended,
}

pub struct Process {
    pub host: usize,
    pub condition: Condition,
    /// Plain writes that nobody else sees yet.
    pub buffer: Vec<(Place, u64)>,
    pub leaves: bool,
    /// The task that it is running.
    pub running: Option<(u64, u64)>,
    /// How slow it is at the moment: it is passed over so many times of so many and one.
    pub slow: usize,
}

/// What the processes of a host share, and what its launcher asks of the system.
pub struct Memory {
    words: Box<[Cell<u32>]>,
    notes: Box<[Cell<u64>]>,
    data: Box<[Cell<u64>]>,
    /// Seats to be filled.
    pub start: RefCell<Vec<u32>>,
    /// Who sits where, by process.
    pub started: RefCell<Vec<(u32, usize)>>,
    /// How its launcher ended.
    pub outcome: Cell<Option<Outcome>>,
    /// Whether it has done a step, or come up with those who have.
    pub has_state: Cell<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Finished,
    /// It was told to end, or cannot reach the authority, after so many steps; `None` where it never had a state.
    Stopped(Option<u64>),
}

impl Memory {
    fn new(scenario: Scenario, truth: &Truth) -> Self {
        let (board, at) = (Board::new(scenario.shape), Data(scenario));
        let zeros = |len: usize| vec![Cell::new(0); len].into_boxed_slice();
        let memory = Self {
            words: vec![Cell::new(0); board.words()].into(),
            notes: zeros(board.notes()),
            data: zeros(at.len()),
            start: RefCell::default(),
            started: RefCell::default(),
            outcome: Cell::new(None),
            has_state: Cell::new(false),
        };
        for (value, &state) in truth.states[0].iter().enumerate() {
            memory.data[at.state(0, 0, value)].set(state);
            (0..scenario.kept()).for_each(|kind| memory.data[at.state(0, 1 + kind, value)].set(kept(state)));
        }
        for (shard, &statistic) in (0..).zip(&truth.statistics[0]) {
            memory.data[at.statistic(0, shard)].set(statistic);
        }
        memory
    }

    pub fn datum(&self, at: usize) -> u64 {
        self.data[at].get()
    }

    /// The address of a run of data.
    pub fn address(&self, at: usize) -> *mut u8 {
        self.data[at].as_ptr().cast()
    }

    fn apply(&self, (place, value): (Place, u64)) {
        match place {
            Place::Note(at) => self.notes[at].set(value),
            Place::Data(at) => self.data[at].set(value),
        }
    }
}

pub struct World {
    pub scenario: Scenario,
    pub truth: Truth,
    pub hosts: Vec<Memory>,
    pub processes: RefCell<Vec<Process>>,
    pub random: RefCell<Random>,
    pub net: RefCell<Net>,
    pub accesses: Cell<u64>,
    /// Accesses until the process that runs hands over.
    pub burst: Cell<u32>,
    /// Shards that were begun more than once.
    pub again: Cell<u64>,
}

impl World {
    pub fn new(scenario: Scenario, seed: u64) -> Self {
        let truth = Truth::of(&scenario);
        Self {
            scenario,
            hosts: (0..scenario.hosts()).map(|_| Memory::new(scenario, &truth)).collect(),
            truth,
            processes: RefCell::default(),
            random: Random(seed ^ 0xa11ce).into(),
            net: Net::new(scenario.hosts()).into(),
            accesses: Cell::new(0),
            burst: Cell::new(0),
            again: Cell::new(0),
        }
    }

    pub fn now(&self) -> u64 {
        self.accesses.get()
    }

    pub fn one_in(&self, count: usize) -> bool {
        self.random.borrow_mut().one_in(count)
    }

    pub fn below(&self, bound: usize) -> usize {
        self.random.borrow_mut().below(bound)
    }

    /// Makes some of a process's writes visible; the first to each place first.
    pub fn leak(&self, process: usize, one_in: usize) {
        let process = &mut self.processes.borrow_mut()[process];
        let buffer = &mut process.buffer;
        if buffer.is_empty() {
            return;
        }
        let mut random = self.random.borrow_mut();
        while !buffer.is_empty() && random.one_in(one_in) {
            let (place, _) = buffer[random.below(buffer.len())];
            let first = buffer.iter().position(|&(other, _)| other == place).expect("it is there");
            self.hosts[process.host].apply(buffer.remove(first));
        }
    }

    pub fn drain(&self, process: usize) {
        let process = &mut self.processes.borrow_mut()[process];
        process.buffer.drain(..).for_each(|write| self.hosts[process.host].apply(write));
    }

    pub fn begin(&self, process: usize, task: (u64, u64)) {
        let mut processes = self.processes.borrow_mut();
        let host = processes[process].host;
        let mut here = processes.iter().filter(|other| other.host == host);
        assert!(here.all(|other| other.running != Some(task)), "two run the same task at once");
        processes[process].running = Some(task);
    }

    pub fn end(&self, process: usize) {
        self.processes.borrow_mut()[process].running = None;
    }
}

/// A process's view of the world.
pub struct View {
    pub world: &'static World,
    pub process: usize,
    pub host: usize,
    pub yielder: *const Yielder<(), ()>,
}

impl View {
    pub fn memory(&self) -> &'static Memory {
        &self.world.hosts[self.host]
    }

    /// Lets others run first.
    pub fn access(&self) {
        self.world.accesses.set(self.world.accesses.get() + 1);
        match self.world.burst.get() {
            0 => self.suspend(),
            left => self.world.burst.set(left - 1),
        }
        self.world.leak(self.process, 2);
    }

    fn suspend(&self) {
        // SAFETY: the yielder lives as long as the coroutine's body, which owns this view.
        unsafe { (*self.yielder).suspend(()) };
    }

    pub fn read(&self, place: Place) -> u64 {
        self.access();
        let processes = self.world.processes.borrow();
        let own = processes[self.process].buffer.iter().rev().find(|&&(other, _)| other == place);
        match (own, place) {
            (Some(&(_, value)), _) => value,
            (None, Place::Note(at)) => self.memory().notes[at].get(),
            (None, Place::Data(at)) => self.memory().data[at].get(),
        }
    }

    pub fn write(&self, place: Place, value: u64) {
        self.access();
        self.world.processes.borrow_mut()[self.process].buffer.push((place, value));
    }
}

impl Words for View {
    fn load(&self, word: usize) -> u32 {
        self.access();
        self.memory().words[word].get()
    }

    fn store(&self, word: usize, value: u32) {
        self.access();
        self.world.drain(self.process);
        self.memory().words[word].set(value);
    }

    fn exchange(&self, word: usize, current: u32, new: u32) -> Result<(), u32> {
        self.access();
        self.world.drain(self.process);
        let word = &self.memory().words[word];
        if word.get() != current {
            return Err(word.get());
        }
        word.set(new);
        Ok(())
    }

    fn sleep(&self, word: usize, value: u32) {
        self.access();
        self.world.drain(self.process);
        if self.memory().words[word].get() != value || self.world.one_in(50) {
            return;
        }
        self.world.processes.borrow_mut()[self.process].condition = Condition::Sleeps(word);
        self.world.burst.set(0);
        self.access();
    }

    fn wake(&self, word: usize) {
        self.access();
        let mut processes = self.world.processes.borrow_mut();
        for process in processes.iter_mut().filter(|other| other.host == self.host) {
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
        Nanos(self.world.now())
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.world.scenario.mistake == Some(mistake)
    }
}
