//! Relates two measures of the same runs: a rate and a clock.
//!
//! A rate R(N) of all workers counts steady steps only; the clock T(N) counts everything. If each run has the same work
//! W (steps divided among the workers) and a time a that the rate does not include, then
//!
//! ```text
//! T(N) = a + W / R(N)              work divided among workers
//! T(N) = a + W N / R(N)            each worker does the whole of W
//! ```
//!
//! which is a straight line in 1/R: least squares give a and W with intervals. W over the steps is the batch. Without a,
//! the clock gives the speed-up `(T(1) - a) / (T(N) - a)`.
//!
//! Printed digits are rounded, which moves a row by up to half a unit of its last digit. A few rows may lie on a line by
//! chance, so an interval is never narrower than what rounding alone causes.

use serde::Serialize;

use super::audit::round_to;
use super::figure::Figure;
use super::meaning::Meaning;
use super::series::{Column, Series};
use super::span::{ARITHMETIC, Span};
use crate::stats::regression::{self, Estimate};

/// How much the two speed-ups may differ and still count as equal.
pub const TOLERATED: f64 = 0.05;

/// Standard errors to either side of a 95 % interval.
pub(super) const NORMAL: f64 = 1.96;

/// Rows count as the same work if the logarithm of the ratio of their examples is below this.
const SURE: f64 = 0.5;

/// How far rows may deviate from the line, as a fraction of the mean clock, if the work is less even than that.
const STRAY: f64 = 0.15;

/// How work grows with workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// The total is the same, divided among the workers.
    Divided,
    /// The same for each worker.
    PerWorker,
}

/// How a rate and a clock relate.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Reconciliation {
    /// The rate was computed from the clock: there is one measure, not two.
    Same {
        /// Heading of the rate.
        rate: String,
        /// Heading of the clock.
        clock: String,
        /// Examples that it was computed with: in total or per worker.
        examples: f64,
        /// Whether those are in total or per worker.
        work: Work,
    },
    /// Two measures, and the line between them.
    Fitted(Box<Fitted>),
}

/// The line between a rate and a clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// Heading of the rate.
    pub rate: String,
    /// Heading of the clock.
    pub clock: String,
    /// How work grows with workers.
    pub work: Work,
    /// Rows that were used.
    pub points: usize,
    /// Seconds that the rate does not include.
    pub fixed: Estimate,
    /// What the interval of the fixed time says.
    pub verdict: Verdict,
    /// Half-width of that interval due to rounding of the printed digits alone, in seconds.
    pub by_digits_s: f64,
    /// Examples of a run (or of a worker).
    pub examples: Estimate,
    /// Whether the interval of the examples contains the given number.
    pub as_told: Option<bool>,
    /// Steps of a run, where known.
    pub steps: Option<u64>,
    /// Examples of a step, where steps are known.
    pub batch: Option<Batch>,
    /// Fraction of the variance that is explained.
    pub r2: Option<f64>,
    /// The two speed-ups at the largest worker count.
    pub speedups: Option<Speedups>,
    /// How long a run must be for the two to agree within 5 % at the largest worker count.
    pub enough: Option<Enough>,
}

/// What the interval of a fixed time says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// There is a fixed time: the interval is above zero.
    Fixed,
    /// The interval contains zero.
    None,
    /// Runs are shorter than their rates allow: the interval is below zero.
    Negative,
}

/// The batch that follows from the line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Batch {
    /// Examples.
    pub examples: Estimate,
    /// Standard error.
    pub standard_error: f64,
    /// The given batch, or else the only power of two in the interval.
    pub expected: Option<u64>,
    /// Whether the interval contains it.
    pub consistent: Option<bool>,
}

/// Speed-ups at the largest worker count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speedups {
    /// Number of workers.
    pub workers: u64,
    /// By the rate.
    pub rate: f64,
    /// By the clock.
    pub clock: f64,
    /// By the clock without the fixed time, if there is one.
    pub without: Option<Without>,
    /// Whether the speed-up by rate agrees with the clock, possibly after subtracting a fixed time within its interval.
    pub consistent: bool,
}

