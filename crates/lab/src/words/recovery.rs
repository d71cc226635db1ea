//! What happened to the members of an elastic case.

use paceline_record::{Expulsion, Host, Member};

use super::{or_dash, workers};
use crate::numbers::recovery::{Event, Recovery, What};
use crate::{CaseReport, Column, Table};

/// The events of a case, at most so many; `None` if nothing happened.
pub fn event_table(case: &CaseReport, most: usize) -> Option<Table> {
    let recovery = case.recovery.as_ref().filter(|recovery| !recovery.events.is_empty())?;
    let mut table = Table::new([
        Column::numbers("time s").always(),
        Column::numbers("step").keep(4.0),
        Column::numbers("host").keep(6.0),
        Column::numbers("member").keep(7.0),
        Column::words("what happened").always().wrapping(),
        Column::numbers("cost, worker-s").keep(9.0),
    ]);
    for event in recovery.events.iter().take(most) {
        table.row([
            format!("{:.2}", event.at_s),
            or_dash(event.step, |step| step.to_string()),
            or_dash(event.host, |host| host.to_string()),
            or_dash(event.member, |member| own(case, member).to_string()),
            what_happened(case, event),
            or_dash(event.cost_s, |cost| format!("{cost:.2}")),
        ]);
    }
    let more = recovery.events.len().saturating_sub(most) as u64 + recovery.more_events;
    if more > 0 {
        table.row(["", "", "", "", &format!("and {more} more events"), ""]);
    }
    Some(table)
}

/// A member's number in the logs of its host.
fn own(case: &CaseReport, member: Member) -> Member {
    case.place(member).map_or(member, |(_, own)| own)
}

fn what_happened(case: &CaseReport, event: &Event) -> String {
    if event.member.is_none()
        && let (Some(host), What::Joined | What::Left | What::Lost) = (event.host, event.what)
    {
        return host_happened(host, event);
    }
    let said = match event.what {
        What::Started => event
            .replaces
            .map_or_else(|| "started".into(), |it| format!("started in place of member {}", own(case, it))),
        What::Joined => "joined".into(),
        What::Left => "left in good order".into(),
        What::Stalled => "made no progress".into(),
        What::Planted => {
            return event
                .planted
                .as_ref()
                .map_or_else(|| "planted".into(), |fault| format!("planted: {fault}"));
        }
        What::Lost => or_why("lost", event.exit.map(|exit| exit.to_string())),
        What::Expelled => or_why("expelled", event.reason.as_ref().map(reason)),
        What::Scaled => {
            event.workers.map_or_else(|| "scaled".into(), |count| format!("{} asked for", workers(count)))
        }
    };
    or_planted(said, event.planted.as_deref())
}

fn or_planted(said: String, fault: Option<&str>) -> String {
    match fault {
        Some(fault) => format!("{said} (planted: {fault})"),
        None => said,
    }
}

fn host_happened(host: Host, event: &Event) -> String {
    match (event.what, event.workers) {
        (What::Joined, Some(count)) => format!("host {host} joined with {}", workers(count)),
        (What::Joined, None) => format!("host {host} joined"),
        (What::Left, _) => format!("host {host} left in good order"),
        _ => {
            let said = or_why(&format!("host {host} was lost"), event.why.clone());
            or_planted(said, event.planted.as_deref())
        }
    }
}

fn or_why(what: &str, why: Option<String>) -> String {
    why.map_or_else(|| what.into(), |why| format!("{what}: {why}"))
}

fn reason(reason: &Expulsion) -> String {
    match reason {
        Expulsion::Ended => "its process ended".into(),
        Expulsion::Stalled => "it made no progress".into(),
        Expulsion::Differs => "it computed other values than the others".into(),
        Expulsion::Surplus => "fewer workers were asked for".into(),
        Expulsion::Other(reason) => reason.to_string(),
    }
}

/// What losses cost in sentences; none where nobody was lost, came or went.
pub fn recovery(case: &CaseReport) -> Vec<String> {
    let Some(recovery) = case.recovery.as_ref().filter(|_| case.has_changed()) else { return Vec::new() };
    let mut sentences = vec![count_changes(case, recovery)];
    if recovery.losses + recovery.expulsions + recovery.hosts_lost == 0 {
        return sentences;
    }
    let cost = recovery.worker_s;
    sentences.push(format!(
        "losses cost {:.2} worker-seconds ({:.2} % of the members' time): {:.2} starting replacements, {:.2} waiting and doing \
         lost work again, {:.2} of unfinished steps",
        cost.sum,
        100.0 * recovery.fraction,
        cost.replacing,
        cost.waiting,
        cost.unfinished
    ));
    let seconds = recovery.phases_s;
    let mut phases = vec![
        format!("{:.3} s to notice losses", seconds.detect),
        format!("{:.3} s until a new roster held", seconds.fence),
        format!("{:.3} s to do {} images again", seconds.redo, recovery.examples_redone),
    ];
    for (time, what) in [(seconds.rebuild, "to connect hosts"), (seconds.state, "to copy state")] {
        if time > 0.0 {
            phases.push(format!("{time:.3} s {what}"));
        }
    }
    sentences.push(format!(
        "changes of the roster took {:.3} s of the run: {}",
        seconds.sum,
        phases.join(", ")
    ));
    if let Some(slower) = recovery.slower_s.filter(|&slower| slower >= 0.005) {
        sentences
            .push(format!("steps with fewer members than before a loss took {slower:.2} s longer in all"));
    }
    sentences
}

fn count_changes(case: &CaseReport, recovery: &Recovery) -> String {
    let counts = [
        (recovery.losses, "lost"),
        (recovery.expulsions, "expelled"),
        (recovery.leaves, "left"),
        (recovery.joins, "joined"),
    ];
    let hosts =
        [(recovery.hosts_lost, "lost"), (recovery.hosts_left, "left"), (recovery.hosts_joined, "joined")];
    let told = |all: &[(u64, &str)]| {
        let counts = all.iter().filter(|&&(count, _)| count > 0);
        counts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    };
    let parts = [("hosts", told(&hosts)), ("members", told(&counts))];
    let parts = parts.into_iter().filter(|(_, counts)| !counts.is_empty());
    let mut parts: Vec<String> = parts.map(|(who, counts)| format!("{who}: {counts}")).collect();
    let rosters = recovery.generations;
    // Where a host is unknown, so is the mean.
    let mean = case.mean_workers.map_or_else(String::new, |mean| format!(", {mean:.2} members on average"));
    parts.push(format!("{rosters} rosters{mean}"));
    parts.join("; ")
}
