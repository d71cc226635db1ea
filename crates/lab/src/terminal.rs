//! The report as text. Rendering only: nothing is computed here except units.

use paceline_record::{Case, LayerTime, Phase};

use crate::compare::{Comparison, Difference};
use crate::finding::SHOWN;
use crate::numbers::phases::PhaseSeconds;
use crate::numbers::rate::Rate;
use crate::numbers::waterfall::{Cause, Waterfall};
use crate::words::{megabytes, or_dash};
use crate::{Align, CaseReport, Explained, Report, Status, Table, words};

/// Whether to write colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// Plain text.
    None,
    /// ANSI escape codes.
    Ansi,
}

/// The role of a piece of text, which decides its colour.
#[derive(Clone, Copy)]
enum Ink {
    Heading,
    Bad,
    Good,
    Faint,
}

impl Colours {
    /// Colours a text after removing any control codes it brought along.
    fn paint(self, ink: Ink, text: &str) -> String {
        let text = words::plain(text);
        let code = match ink {
            Ink::Heading => "1",
            Ink::Bad => "31",
            Ink::Good => "32",
            Ink::Faint => "2",
        };
        match self {
            Self::None => text,
            Self::Ansi => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        }
    }

    /// A table with its first line as a heading.
    fn head(self, table: &Table) -> String {
        let text = table.to_string();
        match text.split_once('\n') {
            Some((head, rows)) => format!("{}\n{rows}", self.paint(Ink::Heading, head)),
            None => text,
        }
    }
}

/// The report of a study: the cases, the phases of their steps, the waterfalls, and the findings.
pub fn render_report(report: &Report, colours: Colours) -> String {
    let mut text = format!("{}\n", colours.paint(Ink::Faint, &words::made(report)));
    for sentence in words::under_way(report).into_iter().chain(words::loaded(report)) {
        text.push_str(&format!("{}\n", colours.paint(Ink::Bad, &sentence)));
    }
    for scaling in scalings(report) {
        let cases: Vec<&CaseReport> =
            report.cases.iter().filter(|case| case.case.scaling == scaling).collect();
        let common = describe(&cases);
        if !common.is_empty() {
            text.push_str(&format!("{}\n", colours.paint(Ink::Faint, &common)));
        }
        text.push_str(&format!("{}\n", colours.head(&render_cases(report, &scaling))));
    }
    let done: Vec<_> = report.cases.iter().filter(|case| case.status == Status::Done).collect();
    if !done.is_empty() {
        text.push_str(&format!("{}\n", colours.head(&render_phases(report))));
    }
    if done.iter().any(|case| case.learning.is_some()) {
        text.push_str(&format!("{}\n", colours.head(&render_learning(report))));
    }
    for group in report.explained.iter().filter(|group| !group.waterfalls.is_empty()) {
        text.push_str(&format!("{}\n", colours.head(&render_waterfall(group))));
        for speedup in group.speedups.iter().filter(|speedup| speedup.workers > 1) {
            text.push_str(&format!("{}\n", words::reconcile(speedup)));
        }
        for sentence in words::laws(&group.laws) {
            text.push_str(&format!("{sentence}\n"));
        }
        text.push('\n');
    }
    if let Some(why) = report.explained.iter().find_map(|group| words::incomparable(report, group)) {
        text.push_str(&format!("no speed-ups and no waterfall: {why}\n\n"));
    }
    text.push_str(&render_findings(report, colours));
    for (case, label) in report.cases.iter().zip(labels(report)) {
        text.push_str(&render_members(case, &label, colours));
    }
    for (case, label) in report.cases.iter().zip(labels(report)) {
        text.push_str(&render_origin(case, &label, colours));
    }
    text
}

/// Most events of a case that a terminal shows.
const EVENTS: usize = 20;

/// What happened to the members of an elastic case.
fn render_members(case: &CaseReport, label: &str, colours: Colours) -> String {
    let sentences = words::recovery(case);
    if sentences.is_empty() {
        return String::new();
    }
    let title = format!("{label}, {}", words::workers(case.case.workers));
    let mut text = format!("\n{}\n", colours.paint(Ink::Heading, &title));
    for sentence in sentences {
        text.push_str(&format!("  {}\n", words::plain(&sentence)));
    }
    if let Some(table) = words::event_table(case, EVENTS) {
        text.push_str(&format!("\n{}", colours.head(&table)));
    }
    text
}

