//! Speed-up over the number of workers, by every measure.

use super::{BY_SPEED, BY_TIME, BY_TOTAL, Figure, Group, Hue, Measure, Plot, Sign, Tag};
use super::{are_few, bars, ends, speedup_axis, workers_axis};

/// The measures, in the order in which they are drawn: the first lies under the others.
const MEASURES: [Measure; 3] = [
    Measure::times(BY_TOTAL, |case| case.speedup_total, |case| case.speedup_total_interval),
    Measure::times(BY_TIME, |case| case.speedup_time, |case| case.speedup_time_interval),
    Measure::times(BY_SPEED, |case| case.speedup_speed, |case| case.speedup_speed_interval),
];

/// Draws the figure if a case with several workers can be compared with one worker.
pub fn speedup(group: &Group<'_>) -> Option<Tag> {
    let last = group.explained.speedups.last().filter(|last| last.workers > 1)?;
    let known = |measure: &&Measure| group.done.iter().any(|case| (measure.of)(case).is_some());
    let measures: Vec<&Measure> = MEASURES.iter().filter(known).collect();
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
    let body = if are_few(group) {
        bars(group, &measures, "speed-up", &|workers| workers).render(&says)
    } else {
        let law = best_law(group);
        if let Some((name, _)) = &law {
            legend.push((Sign::Line, Hue::Purple, format!("{name}, fitted")));
        }
        plot(group, &measures, law.map(|(_, curve)| curve)).render(&says)
    };
    legend.extend(measures.iter().rev().map(|measure| measure.entry(are_few(group))));
    Some(Figure { name: "speedup", title: "Speed-up".into(), caption, legend, body }.render())
}

fn plot(group: &Group<'_>, measures: &[&Measure], law: Option<Vec<(f64, f64)>>) -> Plot {
    let shown = ends(&group.done, measures).chain(law.iter().flatten().map(|(_, value)| *value));
    let y = speedup_axis(group.most_workers(), shown);
    let mut plot = Plot::new(workers_axis(&group.done), y, 300.0);
    let workers = f64::from(group.most_workers());
    plot.line(&[(1.0, 1.0), (workers, workers)], Hue::Grey, Sign::Dashed);
    if let Some(curve) = &law {
        plot.line(curve, Hue::Purple, Sign::Line);
    }
    measures.iter().for_each(|measure| measure.draw(&mut plot, &group.done));
    plot
}

/// The best-fitting law, as speed-ups up to the largest worker count.
fn best_law(group: &Group<'_>) -> Option<(String, Vec<(f64, f64)>)> {
    let laws = &group.explained.laws;
    let best = laws.best.as_ref()?;
    let law = laws.throughput.iter().find(|law| law.fit.name == *best)?;
    let one = group.one?.images_per_s?.mean;
    let within = |(workers, _): &(f64, f64)| (1.0..=f64::from(group.most_workers())).contains(workers);
    let curve: Vec<_> = law.curve.iter().copied().filter(within).map(|(n, rate)| (n, rate / one)).collect();
    (curve.len() > 1).then(|| (best.clone(), curve))
}
