//! The report as text. It renders and computes nothing but units.

use paceline_record::{Bytes, LayerTime, Outcome, Phase};

use crate::numbers::memory::Memory;
use crate::numbers::rate::Rate;
use crate::{Align, CaseReport, Report, Table};

/// The tables of a study: what each case gave, and where its steps spent their time.
pub fn render_report(report: &Report) -> String {
    let mut text = render_cases(report).to_string();
    let done: Vec<_> = report.cases.iter().filter(|case| case.status == Outcome::Done).collect();
    if !done.is_empty() {
        text.push('\n');
        text.push_str(&render_phases(&done).to_string());
    }
    text
}

fn render_cases(report: &Report) -> Table {
    let mut table = Table::new([
        ("model", Align::Left),
        ("strategy", Align::Left),
        ("workers", Align::Right),
        ("init s", Align::Right),
        ("train s", Align::Right),
        ("total s", Align::Right),
        ("images/s", Align::Right),
        ("95 % interval", Align::Right),
        ("speed-up", Align::Right),
        ("overlap %", Align::Right),
        ("memory MB", Align::Right),
        ("planned MB", Align::Right),
    ]);
    for case in &report.cases {
        let (model, workers) = (case.case.model.clone(), case.case.workers.to_string());
        let update = case.case.update.clone().unwrap_or_else(|| "-".into());
        let ended = match case.status {
            Outcome::Done => None,
            Outcome::Failed => Some("failed"),
            Outcome::Interrupted => Some("interrupted"),
        };
        if let Some(ended) = ended {
            let reason = case.reason.as_deref().unwrap_or("for an unknown reason");
            // A reason may quote several lines; the table has room for one.
            let first = reason.lines().next().unwrap_or_default();
            table.row([model, update, workers, format!("{ended}: {first}")]);
            continue;
        }
        let memory = |memory: Option<Memory>| or_dash(memory, |memory| megabytes(memory.per_worker));
        table.row([
            model,
            update,
            workers,
            seconds(case.init_s),
            seconds(case.train_s),
            seconds(case.total_s),
            or_dash(case.images_per_s, |rate| format!("{:.1}", rate.mean)),
            or_dash(case.images_per_s.and_then(interval), |text| text),
            or_dash(case.speedup_speed, |speedup| format!("{speedup:.2}")),
            or_dash(case.overlap, |overlap| format!("{:.0}", 100.0 * overlap)),
            memory(case.peak_memory_bytes),
            memory(case.planned_memory_bytes),
        ]);
    }
    table
}

/// Phases outside of the steps; the first table holds them.
const AROUND: [Phase; 3] = [Phase::Launch, Phase::Init, Phase::Tail];

/// Phases that are shown even where they took no time.
const ALWAYS: [Phase; 4] = [Phase::Forward, Phase::Backward, Phase::Update, Phase::Other];

fn render_phases(cases: &[&CaseReport]) -> Table {
    let time = |case: &CaseReport, phase: Phase| case.phases_s.as_ref().map(|times| times[&phase]);
    let shown: Vec<Phase> = Phase::ALL
        .into_iter()
        .filter(|phase| !AROUND.contains(phase))
        .filter(|phase| ALWAYS.contains(phase) || cases.iter().any(|case| time(case, *phase) > Some(0.0)))
        .collect();
    let numbers = shown.iter().map(|phase| (phase.name(), Align::Right));
    let first = [("ms a step", Align::Left), ("strategy", Align::Left), ("workers", Align::Right)];
    let mut table = Table::new(first.into_iter().chain(numbers));
    for case in cases {
        let steps = case.steps as f64 * f64::from(case.case.workers);
        let cells = shown
            .iter()
            .map(|&phase| or_dash(time(case, phase), |time| format!("{:.3}", 1e3 * time / steps)));
        let strategy = case.case.update.clone().unwrap_or_else(|| "-".into());
        let first = [case.case.model.clone(), strategy, case.case.workers.to_string()];
        table.row(first.into_iter().chain(cells));
    }
    table
}

/// How many layers of a profile are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The slowest ones.
    Top(usize),
    /// Every one.
    All,
}

/// Layers by the time they took, slowest first: milliseconds a step, GFLOP/s and share of all layers.
/// GFLOP/s are nominal: products with padding count, though the engine skips them, so small maps may exceed the peak.
pub fn render_layers(layers: &[LayerTime], rows: Rows) -> String {
    let mut sorted: Vec<&LayerTime> = layers.iter().collect();
    sorted.sort_by_key(|layer| std::cmp::Reverse(layer.forward + layer.backward));
    let total: f64 = sorted.iter().map(|layer| layer_seconds(layer)).sum();
    let mut table = Table::new([
        ("layer", Align::Left),
        ("forward ms", Align::Right),
        ("backward ms", Align::Right),
        ("nominal GFLOP/s", Align::Right),
        ("share %", Align::Right),
    ]);
    let shown = match rows {
        Rows::Top(count) => count.min(sorted.len()),
        Rows::All => sorted.len(),
    };
    for layer in &sorted[..shown] {
        let calls = layer.calls.max(1) as f64;
        let flops = calls * (layer.forward_flops + layer.backward_flops) as f64;
        let time = layer_seconds(layer);
        table.row([
            layer.name.clone(),
            format!("{:.3}", 1e3 * layer.forward.seconds() / calls),
            format!("{:.3}", 1e3 * layer.backward.seconds() / calls),
            or_dash((time > 0.0).then_some(flops / time), |rate| format!("{:.1}", 1e-9 * rate)),
            or_dash((total > 0.0).then_some(time / total), |share| format!("{:.1}", 100.0 * share)),
        ]);
    }
    let rest = &sorted[shown..];
    if !rest.is_empty() {
        let share = 100.0 * rest.iter().map(|layer| layer_seconds(layer)).sum::<f64>() / total;
        table.row([format!("{} more: {share:.1} %", rest.len())]);
    }
    table.to_string()
}

fn layer_seconds(layer: &LayerTime) -> f64 {
    (layer.forward + layer.backward).seconds()
}

fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".into(), show)
}

fn seconds(value: Option<f64>) -> String {
    or_dash(value, |value| format!("{value:.2}"))
}

fn interval(rate: Rate) -> Option<String> {
    Some(format!("{:.1} .. {:.1}", rate.lo?, rate.hi?))
}

fn megabytes(bytes: Bytes) -> String {
    format!("{:.0}", bytes.0 as f64 * 1e-6)
}

#[cfg(test)]
mod tests {
    use paceline_record::Nanos;

    use super::*;

    #[test]
    fn layers_come_slowest_first_and_the_rest_is_summed() {
        let layer = |name: &str, ms: u64| LayerTime {
            name: name.into(),
            calls: 10,
            forward: Nanos(ms * 1_000_000),
            backward: Nanos(2 * ms * 1_000_000),
            forward_flops: 1_000_000,
            backward_flops: 2_000_000,
        };
        let layers = [layer("conv1", 10), layer("conv2", 30), layer("head", 10)];
        insta::assert_snapshot!(render_layers(&layers, Rows::Top(2)), @r"
        layer  forward ms  backward ms  nominal GFLOP/s  share %
        conv2       3.000        6.000              0.3     60.0
        conv1       1.000        2.000              1.0     20.0
        1 more: 20.0 %
        ");
        assert_eq!(render_layers(&layers, Rows::All).lines().count(), 4);
        assert_eq!(render_layers(&[], Rows::All).lines().count(), 1);
    }
}
