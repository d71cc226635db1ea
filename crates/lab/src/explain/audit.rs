//! Recomputes columns that follow from others, and reports values that the printed digits rule out.
//!
//! A relation between columns, such as `speed-up = rate / rate of one worker`, is taken as meant only if the rows follow it. Then a row
//! that does not holds a slip, and of the cells in the equations that fail, the one is accused that explains them and is not needed by
//! equations that hold.

use std::collections::HashSet;

use serde::Serialize;

use super::figure::Figure;
use super::meaning::Counted;
use super::meaning::Meaning;
use super::reconcile::{self, TOLERATED, Work};
use super::series::{Column, Series};
use super::span::{Match, Span};
use equation::{Cell, Equation, Relation, relations};

mod equation;
mod remarks;
#[cfg(test)]
mod tests;

/// The widest number, relative to its value, whose agreement shows that a relation was meant.
const TELLING: f64 = 0.03;

/// How much the base of a ratio may differ from the printed one if it was measured elsewhere.
const ELSEWHERE: f64 = 0.005;

/// How much it must differ to be a slip.
const SLIPPED: f64 = 0.02;

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
    /// The fraction of communication against its time.
    CommTime,
    /// Examples of a run against the given number.
    Examples,
    /// The fraction of communication against the speed-up.
    Share,
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

impl Slip {
    /// Something worth knowing.
    fn remark(check: Check, place: impl Into<String>, how: impl Into<String>) -> Self {
        let (place, how) = (place.into(), how.into());
        Self { check, weight: Weight::Remark, place, printed: None, computed: None, how, likely: None }
    }
}

/// What the audit of a series found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Audit {
    /// Columns that follow from others in most of their rows.
    pub follows: Vec<String>,
    /// Contradictions first, then remarks.
    pub slips: Vec<Slip>,
    /// Whether a printed speed-up or efficiency agrees with what it was computed from.
    #[serde(skip)]
    pub confirmed: bool,
}

/// Recomputes everything that can be recomputed in a series.
pub fn audit(series: &Series) -> Audit {
    let meant = meant(series);
    let mut slips = accuse(series, &meant);
    slips.extend(meant.iter().filter_map(|relation| cut_off(series, relation)));
    slips.extend(check_told(series));
    remarks::remark(series, &mut slips);
    slips.sort_by_key(|slip| slip.weight);
    let mut follows: Vec<String> =
        meant.iter().map(|relation| series.columns[relation.column].name.clone()).collect();
    follows.dedup();
    let confirmed = meant.iter().any(|relation| matches!(relation.check, Check::Speedup | Check::Efficiency));
    Audit { follows, slips, confirmed }
}

/// How an equation compares with the printed digits; `None` also if it decides nothing: what was measured one by one may differ a little.
fn outcome(series: &Series, check: Check, equation: &Equation) -> Option<(Figure, Span, Match)> {
    let printed = equation.target.figure(series)?;
    let span = equation.solve(series, equation.target)?;
    let found = span.matches(printed);
    let measured = matches!(check, Check::Rate | Check::StepTime | Check::CommTime);
    let near = (printed.value / span.value - 1.0).abs() < TOLERATED;
    // A whole may have small parts that are not printed.
    let more = check == Check::TotalTime && printed.value > span.value;
    let decides = match found {
        Match::Agrees | Match::CutOff => true,
        Match::Unclear => false,
        Match::Contradicts => !(near && (measured || more)),
    };
    decides.then_some((printed, span, found))
}

/// The relations that the rows follow, the best one for each column and kind.
fn meant(series: &Series) -> Vec<Relation> {
    let mut best: Vec<((usize, usize), Relation)> = Vec::new();
    for relation in relations(series) {
        let Some((off, follow)) = score(series, &relation) else { continue };
        match best
            .iter_mut()
            .find(|(_, other)| other.column == relation.column && other.check == relation.check)
        {
            Some((known, other)) => {
                if (off, usize::MAX - follow) < (known.0, usize::MAX - known.1) {
                    (*known, *other) = ((off, follow), relation);
                }
            }
            None => best.push(((off, follow), relation)),
        }
    }
    best.into_iter().map(|(_, relation)| relation).collect()
}

