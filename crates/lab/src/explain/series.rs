//! Runs that differ only in the number of workers, and the meaning of their measures.

mod column;

use std::collections::HashSet;

use serde::Serialize;

use super::Options;
use super::audit;
use super::figure::Figure;
use super::layout::{self, Group};
use super::meaning::{self, Counted, Meaning, Qualifier};
use super::page::Found;
use crate::{csv, names};

/// How far a rate may be, as the mean of logarithms, from the speed-up or the clock that shows whose it is.
const NEAR: f64 = 0.7;

/// The growth of a rate that shows that it is the rate of all workers.
const GROWS: f64 = 1.3;

/// How the meaning of a column was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ground {
    /// By its name or units.
    Name,
    /// By what its numbers do.
    Values,
    /// By `--map`.
    Given,
}

/// A column of a series, in seconds, bytes and fractions if its unit is known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// Its heading.
    pub name: String,
    /// What it means; `None` if unknown.
    pub meaning: Option<Meaning>,
    /// How that was found.
    pub ground: Ground,
    /// Whether a unit is printed.
    pub has_unit: bool,
    /// Whether its numbers carry a spread.
    pub has_spread: bool,
    /// Its numbers, in the order of the rows.
    pub figures: Vec<Option<Figure>>,
    /// Whether its heading is that of a speed-up or an efficiency, of whatever.
    #[serde(skip)]
    pub is_ratio: bool,
    #[serde(skip)]
    qualifier: Qualifier,
}

/// What the user says about the runs of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Context {
    /// Steps of a run, of all workers together or of each.
    pub steps: Option<u64>,
    /// Examples of a step of one worker.
    pub batch: Option<u64>,
    /// Epochs of a run.
    pub epochs: Option<u64>,
    /// Examples of a run.
    pub examples: Option<u64>,
}

/// Runs that differ in the number of workers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Headings and words that distinguish it from others.
    pub title: String,
    /// Lines on which its tables begin.
    pub lines: Vec<usize>,
    /// Heading of the column that counts workers.
    pub counted_by: String,
    /// Workers of each row.
    pub workers: Vec<u64>,
    /// The measured columns.
    pub columns: Vec<Column>,
    /// Whether rows differ only in workers, so that one can be compared with another.
    pub comparable: bool,
    /// What the user says.
    pub context: Context,
    /// All that is said about its runs; a title may leave out what others have, too.
    #[serde(skip)]
    runs: String,
}

impl Series {
    /// The first column with a meaning.
    pub fn column(&self, meaning: Meaning) -> Option<&Column> {
        self.all(meaning).next()
    }

    /// All columns with a meaning.
    pub fn all(&self, meaning: Meaning) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(move |column| column.meaning == Some(meaning))
    }

    /// The row of one worker; `None` also if there are several.
    pub fn base(&self) -> Option<usize> {
        self.fewest().filter(|row| self.workers[*row] == 1)
    }

    /// The row with the fewest workers; `None` also if there are several, or if rows cannot be compared.
    pub fn fewest(&self) -> Option<usize> {
        if !self.comparable {
            return None;
        }
        let least = (0..self.workers.len()).min_by_key(|row| self.workers[*row])?;
        let alone = self.workers.iter().filter(|workers| **workers == self.workers[least]).count() == 1;
        alone.then_some(least)
    }

    /// Examples per second of all workers: the column, and the rate of each row.
    pub fn rate(&self) -> Option<(&Column, Vec<Option<Figure>>)> {
        if let Some(column) = self.column(Meaning::RateGlobal) {
            return Some((column, column.figures.clone()));
        }
        let column = self.column(Meaning::RatePerWorker)?;
        let rows = column.figures.iter().zip(&self.workers);
        Some((column, rows.map(|(figure, workers)| Some(figure.as_ref()?.times(*workers as f64))).collect()))
    }

    /// What the rate counts, by its heading.
    pub fn counted(&self) -> Counted {
        let words = self.rate().map_or_else(Vec::new, |(column, _)| meaning::words(&column.name));
        meaning::counted_by(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The time that training took: its own column, else the whole time, else that of an epoch.
    pub fn clock(&self) -> Option<&Column> {
        [Meaning::TrainTime, Meaning::TotalTime, Meaning::EpochTime]
            .into_iter()
            .find_map(|time| self.column(time))
    }
}

/// A table that could not be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Where it begins.
    pub line: usize,
    /// What is missing.
    pub why: String,
}

