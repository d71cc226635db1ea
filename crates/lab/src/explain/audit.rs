//! Recomputes columns that follow from others, and reports values that the printed digits rule out.

use std::rc::Rc;

use serde::Serialize;

use super::figure::Figure;
use super::meaning::Meaning;
use super::reconcile::{self, TOLERATED, Work};
use super::series::{Column, Counted, Series};
use super::span::{Match, Span};

pub mod parameters;
pub mod parts;
mod relations;
mod remarks;
#[cfg(test)]
mod tests;

/// Example counts closer than this fraction are the same.
const SAME_COUNT: f64 = 0.003;

/// How much a rate and a clock that were measured separately may disagree.
const NOISE: f64 = 0.02;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Time of an epoch against the whole time.
    EpochTime,
    /// The sum of start-up and training.
    TotalTime,
    /// A speed-up against its rates or times.
    Speedup,
    /// An efficiency against its speed-up, or what gives one.
    Efficiency,
    /// A rate against examples and time, or that of all workers against that of each.
    Rate,
    /// Time of a step against its batch and the rate.
    StepTime,
    /// Examples of an epoch against the data set.
    Examples,
    /// A product that the text names.
    Product,
    /// Parameters against the network.
    Parameters,
    /// The fraction of communication against the speed-up.
    Share,
    /// The fraction of communication against its time.
    CommTime,
    /// Parts against the whole.
    Parts,
    /// Digits that were dropped.
    CutOff,
    /// Memory against workers.
    Memory,
    /// Accuracy against workers.
    Accuracy,
    /// A wait that is charged to different calls.
    Wait,
}

/// How much a result of the audit matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// Two printed numbers cannot both be right.
    Contradiction,
    /// Worth knowing.
    Remark,
}

/// A result of the audit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slip {
    /// What is compared.
    pub check: Check,
    /// How much it matters.
    pub weight: Weight,
    /// The column, and for how many workers.
    pub place: String,
    /// What is printed.
    pub printed: Option<Figure>,
    /// What follows from the other numbers.
    pub computed: Option<f64>,
    /// How it was computed, or what it means.
    pub how: String,
    /// What probably happened.
    pub likely: Option<String>,
}

/// A printed value, and a different one that was computed.
#[derive(Clone, Copy)]
struct Mismatch {
    printed: Figure,
    computed: f64,
}

impl Slip {
    /// Something worth knowing.
    pub(super) fn remark(check: Check, place: impl Into<String>, how: impl Into<String>) -> Self {
        let weight = Weight::Remark;
        Self {
            check,
            weight,
            place: place.into(),
            printed: None,
            computed: None,
            how: how.into(),
            likely: None,
        }
    }

    /// A printed number that is not the computed one.
    fn contradiction(check: Check, place: String, values: Mismatch, how: String) -> Self {
        let Mismatch { printed, computed } = values;
        Self {
            check,
            weight: Weight::Contradiction,
            likely: guess_slip(printed, computed),
            place,
            printed: Some(printed),
            computed: Some(computed),
            how,
        }
    }
}

/// Recomputes everything that can be recomputed in a series.
pub fn audit(series: &Series) -> Vec<Slip> {
    let mut slips = Vec::new();
    slips.extend(check_product(series));
    check_total(series, &mut slips);
    check_epochs(series, &mut slips);
    check_rates(series, &mut slips);
    slips.extend(check_told(series));
    for column in series.all(Meaning::Speedup) {
        check_speedup(series, column, &mut slips);
    }
    check_efficiency(series, &mut slips);
    relations::check(series, &mut slips);
    parts::check_comm_fraction(series, &mut slips);
    parts::check_parts(series, &mut slips);
    remarks::remark(series, &mut slips);
    slips.sort_by_key(|slip| slip.weight);
    slips
}

/// The name of a cell.
fn place(column: &Column, workers: u64) -> String {
    format!("{}, {}", column.name, crate::words::workers(workers))
}

