//! One run from the traces of its ranks.
//!
//! ```text
//! traces -> steps in common -> same collectives -> one clock -> tiling, rank by rank -> steps of a run log
//! ```

use std::collections::BTreeSet;

use paceline_lab::origin::{Traced, UNKNOWN_RANKS};
use paceline_lab::run::Span;
use paceline_record::{Case, Nanos, Phase, Rank, Step, StepRecord};

use super::align;
use super::collectives::{self, Matching};
use super::spans::Spans;
use super::split::{Tiling, is_exchange};
use super::{ImportError, Imported, ImportedRank, top};
use crate::trace::{Clock, StepRange, Trace};

/// Longest trace; longer ones are damaged.
const LONGEST: Nanos = Nanos(30 * 24 * 3600 * 1_000_000_000);

/// Traces further apart than this are not of one run.
const APART: Nanos = Nanos(600 * 1_000_000_000);

/// What the user says about a run besides its traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Name of the network.
    pub model: String,
    /// Samples per step on each worker.
    pub batch: Option<u64>,
}

/// Builds a run from the traces of its ranks.
pub fn join(mut traces: Vec<Trace>, told: &Told) -> Result<Imported, ImportError> {
    let mut warnings = Vec::new();
    order(&mut traces, &mut warnings)?;
    let mut tilings: Vec<Tiling> = traces.iter().map(Tiling::of).collect();
    let numbers = numbers(&traces);
    for ((trace, tiling), rank) in traces.iter().zip(&tilings).zip(&numbers) {
        let notes = trace.warnings.iter().chain(&tiling.notes);
        warnings.extend(notes.map(|note| format!("rank {rank}: {note}")));
    }
    let marked = tilings.iter_mut().map(|tiling| std::mem::take(&mut tiling.steps)).collect();
    let steps = find_common_steps(&tilings, marked, &mut warnings)?;
    let matching = Matching::of(&traces, &steps);
    let alignment = align::find(&traces, &steps, &matching);
    warn(&traces, &matching, &mut warnings);
    let shifts = align::shifts(&alignment, &steps);
    let slack = alignment.uncertainty.unwrap_or_default();
    let exchanges = collectives::weigh(&traces, &matching, &shifts, slack);
    let windows: Vec<Spans> = steps.iter().map(|steps| Spans::of_steps(steps)).collect();
    let collectives = top::collectives(&traces, &windows, &exchanges);
    let mut ranks = Vec::with_capacity(traces.len());
    for (rank, mut exchanges) in exchanges.into_iter().enumerate() {
        let (trace, tiling, shift) = (&traces[rank], &tilings[rank], shifts[rank]);
        exchanges.settle(trace, tiling.exposed());
        let record = |range: &StepRange| {
            let span = range.span();
            let mut step = StepRecord::open(Step(range.number), shift.apply(span.begin));
            step.end = shift.apply(span.end);
            tiling.book(span, &mut step);
            step.late_rank = exchanges.late(span);
            step.buckets = exchanges.buckets(trace, span, shift);
            step.examples = told.batch.unwrap_or(0);
            step
        };
        let steps = steps[rank].iter().map(record).collect();
        ranks.push(ImportedRank { rank: Rank(rank as u32), steps, peak_device: None });
    }
    Ok(Imported {
        case: case(&traces, told),
        traced: Some(Traced {
            alignment,
            kernels: top::kernels(&traces, &windows),
            collectives,
            late: collectives::late_steps(&ranks, &numbers),
            numbers,
        }),
        ranks,
        warnings,
        tells: tells(&traces, &tilings),
        ..Imported::default()
    })
}

/// The numbers of ranks as their traces say; from 0 where they do not.
fn numbers(traces: &[Trace]) -> Vec<Rank> {
    let told: Option<Vec<Rank>> = traces.iter().map(|trace| trace.rank).collect();
    told.unwrap_or_else(|| (0..traces.len() as u32).map(Rank).collect())
}

/// Phases that traces can show, even if they took no time.
fn tells(traces: &[Trace], tilings: &[Tiling]) -> Vec<Phase> {
    // A trace may show the launch of collectives but not the collectives.
    let hidden = |trace: &Trace| trace.collectives.is_empty() && trace.names.texts().any(is_exchange);
    let unread = traces.iter().any(|trace| trace.unread);
    let has_device = traces.iter().any(Trace::has_device);
    [
        (has_device || !unread, Phase::Compute),
        (has_device, Phase::CopyIn),
        (has_device, Phase::CopyOut),
        (has_device && tilings.iter().all(|tiling| tiling.knows_idle), Phase::Idle),
        (!unread && !traces.iter().any(hidden), Phase::CommWait),
    ]
    .into_iter()
    .filter_map(|(told, phase)| told.then_some(phase))
    .collect()
}

fn apart<T>(why: impl Into<String>) -> Result<T, ImportError> {
    Err(ImportError::Apart { why: why.into() })
}

