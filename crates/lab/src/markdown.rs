//! Sections in GitHub's Markdown: `report.md`.

use std::fmt::Write as _;

use crate::section::{Block, Level, Medium, Section};
use crate::{Align, Report, Table, sections};

/// The whole report.
pub fn render(report: &Report) -> String {
    render_sections(sections::kind(report), &sections::of(report, Medium::Page))
}

/// Sections below a title.
pub fn render_sections(title: &str, sections: &[Section]) -> String {
    let mut text = format!("# {}\n", escape(title));
    for section in sections {
        let level = match section.level {
            Level::Chapter => "##",
            Level::Detail => "###",
        };
        let _ = writeln!(text, "\n{level} {}", escape(&section.title));
        for block in &section.blocks {
            text.push('\n');
            text.push_str(&render_block(block));
        }
    }
    text
}

fn render_block(block: &Block) -> String {
    match block {
        Block::Paragraph(words) => format!("{}\n", escape(words)),
        Block::List(sentences) => {
            sentences.iter().map(|sentence| format!("- {}\n", escape(sentence))).collect()
        }
        Block::Numbered(items) => {
            let item = |(number, item): (usize, &crate::section::Item)| {
                format!(
                    "{}. **{}.** {}.\n",
                    number + 1,
                    escape(&item.text),
                    escape(&capitalise(&item.advice))
                )
            };
            items.iter().enumerate().map(item).collect()
        }
        Block::Facts(facts) => {
            facts.iter().map(|(name, fact)| format!("- {}: {}\n", escape(name), escape(fact))).collect()
        }
        Block::Table(table) => render_table(&table.without_empty()),
        Block::Code(code) => {
            // A fence must be longer than any run of backticks inside it.
            let longest = code.split(|c| c != '`').map(str::len).max().unwrap_or(0);
            let fence = "`".repeat(longest.max(2) + 1);
            format!("{fence}\n{code}\n{fence}\n")
        }
    }
}

fn render_table(table: &Table) -> String {
    let columns = table.columns();
    let line = |cells: &mut dyn Iterator<Item = String>| {
        cells.fold(String::from("|"), |line, cell| format!("{line} {cell} |")) + "\n"
    };
    let rule = |align| if align == Align::Left { "---" } else { "---:" };
    let mut text = line(&mut columns.iter().map(|column| escape(column.name())));
    text.push_str(&line(&mut columns.iter().map(|column| rule(column.align()).to_owned())));
    for row in table.rows() {
        let missing = columns.len().saturating_sub(row.cells.len());
        let cells = row.cells.iter().map(|cell| escape(cell));
        text.push_str(&line(&mut cells.chain(std::iter::repeat_n(String::new(), missing))));
    }
    text
}

/// Escapes foreign text so that it appears literally, on one line.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.replace("\r\n", "\n").chars() {
        match character {
            '\n' | '\r' => escaped.push_str("<br>"),
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '|' | '*' | '`' | '[' | ']' | '~' | '$' => escaped.extend(['\\', character]),
            _ => escaped.push(character),
        }
    }
    escaped
}

fn capitalise(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests;
