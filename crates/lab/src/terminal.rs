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

/// Text under construction.
struct Pen<'a> {
    text: String,
    screen: Screen,
    /// A file that has every column.
    whole: Option<&'a str>,
}

impl Pen<'_> {
    /// Adds lines, after removing any control codes that a text brought along.
    fn write(&mut self, ink: Ink, text: &str) {
        let code = match ink {
            Ink::Plain => "",
            Ink::Heading => "1",
            Ink::Bad => "31",
            Ink::Good => "32",
            Ink::Faint => "2",
        };
        for line in words::plain(text).lines() {
            match self.screen.colours {
                Colours::Ansi if !code.is_empty() => {
                    self.text.extend(["\u{1b}[", code, "m", line, "\u{1b}[0m\n"]);
                }
                _ => self.text.extend([line, "\n"]),
            }
        }
    }

    /// Adds sentences, each of which may take several lines.
    fn wrap(&mut self, ink: Ink, text: &str, indents: [&str; 2]) {
        self.write(ink, &fill(&words::plain(text), self.screen.width, indents));
    }

    /// Adds what fits of a table, and says what does not and where it is.
    fn table(&mut self, table: &Table) {
        let fitted = table.fit(self.screen.width);
        for (number, line) in fitted.lines.iter().enumerate() {
            self.write(if number == 0 { Ink::Heading } else { Ink::Plain }, line);
        }
        if !fitted.left_out.is_empty() {
            let place = self.whole.map_or_else(String::new, |whole| format!(" ({whole} has all columns)"));
            let text = format!("left out: {}{place}", name_all(&fitted.left_out));
            self.wrap(Ink::Faint, &text, ["", "  "]);
        }
    }

    fn sections(&mut self, sections: &[Section]) {
        for section in sections {
            if !self.text.is_empty() {
                self.text.push('\n');
            }
            self.section(section);
        }
    }

    fn section(&mut self, section: &Section) {
        self.wrap(Ink::Heading, &section.title, ["", "  "]);
        let quiet = if section.topic == Topic::Unfinished { Ink::Bad } else { Ink::Faint };
        let mut before: Option<&Block> = None;
        for block in &section.blocks {
            let is_apart = matches!(block, Block::Table(_)) || matches!(before, Some(Block::Table(_)));
            let is_prose = |block: &Block| matches!(block, Block::Paragraph(_));
            if is_apart && !is_prose(block) && before.is_some_and(|before| !is_prose(before)) {
                self.text.push('\n');
            }
            self.block(block, quiet);
            before = Some(block);
        }
    }

    fn block(&mut self, block: &Block, quiet: Ink) {
        match block {
            Block::Paragraph(words) => self.wrap(quiet, words, [""; 2]),
            Block::List(sentences) => {
                sentences.iter().for_each(|sentence| self.wrap(Ink::Plain, sentence, ["- ", "  "]));
            }
            Block::Numbered(items) => {
                for (number, item) in items.iter().enumerate() {
                    self.wrap(Ink::Plain, &item.text, [&format!("{:>3}. ", number + 1), "     "]);
                    self.wrap(Ink::Good, &item.advice, ["     "; 2]);
                }
            }
            Block::Facts(facts) => {
                facts
                    .iter()
                    .for_each(|(name, fact)| self.wrap(quiet, &format!("{name}: {fact}"), ["- ", "  "]));
            }
            Block::Table(table) => self.table(table),
            Block::Code(code) => self.write(Ink::Plain, code),
        }
    }
}

/// The names of columns; intervals, which all have the same, are counted.
fn name_all(columns: &[Column]) -> String {
    let names = columns.iter().filter(|column| !column.is_interval).map(|column| column.name.clone());
    let intervals = match columns.iter().filter(|column| column.is_interval).count() {
        0 => None,
        1 => Some("1 interval".into()),
        count => Some(format!("{count} intervals")),
    };
    names.chain(intervals).collect::<Vec<_>>().join(", ")
}

/// The report of a study.
pub fn render_report(report: &Report, screen: Screen) -> String {
    let mut pen = Pen { text: String::new(), screen, whole: Some("report.html") };
    pen.wrap(Ink::Faint, &words::made(report), ["", "  "]);
    words::notices(report).iter().for_each(|notice| pen.wrap(Ink::Bad, notice, ["", "  "]));
    pen.sections(&sections::of(report, Medium::Screen));
    pen.text
}

/// Sections one below the other, in tables that are cut to the columns that fit.
pub fn render(sections: &[Section], screen: Screen) -> String {
    let mut pen = Pen { text: String::new(), screen, whole: None };
    pen.sections(sections);
    pen.text
}

#[cfg(test)]
mod tests;