/// Compares a column with its expected values; truncated digits cause one remark.
fn compare(
    check: Check,
    series: &Series,
    column: &Column,
    expected: impl Fn(usize) -> Option<(Span, String)>,
) -> Vec<Slip> {
    let mut slips = Vec::new();
    let mut cut = Vec::new();
    for (row, printed) in column.figures.iter().enumerate() {
        let Some((printed, (span, how))) = printed.zip(expected(row)) else { continue };
        match span.matches(printed) {
            Match::Agrees => {}
            Match::CutOff => cut.push((series.workers[row], printed, span.value)),
            Match::Contradicts => {
                let place = place(column, series.workers[row]);
                slips.push(Slip::contradiction(
                    check,
                    place,
                    Mismatch { printed, computed: span.value },
                    how,
                ));
            }
        }
    }
    if let Some((_, printed, value)) = cut.first() {
        let workers: Vec<String> = cut.iter().map(|(workers, ..)| workers.to_string()).collect();
        let at = format!("{}, {} workers", column.name, workers.join(", "));
        slips.push(Slip {
            printed: Some(*printed),
            computed: Some(*value),
            ..Slip::remark(Check::CutOff, at, "truncated instead of rounded")
        });
    }
    slips
}

fn check_product(series: &Series) -> Option<Slip> {
    let (batches, batch) = (series.context.batches?, series.context.batch?);
    let images = series.context.images?;
    let product = batches.value.checked_mul(batch.value)?;
    let how = format!("{} batches of {}", batches.value, batch.value);
    (product != images.value).then(|| {
        let printed = Figure::exact(images.value as f64);
        let line = images.line.map_or_else(String::new, |line| format!(" (line {line})"));
        Slip::contradiction(
            Check::Product,
            format!("images per task{line}"),
            Mismatch { printed, computed: product as f64 },
            how,
        )
    })
}

fn check_total(series: &Series, slips: &mut Vec<Slip>) {
    let parts = series.column(Meaning::InitTime).zip(series.column(Meaning::TrainTime));
    let Some((total, (init, train))) = series.column(Meaning::TotalTime).zip(parts) else { return };
    slips.extend(compare(Check::TotalTime, series, total, |row| {
        let (init, train) = init.figures[row].zip(train.figures[row])?;
        Some((Span::from(init) + train.into(), format!("{} + {}", init.print(), train.print())))
    }));
}

/// The column with the time of all epochs together.
fn whole(series: &Series) -> Option<&Column> {
    series.column(Meaning::TrainTime).or_else(|| series.column(Meaning::TotalTime))
}

fn check_epochs(series: &Series, slips: &mut Vec<Slip>) {
    let Some((epoch, whole)) = series.column(Meaning::EpochTime).zip(whole(series)) else { return };
    slips.extend(compare(Check::EpochTime, series, epoch, |row| {
        let (time, epochs) = whole.figures[row].zip(epochs(series, row))?;
        Some((Span::from(time) / Span::exact(epochs), format!("{} / {epochs} epochs", time.print())))
    }));
}

fn epochs(series: &Series, row: usize) -> Option<f64> {
    let column = series.column(Meaning::Epochs).and_then(|column| column.figures[row]);
    column
        .map(|figure| figure.value)
        .or(series.context.epochs.map(|epochs| epochs.value as f64))
        .filter(|e| *e > 0.0)
}

