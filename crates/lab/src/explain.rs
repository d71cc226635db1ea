//! Published tables: what they say, where they contradict themselves, and what they do not show.
//!
//! ```text
//! text -> page (tables and headings) -> layout (one row per run) -> series (runs that differ only in workers; columns with meanings)
//!      -> audit (recomputed) -> reconcile (rate and clock) -> scaling (laws) -> words
//! ```
//!
//! Only tables are read. What a text says around them, the user says by options.

use serde::Serialize;

pub mod audit;
pub mod figure;
mod html;
mod layout;
pub mod meaning;
pub mod page;
pub mod reconcile;
pub mod scaling;
pub mod series;
mod span;
#[cfg(test)]
mod tests;
mod unknown;
mod words;

pub use meaning::Meaning;
pub use reconcile::Work;
pub use words::render;

use page::Form;
use series::{Context, Series, Skipped};

/// Longest text that is read, in bytes.
pub const LONGEST: usize = 16 << 20;

/// Letters of a text without a table that are quoted.
const QUOTED: usize = 60;

/// Most series of runs that are explained.
const MOST_SERIES: usize = 1000;

/// The largest efficiency that is believed unless the table prints it: more is rather a column read wrongly.
const BELIEVED: f64 = 1.1;

/// What the user knows beyond the table.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Lines on which the tables begin that are meant; all tables if there are none.
    pub tables: Vec<usize>,
    /// Meanings of columns by their headings.
    pub map: Vec<(String, Meaning)>,
    /// What is known about the runs.
    pub context: Context,
    /// How work grows with workers.
    pub work: Option<Work>,
}

/// Reject the input: there is nothing to explain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// It is empty.
    #[error("the file is empty")]
    Empty,
    /// It is not text.
    #[error("this is not text; an HTML, Markdown, CSV or TSV table is needed")]
    NotText,
    /// It is too long.
    #[error("{bytes} bytes are too long for a table; at most {LONGEST} are read")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// It has no table.
    #[error(
        "no table found in a text that begins with {0:?}: a table is HTML, Markdown, or has columns separated by tabs, commas, semicolons \
         or at least two spaces, and a header above them"
    )]
    NoTable(String),
    /// It has tables, but none with workers.
    #[error("no usable table: {}", words::skipped(.0).join("; "))]
    NotUnderstood(Vec<Skipped>),
    /// No table begins on the line given with `--table`.
    #[error("no table begins on line {line}; tables begin on {}", .others.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))]
    NoLine {
        /// The line.
        line: usize,
        /// Lines on which tables begin.
        others: Vec<usize>,
    },
    /// No table has the column given with `--map`.
    #[error("no table has a column {0:?}")]
    NoColumn(String),
    /// `--map` gives a column two meanings.
    #[error("--map gives the column {0:?} two meanings")]
    TwoMeanings(String),
}

/// Everything that was found in a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// What each series of runs says.
    pub series: Vec<SeriesExplanation>,
    /// Tables that were not used.
    pub skipped: Vec<Skipped>,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// What a series of runs says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeriesExplanation {
    /// How its tables were read.
    pub understood: Series,
    /// Why this reading is doubtful, if it is; then nothing is derived from it.
    pub doubt: Option<String>,
    /// How the work grows with workers, if known.
    pub work: Option<Work>,
    /// Results of recomputing its columns.
    pub audit: audit::Audit,
    /// Its recomputed speed-ups.
    pub rows: Vec<scaling::Row>,
    /// How its rate and its clock relate.
    pub reconciliation: Option<reconcile::Reconciliation>,
    /// Laws that its throughput follows.
    pub laws: Vec<scaling::Laws>,
    /// The clock as a fixed plus a divided time.
    pub clock_law: Option<crate::stats::laws::Fit>,
    /// What it does not show, one sentence each.
    pub unknown: Vec<String>,
}

