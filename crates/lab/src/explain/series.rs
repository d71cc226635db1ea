//! Tables with one row per number of workers, and the meaning of their columns.

use serde::Serialize;

use super::figure::{self, Cell, Figure, SPREAD, Unit};
use super::meaning::{self, Meaning};
use super::page::Grid;
use super::prose::DataSet;

mod workers;

use workers::{HEADER_ROW, count, is_transposed, multiply_nodes, transpose, workers_column};

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

/// A column of a table, in seconds, bytes and fractions if its unit is known.
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
}

/// What the text and the options say about the runs of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Context {
    /// Steps of a run, of all workers together or of each.
    pub steps: Option<Known>,
    /// Examples of a step of one worker.
    pub batch: Option<Known>,
    /// Epochs of a run.
    pub epochs: Option<Known>,
    /// Examples of a run.
    pub examples: Option<Known>,
    /// Batches of a task.
    pub batches: Option<Known>,
    /// Examples of a task.
    pub images: Option<Known>,
    /// The data set that the text names.
    pub data: Option<DataSet>,
}

/// A number, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Known {
    /// The number.
    pub value: u64,
    /// Line of the text; `None` if given by an option.
    pub line: Option<usize>,
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counted {
    /// Images, samples or the like.
    Examples,
    /// Tokens of text.
    Tokens,
    /// Steps, of whatever batch.
    Steps,
}

impl Counted {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Examples => "examples",
            Self::Tokens => "tokens",
            Self::Steps => "steps",
        }
    }
}

/// Runs that differ in the number of workers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Headings and words that distinguish it from others.
    pub title: String,
    /// The network, if the text names it.
    pub model: Option<String>,
    /// Lines on which its tables begin.
    pub lines: Vec<usize>,
    /// Heading of the column that counts workers.
    pub counted_by: String,
    /// Workers of each row.
    pub workers: Vec<u64>,
    /// The measured columns.
    pub columns: Vec<Column>,
    /// Facts from the text.
    pub context: Context,
    #[serde(skip)]
    pub(super) headings: Vec<String>,
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

    /// The row of one worker.
    pub fn base(&self) -> Option<usize> {
        self.workers.iter().position(|workers| *workers == 1)
    }

    /// The row with the fewest workers.
    pub fn fewest(&self) -> Option<usize> {
        (0..self.workers.len()).min_by_key(|row| self.workers[*row])
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
        let name = self.rate().map_or_else(String::new, |(column, _)| column.name.to_lowercase());
        let word =
            |names: &[&str]| name.split(|c: char| !c.is_alphabetic()).any(|word| names.contains(&word));
        if word(&["tok", "token", "tokens"]) {
            Counted::Tokens
        } else if word(&["it", "its", "iter", "iters", "iteration", "iterations", "step", "steps", "batches"])
        {
            Counted::Steps
        } else {
            Counted::Examples
        }
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

/// Position of a table.
pub struct Place<'a> {
    /// Its first line.
    pub line: usize,
    /// The headings above it.
    pub headings: &'a [String],
    /// Meanings that the user gave to headings.
    pub map: &'a [(String, Meaning)],
}

