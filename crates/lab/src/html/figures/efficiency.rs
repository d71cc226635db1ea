//! Efficiency over the number of workers.

use super::{BY_SPEED, BY_TIME, Measure, are_few, bars, workers_axis};
use crate::html::chart::{Look, Plot};
use crate::html::figure::{Figure, Hue, Sign};
use crate::html::group::Group;
use crate::html::markup::Tag;
use crate::html::scale::Axis;

/// The measures, in the order in which they are drawn.
const MEASURES: [Measure; 2] = [
    Measure { look: BY_TIME, of: |case| case.efficiency_time, within: |case| case.efficiency_time_interval },
    Measure {
        look: BY_SPEED,
        of: |case| case.efficiency_speed,
        within: |case| case.efficiency_speed_interval,
    },
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
    let drawing = if few {
        bars(group, &MEASURES.each_ref(), "efficiency, %", &|_| 100.0).render(&says)
    } else {
        plot(group).render(&says)
    };
    let mut legend = vec![(Sign::Dashed, Hue::Grey, "ideal".to_owned())];
    legend.extend(
        [BY_SPEED, BY_TIME]
            .map(|(sign, hue, name)| (if few { Sign::Area } else { sign }, hue, name.to_owned())),
    );
    Some(
        Figure { name: "efficiency", title: "Efficiency".into(), caption, legend, body: vec![drawing] }
            .render(),
    )
}

fn plot(group: &Group<'_>) -> Plot {
    let tops = group.done.iter().flat_map(|&case| {
        MEASURES.iter().flat_map(move |one| [(one.of)(case), (one.within)(case).map(|within| within.hi)])
    });
    let most = tops.flatten().map(|fraction| 100.0 * fraction).fold(100.0, f64::max);
    let mut plot = Plot::new(workers_axis(group), Axis::exact(0.0, 1.03 * most, 6, "efficiency, %"), 300.0);
    let ideal = [(1.0, 100.0), (f64::from(group.most_workers()), 100.0)];
    plot.line(&ideal, Look { hue: Hue::Grey, sign: Sign::Dashed });
    for measure in &MEASURES {
        measure.draw(&mut plot, &group.done, &|value| format!("{value:.1} %"), 100.0);
    }
    plot
}
