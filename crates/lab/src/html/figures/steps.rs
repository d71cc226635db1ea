//! Step times over the run, one panel per case.

use crate::html::chart::{Look, Plot};
use crate::html::figure::{Figure, Hue, Sign};
use crate::html::group::Group;
use crate::html::markup::Tag;
use crate::html::scale::Axis;
use crate::html::unit::Unit;
use crate::numbers::series::Series;
use crate::{CaseReport, words};

/// Steps longer than this many typical ones are clipped at the upper edge.
const CUT: f64 = 4.0;

/// Draws the figure if step times are known.
pub fn steps(group: &Group<'_>) -> Option<Tag> {
    let timed = group.done.iter().filter_map(|&case| Some((case, case.step_times.as_ref()?)));
    let cases: Vec<_> = timed.filter(|(_, series)| !series.median_s.is_empty()).collect();
    let shortest = cases.iter().map(|(_, series)| typical(series)).min_by(f64::total_cmp)?;
    let unit = Unit::of_time(shortest);
    let panels: Vec<Tag> = cases.iter().map(|(case, series)| panel(case, series, unit)).collect();
    let means = cases.iter().any(|(case, _)| case.steady.is_some_and(|steady| steady.points.is_some()));
    let joined = !means && cases.iter().any(|(_, series)| series.every > 1);
    let caption = if means {
        "Each point of the line is the mean of the steps that a line of the log covers. Shaded steps come before the steady \
         state and do not count for images/s."
    } else if joined {
        "The line is the median of neighbouring steps, the band their fastest and slowest. Shaded steps come before the \
         steady state and do not count for images/s."
    } else {
        "Each step of the first repeat. Shaded steps come before the steady state and do not count for images/s."
    };
    let line = match (means, joined) {
        (true, _) => "mean step",
        (false, true) => "median step",
        (false, false) => "step",
    };
    let mut legend = vec![(Sign::Line, Hue::Blue, line.to_owned())];
    if joined {
        legend.push((Sign::Pale, Hue::Blue, "fastest to slowest".into()));
    }
    legend.push((Sign::Pale, Hue::Grey, "not counted".into()));
    let body = vec![Tag::new("div").class("panels").with_all(panels)];
    let (title, caption) = ("Step times over the run".into(), caption.into());
    Some(Figure { name: "step-times", title, caption, legend, body }.render())
}

fn panel(case: &CaseReport, series: &Series, unit: Unit) -> Tag {
    let range = Range::of(series);
    let shown = |seconds: f64| unit.factor * seconds.min(range.high);
    let points = |seconds: &[f64]| -> Vec<(f64, f64)> {
        let half = series.every as f64 / 2.0;
        let middle = |point: usize| series.every as f64 * point as f64 + half;
        seconds.iter().enumerate().map(|(point, &seconds)| (middle(point), shown(seconds))).collect()
    };
    let steps = series.every as f64 * series.median_s.len() as f64;
    let x = Axis::exact(0.0, steps, 5, "step");
    let y = Axis::linear(unit.factor * range.low, unit.factor * range.high, 5, unit.name);
    let mut plot = Plot::new(x, y, 190.0);
    let from = case.steady.map_or(0, |steady| steady.from_step);
    if from > 0 {
        plot.shade(0.0, (from as f64).min(steps), &format!("steps before {from} are not counted"));
    }
    if series.every > 1 {
        plot.band(&points(&series.most_s), &points(&series.least_s), Hue::Blue);
    }
    let line = points(&series.median_s);
    match line[..] {
        [only] => {
            plot.points(&[(only, unit.show(series.median_s[0]))], Look { hue: Hue::Blue, sign: Sign::Circle })
        }
        _ => plot.line(&line, Look { hue: Hue::Blue, sign: Sign::Line }),
    }
    if range.longest > range.high {
        plot.note(&format!("\u{25b2} up to {}", Unit::of_time(range.longest).show(range.longest)));
    }
    let workers = words::workers(case.case.workers);
    let verdict = words::steady(case).unwrap_or_else(|| "steady state unknown".into());
    let title = Tag::new("p").with(Tag::new("b").text(&workers)).text(format!(": {verdict}"));
    let drawing = plot.render(&format!("Step times of {workers}: {verdict}"));
    Tag::new("div").class("panel").with(title).with(drawing)
}

fn typical(series: &Series) -> f64 {
    let mut sorted = series.median_s.clone();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The visible range of step times.
struct Range {
    low: f64,
    high: f64,
    longest: f64,
}

impl Range {
    /// Wide enough that noise looks like noise, narrow enough that one slow step does not hide the others.
    fn of(series: &Series) -> Self {
        let typical = typical(series);
        let longest = series.most_s.iter().copied().fold(0.0, f64::max);
        let least = series.least_s.iter().copied().fold(typical, f64::min).min(0.9 * typical);
        let high = longest.min(CUT * typical).max(1.1 * typical);
        Self { low: if least < 0.6 * high { 0.0 } else { least }, high, longest }
    }
}
