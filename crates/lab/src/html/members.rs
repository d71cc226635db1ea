//! What happened to the members of elastic cases.

use super::markup::Tag;
use super::origin::draw;
use crate::numbers::recovery::MOST_EVENTS;
use crate::{Report, words};

/// A section for each case whose members changed.
pub fn render(report: &Report) -> Vec<Tag> {
    let mut sections = Vec::new();
    for group in &report.explained {
        for case in group.cases.iter().filter_map(|&place| report.cases.get(place)) {
            let sentences = words::recovery(case);
            if sentences.is_empty() {
                continue;
            }
            let title = format!("{}, {}: members", group.key.label(), words::workers(case.case.workers));
            let told = sentences.into_iter().map(|sentence| Tag::new("li").text(sentence));
            let mut section = Tag::new("section").class("told").with(Tag::new("h2").text(&title));
            section.push(Tag::new("ul").with_all(told));
            if let Some(table) = words::event_table(case, MOST_EVENTS) {
                section.push(draw(&table, &title));
            }
            sections.push(section);
        }
    }
    sections
}
