//! Instructions that may turn out to be illegal, tried where that ends nobody else.

#[cfg(target_arch = "x86_64")]
use std::time::Duration;

/// Pauses after which a copy is asked for again, where the system is short of processes or memory.
#[cfg(target_arch = "x86_64")]
const PAUSES: [Duration; 4] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(200), Duration::ZERO];

/// Whether `attempt` says so in a copy of this process, which is all that an illegal instruction ends; `None` if there can be no copy.
///
/// # Safety
/// The copy has one thread and whatever the others left half done: `attempt` may not allocate, take a lock or panic.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn passes(attempt: impl Fn() -> bool) -> Option<bool> {
    // A child that sends no signal when it ends is nobody else's to wait for.
    const WITHOUT_SIGNAL: libc::c_long = 0;
    const NONE: libc::c_long = 0;
    /// In seconds: an attempt takes microseconds.
    const LIMIT: libc::c_uint = 10;
    // SAFETY: a plain fork; the copy calls the attempt, which the caller vouches for, and system calls alone.
    unsafe {
        let mut child = -1;
        for pause in PAUSES {
            child = libc::syscall(libc::SYS_clone, WITHOUT_SIGNAL, NONE, NONE, NONE, NONE);
            let is_short =
                matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM));
            if child >= 0 || !is_short {
                break;
            }
            std::thread::sleep(pause);
        }
        if child == 0 {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            libc::signal(libc::SIGILL, libc::SIG_DFL);
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::alarm(LIMIT);
            libc::_exit(if attempt() { 0 } else { 1 });
        }
        if child < 0 {
            return None;
        }
        let mut status = 0;
        loop {
            let ended = libc::waitpid(child as libc::pid_t, &raw mut status, libc::__WALL);
            if i64::from(ended) == child {
                return Some(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
            }
            if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                return None;
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::passes;

    #[test]
    fn an_illegal_instruction_ends_the_trial_and_nothing_else() {
        // SAFETY: none of them allocates.
        unsafe {
            assert_eq!(passes(|| true), Some(true));
            assert_eq!(passes(|| false), Some(false));
            assert_eq!(passes(|| std::arch::asm!("ud2", options(noreturn))), Some(false));
        }
    }
}
