//! Test accuracy or loss over epochs and over time, one line per case.

use super::LOOKS;
use crate::html::chart::{Look, Plot};
use crate::html::figure::{Figure, Hue, Sign};
use crate::html::group::Group;
use crate::html::markup::Tag;
use crate::html::scale::Axis;
use crate::numbers::learning::Test;
use crate::{CaseReport, words};

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
        let ends = test.lo.zip(test.hi).map(|(lo, hi)| (100.0 * lo, 100.0 * hi));
        let interval =
            ends.map_or_else(String::new, |(lo, hi)| format!(" (95 % interval {lo:.1} .. {hi:.1})"));
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
    let panel = |name: &str, label: &str, at: &dyn Fn(&Test) -> f64| {
        let last = all().map(at).fold(0.0, f64::max);
        let mut plot = Plot::new(Axis::exact(0.0, last, 5, label), Axis::linear(low, high, 5, unit), 240.0);
        for line in &lines {
            draw(&mut plot, line, measure, at);
        }
        let heading = Tag::new("p").with(Tag::new("b").text(name));
        Tag::new("div").class("panel").with(heading).with(plot.render(&format!("{title} {name}")))
    };
    let by_epoch = all().all(|test| test.epoch.is_some());
    let (name, label) = if by_epoch { ("over epochs", "epoch") } else { ("over steps", "step") };
    let panels = [
        panel(name, label, &|test| test.epoch.filter(|_| by_epoch).unwrap_or(test.steps as f64)),
        panel("over time", "s since training started", &|test| test.seconds),
    ];
    let legend = lines.iter().map(|line| (line.look.1, line.look.0, workers(line.case)));
    let ends = lines.iter().filter_map(|line| {
        let last = line.case.learning.as_ref()?.test?;
        Some(format!("{}: {}", workers(line.case), measure.show(&last)?))
    });
    let caption = format!("Last test: {}.", ends.collect::<Vec<_>>().join("; "));
    let body = vec![Tag::new("div").class("panels").with_all(panels)];
    Some(Figure { name: "accuracy", title: title.into(), caption, legend: legend.collect(), body }.render())
}

fn workers(case: &CaseReport) -> String {
    words::workers(case.case.workers)
}

fn line(case: &CaseReport, look: (Hue, Sign)) -> Line<'_> {
    let curve = case.learning.as_ref().map_or(&[][..], |learned| &learned.curve);
    let every = curve.len().div_ceil(MOST).max(1);
    // Counted from the end, so that the last test is included.
    let mut tests: Vec<&Test> = curve.iter().rev().step_by(every).collect();
    tests.reverse();
    Line { case, tests, look }
}

fn draw(plot: &mut Plot, line: &Line<'_>, measure: Measure, at: &dyn Fn(&Test) -> f64) {
    let (hue, sign) = line.look;
    let point = |test: &&Test| {
        let says = format!("{}, after {} steps: {}", workers(line.case), test.steps, measure.show(test)?);
        Some(((at(test), measure.of(test)?), says))
    };
    let points: Vec<_> = line.tests.iter().filter_map(point).collect();
    let path: Vec<_> = points.iter().map(|(point, _)| *point).collect();
    plot.line(&path, Look { hue, sign: Sign::Line });
    plot.points(&points, Look { hue, sign });
}
