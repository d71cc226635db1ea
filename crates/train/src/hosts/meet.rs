//! How launchers find each other, and see that they have the same job.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use paceline_comm::etcd::HostNote;
use paceline_comm::mpi::Mpi;
use paceline_comm::tasks::Bell;
use paceline_comm::tasks::authority::{Authority, HostPolicy, Roster};
use paceline_comm::tasks::registry::Petition;
use paceline_comm::wire::{Address, Door, Letters, call};
use paceline_comm::{CommError, Deadline};
use paceline_engine::Numerics;
use paceline_record::{EvalRecord, Host, HostChange, Nanos};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde_json::Value;

use super::entrance::Entrance;
use super::first::{First, Register};
use super::heir::Heir;
use super::letter::{Greeting, Hello, Letter, Welcome, send};
use super::link::Lobby;
use super::local::{Local, LocalHost, start_local};
use super::other::Other;
use super::party::{Keeper, Party, Side};
use super::silence::Silence;
use super::{Call, Hosts, Meeting, Role};
use crate::numerics::{self, is_available};
use crate::{Job, TrainError, clock};

/// How long a host waits before it calls again.
const PAUSE: Duration = Duration::from_millis(100);

/// How long one call may take, and an answer to it; and how long it takes at least, however little time is left.
const TRY: Duration = Duration::from_secs(5);
const SHORTEST_TRY: Duration = Duration::from_millis(500);

/// How long the first roster waits for more hosts than it needs.
const GRACE: Nanos = Nanos(3_000_000_000);

/// How long whoever takes the place of a lost first host waits for the others to notice, beside the lease.
const RETURNS: Nanos = Nanos(3_000_000_000);

/// The first host has the same job, and takes this one in.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// This host's number.
    pub host: Host,
    /// Where the first host is.
    pub first: Address,
}

/// What a host that is not the first does then, before it takes part. An error is told to the first host, too.
pub type Admitted<'a> = &'a mut dyn FnMut(&Admission) -> Result<(), TrainError>;

/// What a launcher has when it has met the others.
pub(crate) struct Introduction {
    pub party: Party,
    /// The job as this host runs it.
    pub job: Job,
    /// Tests so far.
    pub history: Vec<EvalRecord>,
    /// Whether the state comes from another host.
    pub lacks_state: bool,
    /// Other hosts of this machine, which end with this.
    pub local: Vec<LocalHost>,
}

/// Begins to listen, as the first host, or calls it.
pub(crate) fn meet(
    job: &Job,
    meeting: &Meeting,
    launcher: &Bell,
    admitted: Admitted<'_>,
) -> Result<Introduction, TrainError> {
    match &meeting.role {
        Role::First { doors, local } => {
            let local = local.as_ref().map(|local| (local, doors[0].address()));
            meet_first(job, meeting, Entrance::Doors(doors.clone()), local, launcher)
        }
        Role::Rank(mpi) if mpi.rank() == 0 => {
            let entrance = Entrance::Ranks(mpi.clone(), meeting.terms.cable.clone());
            meet_first(job, meeting, entrance, None, launcher)
        }
        Role::Other(asked) => meet_other(job, meeting, &Way::Call(asked), launcher, admitted),
        Role::Rank(mpi) => meet_other(job, meeting, &Way::Rank(mpi), launcher, admitted),
    }
}

