//! Efficiency over the number of workers.

use super::speedup::intervals;
use super::{BY_SPEED, BY_TIME, workers_axis};
use crate::CaseReport;
use crate::html::chart::{Look, Plot};
use crate::html::figure::{Figure, Hue, Sign};
use crate::html::group::Group;
use crate::html::markup::Tag;
use crate::html::scale::Axis;

/// Draws the figure if a case with several workers can be compared with one worker.
pub fn efficiency(group: &Group<'_>) -> Option<Tag> {
    let last = group.done.last().filter(|last| last.case.workers > 1)?;
    let (speed, time) = (100.0 * last.efficiency_speed?, 100.0 * last.efficiency_time?);
    let of: [fn(&CaseReport) -> Option<f64>; 2] = [|case| case.efficiency_time, |case| case.efficiency_speed];
    let all = group.done.iter().flat_map(|case| of.map(|of| of(case))).flatten();
    let whiskers = || intervals(group).map(|(n, (low, high))| (n, (100.0 * low / n, 100.0 * high / n)));
    let most = whiskers()
        .map(|(_, (_, high))| high)
        .chain(all.map(|fraction| 100.0 * fraction))
        .fold(100.0, f64::max);
    let mut plot = Plot::new(workers_axis(group), Axis::exact(0.0, 1.03 * most, 6, "efficiency, %"), 300.0);
    let ideal = [(1.0, 100.0), (f64::from(group.most_workers()), 100.0)];
    plot.line(&ideal, Look { hue: Hue::Grey, sign: Sign::Dashed });
    for (workers, (low, high)) in whiskers() {
        plot.whisker(workers, low, high, BY_SPEED.1);
    }
    for ((sign, hue, name), of) in [BY_TIME, BY_SPEED].into_iter().zip(of) {
        let point = |case: &&CaseReport| {
            let (workers, efficiency) = (case.case.workers, 100.0 * of(case)?);
            let says = format!("{workers} workers, {name}: {efficiency:.1} %");
            Some(((f64::from(workers), efficiency), says))
        };
        let points: Vec<_> = group.done.iter().filter_map(point).collect();
        let line: Vec<_> = points.iter().map(|(point, _)| *point).collect();
        plot.line(&line, Look { hue, sign: Sign::Line });
        plot.points(&points, Look { hue, sign });
    }
    let mut legend = vec![(Sign::Dashed, Hue::Grey, "ideal".to_owned())];
    legend.extend([BY_SPEED, BY_TIME].map(|(sign, hue, name)| (sign, hue, name.to_owned())));
    let caption = format!(
        "With {} workers, each worker does {speed:.0} % of the work of a single one by images/s, {time:.0} % by training time.",
        last.case.workers
    );
    let body = vec![plot.render(&format!("Efficiency against workers. {caption}"))];
    Some(Figure { name: "efficiency", title: "Efficiency".into(), caption, legend, body }.render())
}
