//! The end of the page: the command, the machine, and what each number means.

use super::markup::Tag;
use super::section;
use crate::Report;
use crate::section::{Section, Topic};

/// Definitions of the numbers, one line each.
const DEFINITIONS: &str = include_str!("definitions.txt");

/// The end of the page.
pub fn render(report: &Report, sections: &[Section]) -> Tag {
    let about = sections.iter().filter(|section| section.topic == Topic::About);
    let about = about.flat_map(|section| {
        [Tag::new("h2").text(&section.title)].into_iter().chain(section::blocks(section))
    });
    let definitions = DEFINITIONS.lines().filter_map(|line| line.split_once(" | "));
    let definition = |(name, text): (&str, &str)| [Tag::new("dt").text(name), Tag::new("dd").text(text)];
    let definitions = Tag::new("dl").class("facts").with_all(definitions.flat_map(definition));
    Tag::new("footer")
        .with_all(about)
        .with(Tag::new("h2").text("What the numbers mean"))
        .with(definitions)
        .with(Tag::new("p").class("schema").text(format_args!(
            "The same numbers in machine-readable form: report.json, schema version {}.",
            report.schema
        )))
}
