//! Tables with a row for each case: results, phases and steps.

use paceline_record::Phase;

use super::Cases;
use crate::numbers::phases::PhaseSeconds;
use crate::numbers::speedup::Interval;
use crate::words::{self, digits, megabytes, or_dash, range};
use crate::{CaseReport, Column, Table};

/// The columns that every table of cases begins with.
pub fn columns(rest: impl IntoIterator<Item = Column>) -> Table {
    let first = [Column::words("case"), Column::numbers("workers").always()];
    Table::new(first.into_iter().chain(rest)).by_name()
}

/// Times, rates and speed-ups.
pub fn cases(cases: &Cases<'_>) -> Table {
    let seconds = |name: &'static str| Column::numbers(format!("{name} s")).under("seconds", name);
    let speedup = |name: &str, below| Column::numbers(name).under("speed-up", below);
    let efficiency = |name: &str, below| Column::numbers(name).under("efficiency, %", below);
    let per_step = |name: &'static str| {
        Column::numbers(format!("{name} ms per step")).short(format!("{name} ms")).under("ms per step", name)
    };
    let mut table = columns([
        seconds("init").keep(4.0),
        seconds("train").keep(6.0),
        seconds("total").keep(7.0),
        Column::numbers("images/s").keep(10.0),
        Column::interval().keep(7.2),
        speedup("speed-up by images/s", "images/s").short("speed-up").keep(10.0),
        Column::interval().keep(9.0),
        speedup("speed-up by time", "training").short("by time").keep(6.5),
        Column::interval().keep(2.5),
        speedup("speed-up of the whole run", "whole run").short("whole run").keep(3.5),
        Column::interval().keep(2.0),
        efficiency("efficiency by images/s %", "images/s").short("eff. %").keep(7.5),
        Column::interval().keep(1.5),
        efficiency("efficiency by time %", "training").short("by time").keep(4.5),
        Column::interval().keep(1.0),
        Column::numbers("comp. : comm.").short("comp:comm").keep(5.0),
        per_step("exchange").keep(5.5),
        per_step("update").keep(3.0),
        Column::numbers("peak memory MB per worker").short("memory MB").keep(4.8),
    ]);
    // One worker compared with itself says nothing.
    let compared = cases.done().any(|(case, _)| case.case.workers > 1 && case.speedup_speed.is_some());
    for (case, label) in &cases.all {
        let workers = case.workers_shown();
        if !case.is_told() {
            // A reason may span several lines; the table has room for one.
            let reason = case.reason.as_deref().and_then(|reason| reason.lines().next());
            let ended = case.status.name();
            let ended = reason.map_or_else(|| ended.into(), |reason| format!("{ended}: {reason}"));
            table.row([label.clone(), workers, ended]);
            continue;
        }
        let ratio = |value: Option<f64>| digits(value.filter(|_| compared), 2);
        let percent = |value: Option<f64>| digits(value.filter(|_| compared).map(|value| 100.0 * value), 1);
        let rate = case.images_per_s;
        let step_ms = |seconds: Option<f64>| digits(seconds.and_then(|seconds| step_ms(case, seconds)), 2);
        let spread = |interval: Option<Interval>, factor: f64, places| {
            range(interval.map(|Interval { lo, hi }| (factor * lo, factor * hi)), places)
        };
        table.row([
            label.clone(),
            workers,
            digits(case.init_s, 2),
            digits(case.train_s, 2),
            digits(case.total_s, 2),
            digits(rate.map(|rate| rate.mean), 1),
            range(rate.and_then(|rate| rate.lo.zip(rate.hi)), 1),
            ratio(case.speedup_speed),
            spread(case.speedup_speed_interval, 1.0, 2),
            ratio(case.speedup_time),
            spread(case.speedup_time_interval, 1.0, 2),
            ratio(case.speedup_total),
            spread(case.speedup_total_interval, 1.0, 2),
            percent(case.efficiency_speed),
            spread(case.efficiency_speed_interval, 100.0, 1),
            percent(case.efficiency_time),
            spread(case.efficiency_time_interval, 100.0, 1),
            or_dash(case.communication_ratio, |ratio| format!("10 : {ratio:.2}")),
            step_ms(case.exchange_s()),
            step_ms(phase_s(case, Phase::Update)),
            or_dash(case.peak_memory_bytes, |memory| megabytes(memory.per_worker)),
        ]);
    }
    table
}

