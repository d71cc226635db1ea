//! What the sources of imported cases say beyond their steps.

use super::markup::Tag;
use crate::{Align, Report, Table, words};

/// A section for each imported case.
pub fn render(report: &Report) -> Vec<Tag> {
    let mut sections = Vec::new();
    for group in &report.explained {
        for case in group.cases.iter().filter_map(|&place| report.cases.get(place)) {
            let Some(origin) = &case.origin else { continue };
            let from = origin.format.map_or_else(String::new, |format| format!(", from {}", format.name()));
            let title = format!("{}, {}{from}", group.key.label(), words::workers(case.case.workers));
            let told = origin.sentences().into_iter().map(|sentence| Tag::new("li").text(sentence));
            let notes = origin.notes.iter().map(|note| Tag::new("li").text(format_args!("note: {note}")));
            let mut section = Tag::new("section").class("told").with(Tag::new("h2").text(&title));
            section.push(Tag::new("ul").with_all(told.chain(notes)));
            words::origin_tables(case).iter().for_each(|table| section.push(draw(table, &title)));
            sections.push(section);
        }
    }
    sections
}

/// A table in a section.
pub fn draw(table: &Table, title: &str) -> Tag {
    let place = |align: Align, tag: Tag| if align == Align::Left { tag.class("word") } else { tag };
    let header =
        table.header().map(|(name, align)| place(align, Tag::new("th").set("scope", "col").text(name)));
    let head = Tag::new("thead").with(Tag::new("tr").with_all(header));
    let aligns: Vec<Align> = table.header().map(|(_, align)| align).collect();
    let row = |cells: &[String]| {
        let cells = cells.iter().zip(&aligns).map(|(cell, &align)| place(align, Tag::new("td").text(cell)));
        Tag::new("tr").with_all(cells)
    };
    let body = Tag::new("tbody").with_all(table.rows().map(row));
    let name = table.header().next().map_or("", |(name, _)| name);
    let scroll = Tag::new("div").class("scroll").set("tabindex", 0).set("role", "region");
    scroll.set("aria-label", format_args!("{title}: {name}")).with(Tag::new("table").with(head).with(body))
}
