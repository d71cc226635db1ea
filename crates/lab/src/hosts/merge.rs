//! The launchers of several hosts as one.

use std::collections::BTreeMap;

use paceline_record::log::LauncherLog;
use paceline_record::{
    Generation, Host, HostRoster, LauncherEvent, Member, MemberChange, MemberEvent, Nanos, Recovery,
    RecoveryPhase, Roster, Step,
};

use super::HostRun;
use super::clock::Clock;

const PHASES: [RecoveryPhase; 5] = [
    RecoveryPhase::Detect,
    RecoveryPhase::Fence,
    RecoveryPhase::Rebuild,
    RecoveryPhase::State,
    RecoveryPhase::Redo,
];

/// What all launchers told, as the first would have told it if all members were its own.
pub(super) fn launchers(first: &LauncherLog, runs: &[HostRun], hosts: &[HostRoster]) -> LauncherLog {
    let events = || runs.iter().flat_map(|run| &run.launcher.membership);
    let members = events().filter(|event| matches!(event, LauncherEvent::Member(_))).cloned();
    // Every host tells of the same tests.
    let tests = first.membership.iter().filter(|event| matches!(event, LauncherEvent::Evaluated(_)));
    let rosters = rosters(runs, hosts);
    let recoveries = recoveries(events(), &rosters);
    LauncherLog {
        header: first.header.clone(),
        first_spawn: runs.iter().filter_map(|run| run.launcher.first_spawn).min(),
        last_reap: runs.iter().filter_map(|run| run.launcher.last_reap).max(),
        membership: members
            .chain(rosters.into_iter().map(LauncherEvent::Roster))
            .chain(recoveries.into_iter().map(LauncherEvent::Recovery))
            .chain(tests.cloned())
            .collect(),
        over: first.over.clone(),
    }
}

/// What changed in a step: rosters of hosts, and of members on each host.
#[derive(Default)]
struct Changes<'a> {
    hosts: Vec<&'a HostRoster>,
    members: BTreeMap<Host, Vec<&'a Roster>>,
}

/// One roster of all members for each change, in the order of the hosts' roster. Hosts that change in the same step do so together.
fn rosters(runs: &[HostRun], hosts: &[HostRoster]) -> Vec<Roster> {
    let mut changes: BTreeMap<Step, Changes<'_>> = BTreeMap::new();
    for roster in hosts {
        changes.entry(roster.step).or_default().hosts.push(roster);
    }
    for run in runs {
        for event in &run.launcher.membership {
            if let LauncherEvent::Roster(roster) = event {
                let step = changes.entry(roster.step).or_default();
                step.members.entry(run.host).or_default().push(roster);
            }
        }
    }
    let mut order: Vec<Host> = runs.iter().map(|run| run.host).collect();
    let mut there: BTreeMap<Host, &[Member]> = BTreeMap::new();
    let mut merged: Vec<Roster> = Vec::new();
    for (step, changes) in changes {
        let most = changes.members.values().map(Vec::len).chain([changes.hosts.len()]).max().unwrap_or(0);
        for nth in 0..most {
            let mut at = Nanos(0);
            if let Some(roster) = changes.hosts.get(nth) {
                at = at.max(roster.at);
                order = roster.hosts.iter().map(|place| place.host).collect();
            }
            for (&host, rosters) in &changes.members {
                if let Some(roster) = rosters.get(nth) {
                    at = at.max(roster.at);
                    there.insert(host, &roster.members);
                }
            }
            let members = order.iter().filter_map(|host| there.get(host)).copied().flatten().copied();
            let generation = Generation(merged.len() as u64);
            merged.push(Roster { generation, at, step, members: members.collect() });
        }
    }
    merged
}

/// The recoveries of all hosts on one line of time: where several overlap, the earliest phase of them counts, so that no moment
/// counts twice.
fn recoveries<'a>(events: impl Iterator<Item = &'a LauncherEvent>, rosters: &[Roster]) -> Vec<Recovery> {
    let mut edges: Vec<(Nanos, RecoveryPhase, i64)> = Vec::new();
    for event in events {
        if let LauncherEvent::Recovery(Recovery { phase, begin, end, .. }) = event
            && begin < end
        {
            edges.extend([(*begin, *phase, 1), (*end, *phase, -1)]);
        }
    }
    edges.sort();
    let mut open: BTreeMap<RecoveryPhase, i64> = BTreeMap::new();
    let mut merged: Vec<Recovery> = Vec::new();
    let mut from = Nanos(0);
    for (at, changed, by) in edges {
        let under_way = PHASES.into_iter().find(|phase| open.get(phase).is_some_and(|&count| count > 0));
        if let Some(phase) = under_way.filter(|_| from < at) {
            match merged.last_mut().filter(|last| last.phase == phase && last.end == from) {
                Some(last) => last.end = at,
                None => {
                    let led_to = rosters.iter().find(|roster| roster.at >= from).or(rosters.last());
                    let generation = led_to.map_or(Generation(0), |roster| roster.generation);
                    merged.push(Recovery { generation, phase, begin: from, end: at });
                }
            }
        }
        *open.entry(changed).or_default() += by;
        from = at;
    }
    merged
}

/// Puts what a launcher told of members on the first host's clock.
pub(crate) fn set_event(clock: &Clock, event: &mut LauncherEvent) -> Option<()> {
    let set = |at: &mut Nanos| {
        *at = clock.moment(*at)?;
        Some(())
    };
    match event {
        LauncherEvent::Member(MemberEvent { at, change, .. }) => {
            set(at)?;
            if let MemberChange::Stalled { since, .. } = change {
                set(since)?;
            }
        }
        LauncherEvent::Roster(Roster { at, .. }) | LauncherEvent::Scaled { at, .. } => set(at)?,
        LauncherEvent::Recovery(Recovery { begin, end, .. }) => {
            set(begin)?;
            set(end)?;
        }
        // Of the others, only those of the first host count.
        _ => {}
    }
    Some(())
}

/// Gives members their numbers in the run.
pub(super) fn renumber(numbers: &BTreeMap<Member, Member>, event: &mut LauncherEvent) {
    let rename = |member: &mut Member| *member = numbers.get(member).copied().unwrap_or(*member);
    match event {
        LauncherEvent::Member(event) => rename(&mut event.member),
        LauncherEvent::Roster(roster) => roster.members.iter_mut().for_each(rename),
        _ => {}
    }
}