/// Speed-up by the clock without the fixed time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Without {
    /// The speed-up.
    pub value: f64,
    /// The same at the lower end of the fixed time.
    pub lo: f64,
    /// The same at its upper end; `None` if that exceeds the clock.
    pub hi: Option<f64>,
    /// Fraction of the clock that is fixed.
    #[serde(rename = "fixed_share")]
    pub fixed_fraction: f64,
}

/// A length of run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Enough {
    /// Examples.
    pub examples: f64,
    /// The same in steps, where known.
    pub steps: Option<f64>,
    /// Steps at the ends of the interval of the fixed time, where known.
    pub steps_interval: Option<(f64, f64)>,
}

/// A row with a rate and a time.
struct Point {
    workers: u64,
    rate: Figure,
    time: Figure,
    /// Workers that each do the whole work, or one if it is divided.
    scale: f64,
}

impl Point {
    /// Seconds that one example takes at the rate.
    fn each(&self) -> f64 {
        self.scale / self.rate.value
    }

    /// Examples that rate and time imply.
    fn examples(&self) -> Span {
        Span::from(self.rate) * self.time.into() / Span::exact(self.scale)
    }
}

/// The rows that have a rate and a time; `None` if the series has no rate.
fn points(series: &Series, clock: &Column, work: Work) -> Option<Vec<Point>> {
    let (_, rates) = series.rate()?;
    let point = |(&workers, (rate, time)): (&u64, (Option<Figure>, &Option<Figure>))| {
        let positive = |figure: &Figure| figure.value > 0.0;
        let scale = if work == Work::Divided { 1.0 } else { workers as f64 };
        Some(Point { workers, rate: rate.filter(positive)?, time: time.filter(positive)?, scale })
    };
    Some(series.workers.iter().zip(rates.into_iter().zip(&clock.figures)).filter_map(point).collect())
}

/// The clock over the time of an example.
fn line(points: &[Point]) -> (Vec<[f64; 2]>, Vec<f64>) {
    points.iter().map(|point| ([1.0, point.each()], point.time.value)).unzip()
}

/// How the work of a series grows with workers: as given, or as its numbers show.
pub fn work(series: &Series, told: Option<Work>) -> Option<Work> {
    if !series.comparable {
        return None;
    }
    told.or_else(|| {
        let spread = |work: Work| {
            let points = points(series, series.clock()?, work)?;
            let implied = || points.iter().map(|point| point.examples().value.ln());
            let spread = implied().reduce(f64::max)? - implied().reduce(f64::min)?;
            (points.len() > 1 && spread.is_finite()).then_some((work, spread, points))
        };
        let Some((divided, each)) = spread(Work::Divided).zip(spread(Work::PerWorker)) else {
            return alone(series);
        };
        let (work, spread, points) = if divided.1 <= each.1 { divided } else { each };
        (spread < SURE || describes(&points)).then_some(work)
    })
}

/// Whether a fixed time and this work explain the clock, so that rows look uneven only because of the fixed time. Two
/// rows always lie on a line.
fn describes(points: &[Point]) -> bool {
    let (x, y) = line(points);
    let mean = y.iter().sum::<f64>() / y.len() as f64;
    x.len() < 3
        || regression::fit(&x, &y).is_some_and(|fit| {
            let [fixed, each] = fit.coefficients;
            let strays = x.iter().zip(&y).map(|(x, y)| (y - fixed - each * x[1]).powi(2)).sum::<f64>();
            each > 0.0 && (strays / y.len() as f64).sqrt() < STRAY * mean
        })
}

/// With a clock alone: an epoch is the same work for any number of workers, and a time that gets shorter was divided. A
/// step that does not get shorter means that each worker keeps its batch.
fn alone(series: &Series) -> Option<Work> {
    let steps = || series.column(Meaning::StepTime).filter(|_| series.rate().is_none());
    let clock = series.clock().or_else(steps)?;
    let one = clock.figures[series.fewest()?]?.value;
    let shorter = clock.figures.iter().flatten().any(|time| time.value < 0.9 * one);
    let epochs = series.context.epochs.is_some() || series.column(Meaning::EpochTime).is_some();
    if clock.meaning == Some(Meaning::StepTime) {
        return Some(if shorter { Work::Divided } else { Work::PerWorker });
    }
    (epochs || shorter).then_some(Work::Divided)
}

