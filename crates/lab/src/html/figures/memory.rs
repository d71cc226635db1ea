//! Memory per worker: measured and planned.

use super::{Axis, Bar, Bars, Columns, Figure, Group, Hue, Sign, Tag, Unit};
use crate::CaseReport;
use crate::numbers::memory::Memory;

const MEASURED: (Hue, &str) = (Hue::Blue, "measured, largest worker");
const PLANNED: (Hue, &str) = (Hue::Grey, "planned for the engine's program");

/// Draws the figure if memory was measured or planned.
pub fn memory(group: &Group<'_>) -> Option<Tag> {
    let of = |case: &CaseReport| [(MEASURED, case.peak_memory_bytes), (PLANNED, case.planned_memory_bytes)];
    let known = |case: &&&CaseReport| of(case).iter().any(|(_, memory)| memory.is_some());
    let cases: Vec<&CaseReport> = group.done.iter().filter(known).copied().collect();
    let all = cases.iter().flat_map(|case| of(case)).filter_map(|(_, memory)| memory);
    let most = all.map(|memory| memory.per_worker).max()?;
    let unit = Unit::of_memory(most);
    let axis = Axis::linear(0.0, unit.factor * most.0 as f64, 4, format!("{} per worker", unit.name));
    let mut bars = Bars::new(axis, Columns { names: 86.0, values: 78.0 });
    for case in &cases {
        for (place, ((hue, name), memory)) in of(case).into_iter().enumerate() {
            let Some(Memory { per_worker, total }) = memory else {
                continue;
            };
            let row = bars.row(14.0);
            bars.skip(3.0);
            if place == 0 || case.peak_memory_bytes.is_none() {
                bars.name(row, &case.workers_said());
            }
            let (shown, total) = (unit.show(per_worker.0 as f64), unit.show(total.0 as f64));
            let says = format!("{name}: {shown}, {total} in total");
            let bar = Bar { from: 0.0, to: unit.factor * per_worker.0 as f64, hue, says };
            bars.measure(row, &bar, None, &shown);
        }
        bars.skip(8.0);
    }
    let legend: Vec<_> =
        [MEASURED, PLANNED].into_iter().map(|(hue, name)| (Sign::Area, hue, name.to_owned())).collect();
    let last = cases.last().and_then(|case| Some((case.workers_said(), case.peak_memory_bytes?)));
    let caption = last.map(|(workers, memory)| {
        let [each, all] = [memory.per_worker, memory.total].map(|bytes| unit.show(bytes.0 as f64));
        format!("{} took {each} at most, {all} in total.", workers.replace("workers", "workers each"))
    });
    let caption = caption.unwrap_or_else(|| "Measured memory is unknown; this is the plan.".into());
    let body = bars.render(&format!("Peak memory per worker. {caption}"));
    Some(Figure { name: "memory", title: "Peak memory per worker".into(), caption, legend, body }.render())
}
