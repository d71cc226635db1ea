//! The figures of a group. A figure is left out if it would show nothing.

mod accuracy;
mod efficiency;
mod members;
mod memory;
mod overlap;
mod overlay;
mod phases;
mod speedup;
mod steps;
mod training;
mod waterfall;

pub use accuracy::accuracy;
pub use efficiency::efficiency;
pub use members::members;
pub use memory::memory;
pub use overlap::overlap;
pub use overlay::overlay;
pub use phases::phases;
pub use speedup::speedup;
pub use steps::steps;
pub use training::training;
pub use waterfall::waterfall;

use std::collections::BTreeSet;

use super::bars::{Bar, Bars, Columns, Row};
use super::chart::{Plot, Point};
use super::figure::{Entry, Figure, Hue, Sign, panel, panels};
use super::group::Group;
use super::markup::Tag;
use super::scale::{Axis, Scale, Spread};
use super::unit::{Unit, digits, percent, within};
use crate::CaseReport;
use crate::numbers::speedup::Interval;

/// The measures of a speed-up, and how each is drawn.
const BY_SPEED: (Sign, Hue, &str) = (Sign::Circle, Hue::Blue, "by images/s");
const BY_TIME: (Sign, Hue, &str) = (Sign::Square, Hue::Vermilion, "by training time");
const BY_TOTAL: (Sign, Hue, &str) = (Sign::Triangle, Hue::Green, "by the whole run");

/// Styles of lines that stand side by side, in turn.
const LOOKS: [(Hue, Sign); 7] = [
    (Hue::Blue, Sign::Circle),
    (Hue::Vermilion, Sign::Square),
    (Hue::Green, Sign::Triangle),
    (Hue::Purple, Sign::Circle),
    (Hue::Orange, Sign::Square),
    (Hue::Sky, Sign::Triangle),
    (Hue::Ink, Sign::Circle),
];

/// The worker axis is logarithmic from this many workers.
const MANY: u32 = 16;

/// The axis of these worker counts, of which there is at least one, with a tick at each.
fn workers_axis<'a>(cases: impl IntoIterator<Item = &'a &'a CaseReport>) -> Axis {
    let counts: BTreeSet<u32> = cases.into_iter().map(|case| case.case.workers).collect();
    let most = counts.last().copied().unwrap_or(1);
    let (spread, low) = if most >= MANY { (Spread::Log, 1.0) } else { (Spread::Linear, 0.0) };
    let scale = Scale::new(spread, low, f64::from(most));
    let mut ticks: Vec<(f64, String)> = Vec::new();
    for workers in counts.into_iter().rev().map(f64::from) {
        // Skip ticks whose numbers would overlap.
        if ticks.last().is_none_or(|(next, _)| scale.at(*next) - scale.at(workers) > 0.06) {
            ticks.push((workers, workers.to_string()));
        }
    }
    Axis { scale, ticks, label: "workers".into() }
}

/// An axis of speed-ups up to that of the ideal.
fn speedup_axis(workers: u32, shown: impl Iterator<Item = f64> + Clone) -> Axis {
    let most = shown.clone().fold(f64::from(workers), f64::max);
    let least = shown.fold(1.0, f64::min);
    // A logarithmic axis has no place for zero.
    match workers >= MANY && least > 0.0 {
        true => Axis::log(least, most, "speed-up"),
        false => Axis::linear(least.min(0.0), most, 6, "speed-up"),
    }
}

/// Whether bars say more than a line: with one or two worker counts a line has nothing between its ends.
fn are_few(group: &Group<'_>) -> bool {
    group.done.len() <= 2
}

/// A value of a case as it is drawn.
struct Value {
    at: f64,
    within: Option<(f64, f64)>,
    /// What is written beside it.
    shown: String,
    /// Its tooltip.
    says: String,
}

/// Draws a line through values of cases, with their intervals.
fn draw(
    plot: &mut Plot,
    cases: &[&CaseReport],
    (hue, sign): (Hue, Sign),
    of: impl Fn(&CaseReport) -> Option<Value>,
) {
    let mut points = Vec::new();
    for case in cases {
        let Some(value) = of(case) else { continue };
        let x = f64::from(case.case.workers);
        if let Some((lo, hi)) = value.within {
            plot.whisker(x, lo, hi, hue);
        }
        points.push(((x, value.at), value.says));
    }
    plot.course(&points, hue, sign);
}