/// Reads a table as one series, or as several if words, settings or precisions distinguish them.
pub fn read(table: &Found, options: &Options, warnings: &mut Vec<String>) -> Result<Vec<Series>, String> {
    let ours = csv::meanings(&table.grid.header).unwrap_or_default();
    let told = |name: &str| {
        let mut known = options.map.iter().chain(&ours);
        known.find(|(heading, _)| same_name(heading, name)).map(|(_, meaning)| *meaning)
    };
    let long = layout::long(&table.grid, &told)?;
    let mut all: Vec<Column> = long.columns.iter().map(|raw| column::read(raw, &long, warnings)).collect();
    let is_ours = |column: &Column| {
        let given = options.map.iter().any(|(heading, _)| same_name(heading, &column.name));
        !ours.is_empty() && !given
    };
    all.iter_mut().filter(|column| is_ours(column)).for_each(|column| column.ground = Ground::Name);
    let settings: Vec<&Column> = all
        .iter()
        .filter(|column| column.meaning.is_none_or(Meaning::is_setting) && !repeats(column))
        .collect();
    let skipped = (0..long.workers.len()).filter(|row| long.workers[*row].is_none()).count();
    if skipped > 0 {
        warnings.push(format!(
            "line {}: skipped {skipped} rows whose number of workers is not a whole number above zero",
            table.line
        ));
    }
    let build = |name: &str, rows: &[usize], comparable: bool| -> Vec<Series> {
        let workers: Vec<u64> = rows.iter().filter_map(|row| long.workers[*row]).collect();
        let select = |column: &Column| Column {
            name: column.name.clone(),
            qualifier: column.qualifier.clone(),
            figures: rows.iter().map(|row| column.figures[*row]).collect(),
            ..*column
        };
        let columns: Vec<Column> = all
            .iter()
            .map(select)
            .filter(|column| column.figures.iter().flatten().next().is_some())
            .collect();
        let comparable = comparable && same_settings(&columns, &workers);
        let label = rows.first().map(|row| &long.labels[*row]);
        let alike = label.filter(|label| rows.iter().all(|row| long.labels[*row] == **label));
        let runs = alike.map_or_else(String::new, |label| label.join(", "));
        let mut found = Vec::new();
        for (qualifier, columns) in apart(columns) {
            let own = [name, &qualifier].map(names::clean);
            let titles = table.headings.iter().chain(own.iter().filter(|name| !name.is_empty()));
            let titles: Vec<&str> = titles.map(String::as_str).collect();
            let last = &titles[titles.len().saturating_sub(3)..];
            let mut series = Series {
                title: if last.is_empty() { "Table".into() } else { last.join(" / ") },
                lines: vec![table.line],
                counted_by: long.counted_by.clone(),
                workers: workers.clone(),
                columns,
                comparable,
                context: options.context,
                runs: runs.clone(),
            };
            settle_ratios(&mut series);
            let is_measure = |meaning: Meaning| !meaning.is_setting() && meaning != Meaning::Ignore;
            if series.columns.iter().any(|column| column.meaning.is_some_and(is_measure)) {
                found.push(series);
            }
        }
        found
    };
    let groups = layout::groups(&long, &settings);
    let differ = |rows: &[usize]| rows.iter().any(|row| long.workers[*row] != long.workers[rows[0]]);
    let (scaling, alone): (Vec<&Group>, Vec<&Group>) = groups.iter().partition(|group| differ(&group.rows));
    let mut found: Vec<Series> =
        scaling.iter().flat_map(|group| build(&group.name, &group.rows, true)).collect();
    if !found.is_empty() && !alone.is_empty() {
        let rows = alone.iter().map(|group| group.rows.len()).sum::<usize>();
        let names: Vec<&str> = alone.iter().take(3).map(|group| group.name.as_str()).collect();
        warnings.push(format!(
            "line {}: left out {rows} {}, from which no other differs only in workers ({}{})",
            table.line,
            if rows == 1 { "row" } else { "rows" },
            names.join("; "),
            if alone.len() > names.len() { "; ..." } else { "" }
        ));
    }
    if found.is_empty() {
        let rows: Vec<usize> = (0..long.workers.len()).filter(|row| long.workers[*row].is_some()).collect();
        // Words may describe the numbers of workers instead of different runs: then printed speed-ups follow over all rows.
        let distinct: HashSet<Option<u64>> = rows.iter().map(|row| long.workers[*row]).collect();
        let together = if distinct.len() == rows.len() { build("", &rows, true) } else { Vec::new() };
        let confirmed = |mut series: Series| {
            settle_rates(&mut series);
            audit::audit(&series).confirmed
        };
        found = match together.iter().cloned().any(confirmed) {
            true => together,
            false => build("", &rows, false),
        };
    }
    if found.is_empty() {
        let names: Vec<String> =
            long.columns.iter().take(8).map(|raw| format!("{:?}", names::clean(&raw.name))).collect();
        return Err(format!(
            "none of the measures {} is understood; name one with --map COLUMN=MEANING",
            names.join(", ")
        ));
    }
    Ok(found)
}

