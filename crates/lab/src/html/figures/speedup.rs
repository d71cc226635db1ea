//! Speed-up over the number of workers, by every measure.

use super::{BY_SPEED, BY_TIME, BY_TOTAL, MANY, workers_axis};
use crate::html::chart::{Look, Plot};
use crate::html::figure::{Figure, Hue, Sign};
use crate::html::group::Group;
use crate::html::markup::Tag;
use crate::html::scale::Axis;
use crate::numbers::speedup::Speedup;

/// Draws the figure if a case with several workers can be compared with one worker.
pub fn speedup(group: &Group<'_>) -> Option<Tag> {
    let speedups = &group.explained.speedups;
    let last = speedups.last().filter(|last| last.workers > 1)?;
    let measures = || speedups.iter().flat_map(|s| [Some(s.speed), Some(s.time), s.total]).flatten();
    let most = measures().chain(intervals(group).map(|(_, (_, high))| high)).fold(1.0, f64::max);
    let workers = f64::from(group.most_workers());
    let y = if group.most_workers() >= MANY {
        Axis::log(measures().fold(1.0, f64::min).max(1e-3), most.max(workers), "speed-up")
    } else {
        Axis::linear(0.0, most.max(workers), 6, "speed-up")
    };
    let mut plot = Plot::new(workers_axis(group), y, 300.0);
    let mut legend = vec![(Sign::Dashed, Hue::Grey, "ideal".to_owned())];
    plot.line(&[(1.0, 1.0), (workers, workers)], Look { hue: Hue::Grey, sign: Sign::Dashed });
    if let Some((name, curve)) = best_law(group) {
        plot.line(&curve, Look { hue: Hue::Purple, sign: Sign::Line });
        legend.push((Sign::Line, Hue::Purple, format!("{name}, fitted")));
    }
    for (workers, (low, high)) in intervals(group) {
        plot.whisker(workers, low, high, BY_SPEED.1);
    }
    let of: [fn(&Speedup) -> Option<f64>; 3] = [|s| s.total, |s| Some(s.time), |s| Some(s.speed)];
    for ((sign, hue, name), of) in [BY_TOTAL, BY_TIME, BY_SPEED].into_iter().zip(of) {
        let point = |s: &Speedup| {
            let value = of(s)?;
            Some(((f64::from(s.workers), value), format!("{} workers, {name}: {value:.2}x", s.workers)))
        };
        let points: Vec<_> = speedups.iter().filter_map(point).collect();
        let line: Vec<_> = points.iter().map(|(point, _)| *point).collect();
        plot.line(&line, Look { hue, sign: Sign::Line });
        plot.points(&points, Look { hue, sign });
    }
    let shown = [Some(BY_SPEED), Some(BY_TIME), last.total.map(|_| BY_TOTAL)];
    legend.extend(shown.into_iter().flatten().map(|(sign, hue, name)| (sign, hue, name.to_owned())));
    let whole = last.total.map_or_else(String::new, |total| format!(", {total:.2} times by the whole run"));
    let caption = format!(
        "{} workers are {:.2} times as fast as one by images/s and {:.2} times by training time{whole}. Whiskers: 95 % \
         intervals of images/s.",
        last.workers, last.speed, last.time
    );
    let body = vec![plot.render(&format!("Speed-up against workers. {caption}"))];
    Some(Figure { name: "speedup", title: "Speed-up".into(), caption, legend, body }.render())
}

/// Worker counts, and the interval of their speed-up by images/s: the rate's interval over the mean rate of one worker.
pub(super) fn intervals(group: &Group<'_>) -> impl Iterator<Item = (f64, (f64, f64))> {
    let one = group.one.and_then(|one| one.images_per_s).map(|rate| rate.mean);
    group.done.iter().filter_map(move |case| {
        let rate = case.images_per_s?;
        Some((f64::from(case.case.workers), (rate.lo? / one?, rate.hi? / one?)))
    })
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