/// Reads a table as one series, or as several if words in its rows distinguish them.
pub fn read(grid: &Grid, place: &Place, warnings: &mut Vec<String>) -> Result<Vec<Series>, String> {
    let turned = if is_transposed(grid, place.map) { transpose(grid) } else { grid.clone() };
    let turned = multiply_nodes(turned, place.map);
    let told = |name: &str| {
        place.map.iter().find(|(heading, _)| same_name(heading, name)).map(|(_, meaning)| *meaning)
    };
    let counted = if turned.header[0] == HEADER_ROW { Some(0) } else { workers_column(&turned, told) };
    let key = counted.ok_or_else(|| {
        format!(
            "none of the columns {} is the number of workers; name it with --map COLUMN=workers",
            names(&turned.header)
        )
    })?;
    let keys = split_keys(&turned, key, told);
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (row, cells) in turned.rows.iter().enumerate() {
        let name: Vec<&str> = keys.iter().map(|at| cells[*at].as_str()).collect();
        let name = name.join(", ");
        match groups.iter_mut().find(|(group, _)| *group == name) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((name, vec![row])),
        }
    }
    let mut found = Vec::new();
    for (name, rows) in groups {
        let mut workers = Vec::new();
        let mut kept = Vec::new();
        for row in rows {
            match count(&turned.rows[row][key]) {
                Some(count) => {
                    workers.push(count);
                    kept.push(row);
                }
                None => warnings.push(format!(
                    "line {}: skipped a row with {:?} workers",
                    place.line,
                    shorten(&turned.rows[row][key])
                )),
            }
        }
        let columns: Vec<Column> = (0..turned.header.len())
            .filter(|at| *at != key && !keys.contains(at))
            .map(|at| {
                let cells: Vec<&str> = kept.iter().map(|row| turned.rows[*row][at].as_str()).collect();
                column(&turned.header[at], &cells, told(&turned.header[at]), warnings)
            })
            .collect();
        if !workers.is_empty() && columns.iter().any(|column| column.meaning.is_some()) {
            let mut series = Series {
                title: String::new(),
                model: None,
                lines: vec![place.line],
                counted_by: turned.header[key].clone(),
                workers,
                columns,
                context: Context::default(),
                headings: place.headings.to_vec(),
            };
            series.headings.extend(Some(name).filter(|name| !name.is_empty()));
            found.push(series);
        }
    }
    if found.is_empty() {
        Err(format!("none of the columns is understood: {}", names(&turned.header)))
    } else {
        Ok(found)
    }
}

