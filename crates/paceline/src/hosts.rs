//! Several hosts: what can be asked for, and how the launchers find each other.

mod joining;
mod launched;
mod place;
mod rendezvous;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use paceline_comm::wire::{Door, Secrecy, Secret, Terms};
use paceline_record::Nanos;
use paceline_train::Job;
use paceline_train::hosts::{self, Call, HostCount, Hosts, LEASE, Local, MOST_HOSTS, Meeting, Role};
use serde::Deserialize;

pub use self::joining::{join_study, join_training, run_local};
use self::launched::{Launched, Starter};
pub use self::place::Place;
use self::place::{Choice, Way, has_own_cores, join_mpi};
pub use self::rendezvous::EtcdPlace;
use self::rendezvous::{Met, Note, Rendezvous, Seeker};
use crate::machine;
use crate::outcome::{self, Usage, say};
use crate::values::{Fill, Int, Seconds, fill_all};

/// The environment variable that may hold the secret.
const SECRET: &str = "PACELINE_SECRET";

/// The shortest time after which silence means something.
const LEAST_LEASE: f64 = 0.2;

/// How long hosts wait for each other, unless it is said.
const PATIENCE: Nanos = Nanos(60_000_000_000);

/// The folder of a host's logs in that of its run.
pub const RUN: &str = "run";

/// What a command to resume does as it is, and how it is used for several hosts.
pub fn alone() -> &'static str {
    match Launched::here() {
        // The same command starts all of them, and each reads the checkpoint.
        Some(Launched { by: Starter::Slurm(_), .. }) => {
            "on this host alone, or with srun again on several that all see its folder"
        }
        Some(_) => "on this host alone, or with mpirun again on several that all see its folder",
        None => "on this host alone, or with the --hosts options again on several",
    }
}

/// What bytes go through between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireKind {
    /// TCP streams of our own.
    Tcp,
    /// The point-to-point messages of an MPI library.
    Mpi,
}

impl FromStr for WireKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "mpi" => Ok(Self::Mpi),
            _ => Err(format!("unknown wire '{text}'; use tcp or mpi")),
        }
    }
}

/// Options of a run on several hosts.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[command(next_help_heading = "Several hosts")]
#[serde(default, rename_all = "kebab-case")]
pub struct HostSettings {
    /// Run on so many hosts, with the same command on each; MIN:MAX with --elastic, where hosts come and go [default: the processes
    /// that mpirun or srun has started, else this host alone]
    #[arg(long, value_name = "N|MIN:MAX")]
    #[serde(deserialize_with = "crate::values::one")]
    pub hosts: Option<HostCount>,
    /// Where hosts meet: tcp://HOST:PORT, an address of the first host; file:///DIR, a folder that all hosts share; or
    /// etcd://HOST:PORT/PREFIX, keys of etcd, with which a training outlives any host
    #[arg(long, value_name = "ADDRESS")]
    #[serde(deserialize_with = "crate::values::one")]
    pub rendezvous: Option<Rendezvous>,
    /// What bytes go through between hosts: tcp or mpi [default: mpi where mpirun, or srun with --mpi=pmix or pmi2, starts a fixed number
    /// of hosts and there is no --rendezvous, else tcp]
    #[arg(long, value_name = "tcp|mpi")]
    #[serde(deserialize_with = "crate::values::one")]
    pub wire: Option<WireKind>,
    /// Start all hosts on this machine, for trying; each has its own launcher and its own memory
    #[arg(long)]
    pub local: bool,
    /// The address of this host at which others reach it [default: that of the rendezvous, or the one that leads there]
    #[arg(long, value_name = "IP")]
    #[serde(deserialize_with = "crate::values::one")]
    pub interface: Option<IpAddr>,
    /// The port at which other hosts reach this one; the first is reached at that of a tcp:// rendezvous [default: any free one]
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

fill_all!(HostSettings {
    hosts,
    rendezvous,
    wire,
    local,
    interface,
    port,
    secret_file,
    encrypt,
    lease,
    host_wait
});

/// What is said where nobody has started this process as a rank.
const NOT_STARTED: &str = "--wire mpi is for processes that mpirun or srun starts, as `mpirun -np HOSTS --map-by node --bind-to none \
                           paceline ...`";

impl HostSettings {
    /// Makes a job one for several hosts.
    pub fn apply(&self, job: &mut Job) -> Result<(), Usage> {
        if let Some(HostCount { min, max }) = self.hosts.filter(|count| count.min < count.max)
            && job.elastic.is_none()
        {
            return Err(Usage::new(format!(
                "--hosts {min}:{max} lets hosts come and go; use it with --elastic, or say one number"
            )));
        }
        job.hosts =
            self.hosts.map(|HostCount { min, max }| Hosts { min, max, workers: 0, local: self.local });
        Ok(())
    }

