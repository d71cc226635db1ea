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

use super::bars::{Bar, Bars, Columns};
use super::chart::{Look, Plot};
use super::figure::{Hue, Sign};
use super::group::Group;
use super::scale::{Axis, Scale, Spread};
use crate::numbers::speedup::Interval;
use crate::{CaseReport, words};

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

/// The worker axis, with a tick at each case.
fn workers_axis(group: &Group<'_>) -> Axis {
    worker_counts_axis(group.done.iter().map(|case| case.case.workers).collect())
}

/// The same for these worker counts, of which there is at least one.
fn worker_counts_axis(counts: BTreeSet<u32>) -> Axis {
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

/// Whether bars say more than a line: with one or two worker counts a line has nothing between its ends.
fn are_few(group: &Group<'_>) -> bool {
    group.done.len() <= 2
}

/// A measure of cases, and how it is drawn.
struct Measure {
    look: (Sign, Hue, &'static str),
    of: fn(&CaseReport) -> Option<f64>,
    within: fn(&CaseReport) -> Option<Interval>,
}

impl Measure {
    /// Draws a line through the cases, with their intervals; values are drawn times `factor`.
    fn draw(&self, plot: &mut Plot, cases: &[&CaseReport], show: &dyn Fn(f64) -> String, factor: f64) {
        let (sign, hue, name) = self.look;
        let mut points = Vec::new();
        for &case in cases {
            let Some(value) = (self.of)(case) else { continue };
            let (workers, value) = (case.case.workers, factor * value);
            let mut says = format!("{}, {name}: {}", words::workers(workers), show(value));
            if let Some(Interval { lo, hi }) = (self.within)(case) {
                plot.whisker(f64::from(workers), factor * lo, factor * hi, hue);
                says += &format!(" (95 % interval {} .. {})", show(factor * lo), show(factor * hi));
            }
            points.push(((f64::from(workers), value), says));
        }
        let line: Vec<_> = points.iter().map(|(point, _)| *point).collect();
        plot.line(&line, Look { hue, sign: Sign::Line });
        plot.points(&points, Look { hue, sign });
    }
}

/// Measures of the cases with more than one worker as bars, with a line where the ideal is.
fn bars(group: &Group<'_>, measures: &[&Measure], label: &str, ideal: &dyn Fn(f64) -> f64) -> Bars {
    let factor = if label.contains('%') { 100.0 } else { 1.0 };
    let show = |value: f64| if factor > 1.0 { format!("{value:.1} %") } else { format!("{value:.2}x") };
    let cases: Vec<&CaseReport> = group.done.iter().copied().filter(|case| case.case.workers > 1).collect();
    let workers = |case: &CaseReport| f64::from(case.case.workers);
    let tops = cases.iter().flat_map(|&case| {
        let values =
            measures.iter().flat_map(move |one| [(one.of)(case), (one.within)(case).map(|to| to.hi)]);
        values.flatten().map(|value| factor * value).chain([ideal(workers(case))])
    });
    let axis = Axis::linear(0.0, tops.fold(0.0, f64::max), 5, label);
    let mut bars = Bars::new(axis, Columns { names: 122.0, values: 60.0 });
    for case in cases {
        bars.heading(&words::workers(case.case.workers));
        let mut rows = Vec::new();
        for measure in measures.iter().rev() {
            let Some(value) = (measure.of)(case).map(|value| factor * value) else { continue };
            let (_, hue, name) = measure.look;
            let row = bars.row(18.0);
            bars.skip(8.0);
            bars.name(row, name);
            let interval = (measure.within)(case).map(|within| (factor * within.lo, factor * within.hi));
            let spread = interval.map(|(lo, hi)| format!(" (95 % interval {} .. {})", show(lo), show(hi)));
            let says = format!("{name}: {}{}", show(value), spread.unwrap_or_default());
            bars.bar(row, &Bar { from: 0.0, to: value, hue, says });
            if let Some((lo, hi)) = interval {
                bars.whisker(row, lo, hi);
            }
            bars.value(row, &show(value));
            rows.push(row);
        }
        if let Some((&first, &last)) = rows.first().zip(rows.last()) {
            bars.rule(ideal(workers(case)), (first, last), Hue::Grey);
        }
        bars.skip(6.0);
    }
    bars
}