/// Joins neighbouring tables of the same runs: same title, same workers, and no measure twice.
pub fn join(all: Vec<Series>) -> Vec<Series> {
    let mut joined: Vec<Series> = Vec::new();
    for series in all {
        let twin = joined.last_mut().filter(|other| {
            let repeated = series.columns.iter().any(|column| {
                let meaning = column.meaning.filter(|meaning| *meaning != Meaning::Speedup);
                meaning.is_some() && other.columns.iter().any(|theirs| theirs.meaning == meaning)
            });
            other.comparable
                && series.comparable
                && (&other.title, &other.runs) == (&series.title, &series.runs)
                && other.workers == series.workers
                && other.lines != series.lines
                && !repeated
        });
        match twin {
            Some(twin) => {
                twin.columns.extend(series.columns);
                twin.lines.extend(series.lines);
            }
            None => joined.push(series),
        }
    }
    // Only now, because the other table may show whose rate it is.
    joined.iter_mut().for_each(settle_rates);
    joined
}

/// Whether a column numbers the repetitions of a run.
fn repeats(column: &Column) -> bool {
    let words = meaning::words(&column.name);
    words
        .iter()
        .all(|word| meaning::among("trial run repetition repeat rep attempt id no number idx index", word))
}

/// Whether a name is that of a heading, in full or as it is shown.
pub fn same_name(name: &str, heading: &str) -> bool {
    [heading, &names::clean(heading)].iter().any(|heading| name.trim().eq_ignore_ascii_case(heading.trim()))
}

