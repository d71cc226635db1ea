//! Speed-ups of a series, and the laws that they follow.

use serde::Serialize;

use super::figure::Figure;
use super::meaning::Meaning;
use super::reconcile::{NORMAL, Work};
use super::series::Series;
use crate::stats::laws::{self, Fit, Law, Point, Unfit};
use crate::stats::regression::{self, Estimate};

/// The fraction of the variance of clocks that a fixed and a divided time must explain to be told.
const DESCRIBED: f64 = 0.9;

/// Speed-ups of a number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Number of workers.
    pub workers: u64,
    /// What the speed-ups are relative to: one worker, or else the fewest.
    pub over: u64,
    /// Examples per second of all of them.
    pub rate: Option<f64>,
    /// Speed-up by the rate.
    pub by_rate: Option<f64>,
    /// Speed-up by the time of training, or of an epoch.
    pub by_clock: Option<f64>,
    /// Speed-up by the total time, if the table also has another clock.
    pub by_total: Option<f64>,
    /// Speed-up as printed, if nothing else is known.
    pub printed: Option<f64>,
}

impl Row {
    /// The speed-up by rate, else by clock, else as printed.
    pub fn speedup(&self) -> Option<f64> {
        self.by_rate.or(self.by_clock).or(self.printed)
    }

    /// The printed speed-up, if nothing else tells it.
    pub fn printed_only(&self) -> Option<f64> {
        self.printed.filter(|_| self.by_rate.or(self.by_clock).is_none())
    }

    /// A speed-up divided by the increase in workers.
    pub fn efficiency(&self, speedup: f64) -> f64 {
        speedup * self.over as f64 / self.workers as f64
    }

    /// The part of the work that would have to be serial for this speed-up (Karp and Flatt 1990).
    pub fn serial(&self) -> Option<f64> {
        let workers = self.workers as f64;
        let speedup = self.speedup().filter(|_| self.workers > 1 && self.over == 1)?;
        // Outside of these, it is no part.
        Some((1.0 / speedup - 1.0 / workers) / (1.0 - 1.0 / workers))
            .filter(|part| (0.0..=1.0).contains(part))
    }
}

/// Recomputes the speed-ups of each row.
pub fn rows(series: &Series, work: Option<Work>) -> Vec<Row> {
    if !series.comparable {
        return Vec::new();
    }
    let rates = series.rate().map(|(_, rates)| rates);
    let base = series.fewest();
    let quotient = |row: usize, of: &dyn Fn(usize) -> Option<f64>| {
        Some(of(row)? / of(base?)?).filter(|quotient| quotient.is_finite() && *quotient > 0.0)
    };
    let time = |meaning: Meaning, row: usize| -> Option<f64> {
        let scale = match work? {
            Work::Divided => 1.0,
            Work::PerWorker => series.workers[row] as f64,
        };
        Some(scale / series.column(meaning)?.figures[row]?.value)
    };
    let clocks: Vec<Meaning> =
        [Meaning::TrainTime, Meaning::TotalTime, Meaning::EpochTime, Meaning::StepTime]
            .into_iter()
            .filter(|clock| series.column(*clock).is_some())
            .collect();
    let printed =
        |row: usize| series.column(Meaning::Speedup).and_then(|column| Some(column.figures[row]?.value));
    let computed = rates.is_some() || work.is_some() && !clocks.is_empty();
    // A printed speed-up includes its own base.
    let over =
        base.filter(|base| computed || printed(*base) == Some(1.0)).map_or(1, |base| series.workers[base]);
    // For a step, the given batch is per worker.
    let batch = series.context.batch.filter(|_| work == Some(Work::PerWorker));
    let row = |row: usize| Row {
        workers: series.workers[row],
        over,
        rate: match &rates {
            Some(rates) => rates[row].map(|rate| rate.value),
            // The given number of examples over the clock.
            None => clocks.first().and_then(|clock| {
                let examples = match clock {
                    Meaning::TrainTime | Meaning::TotalTime => series.context.examples,
                    Meaning::StepTime => batch,
                    _ => None,
                };
                Some(examples? as f64 * time(*clock, row)?)
            }),
        },
        by_rate: quotient(row, &|row| Some(rates.as_ref()?[row]?.value)),
        by_clock: clocks.first().and_then(|clock| quotient(row, &|row| time(*clock, row))),
        by_total: clocks
            .first()
            .filter(|clock| **clock == Meaning::TrainTime)
            .and_then(|_| quotient(row, &|row| time(Meaning::TotalTime, row))),
        printed: printed(row),
    };
    (0..series.workers.len()).map(row).collect()
}

