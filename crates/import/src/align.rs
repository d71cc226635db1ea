//! Aligns the clocks of ranks.
//!
//! Ranks of one host have the same clock and are not shifted. Other clocks are aligned on the ends of collectives, which
//! are simultaneous: by the median difference. The spread of the remaining differences says how far the clocks can be
//! trusted. Drift within a trace is not corrected; it shows up in that spread.

use paceline_lab::origin::{Alignment, Common};
use paceline_lab::stats;
use paceline_record::Nanos;

use super::collectives::{Matching, Part};
use crate::trace::{Clock, StepRange, Trace};

/// Factor from the median absolute deviation to the standard deviation of normal errors.
const NORMAL: f64 = 1.4826;

/// Converts a rank's times to the common clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift(i128);

impl Shift {
    /// A time of the rank on the common clock, clamped to the begin of the window.
    pub fn apply(self, moment: Nanos) -> Nanos {
        let moved = i128::from(moment.0) + self.0;
        Nanos(u64::try_from(moved.max(0)).unwrap_or(u64::MAX))
    }
}

/// Finds the clock offsets of ranks, each with the steps that all have in common.
pub fn find(traces: &[Trace], steps: &[Vec<StepRange>], matching: &Matching) -> Alignment {
    let unmoved = vec![0; traces.len()];
    if traces.len() < 2 {
        return Alignment { common: Common::Alone, offsets: unmoved, ..Alignment::default() };
    }
    let all_epoch = traces.iter().all(|trace| trace.clock == Clock::Epoch);
    if share_clock(traces) {
        let ends_apart = find_ends_apart(traces, matching);
        let common = if traces[0].clock == Clock::Writer { Common::Writer } else { Common::Host };
        return Alignment { common, offsets: unmoved, uncertainty: Some(Nanos(0)), ends_apart };
    }
    let by_ends = align_on_ends(traces, matching);
    by_ends.unwrap_or_else(|| match all_epoch {
        true => Alignment { common: Common::Epoch, offsets: unmoved, ..Alignment::default() },
        false => {
            let begin = |rank: &Vec<StepRange>| rank.first().map_or(0, |step| i128::from(step.begin.0));
            let offsets = steps.iter().map(|rank| offset(begin(&steps[0]) - begin(rank))).collect();
            Alignment { common: Common::FirstStep, offsets, ..Alignment::default() }
        }
    })
}

/// Shifts to a clock on which the first common step of any rank begins at 0.
pub fn shifts(alignment: &Alignment, steps: &[Vec<StepRange>]) -> Vec<Shift> {
    let begins = alignment.offsets.iter().zip(steps);
    let begins =
        begins.filter_map(|(&offset, rank)| Some(i128::from(offset) + i128::from(rank.first()?.begin.0)));
    let base = begins.min().unwrap_or(0);
    alignment.offsets.iter().map(|&offset| Shift(i128::from(offset) - base)).collect()
}

/// Whether one rank wrote all traces, or all ranks ran on one host and used its clock.
fn share_clock(traces: &[Trace]) -> bool {
    let same = |trace: &Trace| trace.clock == Clock::Epoch && trace.host == traces[0].host;
    traces.iter().all(|trace| trace.clock == Clock::Writer)
        || traces.first().is_some_and(|first| first.host.is_some()) && traces.iter().all(same)
}

/// Aligns each rank with one that is already aligned; `None` if a rank has no collective in common with any of those.
fn align_on_ends(traces: &[Trace], matching: &Matching) -> Option<Alignment> {
    let mut offsets: Vec<Option<i128>> = vec![None; traces.len()];
    offsets[0] = Some(0);
    let (mut worst, mut fewest) = (Some(Nanos(0)), usize::MAX);
    while let Some((rank, differences)) = next_rank(traces, matching, &offsets) {
        let median = middle(&differences);
        let left: Vec<f64> = differences.iter().map(|&difference| (difference - median) as f64).collect();
        // A single end always agrees with itself, so it gives no error estimate.
        let spread = stats::mad(&left).filter(|_| left.len() > 1).map(|mad| Nanos((NORMAL * mad) as u64));
        worst = worst.zip(spread).map(|(worst, spread)| worst.max(spread));
        fewest = fewest.min(differences.len());
        offsets[rank] = Some(median);
    }
    let offsets: Option<Vec<i64>> = offsets.into_iter().map(|moved| moved.map(offset)).collect();
    Some(Alignment {
        common: Common::Ends(fewest),
        offsets: offsets?,
        uncertainty: worst,
        ..Alignment::default()
    })
}

/// The median distance between the ends of a collective on one clock.
fn find_ends_apart(traces: &[Trace], matching: &Matching) -> Option<Nanos> {
    let apart = |group: &Vec<Part>| {
        let ends = group.iter().map(|part| traces[part.rank].slices[part.slice].end);
        let (first, last) = (ends.clone().min()?, ends.max()?);
        Some(last.since(first).0 as f64)
    };
    let all: Vec<f64> = matching.groups.iter().filter_map(apart).collect();
    stats::median(&all).map(|nanos| Nanos(nanos as u64))
}

/// A rank that is not aligned yet, and the offsets from the ends of its collectives to those of aligned ranks.
fn next_rank(traces: &[Trace], matching: &Matching, offsets: &[Option<i128>]) -> Option<(usize, Vec<i128>)> {
    (0..traces.len()).filter(|&rank| offsets[rank].is_none()).find_map(|rank| {
        let end = |part: &Part| i128::from(traces[part.rank].slices[part.slice].end.0);
        let difference = |group: &Vec<Part>| {
            let mine = group.binary_search_by_key(&rank, |part| part.rank).ok()?;
            let (other, offset) = group.iter().find_map(|part| Some((part, offsets[part.rank]?)))?;
            Some(end(other) + offset - end(&group[mine]))
        };
        let differences: Vec<i128> = matching.groups.iter().filter_map(difference).collect();
        (!differences.is_empty()).then_some((rank, differences))
    })
}

/// An offset, clamped to a plausible range.
fn offset(nanos: i128) -> i64 {
    nanos.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn middle(values: &[i128]) -> i128 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2
}

#[cfg(test)]
mod tests;
