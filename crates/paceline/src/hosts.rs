//! Several hosts: what can be asked for, and how the launchers find each other.

mod launched;
mod place;
mod rendezvous;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use paceline_comm::wire::{Door, Secrecy, Secret, Terms};
use paceline_lab::words;
use paceline_record::Nanos;
use paceline_train::hosts::{
    self, Admission, Call, HostCount, Hosts, LEASE, Local, MOST_HOSTS, Meeting, Role,
};
use paceline_train::launcher::{Surroundings, follow};
use paceline_train::{Engines, Job, Prepared, TrainError, checkpoint, describe};
use serde::Deserialize;

use self::launched::{Launched, Starter};
pub use self::place::Place;
use self::place::{Choice, Way, has_own_cores, join_mpi};
use self::rendezvous::{Note, Rendezvous, Seeker};
use crate::machine;
use crate::outcome::{self, Unfinished, Usage, say};
use crate::values::{Fill, Int, Seconds, fill_all};

/// The environment variable that may hold the secret.
const SECRET: &str = "PACELINE_SECRET";

/// The shortest time after which silence means something.
const LEAST_LEASE: f64 = 0.2;

/// How long hosts wait for each other, unless it is said.
const PATIENCE: Nanos = Nanos(60_000_000_000);

/// What a command to resume does without options for hosts.
pub const ALONE: &str = "on this host alone, or with the --hosts options again on several";

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
    /// Where hosts meet: tcp://HOST:PORT, an address of the first host, or file:///DIR, a folder that all hosts share
    #[arg(long, value_name = "ADDRESS")]
    #[serde(deserialize_with = "crate::values::one")]
    pub rendezvous: Option<Rendezvous>,
    /// What bytes go through between hosts: tcp or mpi [default: mpi where mpirun or srun starts them, else tcp]
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
        let way = match (way, launched.as_ref()) {
            (None, _) => return Ok(Place { way: Way::Alone, launched: None }),
            (Some(Choice::Meet), _) => Way::Meet,
            (Some(Choice::Slurm(step)), Some(launched)) => {
                if let Some((place, places)) = launched.here.filter(|_| !has_own_cores()) {
                    hosts::keep_to_share(place, places)?;
                }
                Way::Slurm(step)
            }
            (Some(Choice::Mpi(family)), Some(launched)) => {
                Way::Mpi(join_mpi(family, launched, self.patience())?)
            }
            (Some(Choice::Slurm(_) | Choice::Mpi(_)), None) => {
                unreachable!("invariant: somebody has started it")
            }
        };
        Ok(Place { way, launched })
    }

    /// The hosts that are asked for and how they find each other, if the options go together; `None` for one host.
    fn choose(&self, launched: Option<&Launched>) -> Result<Option<(HostCount, Choice)>, Usage> {
        let asked =
            self.hosts.or(launched.map(|launched| HostCount { min: launched.world, max: launched.world }));
        let Some(count) = asked else {
            let given = [
                ("--rendezvous", self.rendezvous.is_some()),
                ("--local", self.local),
                ("--wire", self.wire.is_some()),
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
                return Err(Usage::new(
                    "--wire mpi is for processes that mpirun or srun starts, as `mpirun -np HOSTS --map-by node --bind-to none paceline \
                     ...`",
                ));
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
        let (role, note) = match place.way {
            Way::Alone => return Ok(None),
            Way::Mpi(mpi) => (Role::Rank(mpi), None),
            Way::Meet if self.local => {
                let door =
                    Door::open(SocketAddr::from(([127, 0, 0, 1], 0)), &meeting.terms, |line: String| {
                        say(&line)
                    })?;
                let local = Local { program: outcome::own_program()?, count: max - 1 };
                (Role::First { doors: vec![Arc::new(door)], local: Some(local) }, None)
            }
            Way::Meet => {
                let place = self.rendezvous.as_ref().expect("invariant: hosts meet somewhere");
                let terms = Terms { secret: self.secret()?, ..meeting.terms.clone() };
                let met = Seeker { terms: &terms, ..seeker }.meet(place)?;
                meeting.terms = terms;
                met
            }
            Way::Slurm(step) => {
                let rank = place.launched.map_or(0, |launched| launched.rank);
                let terms = Terms { secret: self.secret()?, ..meeting.terms.clone() };
                let role = Seeker { terms: &terms, ..seeker }.meet_on(&step, rank)?;
                meeting.terms = terms;
                (role, None)
            }
        };
        meeting.role = role;
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

/// Runs one job as a host that is not the first: whether other runs follow.
pub fn take_part(job: &mut Job, meeting: &Meeting, folder: &Path, interrupted: &AtomicBool) -> Result<bool> {
    let prepared: Prepared = job.prepare(&mut Engines::default())?;
    let run = folder.join("run");
    let what =
        format!("{} of {}", if job.milestones.saving.is_some() { "training" } else { "run" }, job.model);
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
    let mut is_begun = false;
    let mut admitted = |admission: &Admission| {
        // The first host has its own by now, which may be the same.
        check_new(folder)?;
        let refused = |source| TrainError::System { what: format!("create {}", run.display()), source };
        fs::create_dir_all(&run).map_err(refused)?;
        is_begun = true;
        let Admission { host, first } = admission;
        say(&format!("{}: host {host} in the {what} that {first} leads", meeting.name));
        Ok(())
    };
    let (result, stored) = follow(job, &prepared, surroundings, &mut admitted);
    if is_begun && (stored.is_some() || !run.join(paceline_record::log::LAUNCHER_FILE).exists()) {
        // Its logs are with the first host, or there are none.
        let _ = fs::remove_dir_all(&run);
        // Where nothing is left in it.
        let _ = fs::remove_dir(folder);
    } else if is_begun {
        say(&format!("the first host has not taken this host's logs; they stay in {}", run.display()));
    }
    result?;
    Ok(stored == Some(false))
}

/// Takes part in a training as a host that is not the first.
pub fn join_training(job: &mut Job, meeting: &Meeting, out: Option<&Path>) -> Result<()> {
    let interrupted = outcome::watch_interrupts()?;
    let folder = own_folder(out);
    check_new(&folder)?;
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
            "this host has saved {}; to resume from it {ALONE}: {}",
            newest.display(),
            words::command(&command)
        ));
    }
    Err(Unfinished.into())
}

