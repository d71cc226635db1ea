//! An explanation as text. Rendering only: nothing is computed here except units.

use paceline_record::Bytes;

use super::audit::{Check, Slip, Weight};
use super::figure::Figure;
use super::reconcile::Work;
use super::scaling::{Laws, Measure, Row};
use super::series::{Column, Context, Ground, Series, Skipped};
use super::{Explanation, Meaning, SeriesExplanation};
use crate::stats::laws::{Fit, Parameter};
use crate::words::{bytes, fill, or_dash};
use crate::{Align, Table};

mod reconciled;

/// Skipped tables that are described.
const MOST_SKIPPED: usize = 3;

/// Columns of text.
const WIDTH: usize = 110;

/// The explanation for a terminal: first how the table was read, last what it cannot answer.
pub fn render(explanation: &Explanation) -> String {
    let mut text = String::new();
    for warning in &explanation.warnings {
        text.push_str(&item(&format!("warning: {warning}")));
    }
    for skipped in skipped(&explanation.skipped) {
        text.push_str(&item(&format!("skipped the table {skipped}")));
    }
    for series in &explanation.series {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&render_series(series));
    }
    text
}

/// Why tables were skipped, the first few one by one.
pub(super) fn skipped(all: &[Skipped]) -> Vec<String> {
    let mut told: Vec<String> = all
        .iter()
        .take(MOST_SKIPPED)
        .map(|skipped| format!("on line {}: {}", skipped.line, skipped.why))
        .collect();
    if let Some(more) = all.get(MOST_SKIPPED..).filter(|more| !more.is_empty()) {
        let lines: Vec<String> = more.iter().take(20).map(|skipped| skipped.line.to_string()).collect();
        let further = if more.len() > 20 { ", ..." } else { "" };
        let noun = if more.len() == 1 { "line" } else { "lines" };
        told.push(format!("on {} other {noun}: {}{further}", more.len(), lines.join(", ")));
    }
    told
}

/// A list item, broken into lines.
fn item(sentence: &str) -> String {
    fill(sentence, WIDTH, ["  - ", "    "]) + "\n"
}

fn indent(table: &Table) -> String {
    table.to_string().lines().map(|line| format!("  {line}\n")).collect()
}

fn render_series(found: &SeriesExplanation) -> String {
    let series = &found.understood;
    let lines: Vec<String> = series.lines.iter().map(usize::to_string).collect();
    let joined = if lines.len() > 1 { "lines" } else { "line" };
    let mut text = format!("{} ({joined} {})\n", series.title, lines.join(" and "));
    text.push_str(&understood(series));
    text.push_str(&section("Context", context(found)));
    let mut audit: Vec<String> = found.audit.slips.iter().map(describe).collect();
    if !found.audit.follows.is_empty()
        && !found.audit.slips.iter().any(|slip| slip.weight == Weight::Contradiction)
    {
        audit.insert(
            0,
            format!("recomputed from other columns and found to agree: {}", found.audit.follows.join(", ")),
        );
    }
    text.push_str(&section("Audit", audit));
    text.push_str(&section("Doubtful", found.doubt.iter().cloned().collect()));
    if found.doubt.is_some() {
        return text;
    }
    let over = found.rows.first().map_or(1, |row| row.over);
    if found.rows.iter().any(|row| row.workers > over && row.speedup().is_some()) {
        let fewest =
            if over > 1 { format!(" (relative to {over} workers, the fewest here)") } else { String::new() };
        text.push_str(&format!("\nSpeed-ups, recomputed{fewest}\n{}", indent(&speedups(found))));
    }
    let counted = series.counted().name();
    let reconciled = found.reconciliation.as_ref().map(reconciled::sentences).unwrap_or_default();
    text.push_str(&section("Rate and clock", reconciled));
    let laws = found
        .laws
        .iter()
        .flat_map(|found| laws(found, counted, over))
        .chain(found.clock_law.as_ref().and_then(clock));
    text.push_str(&section("Laws", laws.collect()));
    text + &section("What the table does not show", found.unknown.clone())
}

