//! A run on several hosts, read as one run.
//!
//! Each host logs on a clock of its own and numbers its members from 0. Here the logs of all hosts are put on the first host's
//! clock, members get numbers that are theirs alone, and rosters and recoveries are merged, so that the rest knows of one
//! run. A host whose logs are not there, or cannot be put on that clock, is unknown, and says why.

pub(crate) mod clock;
mod merge;
mod porter;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use paceline_record::log::{LauncherLog, WorkerHeader, host_folder};
use paceline_record::{
    ClockReading, Host, HostChange, HostEvent, HostRoster, LauncherEvent, LogError, Member, Nanos, Outcome,
    Phase, Step, Who,
};

use self::clock::Clock;
pub(crate) use self::merge::set_event;
pub use self::porter::Porter;
use crate::run::{Crew, Waited, add_waits};
use crate::{LabError, Run, membership};

/// The hosts of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hosts {
    /// In order of their numbers.
    pub all: Vec<HostLog>,
    /// What happened to them, in order.
    pub events: Vec<HostEvent>,
    /// To whom shards were dealt, in order.
    pub rosters: Vec<HostRoster>,
    /// Numbers of workers that were asked for on one of them, and when.
    pub scaled: Vec<(Host, Nanos, u32)>,
    /// Folders of hosts that the first host's log does not tell of.
    pub strangers: Vec<String>,
}

/// A host of a run. Moments are on the first host's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostLog {
    /// Its number.
    pub host: Host,
    /// Its name in the network.
    pub name: Option<String>,
    /// Workers that it was asked to have.
    pub workers: Option<u32>,
    /// Shards of each step, in the last roster that it is in.
    pub shards: Option<u32>,
    /// Whether it is in the first roster.
    pub from_start: bool,
    /// How much its moments may be wrong.
    pub within: Option<Nanos>,
    /// Its members: their numbers in the run, and in its own logs.
    pub members: Vec<(Member, Member)>,
    /// What its porter did; `None` where no log tells.
    pub porter: Option<Porter>,
    /// Why its porter's log cannot be read.
    pub porter_unknown: Option<String>,
    /// How long the others waited because its gradients came later than their own.
    pub waited_for: Nanos,
    /// Why its members are unknown; `None` if they are known.
    pub unknown: Option<String>,
}

impl Hosts {
    /// The host that a member runs on, and its number there.
    pub fn place(&self, member: Member) -> Option<(Host, Member)> {
        let of = |host: &HostLog| {
            let found = host.members.iter().find(|(number, _)| *number == member);
            found.map(|&(_, own)| (host.host, own))
        };
        self.all.iter().find_map(of)
    }

    /// Whether a host that left at this moment did so before the run was done.
    pub(crate) fn left_early(run: &Run, at: Nanos) -> bool {
        let is_done = run.launcher.over.as_ref().is_some_and(|(outcome, _)| *outcome == Outcome::Done);
        !is_done || run.training().is_none_or(|training| at < training.end)
    }

    /// Whether the members of all hosts are known.
    pub fn are_known(&self) -> bool {
        self.all.iter().all(|host| host.unknown.is_none())
    }
}

/// A member in words, by its number in the logs of its host.
pub(crate) fn name(host: Host, own: Member) -> String {
    format!("member {own} of host {host}")
}

/// What the first host's launcher tells of hosts.
#[derive(Default)]
pub(crate) struct Told {
    /// The host that tells, with whose clock the others' are compared: the one that was first in the end.
    first: Host,
    events: Vec<HostEvent>,
    rosters: Vec<HostRoster>,
    readings: BTreeMap<Host, Vec<ClockReading>>,
    hosts: BTreeMap<Host, HostLog>,
}