/// What the source of an imported case says beyond its steps.
fn render_origin(case: &CaseReport, label: &str, colours: Colours) -> String {
    let Some(origin) = &case.origin else { return String::new() };
    let from = origin.format.map_or_else(String::new, |format| format!(", from {}", format.name()));
    let title = format!("{label}, {}{from}", words::workers(case.case.workers));
    let mut text = format!("\n{}\n", colours.paint(Ink::Heading, &title));
    for sentence in origin.sentences() {
        text.push_str(&format!("  {}\n", words::plain(&sentence)));
    }
    for note in &origin.notes {
        text.push_str(&format!("  {}\n", colours.paint(Ink::Faint, &format!("note: {note}"))));
    }
    for table in words::origin_tables(case) {
        text.push_str(&format!("\n{}", colours.head(&table)));
    }
    text
}

/// The kinds of scaling in a report (weak, strong, unknown): each gets its own tables.
fn scalings(report: &Report) -> Vec<Option<String>> {
    let mut scalings: Vec<Option<String>> = Vec::new();
    for case in &report.cases {
        if !scalings.contains(&case.case.scaling) {
            scalings.push(case.case.scaling.clone());
        }
    }
    scalings
}

/// What all cases of a table have in common.
fn describe(cases: &[&CaseReport]) -> String {
    let common = |of: &dyn Fn(&Case) -> Option<String>| -> Option<String> {
        let first = of(&cases.first()?.case)?;
        cases.iter().all(|case| of(&case.case).as_deref() == Some(&first)).then_some(first)
    };
    let scaling = common(&|case| case.scaling.clone()).map(|scaling| format!("{scaling} scaling"));
    let batch = |case: &Case| match case.global_batch {
        Some(global) => Some(format!("global batch {global}")),
        None => case.batch_per_worker.map(|batch| format!("batch {batch} per worker")),
    };
    let threads = |case: &Case| {
        let threads = case.threads?;
        Some(if threads == 1 {
            "1 thread per worker".into()
        } else {
            format!("{threads} threads per worker")
        })
    };
    let parts = [
        scaling,
        common(&batch),
        common(&threads),
        common(&|case| case.settings.get("data").cloned()),
        common(&|case| case.input.clone()),
        common(&|case| case.engine.clone()),
        common(&|case| case.layout.clone()),
        common(&|case| case.precision.clone()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The name of each case in tables: that of its group.
fn labels(report: &Report) -> Vec<String> {
    let mut labels = vec![String::new(); report.cases.len()];
    for group in &report.explained {
        for &place in &group.cases {
            labels[place] = group.key.label();
        }
    }
    labels
}

fn render_cases(report: &Report, scaling: &Option<String>) -> Table {
    let mut table = Table::new([
        ("case", Align::Left),
        ("workers", Align::Right),
        ("init s", Align::Right),
        ("train s", Align::Right),
        ("total s", Align::Right),
        ("images/s", Align::Right),
        ("95 % interval", Align::Right),
        ("speed-up", Align::Right),
        ("by time", Align::Right),
        ("eff. %", Align::Right),
        ("by time", Align::Right),
        ("comp:comm", Align::Right),
        ("exchange ms", Align::Right),
        ("update ms", Align::Right),
        ("memory MB", Align::Right),
    ]);
    let labels = labels(report);
    for (case, label) in report.cases.iter().zip(labels).filter(|(case, _)| case.case.scaling == *scaling) {
        let workers = case.case.workers.to_string();
        if case.status != Status::Done {
            let ended = case.status.name();
            let reason = case.reason.as_deref().unwrap_or("unknown reason");
            // A reason may span several lines; the table has room for one.
            let first = reason.lines().next().unwrap_or_default();
            table.row([label, workers, format!("{ended}: {first}")]);
            continue;
        }
        let percent = |value: Option<f64>| or_dash(value, |value| format!("{:.0}", 100.0 * value));
        let times = |value: Option<f64>| or_dash(value, |value| format!("{value:.2}"));
        table.row([
            label,
            workers,
            seconds(case.init_s),
            seconds(case.train_s),
            seconds(case.total_s),
            or_dash(case.images_per_s, |rate| format!("{:.1}", rate.mean)),
            or_dash(case.images_per_s.and_then(interval), |text| text),
            times(case.speedup_speed),
            times(case.speedup_time),
            percent(case.efficiency_speed),
            percent(case.efficiency_time),
            or_dash(case.communication_ratio, |ratio| format!("10 : {ratio:.1}")),
            or_dash(step_ms(case, |_| case.exchange_s()), |ms| format!("{ms:.2}")),
            or_dash(step_ms(case, |phases| phases.get(&Phase::Update).copied()), |ms| format!("{ms:.2}")),
            or_dash(case.peak_memory_bytes, |memory| megabytes(memory.per_worker)),
        ]);
    }
    table
}

/// Mean milliseconds per step of one rank.
fn step_ms(case: &CaseReport, of: impl Fn(&PhaseSeconds) -> Option<f64>) -> Option<f64> {
    let steps = case.steps as f64 * case.workers_on_average();
    Some(1e3 * of(case.phases_s.as_ref()?)? / steps)
}

/// Phases outside the steps; the first table covers them.
const AROUND: [Phase; 3] = [Phase::Launch, Phase::Init, Phase::Tail];

/// Phases that are shown even if they took no time.
const ALWAYS: [Phase; 4] = [Phase::Forward, Phase::Backward, Phase::Update, Phase::Other];

fn render_phases(report: &Report) -> Table {
    let shown: Vec<Phase> = Phase::ALL
        .into_iter()
        .filter(|phase| !AROUND.contains(phase))
        .filter(|phase| {
            let occurs = |case: &CaseReport| step_ms(case, |phases| phases.get(phase).copied()) > Some(0.0);
            ALWAYS.contains(phase) || report.cases.iter().any(occurs)
        })
        .collect();
    let first = [("mean ms per step", Align::Left), ("workers", Align::Right)];
    let numbers = shown.iter().map(|phase| (phase.name(), Align::Right));
    let last = [("overlap %", Align::Right), ("p95 ms", Align::Right), ("steady state", Align::Left)];
    let mut table = Table::new(first.into_iter().chain(numbers).chain(last));
    for (case, label) in report.cases.iter().zip(labels(report)) {
        if case.status != Status::Done {
            continue;
        }
        let cells = shown.iter().map(|phase| {
            or_dash(step_ms(case, |phases| phases.get(phase).copied()), |ms| format!("{ms:.2}"))
        });
        let last = [
            or_dash(case.overlap, |overlap| format!("{:.0}", 100.0 * overlap)),
            or_dash(case.dispersion, |spread| format!("{:.2}", 1e3 * spread.p95_s)),
            or_dash(words::steady(case), |text| text),
        ];
        table.row([label, case.case.workers.to_string()].into_iter().chain(cells).chain(last));
    }
    table
}

/// Accuracy and loss, and the time and memory they took.
fn render_learning(report: &Report) -> Table {
    let numbers = words::LEARNING.map(|(_, name)| (name, Align::Right));
    let mut table = Table::new([("learning", Align::Left)].into_iter().chain(numbers));
    for (case, label) in report.cases.iter().zip(labels(report)) {
        if let Some(cells) = words::learning(case) {
            table.row([label].into_iter().chain(cells.map(|cell| or_dash(cell, |text| text))));
        }
    }
    table
}

/// The waterfall, one column per number of workers: milliseconds of worker time per image.
fn render_waterfall(group: &Explained) -> Table {
    let head = (format!("{}: worker-milliseconds per image", group.key.label()), Align::Left);
    let columns = group.waterfalls.iter().flat_map(|fall| {
        [(format!("{} workers", fall.workers), Align::Right), ("% of total".into(), Align::Right)]
    });
    let mut table = Table::new([head].into_iter().chain(columns));
    let row = |name: &str, of: &dyn Fn(&Waterfall) -> f64| {
        let cells = group.waterfalls.iter().flat_map(|fall| {
            let seconds = of(fall);
            [format!("{:.3}", 1e3 * seconds), format!("{:.1}", 100.0 * seconds / fall.to_s)]
        });
        [name.to_owned()].into_iter().chain(cells).collect::<Vec<_>>()
    };
    table.row(row("1 worker", &|fall| fall.from_s));
    for (index, cause) in Cause::ALL.into_iter().enumerate() {
        if group.waterfalls.iter().any(|fall| fall.parts[index].seconds.abs() > 0.0005 * fall.to_s) {
            table.row(row(&format!("+ {}", cause.name()), &|fall| fall.parts[index].seconds));
        }
    }
    table.row(row("= total", &|fall| fall.to_s));
    table
}

fn render_findings(report: &Report, colours: Colours) -> String {
    let mut text = format!("{}\n", colours.paint(Ink::Heading, "Findings"));
    if report.findings.is_empty() && report.cases.iter().any(|case| case.status == Status::Done) {
        text.push_str("  none: no cause takes a notable part of the time\n");
    }
    for (number, finding) in report.findings.iter().take(SHOWN).enumerate() {
        text.push_str(&format!(
            "{:>3}. {}\n     {}\n",
            number + 1,
            words::plain(&finding.text),
            colours.paint(Ink::Good, &finding.advice)
        ));
    }
    let more = report.findings.len().saturating_sub(SHOWN);
    if more > 0 {
        text.push_str(&format!("     {more} smaller ones are in the report\n"));
    }
    for case in report.cases.iter().filter(|case| case.reason.is_some()) {
        let reason = case.reason.as_deref().unwrap_or_default();
        let ended = match case.status {
            Status::Done => "",
            Status::Failed => "failed: ",
            Status::Interrupted => "interrupted ",
            Status::Running => "running: ",
        };
        let line =
            format!("  !  {} on {}: {ended}{reason}", case.case.model, words::workers(case.case.workers));
        text.push_str(&format!("{}\n", colours.paint(Ink::Bad, &line)));
    }
    let interrupted = report.cases.iter().filter(|case| case.status == Status::Interrupted).count() as u32;
    // `train` resumes from a checkpoint and says so itself.
    let is_training = report.command.first().is_some_and(|command| command == "train");
    if report.missing + interrupted > 0 && !is_training {
        let go_on = if report.running { "" } else { "; run the same command again to continue" };
        let line = format!(
            "  !  {} of {} cases are left{go_on}",
            report.missing + interrupted,
            report.cases.len() as u32 + report.missing
        );
        text.push_str(&format!("{}\n", colours.paint(Ink::Bad, &line)));
    }
    text
}

/// Two studies: the ratio of images/s of each case, and the verdict.
pub fn render_comparison(comparison: &Comparison, names: &[String; 2], colours: Colours) -> String {
    let mut text = words::plain(&format!("{} -> {}\n", names[0], names[1]));
    for Difference { name, before, after } in &comparison.differ {
        text.push_str(&words::plain(&format!("{name}: {before} -> {after}\n")));
    }
    let mut table = Table::new([
        ("case", Align::Left),
        ("workers", Align::Right),
        ("images/s before", Align::Right),
        ("after", Align::Right),
        ("ratio", Align::Right),
        ("95 % interval", Align::Right),
        ("", Align::Left),
    ]);
    for case in &comparison.cases {
        let interval = case.lo.zip(case.hi).map(|(lo, hi)| format!("{lo:.3} .. {hi:.3}"));
        table.row([
            case.name.clone(),
            case.workers.to_string(),
            format!("{:.1}", case.before),
            format!("{:.1}", case.after),
            format!("{:.3}", case.ratio),
            or_dash(interval, |text| text),
            case.verdict.name().into(),
        ]);
    }
    if comparison.cases.is_empty() {
        text.push_str("the studies have no case in common\n");
    } else {
        text.push_str(&format!("\n{}", colours.head(&table)));
    }
    if comparison.single_runs {
        text.push_str(
            "intervals cover variation within a run; use --repeat to include variation between runs\n",
        );
    }
    for name in &comparison.unmatched {
        text.push_str(&format!("{}\n", colours.paint(Ink::Faint, &format!("not finished in both: {name}"))));
    }
    text
}

/// How many layers of a profile are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The slowest layers.
    Top(usize),
    /// Every layer.
    All,
}

/// Layers by time, slowest first: milliseconds per step, GFLOP/s and percentage of all layers.
/// GFLOP/s are nominal: multiplications with padding count although the engine skips them, so small maps may exceed the peak.
pub fn render_layers(layers: &[LayerTime], rows: Rows) -> String {
    let mut sorted: Vec<&LayerTime> = layers.iter().collect();
    sorted.sort_by_key(|layer| std::cmp::Reverse(layer.forward + layer.backward));
    let total: f64 = sorted.iter().map(|layer| layer_seconds(layer)).sum();
    let mut table = Table::new([
        ("layer", Align::Left),
        ("forward ms", Align::Right),
        ("backward ms", Align::Right),
        ("nominal GFLOP/s", Align::Right),
        ("% of time", Align::Right),
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
            or_dash((total > 0.0).then_some(time / total), |part| format!("{:.1}", 100.0 * part)),
        ]);
    }
    let rest = &sorted[shown..];
    if !rest.is_empty() {
        let percent = 100.0 * rest.iter().map(|layer| layer_seconds(layer)).sum::<f64>() / total;
        table.row([format!("{} more: {percent:.1} %", rest.len())]);
    }
    table.to_string()
}

fn layer_seconds(layer: &LayerTime) -> f64 {
    (layer.forward + layer.backward).seconds()
}

fn seconds(value: Option<f64>) -> String {
    or_dash(value, |value| format!("{value:.2}"))
}

fn interval(rate: Rate) -> Option<String> {
    Some(format!("{:.1} .. {:.1}", rate.lo?, rate.hi?))
}

#[cfg(test)]
mod tests;
