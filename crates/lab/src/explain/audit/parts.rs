//! Fractions and parts of the time: whether they fit into the whole, and which contain others.

use super::{Check, Mismatch, Slip, Weight, place};
use crate::explain::figure::Figure;
use crate::explain::meaning::Meaning;
use crate::explain::series::{Column, Series};
use crate::explain::span::{Match, Span};

/// Compares the fraction of communication with the speed-up: the rest is computation, so N workers can be at most
/// `N (1 - fraction)` times as fast as one.
pub(super) fn check_comm_fraction(series: &Series, slips: &mut Vec<Slip>) {
    let Some(column) = series.column(Meaning::CommShare).or_else(|| series.column(Meaning::CommRatio)) else {
        return;
    };
    let ratio = column.meaning == Some(Meaning::CommRatio);
    let mut kept: Vec<(u64, f64)> = Vec::new();
    for row in 0..series.workers.len() {
        let workers = series.workers[row];
        let Some((part, speedup)) = column.figures[row].zip(speedup(series, row)).filter(|_| workers > 1)
        else {
            continue;
        };
        let one = Span::exact(1.0);
        // Of a ratio r of communication to computation, 1 / (1 + r) is computation.
        let computing = if ratio {
            one / (one + part.into())
        } else {
            let left = |fraction: f64| (1.0 - fraction).clamp(0.0, 1.0);
            Figure { value: left(part.value), half: part.half }.into()
        };
        let most = Span::exact(workers as f64) * computing;
        let printed = Figure { value: speedup.0.value, half: speedup.1 };
        kept.push((workers, speedup.0.value / most.value));
        if most.matches(printed) == Match::Contradicts && printed.value > most.value {
            slips.push(Slip {
                weight: Weight::Contradiction,
                printed: Some(printed),
                computed: Some(most.value),
                likely: Some("rounded too far, or part of the communication runs beside computation".into()),
                ..Slip::remark(
                    Check::Share,
                    format!("{}, {}", column.name, crate::words::workers(workers)),
                    format!("{workers} times {:.1} % computation", 100.0 * computing.value),
                )
            });
        }
    }
    let Some((workers, kept)) = kept.last().filter(|(_, kept)| *kept < 0.95) else { return };
    slips.push(Slip::remark(
        Check::Share,
        column.name.clone(),
        format!(
            "does not account for the whole loss: on {workers} workers, the rest of the time yields only {:.0} % of what {workers} single \
             workers would compute. Something else slows them down: shared cores or memory, waiting, or communication not counted",
            100.0 * kept
        ),
    ));
}

/// The speed-up of a row by rate, else as printed; with half of what its digits allow.
fn speedup(series: &Series, row: usize) -> Option<(Span, f64)> {
    if let Some(printed) = series.column(Meaning::Speedup).and_then(|column| column.figures[row]) {
        return Some((printed.into(), printed.half));
    }
    let (_, rates) = series.rate()?;
    let quotient = Span::from(rates[row]?) / rates[series.base()?]?.into();
    let (lo, hi) = quotient.ends();
    Some((quotient, 0.5 * (hi - lo)))
}

/// How one part of the time relates to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Containment {
    /// The part.
    pub part: String,
    /// The part that may contain it.
    pub holder: String,
    /// Whether it is contained: separate parts would exceed the total. Otherwise it is too long to be contained.
    pub inside: bool,
}

/// Which parts of the time must be part of communication, and which cannot be.
pub fn containments(series: &Series) -> Vec<Containment> {
    let Some(total) = series.column(Meaning::TotalTime).or_else(|| series.column(Meaning::TrainTime)) else {
        return Vec::new();
    };
    let parts: Vec<&Column> = series.all(Meaning::CommTime).chain(series.all(Meaning::PartTime)).collect();
    let mut found = Vec::new();
    for holder in series.all(Meaning::CommTime) {
        for part in series.all(Meaning::PartTime) {
            let rows = || {
                (0..series.workers.len())
                    .filter_map(|row| Some((row, part.figures[row]?, holder.figures[row]?)))
            };
            let fits = rows().count() > 0 && rows().all(|(_, part, holder)| part.lo() <= holder.hi());
            // As separate parts they would exceed the total; with this one contained, they do not.
            let sum = |row: usize, without: Option<&Column>| -> f64 {
                let counted = parts
                    .iter()
                    .filter(|column| !without.is_some_and(|without| std::ptr::eq(**column, without)));
                counted.filter_map(|column| column.figures[row]).map(Figure::lo).sum()
            };
            let too_long =
                rows().any(|(row, ..)| total.figures[row].is_some_and(|total| sum(row, None) > total.hi()));
            let then_fits = rows()
                .all(|(row, ..)| total.figures[row].is_none_or(|total| sum(row, Some(part)) <= total.hi()));
            let contained = fits && too_long && then_fits;
            let outside = rows().any(|(_, part, holder)| part.lo() > holder.hi());
            if contained || outside {
                found.push(Containment {
                    part: part.name.clone(),
                    holder: holder.name.clone(),
                    inside: contained,
                });
            }
        }
    }
    found
}

