//! Trends over the number of workers that say something about how the numbers were measured.

use paceline_record::Bytes;

use super::{Check, Slip};
use crate::explain::meaning::Meaning;
use crate::explain::series::{Column, Series};
use crate::words;

/// A fall in accuracy that is larger than the difference between two runs of the same job.
const FALL: f64 = 0.05;

pub(super) fn remark(series: &Series, slips: &mut Vec<Slip>) {
    slips.extend(series.column(Meaning::Memory).and_then(|column| summed_memory(series, column)));
    slips.extend(falling_accuracy(series));
}

/// The values at one worker and at the most workers, if both are known.
fn ends(series: &Series, column: &Column) -> Option<(f64, f64, u64)> {
    let last = (0..series.workers.len())
        .filter(|row| column.figures[*row].is_some())
        .max_by_key(|row| series.workers[*row])?;
    let one = column.figures[series.base()?]?.value;
    let most = series.workers[last];
    (most > 1 && one > 0.0).then_some((one, column.figures[last]?.value, most))
}

fn summed_memory(series: &Series, column: &Column) -> Option<Slip> {
    let (one, last, most) = ends(series, column)?;
    let ratio = last / (one * most as f64);
    let amount =
        |value: f64| if column.has_unit { words::bytes(Bytes(value as u64)) } else { value.to_string() };
    (most >= 4 && (ratio - 1.0).abs() < 0.02).then(|| {
        Slip::remark(
            Check::Memory,
            column.name.clone(),
            format!(
                "grows in proportion to the workers ({} on 1, {} on {most}): a sum over workers that each take the same. A \
                 framework that reserves the whole device shows this for any model",
                amount(one),
                amount(last)
            ),
        )
    })
}

fn falling_accuracy(series: &Series) -> Option<Slip> {
    let falls = |column: &Column| {
        let (one, last, most) = ends(series, column)?;
        (one - last > FALL).then(|| (format!("{} from {one} to {last}", column.name), most))
    };
    let fallen: Vec<(String, u64)> = series.all(Meaning::Accuracy).filter_map(falls).collect();
    let most = fallen.iter().map(|(_, most)| *most).max()?;
    let global = series.context.batch.and_then(|batch| Some((batch.value, batch.value.checked_mul(most)?)));
    let batch = global.map_or_else(
        || "the global batch grows with the workers if each keeps its own".to_owned(),
        |(one, all)| format!("{one} images per worker make a global batch of {all}"),
    );
    let columns: Vec<String> = fallen.into_iter().map(|(column, _)| column).collect();
    Some(Slip::remark(
        Check::Accuracy,
        format!("accuracy falls with more workers, up to {most}"),
        format!(
            "{}. {batch}: an epoch has fewer, less noisy updates, which train less at a fixed learning rate. The linear scaling \
             rule (Goyal et al. 2017) multiplies the learning rate by the number of workers, after a warm-up",
            columns.join(", ")
        ),
    ))
}