/// Draws a bar for a value into a named row.
fn draw_bar(bars: &mut Bars, row: Row, name: &str, hue: Hue, value: Value) {
    bars.name(row, name);
    let Value { at, within, shown, says } = value;
    bars.measure(row, &Bar { from: 0.0, to: at, hue, says }, within, &shown);
}

/// A measure of cases, and how it is drawn.
struct Measure {
    look: (Sign, Hue, &'static str),
    of: Of<f64>,
    within: Of<Interval>,
    /// What values are multiplied by, and how they are written.
    factor: f64,
    show: fn(f64) -> String,
}

type Of<T> = fn(&CaseReport) -> Option<T>;

impl Measure {
    /// Times as fast.
    const fn times(look: (Sign, Hue, &'static str), of: Of<f64>, within: Of<Interval>) -> Self {
        Self { look, of, within, factor: 1.0, show: |value| format!("{value:.2}x") }
    }

    /// Percent.
    const fn percent(look: (Sign, Hue, &'static str), of: Of<f64>, within: Of<Interval>) -> Self {
        Self { look, of, within, factor: 100.0, show: |value| format!("{value:.1} %") }
    }

    fn value(&self, case: &CaseReport) -> Option<Value> {
        let &Self { look: (.., name), factor, show, .. } = self;
        let at = factor * (self.of)(case)?;
        let ends = (self.within)(case).map(|Interval { lo, hi }| (factor * lo, factor * hi));
        let shown = show(at);
        let says = format!("{name}: {shown}{}", within(ends, show));
        Some(Value { at, within: ends, shown, says })
    }

    /// Draws a line through the cases, with their intervals.
    fn draw(&self, plot: &mut Plot, cases: &[&CaseReport]) {
        let (sign, hue, _) = self.look;
        draw(plot, cases, (hue, sign), |case| {
            let value = self.value(case)?;
            let says = format!("{}, {}", case.workers_said(), value.says);
            Some(Value { says, ..value })
        });
    }

    /// Its entry in a legend.
    fn entry(&self, few: bool) -> Entry {
        let (sign, hue, name) = self.look;
        (if few { Sign::Area } else { sign }, hue, name.to_owned())
    }
}

/// All ends of measures of cases: values and their intervals.
fn ends<'a>(
    cases: &'a [&'a CaseReport],
    measures: &'a [&'a Measure],
) -> impl Iterator<Item = f64> + Clone + 'a {
    let values = cases.iter().flat_map(move |case| measures.iter().filter_map(move |one| one.value(case)));
    values.flat_map(|value| {
        [value.at].into_iter().chain(value.within.into_iter().flat_map(|(lo, hi)| [lo, hi]))
    })
}

/// Measures of the cases with more than one worker as bars, with a line where the ideal is.
fn bars(group: &Group<'_>, measures: &[&Measure], label: &str, ideal: &dyn Fn(f64) -> f64) -> Bars {
    let cases: Vec<&CaseReport> = group.done.iter().copied().filter(|case| case.case.workers > 1).collect();
    let ideal = |case: &CaseReport| ideal(f64::from(case.case.workers));
    let tops = ends(&cases, measures).chain(cases.iter().map(|case| ideal(case)));
    let axis = Axis::linear(0.0, tops.fold(0.0, f64::max), 5, label);
    let mut bars = Bars::new(axis, Columns { names: 122.0, values: 60.0 });
    for case in cases {
        bars.heading(&case.workers_said());
        let mut rows = Vec::new();
        for measure in measures.iter().rev() {
            let Some(value) = measure.value(case) else { continue };
            let (_, hue, name) = measure.look;
            let row = bars.row(18.0);
            bars.skip(8.0);
            draw_bar(&mut bars, row, name, hue, value);
            rows.push(row);
        }
        if let Some((&first, &last)) = rows.first().zip(rows.last()) {
            bars.rule(ideal(case), (first, last), Hue::Grey);
        }
        bars.skip(6.0);
    }
    bars
}