/// Relates rate and clock; `None` if one is missing or there are fewer than three rows.
pub fn reconcile(series: &Series, work: Work) -> Option<Reconciliation> {
    let (rate, _) = series.rate()?;
    let clock = series.clock()?;
    if let Some((clock, examples)) = same(series, work) {
        let (rate, clock) = (rate.name.clone(), clock.name.clone());
        return Some(Reconciliation::Same { rate, clock, examples, work });
    }
    let points = points(series, clock, work)?;
    let (x, y) = line(&points);
    let fit = regression::fit(&x, &y)?;
    let rounding = |Point { rate, time, .. }: &Point, each: f64| {
        let moved = fit.coefficients[1] * each * rate.half / rate.value;
        // Uniform over a unit of the last digit.
        ((time.half.powi(2) + moved.powi(2)) / 3.0).sqrt()
    };
    let roundings: Vec<f64> = points.iter().map(|point| rounding(point, point.each())).collect();
    let by_digits = fit.spread(&x, &roundings);
    let estimate = |at: usize| {
        let by_rows = fit.coefficient(at);
        let (rows, digits) = (by_rows.hi - by_rows.value, NORMAL * by_digits[at]);
        (Estimate::around(by_rows.value, rows.max(digits)), digits)
    };
    let ((fixed, by_digits_s), (examples, _)) = (estimate(0), estimate(1));
    // A line that takes away examples, or has a fixed time longer than a run, describes nothing.
    let shortest = y.iter().copied().fold(f64::INFINITY, f64::min);
    if examples.lo <= 0.0 || fixed.value >= shortest {
        return None;
    }
    let verdict = match fixed {
        Estimate { lo, .. } if lo > 0.0 => Verdict::Fixed,
        Estimate { hi, .. } if hi < 0.0 => Verdict::Negative,
        _ => Verdict::None,
    };
    let steps = series.context.steps.filter(|steps| *steps > 0);
    let batch = steps.map(|steps| {
        let part = |value: f64| value / steps as f64;
        let estimate = Estimate { value: part(examples.value), lo: part(examples.lo), hi: part(examples.hi) };
        batch(estimate, part(fit.standard_errors[1].max(by_digits[1])), series.context.batch)
    });
    let most = points.iter().max_by_key(|point| point.workers)?;
    let one = points.iter().find(|point| point.workers == 1 && series.base().is_some());
    let one = one.filter(|_| most.workers > 1);
    let speedups = one.map(|one| speedups(one, most, fixed));
    let enough = one
        .filter(|_| verdict == Verdict::Fixed)
        .and_then(|one| enough(fixed, examples.value, steps, [one.each(), most.each()]));
    let as_told = series.context.examples.map(|told| (examples.lo..=examples.hi).contains(&(told as f64)));
    let (rate, clock) = (rate.name.clone(), clock.name.clone());
    let fitted = Fitted {
        rate,
        clock,
        work,
        points: points.len(),
        fixed,
        verdict,
        by_digits_s,
        examples,
        as_told,
        steps,
        batch,
        r2: fit.r2,
        speedups,
        enough,
    };
    Some(Reconciliation::Fitted(Box::new(fitted)))
}

/// The number of examples that every row's rate was computed with, if there is one.
pub(super) fn same(series: &Series, work: Work) -> Option<(&Column, f64)> {
    let clocks = [Meaning::EpochTime, Meaning::TrainTime, Meaning::TotalTime];
    clocks.into_iter().filter_map(|meaning| series.column(meaning)).find_map(|clock| {
        let implied: Vec<Span> = points(series, clock, work)?.iter().map(Point::examples).collect();
        let spans: Vec<(f64, f64)> = implied.iter().map(|span| span.ends()).collect();
        let (lo, hi) = common(&spans)?;
        let examples = roundest(lo, hi);
        // Where few digits are printed, rows agree with anything.
        let agrees = |span: &&Span| {
            let (from, to) = span.ends();
            from <= hi && lo <= to && (span.value / examples - 1.0).abs() < 0.02
        };
        let agreeing = implied.iter().filter(agrees).count();
        // One row may be a mistake, which the audit reports.
        (spans.len() >= 3 && agreeing + usize::from(spans.len() > 3) >= spans.len())
            .then_some((clock, examples))
    })
}

