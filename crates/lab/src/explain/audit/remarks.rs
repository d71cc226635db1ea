//! What columns show about how they were measured.

use paceline_record::Bytes;

use super::{Check, Slip};
use crate::explain::figure::Figure;
use crate::explain::meaning::Meaning;
use crate::explain::series::{Column, Series};
use crate::words;

/// A fall in accuracy that is larger than the difference between two runs of the same job.
const FALL: f64 = 0.05;

pub(super) fn remark(series: &Series, slips: &mut Vec<Slip>) {
    slips.extend(series.column(Meaning::Memory).and_then(|column| summed_memory(series, column)));
    slips.extend(falling_accuracy(series));
    slips.extend(unexplained(series));
    slips.extend(overlap(series));
    slips.extend(moved_wait(series));
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
    let global = series.context.batch.and_then(|batch| Some((batch, batch.checked_mul(most)?)));
    let batch = global.map_or_else(
        || "the global batch grows with the workers if each keeps its own".to_owned(),
        |(one, all)| format!("{one} images per worker make a global batch of {all}"),
    );
    let columns: Vec<String> = fallen.into_iter().map(|(column, _)| column).collect();
    Some(Slip::remark(
        Check::Accuracy,
        format!("accuracy falls with more workers, up to {most}"),
        format!(
            "{}. {batch}: then an epoch has fewer updates, which train less at a fixed learning rate. The linear scaling rule (Goyal et \
             al. 2017) multiplies the learning rate by the number of workers, after a warm-up",
            columns.join(", ")
        ),
    ))
}

/// A fraction of communication that does not account for the loss: the rest of the time should compute as much as single workers do.
fn unexplained(series: &Series) -> Option<Slip> {
    let column = series.column(Meaning::CommShare).or_else(|| series.column(Meaning::CommRatio))?;
    let (_, rates) = series.rate()?;
    let most = (0..series.workers.len()).max_by_key(|row| series.workers[*row])?;
    let workers = series.workers[most];
    let part = column.figures[most]?.value;
    // Of a ratio r of communication to computation, 1 / (1 + r) is computation.
    let computing = if column.meaning == Some(Meaning::CommRatio) { 1.0 / (1.0 + part) } else { 1.0 - part };
    let speedup = rates[most]?.value / rates[series.base()?]?.value;
    let kept = speedup / (workers as f64 * computing);
    (workers > 1 && computing > 0.0 && kept < 0.95).then(|| {
        Slip::remark(
            Check::Share,
            column.name.clone(),
            format!(
                "does not account for the whole loss: on {workers} workers, the rest of the time yields only {:.0} % of what {workers} \
                 single workers would compute. Something else slows them down: shared cores or memory, waiting, or communication not \
                 counted",
                100.0 * kept
            ),
        )
    })
}

/// The times of which a total may consist.
fn parts(series: &Series) -> Vec<&Column> {
    series.all(Meaning::CommTime).chain(series.all(Meaning::PartTime)).collect()
}

/// Parts that are together longer than the whole.
fn overlap(series: &Series) -> Option<Slip> {
    let (total, parts) = (series.column(Meaning::TotalTime)?, parts(series));
    let (row, sum, whole) = (0..series.workers.len()).find_map(|row| {
        let known: Vec<Figure> = parts.iter().filter_map(|part| part.figures[row]).collect();
        let (least, sum) =
            known.iter().fold((0.0, 0.0), |(lo, sum), figure| (lo + figure.lo(), sum + figure.value));
        let whole = total.figures[row]?;
        (known.len() > 1 && least > whole.hi()).then_some((row, sum, whole))
    })?;
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    Some(Slip::remark(
        Check::Parts,
        names.join(", "),
        format!(
            "are together {sum:.2} s on {}, longer than the {} of {} s: some run at the same time, or one is part of another",
            words::workers(series.workers[row]),
            total.name,
            whole.print()
        ),
    ))
}

/// A part that shrinks as soon as another appears, although the work per worker is the same.
fn moved_wait(series: &Series) -> Option<Slip> {
    let base = series.base()?;
    let whole = series.column(Meaning::TotalTime)?.figures[base]?.value;
    let more: Vec<usize> = (0..series.workers.len()).filter(|row| series.workers[*row] > 1).collect();
    let shrinks = |column: &&Column| {
        column.figures[base].filter(|one| one.value > 0.4 * whole).is_some_and(|one| {
            more.iter().all(|row| column.figures[*row].is_some_and(|then| then.value < 0.5 * one.value))
        })
    };
    let appears = |column: &&Column| {
        column.figures[base].is_none() && more.iter().all(|row| column.figures[*row].is_some())
    };
    let shrinking = series.all(Meaning::PartTime).find(shrinks)?;
    let appearing = series.all(Meaning::PartTime).find(appears)?;
    let (first, then, waited) =
        (shrinking.figures[base]?, shrinking.figures[*more.first()?]?, appearing.figures[more[0]]?);
    Some(Slip::remark(
        Check::Wait,
        shrinking.name.clone(),
        format!(
            "takes {} s on 1 worker but {} s on {}, while {}, which exists only with more workers, takes {} s. A host timer on an \
             asynchronous device charges the wait for the device to the first call that blocks; if these are such timers, that is {} \
             with one worker and {} with more, and neither time is the call's own work",
            first.print(),
            then.print(),
            series.workers[more[0]],
            appearing.name,
            waited.print(),
            shrinking.name,
            appearing.name
        ),
    ))
}
