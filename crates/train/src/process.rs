//! What a worker asks of its own process.

pub use paceline_system::memory::{peak_resident, shared_resident};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::TrainError;

/// Ties this process to its launcher: when that ends, however it ends, this one is killed.
pub fn die_with(launcher: i32) -> Result<(), TrainError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| TrainError::system("follow the launcher")(error.into()))?;
    // It may have ended before the line above; then nobody is left to send the signal.
    match getppid() {
        Some(parent) if parent.as_raw_pid() == launcher => Ok(()),
        _ => Err(TrainError::Orphaned),
    }
}

/// Has the calling thread wait its turn when it wakes, on a core that it shares with a thread that computes: woken by that
/// thread, it would else take the core from it at once. It gets as much time as before, only later.
pub fn wait_its_turn() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live through the call, which changes the calling thread's scheduling and nothing else. Where it is
    // not permitted, all goes on as before.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
}
