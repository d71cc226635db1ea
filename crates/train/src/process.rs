//! What a worker asks of its own process.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

pub use paceline_system::memory::{peak_resident, shared_resident};

use crate::TrainError;

/// Beginnings of variables by which mpirun and srun tell a process that it is one of theirs. A worker is not: it would be taken for a rank
/// that never shows up.
const NOT_A_WORKERS: [&str; 13] = [
    "OMPI_", "OPAL_", "ORTE_", "PRTE_", "PMIX_", "PMI_", "PALS_", "HYDI_", "HYDRA_", "MPI_", "I_MPI_",
    "SLURM_", "SLURMD_",
];

/// A process that works for this one, with nothing to read and nowhere to write.
pub(crate) fn worker(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if NOT_A_WORKERS.iter().any(|begin| name.as_encoded_bytes().starts_with(begin.as_bytes())) {
            command.env_remove(name);
        }
    }
    command
}

/// Ties this process to its launcher: when the launcher ends, however it ends, this process is killed.
pub fn die_with(launcher: i32) -> Result<(), TrainError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| TrainError::system("follow the launcher")(error.into()))?;
    // The launcher may have ended before the call above; then no signal will come.
    match getppid() {
        Some(parent) if parent.as_raw_pid() == launcher => Ok(()),
        _ => Err(TrainError::Orphaned),
    }
}

/// Makes the calling thread wait for its turn when it wakes on a core that it shares with a computing thread. Otherwise it would
/// preempt that thread at once. It gets the same amount of time, only later.
pub fn wait_its_turn() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live through the call, which changes the calling thread's scheduling and nothing else. Where it is
    // not permitted, nothing changes.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
}

/// A flag that a request to end (SIGTERM) sets. Ctrl-C, which a terminal sends to all processes, is the launcher's to answer.
/// Neither ends this process any more.
pub fn leave_on_request() -> Result<Arc<AtomicBool>, TrainError> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let asked = Arc::new(AtomicBool::new(false));
    for (signal, flag) in [(SIGTERM, asked.clone()), (SIGINT, Arc::default())] {
        signal_hook::flag::register(signal, flag).map_err(TrainError::system("watch for signals"))?;
    }
    Ok(asked)
}