/// Explains the tables of a text.
pub fn explain_text(text: &str, options: &Options) -> Result<Explanation, ExplainError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > LONGEST {
        return Err(ExplainError::TooLong { bytes: text.len() });
    }
    if text.trim().is_empty() {
        return Err(ExplainError::Empty);
    }
    let odd =
        text.chars().take(4096).filter(|c| c.is_control() && !c.is_whitespace() || *c == '\u{fffd}').count();
    if text.contains('\0') || odd > 16 {
        return Err(ExplainError::NotText);
    }
    // Control characters must not reach the terminal.
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    let text = text.replace(steers, " ");
    let page::Page { mut tables, mut warnings } = page::read(&text);
    if let Some(line) = options.tables.iter().find(|line| !tables.iter().any(|table| table.line == **line)) {
        let others = tables.iter().map(|table| table.line).take(20).collect();
        return Err(ExplainError::NoLine { line: *line, others });
    }
    tables.retain(|table| options.tables.is_empty() || options.tables.contains(&table.line));
    check_map(&tables, options)?;
    let (mut all, mut skipped, mut doubtful) = (Vec::new(), Vec::new(), Vec::new());
    for table in &tables {
        match series::read(table, options, &mut warnings) {
            Ok(found) => all.extend(found),
            // Lines of prose may look like a table.
            Err(why) if table.grid.form == Form::Plain => {
                doubtful.push(Skipped { line: table.line, why });
            }
            Err(why) => skipped.push(Skipped { line: table.line, why }),
        }
    }
    if all.len() > MOST_SERIES {
        warnings.push(format!(
            "there are {} series of runs: only the first {MOST_SERIES} are explained",
            all.len()
        ));
        all.truncate(MOST_SERIES);
    }
    let all = series::join(all);
    if all.is_empty() {
        // If there is nothing else, a possible table counts as one.
        let seen = if skipped.is_empty() { doubtful } else { skipped };
        return Err(match seen.is_empty() {
            true => ExplainError::NoTable(text.trim().chars().take(QUOTED).collect()),
            false => ExplainError::NotUnderstood(seen),
        });
    }
    let series = all.into_iter().map(|series| explain(series, options)).collect();
    Ok(Explanation { series, skipped, warnings })
}

fn check_map(tables: &[page::Found], options: &Options) -> Result<(), ExplainError> {
    let named = |name: &str| {
        tables.iter().any(|page::Found { grid, .. }| {
            let mut names = grid.header.iter().chain(grid.rows.iter().filter_map(|row| row.first()));
            names.any(|heading| series::same_name(name, heading))
        })
    };
    for (at, (name, meaning)) in options.map.iter().enumerate() {
        if !named(name) {
            return Err(ExplainError::NoColumn(name.clone()));
        }
        let other = |(other, given): &(String, Meaning)| other.eq_ignore_ascii_case(name) && given != meaning;
        if options.map[..at].iter().any(other) {
            return Err(ExplainError::TwoMeanings(name.clone()));
        }
    }
    Ok(())
}

fn explain(series: Series, options: &Options) -> SeriesExplanation {
    let work = reconcile::work(&series, options.work);
    let rows = scaling::rows(&series, work);
    let audit = audit::audit(&series);
    // A table whose printed speed-ups follow from its measures means them.
    let doubt = if audit.confirmed { None } else { doubt(&series, &rows) };
    let believed = doubt.is_none();
    let reconciliation = work.filter(|_| believed).and_then(|work| reconcile::reconcile(&series, work));
    // A rate that was computed from the clock says the same again.
    let one = match &reconciliation {
        Some(found) => matches!(found, reconcile::Reconciliation::Same { .. }),
        None => series.rate().is_none(),
    };
    let mut laws = if believed { scaling::fit(&rows) } else { Vec::new() };
    laws.truncate(if one { 1 } else { laws.len() });
    SeriesExplanation {
        audit,
        laws,
        clock_law: if believed { scaling::clock_law(&series, work) } else { None },
        unknown: unknown::list(&series, work, &rows),
        doubt,
        work,
        rows,
        reconciliation,
        understood: series,
    }
}

/// Workers that seem faster together than each alone are a reason to doubt the reading first.
fn doubt(series: &Series, rows: &[scaling::Row]) -> Option<String> {
    // A printed speed-up that is 1 on one worker is what the table means.
    let unfounded = |row: &scaling::Row| row.printed.filter(|_| series.base().is_none());
    let too_good = |row: &scaling::Row| {
        let faster = row.by_rate.into_iter().chain(row.by_clock).reduce(f64::max).or(unfounded(row))?;
        (row.workers > row.over && row.efficiency(faster) > BELIEVED).then_some((
            row.workers,
            row.over,
            faster,
        ))
    };
    let (workers, over, faster) = rows.iter().find_map(too_good)?;
    Some(format!(
        "read like this, {} would be {faster:.1} times as fast as {over}: {} may not count workers, or rows or columns of different \
         runs stand together. Nothing is derived; --map COLUMN=MEANING reads it differently",
        crate::words::workers(workers),
        match series.counted_by.as_str() {
            layout::HEADER => "the header".into(),
            name => format!("the column {name:?}"),
        }
    ))
}