/// Separates columns whose headings say that they are of different runs, such as `FP32` and `AMP`.
fn apart(mut columns: Vec<Column>) -> Vec<(String, Vec<Column>)> {
    // What all columns of a meaning have in common distinguishes none; a precision always does.
    let said: Vec<(Option<Meaning>, Qualifier)> =
        columns.iter().map(|column| (kind(column.meaning), column.qualifier.clone())).collect();
    for column in &mut columns {
        let alike = |other: &&(Option<Meaning>, Qualifier)| other.0 == kind(column.meaning);
        let common = |word: &String| said.iter().filter(alike).all(|(_, words)| words.contains(word));
        let counts = counts_for(column.meaning);
        let keeps = |word: &&String| meaning::is_precision(word) || counts && !common(word);
        column.qualifier = column.qualifier.iter().filter(keeps).cloned().collect();
    }
    let mut all: Vec<Qualifier> = Vec::new();
    for qualifier in columns.iter().map(|column| &column.qualifier) {
        if !qualifier.is_empty() && !all.contains(qualifier) {
            all.push(qualifier.clone());
        }
    }
    let whole = columns.iter().any(|column| {
        matches!(
            column.meaning,
            Some(Meaning::TotalTime | Meaning::TrainTime | Meaning::StepTime | Meaning::EpochTime)
        ) && column.qualifier.is_empty()
    });
    let parts = columns.iter().filter(|column| column.meaning == Some(Meaning::PartTime)).count();
    // Times beside a whole one are its parts; without a whole, each is one.
    for column in &mut columns {
        let precise = column.qualifier.iter().all(|word| meaning::is_precision(word));
        if whole && !precise && column.meaning == Some(Meaning::StepTime) && column.ground != Ground::Given {
            column.meaning = Some(Meaning::PartTime);
        }
        if column.meaning == Some(Meaning::PartTime) && !whole && (parts == 1 || !column.qualifier.is_empty())
        {
            column.meaning = Some(Meaning::TotalTime);
        }
    }
    let is_part = |column: &Column| whole && column.meaning == Some(Meaning::PartTime);
    all.retain(|words| columns.iter().any(|column| column.qualifier == *words && !is_part(column)));
    if all.is_empty()
        || all.len() == 1
            && columns.iter().all(|column| column.qualifier == all[0] || !counts_for(column.meaning))
    {
        return vec![(String::new(), columns)];
    }
    let mut found: Vec<(String, Vec<Column>)> = all
        .iter()
        .map(|qualifier| (qualifier.iter().cloned().collect::<Vec<_>>().join(" "), Vec::new()))
        .collect();
    let mut rest = Vec::new();
    let mut left = None;
    for column in columns {
        let own =
            all.iter().position(|qualifier| *qualifier == column.qualifier).filter(|_| !is_part(&column));
        let ratio = matches!(column.meaning, Some(Meaning::Speedup | Meaning::Efficiency));
        let setting = column.meaning.is_some_and(Meaning::is_setting);
        // A ratio without a name of its own belongs to the measure before it, settings to all.
        match (own, left) {
            (Some(own), _) => {
                left = Some(own);
                found[own].1.push(column);
            }
            (None, Some(left)) if ratio => found[left].1.push(column),
            _ if setting => found.iter_mut().for_each(|(_, columns)| columns.push(column.clone())),
            _ => {
                left = if counts_for(column.meaning) { None } else { left };
                rest.push(column);
            }
        }
    }
    found.push((String::new(), rest));
    found
}

/// Meanings whose headings are compared with each other.
fn kind(meaning: Option<Meaning>) -> Option<Meaning> {
    meaning.map(|meaning| match meaning {
        rate if rate.is_rate() => Meaning::Rate,
        other => other,
    })
}

/// Whether the words of a heading say which runs the column is about.
fn counts_for(meaning: Option<Meaning>) -> bool {
    meaning.is_some_and(|meaning| {
        !meaning.is_setting()
            && !matches!(
                meaning,
                Meaning::Accuracy
                    | Meaning::Loss
                    | Meaning::Memory
                    | Meaning::Ignore
                    | Meaning::CommShare
                    | Meaning::CommRatio
                    | Meaning::CommTime
                    | Meaning::InitTime
            )
    })
}

/// If a speed-up or an efficiency is not one where there is one worker, all of them are relative to something else; where rows cannot be
/// compared, they are too.
fn settle_ratios(series: &mut Series) {
    let base = series.base();
    let other = |column: &Column| {
        let one = base.and_then(|base| column.figures[base]);
        column.is_ratio && one.is_some_and(|one| one.value != 1.0)
    };
    if !series.comparable || series.columns.iter().any(other) {
        let guessed = |column: &&mut Column| column.is_ratio && column.ground != Ground::Given;
        series.columns.iter_mut().filter(guessed).for_each(|column| column.meaning = None);
    }
}

