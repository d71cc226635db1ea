//! Sections as text for a terminal.

use crate::section::{Block, Medium, Section, Topic};
use crate::words::{self, fill};
use crate::{Column, Report, Table, sections};

/// Whether to write colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// Plain text.
    None,
    /// ANSI escape codes.
    Ansi,
}

/// What is printed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Whether it shows colours.
    pub colours: Colours,
    /// Letters of a line.
    pub width: usize,
}

impl Screen {
    /// Something that is no terminal.
    pub const PLAIN: Self = Self { colours: Colours::None, width: 100 };
}

/// The role of a piece of text, which decides its colour.
#[derive(Clone, Copy)]
enum Ink {
    Plain,
    Heading,
    Bad,
    Good,
    Faint,
}

impl Screen {
    /// Adds lines, after removing any control codes that a text brought along.
    fn write(self, into: &mut String, ink: Ink, text: &str) {
        let code = match ink {
            Ink::Plain => "",
            Ink::Heading => "1",
            Ink::Bad => "31",
            Ink::Good => "32",
            Ink::Faint => "2",
        };
        for line in words::plain(text).lines() {
            match self.colours {
                Colours::Ansi if !code.is_empty() => into.extend(["\u{1b}[", code, "m", line, "\u{1b}[0m\n"]),
                _ => into.extend([line, "\n"]),
            }
        }
    }

    /// Adds sentences, each of which may take several lines.
    fn wrap(self, into: &mut String, ink: Ink, text: &str, indents: [&str; 2]) {
        self.write(into, ink, &fill(&words::plain(text), self.width, indents));
    }

    /// Adds what fits of a table, and says what does not and where it is.
    fn table(self, into: &mut String, table: &Table, whole: Option<&str>) {
        let fitted = table.fit(self.width);
        for (number, line) in fitted.lines.iter().enumerate() {
            self.write(into, if number == 0 { Ink::Heading } else { Ink::Plain }, line);
        }
        if !fitted.left_out.is_empty() {
            let place = whole.map_or_else(String::new, |whole| format!(" ({whole} has all columns)"));
            let text = format!("left out: {}{place}", name_all(&fitted.left_out));
            self.wrap(into, Ink::Faint, &text, ["", "  "]);
        }
    }
}

/// The names of columns; intervals, which all have the same, are counted.
fn name_all(columns: &[Column]) -> String {
    let names = columns.iter().filter(|column| !column.is_interval()).map(|column| column.name().to_owned());
    let intervals = match columns.iter().filter(|column| column.is_interval()).count() {
        0 => None,
        1 => Some("1 interval".into()),
        count => Some(format!("{count} intervals")),
    };
    names.chain(intervals).collect::<Vec<_>>().join(", ")
}

/// The report of a study.
pub fn render_report(report: &Report, screen: Screen) -> String {
    let mut text = String::new();
    screen.wrap(&mut text, Ink::Faint, &words::made(report), ["", "  "]);
    words::notices(report).iter().for_each(|notice| screen.wrap(&mut text, Ink::Bad, notice, ["", "  "]));
    text.push('\n');
    text + &render(&sections::of(report, Medium::Screen), screen, Some("report.html"))
}

/// Sections one below the other. Tables are cut to the columns that fit; `whole` names a file that has all of them.
pub fn render(sections: &[Section], screen: Screen, whole: Option<&str>) -> String {
    let mut text = String::new();
    for section in sections {
        if !text.is_empty() {
            text.push('\n');
        }
        screen.wrap(&mut text, Ink::Heading, &section.title, ["", "  "]);
        for (place, block) in section.blocks.iter().enumerate() {
            let before = place.checked_sub(1).map(|place| &section.blocks[place]);
            if matches!(
                (before, block),
                (Some(Block::Table(_)), Block::List(_)) | (Some(Block::List(_)), Block::Table(_))
            ) {
                text.push('\n');
            }
            render_block(&mut text, section.topic, block, screen, whole);
        }
    }
    text
}

fn render_block(text: &mut String, topic: Topic, block: &Block, screen: Screen, whole: Option<&str>) {
    let ink = if topic == Topic::Unfinished { Ink::Bad } else { Ink::Faint };
    match block {
        Block::Paragraph(words) => screen.wrap(text, ink, words, ["", ""]),
        Block::List(sentences) => {
            sentences.iter().for_each(|sentence| screen.wrap(text, Ink::Plain, sentence, ["- ", "  "]));
        }
        Block::Numbered(items) => {
            for (number, item) in items.iter().enumerate() {
                screen.wrap(text, Ink::Plain, &item.text, [&format!("{:>3}. ", number + 1), "     "]);
                screen.wrap(text, Ink::Good, &item.advice, ["     "; 2]);
            }
        }
        Block::Facts(facts) => {
            let line = |(name, fact): &(String, String)| format!("{name}: {fact}");
            facts.iter().for_each(|fact| screen.wrap(text, ink, &line(fact), ["- ", "  "]));
        }
        Block::Table(table) => screen.table(text, table, whole),
        Block::Code(code) => screen.write(text, Ink::Plain, code),
    }
}

#[cfg(test)]
mod tests;