    /// Finds out whether this process is one of several hosts, how it finds the others, and which cores it has.
    pub fn begin(&mut self) -> Result<Place> {
        let launched = Launched::here();
        let (hosts, way) = self.choose(launched.as_ref())?.unzip();
        self.hosts = hosts;
        let mut sharing = 1;
        let way = match (way, launched.as_ref()) {
            (None, _) => return Ok(Place { way: Way::Alone, launched: None, sharing }),
            (Some(Choice::Meet), _) => Way::Meet,
            (Some(Choice::Slurm(step)), Some(launched)) => {
                if let Some((place, places)) = launched.here.filter(|_| !has_own_cores()) {
                    hosts::keep_to_share(place, places)?;
                    sharing = places;
                }
                Way::Slurm(step)
            }
            (Some(Choice::Mpi(family)), Some(launched)) => {
                let (mpi, places) = join_mpi(family, launched, self.patience())?;
                sharing = places;
                Way::Mpi(mpi)
            }
            (Some(Choice::Slurm(_) | Choice::Mpi(_)), None) => {
                unreachable!("invariant: somebody has started it")
            }
        };
        Ok(Place { way, launched, sharing })
    }

    /// The hosts that are asked for and how they find each other, if the options go together; `None` for one host.
    fn choose(&self, launched: Option<&Launched>) -> Result<Option<(HostCount, Choice)>, Usage> {
        let asked =
            self.hosts.or(launched.map(|launched| HostCount { min: launched.world, max: launched.world }));
        let Some(count) = asked else {
            // One command does for any number of processes.
            let is_single = Launched::is_single();
            let given = [
                ("--rendezvous", self.rendezvous.is_some()),
                ("--local", self.local),
                ("--wire", self.wire.is_some() && !is_single),
                ("--interface", self.interface.is_some()),
                ("--port", self.port.is_some()),
                ("--secret-file", self.secret_file.is_some()),
                ("--encrypt", self.encrypt),
                ("--lease", self.lease.is_some() && !is_single),
                ("--host-wait", self.host_wait.is_some() && !is_single),
            ];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                Some(("--wire", _)) if self.wire == Some(WireKind::Mpi) => Err(Usage::new(NOT_STARTED)),
                Some((option, _)) => {
                    Err(Usage::new(format!("{option} is for several hosts; use it with --hosts N")))
                }
                None => Ok(None),
            };
        };
        if self.lease.is_some_and(|lease| lease.0 < LEAST_LEASE) {
            return Err(Usage::new(format!(
                "--lease is how long a host may be silent, at least {LEAST_LEASE} s: signs of life come eight times as often"
            )));
        }
        let way = match (&self.rendezvous, self.local, launched) {
            (Some(_), true, _) => {
                return Err(Usage::new("--local hosts find each other; leave --rendezvous out"));
            }
            (None, true, None)
                if self.interface.is_some() || self.port.is_some() || self.secret_file.is_some() =>
            {
                return Err(Usage::new(
                    "--local hosts find and trust each other; leave --interface, --port and --secret-file out",
                ));
            }
            (None, true, Some(launched)) => {
                return Err(Usage::new(format!(
                    "{} has started {} processes, each of which is a host; leave --local out",
                    launched.by, launched.world
                )));
            }
            (_, _, _) if self.wire == Some(WireKind::Mpi) && (self.local || self.rendezvous.is_some()) => {
                return Err(Usage::new(
                    "with --wire mpi hosts are the ranks of an MPI job, which find each other; leave --local and --rendezvous out",
                ));
            }
            (Some(_), false, _) | (None, true, None) => Choice::Meet,
            (None, false, None) if self.wire == Some(WireKind::Mpi) => {
                return Err(Usage::new(match Launched::is_single() {
                    true => {
                        "there is one process, which is one host: leave --wire out, or start more with mpirun or srun"
                    }
                    false => NOT_STARTED,
                }));
            }
            (None, false, None) => {
                return Err(Usage::new(
                    "hosts meet somewhere: give --rendezvous tcp://HOST:PORT, an address of the first host, or --local to start all of \
                     them on this machine",
                ));
            }
            (None, false, Some(launched)) => self.choose_started(count, launched)?,
        };
        Ok(Some((count, way)))
    }