/// A heading and its sentences, if there are any.
fn section(title: &str, sentences: Vec<String>) -> String {
    let items: String = sentences.iter().map(|sentence| item(sentence)).collect();
    if items.is_empty() { items } else { format!("\n{title}\n{items}") }
}

fn understood(series: &Series) -> String {
    let mut table =
        Table::new([("column", Align::Left), ("read as", Align::Left), ("first .. last", Align::Left)]);
    let ends = |values: Vec<String>| match &values[..] {
        [] => "none".into(),
        [one] => one.clone(),
        [first, .., last] => format!("{first} .. {last}"),
    };
    table.row([
        series.counted_by.clone(),
        "workers".into(),
        ends(series.workers.iter().map(u64::to_string).collect()),
    ]);
    for column in &series.columns {
        let Some(meaning) = column.meaning.filter(|meaning| *meaning != Meaning::Ignore) else { continue };
        let ground = match column.ground {
            Ground::Name => "",
            Ground::Values => " (by its values)",
            Ground::Given => " (given)",
        };
        let in_bytes = meaning == Meaning::Memory && column.has_unit;
        let cell =
            |figure: &Figure| if in_bytes { bytes(Bytes(figure.value as u64)) } else { print(*figure) };
        let printed = ends(column.figures.iter().flatten().map(cell).collect());
        let seconds = if meaning.is_time() && column.has_unit { " s" } else { "" };
        table.row([
            column.name.clone(),
            format!("{}{ground}", meaning.name()),
            format!("{printed}{seconds}"),
        ]);
    }
    let unread = |is_ratio: bool, why: &str| {
        let unread =
            series.columns.iter().filter(|column| column.meaning.is_none() && column.is_ratio == is_ratio);
        let names: Vec<&str> = unread.map(|column| column.name.as_str()).collect();
        if names.is_empty() { String::new() } else { item(&format!("{why}: {}", names.join(", "))) }
    };
    indent(&table)
        + &unread(true, "not used, because not relative to one worker of these runs (name one with --map)")
        + &unread(false, "not understood (name one with --map)")
}

fn context(found: &SeriesExplanation) -> Vec<String> {
    let SeriesExplanation { understood: series, work, .. } = found;
    let Context { steps, batch, epochs, examples } = series.context;
    let given = [("steps", steps), ("batch", batch), ("epochs", epochs), ("examples", examples)];
    let facts: Vec<String> =
        given.into_iter().filter_map(|(name, value)| Some(format!("{name} {} (given)", value?))).collect();
    let mut sentences = Vec::new();
    let mut say = |told: bool, sentence: String| sentences.extend(told.then_some(sentence));
    say(series.lines.len() > 1, "these tables describe the same runs and were joined by worker count".into());
    say(!facts.is_empty(), facts.join("; "));
    let (divided, each) = (*work == Some(Work::Divided), *work == Some(Work::PerWorker));
    let clock = series.clock().is_some();
    say(
        clock && divided,
        "the total work is the same for any number of workers: it is divided among them".into(),
    );
    say(clock && each, "each worker does the same work, so more workers do more in total".into());
    let steps = !clock && series.column(Meaning::StepTime).is_some() && series.rate().is_none();
    say(
        steps && divided,
        "assumed: the work of a step is divided among the workers (if not: --work per-worker)".into(),
    );
    say(
        steps && each,
        "assumed: each worker keeps its batch, so N workers do N times as much per step (if not: --work divided)".into(),
    );
    if let Some((used, _)) = series.rate() {
        let name = &used.name;
        let guessed = used.ground == Ground::Values && used.meaning == Some(Meaning::RateGlobal);
        say(
            guessed && series.base().is_none(),
            format!(
                "{name} grows with the workers, so it is read as the rate of all (if not: --map {name:?}=rate-per-worker)"
            ),
        );
        let others = series.all(used.meaning.unwrap_or(Meaning::Rate)).skip(1);
        let others: Vec<&str> = others.map(|column| column.name.as_str()).collect();
        say(
            !others.is_empty(),
            format!("the rate is {name}, not {} (choose another with --map)", others.join(", ")),
        );
    }
    if let Some(Column { name, ground, .. }) = series.column(Meaning::RatePerWorker) {
        say(
            *ground == Ground::Values,
            format!("{name} stays the same while the speed-up grows, so it is the rate of one worker"),
        );
    }
    sentences
}

