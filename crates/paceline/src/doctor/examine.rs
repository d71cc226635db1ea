//! What the facts mean for a measurement. Nothing is read here.

mod clusters;
mod offers;
mod spoilers;

use paceline_record::Bytes;
use serde::Serialize;

use super::facts::Facts;

/// How much a check matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// It makes numbers worse, or makes them differ from run to run.
    Warning,
}

impl Level {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
        }
    }
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// The processor.
    Processor,
    /// Memory.
    Memory,
    /// GPUs and their libraries.
    Accelerators,
    /// What connects hosts, and what starts them.
    Clusters,
    /// Kernel, surroundings, files.
    System,
    /// What would spoil a measurement.
    Measurement,
    /// What a study could ask for.
    Study,
}

impl Section {
    /// Its heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Processor => "Processor",
            Self::Memory => "Memory",
            Self::Accelerators => "GPUs and their libraries",
            Self::Clusters => "Several hosts",
            Self::System => "System",
            Self::Measurement => "What would spoil a measurement",
            Self::Study => "A study on this machine",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Where it belongs.
    pub section: Section,
    /// Its name, which stays.
    pub what: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What was found.
    pub value: String,
    /// What to do about it.
    pub advice: Option<String>,
}

/// What a rule says of a fact.
struct Finding {
    level: Level,
    value: String,
    advice: Option<String>,
}

impl Finding {
    fn ok(value: impl Into<String>) -> Self {
        Self { level: Level::Ok, value: value.into(), advice: None }
    }

    fn note(value: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Note, value: value.into(), advice: Some(advice.into()) }
    }

    fn warning(value: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::note(value, advice) }
    }
}

/// Applies a rule to a fact. An unknown one is worth a note: nobody can say that it does no harm.
fn judge<T>(section: Section, what: &'static str, fact: Option<T>, rule: impl FnOnce(T) -> Finding) -> Check {
    let unknown = Finding { level: Level::Note, value: "unknown".into(), advice: None };
    let Finding { level, value, advice } = fact.map_or(unknown, rule);
    Check { section, what, level, value, advice }
}

/// All checks, section by section.
pub fn examine(facts: &Facts) -> Vec<Check> {
    [
        offers::processor,
        offers::memory,
        offers::accelerators,
        clusters::clusters,
        offers::system,
        spoilers::measurement,
        spoilers::study,
    ]
    .into_iter()
    .flat_map(|section| section(facts))
    .collect()
}

/// One line that sums up.
pub fn sum_up(checks: &[Check]) -> String {
    match count(checks, Level::Warning) {
        0 => "nothing found that would spoil a measurement".into(),
        1 => "1 warning: this machine's numbers should be taken with care".into(),
        several => format!("{several} warnings: this machine's numbers should be taken with care"),
    }
}

/// Checks of that level.
pub fn count(checks: &[Check], level: Level) -> usize {
    checks.iter().filter(|check| check.level == level).count()
}

fn gigabytes(bytes: Bytes) -> String {
    match bytes.0 as f64 * 1e-9 {
        large if large >= 1.0 => format!("{large:.1} GB"),
        small => format!("{:.0} MB", small * 1e3),
    }
}

fn percent(fraction: f64) -> String {
    let digits = if fraction > 0.0 && fraction < 0.1 { 2 } else { 0 };
    format!("{:.digits$} %", fraction * 100.0)
}

fn plural(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
