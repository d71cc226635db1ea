//! Threads inside one worker: fork and join, with the caller's own thread taking part.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use paceline_record::Nanos;
use paceline_system::scheduler::Queue;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::EngineError;

/// Turns of a waiting loop before a thread goes to sleep: about ten microseconds.
const SPINS: usize = 4000;

/// Where the threads of a pool run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Wherever the system puts them.
    Anywhere,
    /// Each on its own core, the caller's thread included, if the process may use enough of them. Otherwise the system may
    /// leave a thread that spins and the one that it waits for on the same core, and two are no faster than one.
    CoreEach,
}

/// The cores that this process may use.
pub(crate) fn allowed_cores() -> Vec<usize> {
    paceline_system::cores::allowed().unwrap_or_default()
}

/// Keeps the calling thread on a core. Placement is optional: without it the program is slower.
fn keep_to(core: Option<usize>) {
    if let Some(core) = core {
        let mut set = CpuSet::new();
        set.set(core);
        let _ = sched_setaffinity(None, &set);
    }
}

/// A job as the helpers see it: a closure behind a thin pointer, and how many tasks it has.
#[derive(Clone, Copy)]
struct Job {
    closure: *const (),
    call: unsafe fn(*const (), usize, usize),
    tasks: usize,
}

// SAFETY: the closure behind the pointer is Sync, and `Pool::each` does not return while a helper may use it.
unsafe impl Send for Job {}

#[derive(Default)]
struct Board {
    job: Option<Job>,
    round: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    board: Mutex<Board>,
    posted: Condvar,
    /// Copy of the board's round that waiting helpers can watch without the lock.
    round: AtomicUsize,
    next: AtomicUsize,
    busy: AtomicUsize,
    /// Whether a job is under way: several may hold the pool, but only one may use it at a time.
    taken: AtomicBool,
    panicked: AtomicBool,
    /// How long each helper waited for a core.
    queues: Mutex<Vec<Queue>>,
}

/// A fixed set of threads that run the tasks of one job at a time. It allocates nothing after it is made.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads - 1` helpers; the caller of [`Pool::each`] is the remaining thread.
    pub fn new(threads: usize, placement: Placement) -> Result<Self, EngineError> {
        let cores = match placement {
            Placement::Anywhere => Vec::new(),
            Placement::CoreEach => allowed_cores(),
        };
        let core = |thread: usize| if cores.len() < threads { None } else { Some(cores[thread]) };
        let shared = Arc::new(Shared::default());
        let mut pool = Self { shared: shared.clone(), helpers: Vec::new() };
        for thread in 1..threads {
            let (shared, core) = (shared.clone(), core(thread));
            let helper = std::thread::Builder::new()
                .name(format!("compute-{thread}"))
                .spawn(move || {
                    keep_to(core);
                    let queue = Queue::of_this_thread();
                    shared.queues.lock().expect("invariant: no holder panics").extend(queue);
                    help(&shared, thread);
                })
                .map_err(|source| EngineError::Refused { what: "a thread", source })?;
            pool.helpers.push(helper);
        }
        keep_to(core(0));
        Ok(pool)
    }

    /// Threads that take part in a job.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `task(index, thread)` once for each index below `tasks`, on all threads, and returns when all are done.
    /// Any thread may run any task, so no two tasks may write to the same place. A task must not call it.
    pub fn each<F: Fn(usize, usize) + Sync>(&self, tasks: usize, task: F) {
        if self.helpers.is_empty() || tasks <= 1 {
            for index in 0..tasks {
                task(index, 0);
            }
            return;
        }
        unsafe fn call<F: Fn(usize, usize)>(closure: *const (), index: usize, thread: usize) {
            // SAFETY: `closure` is the `&F` that `each` put on the board and keeps alive.
            unsafe { (*closure.cast::<F>())(index, thread) }
        }
        let job = Job { closure: (&raw const task).cast(), call: call::<F>, tasks };
        let shared = &*self.shared;
        assert!(!shared.taken.swap(true, Ordering::Acquire), "invariant: a pool runs one job at a time");
        shared.next.store(0, Ordering::Relaxed);
        shared.busy.store(self.helpers.len(), Ordering::Relaxed);
        {
            let mut board = shared.board.lock().expect("invariant: no holder panics");
            board.job = Some(job);
            board.round += 1;
            shared.round.store(board.round, Ordering::Release);
        }
        shared.posted.notify_all();
        let outcome = catch_unwind(AssertUnwindSafe(|| work(shared, job, 0)));
        let mut spins = 0;
        while shared.busy.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        shared.taken.store(false, Ordering::Release);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        assert!(!shared.panicked.load(Ordering::Relaxed), "a compute thread panicked; its message is above");
    }
}