/// In how many rows a relation fails and holds, if it was meant.
fn score(series: &Series, relation: &Relation) -> Option<(usize, usize)> {
    let (mut off, mut follow, mut telling, mut near) = (0, 0, HashSet::new(), 0);
    for equation in &relation.equations {
        let Some((printed, span, found)) = outcome(series, relation.check, equation) else { continue };
        let (lo, hi) = span.ends();
        let narrow = printed.half <= TELLING * printed.value && hi - lo <= 2.0 * TELLING * span.value;
        if found == Match::Contradicts {
            off += 1;
            near += usize::from(
                (printed.value / span.value - 1.0).abs() < TOLERATED
                    || guess_slip(printed, span.value).is_some(),
            );
        } else {
            follow += 1;
            telling.extend(narrow.then_some(series.workers[equation.target.row]));
        }
    }
    let holds = telling.len() >= 2 && 2 * off <= follow || telling.len() == 1 && off == 1 && near == 1;
    let base = other_base(series, relation).filter(|_| off > 0);
    match base {
        // Relative to a run that is not in the table, of about the same speed.
        Some(apart) if apart < ELSEWHERE => None,
        Some(apart) if off >= 3 && follow == 0 => (apart > SLIPPED).then_some((off, follow)),
        _ => (holds && (off == 0 || follow >= relation.least)).then_some((off, follow)),
    }
}

/// How far from its printed value, as a fraction, the cell that all rows of a relation share would have to be for all of them to hold; `None`
/// if no value makes them hold, or if the ratio does not print one in its row and is relative to something else.
fn other_base(series: &Series, relation: &Relation) -> Option<f64> {
    let base = relation.base?;
    let printed = base.figure(series)?;
    series.columns[relation.column].figures[base.row].filter(|one| one.value == 1.0)?;
    let needed: Vec<(u64, (f64, f64))> = relation
        .equations
        .iter()
        .filter_map(|equation| {
            Some((series.workers[equation.target.row], equation.solve(series, base)?.ends()))
        })
        .collect();
    let counts: HashSet<u64> = needed.iter().map(|(workers, _)| *workers).collect();
    let (lo, hi) = needed
        .iter()
        .fold((f64::MIN, f64::MAX), |(lo, hi), (_, needed)| (lo.max(needed.0), hi.min(needed.1)));
    let apart = (lo / printed.hi() - 1.0).max(printed.lo() / hi - 1.0).max(0.0);
    (counts.len() >= 3 && lo <= hi && hi - lo <= 2.0 * TELLING * hi).then_some(apart)
}