/// How the first host is reached.
pub(super) enum Way<'a> {
    Call(&'a Call),
    Rank(&'a Mpi),
}

/// Others come later.
fn meet_first(
    job: &Job,
    meeting: &Meeting,
    entrance: Entrance,
    local: Option<(&Local, SocketAddr)>,
    launcher: &Bell,
) -> Result<Introduction, TrainError> {
    let policy = policy(job, meeting);
    job.faults.plant_clock(Host(0));
    let now = clock::now();
    let mut authority = Authority::new(policy, Host(0), now);
    authority.joins(Host(0), &meeting.name, job.workers, now);
    let told = told(job);
    let run = now.0 ^ (u64::from(std::process::id()) << 40);
    let register = meeting.registrar.as_ref().map(|registrar| {
        registrar.enter(Host(0), HostNote { run, name: meeting.name.clone() });
        // What the run before has left there is replaced.
        let found = registrar.look_now(Instant::now() + TRY).ok().and_then(|look| look.entry);
        Register::new(registrar.clone(), Petition::new(run, run, found.as_ref()))
    });
    let first = First {
        host: Host(0),
        name: meeting.name.clone(),
        entrance,
        early: VecDeque::new(),
        authority,
        job: told,
        fingerprint: job.checksum()?,
        history: Vec::new(),
        own: Some(HostChange::Joined { name: meeting.name.clone(), workers: job.workers }),
        folder: job.folder.clone(),
        is_last: meeting.is_last,
        callers: Vec::new(),
        next: 1,
        free: BTreeSet::new(),
        told: 0,
        register,
        came: BTreeMap::new(),
        missing: BTreeSet::new(),
    };
    let keeper = Keeper {
        host: Host(0),
        run,
        terms: meeting.terms.clone(),
        lease: meeting.lease,
        mpi: meeting.mpi().cloned(),
        hands_over: hands_over(job, meeting),
        registrar: meeting.registrar.clone(),
        lobby: Arc::new(Lobby::default()),
        side: Side::First(Box::new(first)),
    };
    let party = Party::start(keeper, launcher)?;
    let mut started = Vec::new();
    if let Some((Local { program, count }, at)) = local {
        for number in 1..=*count {
            started.push(start_local(job, meeting, at, program, number)?);
        }
    }
    Ok(Introduction { party, job: job.clone(), history: Vec::new(), lacks_state: false, local: started })
}

/// What the authority decides by.
fn policy(job: &Job, meeting: &Meeting) -> HostPolicy {
    let hosts = job.hosts.expect("invariant: a job of several hosts");
    HostPolicy {
        min: hosts.min,
        max: hosts.max,
        elastic: job.elastic.is_some(),
        no_guests: job.exchanges_on_device(),
        patience: meeting.patience,
        grace: GRACE,
        returns: RETURNS + meeting.lease,
        doubt: Nanos(meeting.lease.0 / 4),
        shards: job.shards(),
        asks: meeting.registrar.is_some(),
    }
}

/// What other hosts are told of the job.
fn told(job: &Job) -> Job {
    let mut told = job.without_places();
    told.milestones.resume.clone_from(&job.milestones.resume);
    told.elastic.clone_from(&job.elastic);
    told
}

/// Whether another host takes the first one's place when that is lost. A study goes with the host that runs it.
fn hands_over(job: &Job, meeting: &Meeting) -> bool {
    meeting.registrar.is_some() && job.elastic.is_some() && job.milestones.saving.is_some()
}

/// Calls the first host, and becomes one of the others.
fn meet_other(
    job: &Job,
    meeting: &Meeting,
    way: &Way<'_>,
    launcher: &Bell,
    admitted: Admitted<'_>,
) -> Result<Introduction, TrainError> {
    let greeting = Greeting::Control(Hello::new(meeting));
    let (mut letters, local) = reach(way, meeting, &greeting)?;
    let first = letters.other();
    let welcome = match answer(&mut letters, meeting.patience)? {
        Letter::Welcome(welcome) => *welcome,
        Letter::SentAway { why } => return Err(TrainError::SentAway { first, why }),
        other => return Err(TrainError::SentAway { first, why: format!("it said {other:?}") }),
    };
    let processor = Processor { best: numerics::here(&job.engine, job.precision), has: is_available };
    let agreed = agree(job, &welcome, &meeting.name, &processor);
    let agreed = agreed.map_err(|why| TrainError::AnotherJob { first, why });
    let agreed = agreed.and_then(|job| {
        let door = match way {
            Way::Call(asked) => Some(open_door(asked, local, meeting)?),
            Way::Rank(_) => None,
        };
        admitted(&Admission { host: welcome.host, first })?;
        Ok((job, door))
    });
    let (job, door) = match agreed {
        Ok(agreed) => agreed,
        Err(error) => {
            let why = match &error {
                TrainError::AnotherJob { why, .. } => why.clone(),
                error => crate::describe(error),
            };
            // Nothing is lost with a first host that has gone.
            let _ = send(&mut letters, &Letter::Differs { why });
            let _ = letters.progress();
            return Err(error);
        }
    };
    // Before the first question of what time it is.
    job.faults.plant_clock(welcome.host);
    let interface = match way {
        Way::Call(asked) => asked.interface,
        Way::Rank(_) => None,
    };
    let heir = meeting.registrar.as_ref().map(|registrar| {
        registrar.enter(welcome.host, HostNote { run: welcome.run, name: meeting.name.clone() });
        Box::new(Heir {
            registrar: registrar.clone(),
            policy: policy(&job, meeting),
            job: welcome.job.clone(),
            fingerprint: welcome.fingerprint.clone(),
            history: welcome.history.clone(),
            folder: job.folder.clone(),
            hello: Hello::new(meeting),
            terms: meeting.terms.clone(),
            run: welcome.run,
            host: welcome.host,
            workers: job.workers,
            interface,
            lease: meeting.lease,
            first: welcome.first.clone(),
            roster: Roster::default(),
            seen: Vec::new(),
            lost: Vec::new(),
            seeks: None,
        })
    });
    let keeper = Keeper {
        host: welcome.host,
        run: welcome.run,
        terms: meeting.terms.clone(),
        lease: meeting.lease,
        mpi: meeting.mpi().cloned(),
        hands_over: hands_over(&job, meeting),
        registrar: meeting.registrar.clone(),
        lobby: Arc::new(Lobby::default()),
        side: Side::Other(Box::new(Other {
            door,
            letters,
            silence: Silence::default(),
            is_cut: false,
            first,
            workers: job.workers,
            interface,
            first_host: welcome.first.0,
            heir: heir.filter(|_| hands_over(&job, meeting)),
            is_told_to_end: false,
            early: VecDeque::new(),
        })),
    };
    let party = Party::start(keeper, launcher)?;
    let (history, lacks_state) = (welcome.history, welcome.has_begun);
    Ok(Introduction { party, job, history, lacks_state, local: Vec::new() })
}

/// Calls the first host until it answers: the connection, and this host's address there.
pub(super) fn reach(
    way: &Way<'_>,
    meeting: &Meeting,
    greeting: &Greeting,
) -> Result<(Letters, Option<SocketAddr>), TrainError> {
    let greeting = serde_json::to_vec(greeting).expect("invariant: plain data");
    let asked = match way {
        Way::Call(asked) => asked,
        Way::Rank(mpi) => return Ok((mpi.call(0, &greeting, &meeting.terms.cable)?, None)),
    };
    let until = Instant::now() + Duration::from_nanos(meeting.patience.0);
    let mut at = asked.at.iter().cycle();
    loop {
        let now_first = meeting.registrar.as_ref().and_then(|registrar| registrar.looked()?.1.first);
        let at = *at.next().expect("invariant: hosts meet somewhere");
        let at = now_first.map_or(at, |first| first.at);
        let left = until.saturating_duration_since(Instant::now()).clamp(SHORTEST_TRY, TRY);
        let error = match call(at, &meeting.terms, &greeting, Deadline::after(left)) {
            Ok(stream) => {
                let local = rustix::net::getsockname(stream.as_fd())
                    .ok()
                    .and_then(|name| SocketAddr::try_from(name).ok());
                return Ok((Letters::new(stream), local));
            }
            // Who has another secret, or speaks otherwise, will not change its mind.
            Err(error @ CommError::Refused { .. }) => return Err(error.into()),
            Err(error) => error,
        };
        if Instant::now() >= until {
            return Err(TrainError::HostsEnded(format!(
                "the first host has not answered within {:.0} s: {error}; start the same command there, or wait longer with \
                 --host-wait",
                meeting.patience.seconds()
            )));
        }
        sleep(PAUSE);
    }
}

/// Opens the door at which other hosts reach this one, which reached the first from `local`.
pub(super) fn open_door(
    asked: &Call,
    local: Option<SocketAddr>,
    meeting: &Meeting,
) -> Result<Door, TrainError> {
    let ip = asked.interface.or(local.map(|address| address.ip())).unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let name = meeting.name.clone();
    let tell = move |line: String| eprintln!("{name}: {line}");
    let at = SocketAddr::new(ip, asked.port);
    Door::open(at, &meeting.terms, tell).map_err(|error| match error {
        CommError::NoDoor { source, .. } if asked.interface.is_some() || asked.port > 0 => {
            TrainError::NoDoor { at, source }
        }
        error => error.into(),
    })
}

/// Waits for the first letter. A first host that has let this one in may still have to prepare its run.
fn answer(letters: &mut Letters, patience: Nanos) -> Result<Letter, TrainError> {
    let patience = Duration::from_nanos(patience.0).max(TRY);
    let until = Instant::now() + patience;
    loop {
        if let Some(bytes) = letters.first()? {
            return Letter::read(&bytes).map_err(|why| TrainError::SentAway { first: letters.other(), why });
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = format!("it has not answered within {} s", patience.as_secs());
            return Err(TrainError::SentAway { first: letters.other(), why });
        }
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(letters, PollFlags::IN)], Some(&time));
    }
}