/// Joins tables of the same runs: same headings, same network, same workers, and no measure twice.
pub fn join(all: Vec<Series>) -> Vec<Series> {
    let mut joined: Vec<Series> = Vec::new();
    for series in all {
        let twin = joined.iter_mut().find(|other| {
            let repeated = series.columns.iter().any(|column| {
                let meaning = column.meaning.filter(|meaning| *meaning != Meaning::Speedup);
                meaning.is_some() && other.columns.iter().any(|theirs| theirs.meaning == meaning)
            });
            other.headings == series.headings
                && other.model == series.model
                && other.workers == series.workers
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

fn names(header: &[String]) -> String {
    let named: Vec<String> = header.iter().take(8).map(|name| format!("{:?}", shorten(name))).collect();
    named.join(", ")
}

fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

fn same_name(a: &str, b: &str) -> bool {
    a.trim().eq_ignore_ascii_case(b.trim())
}

/// Columns of words that distinguish rows with the same number of workers.
fn split_keys(grid: &Grid, key: usize, told: impl Fn(&str) -> Option<Meaning>) -> Vec<usize> {
    let worded = |at: &usize| {
        let words = grid.rows.iter().filter(|row| figure::read(&row[*at]) == Cell::Words).count();
        2 * words > grid.rows.len()
    };
    (0..grid.header.len())
        .filter(|at| *at != key && told(&grid.header[*at]).is_none() && worded(at))
        .collect()
}

fn column(name: &str, cells: &[&str], told: Option<Meaning>, warnings: &mut Vec<String>) -> Column {
    let read: Vec<Cell> = cells.iter().map(|cell| figure::read(cell)).collect();
    let unit = read.iter().find_map(|cell| if let Cell::Number(_, unit) = cell { *unit } else { None });
    let ratio = read.iter().any(|cell| matches!(cell, Cell::Ratio(..)));
    let guessed = meaning::guess(name, unit);
    let meaning = told.or(guessed).map(|meaning| match meaning {
        Meaning::CommShare if ratio && told.is_none() => Meaning::CommRatio,
        other => other,
    });
    let unit = unit.or_else(|| meaning::heading_unit(name));
    let timed = meaning.is_some_and(Meaning::is_time);
    let rated = meaning.is_some_and(Meaning::is_rate);
    let (mut figures, mut not_understood) = (Vec::new(), Vec::new());
    for (text, cell) in cells.iter().zip(read) {
        // No time is in millions, so `M` means minutes here.
        let cell = if timed { figure::read(&text.to_lowercase()) } else { cell };
        let odd = match &cell {
            Cell::Number(_, Some(Unit::Seconds(_))) => rated,
            Cell::Words => meaning.is_some() && text.trim().starts_with(|c: char| c.is_ascii_digit()),
            _ => false,
        };
        if odd {
            not_understood.push(text);
            figures.push(None);
            continue;
        }
        figures.push(match cell {
            Cell::Number(figure, cell_unit) => Some(scale(figure, cell_unit, unit, meaning)),
            Cell::Ratio(minutes, seconds) if timed => {
                Some(Figure { value: 60.0 * minutes.value + seconds.value, half: seconds.half })
            }
            // The first number of a ratio is its scale, and exact.
            Cell::Ratio(scale, part) if scale.value > 0.0 => Some(part.times(1.0 / scale.value)),
            Cell::NotFinite => {
                warnings.push(format!(
                    "{:?} contains a value that is not a finite number; treated as missing",
                    shorten(name)
                ));
                None
            }
            _ => None,
        });
    }
    if let [first, others @ ..] = &not_understood[..] {
        let more =
            if others.is_empty() { String::new() } else { format!(" (and {} more cells)", others.len()) };
        warnings.push(format!(
            "{:?} contains {:?}, which is not understood there{more}; treated as missing",
            shorten(name),
            shorten(first)
        ));
    }
    let has_spread = cells.iter().any(|cell| SPREAD.iter().any(|sign| cell.contains(sign)));
    let ground = if told.is_some() { Ground::Given } else { Ground::Name };
    Column { name: shorten(name), meaning, ground, has_unit: unit.is_some() || ratio, has_spread, figures }
}

fn scale(figure: Figure, own: Option<Unit>, shared: Option<Unit>, meaning: Option<Meaning>) -> Figure {
    match (own.or(shared), meaning) {
        (Some(Unit::Seconds(seconds)), Some(meaning)) if meaning.is_time() => figure.times(seconds),
        (Some(Unit::Bytes(bytes)), Some(Meaning::Memory)) => figure.times(bytes),
        (Some(Unit::Percent), Some(meaning)) if meaning.is_fraction() && own.is_none() => figure.times(0.01),
        // A fraction over one and a half can only be meant in percent.
        (None, Some(meaning)) if meaning.is_fraction() && figure.value > 1.5 => figure.times(0.01),
        _ => figure,
    }
}

/// Decides whether a rate is that of one worker or of all, if the table does not say.
fn settle_rates(series: &mut Series) {
    let open = |column: &Column| column.meaning == Some(Meaning::Rate);
    for at in 0..series.columns.len() {
        if open(&series.columns[at])
            && let Some(meaning) = scope(series, &series.columns[at])
        {
            series.columns[at].meaning = Some(meaning);
            series.columns[at].ground = Ground::Values;
        }
    }
}

/// Whose rate a column gives: by comparison with a speed-up, else with the clock, else by whether it grows.
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
    let miss =
        |others: &[Option<Figure>], faster: fn(f64, f64) -> f64, divided: fn(f64) -> f64| -> Option<f64> {
            let first = others[base]?.value;
            let misses: Option<Vec<f64>> = growth
                .iter()
                .map(|(row, growth)| {
                    let expected = faster(others[*row]?.value, first);
                    Some((growth * divided(workers(*row)) / expected).ln().abs())
                        .filter(|miss| miss.is_finite())
                })
                .collect();
            misses.map(|misses| misses.iter().sum::<f64>() / misses.len() as f64)
        };
    let decide = |others: &[Option<Figure>], faster: fn(f64, f64) -> f64| {
        let (own, all) = (miss(others, faster, |workers| workers)?, miss(others, faster, |_| 1.0)?);
        Some(if own < all { Meaning::RatePerWorker } else { Meaning::RateGlobal })
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
    // Rates of all workers grow, those of one worker stay.
    let flat =
        growth.iter().all(|(_, growth)| *growth < 1.05) && workers(most.0) >= 4.0 && series.clock().is_none();
    // Without a row for one worker, where both are equal, only clear growth decides.
    let shows = series.workers[base] == 1 || growth.iter().all(|(_, growth)| *growth > 1.2);
    if flat { Some(Meaning::RatePerWorker) } else { shows.then_some(Meaning::RateGlobal) }
}