/// The measure of throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Examples a second.
    Rate,
    /// The time of training.
    Clock,
    /// A printed speed-up.
    Printed,
}

/// Laws fitted to one measure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Laws {
    /// The measure.
    pub measure: Measure,
    /// Every law with enough points.
    pub fits: Vec<Fit>,
    /// The best by the corrected Akaike criterion.
    pub best: Option<Fit>,
    /// Why there is none.
    pub unfit: Option<Unfit>,
    /// Worker count with the highest measured throughput, and the largest measured worker count.
    pub highest: Option<(u64, u64)>,
    /// Prediction for twice the largest worker count, by the best law, if it fits.
    pub next: Option<Forecast>,
}

/// A law's prediction for more workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Number of workers.
    pub workers: u64,
    /// Examples a second by the rate, else a speed-up.
    pub throughput: Estimate,
}

/// A number of a row.
type Measured = fn(&Row) -> Option<f64>;

/// Fits the laws of throughput to each measure; to printed speed-ups only if there is nothing else.
pub fn fit(rows: &[Row]) -> Vec<Laws> {
    let measures: [(Measure, Measured); 3] = [
        (Measure::Rate, |row| row.rate),
        (Measure::Clock, |row| row.by_clock),
        (Measure::Printed, |row| row.printed),
    ];
    let mut found: Vec<Laws> = Vec::new();
    for (measure, of) in measures {
        let points: Vec<(u64, f64)> = rows.iter().filter_map(|row| Some((row.workers, of(row)?))).collect();
        if points.len() > 1 && (found.is_empty() || measure != Measure::Printed) {
            found.push(laws_of(measure, &points));
        }
    }
    found
}

fn laws_of(measure: Measure, points: &[(u64, f64)]) -> Laws {
    let fitted: Vec<Point> = points.iter().map(|(workers, y)| Point { x: *workers as f64, y: *y }).collect();
    let best = laws::best(&fitted);
    let most = points.iter().map(|(workers, _)| *workers).max().unwrap_or(0);
    let highest = points.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(workers, _)| (*workers, most));
    let fits: Vec<Fit> = Law::THROUGHPUT.into_iter().filter_map(|law| laws::fit(law, &fitted).ok()).collect();
    let fit = best.as_ref().ok().filter(|fit| !fit.is_rough());
    let next = fit.map(|fit| Forecast { workers: 2 * most, throughput: fit.predict(2.0 * most as f64) });
    Laws { measure, next, fits, unfit: best.as_ref().err().copied(), best: best.ok(), highest }
}

/// The clock as a function of one over the workers: a fixed time plus a divided one.
pub fn clock_law(series: &Series, work: Option<Work>) -> Option<Fit> {
    let clock = series.clock().filter(|_| work == Some(Work::Divided))?;
    let rows = series.workers.iter().zip(&clock.figures);
    let timed: Vec<(f64, Figure)> =
        rows.filter_map(|(workers, time)| Some((1.0 / *workers as f64, (*time)?))).collect();
    let points: Vec<Point> = timed.iter().map(|(x, time)| Point { x: *x, y: time.value }).collect();
    let mut fit =
        laws::fit(Law::Clock, &points).ok().filter(|fit| fit.r2.is_some_and(|r2| r2 > DESCRIBED))?;
    // Rows may lie on a line by chance, so the interval is never narrower than what rounding alone causes.
    let line: Vec<[f64; 2]> = timed.iter().map(|(x, _)| [1.0, *x]).collect();
    let values: Vec<f64> = timed.iter().map(|(_, time)| time.value).collect();
    let roundings: Vec<f64> = timed.iter().map(|(_, time)| time.half / 3f64.sqrt()).collect();
    if let Some(by_digits) = regression::fit(&line, &values).map(|fit| fit.spread(&line, &roundings)) {
        for (parameter, digits) in fit.parameters.iter_mut().zip(by_digits) {
            parameter.lo = parameter.lo.min(parameter.value - NORMAL * digits).max(0.0);
            parameter.hi = parameter.hi.max(parameter.value + NORMAL * digits);
        }
    }
    Some(fit)
}