impl Told {
    /// `None` for a run on one host.
    pub(crate) fn by(launcher: &LauncherLog) -> Option<Self> {
        let first = launcher.header.host.unwrap_or_default();
        let mut told = Self { first, ..Self::default() };
        for event in &launcher.membership {
            match event {
                LauncherEvent::Host(event) => {
                    let host = told.hosts.entry(event.host).or_insert_with(|| HostLog::new(event.host));
                    if let HostChange::Joined { name, workers } = &event.change {
                        (host.name, host.workers) = (Some(name.clone()), Some(*workers));
                    }
                    told.events.push(event.clone());
                }
                LauncherEvent::Hosts(roster) => {
                    for place in &roster.hosts {
                        let host = told.hosts.entry(place.host).or_insert_with(|| HostLog::new(place.host));
                        host.shards = Some(place.shards);
                        host.from_start |= told.rosters.is_empty();
                    }
                    told.rosters.push(roster.clone());
                }
                LauncherEvent::Clock(reading) => {
                    told.readings.entry(reading.host).or_default().push(*reading);
                }
                _ => {}
            }
        }
        if launcher.header.host.is_none() && told.hosts.is_empty() {
            return None;
        }
        told.hosts.entry(first).or_insert_with(|| HostLog::new(first));
        Some(told)
    }

    /// Workers on all hosts that the run began with; `None` where the log does not tell.
    pub(crate) fn workers(&self) -> Option<u32> {
        let first = self.rosters.first()?;
        first.hosts.iter().map(|place| self.hosts.get(&place.host)?.workers).sum()
    }

    /// The hosts whose logs are in a case's folder, each with its folder and its clock; or why one cannot be read.
    pub(crate) fn stations(&self, folder: &Path) -> Vec<(Host, Result<Station, String>)> {
        let station = |&host: &Host| (host, self.station(folder, host));
        self.hosts.keys().map(station).collect()
    }

    fn station(&self, folder: &Path, host: Host) -> Result<Station, String> {
        if host == self.first {
            return Ok(Station { folder: folder.into(), clock: Clock::default() });
        }
        let folder = folder.join(host_folder(host));
        match fs::metadata(&folder) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(format!("{} is not a folder", folder.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.why_absent(host)),
            Err(error) => return Err(format!("cannot read {}: {error}", folder.display())),
        }
        let readings = self.readings.get(&host).cloned().unwrap_or_default();
        Ok(Station { folder, clock: Clock::new(readings)? })
    }

    fn why_absent(&self, host: Host) -> String {
        let lost = self.events.iter().rev().find(|event| event.host == host);
        match lost.map(|event| &event.change) {
            Some(HostChange::Lost { .. }) => "it was lost, and its logs with it".into(),
            _ => "its logs have not been gathered".into(),
        }
    }
}

/// Where the logs of a host lie, and how they come on the first host's clock.
pub(crate) struct Station {
    pub(crate) folder: PathBuf,
    pub(crate) clock: Clock,
}

impl HostLog {
    fn new(host: Host) -> Self {
        Self { host, ..Self::default() }
    }
}

/// The logs of one host, on the first host's clock and with members' own numbers.
struct HostRun {
    host: Host,
    launcher: LauncherLog,
    crew: Crew,
    within: Nanos,
}

/// The run of all hosts, from the logs of the first host and those in its folder.
pub(crate) fn gather(folder: &Path, launcher: LauncherLog, crew: Crew, told: Told) -> Run {
    let stations = told.stations(folder);
    let Told { first: teller, events, rosters, mut hosts, .. } = told;
    let mut runs = Vec::new();
    let mut first = Some((launcher.clone(), crew));
    for (number, station) in stations {
        let host = hosts.get_mut(&number).expect("invariant: stations are those of hosts");
        let read = station.and_then(|station| {
            match Porter::read(&station, number) {
                Ok(porter) => host.porter = porter,
                Err(why) => host.porter_unknown = Some(why),
            }
            match first.take_if(|_| number == teller) {
                Some((launcher, crew)) => Ok(HostRun { host: number, launcher, crew, within: Nanos(0) }),
                None => HostRun::read(number, &station),
            }
        });
        match read {
            Ok(run) => {
                host.within = Some(run.within);
                runs.push(run);
            }
            Err(why) => host.unknown = Some(why),
        }
    }
    number_members(&mut runs, &mut hosts);
    let mut waited_for = BTreeMap::new();
    for run in &mut runs {
        add_waits(&mut waited_for, std::mem::take(&mut run.crew.waited_for));
    }
    wait_for_hosts(&mut runs, &mut hosts, &mut waited_for);
    let scaled = runs.iter().flat_map(HostRun::scaled).collect();
    let strangers = find_strangers(folder, &hosts, teller);
    let merged = merge::launchers(&launcher, &runs, &rosters);
    let ranks = runs.into_iter().flat_map(|run| run.crew.ranks).collect();
    let mut run = Run::new(merged, ranks, waited_for);
    run.hosts = Some(Hosts { all: hosts.into_values().collect(), events, rosters, scaled, strangers });
    run
}

