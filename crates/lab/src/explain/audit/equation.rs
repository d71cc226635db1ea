//! Equations between the cells of a series: products and quotients, and the sum of start-up and training.

use super::Check;
use crate::explain::figure::Figure;
use crate::explain::meaning::Counted;
use crate::explain::meaning::Meaning::{self, *};
use crate::explain::series::Series;
use crate::explain::span::Span;

/// A number of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its column.
    pub column: usize,
    /// Its row.
    pub row: usize,
}

impl Cell {
    /// The number, if it is there and above zero.
    pub fn figure(self, series: &Series) -> Option<Figure> {
        series.columns[self.column].figures[self.row].filter(|figure| figure.value > 0.0)
    }
}

/// Whether a number multiplies or divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Above,
    Below,
}

/// How the cells of an equation give its target.
#[derive(Clone, Debug)]
enum Form {
    /// An exact factor, times cells, over cells.
    Product(f64, Vec<(Cell, Side)>),
    /// The sum of cells.
    Sum(Vec<Cell>),
}

/// What one cell must be by others.
#[derive(Clone, Debug)]
pub struct Equation {
    /// The cell that follows.
    pub target: Cell,
    form: Form,
}

impl Equation {
    /// All of its cells.
    pub fn cells(&self) -> impl Iterator<Item = Cell> {
        let sources: Vec<Cell> = match &self.form {
            Form::Product(_, factors) => factors.iter().map(|(cell, _)| *cell).collect(),
            Form::Sum(parts) => parts.clone(),
        };
        std::iter::once(self.target).chain(sources)
    }

    /// What a cell must be by the others; `None` if one is missing.
    pub fn solve(&self, series: &Series, wanted: Cell) -> Option<Span> {
        let span = |cell: Cell| cell.figure(series).map(Span::from);
        match &self.form {
            Form::Product(scale, factors) => {
                let (mut above, mut below) = (Span::exact(*scale), Span::exact(1.0));
                let mut side = Side::Above;
                for (cell, at) in factors {
                    match (*cell == wanted, at) {
                        (true, at) => side = *at,
                        (false, Side::Above) => above = above * span(*cell)?,
                        (false, Side::Below) => below = below * span(*cell)?,
                    }
                }
                if wanted == self.target {
                    return Some(above / below);
                }
                let target = span(self.target)?;
                Some(if side == Side::Above { target * below / above } else { above / (below * target) })
            }
            Form::Sum(parts) if wanted == self.target => {
                parts.iter().map(|part| span(*part)).try_fold(Span::exact(0.0), |sum, part| Some(sum + part?))
            }
            Form::Sum(parts) => {
                let mut others = parts.iter().filter(|part| **part != wanted).map(|part| span(*part));
                others.try_fold(span(self.target)?, |left, part| Some(left - part?))
            }
        }
    }

    /// How the target follows, in printed digits.
    pub fn how(&self, series: &Series) -> String {
        let print = |cell: &Cell| cell.figure(series).map_or_else(String::new, Figure::print);
        match &self.form {
            Form::Sum(parts) => parts.iter().map(print).collect::<Vec<_>>().join(" + "),
            Form::Product(scale, factors) => {
                let of = |side: Side| {
                    factors.iter().filter(move |(_, at)| *at == side).map(|(cell, _)| print(cell))
                };
                let (mut above, mut below): (Vec<String>, Vec<String>) =
                    (of(Side::Above).collect(), of(Side::Below).collect());
                if *scale > 1.0 {
                    above.insert(0, format!("{scale}"));
                } else if *scale != 1.0 {
                    below.push(format!("{}", (1e6 / scale).round() / 1e6));
                }
                let over: String = below.iter().map(|number| format!(" / {number}")).collect();
                format!("{}{over}", if above.is_empty() { "1".into() } else { above.join(" x ") })
            }
        }
    }

    /// What needs another value of a source.
    pub fn needed_by(&self, series: &Series) -> String {
        let printed = self.target.figure(series).map_or_else(String::new, Figure::print);
        format!("{} {printed} needs it", series.columns[self.target.column].name)
    }
}

