//! All groups of a study in one figure: images per second and speed-up over workers.

use std::collections::BTreeSet;

use super::{Axis, Bars, Columns, Figure, Group, Hue, LOOKS, Plot, Sign, Tag, Value, digits, panel, panels};
use super::{draw, draw_bar, speedup_axis, within, workers_axis};
use crate::CaseReport;
use crate::numbers::speedup::Interval;

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
    let all: Vec<&CaseReport> = shown.iter().flat_map(|line| line.cases).copied().collect();
    let one_network = all.iter().all(|case| case.case.model == all[0].case.model);
    let few = all.iter().map(|case| case.case.workers).collect::<BTreeSet<u32>>().len() <= 2;
    let mut drawn = Vec::new();
    if few {
        drawn.push(panel("images/s", "", rate_bars(&shown, &all).render("Images/s of all groups")));
    } else if one_network {
        drawn.push(panel("images/s", "", rates(&shown, &all).render("Images/s of all groups over workers")));
    }
    if !few && let Some(plot) = speedups(&shown, &all) {
        drawn.push(panel("speed-up by images/s", "", plot.render("Speed-up of all groups over workers")));
    }
    if drawn.is_empty() {
        return None;
    }
    let sign = |sign: Sign| if few { Sign::Area } else { sign };
    let mut legend: Vec<_> =
        shown.iter().map(|line| (sign(line.look.1), line.look.0, line.name.clone())).collect();
    if drawn.len() == 2 || !few && !one_network {
        legend.insert(0, (Sign::Dashed, Hue::Grey, "ideal".into()));
    }
    let rest = match groups.len() - shown.len() {
        0 => String::new(),
        left_out => format!(
            " {left_out} groups are left out: they have no images/s, or come after the first {}.",
            LOOKS.len()
        ),
    };
    let caption = format!("The same measure for all groups; whiskers are 95 % intervals.{rest}");
    let title = if few { "Images/s of all groups" } else { "All groups over workers" };
    Some(Figure { name: "overlay", title: title.into(), caption, legend, body: panels(drawn) }.render())
}

impl Line<'_> {
    /// Images per second of one of its cases.
    fn rate(&self, case: &CaseReport) -> Option<Value> {
        let rate = case.images_per_s?;
        let (at, ends, shown) = (rate.mean, rate.lo.zip(rate.hi), digits(rate.mean));
        let workers = case.workers_said();
        let says = format!("{}, {workers}: {shown} images/s{}", self.name, within(ends, digits));
        Some(Value { at, within: ends, shown, says })
    }

    fn speedup(&self, case: &CaseReport) -> Option<Value> {
        let (at, workers) = (case.speedup_speed?, case.workers_said());
        let within = case.speedup_speed_interval.map(|Interval { lo, hi }| (lo, hi));
        let says = format!("{}, {workers}: {at:.2}x by images/s", self.name);
        Some(Value { at, within, shown: String::new(), says })
    }
}

/// An axis of images per second from 0.
fn rate_axis(all: &[&CaseReport], room: u32) -> Axis {
    let known = all.iter().filter_map(|case| case.images_per_s);
    let most = known.map(|rate| rate.hi.unwrap_or(rate.mean).max(rate.mean)).fold(0.0, f64::max);
    Axis::linear(0.0, most, room, "images/s")
}

fn rates(lines: &[Line<'_>], all: &[&CaseReport]) -> Plot {
    let mut plot = Plot::new(workers_axis(all), rate_axis(all, 6), 300.0);
    lines.iter().for_each(|line| draw(&mut plot, line.cases, line.look, |case| line.rate(case)));
    plot
}

fn speedups(lines: &[Line<'_>], all: &[&CaseReport]) -> Option<Plot> {
    let known = all.iter().filter_map(|case| case.speedup_speed);
    if known.clone().count() < 2 {
        return None;
    }
    let workers = all.iter().map(|case| case.case.workers).max()?;
    let tops = all.iter().filter_map(|case| Some(case.speedup_speed_interval?.hi));
    let mut plot = Plot::new(workers_axis(all), speedup_axis(workers, known.chain(tops)), 300.0);
    let end = f64::from(workers);
    plot.line(&[(1.0, 1.0), (end, end)], Hue::Grey, Sign::Dashed);
    lines.iter().for_each(|line| draw(&mut plot, line.cases, line.look, |case| line.speedup(case)));
    Some(plot)
}

/// With one or two worker counts, a bar for each case.
fn rate_bars(lines: &[Line<'_>], all: &[&CaseReport]) -> Bars {
    let mut bars = Bars::new(rate_axis(all, 4), Columns { names: 86.0, values: 60.0 });
    for line in lines {
        bars.heading(&line.name);
        for case in line.cases {
            let Some(rate) = line.rate(case) else { continue };
            let row = bars.row(16.0);
            bars.skip(5.0);
            draw_bar(&mut bars, row, &case.workers_said(), line.look.0, rate);
        }
        bars.skip(6.0);
    }
    bars
}