impl HostRun {
    /// Reads the logs of another host. Only whole ones count: of a launcher that did not live to tell its end, nobody knows what
    /// became of its members.
    fn read(host: Host, station: &Station) -> Result<Self, String> {
        let words = |error: LabError| error.to_string();
        let launcher = LauncherLog::read(&station.folder).map_err(|error| match error {
            LogError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "its launcher's log has not been gathered".into()
            }
            error => error.to_string(),
        })?;
        if launcher.header.host != Some(host) {
            return Err(format!("{} holds the log of another host", station.folder.display()));
        }
        if launcher.over.is_none() {
            return Err("its launcher did not live to tell the end".into());
        }
        if membership::members(&launcher).is_empty() {
            return Err("its launcher's log tells of no member".into());
        }
        let crew = Crew::read(&station.folder, &launcher).map_err(words)?;
        let alone = Run::new(launcher.clone(), crew.ranks.clone(), BTreeMap::new());
        if let Some(membership) = &alone.membership {
            alone.check_members(membership)?;
        }
        let mut run = Self { host, launcher, crew, within: Nanos(0) };
        let far =
            || "its clock was not compared with that of the first host at the time of its logs".to_owned();
        run.set(&station.clock).ok_or_else(far)?;
        Ok(run)
    }

    /// Puts everything on the first host's clock.
    fn set(&mut self, clock: &Clock) -> Option<()> {
        let told = self.launcher.first_spawn.zip(self.launcher.last_reap);
        let (from, to) = told?;
        self.within = clock.within(from, to);
        (self.launcher.first_spawn, self.launcher.last_reap) =
            (Some(clock.moment(from)?), Some(clock.moment(to)?));
        for event in &mut self.launcher.membership {
            set_event(clock, event)?;
        }
        for log in &mut self.crew.ranks {
            for at in log.main.iter_mut().chain(log.faults.iter_mut().map(|fault| &mut fault.at)) {
                *at = clock.moment(*at)?;
            }
            for recovery in &mut log.recoveries {
                (recovery.begin, recovery.end) = (clock.moment(recovery.begin)?, clock.moment(recovery.end)?);
            }
            for step in &mut log.steps {
                clock.step(step)?;
            }
        }
        for at in self.crew.arrivals.iter_mut().flatten().filter_map(|arrival| arrival.at.as_mut()) {
            *at = clock.moment(*at)?;
        }
        Some(())
    }

    fn scaled(&self) -> impl Iterator<Item = (Host, Nanos, u32)> {
        self.launcher.membership.iter().filter_map(|event| match event {
            LauncherEvent::Scaled { at, workers } => Some((self.host, *at, *workers)),
            _ => None,
        })
    }
}

/// Gives every member a number of its own, host by host.
fn number_members(runs: &mut [HostRun], hosts: &mut BTreeMap<Host, HostLog>) {
    let mut next = 0;
    for run in runs {
        let numbers: BTreeMap<Member, Member> =
            membership::members(&run.launcher).into_iter().zip((next..).map(Member)).collect();
        next += numbers.len() as u32;
        if let Some(host) = hosts.get_mut(&run.host) {
            host.members = numbers.iter().map(|(&own, &number)| (number, own)).collect();
        }
        run.launcher.membership.iter_mut().for_each(|event| merge::renumber(&numbers, event));
        let renamed = |who: Who| match who {
            Who::Member(own) => Who::Member(numbers.get(&own).copied().unwrap_or(own)),
            rank => rank,
        };
        for log in &mut run.crew.ranks {
            if let WorkerHeader::Member(header) = &mut log.header {
                header.host = Some(run.host);
                header.member = numbers.get(&header.member).copied().unwrap_or(header.member);
            }
        }
        let waited = std::mem::take(&mut run.crew.waited_for);
        run.crew.waited_for = waited.into_iter().map(|(who, waited)| (renamed(who), waited)).collect();
        for arrival in run.crew.arrivals.iter_mut().flatten() {
            (arrival.last, arrival.blamed) = (arrival.last.map(renamed), arrival.blamed.map(renamed));
        }
    }
}

