//! Runs somebody else's command as if nobody were in between: its standard streams, its signals and its end are its own.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use paceline_record::{Exit, Nanos};
use paceline_system::clock;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpid, getrlimit, kill_process, setrlimit, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::outcome;

/// How a command ended, and when it ran.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The moment before it was started.
    pub spawn: Nanos,
    /// When it was gone.
    pub reap: Nanos,
    /// How it ended.
    pub exit: Exit,
    /// The last signal that asked for an end while it ran.
    pub asked: Option<i32>,
}

/// What signals are about: the command that runs, and what came meanwhile.
#[derive(Default)]
struct Post {
    command: Option<Pid>,
    asked: Option<i32>,
}

/// Passes signals on to the commands that run under it, one after the other.
pub struct Relay {
    post: Arc<Mutex<Post>>,
}

fn lock(post: &Mutex<Post>) -> std::sync::MutexGuard<'_, Post> {
    // What is in it is whole at any time.
    post.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Relay {
    /// Begins to watch for signals. Between commands they end this program.
    pub fn start() -> Result<Self> {
        const REFUSED: &str = "cannot watch for signals";
        let post: Arc<Mutex<Post>> = Arc::default();
        let ignored = ignored();
        let heeded =
            [SIGINT, SIGTERM, SIGHUP, SIGQUIT].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let mut signals = SignalsInfo::<WithOrigin>::new(heeded).context(REFUSED)?;
        outcome::outlive_requests();
        let shared = post.clone();
        let watch = move || {
            for origin in signals.forever() {
                take(&mut lock(&shared), &origin);
            }
        };
        thread::Builder::new().name("signals".into()).spawn(watch).context(REFUSED)?;
        Ok(Self { post })
    }

    /// Runs a command to its end.
    pub fn run(&self, words: &[OsString], environment: &[(&str, OsString)]) -> io::Result<Ended> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(environment.iter().map(|(name, value)| (name, value)));
        // A signal between the start and here waits for the lock.
        let mut post = lock(&self.post);
        let spawn = clock::now();
        let mut child = command.spawn()?;
        *post = Post { command: Some(pid(&child)), asked: None };
        drop(post);
        // It is gone, but its number is not given to another until it has been waited for.
        while let Err(error) = waitid(WaitId::Pid(pid(&child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        let reap = clock::now();
        let mut post = lock(&self.post);
        post.command = None;
        let asked = post.asked.take();
        drop(post);
        let exit = describe(child.wait()?);
        Ok(Ended { spawn, reap, exit, asked })
    }
}

/// Signals that this program was told to ignore, as by `nohup`: so does then the command, unless somebody handles them here.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// What a signal leads to. One of the terminal has reached the command too, which is in the same group of processes.
fn take(post: &mut Post, origin: &Origin) {
    let Some(command) = post.command else { die_of(origin.signal) };
    post.asked = Some(origin.signal);
    if !matches!(origin.cause, Cause::Kernel)
        && let Some(signal) = Signal::from_named_raw(origin.signal)
    {
        // The command may have ended a moment ago.
        let _ = kill_process(command, signal);
    }
}

fn describe(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or_default()),
    }
}

/// Ends this program as a command ended.
pub fn end_as(exit: Exit) -> ! {
    match exit {
        Exit::Code(code) => std::process::exit(code),
        Exit::Signal(signal) => die_of(signal),
    }
}

/// Ends this program by a signal, so that whoever started it sees that.
fn die_of(signal: i32) -> ! {
    // The command has dumped its memory already, if anybody wanted that.
    let Rlimit { maximum, .. } = getrlimit(Resource::Core);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum });
    if signal == signal_hook::consts::SIGKILL {
        let _ = kill_process(getpid(), Signal::KILL);
    }
    // Where a signal does not end a program by itself, the status says what a shell would say.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}