/// What most spans have in common.
fn common(spans: &[(f64, f64)]) -> Option<(f64, f64)> {
    let mut ends: Vec<(f64, i64)> = spans
        .iter()
        .flat_map(|(lo, hi)| [(lo * (1.0 - ARITHMETIC), 1), (hi * (1.0 + ARITHMETIC), -1)])
        .collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut within, mut most, mut best) = (0, 0, None);
    for pair in ends.windows(2) {
        within += pair[0].1;
        if within > most {
            (most, best) = (within, Some((pair[0].0, pair[1].0)));
        }
    }
    best
}

/// The number with the fewest digits in a range above zero.
fn roundest(lo: f64, hi: f64) -> f64 {
    let middle = 0.5 * (lo + hi);
    (1..=15)
        .map(|digits| round_to(middle, digits))
        .find(|number| lo <= *number && *number <= hi)
        .unwrap_or(middle)
}

fn batch(examples: Estimate, standard_error: f64, told: Option<u64>) -> Batch {
    let holds = |batch: u64| examples.lo <= batch as f64 && batch as f64 <= examples.hi;
    let mut powers = (0..24).map(|power| 1u64 << power).filter(|batch| holds(*batch));
    let only = powers.next().filter(|_| powers.next().is_none());
    let expected = told.or(only);
    Batch { examples, standard_error, expected, consistent: expected.map(holds) }
}

fn speedups(one: &Point, most: &Point, fixed: Estimate) -> Speedups {
    let Point { workers, scale, time: Figure { value: last, .. }, .. } = *most;
    let (rate, one) = (most.rate.value / one.rate.value, one.time.value);
    let at = |fixed: f64| scale * (one - fixed) / (last - fixed);
    let clock = scale * one / last;
    let left = |fixed: f64| fixed < last && fixed < one;
    let hi = left(fixed.hi).then(|| at(fixed.hi));
    let without = (fixed.lo > 0.0 && left(fixed.value)).then(|| Without {
        value: at(fixed.value),
        lo: at(fixed.lo),
        hi,
        fixed_fraction: fixed.value / last,
    });
    // A fixed time above zero explains a difference within its interval. Without one, the two must agree.
    let (low, high) = match without {
        Some(Without { lo, hi, .. }) => {
            (hi.map_or(lo, |hi| hi.min(lo)), hi.map_or(f64::INFINITY, |hi| hi.max(lo)))
        }
        None => (clock, clock),
    };
    let consistent = low * (1.0 - TOLERATED) <= rate && rate <= high * (1.0 + TOLERATED);
    Speedups { workers, rate, clock, without, consistent }
}

/// With w examples, the clock's speed-up is `(a + w x1) / (a + w xN)` and that of the rate `x1 / xN`; their quotient
/// reaches `1 - t` at `w = a ((1 - t) x1 - xN) / (t x1 xN)`.
fn enough(fixed: Estimate, examples: f64, steps: Option<u64>, [one, most]: [f64; 2]) -> Option<Enough> {
    let need = |fixed: f64| fixed.max(0.0) * ((1.0 - TOLERATED) * one - most) / (TOLERATED * one * most);
    let batch = steps.map(|steps| examples / steps as f64);
    let (value, lo, hi) = (need(fixed.value), need(fixed.lo), need(fixed.hi));
    (value > 0.0 && value.is_finite()).then(|| Enough {
        examples: value,
        steps: batch.map(|batch| value / batch),
        steps_interval: batch.map(|batch| (lo / batch, hi / batch)),
    })
}