/// A column that may follow from others.
pub struct Relation {
    /// What is compared.
    pub check: Check,
    /// The column.
    pub column: usize,
    /// One equation for each row that is not given by definition.
    pub equations: Vec<Equation>,
    /// The cell that all equations share, if there is one.
    pub base: Option<Cell>,
    /// Rows that must follow where another does not.
    pub least: usize,
}

/// All relations that the meanings of the columns allow. Which were meant, the rows show.
pub fn relations(series: &Series) -> Vec<Relation> {
    let mut all = Builder { series, found: Vec::new() };
    for (column, found) in series.columns.iter().enumerate() {
        match found.meaning {
            Some(Speedup) => all.ratio(Check::Speedup, column, false),
            Some(Efficiency) => all.efficiency(column),
            Some(RateGlobal) => all.rates(column),
            Some(StepTime) => all.step(column),
            Some(TotalTime) => all.total(column),
            Some(EpochTime) => all.epoch(column),
            Some(CommShare) => all.fraction(column),
            _ => {}
        }
    }
    all.found
}

struct Builder<'a> {
    series: &'a Series,
    found: Vec<Relation>,
}

impl Builder<'_> {
    fn columns(&self, wanted: &[Meaning]) -> Vec<usize> {
        let is =
            |at: &usize| self.series.columns[*at].meaning.is_some_and(|meaning| wanted.contains(&meaning));
        (0..self.series.columns.len()).filter(is).collect()
    }

    /// The row that a ratio is relative to: where it prints one, else one worker.
    fn reference(&self, column: usize) -> Option<usize> {
        let fewest = self.series.fewest()?;
        let one = self.series.columns[column].figures[fewest].is_some_and(|figure| figure.value == 1.0);
        if one { Some(fewest) } else { self.series.base() }
    }

    fn add(&mut self, check: Check, column: usize, base: Option<Cell>, of: impl Fn(usize) -> Option<Form>) {
        let rows = 0..self.series.workers.len();
        let equations =
            rows.filter_map(|row| Some(Equation { target: Cell { column, row }, form: of(row)? })).collect();
        self.found.push(Relation { check, column, equations, base, least: 1 });
    }

    /// A ratio to a row, by each measure that may have given it; `per` divides by the increase in workers.
    fn ratio(&mut self, check: Check, column: usize, per: bool) {
        let Some(reference) = self.reference(column) else { return };
        let series = self.series;
        let more = |row: usize| series.workers[row] as f64 / series.workers[reference] as f64;
        let part = |row: usize| if per { 1.0 / more(row) } else { 1.0 };
        let rates = self.columns(&[Rate, RateGlobal, RatePerWorker]);
        for source in rates.into_iter().chain(self.columns(&[TrainTime, TotalTime, EpochTime, StepTime])) {
            let (base, whose) = (Cell { column: source, row: reference }, series.columns[source].meaning);
            let (now, then) = match whose.is_some_and(Meaning::is_time) {
                true => (Side::Below, Side::Above),
                false => (Side::Above, Side::Below),
            };
            // A rate of all or of each; the same work divided, or the same for each worker.
            for each in [false, true] {
                if whose == Some(if each { RateGlobal } else { RatePerWorker }) {
                    continue;
                }
                self.add(check, column, Some(base), |row| {
                    let scale = if each { more(row) } else { 1.0 } * part(row);
                    let factors = vec![(Cell { column: source, row }, now), (base, then)];
                    (row != reference).then_some(Form::Product(scale, factors))
                });
            }
        }
    }

    fn efficiency(&mut self, column: usize) {
        let speedups = self.columns(&[Speedup]);
        let series = self.series;
        for source in &speedups {
            let Some(reference) = self.reference(*source).or(series.fewest()) else { continue };
            let over = if series.columns[*source].figures[reference].is_some_and(|one| one.value == 1.0) {
                series.workers[reference]
            } else {
                1
            };
            self.add(Check::Efficiency, column, None, |row| {
                let more = series.workers[row] as f64 / over as f64;
                (row != reference && more > 1.0)
                    .then(|| Form::Product(1.0 / more, vec![(Cell { column: *source, row }, Side::Above)]))
            });
        }
        self.ratio(Check::Efficiency, column, true);
    }

    /// The rate of all workers by that of each, or by the clock: the same work in each row.
    fn rates(&mut self, column: usize) {
        let series = self.series;
        for clock in self.columns(&[EpochTime, TrainTime, TotalTime]) {
            let at = |column: usize, row: usize| Cell { column, row };
            let work = |row: usize| {
                Some(at(column, row).figure(series)?.value * at(clock, row).figure(series)?.value)
            };
            let mut works: Vec<(usize, f64)> =
                (0..series.workers.len()).filter_map(|row| Some((row, work(row)?))).collect();
            works.sort_by(|a, b| a.1.total_cmp(&b.1));
            let Some(&(middle, _)) = works.get(works.len() / 2) else { continue };
            self.add(Check::Rate, column, None, |row| {
                let factors = vec![
                    (at(column, middle), Side::Above),
                    (at(clock, middle), Side::Above),
                    (at(clock, row), Side::Below),
                ];
                (row != middle).then_some(Form::Product(1.0, factors))
            });
            // Rows may have had different work.
            self.found.last_mut().expect("invariant: just added").least = 2;
        }
        for source in self.columns(&[RatePerWorker]) {
            self.add(Check::Rate, column, None, |row| {
                let workers = series.workers[row];
                (workers > 1)
                    .then(|| Form::Product(workers as f64, vec![(Cell { column: source, row }, Side::Above)]))
            });
        }
    }

    /// The time of a step by its batch, of all workers or of one, and the rate.
    fn step(&mut self, column: usize) {
        let series = self.series;
        if series.counted() != Counted::Examples {
            return;
        }
        let batches: Vec<Option<usize>> = match self.columns(&[Batch]) {
            none if none.is_empty() => vec![None],
            some => some.into_iter().map(Some).collect(),
        };
        for rate in self.columns(&[RateGlobal]) {
            for batch in &batches {
                for each in [false, true] {
                    self.add(Check::StepTime, column, None, |row| {
                        let workers = if each { series.workers[row] as f64 } else { 1.0 };
                        // A batch is an exact number.
                        let scale = workers
                            * match batch {
                                Some(batch) => series.columns[*batch].figures[row]?.value,
                                None => series.context.batch? as f64,
                            };
                        (scale > 0.0)
                            .then(|| Form::Product(scale, vec![(Cell { column: rate, row }, Side::Below)]))
                    });
                }
            }
        }
    }

    fn total(&mut self, column: usize) {
        for init in self.columns(&[InitTime]) {
            for train in self.columns(&[TrainTime]) {
                self.add(Check::TotalTime, column, None, |row| {
                    Some(Form::Sum(vec![Cell { column: init, row }, Cell { column: train, row }]))
                });
            }
        }
    }

    /// The time of an epoch by that of all.
    fn epoch(&mut self, column: usize) {
        let series = self.series;
        let counted = self.columns(&[Epochs]).first().copied();
        for whole in self.columns(&[TrainTime, TotalTime]) {
            self.add(Check::EpochTime, column, None, |row| {
                let epochs = match counted {
                    Some(epochs) => series.columns[epochs].figures[row]?.value,
                    None => series.context.epochs? as f64,
                };
                (epochs > 0.0)
                    .then(|| Form::Product(1.0 / epochs, vec![(Cell { column: whole, row }, Side::Above)]))
            });
        }
    }

    /// The fraction of communication by its time.
    fn fraction(&mut self, column: usize) {
        for comm in self.columns(&[CommTime]) {
            for whole in self.columns(&[TotalTime, TrainTime, EpochTime, StepTime]) {
                self.add(Check::CommTime, column, None, |row| {
                    Some(Form::Product(
                        1.0,
                        vec![
                            (Cell { column: comm, row }, Side::Above),
                            (Cell { column: whole, row }, Side::Below),
                        ],
                    ))
                });
            }
        }
    }
}
