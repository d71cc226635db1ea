//! One thread at a time uses the GPU: a process may hold several engines and programs, all on the same thread.
//!
//! All of them share one context. Another thread that takes memory or copies through the context's default stream can break
//! a recording under way; a product's algorithm that fails because of that is passed over for another one, which gives
//! other bits; times measured beside foreign work choose other algorithms; and cuDNN 9.14 crashed when several threads used
//! it. So a second thread is refused rather than served wrongly.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::EngineError;

/// Who uses the GPUs of this process.
pub(super) static TURNSTILE: Turnstile = Turnstile::new();

/// Lets one thread in at a time, as often as it likes.
#[derive(Debug)]
pub(super) struct Turnstile(Mutex<Option<Holder>>);

#[derive(Debug)]
struct Holder {
    thread: ThreadId,
    turns: usize,
}

impl Turnstile {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn holder(&self) -> MutexGuard<'_, Option<Holder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn of this thread; refused as long as another thread has one.
    pub fn enter(&'static self) -> Result<Turn, EngineError> {
        let thread = thread::current().id();
        let mut holder = self.holder();
        let held = holder.get_or_insert(Holder { thread, turns: 0 });
        if held.thread != thread {
            return Err(refusal());
        }
        held.turns += 1;
        Ok(Turn { turnstile: self, thread })
    }
}

fn refusal() -> EngineError {
    EngineError::Unsupported(
        "another thread of this process uses the CUDA engine; its engines and programs belong to one thread at a time".into(),
    )
}

/// A thread's turn, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turnstile: &'static Turnstile,
    thread: ThreadId,
}

impl Turn {
    /// Refuses a thread whose turn it is not.
    pub fn check(&self) -> Result<(), EngineError> {
        if thread::current().id() == self.thread { Ok(()) } else { Err(refusal()) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut holder = self.turnstile.holder();
        let held = holder.as_mut().expect("invariant: a turn was taken");
        held.turns -= 1;
        if held.turns == 0 {
            *holder = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turnstile() -> &'static Turnstile {
        Box::leak(Box::new(Turnstile::new()))
    }

    fn elsewhere<T: Send>(body: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(body).join().expect("no panic"))
    }

    #[test]
    fn a_thread_has_as_many_turns_as_it_likes_and_another_has_none_meanwhile() {
        let turnstile = turnstile();
        let (first, second) = (turnstile.enter().unwrap(), turnstile.enter().unwrap());
        let refused = || turnstile.enter().map(drop).unwrap_err().to_string();
        assert!(elsewhere(refused).contains("another thread of this process"));
        drop(first);
        assert!(elsewhere(refused).contains("one thread at a time"), "one turn is left");
        drop(second);
        elsewhere(|| turnstile.enter().map(drop)).expect("nobody else has a turn");
        turnstile.enter().map(drop).expect("the other thread's turn has ended");
    }

    #[test]
    fn what_another_thread_opened_is_refused_and_may_be_dropped_anywhere() {
        let turnstile = turnstile();
        let turn = turnstile.enter().unwrap();
        assert!(turn.check().is_ok());
        elsewhere(|| {
            assert!(turn.check().is_err());
            drop(turn);
        });
        assert!(elsewhere(|| turnstile.enter().map(drop)).is_ok());
    }

    #[test]
    fn threads_that_come_at_once_do_not_overlap() {
        let turnstile = turnstile();
        let inside = std::sync::atomic::AtomicUsize::new(0);
        let enter = || {
            let mut entered = 0;
            while entered < 100 {
                let Ok(_turn) = turnstile.enter() else {
                    thread::yield_now();
                    continue;
                };
                use std::sync::atomic::Ordering::SeqCst;
                assert_eq!(inside.fetch_add(1, SeqCst), 0);
                inside.fetch_sub(1, SeqCst);
                entered += 1;
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(enter))));
    }
}
