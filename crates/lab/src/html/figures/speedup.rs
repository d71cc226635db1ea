//! Speed-up over the number of workers, by every measure.

use super::{BY_SPEED, BY_TIME, BY_TOTAL, MANY, Measure, are_few, bars, workers_axis};
use crate::html::chart::{Look, Plot};
use crate::html::figure::{Figure, Hue, Sign};
use crate::html::group::Group;
use crate::html::markup::Tag;
use crate::html::scale::Axis;
use crate::numbers::speedup::Interval;

/// The measures, in the order in which they are drawn: the first lies under the others.
const MEASURES: [Measure; 3] = [
    Measure { look: BY_TOTAL, of: |case| case.speedup_total, within: |case| case.speedup_total_interval },
    Measure { look: BY_TIME, of: |case| case.speedup_time, within: |case| case.speedup_time_interval },
    Measure { look: BY_SPEED, of: |case| case.speedup_speed, within: |case| case.speedup_speed_interval },
];

/// Draws the figure if a case with several workers can be compared with one worker.
pub fn speedup(group: &Group<'_>) -> Option<Tag> {
    let last = group.explained.speedups.last().filter(|last| last.workers > 1)?;
    let known = |measure: &&Measure| group.done.iter().any(|case| (measure.of)(case).is_some());
    let measures: Vec<&Measure> = MEASURES.iter().filter(known).collect();
    let workers = f64::from(group.most_workers());
    let time = last.time.map_or_else(String::new, |time| format!(" and {time:.2} times by training time"));
    let whole = last.total.map_or_else(String::new, |total| format!(", {total:.2} times by the whole run"));
    let intervals =
        measures.iter().any(|measure| group.done.iter().any(|&case| (measure.within)(case).is_some()));
    let whiskers = if intervals { " Whiskers: 95 % intervals." } else { "" };
    let caption = format!(
        "{} workers are {:.2} times as fast as one by images/s{time}{whole}.{whiskers}",
        last.workers, last.speed
    );
    let says = format!("Speed-up against workers. {caption}");
    let mut legend = vec![(Sign::Dashed, Hue::Grey, "ideal".to_owned())];
    let drawing = if are_few(group) {
        bars(group, &measures, "speed-up", &|workers| workers).render(&says)
    } else {
        let law = best_law(group);
        if let Some((name, _)) = &law {
            legend.push((Sign::Line, Hue::Purple, format!("{name}, fitted")));
        }
        plot(group, &measures, workers, law.map(|(_, curve)| curve)).render(&says)
    };
    legend.extend(measures.iter().rev().map(|measure| {
        let (sign, hue, name) = measure.look;
        (if are_few(group) { Sign::Area } else { sign }, hue, name.to_owned())
    }));
    Some(Figure { name: "speedup", title: "Speed-up".into(), caption, legend, body: vec![drawing] }.render())
}

fn plot(group: &Group<'_>, measures: &[&Measure], workers: f64, law: Option<Vec<(f64, f64)>>) -> Plot {
    let ends = |interval: Interval| [interval.lo, interval.hi];
    let shown = || {
        let points = group.done.iter().flat_map(|&case| measures.iter().map(move |measure| (case, measure)));
        let values = points.flat_map(|(case, measure)| {
            (measure.of)(case).into_iter().chain((measure.within)(case).into_iter().flat_map(ends))
        });
        values.chain(law.iter().flatten().map(|(_, value)| *value))
    };
    let most = shown().fold(workers.max(1.0), f64::max);
    let least = shown().fold(1.0, f64::min);
    // A logarithmic axis has no place for zero.
    let y = if group.most_workers() >= MANY && least > 0.0 {
        Axis::log(least, most, "speed-up")
    } else {
        Axis::linear(least.min(0.0), most, 6, "speed-up")
    };
    let mut plot = Plot::new(workers_axis(group), y, 300.0);
    plot.line(&[(1.0, 1.0), (workers, workers)], Look { hue: Hue::Grey, sign: Sign::Dashed });
    if let Some(curve) = &law {
        plot.line(curve, Look { hue: Hue::Purple, sign: Sign::Line });
    }
    for measure in measures {
        measure.draw(&mut plot, &group.done, &|value| format!("{value:.2}x"), 1.0);
    }
    plot
}

/// The best-fitting law, as speed-ups up to the largest worker count.
fn best_law(group: &Group<'_>) -> Option<(String, Vec<(f64, f64)>)> {
    let laws = &group.explained.laws;
    let best = laws.best.as_ref()?;
    let law = laws.throughput.iter().find(|law| law.name == *best)?;
    let one = group.one?.images_per_s?.mean;
    let within = |(workers, _): &(f64, f64)| (1.0..=f64::from(group.most_workers())).contains(workers);
    let curve: Vec<_> = law.curve.iter().copied().filter(within).map(|(n, rate)| (n, rate / one)).collect();
    (curve.len() > 1).then(|| (best.clone(), curve))
}
