//! All groups of a study in one figure: images per second and speed-up over workers.

use std::collections::BTreeSet;

use super::{LOOKS, MANY, worker_counts_axis};
use crate::CaseReport;
use crate::html::bars::{Bar, Bars, Columns};
use crate::html::chart::{Look, Plot};
use crate::html::figure::{Figure, Hue, Sign};
use crate::html::group::Group;
use crate::html::markup::Tag;
use crate::html::scale::Axis;
use crate::html::unit::digits;
use crate::numbers::rate::Rate;
use crate::words;

/// A group and its style.
struct Line<'a> {
    name: String,
    cases: &'a [&'a CaseReport],
    look: (Hue, Sign),
}

/// Draws the figure if at least two groups can be compared: by images/s if they share a network, and by speed-up.
pub fn overlay(groups: &[Group<'_>]) -> Option<Tag> {
    let rated = |group: &&Group<'_>| group.done.iter().any(|case| case.images_per_s.is_some());
    let shown: Vec<Line<'_>> = groups
        .iter()
        .filter(rated)
        .zip(LOOKS)
        .map(|(group, look)| Line { name: group.explained.key.label(), cases: &group.done, look })
        .collect();
    if shown.len() < 2 {
        return None;
    }
    let left_out = groups.len() - shown.len();
    let all = || shown.iter().flat_map(|line| line.cases.iter().copied());
    let counts: BTreeSet<u32> = all().map(|case| case.case.workers).collect();
    let one_network = all().all(|case| case.case.model == all().next().map_or("", |one| &one.case.model));
    let few = counts.len() <= 2;
    let mut panels = Vec::new();
    if few {
        panels.push(panel("images/s", rate_bars(&shown).render("Images/s of all groups")));
    } else if one_network {
        panels.push(panel("images/s", rates(&shown, &counts).render("Images/s of all groups over workers")));
    }
    if !few && let Some(plot) = speedups(&shown, &counts) {
        panels.push(panel("speed-up by images/s", plot.render("Speed-up of all groups over workers")));
    }
    if panels.is_empty() {
        return None;
    }
    let sign = |sign: Sign| if few { Sign::Area } else { sign };
    let mut legend: Vec<_> =
        shown.iter().map(|line| (sign(line.look.1), line.look.0, line.name.clone())).collect();
    if panels.len() == 2 || !few && !one_network {
        legend.insert(0, (Sign::Dashed, Hue::Grey, "ideal".into()));
    }
    let rest = match left_out {
        0 => String::new(),
        _ => format!(
            " {left_out} groups are left out: they have no images/s, or come after the first {}.",
            LOOKS.len()
        ),
    };
    let caption = format!("The same measure for all groups; whiskers are 95 % intervals.{rest}");
    let body = vec![Tag::new("div").class("panels").with_all(panels)];
    let title = if few { "Images/s of all groups" } else { "All groups over workers" };
    Some(Figure { name: "overlay", title: title.into(), caption, legend, body }.render())
}

fn panel(name: &str, drawing: Tag) -> Tag {
    Tag::new("div").class("panel").with(Tag::new("p").with(Tag::new("b").text(name))).with(drawing)
}

fn top(rate: Rate) -> f64 {
    rate.hi.unwrap_or(rate.mean).max(rate.mean)
}

fn says(line: &Line<'_>, case: &CaseReport, rate: Rate) -> String {
    let interval = rate.lo.zip(rate.hi);
    let interval = interval.map(|(lo, hi)| format!(" (95 % interval {} .. {})", digits(lo), digits(hi)));
    let workers = words::workers(case.case.workers);
    format!("{}, {workers}: {} images/s{}", line.name, digits(rate.mean), interval.unwrap_or_default())
}

fn rates(lines: &[Line<'_>], counts: &BTreeSet<u32>) -> Plot {
    let known = || lines.iter().flat_map(|line| line.cases).filter_map(|case| case.images_per_s);
    let most = known().map(top).fold(0.0, f64::max);
    let mut plot =
        Plot::new(worker_counts_axis(counts.clone()), Axis::linear(0.0, most, 6, "images/s"), 300.0);
    for line in lines {
        let (hue, sign) = line.look;
        let mut points = Vec::new();
        for case in line.cases {
            let Some(rate) = case.images_per_s else { continue };
            let x = f64::from(case.case.workers);
            if let Some((lo, hi)) = rate.lo.zip(rate.hi) {
                plot.whisker(x, lo, hi, hue);
            }
            points.push(((x, rate.mean), says(line, case, rate)));
        }
        draw(&mut plot, &points, hue, sign);
    }
    plot
}

fn speedups(lines: &[Line<'_>], counts: &BTreeSet<u32>) -> Option<Plot> {
    let workers = counts.last().copied().unwrap_or(1);
    let of = |case: &CaseReport| case.speedup_speed;
    let known = || lines.iter().flat_map(|line| line.cases).filter_map(|case| of(case));
    if known().count() < 2 {
        return None;
    }
    let tops = lines.iter().flat_map(|line| line.cases).filter_map(|case| case.speedup_speed_interval);
    let most = tops.map(|within| within.hi).chain(known()).fold(f64::from(workers), f64::max);
    let least = known().fold(1.0, f64::min);
    let y = match workers >= MANY && least > 0.0 {
        true => Axis::log(least, most, "speed-up"),
        false => Axis::linear(0.0, most, 6, "speed-up"),
    };
    let mut plot = Plot::new(worker_counts_axis(counts.clone()), y, 300.0);
    let end = f64::from(workers);
    plot.line(&[(1.0, 1.0), (end, end)], Look { hue: Hue::Grey, sign: Sign::Dashed });
    for line in lines {
        let (hue, sign) = line.look;
        let mut points = Vec::new();
        for case in line.cases {
            let Some(value) = of(case) else { continue };
            let (workers, x) = (words::workers(case.case.workers), f64::from(case.case.workers));
            if let Some(within) = case.speedup_speed_interval {
                plot.whisker(x, within.lo, within.hi, hue);
            }
            points.push(((x, value), format!("{}, {workers}: {value:.2}x by images/s", line.name)));
        }
        draw(&mut plot, &points, hue, sign);
    }
    Some(plot)
}

fn draw(plot: &mut Plot, points: &[((f64, f64), String)], hue: Hue, sign: Sign) {
    let line: Vec<_> = points.iter().map(|(point, _)| *point).collect();
    plot.line(&line, Look { hue, sign: Sign::Line });
    plot.points(points, Look { hue, sign });
}

/// With one or two worker counts, a bar for each case.
fn rate_bars(lines: &[Line<'_>]) -> Bars {
    let known = || lines.iter().flat_map(|line| line.cases).filter_map(|case| case.images_per_s);
    let axis = Axis::linear(0.0, known().map(top).fold(0.0, f64::max), 4, "images/s");
    let mut bars = Bars::new(axis, Columns { names: 86.0, values: 60.0 });
    for line in lines {
        bars.heading(&line.name);
        for case in line.cases {
            let Some(rate) = case.images_per_s else { continue };
            let row = bars.row(16.0);
            bars.skip(5.0);
            bars.name(row, &words::workers(case.case.workers));
            bars.bar(row, &Bar { from: 0.0, to: rate.mean, hue: line.look.0, says: says(line, case, rate) });
            if let Some((lo, hi)) = rate.lo.zip(rate.hi) {
                bars.whisker(row, lo, hi);
            }
            bars.value(row, &digits(rate.mean));
        }
        bars.skip(6.0);
    }
    bars
}
