//! Several hosts: what can be asked for, and how the launchers find each other.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use paceline_comm::wire::{Door, Secrecy, Secret, Terms, call};
use paceline_comm::{CommError, Deadline};
use paceline_lab::words;
use paceline_record::Nanos;
use paceline_train::hosts::{Call, HostCount, Hosts, LEASE, Local, Meeting, Role};
use paceline_train::launcher::{Surroundings, follow};
use paceline_train::{Engines, Job, Prepared, TrainError, checkpoint, describe};
use serde::Deserialize;

use crate::machine;
use crate::outcome::{self, Unfinished, Usage, say};
use crate::values::{Fill, Int, Seconds, fill_all};

/// The environment variable that may hold the secret.
const SECRET: &str = "PACELINE_SECRET";

/// The shortest time after which silence means something.
const LEAST_LEASE: f64 = 0.2;

/// How long hosts wait for each other, unless it is said.
const PATIENCE: Nanos = Nanos(60_000_000_000);

/// Options of a run on several hosts.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[command(next_help_heading = "Several hosts")]
#[serde(default, rename_all = "kebab-case")]
pub struct HostSettings {
    /// Run on so many hosts, with the same command on each; MIN:MAX with --elastic, where hosts come and go
    #[arg(long, value_name = "N|MIN:MAX")]
    #[serde(deserialize_with = "crate::values::one")]
    pub hosts: Option<HostCount>,
    /// Where hosts meet: tcp://HOST:PORT, an address of the first host, or file:///DIR, a folder that all hosts share
    #[arg(long, value_name = "ADDRESS")]
    #[serde(deserialize_with = "crate::values::one")]
    pub rendezvous: Option<Rendezvous>,
    /// Start all hosts on this machine, for trying; each has its own launcher and its own memory
    #[arg(long)]
    pub local: bool,
    /// The address of this host at which others reach it [default: that of the rendezvous, or the one that leads there]
    #[arg(long, value_name = "IP")]
    #[serde(deserialize_with = "crate::values::one")]
    pub interface: Option<IpAddr>,
    /// The port at which other hosts reach this one, unless it is the first [default: any free one]
    #[arg(long, value_name = "PORT")]
    #[serde(deserialize_with = "crate::values::one")]
    pub port: Option<Int<1, 65_535>>,
    /// A file with the secret that all hosts of the job know, of at least 16 bytes [default: the environment's PACELINE_SECRET]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Encrypt all that goes between hosts
    #[arg(long)]
    pub encrypt: bool,
    /// How long a host may be silent before it counts as lost, in seconds [default: 2]
    #[arg(long, value_name = "SECONDS")]
    #[serde(deserialize_with = "crate::values::one")]
    pub lease: Option<Seconds>,
    /// How long to wait for other hosts, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    #[serde(deserialize_with = "crate::values::one")]
    pub host_wait: Option<Seconds>,
}

fill_all!(HostSettings { hosts, rendezvous, local, interface, port, secret_file, encrypt, lease, host_wait });

/// Where hosts meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// An address of the first host.
    Tcp(String),
    /// A folder that all hosts share.
    File(PathBuf),
}

/// A name or an address; one with colons is in brackets.
fn is_host(text: &str) -> bool {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    !text.is_empty() && (bare.is_some() || !text.contains(':'))
}

impl FromStr for Rendezvous {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(address) = text.strip_prefix("tcp://") {
            let is_whole = address
                .rsplit_once(':')
                .is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0));
            return match is_whole {
                true => Ok(Self::Tcp(address.trim_end_matches('/').into())),
                false => Err(format!(
                    "'{text}' has no host or no port; write tcp://HOST:PORT, as tcp://first:29400"
                )),
            };
        }
        if let Some(path) = text.strip_prefix("file://").filter(|path| path.starts_with('/')) {
            return Ok(Self::File(path.into()));
        }
        Err(format!("'{text}' is no place to meet; there are tcp://HOST:PORT and file:///DIR"))
    }
}

impl HostSettings {
    /// Makes a job one for several hosts.
    pub fn apply(&self, job: &mut Job) -> Result<(), Usage> {
        let count = self.check()?;
        if let Some(HostCount { min, max }) = count.filter(|count| count.min < count.max)
            && job.elastic.is_none()
        {
            return Err(Usage::new(format!(
                "--hosts {min}:{max} lets hosts come and go; use it with --elastic, or say one number"
            )));
        }
        job.hosts = count.map(|HostCount { min, max }| Hosts { min, max, workers: 0, local: self.local });
        Ok(())
    }