fn phase_s(case: &CaseReport, phase: Phase) -> Option<f64> {
    case.phases_s.as_ref().and_then(|phases: &PhaseSeconds| phases.get(&phase)).copied()
}

/// Mean milliseconds per step of one rank.
fn step_ms(case: &CaseReport, seconds: f64) -> Option<f64> {
    let steps = case.steps as f64 * case.workers_on_average();
    (steps > 0.0).then(|| 1e3 * seconds / steps)
}

/// Phases outside the steps; the table of results covers them.
const AROUND: [Phase; 3] = [Phase::Launch, Phase::Init, Phase::Tail];

/// Mean time of the phases of a step. The larger a phase, the longer a narrow terminal keeps it.
pub fn phases(cases: &Cases<'_>) -> Table {
    let ms = |case: &CaseReport, phase| phase_s(case, phase).and_then(|seconds| step_ms(case, seconds));
    let most = |phase| cases.done().filter_map(|(case, _)| ms(case, phase)).fold(0.0, f64::max);
    let shown: Vec<(Phase, f64)> = Phase::ALL
        .into_iter()
        .filter(|phase| !AROUND.contains(phase))
        .map(|phase| (phase, most(phase)))
        .filter(|&(_, most)| most > 0.0)
        .collect();
    let numbers = shown.iter().map(|&(phase, most)| Column::numbers(phase.name()).keep(most));
    let off_core = Column::numbers("of these off the core").short("off core").keep(f64::MAX / 2.0);
    let hidden = Column::numbers("hidden communication %").short("overlap %").keep(f64::MAX);
    let mut table = columns(numbers.chain([off_core, hidden]));
    for (case, label) in cases.done() {
        let times =
            shown.iter().map(|&(phase, most)| digits(ms(case, phase), if most < 10.0 { 3 } else { 2 }));
        let off_core = case.off_core.as_ref().and_then(|time| step_ms(case, time.seconds));
        let last = [digits(off_core, 2), digits(case.overlap.map(|fraction| 100.0 * fraction), 0)];
        table.row([label.to_owned(), case.workers_shown()].into_iter().chain(times).chain(last));
    }
    table
}

/// Spread of the steps, and the steady state.
pub fn steps(cases: &Cases<'_>) -> Table {
    let mut table = columns([
        Column::numbers("steps").keep(6.0),
        Column::numbers("repeats").keep(3.0),
        Column::numbers("median ms").keep(8.0),
        Column::numbers("95th ms").keep(7.0),
        Column::numbers("99th ms").keep(4.0),
        Column::numbers("variation %").keep(6.0),
        Column::numbers("outliers").keep(5.0),
        Column::words("steady state").keep(7.5).wrapping(),
    ]);
    for (case, label) in cases.done() {
        let spread = case.dispersion;
        table.row([
            label.to_owned(),
            case.workers_shown(),
            case.steps.to_string(),
            case.repeats.to_string(),
            digits(spread.map(|spread| 1e3 * spread.p50_s), 2),
            digits(spread.map(|spread| 1e3 * spread.p95_s), 2),
            digits(spread.map(|spread| 1e3 * spread.p99_s), 2),
            digits(spread.and_then(|spread| spread.cv).map(|cv| 100.0 * cv), 2),
            or_dash(case.steady, |steady| steady.outliers.to_string()),
            or_dash(words::steady(case), |text| text),
        ]);
    }
    table
}