/// Examples of an epoch, or of a worker's task, that rates and times imply row by row.
fn check_rates(series: &Series, slips: &mut Vec<Slip>) {
    let Some((column, rates)) = series.rate() else { return };
    let epoch = series.column(Meaning::EpochTime);
    let time = |row: usize| -> Option<Span> {
        let from_whole = whole(series).and_then(|whole| whole.figures[row]).zip(epochs(series, row));
        // The total is more reliable: the time per epoch was computed from it.
        let from_whole = from_whole.map(|(time, epochs)| Span::from(time) / Span::exact(epochs));
        from_whole.or_else(|| epoch?.figures[row].map(Span::from))
    };
    let implied: Vec<Option<f64>> =
        rates.iter().enumerate().map(|(row, rate)| Some(rate.as_ref()?.value * time(row)?.value)).collect();
    let mut known: Vec<f64> = implied.iter().flatten().copied().filter(|count| *count > 0.0).collect();
    if known.len() < 2 {
        return;
    }
    known.sort_by(f64::total_cmp);
    let examples = known[known.len() / 2];
    let near = |count: f64, other: f64| (count / other - 1.0).abs() < SAME_COUNT;
    if 2 * known.iter().filter(|count| near(**count, examples)).count() <= known.len() {
        return;
    }
    let rounded = round_to(examples, 3);
    slips.extend(column.figures.iter().enumerate().filter_map(|(row, printed)| {
        let computed = Span::exact(rounded) / time(row)?;
        let scale =
            if column.meaning == Some(Meaning::RatePerWorker) { series.workers[row] as f64 } else { 1.0 };
        let (printed, computed) = ((*printed)?, computed / Span::exact(scale));
        let off = computed.matches(printed) == Match::Contradicts
            && (computed.value / printed.value - 1.0).abs() > NOISE;
        let how = format!(
            "{rounded} {} per epoch, as in the other rows, over {:.2} s",
            series.counted().name(),
            time(row)?.value
        );
        off.then(|| {
            Slip::contradiction(
                Check::Rate,
                place(column, series.workers[row]),
                Mismatch { printed, computed: computed.value },
                how,
            )
        })
    }));
    let Some(data) = series.context.data.filter(|_| series.counted() == Counted::Examples) else { return };
    if near(examples, data.train as f64) {
        return;
    }
    let whole_set = data.train + data.test;
    let likely = near(examples, whole_set as f64).then(|| {
        format!(
            "{} is {} including its {} test images; the training set has {}",
            whole_set, data.name, data.test, data.train
        )
    });
    let how = format!(
        "{} times the epoch time; all rates are {:.2} times too high if an epoch is the {} training images of {}",
        column.name,
        examples / data.train as f64,
        data.train,
        data.name
    );
    let exact = Figure::exact(rounded);
    slips.push(Slip {
        likely,
        ..Slip::contradiction(
            Check::Examples,
            "examples per epoch".into(),
            Mismatch { printed: exact, computed: data.train as f64 },
            how,
        )
    });
}

/// Compares the number of examples that a rate was computed with, if it was computed from the clock, with the given one
/// or that of a column. A separately measured rate may differ: it does not include start-up.
fn check_told(series: &Series) -> Option<Slip> {
    let (clock, implied) = reconcile::same(series, Work::Divided)
        .filter(|_| series.counted() == Counted::Examples && series.context.data.is_none())?;
    let epochs = epochs(series, 0);
    let epoch = clock.meaning == Some(Meaning::EpochTime);
    let column = || {
        let column = series.column(Meaning::Examples)?;
        let first = (*column.figures.first()?)?;
        let even = column.figures.iter().flatten().all(|figure| *figure == first);
        even.then_some((first.value, column.name.as_str()))
    };
    // For as long as the clock runs. A column may count an epoch or a run.
    let (there, other, source) = match series.context.examples {
        Some(given) if epoch => (given.value as f64 / epochs?, None, "given".to_owned()),
        Some(given) => (given.value as f64, None, "given".to_owned()),
        None => {
            let (count, name) = column()?;
            (
                count,
                epochs.map(|epochs| if epoch { count / epochs } else { count * epochs }),
                format!("{name} says"),
            )
        }
    };
    let differs = |there: f64| there > 0.0 && (implied / there - 1.0).abs() > TOLERATED;
    let (rate, _) = series.rate().filter(|_| differs(there) && other.is_none_or(differs))?;
    let how = format!(
        "{} times {}; all rates are {:.2} times too high if there are as many as {source}",
        rate.name,
        clock.name,
        implied / there
    );
    let place = if epoch { "examples per epoch" } else { "examples per run" };
    let printed = Figure::exact(round_to(implied, 3));
    Some(Slip {
        likely: None,
        ..Slip::contradiction(Check::Examples, place.into(), Mismatch { printed, computed: there }, how)
    })
}

fn round_to(value: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(value.abs().log10().floor() as i32 + 1 - digits);
    (value / unit).round() * unit
}

/// A measure that a speed-up may have been computed from.
struct Source<'a> {
    column: &'a Column,
    /// The speed-up that it gives for a row, and the quotient in digits.
    speedup: Rc<dyn Fn(usize) -> Option<(Span, String)> + 'a>,
}

