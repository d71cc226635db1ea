//! The hand-off under loom: every interleaving of the ranks, every value that the memory model lets a load see. A lost
//! wake-up shows as a deadlock, a missing order as an access to a cell that races with another.

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;

/// A futex as the kernel describes it: comparing the word and falling asleep is one step with respect to waking.
struct Futex {
    word: AtomicU32,
    queue: Mutex<()>,
    wakes: Condvar,
}

impl Futex {
    fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value), queue: Mutex::new(()), wakes: Condvar::new() }
    }
}

impl Word for Futex {
    fn load(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    fn add(&self, value: u32) -> u32 {
        self.word.fetch_add(value, Ordering::AcqRel)
    }

    fn set(&self, bits: u32) -> u32 {
        self.word.fetch_or(bits, Ordering::AcqRel)
    }

    fn clear(&self, bits: u32) {
        self.word.fetch_and(!bits, Ordering::AcqRel);
    }

    fn sleep(&self, value: u32, _by: Deadline) -> Slept {
        let queue = self.queue.lock().expect("no test panics under the lock");
        // The kernel reads the word under its queue lock and sees the latest value, as a read-modify-write does.
        if self.word.fetch_or(0, Ordering::Relaxed) == value {
            drop(self.wakes.wait(queue).expect("as above"));
        }
        Slept::Woken
    }

    fn wake(&self) {
        let _queue = self.queue.lock().expect("no test panics under the lock");
        self.wakes.notify_all();
    }
}

/// What ranks share: a pair of counts and one value each.
struct World {
    arrived: Vec<Futex>,
    done: Vec<Futex>,
    values: Vec<UnsafeCell<u32>>,
}

impl World {
    fn new(ranks: usize) -> Arc<Self> {
        Arc::new(Self {
            arrived: (0..ranks).map(|_| Futex::new(0)).collect(),
            done: (0..ranks).map(|_| Futex::new(0)).collect(),
            values: (0..ranks).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    /// An operation as a rank does it: write, arrive, wait for all, work, tell, wait for all.
    fn operation(&self, rank: usize, number: u64, value: u32, work: impl FnOnce(&Self)) -> Result<(), Wait> {
        // SAFETY: until this rank arrives, its value is its own; loom checks it.
        self.values[rank].with_mut(|own| unsafe { *own = value });
        advance(&self.arrived[rank]);
        all(&self.arrived, number + 1)?;
        work(self);
        advance(&self.done[rank]);
        all(&self.done, number + 1)
    }

    /// Rank 0 owns the one slice there is: adds all values up and hands the sum to all.
    fn reduce(&self) {
        let sum = self
            .values
            .iter()
            // SAFETY: all have arrived, and nobody but rank 0 touches values before it is done; loom checks it.
            .map(|value| value.with(|value| unsafe { *value }))
            .sum();
        for value in &self.values {
            // SAFETY: as above.
            value.with_mut(|value| unsafe { *value = sum });
        }
    }

    fn value(&self, rank: usize) -> u32 {
        // SAFETY: all are done with it; loom checks it.
        self.values[rank].with(|value| unsafe { *value })
    }
}

fn never() -> Deadline {
    Deadline::after(Duration::MAX)
}

fn all(words: &[Futex], count: u64) -> Result<(), Wait> {
    words
        .iter()
        .map(|word| wait(word, count, never()))
        .find(|&waited| waited != Wait::Reached)
        .map_or(Ok(()), Err)
}

fn explore(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

#[test]
fn two_ranks_hand_values_over_twice_in_any_interleaving() {
    explore(3, || {
        let world = World::new(2);
        let other = Arc::clone(&world);
        let second = thread::spawn(move || {
            for number in 0..2 {
                other.operation(1, number, 10, |_| {}).expect("nobody dies");
                assert_eq!(other.value(1), 11 + number as u32);
            }
        });
        for number in 0..2 {
            world.operation(0, number, 1 + number as u32, World::reduce).expect("nobody dies");
            assert_eq!(world.value(0), 11 + number as u32);
        }
        second.join().expect("the rank did not panic");
    });
}

#[test]
fn three_ranks_hand_values_over_in_any_interleaving() {
    explore(1, || {
        let world = World::new(3);
        let others: Vec<_> = [1, 2]
            .into_iter()
            .map(|rank| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    world.operation(rank, 0, 5, |_| {}).expect("nobody dies");
                    assert_eq!(world.value(rank), 11);
                })
            })
            .collect();
        world.operation(0, 0, 1, World::reduce).expect("nobody dies");
        assert_eq!(world.value(0), 11);
        for other in others {
            other.join().expect("the rank did not panic");
        }
    });
}

#[test]
fn two_sleepers_on_one_word_are_both_woken() {
    explore(3, || {
        let word = Arc::new(Futex::new(0));
        let sleepers: Vec<_> = (0..2)
            .map(|_| {
                let word = Arc::clone(&word);
                thread::spawn(move || assert_eq!(wait(&*word, 1, never()), Wait::Reached))
            })
            .collect();
        advance(&*word);
        for sleeper in sleepers {
            sleeper.join().expect("the sleeper did not panic");
        }
    });
}

#[test]
fn a_sleeper_that_wants_a_later_count_is_not_forgotten() {
    explore(3, || {
        let word = Arc::new(Futex::new(0));
        let owner = {
            let word = Arc::clone(&word);
            thread::spawn(move || (0..2).for_each(|_| advance(&*word)))
        };
        assert_eq!(wait(&*word, 2, never()), Wait::Reached);
        owner.join().expect("it did not panic");
    });
}

#[test]
fn a_poisoned_count_wakes_its_sleepers_whatever_its_owner_does() {
    explore(3, || {
        let word = Arc::new(Futex::new(0));
        let launcher = {
            let word = Arc::clone(&word);
            thread::spawn(move || poison(&*word))
        };
        let owner = {
            let word = Arc::clone(&word);
            thread::spawn(move || advance(&*word))
        };
        assert_eq!(wait(&*word, 2, never()), Wait::Poisoned);
        launcher.join().expect("it did not panic");
        owner.join().expect("it did not panic");
        assert_eq!(wait(&*word, 1, never()), Wait::Reached);
    });
}

#[test]
fn counts_go_on_past_the_end_of_the_word() {
    assert!(is_reached(0, 0));
    assert!(!is_reached(0, 1));
    let last = (1_u64 << 30) - 1;
    let word = (last as u32) << 2;
    assert!(is_reached(word, last));
    assert!(!is_reached(word, last + 1));
    let next = word.wrapping_add(ONE);
    assert!(is_reached(next, last + 1));
    assert!(is_reached(next | POISONED | SLEEPERS, last));
    assert!(!is_reached(next, last + 2));
}