/// What instruction sets a machine has.
struct Processor {
    best: Option<Numerics>,
    has: fn(&Numerics) -> bool,
}

/// The job as this host runs it, if it is the same as the first host's; else what differs.
fn agree(own: &Job, welcome: &Welcome, name: &str, processor: &Processor) -> Result<Job, String> {
    let first = &welcome.job;
    // What may differ from host to host follows from the first host's numbers.
    let alike = Job {
        workers: first.workers,
        elastic: first.elastic.clone(),
        shards: own.shards.or(first.shards),
        hosts: own
            .hosts
            .map(|hosts| Hosts { workers: first.hosts.map_or(0, |hosts| hosts.workers), ..hosts }),
        threads: first.threads,
        threads_asked: first.threads_asked,
        pin: first.pin,
        numerics: first.numerics.clone(),
        milestones: first.milestones.clone(),
        ..own.without_places()
    };
    let mut alike = alike;
    alike.settle(1).map_err(|error| error.to_string())?;
    (alike.threads, alike.data) = (first.threads, first.data.clone());
    let differs = |what: &str, here: &dyn Display, there: &dyn Display| {
        format!("{what} is {here} on {name}, and {there} on the first host")
    };
    // Those that others follow from come first.
    let settings = |job: &Job| {
        let hosts = job.hosts.map_or_else(|| "1".into(), |hosts| hosts.count().to_string());
        let [shards, steps] = [u64::from(job.shards()), job.steps].map(|number| number.to_string());
        let lr = job.learning.schedule.base.to_string();
        let leading =
            [("--hosts", hosts), ("--shards", shards)].map(|(what, value)| (what.to_owned(), value));
        let name = |option| if option == "model" { "the model".into() } else { format!("--{option}") };
        let fixed = job.fixed_settings().map(|(option, value)| (name(option), value));
        let others = [("--lr".to_owned(), lr), ("the number of steps".to_owned(), steps)];
        leading.into_iter().chain(fixed).chain(others)
    };
    let mut both = settings(first).zip(settings(&alike));
    if let Some(((what, there), (_, here))) = both.find(|((_, there), (_, here))| there != here) {
        return Err(differs(&what, &here, &there));
    }
    if first.exchanges_on_device() && own.workers != first.workers {
        return Err(differs("--workers", &own.workers, &first.workers));
    }
    let kind = |job: &Job| if job.milestones.saving.is_some() { "train" } else { "bench" };
    if kind(first) != kind(own) {
        return Err(differs("the command", &kind(own), &kind(first)));
    }
    let values = |job: &Job| leaves(&serde_json::to_value(job).expect("invariant: a job is plain data"));
    let (there, here) = (values(first), values(&alike));
    let nothing = Value::Null;
    let fields = there.keys().chain(here.keys());
    let of = |values: &BTreeMap<String, Value>, name: &str| values.get(name).unwrap_or(&nothing).to_string();
    if let Some(field) = fields.into_iter().find(|&field| of(&there, field) != of(&here, field)) {
        return Err(differs(field, &of(&here, field), &of(&there, field)));
    }
    if own.milestones.eval != first.milestones.eval {
        return Err(format!(
            "tests are due at other times on {name} than on the first host; give the same --eval-every"
        ));
    }
    let fingerprint = own.checksum().map_err(|error| error.to_string())?;
    if fingerprint != welcome.fingerprint {
        return Err(format!("{} is other data on {name} than on the first host (by its checksum)", own.data));
    }
    let set = |job: &Job| job.numerics.as_ref().and_then(|numerics| numerics.instruction_set.clone());
    if let (Some(here), Some(there)) = (set(own), set(first))
        && (own.instructions_asked || own.numerics != processor.best)
        && here != there
    {
        return Err(differs("--instructions", &here, &there));
    }
    if let Some(numerics) = first.numerics.as_ref().filter(|numerics| !(processor.has)(numerics)) {
        let set = numerics.instruction_set.clone().unwrap_or_default();
        return Err(format!(
            "the processor of {name} has no {set}, which the job uses; give --instructions on all hosts with what all of them have"
        ));
    }
    Ok(Job {
        workers: own.workers,
        elastic: own.elastic.clone(),
        faults: own.faults.clone(),
        threads: own.threads,
        threads_asked: own.threads_asked,
        pin: own.pin,
        data: own.data.clone(),
        folder: own.folder.clone(),
        milestones: own.milestones.clone(),
        ..first.clone()
    })
}

/// All values of a job that are not made of others, by the names that lead to them.
fn leaves(value: &Value) -> BTreeMap<String, Value> {
    fn visit(value: &Value, name: String, found: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(fields) => {
                for (field, value) in fields {
                    let dot = if name.is_empty() { "" } else { "." };
                    visit(value, format!("{name}{dot}{field}"), found);
                }
            }
            other => {
                found.insert(name, other.clone());
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(value, String::new(), &mut found);
    found
}

#[cfg(test)]
mod tests;