/// Sorts traces by rank, as far as they name it.
fn order(traces: &mut [Trace], warnings: &mut Vec<String>) -> Result<(), ImportError> {
    if traces.is_empty() {
        return apart("there are none");
    }
    let extents: Vec<_> = traces.iter().filter_map(Trace::extent).collect();
    let (begun, ended) =
        (extents.iter().map(|extent| extent.0).max(), extents.iter().map(|extent| extent.1).min());
    let apart_for = begun.unwrap_or_default().since(ended.unwrap_or_default());
    if traces.iter().all(|trace| trace.clock == Clock::Epoch) && apart_for > APART {
        return apart("they were not recorded at the same time; import each run separately");
    }
    let Some(mut ranks) = traces.iter().map(|trace| trace.rank).collect::<Option<Vec<Rank>>>() else {
        if traces.len() > 1 {
            warnings.push("not all traces name their rank: ranks are numbered in the order given".into());
        }
        return Ok(());
    };
    ranks.sort_unstable();
    if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        return apart(format!("two are of rank {}; import each run separately", twice[0]));
    }
    traces.sort_by_key(|trace| trace.rank);
    if ranks.iter().enumerate().any(|(place, rank)| rank.0 as usize != place) {
        let names: Vec<String> = ranks.iter().map(Rank::to_string).collect();
        let (noun, files) =
            if names.len() == 1 { ("rank", "its log is") } else { ("ranks", "their logs are") };
        warnings.push(format!("recorded: {noun} {}; {files} numbered from 0 here", names.join(", ")));
    }
    let world = traces.iter().filter_map(|trace| trace.world).max();
    if let Some(world) = world.filter(|&world| world as usize > traces.len()) {
        warnings.push(format!(
            "only {} of {world} ranks have traces: the others may have been later",
            traces.len()
        ));
    }
    Ok(())
}

/// Profilers start and stop at different times: only steps that all ranks have are kept. If a trace marks none, each
/// trace is one step, without the start-up before its first work.
fn find_common_steps(
    tilings: &[Tiling],
    mut steps: Vec<Vec<StepRange>>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Vec<StepRange>>, ImportError> {
    if steps.iter().any(Vec::is_empty) {
        warnings.push(
            "no steps are marked in all traces: each counts as one step, from its first work to its last"
                .into(),
        );
        for (tiling, steps) in tilings.iter().zip(&mut steps) {
            let Some(Span { begin, end }) = tiling.work() else {
                return apart("there is a trace without kernels, copies, collectives and operators");
            };
            *steps = vec![StepRange { number: 0, begin, end }];
        }
    } else {
        let numbers = |rank: &Vec<StepRange>| rank.iter().map(|step| step.number).collect::<BTreeSet<u64>>();
        let common = steps.iter().map(numbers).reduce(|common, own| &common & &own).unwrap_or_default();
        if common.is_empty() {
            return apart("no step is in all of them; import each run separately");
        }
        let most = steps.iter().map(Vec::len).max().unwrap_or_default();
        if most > common.len() {
            let left = most - common.len();
            warnings.push(format!("skipped steps that not all ranks have: up to {left} of {most}"));
        }
        for rank in &mut steps {
            rank.retain(|step| common.contains(&step.number));
        }
    }
    let lasts = |rank: &[StepRange]| Some(rank.last()?.end.since(rank.first()?.begin));
    match steps.iter().filter_map(|rank| lasts(rank)).any(|length| length > LONGEST) {
        true => apart("one lasts more than 30 days"),
        false => Ok(steps),
    }
}

/// Whether a trace shows that its rank was not alone.
pub(super) fn has_others(trace: &Trace) -> bool {
    // Several devices of one process may exchange among themselves.
    let devices: BTreeSet<u32> = trace.tracks.iter().filter_map(|track| track.device).collect();
    let exchanges =
        || devices.len() < 2 && (!trace.collectives.is_empty() || trace.names.texts().any(is_exchange));
    match trace.world {
        Some(world) => world > 1,
        None => trace.rank.is_some_and(|rank| rank.0 > 0) || exchanges(),
    }
}

/// What was run, as far as traces say.
fn case(traces: &[Trace], told: &Told) -> Case {
    let backend = traces.iter().find_map(|trace| trace.backend.clone()).map(|name| ("backend".into(), name));
    let world = traces.iter().filter_map(|trace| trace.world).max();
    // A subset of the ranks must not be compared with a full run of that size.
    let some = match traces {
        [one] => has_others(one),
        several => numbers(several).iter().enumerate().any(|(place, rank)| rank.0 as usize != place),
    };
    let unknown = world.is_none() && (some || traces[0].clock == Clock::Writer);
    let all = world.filter(|&world| world as usize > traces.len()).map(|world| world.to_string());
    let all = all.or_else(|| unknown.then(|| UNKNOWN_RANKS.into()));
    let part = all.map(|all| ("ranks".into(), format!("{} of {all}", traces.len())));
    Case {
        model: told.model.clone(),
        engine: traces
            .iter()
            .find_map(|trace| trace.devices.first().filter(|name| !name.is_empty()).cloned()),
        workers: traces.len() as u32,
        batch_per_worker: told.batch,
        settings: backend.into_iter().chain(part).collect(),
        ..Case::default()
    }
}

fn warn(traces: &[Trace], matching: &Matching, warnings: &mut Vec<String>) {
    let exchanged = traces.iter().any(|trace| !trace.collectives.is_empty());
    if traces.len() == 1 && exchanged {
        warnings.push("with one rank, waiting for others cannot be separated from moving bytes".into());
    }
    if traces.len() > 1 && matching.unmatched > 0 {
        let count = matching.unmatched;
        warnings.push(format!(
            "{count} collectives could not be matched across ranks: they count as moving bytes"
        ));
    }
    let devices =
        |trace: &Trace| trace.tracks.iter().filter_map(|track| track.device).collect::<BTreeSet<u32>>().len();
    if let Some((rank, several)) = traces.iter().map(devices).enumerate().find(|&(_, count)| count > 1) {
        warnings.push(format!("rank {rank} uses {several} devices: it counts as idle when all of them are"));
    }
}

#[cfg(test)]
mod tests;
