//! Where each worker's time went, one bar per rank.

use paceline_record::Phase;

use super::{Axis, Bar, Bars, Columns, Entry, Figure, Group, Hue, Sign, Tag, Unit};
use crate::CaseReport;
use crate::numbers::phases::RankPhases;

/// Phases by colour, in drawing order.
const FAMILIES: [(&[Phase], Hue); 12] = [
    (&[Phase::Launch, Phase::Init], Hue::Grey),
    (&[Phase::Load, Phase::CopyIn, Phase::CopyOut], Hue::Purple),
    (&[Phase::Forward], Hue::Sky),
    (&[Phase::Backward, Phase::Compute], Hue::Blue),
    (&[Phase::CommCpu], Hue::Orange),
    (&[Phase::CommWait], Hue::Vermilion),
    (&[Phase::Update], Hue::Green),
    (&[Phase::Idle], Hue::Grey),
    (&[Phase::Eval, Phase::Checkpoint], Hue::Yellow),
    (&[Phase::Recovery], Hue::Crimson),
    (&[Phase::Tail], Hue::Grey),
    (&[Phase::Other], Hue::Ink),
];

/// Draws the figure if any case has per-rank phases.
pub fn phases(group: &Group<'_>) -> Option<Tag> {
    let known = |case: &&CaseReport| whole(case).is_some() && case.ranks.is_some();
    let cases: Vec<&CaseReport> = group.done.iter().copied().filter(known).collect();
    if cases.is_empty() {
        return None;
    }
    // Booked time can exceed a rank's run by a rounding, or by far where a foreign source overlaps phases.
    let filled = |case: &CaseReport| {
        let ranks = case.ranks.iter().flatten();
        let sums = ranks.map(|rank| Phase::ALL.into_iter().map(|phase| seconds(rank, phase)).sum::<f64>());
        100.0 * sums.fold(0.0, f64::max) / whole(case).unwrap_or(f64::INFINITY)
    };
    let most = cases.iter().map(|case| filled(case)).filter(|&most| most > 100.05).fold(100.0, f64::max);
    let axis = Axis::linear(0.0, most, 5, "% of the run");
    let has_members = cases.iter().any(|case| case.recovery.is_some());
    let names = match () {
        _ if cases.iter().any(|case| case.hosts.is_some()) => 140.0,
        _ if has_members => 82.0,
        _ => 62.0,
    };
    let mut bars = Bars::new(axis, Columns { names, values: 14.0 });
    for case in &cases {
        draw(&mut bars, case);
    }
    let legend = FAMILIES.into_iter().filter_map(|(phases, hue)| {
        let occurs = |phase: &&Phase| {
            cases.iter().filter_map(|case| case.phases_s.as_ref()).any(|times| times.get(*phase) > Some(&0.0))
        };
        let names: Vec<&str> = phases.iter().filter(occurs).map(|phase| phase.name()).collect();
        (!names.is_empty()).then(|| (Sign::Area, hue, names.join(", ")))
    });
    let legend = join_alike(legend);
    let caption = if cases.iter().any(|case| case.recovery.is_some()) {
        "Each bar is one member's life, from its spawn to its end, as a part of the whole run. Members that wait longer than \
         others wait for them."
    } else if cases.iter().any(|case| case.is_window()) {
        "Each bar is one rank's time as far as its source shows it: its steps. Ranks that wait longer than others wait for them."
    } else {
        "Each bar is one rank's whole run, from the first spawn to the last reap. Ranks that wait longer than others wait for \
         them."
    };
    let body = bars.render(caption);
    let title = "Phases of each worker".into();
    Some(Figure { name: "phases", title, caption: caption.into(), legend, body }.render())
}

/// The length of a bar: the whole run, or the known window of it.
fn whole(case: &CaseReport) -> Option<f64> {
    let shows =
        |(phase, seconds): (&Phase, &f64)| !matches!(phase, Phase::Other | Phase::Tail) && *seconds > 0.0;
    let shown = case.phases_s.iter().flatten().any(shows);
    case.total_s.or(case.train_s.filter(|_| shown))
}

fn draw(bars: &mut Bars, case: &CaseReport) {
    let (Some(total), Some(ranks)) = (whole(case), &case.ranks) else {
        return;
    };
    let unit = Unit::of_time(total);
    bars.heading(&format!("{}, {}", case.workers_said(), unit.show(total)));
    // With many ranks, bars get thinner and fewer are named.
    let (height, gap, every) = match ranks.len() {
        0..=8 => (14.0, 3.0, 1),
        9..=16 => (9.0, 2.0, 4),
        _ => (5.0, 1.0, 8),
    };
    for (place, rank) in ranks.iter().enumerate() {
        let (row, name) = (bars.row(height), case.name(rank.who));
        if place % every == 0 {
            bars.name(row, &name);
        }
        let mut from = 0.0;
        for (phase, hue) in
            FAMILIES.into_iter().flat_map(|(all, hue)| all.iter().map(move |phase| (*phase, hue)))
        {
            let seconds = seconds(rank, phase);
            let to = from + 100.0 * seconds / total;
            let says = format!("{name}, {phase}: {}, {:.1} %", unit.show(seconds), to - from);
            bars.bar(row, &Bar { from, to, hue, says });
            from = to;
        }
        bars.skip(gap);
    }
    bars.skip(8.0);
}

/// Seconds of a phase of a rank. `other` may be negative, which a bar cannot show.
fn seconds(rank: &RankPhases, phase: Phase) -> f64 {
    rank.phases_s.get(&phase).copied().unwrap_or(0.0).max(0.0)
}

/// Merges legend entries of one colour.
fn join_alike(entries: impl Iterator<Item = Entry>) -> Vec<Entry> {
    let mut joined: Vec<Entry> = Vec::new();
    for (sign, hue, names) in entries {
        match joined.iter_mut().find(|entry| entry.1 == hue) {
            Some(entry) => entry.2 = format!("{}, {names}", entry.2),
            None => joined.push((sign, hue, names)),
        }
    }
    joined
}