fn sources(series: &Series, base: usize) -> Vec<Source<'_>> {
    let mut sources = Vec::new();
    if let Some((column, rates)) = series.rate() {
        let each = column.meaning == Some(Meaning::RatePerWorker);
        sources.push(Source {
            column,
            speedup: Rc::new(move |row| {
                let (rate, one) = (rates[row]?, rates[base]?);
                let printed = column.figures[row]?.print();
                let scale = if each { format!("{} x ", series.workers[row]) } else { String::new() };
                Some((Span::from(rate) / one.into(), format!("{scale}{printed} / {}", one.print())))
            }),
        });
    }
    for meaning in [Meaning::TrainTime, Meaning::TotalTime, Meaning::EpochTime, Meaning::StepTime] {
        sources.extend(series.all(meaning).map(|column| Source {
            column,
            speedup: Rc::new(move |row| {
                let (time, one) = (column.figures[row]?, column.figures[base]?);
                Some((Span::from(one) / time.into(), format!("{} / {}", one.print(), time.print())))
            }),
        }));
    }
    sources
}

fn check_speedup(series: &Series, column: &Column, slips: &mut Vec<Slip>) {
    let one = column.figures.iter().position(|figure| figure.is_some_and(|figure| figure.value == 1.0));
    let Some(base) = one.or(series.base()) else { return };
    let rows: Vec<usize> =
        (0..series.workers.len()).filter(|row| *row != base && column.figures[*row].is_some()).collect();
    let miss = |source: &Source| -> Option<(usize, f64)> {
        let pairs: Vec<(Figure, Span)> = rows
            .iter()
            .filter_map(|row| column.figures[*row].zip((source.speedup)(*row).map(|(span, _)| span)))
            .collect();
        let off = pairs.iter().filter(|(printed, span)| span.matches(*printed) == Match::Contradicts).count();
        let farthest =
            pairs.iter().map(|(printed, span)| (printed.value / span.value).ln().abs()).fold(0.0, f64::max);
        (!pairs.is_empty() && farthest.is_finite()).then_some((off, farthest))
    };
    let sources = sources(series, base);
    let scored = sources.iter().filter_map(|source| Some((miss(source)?, source)));
    let Some(((off, farthest), source)) =
        scored.min_by(|(a, _), (b, _)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
    else {
        return;
    };
    // A source that most rows follow is the intended one; one that no row follows is not, unless it is close.
    if 2 * off > rows.len() && farthest > 0.25 {
        let named: Vec<&str> = sources.iter().map(|source| source.column.name.as_str()).collect();
        slips.push(Slip::remark(
            Check::Speedup,
            column.name.clone(),
            format!("does not follow from {}", named.join(" or ")),
        ));
        return;
    }
    slips.extend(compare(Check::Speedup, series, column, |row| (source.speedup)(row)));
}

fn check_efficiency(series: &Series, slips: &mut Vec<Slip>) {
    let Some((efficiency, speedup)) = series.column(Meaning::Efficiency).zip(series.column(Meaning::Speedup))
    else {
        return;
    };
    slips.extend(compare(Check::Efficiency, series, efficiency, |row| {
        let printed = speedup.figures[row]?;
        let workers = series.workers[row];
        Some((Span::from(printed) / Span::exact(workers as f64), format!("{} / {workers}", printed.print())))
    }));
}

/// What probably went wrong between a computed number and its printed value.
fn guess_slip(printed: Figure, computed: f64) -> Option<String> {
    let ratio = printed.value / computed;
    if !(ratio.is_finite() && ratio > 0.0) {
        return None;
    }
    let near = |other: f64| (ratio / other - 1.0).abs() < 0.002;
    for (factor, name) in [(10.0, "ten"), (100.0, "a hundred"), (1000.0, "a thousand"), (60.0, "sixty")] {
        if near(factor) {
            return Some(format!("{name} times too large"));
        }
        if near(1.0 / factor) {
            return Some(format!("{name} times too small"));
        }
    }
    let text = printed.print();
    let other = Figure { value: computed, half: if printed.half > 0.0 { printed.half } else { 0.5 } }.print();
    let (a, b): (Vec<char>, Vec<char>) = (text.chars().collect(), other.chars().collect());
    if a.len() != b.len() {
        return None;
    }
    match (0..a.len()).filter(|at| a[*at] != b[*at]).collect::<Vec<_>>()[..] {
        [_] => Some("one digit differs".into()),
        [i, j] if j == i + 1 && a[i] == b[j] && a[j] == b[i] => Some("two digits are swapped".into()),
        _ => None,
    }
}
