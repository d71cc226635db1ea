//! Threads that fill batches ahead of time.
//!
//! There is a fixed number of batches, and each is in one of four places: free, with a thread that fills it, ready, or with
//! whoever computes. Threads fill what is wanted, the most urgent first. As at most all batches but one are filled ahead of time,
//! one is always left for a turn that nobody foresaw.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::{iter, mem};

use paceline_model::Shape;
use paceline_record::Nanos;

use crate::data::order::{Course, Order, Turn};
use crate::data::source::{Look, Reader, Source};
use crate::data::{Augment, Batch};
use crate::{TrainError, clock, process};

/// All that a thread needs to make any of the batches.
pub struct Recipe {
    pub source: Source,
    pub shape: Shape,
    pub seed: u64,
    pub course: Course,
    pub augment: Augment,
}

/// The batches, the threads that fill them, and the batch that is being used.
pub struct Ring {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    held: Option<Held>,
    /// Whether an error was told: nothing comes after it.
    failed: bool,
    told: Nanos,
}

struct Held {
    turn: Turn,
    batch: Batch,
}

struct Shared {
    state: Mutex<State>,
    /// There is something to fill, or no more to do.
    asked: Condvar,
    /// Something became ready, or a thread ended.
    readied: Condvar,
    over: AtomicBool,
    cpu: AtomicU64,
}

/// None of its lists outgrows the number of batches.
struct State {
    free: Vec<Batch>,
    ready: Vec<Loaded>,
    filling: Vec<Turn>,
    /// What is asked for and then what is upcoming, whether or not it is being filled or ready.
    wanted: Vec<Turn>,
    /// Whether a thread has ended, as none does while others wait for it unless it panics.
    broken: bool,
}

struct Loaded {
    turn: Turn,
    batch: Batch,
    outcome: Result<(), TrainError>,
}

impl State {
    /// Makes `turns` what is wanted, as far as that is allowed, and takes back what is ready and no longer wanted.
    fn want(&mut self, turns: impl Iterator<Item = Turn>, most: usize) {
        self.wanted.clear();
        for turn in turns {
            if self.wanted.len() == most {
                break;
            }
            if !self.wanted.contains(&turn) {
                self.wanted.push(turn);
            }
        }
        let Self { free, ready, wanted, .. } = self;
        let unwanted = ready.extract_if(.., |loaded| !wanted.contains(&loaded.turn));
        free.extend(unwanted.map(|loaded| loaded.batch));
    }

    /// Wanted turns that nobody has begun to fill.
    fn missing(&self) -> impl Iterator<Item = Turn> {
        let begun =
            |turn: &Turn| self.filling.contains(turn) || self.ready.iter().any(|loaded| loaded.turn == *turn);
        self.wanted.iter().copied().filter(move |turn| !begun(turn))
    }

    /// The most urgent turn, and a batch for it.
    fn assign(&mut self) -> Option<(Turn, Batch)> {
        let turn = self.missing().next()?;
        let batch = self.free.pop()?;
        self.filling.push(turn);
        Some((turn, batch))
    }
}