pub(super) fn check_parts(series: &Series, slips: &mut Vec<Slip>) {
    let found = containments(series);
    let inside = |name: &str| found.iter().any(|containment| containment.inside && containment.part == name);
    for containment in found.iter().filter(|containment| containment.inside) {
        let how = format!("is part of {}: as separate parts they would exceed the total", containment.holder);
        slips.push(Slip::remark(Check::Parts, containment.part.clone(), how));
    }
    let Some(total) = series.column(Meaning::TotalTime) else { return };
    let parts: Vec<&Column> = series.all(Meaning::CommTime).chain(series.all(Meaning::PartTime)).collect();
    for row in 0..series.workers.len() {
        let counted: Vec<Figure> =
            parts.iter().filter(|part| !inside(&part.name)).filter_map(|part| part.figures[row]).collect();
        let Some(whole) = total.figures[row].filter(|_| counted.len() > 1) else { continue };
        let sum = counted.iter().map(|figure| Span::from(*figure)).reduce(|a, b| a + b);
        if let Some(sum) = sum.filter(|sum| sum.ends().0 > whole.hi()) {
            let how = "the sum of its parts".to_owned();
            slips.push(Slip::contradiction(
                Check::Parts,
                place(total, series.workers[row]),
                Mismatch { printed: whole, computed: sum.value },
                how,
            ));
        }
    }
    slips.extend(moved_wait(series));
}

/// A part that shrinks as soon as another appears, although the work per worker is the same.
fn moved_wait(series: &Series) -> Option<Slip> {
    let base = series.base()?;
    let whole = series.column(Meaning::TotalTime)?.figures[base]?.value;
    let more: Vec<usize> = (0..series.workers.len()).filter(|row| series.workers[*row] > 1).collect();
    let shrinks = |column: &&Column| {
        let Some(one) = column.figures[base].filter(|one| one.value > 0.4 * whole) else { return false };
        !more.is_empty()
            && more.iter().all(|row| column.figures[*row].is_some_and(|then| then.value < 0.5 * one.value))
    };
    let appears = |column: &&Column| {
        column.figures[base].is_none()
            && !more.is_empty()
            && more.iter().all(|row| column.figures[*row].is_some())
    };
    let shrinking = series.all(Meaning::PartTime).find(shrinks)?;
    let appearing = series.all(Meaning::PartTime).find(appears)?;
    let (first, then) = (shrinking.figures[base]?, shrinking.figures[more[0]]?);
    let waited = appearing.figures[more[0]]?;
    Some(Slip::remark(
        Check::Wait,
        shrinking.name.clone(),
        format!(
            "takes {} s on 1 worker but {} s on {}, although the work per worker is the same; {}, which exists only with more workers, \
             takes {} s. A host timer on an asynchronous device charges the wait for the device to the first call that blocks: \
             with one worker that is {}, with more it is {}. Neither time is the call's own work",
            first.print(),
            then.print(),
            series.workers[more[0]],
            appearing.name,
            waited.print(),
            shrinking.name,
            appearing.name
        ),
    ))
}

/// Columns that mean one thing in one table and another in the next.
pub fn compare_tables(all: &[Series]) -> Vec<Slip> {
    let found: Vec<(&Series, Containment)> =
        all.iter().flat_map(|series| containments(series).into_iter().map(move |c| (series, c))).collect();
    let mut slips: Vec<Slip> = Vec::new();
    for (_, first) in found.iter().filter(|(_, containment)| containment.inside) {
        let same = |inside: bool| {
            let tables = found.iter().filter(move |(_, other)| {
                other.part == first.part && other.holder == first.holder && other.inside == inside
            });
            tables
                .map(|(series, _)| format!("{} (line {})", series.title, series.lines[0]))
                .collect::<Vec<_>>()
        };
        let (inside, outside) = (same(true), same(false));
        if !outside.is_empty() && !slips.iter().any(|slip| slip.place == first.part) {
            slips.push(Slip {
                weight: Weight::Contradiction,
                ..Slip::remark(
                    Check::Parts,
                    first.part.clone(),
                    format!(
                        "is part of {} in {} (as separate parts they would exceed the total) but not in {} (it is longer than \
                         {}): the same heading means two things",
                        first.holder,
                        inside.join(" and "),
                        outside.join(" and "),
                        first.holder
                    ),
                )
            });
        }
    }
    slips
}
