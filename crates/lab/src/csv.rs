//! `report.csv`: one row per case, as in RFC 4180. A cell is empty if its number is unknown.
//!
//! Numbers are written so that reading them back gives the same bits. Column names do not change between versions; settings, as
//! `setting_<name>`, come last.

use std::collections::{BTreeMap, BTreeSet};

use paceline_record::Phase;
use serde_json::{Value, json};

use crate::explain::Meaning;
use crate::numbers::waterfall::{Cause, Cost};
use crate::{CaseReport, Report};

/// Columns of what was run and measured. Each is the path of a number in `report.json` with `_` for `/`, or another name and
/// that path.
const MEASURED: &str = "\
    model engine layout precision update scaling workers batch_per_worker global_batch threads input classes \
    epoch_examples status reason repeats examples steps init_s train_s paused_s total_s images_per_s/median \
    images_per_s/mean images_per_s/lo images_per_s/hi speedup_speed speedup_time speedup_total efficiency_speed \
    efficiency_time fixed_s=fixed/seconds fixed/share fixed/enough_steps speedup_speed_interval/lo \
    speedup_speed_interval/hi speedup_time_interval/lo speedup_time_interval/hi speedup_total_interval/lo \
    speedup_total_interval/hi efficiency_speed_interval/lo efficiency_speed_interval/hi \
    efficiency_time_interval/lo efficiency_time_interval/hi";

/// Columns of communication, after those of the phases.
const EXCHANGED: &str = "\
    off_core_s=off_core/seconds comm_wait_late_rank_s=comm_wait_split_s/late_rank \
    comm_wait_transfer_s=comm_wait_split_s/transfer comm_busy_s overlap communication_share communication_ratio \
    computation_s starved_s cost_s=cost/seconds";

/// Columns of memory, steps, ranks, learning and members, after those of the causes.
const REST: &str = "\
    peak_memory_per_worker_bytes=peak_memory_bytes/per_worker peak_memory_total_bytes=peak_memory_bytes/total \
    planned_memory_per_worker_bytes=planned_memory_bytes/per_worker \
    planned_memory_total_bytes=planned_memory_bytes/total straggler/rank straggler/share straggler/steps_share \
    straggler/work_ratio step_p50_s=dispersion/p50_s step_p95_s=dispersion/p95_s step_p99_s=dispersion/p99_s \
    step_cv=dispersion/cv slowest_rank=dispersion/slowest/rank \
    slowest_over_median=dispersion/slowest/over_median steady/from_step steady/verdict steady/slowdown/factor \
    steady/slowdown/lost_s steady/slowdown/from_step steady/slowdown/compared_steps steady/mser_step \
    steady/mser_disagrees steady/outliers loss_first loss_last epochs=learning/epochs epoch_s=learning/epoch_s \
    step_examples=learning/step_examples eval_s=learning/eval_s checkpoint_s=learning/checkpoint_s \
    train_examples=learning/train/examples train_loss=learning/train/loss train_accuracy=learning/train/accuracy \
    test_steps=learning/test/steps test_epoch=learning/test/epoch test_seconds=learning/test/seconds \
    test_examples=learning/test/examples test_loss=learning/test/loss test_accuracy=learning/test/accuracy \
    test_lo=learning/test/lo test_hi=learning/test/hi best_steps=learning/best/steps \
    best_epoch=learning/best/epoch best_seconds=learning/best/seconds best_examples=learning/best/examples \
    best_loss=learning/best/loss best_accuracy=learning/best/accuracy best_lo=learning/best/lo \
    best_hi=learning/best/hi mean_workers straggler/member slowest_member=dispersion/slowest/member \
    recovery/losses recovery/expulsions recovery/replacements recovery/joins recovery/leaves \
    recovery/generations recovery/hosts_lost recovery/hosts_joined recovery/hosts_left \
    recovery/examples_redone recovery/phases_s/detect recovery/phases_s/fence recovery/phases_s/rebuild \
    recovery/phases_s/state recovery/phases_s/redo recovery/phases_s/sum recovery/worker_s/waiting \
    recovery/worker_s/unfinished recovery/worker_s/replacing recovery/worker_s/sum recovery/share \
    recovery/slower_s recovery/more_events";

/// What the names of settings begin with.
const SETTING: &str = "setting_";

