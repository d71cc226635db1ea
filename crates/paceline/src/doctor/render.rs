//! The checks, for people and for programs.

use paceline_lab::{Align, Table, words};
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
        let advice = check.advice.as_deref().map(|advice| words::fill(advice, WIDTH, [""; 2]));
        for line in advice.iter().flat_map(|advice| advice.lines()) {
            table.row(["", "", line]);
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
        let long = "four ".repeat(40);
        let shown = render(&[check(Section::System, Level::Note, "files", Some(&long))], Ink::Plain);
        assert_eq!(shown.matches("four").count(), 40);
        assert!(shown.lines().all(|line| line.len() <= WIDTH + "warning  files  ".len()), "{shown}");
    }
}