    /// How processes that were started together find each other.
    fn choose_started(&self, count: HostCount, launched: &Launched) -> Result<Choice, Usage> {
        let Launched { by, world, .. } = launched;
        let HostCount { min, max } = count;
        if *world > MOST_HOSTS {
            return Err(Usage::new(format!(
                "{by} has started {world} processes, and a job has at most {MOST_HOSTS} hosts; start one process on each host"
            )));
        }
        // Of hosts that come and go, more may come later.
        if max < *world || (min == max && max != *world) {
            return Err(Usage::new(format!(
                "--hosts says {count}, and {by} has started {world} processes, each of which is a host"
            )));
        }
        let step = match by {
            Starter::Slurm(step) => Some(step),
            Starter::OpenMpi | Starter::Hydra => None,
        };
        let is_fixed = min == max;
        match (self.wire, launched.speaks, step) {
            (Some(WireKind::Mpi), _, _) if !is_fixed => Err(Usage::new(
                "the ranks of an MPI job cannot come and go: say one number with --hosts, or use --wire tcp",
            )),
            (Some(WireKind::Mpi), None, _) => Err(Usage::new(
                "srun has told its processes nothing that an MPI library could find the others by; use `srun --mpi=pmix` (Open MPI) or \
                 `srun --mpi=pmi2` (MPICH), or --wire tcp",
            )),
            (None | Some(WireKind::Mpi), Some(family), _) if is_fixed => {
                let given = [
                    ("--interface", self.interface.is_some()),
                    ("--port", self.port.is_some()),
                    ("--secret-file", self.secret_file.is_some()),
                    ("--encrypt", self.encrypt),
                ];
                match given.into_iter().find(|(_, is_given)| *is_given) {
                    Some((option, _)) => Err(Usage::new(format!(
                        "{option} is for hosts that connect over TCP, and these are the ranks of an MPI job; leave it out, or use --wire \
                         tcp"
                    ))),
                    None => Ok(Choice::Mpi(family)),
                }
            }
            (_, _, Some(step)) => Ok(Choice::Slurm(step.clone())),
            (_, _, None) if !is_fixed => Err(Usage::new(format!(
                "{by} ends all processes with the first that is lost, so --hosts {count} cannot be kept; say one number, or start the hosts \
                 by other means and give --rendezvous"
            ))),
            (_, _, None) => Err(Usage::new(format!(
                "{by} does not tell where the first host is: give --rendezvous tcp://HOST:PORT with --wire tcp"
            ))),
        }
    }

    fn patience(&self) -> Nanos {
        nanos(self.host_wait, PATIENCE)
    }

    /// Finds out whether this is the first host. The note is to be kept until the end. `None` where the job is for one host.
    pub fn meet(&self, place: Place) -> Result<Option<(Meeting, Option<Note>)>> {
        let Some(HostCount { max, .. }) = self.hosts else { return Ok(None) };
        let secrecy = if self.encrypt { Secrecy::Encrypted } else { Secrecy::Plain };
        let name = machine::host().unwrap_or_else(|| "this host".into());
        let mut meeting = Meeting {
            role: Role::Other(Call::default()),
            terms: Terms::new(Secret::random()?, secrecy),
            lease: nanos(self.lease, LEASE),
            patience: self.patience(),
            name,
            is_last: true,
            registrar: None,
        };
        if let Some((rank, _)) =
            place.launched.as_ref().and_then(|launched| launched.here).filter(|here| here.1 > 1)
        {
            meeting.name += &format!("-{rank}");
        }
        let seeker = Seeker {
            terms: &meeting.terms,
            interface: self.interface,
            port: self.port.map_or(0, |port| port.0 as u16),
            patience: Duration::from_nanos(meeting.patience.0),
        };
        let found = |role| Met { role, note: None, registrar: None };
        let Met { role, note, registrar } = match place.way {
            Way::Alone => return Ok(None),
            Way::Mpi(mpi) => found(Role::Rank(mpi)),
            Way::Meet if self.local => {
                let door =
                    Door::open(SocketAddr::from(([127, 0, 0, 1], 0)), &meeting.terms, |line: String| {
                        say(&line)
                    })?;
                let local = Local { program: outcome::own_program()?, count: max - 1 };
                found(Role::First { doors: vec![Arc::new(door)], local: Some(local) })
            }
            Way::Meet => {
                let place = self.rendezvous.as_ref().expect("invariant: hosts meet somewhere");
                let terms = Terms { secret: self.secret()?, ..meeting.terms.clone() };
                let met = Seeker { terms: &terms, ..seeker }.meet(place, meeting.lease)?;
                meeting.terms = terms;
                met
            }
            Way::Slurm(step) => {
                let rank = place.launched.map_or(0, |launched| launched.rank);
                let terms = Terms { secret: self.secret()?, ..meeting.terms.clone() };
                let role = Seeker { terms: &terms, ..seeker }.meet_on(&step, rank)?;
                meeting.terms = terms;
                found(role)
            }
        };
        (meeting.role, meeting.registrar) = (role, registrar);
        Ok(Some((meeting, note)))
    }

    fn secret(&self) -> Result<Secret> {
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
}

fn nanos(given: Option<Seconds>, usual: Nanos) -> Nanos {
    given.map_or(usual, |given| Nanos((given.0 * 1e9) as u64))
}
