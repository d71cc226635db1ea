//! Sections in GitHub's Markdown: `report.md`.

use std::fmt::Write as _;

use crate::section::{Block, Level, Medium, Section};
use crate::{Align, Report, Table, sections, words};

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut text = format!("# {}\n", escape(sections::kind(report)));
    for sentence in [words::made(report)].into_iter().chain(words::notices(report)) {
        let _ = writeln!(text, "\n{}", escape(&sentence));
    }
    text + &render_body(&sections::of(report, Medium::Page))
}

fn render_body(sections: &[Section]) -> String {
    let mut text = String::new();
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
                    render_advice(&capitalise(&item.advice))
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

/// A table in which an interval shares the cell of its value.
fn render_table(table: &Table) -> String {
    let columns = table.columns();
    let line = |cells: Vec<String>| {
        cells.iter().fold(String::from("|"), |line, cell| format!("{line} {cell} |")) + "\n"
    };
    let shown: Vec<usize> = (0..columns.len()).filter(|&at| !columns[at].is_interval).collect();
    let interval =
        |at: usize| columns.get(at + 1).filter(|next| next.is_interval).map(|next| (at + 1, &next.name));
    let name = |&at: &usize| {
        let name = escape(&columns[at].name);
        interval(at).map_or_else(|| name.clone(), |(_, interval)| format!("{name} ({interval})"))
    };
    let rule = |&at: &usize| if columns[at].align == Align::Left { "---".into() } else { "---:".into() };
    let mut text = line(shown.iter().map(name).collect()) + &line(shown.iter().map(rule).collect());
    for row in table.rows() {
        let known = |at: usize| row.cells.get(at).filter(|cell| !matches!(cell.as_str(), "" | "-"));
        let cell = |&at: &usize| {
            let cell = row.cells.get(at).map_or_else(String::new, |cell| escape(cell));
            let range = interval(at).and_then(|(at, _)| known(at));
            range.map_or_else(|| cell.clone(), |range| format!("{cell} ({})", escape(range)))
        };
        text.push_str(&line(shown.iter().map(cell).collect()));
    }
    text
}

/// Advice is our own text: what stands between backticks is code.
fn render_advice(advice: &str) -> String {
    let parts = advice.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { format!("`{part}`") } else { escape(part) }).collect()
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