fn print(figure: Figure) -> String {
    if figure.value.abs() < 1e-3 && figure.value != 0.0 || figure.value.abs() >= 1e12 {
        return format!("{:.3e}", figure.value);
    }
    // Numbers of programs have more digits than a reader needs.
    let long = figure.half < 1e-8 * figure.value.abs();
    let short = || format!("{:.6e}", figure.value).parse::<f64>().ok().filter(|_| long);
    short().map_or_else(|| figure.print(), |value| value.to_string())
}

/// A number with about three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => {
            let digits = format!("{:.0}", value.abs());
            let mut text = String::new();
            for (at, digit) in digits.chars().enumerate() {
                if at > 0 && (digits.len() - at).is_multiple_of(3) {
                    text.push(',');
                }
                text.push(digit);
            }
            if value < 0.0 { format!("-{text}") } else { text }
        }
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => print(Figure { value, half: 5e-4 * 10f64.powf(value.abs().log10().floor() + 1.0) }),
    }
}

fn describe(slip: &Slip) -> String {
    let mark = if slip.weight == Weight::Contradiction { "CONTRADICTION " } else { "" };
    let likely = slip.likely.as_ref().map_or_else(String::new, |likely| format!(": {likely}"));
    match (slip.printed, slip.computed) {
        (Some(needed), Some(there)) if slip.check == Check::Examples => {
            format!(
                "{mark}{}: the rates imply {}, but there are {there} ({}){likely}",
                slip.place, needed.value, slip.how
            )
        }
        (Some(printed), Some(computed)) => {
            let like = Figure { value: computed, half: printed.half };
            let computed = if printed.half > 0.0 { print(like) } else { format!("{computed:.0}") };
            format!(
                "{mark}{}: printed {}, recomputed {computed} ({}){likely}",
                slip.place,
                print(printed),
                slip.how
            )
        }
        _ => format!("{mark}{}: {}{likely}", slip.place, slip.how),
    }
}

/// A number of a row, in its unit; `None` if it is unknown.
type Printed = fn(&Row) -> Option<String>;

fn speedups(found: &SeriesExplanation) -> Table {
    let rate = format!("{}/s", found.understood.counted().name());
    let columns: [(&str, Printed); 9] = [
        (&rate, |row| row.rate.map(number)),
        ("by rate", |row| row.by_rate.map(times)),
        ("efficiency", |row| row.by_rate.map(|speedup| percent(row.efficiency(speedup)))),
        ("by clock", |row| row.by_clock.map(times)),
        ("efficiency", |row| row.by_clock.map(|speedup| percent(row.efficiency(speedup)))),
        ("with start-up", |row| row.by_total.map(times)),
        ("printed", |row| row.printed_only().map(times)),
        ("efficiency", |row| row.printed_only().map(|speedup| percent(row.efficiency(speedup)))),
        ("serial part", |row| row.serial().map(percent)),
    ];
    // Columns without a number are left out by the table.
    let mut table = Table::new(
        std::iter::once("workers").chain(columns.map(|(name, _)| name)).map(crate::Column::numbers),
    );
    for row in &found.rows {
        let cells = columns.iter().map(|(_, of)| or_dash(of(row), |cell| cell));
        table.row([row.workers.to_string()].into_iter().chain(cells));
    }
    table
}

fn times(speedup: f64) -> String {
    format!("{speedup:.2}x")
}

