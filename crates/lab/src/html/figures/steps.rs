//! Step times over the run, one panel per case.

use super::{Axis, Figure, Group, Hue, Plot, Sign, Tag, Unit, digits, panel, panels};
use crate::numbers::series::Series;
use crate::{CaseReport, stats, words};

/// The axis ends at about this many typical steps; longer ones are marked with an arrow and their time.
const CUT: f64 = 4.0;

/// Points of all panels together that the script gets to zoom into.
const CARRIED: usize = 20_000;

/// A case, its step times as drawn, and the finer ones to zoom into.
struct Timed<'a> {
    case: &'a CaseReport,
    series: &'a Series,
    detail: &'a Series,
}

/// Draws the figure if step times are known.
pub fn steps(group: &Group<'_>) -> Option<Tag> {
    let timed = group.done.iter().filter_map(|&case| {
        let series = case.step_times.as_ref()?;
        Some(Timed { case, series, detail: case.step_detail.as_ref().unwrap_or(series) })
    });
    let cases: Vec<_> = timed.filter(|timed| !timed.series.median_s.is_empty()).collect();
    let shortest = cases.iter().map(|timed| typical(timed.series)).min_by(f64::total_cmp)?;
    let unit = Unit::of_time(shortest);
    // All panels have one axis, so that their heights can be compared.
    let axis = axis(&cases, unit);
    let body = panels(cases.iter().map(|timed| draw(timed, unit, axis.clone(), CARRIED / cases.len())));
    let means = cases.iter().any(|timed| timed.case.steady.is_some_and(|steady| steady.points.is_some()));
    let joined = !means && cases.iter().any(|timed| timed.series.every > 1);
    let (line, shown) = match (means, joined) {
        (true, _) => {
            ("mean step", "Each point of the line is the mean of the steps that a line of the log covers.")
        }
        (false, true) => (
            "median step",
            "The line is the median of neighbouring steps, the band their fastest and slowest.",
        ),
        (false, false) => ("step", "Each step of the first repeat."),
    };
    let caption = format!("{shown} Shaded steps come before the steady state and do not count for images/s.");
    let mut legend = vec![(Sign::Line, Hue::Blue, line.to_owned())];
    if joined {
        legend.push((Sign::Pale, Hue::Blue, "fastest to slowest".into()));
    }
    legend.push((Sign::Pale, Hue::Grey, "not counted".into()));
    let title = "Step times over the run".into();
    Some(Figure { name: "step-times", title, caption, legend, body }.render())
}

/// The axis of all panels: wide enough that noise looks like noise, narrow enough that one slow step does not hide the others.
fn axis(cases: &[Timed<'_>], unit: Unit) -> Axis {
    let slowest = cases.iter().map(|timed| typical(timed.series)).fold(0.0, f64::max);
    let fastest = cases.iter().map(|timed| typical(timed.series)).fold(f64::INFINITY, f64::min);
    let all = |of: fn(&Series) -> &Vec<f64>| cases.iter().flat_map(move |timed| of(timed.series)).copied();
    let longest = all(|series| &series.most_s).fold(0.0, f64::max);
    let least = all(|series| &series.least_s).fold(0.9 * fastest, f64::min);
    let high = longest.min(CUT * slowest).max(1.1 * slowest);
    let low = if least < 0.6 * high { 0.0 } else { least };
    Axis::linear(unit.factor * low, unit.factor * high, 5, unit.name)
}

fn draw(timed: &Timed<'_>, unit: Unit, y: Axis, carried: usize) -> Tag {
    let &Timed { case, series, .. } = timed;
    let top = y.scale.high;
    let every = series.every as f64;
    let points = |seconds: &[f64]| -> Vec<(f64, f64)> {
        let middle = |point: usize| every * point as f64 + every / 2.0;
        let shown = |seconds: f64| (unit.factor * seconds).min(top);
        seconds.iter().enumerate().map(|(point, &seconds)| (middle(point), shown(seconds))).collect()
    };
    let steps = every * series.median_s.len() as f64;
    let mut plot = Plot::new(Axis::exact(0.0, steps, 5, "step"), y, 190.0);
    let from = case.steady.map_or(0, |steady| steady.from_step);
    if from > 0 {
        plot.shade(0.0, (from as f64).min(steps), &format!("steps before {from} are not counted"));
    }
    if series.every > 1 {
        plot.band(&points(&series.most_s), &points(&series.least_s), Hue::Blue);
    }
    let line = points(&series.median_s);
    match line[..] {
        [only] => plot.points(&[(only, unit.show(series.median_s[0]))], Hue::Blue, Sign::Circle),
        _ => plot.line(&line, Hue::Blue, Sign::Line),
    }
    let above = mark_above(&mut plot, series, |seconds| unit.factor * seconds > top);
    plot.carry(data(timed, unit, carried));
    let workers = case.workers_said();
    // The verdict is about all repeats together, and may not be true of the one that is drawn.
    let verdict = match case.repeats {
        0 | 1 => words::steady(case).unwrap_or_else(|| "steady state unknown".into()),
        repeats => format!("first of {repeats} repeats"),
    };
    let drawing = plot.render(&format!("Step times of {workers}: {verdict}{above}"));
    panel(&workers, &format!(": {verdict}{above}"), drawing)
}

/// Marks points above the axis with arrows, the longest with its time, and says how many there are.
fn mark_above(plot: &mut Plot, series: &Series, is_above: impl Fn(f64) -> bool) -> String {
    let above: Vec<(usize, f64)> =
        series.most_s.iter().copied().enumerate().filter(|&(_, seconds)| is_above(seconds)).collect();
    let longest = above.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    let Some((longest, seconds)) = longest else { return String::new() };
    for &(point, seconds) in &above {
        let time = Unit::of_time(seconds).show(seconds);
        let (first, every) = (series.every * point as u64, series.every);
        let says = match every {
            1 => format!("step {first}: {time}"),
            _ => format!("steps {first} to {}: up to {time}", first + every - 1),
        };
        let middle = first as f64 + every as f64 / 2.0;
        plot.arrow(middle, &says, (point == longest).then_some(time.as_str()));
    }
    match above.len() {
        1 => "; \u{25b2} lies above the axis".into(),
        count => {
            format!("; {count} \u{25b2} lie above the axis, up to {}", Unit::of_time(seconds).show(seconds))
        }
    }
}

fn typical(series: &Series) -> f64 {
    let sorted = stats::order::sort(&series.median_s);
    sorted[sorted.len() / 2]
}

/// What the script draws when it zooms: the unit, what a point is, steps per point, the first step that counts, and the times
/// in that unit; extremes where points are joined.
fn data(timed: &Timed<'_>, unit: Unit, carried: usize) -> String {
    let Timed { case, series, detail } = *timed;
    let finer = if detail.median_s.len() > carried { series } else { detail };
    let list = |seconds: &[f64]| {
        let shown: Vec<String> = seconds.iter().map(|seconds| digits(unit.factor * seconds)).collect();
        shown.join(" ")
    };
    let means = case.steady.is_some_and(|steady| steady.points.is_some());
    let kind = if means { "mean" } else { "median" };
    let counted = case.steady.map_or(0, |steady| steady.from_step);
    let mut data = format!("{}|{kind}|{}|{counted}|{}", unit.name, finer.every, list(&finer.median_s));
    if finer.every > 1 && !means {
        data += &format!("|{}|{}", list(&finer.least_s), list(&finer.most_s));
    }
    data
}
