//! Communication per step: exposed and hidden.

use paceline_record::Phase;

use super::{Axis, Bar, Bars, Columns, Figure, Group, Hue, Sign, Tag, Unit, percent};
use crate::CaseReport;

/// Communication of a case, in seconds per step of one rank.
struct Parts {
    workers: String,
    overlap: f64,
    busy: f64,
    late: f64,
    transfer: f64,
    work: f64,
}

impl Parts {
    fn of(case: &CaseReport) -> Option<Self> {
        let steps = case.steps as f64 * f64::from(case.case.workers);
        let wait = case.comm_wait_split_s?;
        Some(Self {
            workers: case.workers_said(),
            overlap: case.overlap?,
            busy: case.comm_busy_s? / steps,
            late: wait.late_rank / steps,
            transfer: wait.transfer / steps,
            work: case.phases_s.as_ref()?.get(&Phase::CommCpu)? / steps,
        })
    }

    fn exposed(&self) -> f64 {
        self.late + self.transfer + self.work
    }
}

/// Draws the figure if anything was exchanged.
pub fn overlap(group: &Group<'_>) -> Option<Tag> {
    let all: Vec<Parts> = group.done.iter().filter_map(|case| Parts::of(case)).collect();
    let most = all.iter().map(|parts| parts.busy.max(parts.exposed())).fold(0.0, f64::max);
    let last = all.last()?;
    let unit = Unit::of_time(most);
    let axis = Axis::linear(0.0, unit.factor * most, 4, format!("{} of each rank's step", unit.name));
    let mut bars = Bars::new(axis, Columns { names: 86.0, values: 92.0 });
    for parts in &all {
        let row = bars.row(18.0);
        bars.skip(8.0);
        bars.name(row, &parts.workers);
        bars.value(row, &format!("{} hidden", percent(parts.overlap)));
        let mut from = 0.0;
        let hidden = (parts.busy - parts.exposed()).max(0.0);
        let seconds = [parts.late, parts.transfer, parts.work, hidden];
        for ((hue, name), seconds) in PARTS.into_iter().zip(seconds) {
            let to = from + unit.factor * seconds;
            bars.bar(row, &Bar { from, to, hue, says: format!("{name}: {} per step", unit.show(seconds)) });
            from = to;
        }
    }
    let caption = format!(
        "With {}, an exchange is under way for {} of each step, and {} of that is hidden behind other work.",
        last.workers,
        unit.show(last.busy),
        percent(last.overlap)
    );
    let legend = PARTS.into_iter().map(|(hue, name)| (Sign::Area, hue, name.to_owned())).collect();
    let body = bars.render(&format!("Communication, hidden and exposed. {caption}"));
    let title = "Communication, hidden and exposed".into();
    Some(Figure { name: "overlap", title, caption, legend, body }.render())
}

const PARTS: [(Hue, &str); 4] = [
    (Hue::Vermilion, "waiting for a late rank"),
    (Hue::Purple, "moving bytes"),
    (Hue::Orange, "work for the exchange"),
    (Hue::Sky, "hidden"),
];
