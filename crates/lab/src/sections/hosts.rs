//! The hosts of a case that ran on several.

use crate::numbers::hosts::HostReport;
use crate::section::{Section, Topic};
use crate::words::{digits, or_dash};
use crate::{CaseReport, Column, Table};

/// What each host had, moved and took, and what is not known; `None` for a case on one host.
pub fn section(case: &CaseReport, name: &str) -> Option<Section> {
    let hosts = case.hosts.as_ref()?;
    let mut section = Section::new(Topic::Case, format!("{name}: hosts"));
    if case.repeats > 1 {
        section = section.say("Of the first repeat.");
    }
    Some(section.list(case.host_notes.clone()).tables([table(hosts)]))
}

fn table(hosts: &[HostReport]) -> Table {
    let moved = |name: &'static str| {
        Column::numbers(format!("{name} MB per step"))
            .short(format!("{name} MB/step"))
            .under("MB per step", name)
    };
    let mut table = Table::new([
        Column::numbers("host").always(),
        Column::words("name").keep(6.0),
        Column::numbers("workers").keep(9.0),
        Column::numbers("shards").keep(5.0),
        moved("sent").keep(8.0),
        moved("received").keep(8.0),
        Column::numbers("porter ms per step").short("porter ms/step").keep(7.0),
        Column::numbers("waited for it s").short("waited s").keep(4.0),
        Column::numbers("clock within us").short("clock us").keep(3.0),
        Column::words("joined, left or lost").short("came, went").keep(10.0).wrapping(),
    ]);
    for host in hosts {
        let scaled =
            |value: Option<f64>, by: f64, places: usize| digits(value.map(|value| by * value), places);
        table.row([
            host.host.to_string(),
            or_dash(host.name.clone(), |name| name),
            or_dash(host.workers, |count| count.to_string()),
            or_dash(host.shards, |count| count.to_string()),
            scaled(host.sent_bytes, 1e-6, 2),
            scaled(host.received_bytes, 1e-6, 2),
            scaled(host.porter_cpu_s, 1e3, 2),
            scaled(host.waited_for_s, 1.0, 2),
            scaled(host.clock_within_s, 1e6, 0),
            came_and_went(host),
        ]);
    }
    table
}

/// "joined at 3.20 s; lost at 9.71 s: no word for 2 s"; a dash where nothing is known.
fn came_and_went(host: &HostReport) -> String {
    let at = |what: &str, seconds: Option<f64>| seconds.map(|seconds| format!("{what} at {seconds:.2} s"));
    let lost = at("lost", host.lost_s).map(|lost| match &host.lost_why {
        Some(why) => format!("{lost}: {why}"),
        None => lost,
    });
    let joined = match host.joined_s {
        Some(0.0) => Some("from the start".into()),
        later => at("joined", later),
    };
    let all: Vec<String> = [joined, at("left", host.left_s), lost].into_iter().flatten().collect();
    if all.is_empty() { "-".into() } else { all.join("; ") }
}
