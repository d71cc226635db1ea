//! Published tables: what they say, where they contradict themselves, and what they do not show.
//!
//! ```text
//! text -> page (headings, prose, tables) -> series (rows are workers, columns have meanings; tables of the same runs joined)
//!      -> audit (recomputed) -> reconcile (rate and clock) -> scaling (laws) -> words
//! ```

use serde::Serialize;

pub mod audit;
pub mod figure;
pub mod meaning;
pub mod page;
pub mod prose;
pub mod reconcile;
pub mod scaling;
mod seen;
pub mod series;
mod span;
#[cfg(test)]
mod tests;
mod unknown;
mod words;

pub use meaning::Meaning;
pub use reconcile::Work;
pub use words::render;

use audit::Slip;
use audit::parameters::Claim;
use page::{Block, Content, Form};
use prose::{DataSet, Fact, Topic};
use series::{Context, Known, Place, Series, Skipped};

/// Longest text that is read, in bytes.
pub const LONGEST: usize = 16 << 20;

/// Most numbers of the text that are kept.
const MOST_FACTS: usize = 1000;

/// Most series of runs that are explained.
const MOST_SERIES: usize = 1000;

/// What the user knows beyond the table.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Meanings of columns by their headings.
    pub map: Vec<(String, Meaning)>,
    /// Steps of a run.
    pub steps: Option<u64>,
    /// Examples of a run.
    pub examples: Option<u64>,
    /// Examples of a step of one worker.
    pub batch: Option<u64>,
    /// Epochs of a run.
    pub epochs: Option<u64>,
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
    #[error("this is not text; a Markdown, CSV or TSV table is needed")]
    NotText,
    /// It is too long.
    #[error("{bytes} bytes are too long for a table; at most {LONGEST} are read")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// It has no table.
    #[error("no table found: {0}")]
    NoTable(String),
    /// It has tables, but none with workers.
    #[error("no usable table: {}", .0.iter().map(|s| format!("on line {}, {}", s.line, s.why)).collect::<Vec<_>>().join("; "))]
    NotUnderstood(Vec<Skipped>),
    /// No table has the column given with `--map`.
    #[error("no table has a column {0:?}")]
    NoColumn(String),
}

/// Everything that was found in a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Numbers in the text around the tables.
    pub facts: Vec<Fact>,
    /// What each series of runs says.
    pub series: Vec<SeriesExplanation>,
    /// Contradictions between tables, and in the text.
    pub audit: Vec<Slip>,
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
    /// How the work grows with workers, if known.
    pub work: Option<Work>,
    /// Results of recomputing its columns.
    pub audit: Vec<Slip>,
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
    let page::Page { blocks, mut warnings } = page::read(&text);
    check_map(&blocks, options)?;
    let facts: Vec<Fact> = blocks.iter().flat_map(prose::facts).take(MOST_FACTS).collect();
    let mentions: Vec<Mention> = blocks.iter().map(Mention::of).collect();
    let around = Around { blocks: &blocks, mentions: &mentions, facts: &facts, options };
    let (mut all, mut skipped, mut doubtful) = (Vec::new(), Vec::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        let Content::Table(grid) = &block.content else { continue };
        let place = Place { line: block.line, headings: &block.headings, map: &options.map };
        match series::read(grid, &place, &mut warnings) {
            Ok(found) => all.extend(found.into_iter().map(|series| around.dress(series, at))),
            // Two columns may be a list of settings, and lines of prose may look like a table.
            Err(why) if grid.header.len() == 2 || grid.form == Form::Aligned => {
                doubtful.push(Skipped { line: block.line, why });
            }
            Err(why) => skipped.push(Skipped { line: block.line, why }),
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
            true => ExplainError::NoTable(seen::describe(&text)),
            false => ExplainError::NotUnderstood(seen),
        });
    }
    let mut audit = check_parameters(&blocks, &facts);
    audit.extend(audit::parts::compare_tables(&all));
    audit.sort_by_key(|slip| slip.weight);
    let series = all.into_iter().map(|series| explain(series, options)).collect();
    Ok(Explanation { facts, series, audit, skipped, warnings })
}

fn check_map(blocks: &[Block], options: &Options) -> Result<(), ExplainError> {
    let named = |name: &str| {
        blocks.iter().any(|block| match &block.content {
            Content::Table(grid) => {
                let mut names = grid.header.iter().chain(grid.rows.iter().filter_map(|row| row.first()));
                names.any(|heading| heading.trim().eq_ignore_ascii_case(name.trim()))
            }
            Content::Paragraph(_) => false,
        })
    };
    match options.map.iter().find(|(name, _)| !named(name)) {
        Some((name, _)) => Err(ExplainError::NoColumn(name.clone())),
        None => Ok(()),
    }
}

fn explain(series: Series, options: &Options) -> SeriesExplanation {
    let work = reconcile::work(&series, options.work);
    let reconciliation = work.and_then(|work| reconcile::reconcile(&series, work));
    let rows = scaling::rows(&series, work);
    let one = match &reconciliation {
        Some(found) => matches!(found, reconcile::Reconciliation::Same { .. }),
        None => series.rate().is_none(),
    };
    let witnesses = if one { scaling::Witnesses::One } else { scaling::Witnesses::Two };
    SeriesExplanation {
        audit: audit::audit(&series),
        laws: scaling::fit(&rows, witnesses),
        clock_law: scaling::clock_law(&series, work),
        unknown: unknown::list(&series, work, &rows),
        work,
        rows,
        reconciliation,
        understood: series,
    }
}

