//! Threads that fill batches ahead of time.
//!
//! There is a fixed number of batches, and each is in one of four places: free, with a thread that fills it, ready, or with
//! whoever computes. A thread takes a free one and the next number, so at most that many numbers are under way, and a ready batch
//! has a place of its own by its number.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use paceline_model::Shape;
use paceline_record::Nanos;

use crate::data::order::{Course, Order};
use crate::data::source::{Look, Reader, Source};
use crate::data::{Augment, Batch};
use crate::{TrainError, clock, process};

/// All that a thread needs to make any of the batches.
#[derive(Clone)]
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
    held: Option<Batch>,
    told: Nanos,
}

struct Shared {
    state: Mutex<State>,
    /// Something was freed, or there is no more to do.
    freed: Condvar,
    /// Something became ready, or a thread ended.
    readied: Condvar,
    over: AtomicBool,
    cpu: AtomicU64,
}

struct State {
    free: Vec<Batch>,
    ready: Vec<Option<Result<Batch, TrainError>>>,
    /// The next number to be filled.
    next: u64,
    /// Whether one could not be filled: then none after it is begun.
    failed: bool,
    /// Threads at work.
    alive: usize,
}

impl Ring {
    /// Starts the threads, which begin at once.
    pub fn start(recipe: Recipe, threads: usize) -> Result<Self, TrainError> {
        let threads = threads.max(1);
        // One in use, one ready, and one for each thread.
        let batches = threads + 2;
        let state = State {
            free: (0..batches).map(|_| Batch::new(recipe.course.batch, recipe.shape.len())).collect(),
            ready: (0..batches).map(|_| None).collect(),
            next: 0,
            failed: false,
            alive: 0,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            freed: Condvar::new(),
            readied: Condvar::new(),
            over: AtomicBool::new(false),
            cpu: AtomicU64::new(0),
        });
        let mut ring = Self { shared, threads: Vec::new(), held: None, told: Nanos(0) };
        for number in 0..threads {
            let mut worker = Worker::new(&recipe, ring.shared.clone());
            let thread = thread::Builder::new().name(format!("load-{number}")).spawn(move || worker.run());
            ring.threads.push(thread.map_err(TrainError::system("start a thread"))?);
        }
        Ok(ring)
    }

    /// The batch with this number; they are asked for in order. The one before goes back.
    pub fn next(&mut self, number: u64) -> Result<&Batch, TrainError> {
        let mut state = self.shared.lock();
        if let Some(batch) = self.held.take() {
            state.free.push(batch);
            self.shared.freed.notify_one();
        }
        let place = (number % state.ready.len() as u64) as usize;
        let batch = loop {
            match state.ready[place].take() {
                Some(result) => break result?,
                None if state.alive == 0 => return Err(TrainError::LoaderEnded),
                None => state = self.shared.readied.wait(state).expect("invariant: no holder panics"),
            }
        };
        drop(state);
        Ok(self.held.insert(batch))
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
        self.shared.freed.notify_all();
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
        shared.lock().alive += 1;
        Self {
            shared,
            course: recipe.course.clone(),
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
        while let Some((number, mut batch)) = self.take() {
            let result = self.fill(number, &mut batch).map(|()| batch);
            self.tell_time();
            let mut state = self.shared.lock();
            if result.is_err() {
                state.failed = true;
                self.shared.freed.notify_all();
            }
            let place = (number % state.ready.len() as u64) as usize;
            state.ready[place] = Some(result);
            self.shared.readied.notify_one();
        }
    }

    /// A free batch and its number; `None` when there is no more to do.
    fn take(&self) -> Option<(u64, Batch)> {
        let mut state = self.shared.lock();
        while !state.failed && !self.is_over() {
            if let Some(batch) = state.free.pop() {
                let number = state.next;
                state.next += 1;
                return Some((number, batch));
            }
            state = self.shared.freed.wait(state).expect("invariant: no holder panics");
        }
        None
    }

    fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Relaxed)
    }

    fn fill(&mut self, number: u64, batch: &mut Batch) -> Result<(), TrainError> {
        let first = self.course.position(self.course.turn(number));
        let values = batch.images.len() / batch.labels.len();
        batch.drawn.clear();
        let samples = batch.images.chunks_exact_mut(values).zip(&mut batch.labels);
        for (position, (image, label)) in (first..).zip(samples) {
            if self.is_over() {
                return Ok(());
            }
            let drawn = self.order.at(position);
            let look = match self.augment {
                Augment::None => Look::Plain,
                Augment::Standard => Look::varied(self.seed, drawn.epoch, drawn.index),
            };
            *label = self.reader.read(drawn.index, look, image)?;
            batch.drawn.push(drawn);
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
        self.shared.lock().alive -= 1;
        self.shared.readied.notify_one();
    }
}
