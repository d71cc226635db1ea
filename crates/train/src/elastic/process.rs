//! A member's process, and what the system tells about it.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;

use paceline_record::{Member, Nanos, Rank};
use rustix::process::{Signal, pidfd_send_signal};

use super::member::Membership;
use super::watch::Run;
use crate::job::Assignment;
use crate::{Job, TrainError, clock, process};

/// A member's process. It is killed if it is dropped before it is reaped.
pub(super) struct Process {
    pub member: Member,
    pub seat: u32,
    pub child: Child,
    pub handle: OwnedFd,
    /// Why it was sent a signal that it cannot survive, and when.
    pub condemned: Option<(Condemned, Nanos)>,
    pub reaped: bool,
    /// A stop that was asked for ends then.
    pub continues: Option<Nanos>,
    pub started: Nanos,
    /// Steps that were done when it came into the roster.
    pub joined: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condemned {
    Stalled,
    Dismissed,
    Over,
}

impl Process {
    pub fn signal(&self, signal: Signal) {
        // It fails only if the process has ended, and then its end is about to be noticed.
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    pub fn condemn(&mut self, why: Condemned) {
        if self.condemned.is_none() {
            self.condemned = Some((why, clock::now()));
            self.signal(Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub(super) fn spawn(job: Job, own: Membership, program: &Path) -> Result<Child, TrainError> {
    let words = words_file(&job.folder, own.member);
    let out = File::create(&words).map_err(TrainError::system(format!("write {}", words.display())))?;
    let name = own.member.to_string();
    let assignment = Assignment {
        job,
        rank: Rank(own.seat),
        launcher: std::process::id() as i32,
        segment: None,
        membership: Some(own),
    };
    process::worker(program)
        .args(["worker", &name])
        .env(Assignment::VARIABLE, assignment.to_json())
        .stderr(out)
        .spawn()
        .map_err(TrainError::system(format!("start {}", program.display())))
}

/// The file for a member's standard error.
pub(super) fn words_file(folder: &Path, member: Member) -> PathBuf {
    folder.join(format!("member-{member}.stderr"))
}

/// Times that the system has killed for lack of memory, as far as this process can see.
pub(super) fn oom_kills() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The state of a process, as the system names it: `R` for running, `T` for stopped.
pub(super) fn state_of(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process runs or would like to, and the processor time that it has had.
pub(super) fn run_of(pid: u32) -> Run {
    let read = || -> Option<Run> {
        match state_of(pid)? {
            'R' => {}
            'T' | 't' => return Some(Run::Stopped),
            _ => return None,
        }
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok().map(|cpu| Run::Runnable(Nanos(cpu)))
    };
    read().unwrap_or(Run::Blocked)
}
