//! What a worker asks of its own process.

use std::fs;

use paceline_record::Bytes;
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

/// The most memory this process has held so far; `None` where the system does not tell.
pub fn peak_resident() -> Option<Bytes> {
    find_memory(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Memory that this process holds and others may hold too.
pub fn shared_resident() -> Option<Bytes> {
    find_memory(&fs::read_to_string("/proc/self/status").ok()?, "RssShmem:")
}

fn find_memory(status: &str, name: &str) -> Option<Bytes> {
    let line = status.lines().find_map(|l| l.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_found_among_other_lines() {
        let status = "Name:\tpaceline\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(find_memory(status, "VmHWM:"), Some(Bytes(2 << 20)));
        assert_eq!(find_memory("Name:\tpaceline\n", "VmHWM:"), None);
    }
}