/// Where a host keeps its logs until the first has them, and a checkpoint if it comes to that. Where mpirun or srun starts all of them
/// with the same command, what it names is the first host's.
fn own_folder(out: Option<&Path>) -> PathBuf {
    match (out, Launched::here()) {
        (None, _) => PathBuf::from(format!("host-{}", std::process::id())),
        (Some(out), None) => out.to_owned(),
        (Some(out), Some(launched)) => {
            let named = |number: u32| {
                let mut name = out.as_os_str().to_owned();
                name.push(format!("-host-{}", launched.rank));
                name.push(if number == 1 { String::new() } else { format!(".{number}") });
                PathBuf::from(name)
            };
            (1..).map(named).find(|path| !path.exists()).expect("invariant: one of so many is free")
        }
    }
}

/// Refuses a folder that something else is in.
fn check_new(folder: &Path) -> Result<(), TrainError> {
    let is_empty = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    match folder.exists() && !is_empty(folder) {
        true => Err(TrainError::Taken(folder.to_owned())),
        false => Ok(()),
    }
}

/// Takes part in a study as a host that is not the first, run after run, as the first asks for them.
pub fn join_study(jobs: impl Iterator<Item = Job>, meeting: &Meeting, out: Option<&Path>) -> Result<()> {
    let interrupted = outcome::watch_interrupts()?;
    let folder = own_folder(out);
    check_new(&folder)?;
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
    // Ctrl-C, and an end that the whole group is asked for, are the first host's to answer.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::default()).context("cannot watch for signals")?;
    }
    let interrupted = AtomicBool::new(false);
    let prepared = job.prepare(&mut Engines::default())?;
    let surroundings = Surroundings {
        program: outcome::own_program()?,
        interrupted: &interrupted,
        load: None,
        meeting: Some(meeting.clone()),
        progress: &mut |_| {},
    };
    let (result, _) = follow(&job, &prepared, surroundings, &mut |_| Ok(()));
    Ok(result?)
}