/// What a part of a page mentions.
struct Mention {
    model: Option<&'static str>,
    data: Option<DataSet>,
    /// Whether it is a table, that is a list of settings.
    listed: bool,
}

impl Mention {
    fn of(block: &Block) -> Self {
        match &block.content {
            Content::Paragraph(text) => {
                Self { model: prose::model(text), data: prose::data_set(text), listed: false }
            }
            Content::Table(grid) => {
                let data = grid.rows.iter().flatten().find_map(|cell| prose::data_set(cell));
                Self { model: None, data, listed: true }
            }
        }
    }
}

/// The text around a table.
struct Around<'a> {
    blocks: &'a [Block],
    mentions: &'a [Mention],
    facts: &'a [Fact],
    options: &'a Options,
}

impl Around<'_> {
    /// Adds title, network, and facts from the text and the options to a table.
    fn dress(&self, mut series: Series, at: usize) -> Series {
        let block = &self.blocks[at];
        // The heading takes precedence over a sentence, which may be about another network.
        let heading = series.headings.iter().rev().find_map(|heading| prose::model(heading));
        let near = (0..at).rev().take_while(|other| self.blocks[*other].headings == block.headings);
        let model = heading.or_else(|| near.filter_map(|other| self.mentions[other].model).next());
        series.model = model.map(Into::into);
        let mut titles: Vec<&str> = series.headings.iter().map(String::as_str).collect();
        if let Some(section) = self.section(at) {
            titles.insert(block.headings.len() - 1, section);
        }
        let mut titles = titles.split_off(titles.len().saturating_sub(2));
        if let Some(model) =
            model.filter(|model| !titles.iter().any(|title| prose::model(title) == Some(model)))
        {
            titles.insert(0, model);
        }
        series.title = if titles.is_empty() { "Table".into() } else { titles.join(" / ") };
        series.context = self.context(&series, at);
        series
    }

    /// The heading of the settings table that applies to a table, if it is at the same level as the table's own heading and
    /// not above it: authors often forget to put what follows one level below.
    fn section(&self, at: usize) -> Option<&str> {
        let own = &self.blocks[at];
        let told = self.facts.iter().rfind(|fact| fact.listed && fact.line < own.line)?;
        let place = self.blocks.binary_search_by_key(&told.line, |block| block.line).ok()?;
        let settings =
            Some(&self.blocks[place]).filter(|block| matches!(block.content, Content::Table(_)))?;
        let ((title, above), (other, beside)) = (settings.headings.split_last()?, own.headings.split_last()?);
        let generic = |word: &&str| title.to_lowercase().contains(word);
        let named = !["setup", "set-up", "setting", "config", "environment", "parameter", "method"]
            .iter()
            .any(generic);
        (above == beside && title != other && named).then_some(title)
    }

    fn context(&self, series: &Series, at: usize) -> Context {
        let line = self.blocks[at].line;
        let known = |topic: Topic, told: Option<u64>| {
            told.map(|value| Known { value, line: None }).or_else(|| setting(self.facts, topic, line))
        };
        let before = || self.mentions[..at].iter().rev();
        let listed = || before().filter(|mention| mention.listed).find_map(|mention| mention.data);
        let titled = || series.headings.iter().rev().find_map(|heading| prose::data_set(heading));
        let options = self.options;
        Context {
            steps: known(Topic::Steps, options.steps),
            batch: known(Topic::Batch, options.batch),
            epochs: known(Topic::Epochs, options.epochs),
            examples: options.examples.map(|value| Known { value, line: None }),
            batches: known(Topic::Batches, None),
            images: known(Topic::Images, None),
            data: listed()
                .or_else(|| before().find_map(|mention| mention.data))
                .or_else(titled)
                .or_else(|| self.mentions.iter().find_map(|mention| mention.data)),
        }
    }
}

/// The last setting before a line, preferring lists; or the only one in the text.
fn setting(facts: &[Fact], topic: Topic, line: usize) -> Option<Known> {
    let about = || facts.iter().filter(move |fact| fact.topic == topic);
    let before = |listed: bool| about().rfind(|fact| fact.line < line && fact.listed == listed);
    let only = || {
        let first = about().next()?;
        about().all(|fact| fact.value == first.value).then_some(first)
    };
    let fact = before(true).or_else(|| before(false)).or_else(only)?;
    Some(Known { value: fact.value, line: Some(fact.line) })
}

fn check_parameters(blocks: &[Block], facts: &[Fact]) -> Vec<Slip> {
    let mut slips = Vec::new();
    for fact in facts.iter().filter(|fact| matches!(fact.topic, Topic::Trainable | Topic::Tensors)) {
        let block = blocks.binary_search_by_key(&fact.line, |block| block.line).ok().map(|at| &blocks[at]);
        let Some((block, Content::Paragraph(text))) = block.map(|block| (block, &block.content)) else {
            continue;
        };
        slips.extend(audit::parameters::check(&Claim {
            fact,
            under: block.headings.iter().rev().find_map(|heading| prose::model(heading)),
            named: prose::model(text),
            data: prose::data_set(text),
        }));
    }
    slips
}
