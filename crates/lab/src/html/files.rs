//! Links to the files beside the page, relative to it.

use super::markup::Tag;
use crate::sections::named;
use crate::{CaseReport, Report, Status};

/// Files of the study, and what they are for.
const STUDY: [(&str, &str); 4] = [
    ("timeline.json", "every step of every rank, for ui.perfetto.dev or chrome://tracing"),
    ("report.csv", "one row per case"),
    ("report.md", "this report as text"),
    ("report.json", "every number"),
];

/// Files of a case that are linked.
const LINKED: usize = 12;

/// Links to the other forms of the report, and to the logs of each case.
pub fn render(report: &Report) -> Tag {
    let entry =
        |(name, what): (&str, &str)| Tag::new("li").with(link(name, name)).text(format_args!(": {what}"));
    let section = Tag::new("section").class("told files").with(Tag::new("h2").text("Files"));
    let section = section.with(Tag::new("ul").with_all(STUDY.into_iter().map(entry)));
    let logged: Vec<Tag> = named(report)
        .filter(|(case, _)| !case.files.is_empty())
        .flat_map(|(case, name)| [Tag::new("dt").text(name), links(case)])
        .collect();
    if logged.is_empty() {
        return section;
    }
    let summary = Tag::new("summary").text("Logs of each case");
    section.with(Tag::new("details").with(summary).with(Tag::new("dl").with_all(logged)))
}

/// Links to the logs of the cases that failed.
pub fn render_failed(report: &Report) -> Option<Tag> {
    let failed: Vec<Tag> = named(report)
        .filter(|(case, _)| case.status == Status::Failed && !case.files.is_empty())
        .flat_map(|(case, name)| [Tag::new("dt").text(format_args!("logs of {name}")), links(case)])
        .collect();
    (!failed.is_empty()).then(|| Tag::new("dl").class("facts").with_all(failed))
}

fn links(case: &CaseReport) -> Tag {
    let mut all = Tag::new("dd").class("links");
    for file in case.files.iter().take(LINKED) {
        all = all.with(link(file, file)).text(" ");
    }
    match case.files.len().checked_sub(LINKED + 1) {
        None => all,
        Some(more) => all.text(format_args!("and {} more", more + 1)),
    }
}

fn link(file: &str, name: &str) -> Tag {
    Tag::new("a").set("href", address(file)).text(name)
}

/// A relative path as an address: only plain letters stand for themselves.
fn address(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let letter = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    format!("./{}", path.bytes().map(letter).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stays_beside_the_page() {
        assert_eq!(address("a b/rank-0.jsonl"), "./a%20b/rank-0.jsonl");
        assert_eq!(address("javascript:alert(1)"), "./javascript%3Aalert%281%29");
    }
}
