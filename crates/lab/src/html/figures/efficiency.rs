//! Efficiency over the number of workers.

use super::{Axis, BY_SPEED, BY_TIME, Figure, Group, Hue, Measure, Plot, Sign, Tag};
use super::{are_few, bars, ends, workers_axis};

/// The measures, in the order in which they are drawn.
const MEASURES: [&Measure; 2] = [
    &Measure::percent(BY_TIME, |case| case.efficiency_time, |case| case.efficiency_time_interval),
    &Measure::percent(BY_SPEED, |case| case.efficiency_speed, |case| case.efficiency_speed_interval),
];

/// Draws the figure if a case with several workers can be compared with one worker.
pub fn efficiency(group: &Group<'_>) -> Option<Tag> {
    let last = group.done.last().filter(|last| last.case.workers > 1)?;
    let (speed, time) = (100.0 * last.efficiency_speed?, 100.0 * last.efficiency_time?);
    let caption = format!(
        "With {} workers, each worker does {speed:.0} % of the work of a single one by images/s, {time:.0} % by training time.",
        last.case.workers
    );
    let says = format!("Efficiency against workers. {caption}");
    let few = are_few(group);
    let body = match few {
        true => bars(group, &MEASURES, "efficiency, %", &|_| 100.0).render(&says),
        false => plot(group).render(&says),
    };
    let mut legend = vec![(Sign::Dashed, Hue::Grey, "ideal".to_owned())];
    legend.extend(MEASURES.iter().rev().map(|measure| measure.entry(few)));
    Some(Figure { name: "efficiency", title: "Efficiency".into(), caption, legend, body }.render())
}

fn plot(group: &Group<'_>) -> Plot {
    let most = ends(&group.done, &MEASURES).fold(100.0, f64::max);
    let y = Axis::exact(0.0, 1.03 * most, 6, "efficiency, %");
    let mut plot = Plot::new(workers_axis(&group.done), y, 300.0);
    let ideal = [(1.0, 100.0), (f64::from(group.most_workers()), 100.0)];
    plot.line(&ideal, Hue::Grey, Sign::Dashed);
    MEASURES.iter().for_each(|measure| measure.draw(&mut plot, &group.done));
    plot
}
