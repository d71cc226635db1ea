//! Columns that others give by a product or a quotient: most of their rows must follow before one that does not is named.

use super::{Check, Slip, compare, sources};
use crate::explain::figure::Figure;
use crate::explain::meaning::Meaning;
use crate::explain::reconcile::TOLERATED;
use crate::explain::series::{Column, Counted, Series};
use crate::explain::span::{Match, Span};

/// What a row should hold by other columns, and how that follows.
type Rule<'a> = Box<dyn Fn(usize) -> Option<(Span, String)> + 'a>;

pub(super) fn check(series: &Series, slips: &mut Vec<Slip>) {
    efficiency(series, slips);
    rates(series, slips);
    steps(series, slips);
    comm_fraction(series, slips);
}

/// Holds a column against the rule that most of its rows follow, if there is one: a rule that few follow was not meant.
fn hold(check: Check, series: &Series, column: &Column, rules: Vec<Rule<'_>>) -> Vec<Slip> {
    let count = |rule: &Rule<'_>| {
        let pairs = column.figures.iter().enumerate().filter_map(|(row, printed)| (*printed).zip(rule(row)));
        let (off, follow): (Vec<_>, Vec<_>) =
            pairs.partition(|(printed, (span, _))| span.matches(*printed) == Match::Contradicts);
        (off.len(), follow.len())
    };
    let scored = rules.into_iter().map(|rule| (count(&rule), rule));
    let meant = scored.filter(|((off, follow), _)| *follow > 0 && off <= follow);
    match meant.min_by_key(|((off, follow), _)| (*off, usize::MAX - follow)) {
        Some((_, rule)) => compare(check, series, column, rule),
        None => Vec::new(),
    }
}

/// Slips that are more than the noise of two measurements: rates, steps and waits are timed one by one.
fn apart(slips: Vec<Slip>) -> impl Iterator<Item = Slip> {
    slips.into_iter().filter(|slip| {
        slip.printed
            .zip(slip.computed)
            .is_some_and(|(printed, computed)| (printed.value / computed - 1.0).abs() > TOLERATED)
    })
}

/// An efficiency without a speed-up beside it: by rates or times, of divided work or of the same for each worker.
fn efficiency(series: &Series, slips: &mut Vec<Slip>) {
    let Some(column) =
        series.column(Meaning::Efficiency).filter(|_| series.column(Meaning::Speedup).is_none())
    else {
        return;
    };
    let full = column.figures.iter().position(|figure| figure.is_some_and(|figure| figure.value == 1.0));
    let Some(base) = full.or(series.base()) else { return };
    let mut rules: Vec<Rule<'_>> = Vec::new();
    for source in sources(series, base) {
        let each = source.column.meaning.is_some_and(Meaning::is_time).then_some(source.speedup.clone());
        let divided = source.speedup;
        rules.push(Box::new(move |row| {
            let (speedup, how) = divided(row).filter(|_| row != base)?;
            let more = series.workers[row] as f64 / series.workers[base] as f64;
            Some((speedup / Span::exact(more), format!("{how} / {more}")))
        }));
        rules.extend(each.map(|each| -> Rule<'_> { Box::new(move |row| each(row).filter(|_| row != base)) }));
    }
    slips.extend(hold(Check::Efficiency, series, column, rules));
}

/// The rate of all workers against that of each.
fn rates(series: &Series, slips: &mut Vec<Slip>) {
    let Some((all, each)) = series.column(Meaning::RateGlobal).zip(series.column(Meaning::RatePerWorker))
    else {
        return;
    };
    let rule: Rule<'_> = Box::new(|row| {
        let workers = series.workers[row];
        let each = each.figures[row].filter(|_| workers > 1)?;
        Some((Span::from(each) * Span::exact(workers as f64), format!("{workers} x {}", each.print())))
    });
    slips.extend(apart(hold(Check::Rate, series, all, vec![rule])));
}

/// The time of a step against its batch and the rate; the batch may be that of all workers or of one.
fn steps(series: &Series, slips: &mut Vec<Slip>) {
    let Some((step, (_, rates))) = series.column(Meaning::StepTime).zip(series.rate()) else { return };
    if series.counted() != Counted::Examples {
        return;
    }
    let column = series.column(Meaning::Batch);
    let batch = |row: usize| match column {
        Some(column) => column.figures[row].map(|batch| batch.value),
        None => series.context.batch.map(|batch| batch.value as f64),
    };
    let rates = &rates;
    let rule = |each: bool| -> Rule<'_> {
        Box::new(move |row| {
            let (batch, rate) = batch(row).filter(|batch| *batch > 0.0).zip(rates[row])?;
            let workers = if each { series.workers[row] } else { 1 };
            let times = if each { format!("{workers} x ") } else { String::new() };
            let whole = Span::exact(batch * workers as f64);
            Some((whole / rate.into(), format!("a batch of {times}{batch} at {}", rate.print())))
        })
    };
    // One row that agrees may do so by chance.
    let found = hold(Check::StepTime, series, step, vec![rule(false), rule(true)]);
    slips.extend(apart(found).filter(|_| step.figures.iter().flatten().count() > 2));
}

/// Compares the fraction of communication with its time.
fn comm_fraction(series: &Series, slips: &mut Vec<Slip>) {
    let Some((fraction, comm)) = series.column(Meaning::CommShare).zip(series.column(Meaning::CommTime))
    else {
        return;
    };
    let wholes = [Meaning::TotalTime, Meaning::TrainTime, Meaning::EpochTime, Meaning::StepTime];
    let rules = wholes.into_iter().filter_map(|whole| series.column(whole)).map(|whole| -> Rule<'_> {
        Box::new(move |row| {
            let some = |figure: &Figure| figure.value > 0.0;
            let (comm, whole) = comm.figures[row].filter(some).zip(whole.figures[row].filter(some))?;
            Some((Span::from(comm) / whole.into(), format!("{} / {}", comm.print(), whole.print())))
        })
    });
    slips.extend(apart(hold(Check::CommTime, series, fraction, rules.collect())));
}