/// Names one cell for each set of equations that fail together.
fn accuse(series: &Series, meant: &[Relation]) -> Vec<Slip> {
    let all = meant
        .iter()
        .flat_map(|relation| relation.equations.iter().map(move |equation| (relation.check, equation)));
    let mut judged: Vec<(Check, &Equation, bool)> = all
        .filter_map(|(check, equation)| {
            Some((check, equation, outcome(series, check, equation)?.2 == Match::Contradicts))
        })
        .collect();
    let mut slips = Vec::new();
    loop {
        let failing: Vec<Cell> = judged
            .iter()
            .filter(|(.., fails)| *fails)
            .flat_map(|(_, equation, _)| equation.cells())
            .collect();
        let weigh = |cell: &Cell| {
            let within = |fails: bool| {
                judged
                    .iter()
                    .filter(|(_, equation, found)| {
                        *found == fails && equation.cells().any(|other| other == *cell)
                    })
                    .count() as i64
            };
            let derived = judged.iter().any(|(_, equation, fails)| *fails && equation.target == *cell);
            (within(true) - within(false), within(true), derived)
        };
        let Some(accused) = failing.iter().copied().max_by_key(weigh) else { break };
        // Another cell may explain it as well: then the one that was computed is accused, if the other is right.
        let (less, fails, _) = weigh(&accused);
        let other =
            failing.iter().find(|cell| **cell != accused && weigh(cell) == (less, fails, false)).copied();
        if let Some((check, equation, _)) = judged
            .iter()
            .filter(|(_, equation, fails)| *fails && equation.cells().any(|cell| cell == accused))
            .max_by_key(|(_, equation, _)| equation.target == accused)
            && let (Some(printed), Some(span)) = (accused.figure(series), equation.solve(series, accused))
        {
            let column = &series.columns[accused.column];
            let how =
                if equation.target == accused { equation.how(series) } else { equation.needed_by(series) };
            let other = other.map(|cell| place(&series.columns[cell.column], series.workers[cell.row]));
            let how = other.map_or(how.clone(), |other| format!("{how}, if {other}, is right"));
            slips.push(Slip {
                check: *check,
                weight: Weight::Contradiction,
                place: place(column, series.workers[accused.row]),
                printed: Some(printed),
                computed: Some(span.value),
                how,
                likely: guess_slip(printed, span.value),
            });
        }
        judged.retain(|(_, equation, _)| !equation.cells().any(|cell| cell == accused));
    }
    slips
}

/// One remark for a column whose digits were dropped.
fn cut_off(series: &Series, relation: &Relation) -> Option<Slip> {
    let cut: Vec<(u64, Figure, f64)> = relation
        .equations
        .iter()
        .filter_map(|equation| {
            let (printed, span, found) = outcome(series, relation.check, equation)?;
            (found == Match::CutOff).then_some((series.workers[equation.target.row], printed, span.value))
        })
        .collect();
    let (_, printed, value) = *cut.first()?;
    let workers: Vec<String> = cut.iter().map(|(workers, ..)| workers.to_string()).collect();
    let at = format!("{}, {} workers", series.columns[relation.column].name, workers.join(", "));
    let remark = Slip::remark(Check::CutOff, at, "truncated instead of rounded");
    Some(Slip { printed: Some(printed), computed: Some(value), ..remark })
}

/// The name of a cell.
fn place(column: &Column, workers: u64) -> String {
    format!("{}, {}", column.name, crate::words::workers(workers))
}

/// Compares the number of examples that a rate was computed with, if it was computed from the clock, with the given one. A separately
/// measured rate may differ: it does not include start-up.
fn check_told(series: &Series) -> Option<Slip> {
    let given = series.context.examples? as f64;
    let (clock, implied) =
        reconcile::same(series, Work::Divided).filter(|_| series.counted() == Counted::Examples)?;
    let epoch = clock.meaning == Some(Meaning::EpochTime);
    let there = if epoch { given / series.context.epochs? as f64 } else { given };
    let (rate, _) = series.rate().filter(|_| (implied / there - 1.0).abs() > TOLERATED)?;
    let times = implied / there;
    let wrong = if times > 1.0 {
        format!("{times:.2} times too high")
    } else {
        format!("{:.2} times too low", 1.0 / times)
    };
    let how =
        format!("{} times {}; all rates are {wrong} if there are as many as given", rate.name, clock.name);
    let place = if epoch { "examples per epoch" } else { "examples per run" };
    Some(Slip {
        weight: Weight::Contradiction,
        printed: Some(Figure::exact(round_to(implied, 3))),
        computed: Some(there),
        ..Slip::remark(Check::Examples, place, how)
    })
}

/// A number with so many digits; more would be false precision.
pub(super) fn round_to(value: f64, digits: i32) -> f64 {
    if value == 0.0 {
        return value;
    }
    let unit = 10f64.powi(value.abs().log10().floor() as i32 + 1 - digits);
    (value / unit).round() * unit
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