fn percent(fraction: f64) -> String {
    format!("{:.1} %", 100.0 * fraction)
}

fn measured(measure: Measure) -> &'static str {
    match measure {
        Measure::Rate => "by rate",
        Measure::Clock => "by clock",
        Measure::Printed => "by the printed speed-up",
    }
}

fn parameters(parameters: &[Parameter]) -> String {
    let one = |parameter: &Parameter| {
        let Parameter { name, value, lo, hi, .. } = parameter;
        let digits = if value.abs() >= 10.0 { 1 } else { 4 };
        let print = |value: f64| match value.abs() < 1e-3 && value != 0.0 {
            true => format!("{value:.1e}"),
            false => format!("{value:.digits$}"),
        };
        format!("{name} {} ({} .. {})", print(*value), print(*lo), print(*hi))
    };
    parameters.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn laws(laws: &Laws, counted: &str, over: u64) -> Vec<String> {
    let measure = measured(laws.measure);
    let mut sentences = Vec::new();
    if let Some(best) = &laws.best {
        let others = laws.fits.iter().filter(|fit| fit.law != best.law);
        let others: Vec<String> =
            others.filter_map(|fit| Some(format!("{} {:.1}", fit.name, fit.aicc?))).collect();
        let others =
            if others.is_empty() { String::new() } else { format!(", others {}", others.join(", ")) };
        let aicc = best.aicc.map_or_else(String::new, |aicc| format!(" (AICc {aicc:.1}{others})"));
        let (name, formula) = (best.name, best.formula);
        sentences.push(match best.is_rough() {
            false => {
                format!("{measure}, {name} fits best{aicc}: {formula}, {}", parameters(&best.parameters))
            }
            true => format!(
                "{measure}, no law fits the points: {name} has the lowest AICc{aicc} and is off by {:.0} %",
                100.0 * best.residual_sd
            ),
        });
    }
    sentences.extend(laws.unfit.map(|unfit| format!("{measure}, too few points to choose a law: {unfit}")));
    if let Some((highest, most)) = laws.highest.filter(|(highest, most)| highest < most) {
        sentences.push(format!(
            "{measure}, throughput is highest on {} and lower on {most}",
            crate::words::workers(highest)
        ));
    }
    // Far beyond what was measured, a peak is a guess.
    let most = laws.highest.map_or(0, |(_, most)| most) as f64;
    if let Some(peak) = laws
        .best
        .as_ref()
        .filter(|best| !best.is_rough())
        .and_then(|best| best.peak)
        .filter(|peak| *peak <= 2.0 * most)
    {
        sentences.push(format!("{measure}, this law has its peak at {peak:.0} workers"));
    }
    sentences.extend(laws.next.map(|next| {
        let (unit, print): (String, fn(f64) -> String) = match laws.measure {
            Measure::Rate => (format!(" {counted}/s"), number),
            _ if over > 1 => (format!(" relative to {over} workers"), |value| format!("{value:.1}x")),
            _ => (String::new(), |value| format!("{value:.1}x")),
        };
        let [value, lo, hi] = [next.throughput.value, next.throughput.lo, next.throughput.hi].map(print);
        let workers = next.workers;
        format!(
            "{measure}, {workers} workers would give {value}{unit} (95 % interval {lo} .. {hi}) if no new bottleneck appears"
        )
    }));
    sentences
}

fn clock(fit: &Fit) -> Option<String> {
    let fixed = fit.parameters.first()?;
    let r2 = fit.r2.map_or_else(String::new, |r2| format!(", R2 {r2:.3}"));
    let Parameter { value, lo, hi, .. } = fixed;
    let doubt = if *lo <= 0.0 { ", not distinguishable from zero" } else { "" };
    Some(format!(
        "the clock as T = fixed + b / N: fixed {} s (95 % interval {} .. {}){doubt}{r2}",
        number(*value),
        number(*lo),
        number(*hi)
    ))
}