/// Whether the settings of rows allow to compare them: each is the same in all rows, or grows or shrinks with the workers.
fn same_settings(columns: &[Column], workers: &[u64]) -> bool {
    const SETTINGS: &str =
        "seq seqlen sequence length size layers hidden dim resolution mbs gbs tp pp cp micro epoch epochs";
    let is_setting = |column: &&Column| match column.meaning {
        Some(meaning) => meaning.is_setting(),
        None => meaning::words(&column.name).iter().any(|word| meaning::among(SETTINGS, word)),
    };
    let even = |column: &Column, power: i32| {
        let rows = column.figures.iter().zip(workers);
        let values = rows.filter_map(|(figure, n)| Some(figure.as_ref()?.value * (*n as f64).powi(power)));
        let values: Vec<f64> = values.collect();
        // Steps and batches are rounded where they are divided.
        values.iter().all(|value| (value - values[0]).abs() <= 0.02 * values[0].abs())
    };
    columns.iter().filter(is_setting).all(|column| [0, -1, 1].iter().any(|power| even(column, *power)))
}

/// Decides whether a rate is that of one worker or of all, if the table does not say.
fn settle_rates(series: &mut Series) {
    for at in 0..series.columns.len() {
        if series.columns[at].meaning == Some(Meaning::Rate)
            && let Some(meaning) = scope(series, &series.columns[at])
        {
            series.columns[at].meaning = Some(meaning);
            series.columns[at].ground = Ground::Values;
        }
    }
}

/// Whose rate a column gives: by comparison with a speed-up, else with the clock, else by whether it grows. `None` if that is not clear.
fn scope(series: &Series, column: &Column) -> Option<Meaning> {
    let base = series.fewest()?;
    let one = column.figures[base].filter(|figure| figure.value > 0.0)?.value;
    let growth: Vec<(usize, f64)> = (0..series.workers.len())
        .filter(|row| *row != base)
        .filter_map(|row| Some((row, column.figures[row]?.value / one)))
        .filter(|(_, growth)| *growth > 0.0)
        .collect();
    let most = growth.iter().max_by_key(|(row, _)| series.workers[*row])?;
    let workers = |row: usize| series.workers[row] as f64 / series.workers[base] as f64;
    let decide = |others: &[Option<Figure>], faster: fn(f64, f64) -> f64| {
        let first = others[base]?.value;
        let miss = |divided: bool| -> Option<f64> {
            let misses = growth.iter().map(|(row, growth)| {
                let more = if divided { workers(*row) } else { 1.0 };
                let miss = (growth * more / faster(others[*row]?.value, first)).ln().abs();
                Some(miss).filter(|miss| miss.is_finite())
            });
            let misses: Option<Vec<f64>> = misses.collect();
            misses.map(|misses| misses.iter().sum::<f64>() / misses.len() as f64)
        };
        let (own, all) = (miss(true)?, miss(false)?);
        match own < all {
            true => (own < NEAR && 2.0 * own < all).then_some(Meaning::RatePerWorker),
            false => (all < NEAR && 2.0 * all < own).then_some(Meaning::RateGlobal),
        }
    };
    if let Some(speedup) =
        series.all(Meaning::Speedup).find_map(|speedup| decide(&speedup.figures, |s, one| s / one))
    {
        return Some(speedup);
    }
    let clock = series.clock().filter(|clock| {
        // Only a clock that gets shorter shows that the work was divided.
        clock.figures[most.0].zip(clock.figures[base]).is_some_and(|(last, first)| last.value < first.value)
    });
    if let Some(scope) = clock.and_then(|clock| decide(&clock.figures, |time, one| one / time)) {
        return Some(scope);
    }
    // What hardly grows may be the rate of one worker, or of all that do not scale.
    (most.1 > GROWS).then_some(Meaning::RateGlobal)
}