/// Tells waiting for a late host from moving bytes. From the moment when all gradients of its own host were there until those of
/// another host were, a member that waited did so for that host: as far as the clocks can tell.
fn wait_for_hosts(
    runs: &mut [HostRun],
    hosts: &mut BTreeMap<Host, HostLog>,
    waited_for: &mut BTreeMap<Who, Waited>,
) {
    let latest: Vec<Latest> = runs.iter().map(Latest::of).collect();
    for (own, run) in runs.iter_mut().enumerate() {
        let steps = run.crew.ranks.iter_mut().map(|log| &mut log.steps);
        for (step, arrival) in
            steps.zip(&run.crew.arrivals).flat_map(|(steps, arrivals)| steps.iter_mut().zip(arrivals))
        {
            let others = latest.iter().enumerate().filter(|&(other, _)| other != own).map(|(_, other)| other);
            let late = others.filter_map(|other| other.later_than(&latest[own], step.step));
            let Some((late, host, last)) = late.max_by_key(|&(late, ..)| late) else { continue };
            let late = late.min(step.phases[Phase::CommWait].since(step.late_rank));
            if late.is_zero() {
                continue;
            }
            if let Some(host) = hosts.get_mut(&host) {
                host.waited_for += late;
            }
            if let Some(last) = last {
                let most = late > arrival.waited;
                let blamed = arrival.blamed.filter(|_| most).and_then(|blamed| waited_for.get_mut(&blamed));
                blamed.into_iter().for_each(|blamed| blamed.steps = blamed.steps.saturating_sub(1));
                let sum = waited_for.entry(last).or_default();
                sum.time += late;
                sum.steps += u64::from(most);
            }
            step.late_rank += late;
        }
    }
}

/// When the last gradients of each step were there on a host, and who brought them.
struct Latest {
    host: Host,
    within: Nanos,
    arrivals: BTreeMap<Step, (Nanos, Option<Who>)>,
}

impl Latest {
    fn of(run: &HostRun) -> Self {
        let mut arrivals: BTreeMap<Step, (Nanos, Option<Who>)> = BTreeMap::new();
        let logs = run.crew.ranks.iter().zip(&run.crew.arrivals);
        for (step, arrival) in logs.flat_map(|(log, arrivals)| log.steps.iter().zip(arrivals)) {
            let Some(at) = arrival.at else { continue };
            let latest = arrivals.entry(step.step).or_insert((at, arrival.last));
            if latest.0 < at {
                *latest = (at, arrival.last);
            }
        }
        Self { host: run.host, within: run.within, arrivals }
    }

    /// How much later than those of another host its gradients were there with certainty, and who brought the last.
    fn later_than(&self, other: &Self, step: Step) -> Option<(Nanos, Host, Option<Who>)> {
        let (here, there) = (self.arrivals.get(&step)?, other.arrivals.get(&step)?);
        Some((here.0.since(there.0).since(self.within).since(other.within), self.host, here.1))
    }
}

/// Folders of hosts that nobody has told of.
fn find_strangers(folder: &Path, hosts: &BTreeMap<Host, HostLog>, first: Host) -> Vec<String> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let known: Vec<String> =
        hosts.keys().filter(|&&host| host != first).map(|&host| host_folder(host)).collect();
    let mut strangers: Vec<String> =
        names.filter(|name| name.starts_with("host-") && !known.contains(name)).collect();
    strangers.sort();
    strangers
}

#[cfg(test)]
mod tests;
