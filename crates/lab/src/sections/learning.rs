//! The table of loss and accuracy, modelled on the Keras reports.

use super::Cases;
use super::results::columns;
use crate::words::{digits, megabytes, or_dash, range};
use crate::{CaseReport, Column, Table};

/// Accuracy and loss, and the time and memory they took; `None` if no case logged any.
pub fn table(cases: &Cases<'_>) -> Option<Table> {
    let mut table = columns([
        Column::numbers("global batch").short("batch").keep(5.0),
        Column::numbers("lr").keep(4.0),
        Column::numbers("epochs").keep(6.0),
        Column::numbers("training time s").short("train s").keep(7.0),
        Column::numbers("s per epoch").short("s/epoch").keep(5.5),
        Column::numbers("images/s").keep(8.0),
        Column::numbers("speed-up by time").short("by time").keep(6.5),
        Column::numbers("train accuracy %").short("train %").keep(9.0),
        Column::numbers("test accuracy %").short("test %").keep(10.0),
        Column::interval().keep(8.5),
        Column::numbers("test loss").keep(7.5),
        Column::numbers("peak memory MB per worker").short("memory MB").keep(3.0),
        Column::numbers("eval s").keep(2.0),
        Column::numbers("checkpoint s").short("saving s").keep(1.0),
    ]);
    // One worker compared with itself says nothing.
    let compared = cases.done().any(|(case, _)| case.case.workers > 1 && case.speedup_time.is_some());
    for (case, label) in cases.done() {
        let Some(learned) = case.learning.as_ref() else { continue };
        let percent = |fraction: Option<f64>| digits(fraction.map(|fraction| 100.0 * fraction), 1);
        let interval = learned.test.and_then(|test| test.lo.zip(test.hi));
        table.row([
            label.to_owned(),
            case.case.workers.to_string(),
            learned.step_examples.to_string(),
            or_dash(rate(case, learned.step_examples), |rate| rate),
            digits(learned.epochs, 2),
            digits(case.train_s, 2),
            digits(learned.epoch_s, 2),
            digits(case.images_per_s.map(|rate| rate.mean), 1),
            digits(case.speedup_time.filter(|_| compared), 2),
            percent(learned.train.and_then(|train| train.accuracy)),
            percent(learned.test.and_then(|test| test.accuracy)),
            range(interval.map(|(lo, hi)| (100.0 * lo, 100.0 * hi)), 1),
            digits(learned.test.and_then(|test| test.loss), 4),
            or_dash(case.peak_memory_bytes, |memory| megabytes(memory.per_worker)),
            digits(Some(learned.eval_s), 2),
            digits(Some(learned.checkpoint_s), 2),
        ]);
    }
    (!table.rows().is_empty()).then_some(table)
}

/// The learning rate after warm-up: under the linear rule it scales with the global batch.
fn rate(case: &CaseReport, global_batch: u64) -> Option<String> {
    let said = |name: &str| case.case.settings.get(name);
    let rate = said("lr")?;
    match (said("lr-batch").and_then(|batch| batch.parse::<f64>().ok()), rate.parse::<f64>()) {
        (Some(reference), Ok(base)) => {
            let full = base * global_batch as f64 / reference;
            // Six decimals at most, without trailing zeros.
            Some(format!("{}", (full * 1e6).round() / 1e6))
        }
        _ => Some(rate.clone()),
    }
}
