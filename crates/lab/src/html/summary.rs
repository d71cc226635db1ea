//! The table of all cases, and the list of unfinished ones.

use paceline_record::Phase;

use super::markup::Tag;
use crate::words::{self, or_dash};
use crate::{CaseReport, Explained, Report, Status};

/// Column groups and their columns; a group without columns is a column itself.
const HEADER: [(&str, &[&str]); 8] = [
    ("workers", &[]),
    ("seconds", &["init", "train", "total"]),
    ("images/s", &["mean", "95 % interval"]),
    ("speed-up", &["images/s", "training", "whole run"]),
    ("efficiency, %", &["images/s", "training"]),
    ("comp. : comm.", &[]),
    ("ms per step", &["exchange", "update"]),
    ("peak MB per worker", &[]),
];

/// The table of all cases, by groups.
pub fn render(report: &Report) -> Tag {
    let bodies = report.explained.iter().map(|group| body(report, group));
    let table = Tag::new("table").with(head()).with_all(bodies);
    let scroll = Tag::new("div").class("scroll").set("tabindex", 0).set("role", "region");
    scroll.set("aria-label", "All cases").with(table)
}

fn width() -> usize {
    HEADER.iter().map(|(_, columns)| columns.len().max(1)).sum()
}

fn head() -> Tag {
    let upper = HEADER.iter().map(|(name, columns)| {
        let cell = Tag::new("th").with(Tag::new("span").text(name));
        match columns.len() {
            0 => cell.set("rowspan", 2).set("scope", "col"),
            columns => cell.set("colspan", columns).set("scope", "colgroup"),
        }
    });
    let lower = HEADER.iter().flat_map(|(_, columns)| columns.iter());
    let lower = lower.map(|name| Tag::new("th").set("scope", "col").text(name));
    Tag::new("thead").with(Tag::new("tr").with_all(upper)).with(Tag::new("tr").with_all(lower))
}

fn body(report: &Report, group: &Explained) -> Tag {
    let name = Tag::new("span").text(group.key.label());
    let name = Tag::new("th").set("colspan", width()).set("scope", "rowgroup").with(name);
    let cases = group.cases.iter().filter_map(|&place| report.cases.get(place));
    Tag::new("tbody").with(Tag::new("tr").class("name").with(name)).with_all(cases.map(row))
}

fn row(case: &CaseReport) -> Tag {
    let row = Tag::new("tr").with(Tag::new("th").set("scope", "row").text(case.case.workers));
    if case.status != Status::Done {
        // A reason may span several lines; the table has room for one.
        let reason = case.reason.as_deref().and_then(|reason| reason.lines().next()).unwrap_or("");
        let colon = if reason.is_empty() { "" } else { ": " };
        let cell = Tag::new("td").class("failed").set("colspan", width() - 1);
        return row.with(cell.text(format_args!("{}{colon}{reason}", case.status.name())));
    }
    row.with_all(cells(case).into_iter().map(|text| Tag::new("td").text(text)))
}

fn cells(case: &CaseReport) -> [String; 14] {
    let seconds = |value: Option<f64>| or_dash(value, |value| format!("{value:.2}"));
    let times = |value: Option<f64>| or_dash(value, |value| format!("{value:.2}"));
    let percent = |value: Option<f64>| or_dash(value, |value| format!("{:.1}", 100.0 * value));
    let steps = case.steps as f64 * case.workers_on_average();
    let phase = |phase: Phase| case.phases_s.as_ref().and_then(|times| times.get(&phase)).copied();
    let step_ms = |seconds: Option<f64>| or_dash(seconds, |seconds| format!("{:.2}", 1e3 * seconds / steps));
    let memory = case.peak_memory_bytes;
    let rate = case.images_per_s;
    let interval = rate.and_then(|rate| rate.lo.zip(rate.hi));
    [
        seconds(case.init_s),
        seconds(case.train_s),
        seconds(case.total_s),
        or_dash(rate, |rate| format!("{:.1}", rate.mean)),
        or_dash(interval, |(lo, hi)| format!("{lo:.1} .. {hi:.1}")),
        times(case.speedup_speed),
        times(case.speedup_time),
        times(case.speedup_total),
        percent(case.efficiency_speed),
        percent(case.efficiency_time),
        or_dash(case.communication_ratio, |ratio| format!("10 : {ratio:.2}")),
        step_ms(case.exchange_s()),
        step_ms(phase(Phase::Update)),
        or_dash(memory, |memory| format!("{:.0}", 1e-6 * memory.per_worker.0 as f64)),
    ]
}

/// The cases that did not finish, and why.
pub fn render_unfinished(report: &Report) -> Option<Tag> {
    let mut list = Vec::new();
    for group in &report.explained {
        let cases = group.cases.iter().filter_map(|&place| report.cases.get(place));
        for case in cases.filter(|case| case.status != Status::Done || case.reason.is_some()) {
            let what = format!("{}, {}", group.key.label(), words::workers(case.case.workers));
            list.push(Tag::new("dt").text(format_args!("{what}: {}", case.status.name())));
            let reason = case.reason.as_deref().unwrap_or("unknown reason");
            list.push(Tag::new("dd").class("reason").text(reason));
        }
    }
    let missing = match report.missing {
        0 => None,
        missing => Some(format!("Cases not run yet: {missing}.")),
    };
    if list.is_empty() && missing.is_none() {
        return None;
    }
    let mut section = Tag::new("section").class("unfinished").with(Tag::new("h2").text("Unfinished cases"));
    if !list.is_empty() {
        section.push(Tag::new("dl").with_all(list));
    }
    Some(section.with_all(missing.map(|text| Tag::new("p").text(text))))
}
