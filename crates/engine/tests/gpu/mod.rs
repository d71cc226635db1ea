//! The GPU that tests need.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use paceline_engine::EngineError;
use paceline_engine::cuda::{Cuda, CudaOptions};

/// Whether an engine is missing a GPU, or a driver or library that is new enough. Any other error is a failure.
pub fn is_excused(error: &EngineError) -> bool {
    match error {
        EngineError::NoGpu(_) => true,
        EngineError::Library { found, hint, .. } => found.is_none() || hint.contains("install a newer one"),
        _ => false,
    }
}

thread_local! {
    static TURN: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Waits until no other test uses the GPU: the engine belongs to one thread at a time. The turn ends with the test's thread.
fn take_turn() {
    static TURNS: Mutex<()> = Mutex::new(());
    TURN.with_borrow_mut(|turn| {
        turn.get_or_insert_with(|| TURNS.lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// The engine; `None`, with the reason printed once, where the machine has none.
pub fn open(options: CudaOptions) -> Option<Cuda> {
    static TOLD: Once = Once::new();
    take_turn();
    match Cuda::new(options) {
        Ok(engine) => Some(engine),
        Err(why) if is_excused(&why) => {
            // Not `eprintln!`, which is shown only where a test fails.
            TOLD.call_once(|| {
                let _ = writeln!(io::stderr(), "skipped: these tests need an NVIDIA GPU: {why}");
            });
            None
        }
        Err(other) => panic!("{other}"),
    }
}
