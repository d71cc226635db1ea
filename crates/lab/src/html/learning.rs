//! The table of loss and accuracy.

use super::markup::Tag;
use crate::{CaseReport, Explained, Report, words};

/// The table, by group; `None` if no case has loss or accuracy.
pub fn render(report: &Report) -> Option<Tag> {
    let bodies: Vec<Tag> = report.explained.iter().filter_map(|group| body(report, group)).collect();
    let names = words::LEARNING.iter();
    // A long name breaks into two lines, as in the other table.
    let head = names.map(|(name, _)| {
        Tag::new("th").set("rowspan", 1).set("scope", "col").with(Tag::new("span").text(name))
    });
    let head = Tag::new("thead").with(Tag::new("tr").with_all(head));
    let scroll = Tag::new("div").class("scroll").set("tabindex", 0).set("role", "region");
    let empty = bodies.is_empty();
    let table = Tag::new("table").class("learning").with(head).with_all(bodies);
    let section = Tag::new("section").with(Tag::new("h2").text("Learning"));
    (!empty).then(|| section.with(scroll.set("aria-label", "Learning").with(table)))
}

fn body(report: &Report, group: &Explained) -> Option<Tag> {
    let cases = group.cases.iter().filter_map(|&place| report.cases.get(place));
    let rows: Vec<Tag> = cases.filter_map(row).collect();
    let name = Tag::new("span").text(group.key.label());
    let name = Tag::new("th").set("colspan", words::LEARNING.len()).set("scope", "rowgroup").with(name);
    let empty = rows.is_empty();
    (!empty).then(|| Tag::new("tbody").with(Tag::new("tr").class("name").with(name)).with_all(rows))
}

fn row(case: &CaseReport) -> Option<Tag> {
    let mut cells = words::learning(case)?.into_iter().map(|cell| words::or_dash(cell, |text| text));
    let workers = Tag::new("th").set("scope", "row").text(cells.next().unwrap_or_default());
    Some(Tag::new("tr").with(workers).with_all(cells.map(|text| Tag::new("td").text(text))))
}
