//! Members and images per second over time, one panel per case whose members changed.

use paceline_record::Who;

use super::{Axis, Figure, Group, Hue, Plot, Point, Sign, Tag, panel, panels};
use crate::numbers::recovery::{Event, Recovery, What};
use crate::{CaseReport, words};

/// Draws the figure if the members of any case changed.
pub fn members(group: &Group<'_>) -> Option<Tag> {
    let changed = group.done.iter().copied().filter(|case| case.has_changed());
    let cases: Vec<(&CaseReport, &Recovery)> = changed
        .filter_map(|case| Some((case, case.recovery.as_ref()?)))
        .filter(|(_, recovery)| !recovery.strength.to_s.is_empty())
        .collect();
    if cases.is_empty() {
        return None;
    }
    let lost = cases.iter().any(|(_, recovery)| recovery.events.iter().any(is_loss));
    let mut legend = vec![
        (Sign::Line, Hue::Blue, "members in a step".to_owned()),
        (Sign::Line, Hue::Green, "images/s".to_owned()),
    ];
    if lost {
        legend.push((Sign::Triangle, Hue::Crimson, "a member or host was lost".into()));
    }
    let joined = cases.iter().any(|(_, recovery)| recovery.strength.every > 1);
    let caption = if joined {
        "Each point stands for several steps of the first repeat: the fewest members of one of them, and their images/s."
    } else {
        "Each step of the first repeat: the members that did it, and its images/s, over the time since the first spawn."
    };
    let body = panels(cases.iter().flat_map(|(case, recovery)| draw(case, recovery)));
    let title = "Members and images/s over time".into();
    Some(Figure { name: "members", title, caption: caption.into(), legend, body }.render())
}

fn is_loss(event: &Event) -> bool {
    matches!(event.what, What::Lost | What::Expelled)
}

fn draw(case: &CaseReport, recovery: &Recovery) -> [Tag; 2] {
    let strength = &recovery.strength;
    let workers = case.workers_said();
    let losses = || recovery.events.iter().filter(|event| is_loss(event));
    let steps_end = strength.to_s.last().copied().unwrap_or_default();
    let end = losses().map(|event| event.at_s).fold(steps_end, f64::max);
    let axis = || Axis::exact(0.0, end, 5, "s since the first spawn");
    let most = strength.members.iter().copied().max().unwrap_or(1) as f64;
    let mut crew = Plot::new(axis(), Axis::linear(0.0, most, 4, "members"), 190.0);
    crew.line(&stairs(&strength.to_s, &strength.members), Hue::Blue, Sign::Line);
    let losses: Vec<Point> = losses()
        .map(|event| {
            let who = match (event.member, event.host) {
                (Some(member), _) => case.name(Who::Member(member)),
                (None, host) => words::or_dash(host, |host| format!("host {host}")),
            };
            ((event.at_s, 0.0), format!("{who} was lost after {:.2} s", event.at_s))
        })
        .collect();
    crew.points(&losses, Hue::Crimson, Sign::Triangle);
    let fastest = strength.images_per_s.iter().copied().fold(0.0, f64::max);
    let mut rate = Plot::new(axis(), Axis::linear(0.0, fastest, 4, "images/s"), 190.0);
    let points: Vec<(f64, f64)> =
        strength.to_s.iter().copied().zip(strength.images_per_s.iter().copied()).collect();
    rate.line(&points, Hue::Green, Sign::Line);
    [("members", crew), ("images/s", rate)].map(|(what, plot)| {
        panel(&workers, &format!(": {what}"), plot.render(&format!("{what} over time, {workers}")))
    })
}

/// A count that holds from the end of the point before.
fn stairs(to_s: &[f64], counts: &[u64]) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut from = 0.0;
    for (&to, &count) in to_s.iter().zip(counts) {
        points.extend([(from, count as f64), (to, count as f64)]);
        from = to;
    }
    // Only corners are needed: the first and the last point at each height.
    let levels = points.chunk_by(|one, next| one.1 == next.1);
    levels.flat_map(|level| [level[0], level[level.len() - 1]]).collect()
}