/// What columns mean. Of the others, no two need follow from each other: phases and costs are sums over ranks or shares of them.
const MEANINGS: [(&str, Meaning); 14] = [
    ("model engine layout precision update scaling global_batch threads input classes", Meaning::Setting),
    ("workers", Meaning::Workers),
    ("batch_per_worker", Meaning::Batch),
    ("steps", Meaning::Steps),
    ("init_s", Meaning::InitTime),
    ("train_s", Meaning::TrainTime),
    ("total_s", Meaning::TotalTime),
    ("images_per_s_mean", Meaning::RateGlobal),
    ("speedup_speed speedup_time speedup_total", Meaning::Speedup),
    ("efficiency_speed efficiency_time", Meaning::Efficiency),
    ("communication_share", Meaning::CommShare),
    ("peak_memory_per_worker_bytes", Meaning::Memory),
    ("test_accuracy", Meaning::Accuracy),
    ("test_loss", Meaning::Loss),
];

/// The whole table.
pub fn render(report: &Report) -> String {
    let settings = report.cases.iter().flat_map(|case| case.case.settings.keys());
    let settings: BTreeSet<String> = settings.map(|name| snake(name)).collect();
    let rows: Vec<Row> = report.cases.iter().map(|case| row(case, &settings)).collect();
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    let mut write = |cells: Vec<&str>| writer.write_record(cells).expect("invariant: rows are equally long");
    if let Some(first) = rows.first() {
        write(first.iter().map(|(name, _)| name.as_str()).collect());
    }
    for row in &rows {
        write(row.iter().map(|(_, cell)| cell.as_deref().unwrap_or_default()).collect());
    }
    let bytes = writer.into_inner().expect("invariant: memory can be written to");
    String::from_utf8(bytes).expect("invariant: made of text")
}

/// Names of columns with their cells. The names are the same for every case of a study.
type Row = Vec<(String, Option<String>)>;

fn row(case: &CaseReport, settings: &BTreeSet<String>) -> Row {
    let mut told = serde_json::to_value(case).expect("invariant: plain data");
    if let Some(recovery) = told.get_mut("recovery").and_then(Value::as_object_mut) {
        // A run on one host says nothing of hosts.
        for hosts in ["hosts_lost", "hosts_joined", "hosts_left"] {
            recovery.entry(hosts).or_insert(0.into());
        }
    }
    if let Some(Cost { seconds, parts, .. }) = &case.cost {
        let parts: BTreeMap<Cause, f64> = parts.iter().map(|part| (part.cause, part.seconds)).collect();
        told["cost"] = json!({ "seconds": seconds, "parts": parts });
    }
    let number = |(name, path): (String, String)| (name, told.pointer(&path).and_then(cell));
    let setting = |column: &String| {
        let mut held = case.case.settings.iter();
        let value = held.find(|(name, _)| snake(name) == *column).map(|(_, value)| value.clone());
        (format!("{SETTING}{column}"), value)
    };
    columns().map(number).chain(settings.iter().map(setting)).collect()
}

/// The columns before the settings, each with the path of its number.
fn columns() -> impl Iterator<Item = (String, String)> {
    let listed = |list: &'static str| list.split(' ').map(str::to_owned);
    let phase = |phase: Phase| format!("phase_{phase}_s=phases_s/{phase}");
    let cause = |cause: Cause| {
        let cause = column_name(cause);
        format!("cost_{cause}_s=cost/parts/{cause}")
    };
    let all = listed(MEASURED)
        .chain(Phase::ALL.map(phase))
        .chain(listed(EXCHANGED))
        .chain(Cause::all().map(cause))
        .chain(listed(REST));
    all.map(|column| {
        let (name, path) = column.split_once('=').unwrap_or((&column, &column));
        (name.replace('/', "_"), format!("/{path}"))
    })
}

/// What the columns of this table mean to somebody who compares its cases; `None` if it is another table.
pub fn meanings(header: &[String]) -> Option<Vec<(String, Meaning)>> {
    let meaning =
        |name: &String| match MEANINGS.iter().find(|(names, _)| names.split(' ').any(|it| it == name)) {
            Some((_, meaning)) => *meaning,
            None if name.starts_with(SETTING) => Meaning::Setting,
            None => Meaning::Ignore,
        };
    let (ours, settings) = header.split_at_checked(columns().count())?;
    let is_ours = columns().map(|(name, _)| name).eq(ours.iter().cloned());
    (is_ours && settings.iter().all(|name| name.starts_with(SETTING)))
        .then(|| header.iter().map(|name| (name.clone(), meaning(name))).collect())
}

fn cell(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        // In the fewest digits that reproduce its bits, and without an exponent.
        Value::Number(number) if number.is_f64() => number.as_f64().map(|number| number.to_string()),
        other => Some(other.to_string()),
    }
}

/// A cause as part of a column name.
fn column_name(cause: Cause) -> String {
    cell(&json!(cause)).expect("invariant: a word")
}

/// An option as part of a column name.
fn snake(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests;