impl Ring {
    /// Starts the threads.
    pub fn start(recipe: &Recipe, threads: usize) -> Result<Self, TrainError> {
        let threads = threads.max(1);
        // One in use, one ready, and one for each thread.
        let batches = threads + 2;
        let state = State {
            free: (0..batches).map(|_| Batch::new(recipe.course.batch, recipe.shape.len())).collect(),
            ready: Vec::with_capacity(batches),
            filling: Vec::with_capacity(batches),
            wanted: Vec::with_capacity(batches),
            broken: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            asked: Condvar::new(),
            readied: Condvar::new(),
            over: AtomicBool::new(false),
            cpu: AtomicU64::new(0),
        });
        let mut ring = Self { shared, threads: Vec::new(), held: None, failed: false, told: Nanos(0) };
        for number in 0..threads {
            let mut worker = Worker::new(recipe, ring.shared.clone());
            let thread = thread::Builder::new().name(format!("load-{number}")).spawn(move || worker.run());
            ring.threads.push(thread.map_err(TrainError::system("start a thread"))?);
        }
        Ok(ring)
    }

    /// How many upcoming turns are filled ahead of time.
    pub fn depth(&self) -> usize {
        self.threads.len() + 1
    }

    /// Begins to fill what will be asked for next.
    pub fn expect(&mut self, upcoming: &[Turn]) {
        let mut state = self.shared.lock();
        state.want(upcoming.iter().copied(), self.depth());
        self.shared.wake(&state);
    }

    /// The batch of a turn; the one before goes back. `upcoming` is filled meanwhile, and nothing else.
    pub fn batch(&mut self, turn: Turn, upcoming: &[Turn]) -> Result<&Batch, TrainError> {
        if self.failed {
            return Err(TrainError::LoaderEnded);
        }
        if self.held.as_ref().is_none_or(|held| held.turn != turn) {
            let batch = self.load(turn, upcoming)?;
            self.held = Some(Held { turn, batch });
        } else {
            self.expect(upcoming);
        }
        Ok(&self.held.as_ref().expect("invariant: it is held now").batch)
    }

    /// Waits until a turn's batch is filled.
    fn load(&mut self, turn: Turn, upcoming: &[Turn]) -> Result<Batch, TrainError> {
        let mut state = self.shared.lock();
        state.free.extend(self.held.take().map(|held| held.batch));
        state.want(iter::once(turn).chain(upcoming.iter().copied()), self.depth() + 1);
        self.shared.wake(&state);
        let Loaded { batch, outcome, .. } = loop {
            if let Some(place) = state.ready.iter().position(|loaded| loaded.turn == turn) {
                break state.ready.swap_remove(place);
            }
            if state.broken {
                return Err(TrainError::LoaderEnded);
            }
            state = self.shared.readied.wait(state).expect("invariant: no holder panics");
        };
        state.wanted.retain(|wanted| *wanted != turn);
        self.failed = outcome.is_err();
        outcome.map(|()| batch)
    }

    /// Processor time of the threads since this was last asked.
    pub fn cpu(&mut self) -> Nanos {
        let now = Nanos(self.shared.cpu.load(Ordering::Relaxed));
        now.since(mem::replace(&mut self.told, now))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let state = self.shared.lock();
        self.shared.over.store(true, Ordering::Relaxed);
        drop(state);
        self.shared.asked.notify_all();
        for thread in self.threads.drain(..) {
            // A panic has been printed, and there is nothing to add.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("invariant: no holder panics")
    }

    /// Wakes as many threads as have something to do.
    fn wake(&self, state: &State) {
        match state.missing().take(state.free.len()).count() {
            0 => {}
            1 => self.asked.notify_one(),
            _ => self.asked.notify_all(),
        }
    }
}

/// A thread that loads.
struct Worker {
    shared: Arc<Shared>,
    course: Course,
    augment: Augment,
    seed: u64,
    order: Order,
    reader: Box<dyn Reader>,
    /// Processor time that has been told.
    told: Nanos,
}

impl Worker {
    fn new(recipe: &Recipe, shared: Arc<Shared>) -> Self {
        Self {
            shared,
            course: recipe.course,
            augment: recipe.augment,
            seed: recipe.seed,
            order: Order::new(recipe.seed, recipe.source.len()),
            reader: recipe.source.reader((recipe.shape.h, recipe.shape.w)),
            told: Nanos(0),
        }
    }

    /// Fills batch after batch. One that cannot be filled is told to whoever asks for it.
    fn run(&mut self) {
        process::wait_its_turn();
        while let Some((turn, mut batch)) = self.take() {
            let outcome = self.fill(turn, &mut batch);
            self.tell_time();
            let mut state = self.shared.lock();
            state.filling.retain(|filling| *filling != turn);
            if state.wanted.contains(&turn) {
                state.ready.push(Loaded { turn, batch, outcome });
                self.shared.readied.notify_one();
            } else {
                state.free.push(batch);
            }
        }
    }

    /// A turn and a batch for it; `None` when there is no more to do.
    fn take(&self) -> Option<(Turn, Batch)> {
        let mut state = self.shared.lock();
        while !self.is_over() {
            if let Some(assigned) = state.assign() {
                return Some(assigned);
            }
            state = self.shared.asked.wait(state).expect("invariant: no holder panics");
        }
        None
    }

    fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Relaxed)
    }

    fn fill(&mut self, turn: Turn, batch: &mut Batch) -> Result<(), TrainError> {
        let values = batch.images.len() / batch.labels.len();
        let samples = batch.images.chunks_exact_mut(values).zip(&mut batch.labels);
        for (position, (image, label)) in self.course.positions(turn).zip(samples) {
            if self.is_over() {
                return Ok(());
            }
            let drawn = self.order.at(position);
            let look = match self.augment {
                Augment::None => Look::Plain,
                Augment::Standard => Look::varied(self.seed, drawn.epoch, drawn.index),
            };
            *label = self.reader.read(drawn.index, look, image)?;
        }
        Ok(())
    }

    fn tell_time(&mut self) {
        let now = clock::thread_cpu();
        self.shared.cpu.fetch_add(now.since(self.told).0, Ordering::Relaxed);
        self.told = now;
    }
}

impl Drop for Worker {
    /// However the thread ends, nobody waits for it in vain.
    fn drop(&mut self) {
        self.shared.lock().broken = true;
        self.shared.readied.notify_one();
    }
}
