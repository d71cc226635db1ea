//! Hosts of one machine, which the first one starts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use paceline_comm::wire::{Secrecy, Secret, Terms};
use paceline_record::Nanos;
use serde::{Deserialize, Serialize};

use super::{Call, Meeting, Role};
use crate::{Job, TrainError, process};

/// How long another host of this machine may take to end.
const FAREWELL: Duration = Duration::from_secs(5);

/// How often it is looked whether it has.
const TICK: Duration = Duration::from_millis(5);

/// Other hosts on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The program that they run.
    pub program: PathBuf,
    /// How many.
    pub count: u32,
}

/// Another host on this machine. It is killed if it has not ended when this is dropped.
pub(crate) struct LocalHost {
    child: Child,
    name: String,
    folder: PathBuf,
}

impl Drop for LocalHost {
    fn drop(&mut self) {
        end_or_kill(&mut self.child);
        for line in std::fs::read_to_string(self.folder.join(WORDS)).unwrap_or_default().lines() {
            eprintln!("{}: {line}", self.name);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits for a host that ends by itself once it has been told that all is over, and kills it if it does not.
pub(crate) fn end_or_kill(child: &mut Child) {
    let until = Instant::now() + FAREWELL;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        sleep(TICK);
    }
    // This fails only if the process has already ended.
    let _ = child.kill();
    let _ = child.wait();
}

/// What a host on the same machine is told through its environment.
#[derive(Clone, Serialize, Deserialize)]
struct Assigned {
    job: Job,
    place: LocalPlace,
}

/// How a host on the same machine meets the first.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct LocalPlace {
    at: SocketAddr,
    secret: String,
    encrypted: bool,
    lease: Nanos,
    patience: Nanos,
    pub name: String,
    launcher: i32,
}

impl LocalPlace {
    /// The place of a host that the first one starts.
    pub fn new(meeting: &Meeting, at: SocketAddr, number: u32) -> Self {
        Self {
            at,
            secret: meeting.terms.secret.to_hex(),
            encrypted: meeting.terms.secrecy == Secrecy::Encrypted,
            lease: meeting.lease,
            patience: meeting.patience,
            // Hosts are numbered as they come, so a name has no number.
            name: match u8::try_from(number).ok().filter(|&number| number < 26) {
                Some(number) => format!("{}-{}", meeting.name, char::from(b'a' + number)),
                None => format!("{}-no{number}", meeting.name),
            },
            launcher: std::process::id() as i32,
        }
    }

    /// Ties this process, which has the place, to the first host's.
    pub fn take(self) -> Result<Meeting, TrainError> {
        process::die_with(self.launcher)?;
        let secret = Secret::from_hex(&self.secret);
        let secret = secret.ok_or_else(|| TrainError::NoAssignment("its secret is no secret".into()))?;
        let secrecy = if self.encrypted { Secrecy::Encrypted } else { Secrecy::Plain };
        Ok(Meeting {
            role: Role::Other(Call { at: vec![self.at], interface: None, port: 0 }),
            terms: Terms::new(secret, secrecy),
            lease: self.lease,
            patience: self.patience,
            name: self.name,
            is_last: true,
            registrar: None,
        })
    }
}

/// The file for its standard error.
const WORDS: &str = "launcher.stderr";

/// The environment variable that carries it.
const VARIABLE: &str = "PACELINE_HOST";

/// Starts another host on this machine.
pub(super) fn start_local(
    job: &Job,
    meeting: &Meeting,
    at: SocketAddr,
    program: &Path,
    number: u32,
) -> Result<LocalHost, TrainError> {
    let folder = job.folder.join(format!(".host-{number}"));
    std::fs::create_dir_all(&folder).map_err(TrainError::system(format!("create {}", folder.display())))?;
    let mut own = Job { folder: folder.clone(), ..job.clone() };
    if let Some(saving) = &mut own.milestones.saving {
        saving.folder = folder.join(crate::checkpoint::FOLDER);
    }
    let assigned = Assigned { job: own, place: LocalPlace::new(meeting, at, number) };
    let words = folder.join(WORDS);
    let words =
        std::fs::File::create(&words).map_err(TrainError::system(format!("write {}", words.display())))?;
    let child = Command::new(program)
        .args(["host", &number.to_string()])
        .env(VARIABLE, serde_json::to_string(&assigned).expect("invariant: plain data"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(words)
        .spawn()
        .map_err(TrainError::system(format!("start {}", program.display())))?;
    Ok(LocalHost { child, name: assigned.place.name, folder })
}

/// What this process was told if it is one of several hosts on a machine: its job, and how it meets the first.
pub fn local_assignment() -> Option<Result<(Job, Meeting), TrainError>> {
    let text = std::env::var(VARIABLE).ok()?;
    // Workers that it starts are no hosts.
    // SAFETY: this is called before any other thread is there.
    unsafe { std::env::remove_var(VARIABLE) };
    Some(read_assignment(&text))
}

fn read_assignment(text: &str) -> Result<(Job, Meeting), TrainError> {
    let assigned: Assigned =
        serde_json::from_str(text).map_err(|error| TrainError::NoAssignment(error.to_string()))?;
    Ok((assigned.job, assigned.place.take()?))
}