impl Pool {
    /// The longest time that one of the helpers waited for a core since the call before.
    pub fn lap(&self) -> Nanos {
        if self.helpers.is_empty() {
            return Nanos(0);
        }
        let mut queues = self.shared.queues.lock().expect("invariant: no holder panics");
        queues.iter_mut().map(Queue::lap).max().unwrap_or_default()
    }

    /// Copies values on all threads: one thread alone does not keep up with a GPU's input.
    pub fn copy(&self, from: &[f32], to: &mut [f32]) {
        const PIECE: usize = 1 << 18;
        assert_eq!(from.len(), to.len(), "invariant: both sides are as long");
        struct Target(*mut f32);
        // SAFETY: each task writes to a piece of its own.
        unsafe impl Sync for Target {}
        let target = Target(to.as_mut_ptr());
        self.each(from.len().div_ceil(PIECE), |index, _| {
            let target = &target;
            let start = index * PIECE;
            let piece = &from[start..from.len().min(start + PIECE)];
            // SAFETY: within `to`, which is as long as `from`, borrowed until all tasks are done, and apart from it.
            unsafe { piece.as_ptr().copy_to_nonoverlapping(target.0.add(start), piece.len()) };
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Ok(mut board) = self.shared.board.lock() {
            board.closed = true;
            board.round += 1;
            self.shared.round.store(board.round, Ordering::Release);
        }
        self.shared.posted.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper's panic was reported by `each`.
            let _ = helper.join();
        }
    }
}

fn work(shared: &Shared, job: Job, thread: usize) {
    loop {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        if index >= job.tasks {
            return;
        }
        // SAFETY: `each` keeps the closure alive until every helper has left this function.
        unsafe { (job.call)(job.closure, index, thread) };
    }
}

fn help(shared: &Shared, thread: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.round.load(Ordering::Acquire) == seen && spins < SPINS {
            std::hint::spin_loop();
            spins += 1;
        }
        let job = {
            let board = shared.board.lock().expect("invariant: no holder panics");
            let board = shared
                .posted
                .wait_while(board, |board| board.round == seen)
                .expect("invariant: no holder panics");
            seen = board.round;
            if board.closed {
                return;
            }
            board.job.expect("invariant: a round has a job")
        };
        if catch_unwind(AssertUnwindSafe(|| work(shared, job, thread))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.busy.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads, Placement::Anywhere).unwrap();
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.each(tasks, |index, thread| {
                    assert!(thread < threads);
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn all_threads_copy_all_values() {
        for threads in [1, 3] {
            let pool = Pool::new(threads, Placement::Anywhere).unwrap();
            for len in [0, 1, 1 << 18, 1_000_003] {
                let from: Vec<f32> = (0..len).map(|i| i as f32).collect();
                let mut to = vec![-1.0; len];
                pool.copy(&from, &mut to);
                assert_eq!(from, to, "{len} values on {threads} threads");
            }
        }
    }

    #[test]
    fn threads_on_cores_of_their_own_do_the_same_work() {
        // On a thread of its own, which keeps the core.
        std::thread::spawn(|| {
            let threads = allowed_cores().len().min(2);
            let pool = Pool::new(threads, Placement::CoreEach).unwrap();
            let count = AtomicUsize::new(0);
            pool.each(100, |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.load(Ordering::Relaxed), 100);
            assert_eq!(allowed_cores().len(), 1, "the caller keeps to one core");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller() {
        let pool = Pool::new(3, Placement::Anywhere).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.each(100, |index, _| assert_ne!(index, 57, "planted"));
        }));
        assert!(outcome.is_err());
    }
}
