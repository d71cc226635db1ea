//! Sections on a page.

use super::markup::Tag;
use crate::section::{Block, Item, Level, Section};
use crate::table::Row;
use crate::{Align, Column, Table};

/// A section; details are folded.
pub fn render(section: &Section) -> Tag {
    let title = Tag::new("h2").text(&section.title);
    match section.level {
        Level::Chapter => Tag::new("section").class("told").with(title).with_all(blocks(section)),
        Level::Detail => {
            let summary = Tag::new("summary").with(title);
            let inside = Tag::new("div").class("told").with_all(blocks(section));
            Tag::new("details").class("section").with(summary).with(inside)
        }
    }
}

/// What a section holds, without its title.
pub fn blocks(section: &Section) -> Vec<Tag> {
    let draw = |block: &Block| match block {
        Block::Paragraph(words) => vec![Tag::new("p").class("facts").text(words)],
        Block::List(sentences) => {
            vec![Tag::new("ul").with_all(sentences.iter().map(|sentence| Tag::new("li").text(sentence)))]
        }
        Block::Numbered(items) => {
            let item = |item: &Item| {
                let advice = Tag::new("p").class("advice").text(&item.advice);
                Tag::new("li").with(Tag::new("p").class("what").text(&item.text)).with(advice)
            };
            vec![Tag::new("ol").with_all(items.iter().map(item))]
        }
        Block::Facts(facts) => {
            let fact =
                |(name, fact): &(String, String)| [Tag::new("dt").text(name), Tag::new("dd").text(fact)];
            vec![Tag::new("dl").class("facts").with_all(facts.iter().flat_map(fact))]
        }
        Block::Table(table) => render_table(&table.without_empty(), &section.title),
        Block::Code(code) => vec![Tag::new("pre").with(Tag::new("code").text(code))],
    };
    section.blocks.iter().flat_map(draw).collect()
}

/// A table that can be scrolled, and what its small numbers are.
fn render_table(table: &Table, title: &str) -> Vec<Tag> {
    let first = table.columns().first().map_or("", |column| &column.name);
    let label = if table.is_by_name() { title.to_owned() } else { format!("{title}: {first}") };
    let scroll = Tag::new("div").class("scroll").set("tabindex", 0).set("role", "region");
    let drawn = Tag::new("table").with(head(table)).with_all(bodies(table));
    let note = table.columns().iter().any(|column| column.is_interval);
    let note = note.then(|| Tag::new("p").class("schema").text("Below a value: its 95 % interval."));
    [scroll.set("aria-label", label).with(drawn)].into_iter().chain(note).collect()
}

/// The columns that have a cell of their own: an interval is shown with its value, and the name of rows above them.
fn shown(table: &Table) -> impl Iterator<Item = (usize, &Column)> {
    let columns = table.columns().iter().enumerate();
    columns.skip(usize::from(table.is_by_name())).filter(|(_, column)| !column.is_interval)
}

/// One line, or two where columns share headings.
fn head(table: &Table) -> Tag {
    let place = |column: &Column, tag: Tag| match column.align {
        Align::Left => tag.class("word"),
        Align::Right => tag,
    };
    let columns: Vec<&Column> = shown(table).map(|(_, column)| column).collect();
    let lines = if columns.iter().any(|column| column.heading.is_some()) { 2 } else { 1 };
    let (mut upper, mut lower) = (Tag::new("tr"), Tag::new("tr"));
    for shared in columns.chunk_by(|a, b| a.heading.is_some() && heading(a) == heading(b)) {
        let Some([heading, _]) = shared[0].heading else {
            let cell = Tag::new("th").set("rowspan", lines).set("scope", "col");
            upper.push(place(shared[0], cell).with(Tag::new("span").text(&shared[0].name)));
            continue;
        };
        let cell = Tag::new("th").set("colspan", shared.len()).set("scope", "colgroup");
        upper.push(cell.with(Tag::new("span").text(heading)));
        for [_, name] in shared.iter().filter_map(|column| column.heading) {
            lower.push(Tag::new("th").set("scope", "col").text(name));
        }
    }
    let head = Tag::new("thead").with(upper);
    if lines == 2 { head.with(lower) } else { head }
}

fn heading(column: &Column) -> Option<&'static str> {
    column.heading.map(|[heading, _]| heading)
}

fn bodies(table: &Table) -> Vec<Tag> {
    if !table.is_by_name() {
        return vec![Tag::new("tbody").with_all(table.rows().iter().map(|row| line(table, row)))];
    }
    let body = |rows: &[Row]| {
        let name = Tag::new("span").text(rows[0].cells.first().map_or("", String::as_str));
        let name = Tag::new("th").set("colspan", shown(table).count()).set("scope", "rowgroup").with(name);
        let rows = rows.iter().map(|row| line(table, row));
        Tag::new("tbody").with(Tag::new("tr").class("name").with(name)).with_all(rows)
    };
    table.rows().chunk_by(|a, b| a.cells.first() == b.cells.first()).map(body).collect()
}

fn line(table: &Table, row: &Row) -> Tag {
    let mut tags = Vec::new();
    let last = row.cells.len().saturating_sub(1);
    let count = shown(table).count();
    for (place, (at, column)) in shown(table).enumerate() {
        let Some(text) = row.cells.get(at) else { break };
        let is_name = table.is_by_name() && place == 0;
        let cell = if is_name { Tag::new("th").set("scope", "row") } else { Tag::new("td") };
        if row.runs_on && at == last {
            tags.push(cell.class("failed").set("colspan", count - place).text(text));
            break;
        }
        let cell = if column.align == Align::Left { cell.class("word") } else { cell };
        let interval = table.columns().get(at + 1).filter(|next| next.is_interval);
        let interval =
            interval.and_then(|_| row.cells.get(at + 1)).filter(|text| !matches!(text.as_str(), "" | "-"));
        tags.push(cell.text(text).with_all(interval.map(|text| Tag::new("small").text(text))));
    }
    Tag::new("tr").with_all(tags)
}
