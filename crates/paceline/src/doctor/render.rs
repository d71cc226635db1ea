//! The checks, for people and for programs.

use paceline_lab::{Align, Table};
use serde_json::{Value, json};

use super::examine::{Check, Level, count, sum_up};
use super::facts::Facts;
use crate::colour::{Colour, paint};

/// Advice is broken into lines of about this many letters.
const WIDTH: usize = 72;

/// Whether levels are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// They are not.
    Plain,
    /// They are.
    Coloured,
}

/// A table in sections, and a line that sums up.
pub fn render(checks: &[Check], ink: Ink) -> String {
    let mut table = Table::new([("level", Align::Left), ("what", Align::Left), ("value", Align::Left)]);
    // What is painted must not widen a column: levels are painted in the finished lines.
    let mut levels = vec![None];
    let mut section = None;
    for check in checks {
        if section != Some(check.section) {
            section = Some(check.section);
            table.row([""]);
            table.row([check.section.title()]);
            levels.extend([None, None]);
        }
        table.row([check.level.word(), check.what, &check.value]);
        levels.push(Some(check.level));
        for line in check.advice.iter().flat_map(|advice| wrap(advice)) {
            table.row(["", "", &line]);
            levels.push(None);
        }
    }
    let mut text = String::new();
    for (line, level) in table.to_string().lines().zip(levels) {
        match level.and_then(|level| Some((level, line.strip_prefix(level.word())?))) {
            Some((level, rest)) => text += &(write_level(level, ink) + rest),
            None => text += line,
        }
        text.push('\n');
    }
    format!("{text}\n{}\n", sum_up(checks))
}

fn write_level(level: Level, ink: Ink) -> String {
    let colour = match level {
        Level::Ok => Colour::Green,
        Level::Note => Colour::Cyan,
        Level::Warning => Colour::Yellow,
    };
    match ink {
        Ink::Plain => level.word().into(),
        Ink::Coloured => paint(colour, level.word()),
    }
}

/// Breaks a text between words.
fn wrap(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// The same for programs, with the facts behind it.
pub fn to_json(checks: &[Check], facts: &Facts) -> Value {
    json!({
        "summary": sum_up(checks),
        "warnings": count(checks, Level::Warning),
        "notes": count(checks, Level::Note),
        "checks": checks,
        "facts": facts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::examine::Section;

    fn check(section: Section, level: Level, what: &'static str, advice: Option<&str>) -> Check {
        Check { section, what, level, value: "7".into(), advice: advice.map(Into::into) }
    }

    #[test]
    fn sections_stand_apart_and_advice_stands_below_its_check() {
        let checks = [
            check(Section::Memory, Level::Ok, "swap", None),
            check(Section::System, Level::Warning, "open files", Some("Raise it.")),
        ];
        let expected = "\
level    what        value

Memory
ok       swap        7

System
warning  open files  7
                     Raise it.

1 warning: this machine's numbers should be taken with care
";
        assert_eq!(render(&checks, Ink::Plain), expected);
        let coloured = render(&checks, Ink::Coloured);
        assert!(coloured.contains("\u{1b}[33mwarning\u{1b}[0m  open files  7\n"), "{coloured}");
        assert_eq!(
            coloured.replace("\u{1b}[33m", "").replace("\u{1b}[32m", "").replace("\u{1b}[0m", ""),
            expected
        );
    }

    #[test]
    fn long_advice_is_broken_between_words() {
        let lines = wrap(&"four ".repeat(40));
        assert!(lines.len() > 2 && lines.iter().all(|line| line.len() <= WIDTH), "{lines:?}");
        assert_eq!(lines.join(" "), "four ".repeat(40).trim());
    }
}
