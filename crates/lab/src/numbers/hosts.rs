//! The hosts of a run: what each had, moved and took.
//!
//! All of it is about the first repeat, because each has its own hosts. Moments are on the first host's clock; `clock_within_s`
//! says how much those of another host may be wrong.

use paceline_record::{Host, HostChange, Member, Nanos};
use serde::Serialize;

use crate::Run;
use crate::hosts::{HostLog, Hosts};

/// A host of a run on several. What no log tells is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostReport {
    /// Its number.
    pub host: Host,
    /// Its name in the network.
    pub name: Option<String>,
    /// Workers that it was asked to have.
    pub workers: Option<u32>,
    /// Shards of each step, in the last roster that it is in.
    pub shards: Option<u32>,
    /// Seconds since the first spawn when it joined; 0 if it was there from the start.
    pub joined_s: Option<f64>,
    /// The same for when it left, if that was before all was done.
    pub left_s: Option<f64>,
    /// The same for when it was lost.
    pub lost_s: Option<f64>,
    /// How it was noticed.
    pub lost_why: Option<String>,
    /// Bytes to other hosts, per step.
    pub sent_bytes: Option<f64>,
    /// Bytes from other hosts, per step.
    pub received_bytes: Option<f64>,
    /// Processor time of its porter, per step.
    pub porter_cpu_s: Option<f64>,
    /// How long members of other hosts waited because its gradients were there later than theirs, as far as the clocks can tell.
    pub waited_for_s: Option<f64>,
    /// How much its moments may be wrong, in either direction; 0 for the first host.
    pub clock_within_s: Option<f64>,
    /// Its members.
    pub members: Vec<HostMember>,
    /// Why its members are unknown.
    pub unknown: Option<String>,
}

/// A member of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostMember {
    /// Its number in the run.
    pub member: Member,
    /// Its number in the logs of its host.
    pub own: Member,
}

/// The hosts of a run; `None` for a run on one.
pub fn hosts(run: &Run) -> Option<Vec<HostReport>> {
    let hosts = run.hosts.as_ref()?;
    Some(hosts.all.iter().map(|host| report(run, hosts, host)).collect())
}

fn report(run: &Run, hosts: &Hosts, log: &HostLog) -> HostReport {
    let begin = run.launcher.first_spawn.unwrap_or_default();
    let since = |at: Nanos| at.since(begin).seconds();
    let mut host = HostReport {
        host: log.host,
        name: log.name.clone(),
        workers: log.workers,
        shards: log.shards,
        waited_for_s: log.unknown.is_none().then(|| log.waited_for.seconds()),
        clock_within_s: log.within.map(Nanos::seconds),
        members: log.members.iter().map(|&(member, own)| HostMember { member, own }).collect(),
        unknown: log.unknown.clone(),
        ..HostReport::default()
    };
    for event in hosts.events.iter().filter(|event| event.host == log.host) {
        match &event.change {
            HostChange::Joined { .. } if log.from_start => host.joined_s = Some(0.0),
            HostChange::Joined { .. } => host.joined_s = host.joined_s.or(Some(since(event.at))),
            HostChange::Lost { why } => {
                (host.lost_s, host.lost_why) = (Some(since(event.at)), Some(why.clone()));
            }
            HostChange::Left if Hosts::left_early(run, event.at) => {
                host.left_s = Some(since(event.at));
            }
            HostChange::Left | HostChange::Gathered | HostChange::Planted { .. } | HostChange::Other(_) => {}
        }
    }
    if let Some(porter) = log.porter.filter(|porter| porter.steps > 0) {
        let per_step = |sum: f64| Some(sum / porter.steps as f64);
        host.sent_bytes = per_step(porter.sent as f64);
        host.received_bytes = per_step(porter.received as f64);
        host.porter_cpu_s = per_step(porter.cpu.seconds());
    }
    host
}

/// What is missing from the numbers of a run, and why, in sentences.
pub fn notes(run: &Run) -> Vec<String> {
    let Some(hosts) = &run.hosts else { return Vec::new() };
    let of_host = |log: &HostLog| {
        let members = log.unknown.as_ref().map(|why| {
            format!("the members of host {} are unknown and in none of these numbers: {why}", log.host)
        });
        let porter =
            log.porter_unknown.as_ref().map(|why| format!("what host {} moved is unknown: {why}", log.host));
        members.into_iter().chain(porter)
    };
    let strangers = hosts
        .strangers
        .iter()
        .map(|name| format!("{name} was left out: the first host's log tells of no such host"));
    hosts.all.iter().flat_map(of_host).chain(strangers).collect()
}