    /// The hosts that are asked for, if the options go together.
    pub fn check(&self) -> Result<Option<HostCount>, Usage> {
        if self.hosts.is_none() {
            let given = [
                ("--rendezvous", self.rendezvous.is_some()),
                ("--local", self.local),
                ("--interface", self.interface.is_some()),
                ("--port", self.port.is_some()),
                ("--secret-file", self.secret_file.is_some()),
                ("--encrypt", self.encrypt),
                ("--lease", self.lease.is_some()),
                ("--host-wait", self.host_wait.is_some()),
            ];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                Some((option, _)) => {
                    Err(Usage::new(format!("{option} is for several hosts; use it with --hosts N")))
                }
                None => Ok(None),
            };
        }
        match (&self.rendezvous, self.local) {
            (None, false) => Err(Usage::new(
                "hosts meet somewhere: give --rendezvous tcp://HOST:PORT, an address of the first host, or --local to start all of \
                 them on this machine",
            )),
            (Some(_), true) => Err(Usage::new("--local hosts find each other; leave --rendezvous out")),
            (None, true) if self.interface.is_some() || self.port.is_some() || self.secret_file.is_some() => {
                Err(Usage::new(
                    "--local hosts find and trust each other; leave --interface, --port and --secret-file out",
                ))
            }
            _ if self.lease.is_some_and(|lease| lease.0 < LEAST_LEASE) => Err(Usage::new(format!(
                "--lease is how long a host may be silent, at least {LEAST_LEASE} s: signs of life come eight times as often"
            ))),
            _ => Ok(self.hosts),
        }
    }

    /// Finds out whether this is the first host. `None` where the job is for one host.
    pub fn meet(&self) -> Result<Option<Meeting>> {
        let Some(HostCount { max, .. }) = self.hosts else { return Ok(None) };
        let secrecy = if self.encrypt { Secrecy::Encrypted } else { Secrecy::Plain };
        let seconds =
            |given: Option<Seconds>, usual: Nanos| given.map_or(usual, |given| Nanos((given.0 * 1e9) as u64));
        let terms = Terms::new(self.secret()?, secrecy);
        let role = if self.local {
            let door = open(SocketAddr::from(([127, 0, 0, 1], 0)), &terms)?;
            let local = Local { program: outcome::own_program()?, count: max - 1 };
            Role::First { door: Arc::new(door), local: Some(local) }
        } else {
            match self.rendezvous.as_ref().expect("invariant: hosts meet somewhere") {
                Rendezvous::Tcp(address) => self.meet_at(address, &terms)?,
                Rendezvous::File(folder) => self.meet_in(folder, &terms)?,
            }
        };
        Ok(Some(Meeting {
            role,
            terms,
            lease: seconds(self.lease, LEASE),
            patience: seconds(self.host_wait, PATIENCE),
            name: machine::host().unwrap_or_else(|| "this host".into()),
            is_last: true,
        }))
    }

    fn secret(&self) -> Result<Secret> {
        if self.local {
            return Ok(Secret::random()?);
        }
        let bytes = match &self.secret_file {
            Some(path) => fs::read(path).map_err(|error| Usage::because(format!("cannot read {}", path.display()), error))?,
            None => std::env::var(SECRET).map(String::into_bytes).map_err(|_| {
                Usage::new(format!(
                    "hosts show each other a secret before anything else: put the same at least {} bytes into a file on each and \
                     give --secret-file FILE, or set {SECRET}",
                    Secret::SHORTEST
                ))
            })?,
        };
        let secret = Secret::new(bytes.trim_ascii());
        Ok(secret.ok_or_else(|| {
            Usage::new(format!("the secret is too short: it needs at least {} bytes", Secret::SHORTEST))
        })?)
    }

    fn call(&self, at: SocketAddr) -> Role {
        Role::Other(Call { at, interface: self.interface, port: self.port.map_or(0, |port| port.0 as u16) })
    }

    /// Whoever can listen at the address is the first.
    fn meet_at(&self, address: &str, terms: &Terms) -> Result<Role> {
        let found = address.to_socket_addrs();
        let found = found.map_err(|error| {
            Usage::because(format!("cannot find {address}, where hosts are to meet"), error)
        })?;
        let addresses: Vec<SocketAddr> = found.collect();
        let Some(&first) = addresses.first() else {
            return Err(Usage::new(format!("{address} is no address")).into());
        };
        if first.ip().is_unspecified() {
            let reason = format!("{address} is every host's address; name one that only the first host has");
            return Err(Usage::new(reason).into());
        }
        for &at in &addresses {
            match Door::open(at, terms, |line: String| say(&line)) {
                Ok(door) => return Ok(Role::First { door: Arc::new(door), local: None }),
                Err(CommError::NoDoor { source, .. })
                    if matches!(
                        source.kind(),
                        io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse
                    ) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.call(first))
    }

    /// Whoever links its address into the folder first is the first.
    fn meet_in(&self, folder: &Path, terms: &Terms) -> Result<Role> {
        let ip = match self.interface {
            Some(ip) => ip,
            None => own_address().ok_or_else(|| {
                Usage::new("cannot tell at which address others reach this host; give it with --interface IP")
            })?,
        };
        let refused = |what: &str, path: &Path| format!("cannot {what} {}", path.display());
        fs::create_dir_all(folder).with_context(|| refused("create", folder))?;
        let door = open(SocketAddr::new(ip, 0), terms)?;
        let draft = folder.join(format!(".{}-{}", door.address().port(), std::process::id()));
        fs::write(&draft, door.address().to_string()).with_context(|| refused("write", &draft))?;
        let role = self.link(folder, &draft, terms, door);
        // It is a draft, linked or not.
        let _ = fs::remove_file(&draft);
        role
    }

    fn link(&self, folder: &Path, draft: &Path, terms: &Terms, door: Door) -> Result<Role> {
        let mut number = 0;
        loop {
            let place = folder.join(format!("rendezvous-{number}"));
            match fs::hard_link(draft, &place) {
                Ok(()) => return Ok(Role::First { door: Arc::new(door), local: None }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot link {}", place.display())),
            }
            let text = fs::read_to_string(&place).unwrap_or_default();
            // Where nobody answers the run is over that met there.
            if let Ok(at) = text.trim().parse::<SocketAddr>()
                && is_there(at, terms)
            {
                return Ok(self.call(at));
            }
            number += 1;
        }
    }
}

/// Whether a host of some job listens there, whatever its secret.
fn is_there(at: SocketAddr, terms: &Terms) -> bool {
    let asked = call(at, terms, b"", Deadline::after(Duration::from_secs(2)));
    matches!(asked, Ok(_) | Err(CommError::Refused { .. }))
}

fn open(address: SocketAddr, terms: &Terms) -> Result<Door> {
    Ok(Door::open(address, terms, |line: String| say(&line))?)
}

/// The address from which this host reaches others.
fn own_address() -> Option<IpAddr> {
    // Nothing is sent: the system only chooses a way.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Runs one job as a host that is not the first: whether other runs follow.
pub fn take_part(job: &mut Job, meeting: &Meeting, folder: &Path, interrupted: &AtomicBool) -> Result<bool> {
    let prepared: Prepared = job.prepare(&mut Engines::default())?;
    let run = folder.join("run");
    fs::create_dir_all(&run).with_context(|| format!("cannot create {}", run.display()))?;
    job.folder.clone_from(&run);
    if let Some(saving) = &mut job.milestones.saving {
        saving.folder = folder.join(checkpoint::FOLDER);
    }
    let surroundings = Surroundings {
        program: outcome::own_program()?,
        interrupted,
        load: None,
        meeting: Some(meeting.clone()),
        progress: &mut |glance| glance.said.iter().for_each(|line| say(line)),
    };
    let (result, stored) = follow(job, &prepared, surroundings);
    if stored.is_some() || !run.join(paceline_record::log::LAUNCHER_FILE).exists() {
        // Its logs are with the first host, or there are none.
        let _ = fs::remove_dir_all(&run);
    } else {
        say(&format!("the first host has not taken this host's logs; they stay in {}", run.display()));
    }
    // Where nothing is left in it.
    let _ = fs::remove_dir(folder);
    result?;
    Ok(stored == Some(false))
}

/// Takes part in a training as a host that is not the first.
pub fn join_training(job: &mut Job, meeting: &Meeting, out: Option<&Path>) -> Result<()> {
    let interrupted = outcome::watch_interrupts()?;
    let folder = new_folder(out)?;
    say(&format!("{}: joins the training that the first host leads", meeting.name));
    let result = take_part(job, meeting, &folder, &interrupted);
    let Err(error) = result else {
        say("done; the report and the weights are with the first host");
        return Ok(());
    };
    match error.downcast_ref::<TrainError>() {
        Some(reason) if !reason.is_usage() => say(&format!("error: {}", describe(reason))),
        _ => return Err(error),
    }
    if let Some(newest) =
        paceline_train::checkpoint::Checkpoint::newest(&folder.join(checkpoint::FOLDER)).ok().flatten()
    {
        let command = ["train", "--resume", &newest.to_string_lossy()].map(Into::into);
        say(&format!(
            "this host has saved {}; to resume from it: {}",
            newest.display(),
            words::command(&command)
        ));
    }
    Err(Unfinished.into())
}

/// Where a host keeps its logs until the first has them, and a checkpoint if it comes to that: a folder that nothing else is in.
fn new_folder(out: Option<&Path>) -> Result<PathBuf> {
    let folder = out.map_or_else(|| PathBuf::from(format!("host-{}", std::process::id())), Path::to_owned);
    let is_empty = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if folder.exists() && !is_empty(&folder) {
        let reason = "this host keeps its logs there until the first has them; name a new folder with --out";
        return Err(Usage::new(format!("{} is not empty: {reason}", folder.display())).into());
    }
    Ok(folder)
}

/// Takes part in a study as a host that is not the first, run after run, as the first asks for them.
pub fn join_study(jobs: impl Iterator<Item = Job>, meeting: &Meeting, out: Option<&Path>) -> Result<()> {
    let interrupted = outcome::watch_interrupts()?;
    let folder = new_folder(out)?;
    say(&format!("{}: joins the study that the first host leads", meeting.name));
    let mut refused = None;
    for mut job in jobs {
        match take_part(&mut job, meeting, &folder, &interrupted) {
            Ok(true) => refused = None,
            Ok(false) => {
                refused = None;
                break;
            }
            // It may have been done before.
            Err(error) if matches!(error.downcast_ref(), Some(TrainError::AnotherJob { .. })) => {
                refused = Some(error)
            }
            Err(error) => return Err(error),
        }
    }
    match refused {
        Some(error) => Err(error),
        None => {
            say("done; the report is with the first host");
            Ok(())
        }
    }
}

/// The life of a host that another one of this machine has started.
pub fn run_local(job: Job, meeting: &Meeting) -> Result<()> {
    // Ctrl-C is the first host's to answer.
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default())
        .context("cannot watch for Ctrl-C")?;
    let interrupted = AtomicBool::new(false);
    let prepared = job.prepare(&mut Engines::default())?;
    let surroundings = Surroundings {
        program: outcome::own_program()?,
        interrupted: &interrupted,
        load: None,
        meeting: Some(meeting.clone()),
        progress: &mut |_| {},
    };
    let (result, _) = follow(&job, &prepared, surroundings);
    Ok(result?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_to_meet_are_read_and_others_refused() {
        assert_eq!("tcp://first:29400".parse(), Ok(Rendezvous::Tcp("first:29400".into())));
        assert_eq!("tcp://[::1]:1".parse(), Ok(Rendezvous::Tcp("[::1]:1".into())));
        assert_eq!("file:///shared/here".parse(), Ok(Rendezvous::File("/shared/here".into())));
        for text in [
            "first:29400",
            "tcp://first",
            "tcp://:29400",
            "tcp://first:99999",
            "file://here",
            "http://first:80",
            "",
        ] {
            let message = text.parse::<Rendezvous>().expect_err(text);
            assert!(
                message.contains("write tcp://HOST:PORT") || message.contains("there are tcp://"),
                "{message}"
            );
        }
    }

    #[test]
    fn whoever_links_first_is_first_and_a_dead_one_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let terms = Terms::new(Secret::random().expect("random numbers"), Secrecy::Plain);
        let settings =
            HostSettings { interface: Some(IpAddr::from([127, 0, 0, 1])), ..HostSettings::default() };
        let first = settings.meet_in(folder.path(), &terms).expect("it is first");
        let Role::First { door, .. } = &first else { panic!("nobody was there before") };
        let Role::Other(call) = settings.meet_in(folder.path(), &terms).expect("it finds the first") else {
            panic!("there is a first");
        };
        assert_eq!(call.at, door.address());
        drop(first);
        assert!(matches!(settings.meet_in(folder.path(), &terms), Ok(Role::First { .. })));
    }
}
