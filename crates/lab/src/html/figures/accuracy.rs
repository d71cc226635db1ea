//! Test accuracy or loss over epochs and over time, one line per case.

use super::{Axis, Figure, Group, Hue, LOOKS, Plot, Sign, Tag, panel, panels, within};
use crate::CaseReport;
use crate::numbers::learning::Test;

/// Most tests of a case that are drawn.
const MOST: usize = 200;

/// The measure that is drawn.
#[derive(Clone, Copy)]
enum Measure {
    Accuracy,
    Loss,
}

impl Measure {
    fn of(self, test: &Test) -> Option<f64> {
        match self {
            Self::Accuracy => test.accuracy.map(|fraction| 100.0 * fraction),
            Self::Loss => test.loss,
        }
    }

    fn show(self, test: &Test) -> Option<String> {
        let value = self.of(test)?;
        let interval = within(test.lo.zip(test.hi), |end| format!("{:.1}", 100.0 * end));
        Some(match self {
            Self::Accuracy => format!("{value:.1} %{interval}"),
            Self::Loss => format!("a loss of {value:.4}"),
        })
    }
}

/// A case with tests, and its style.
struct Line<'a> {
    case: &'a CaseReport,
    tests: Vec<&'a Test>,
    look: (Hue, Sign),
}

/// Draws the figure if any case was tested.
pub fn accuracy(group: &Group<'_>) -> Option<Tag> {
    let tests = |case: &&CaseReport| case.learning.iter().flat_map(|learned| &learned.curve).count();
    let tested = group.done.iter().copied().filter(|case| tests(case) > 0);
    let lines: Vec<Line<'_>> =
        tested.zip(LOOKS.into_iter().cycle()).map(|(case, look)| line(case, look)).collect();
    let all = || lines.iter().flat_map(|line| line.tests.iter().copied());
    let measure = if all().any(|test| test.accuracy.is_some()) { Measure::Accuracy } else { Measure::Loss };
    let (title, unit) = match measure {
        Measure::Accuracy => ("Test accuracy", "test accuracy, %"),
        Measure::Loss => ("Test loss", "test loss"),
    };
    let values = || all().filter_map(|test| measure.of(test));
    let (low, high) = (values().min_by(f64::total_cmp)?, values().max_by(f64::total_cmp)?);
    let draw = |name: &str, label: &str, at: &dyn Fn(&Test) -> f64| {
        let last = all().map(at).fold(0.0, f64::max);
        let mut plot = Plot::new(Axis::exact(0.0, last, 5, label), Axis::linear(low, high, 5, unit), 240.0);
        for line in &lines {
            draw_line(&mut plot, line, measure, at);
        }
        panel(name, "", plot.render(&format!("{title} {name}")))
    };
    let by_epoch = all().all(|test| test.epoch.is_some());
    let (name, label) = if by_epoch { ("over epochs", "epoch") } else { ("over steps", "step") };
    let body = panels([
        draw(name, label, &|test| test.epoch.filter(|_| by_epoch).unwrap_or(test.steps as f64)),
        draw("over time", "s since training started", &|test| test.seconds),
    ]);
    let legend = lines.iter().map(|line| (line.look.1, line.look.0, workers(line.case)));
    let ends = lines.iter().filter_map(|line| {
        let last = line.case.learning.as_ref()?.test?;
        Some(format!("{}: {}", workers(line.case), measure.show(&last)?))
    });
    let caption = format!("Last test: {}.", ends.collect::<Vec<_>>().join("; "));
    Some(Figure { name: "accuracy", title: title.into(), caption, legend: legend.collect(), body }.render())
}

fn workers(case: &CaseReport) -> String {
    case.workers_said()
}

fn line(case: &CaseReport, look: (Hue, Sign)) -> Line<'_> {
    let curve = case.learning.as_ref().map_or(&[][..], |learned| &learned.curve);
    let every = curve.len().div_ceil(MOST).max(1);
    // Counted from the end, so that the last test is included.
    let mut tests: Vec<&Test> = curve.iter().rev().step_by(every).collect();
    tests.reverse();
    Line { case, tests, look }
}

fn draw_line(plot: &mut Plot, line: &Line<'_>, measure: Measure, at: &dyn Fn(&Test) -> f64) {
    let (hue, sign) = line.look;
    let point = |test: &&Test| {
        let says = format!("{}, after {} steps: {}", workers(line.case), test.steps, measure.show(test)?);
        Some(((at(test), measure.of(test)?), says))
    };
    let points: Vec<_> = line.tests.iter().filter_map(point).collect();
    plot.course(&points, hue, sign);
}
