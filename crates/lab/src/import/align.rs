//! Ranks on one clock.
//!
//! Ranks of one host share a clock, and are left as they are: the ends of their collectives differ by what the system
//! does to them. Other clocks are laid over each other where collectives end, which they do together: by the median of
//! the differences. What is left of the differences is how far the clocks can be trusted. A drift within the trace is not
//! taken out; it shows in what is left.

use std::fmt;

use paceline_record::Nanos;
use serde::{Deserialize, Serialize};

use super::collectives::{Matching, Part};
use crate::stats;
use crate::trace::{Clock, StepRange, Trace};

/// What turns the median absolute deviation of normal errors into their standard deviation.
const NORMAL: f64 = 1.4826;

/// By what the clocks were laid over each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Common {
    /// There is one rank only.
    #[default]
    Alone,
    /// All ranks are of one host.
    Host,
    /// One rank told of all.
    Writer,
    /// The ends of so many collectives.
    Ends(usize),
    /// No collective in common: the ranks' own clocks, which all count from 1970.
    Epoch,
    /// No collective in common, and clocks of their own: the begins of the first step.
    FirstStep,
}

/// How the ranks came to one clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Alignment {
    /// By what.
    pub common: Common,
    /// What was added to each rank's clock, in nanoseconds.
    pub offsets: Vec<i64>,
    /// Spread of what is left: of normal errors the standard deviation, of the worst rank; `None` where nothing tells.
    pub uncertainty: Option<Nanos>,
    /// How far the ends of a collective lie apart where the ranks share a clock, the median of all: what the system does to
    /// them, and the most that can be said of the clock.
    pub ends_apart: Option<Nanos>,
}

impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.common {
            Common::Alone => return f.write_str("one rank: no clocks to align"),
            Common::Host => {
                f.write_str("ranks of one host share a clock")?;
                return self.ends_apart.map_or(Ok(()), |apart| {
                    write!(f, "; their collectives end {:.3} ms apart (median)", 1e3 * apart.seconds())
                });
            }
            Common::Writer => return f.write_str("one rank told of all, on its own clock"),
            Common::Epoch => f.write_str("clocks not aligned: no collective in common")?,
            Common::FirstStep => {
                f.write_str("clocks aligned on the begin of the first step: no collective in common")?;
            }
            Common::Ends(1) => f.write_str("clocks aligned on the end of 1 collective")?,
            Common::Ends(count) => write!(f, "clocks aligned on the ends of {count} collectives")?,
        }
        match self.uncertainty {
            Some(left) => write!(f, ", to +/- {:.3} ms", 1e3 * left.seconds()),
            None => f.write_str("; how well they agree is not known"),
        }
    }
}

/// A rank's way to the common clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift(i128);

impl Shift {
    /// A moment of the rank on the common clock; the begin of the window for what lies before.
    pub fn apply(self, moment: Nanos) -> Nanos {
        let moved = i128::from(moment.0) + self.0;
        Nanos(u64::try_from(moved.max(0)).unwrap_or(u64::MAX))
    }
}

impl Alignment {
    /// Finds the offsets of some ranks, each with the steps that all have in common.
    pub fn find(traces: &[Trace], steps: &[Vec<StepRange>], matching: &Matching) -> Self {
        let unmoved = vec![0; traces.len()];
        if traces.len() < 2 {
            return Self { common: Common::Alone, offsets: unmoved, ..Self::default() };
        }
        let all_epoch = traces.iter().all(|trace| trace.clock == Clock::Epoch);
        if share_clock(traces) {
            let ends_apart = find_ends_apart(traces, matching);
            return Self { common: Common::Host, offsets: unmoved, uncertainty: Some(Nanos(0)), ends_apart };
        }
        let by_ends = align_on_ends(traces, matching);
        by_ends.unwrap_or_else(|| match all_epoch {
            true => Self { common: Common::Epoch, offsets: unmoved, ..Self::default() },
            false => {
                let begin = |rank: &Vec<StepRange>| rank.first().map_or(0, |step| i128::from(step.begin.0));
                let offsets = steps.iter().map(|rank| offset(begin(&steps[0]) - begin(rank))).collect();
                Self { common: Common::FirstStep, offsets, ..Self::default() }
            }
        })
    }

    /// The ranks' ways to a clock on which the first common step of any rank begins at 0.
    pub fn shifts(&self, steps: &[Vec<StepRange>]) -> Vec<Shift> {
        let begins = self.offsets.iter().zip(steps);
        let begins =
            begins.filter_map(|(&offset, rank)| Some(i128::from(offset) + i128::from(rank.first()?.begin.0)));
        let base = begins.min().unwrap_or(0);
        self.offsets.iter().map(|&offset| Shift(i128::from(offset) - base)).collect()
    }
}

/// Whether all ranks are of one host, and their moments on its clock.
pub fn share_clock(traces: &[Trace]) -> bool {
    let same = |trace: &Trace| trace.clock == Clock::Epoch && trace.host == traces[0].host;
    traces.first().is_some_and(|first| first.host.is_some()) && traces.iter().all(same)
}

/// Lays each rank over one that is already in place, the first over none; `None` where a rank has no collective in
/// common with any such.
fn align_on_ends(traces: &[Trace], matching: &Matching) -> Option<Alignment> {
    let mut offsets: Vec<Option<i128>> = vec![None; traces.len()];
    offsets[0] = Some(0);
    let (mut worst, mut fewest) = (Some(Nanos(0)), usize::MAX);
    while let Some((rank, differences)) = next_rank(traces, matching, &offsets) {
        let median = middle(&differences);
        let left: Vec<f64> = differences.iter().map(|&difference| (difference - median) as f64).collect();
        // A single end agrees with itself, which tells nothing.
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

/// How far the ends of a collective lie apart on one clock, the median of all.
fn find_ends_apart(traces: &[Trace], matching: &Matching) -> Option<Nanos> {
    let apart = |group: &[Part]| {
        let ends = group.iter().map(|part| traces[part.rank].slices[part.slice].end);
        let (first, last) = (ends.clone().min()?, ends.max()?);
        Some(last.since(first).0 as f64)
    };
    let all: Vec<f64> = matching.groups().filter_map(apart).collect();
    stats::median(&all).map(|nanos| Nanos(nanos as u64))
}

/// A rank that is not in place, and what must be added to the ends of its collectives to meet ranks that are.
fn next_rank(traces: &[Trace], matching: &Matching, offsets: &[Option<i128>]) -> Option<(usize, Vec<i128>)> {
    (0..traces.len()).filter(|&rank| offsets[rank].is_none()).find_map(|rank| {
        let end = |part: &Part| i128::from(traces[part.rank].slices[part.slice].end.0);
        let difference = |group: &[Part]| {
            let mine = group.binary_search_by_key(&rank, |part| part.rank).ok()?;
            let (other, offset) = group.iter().find_map(|part| Some((part, offsets[part.rank]?)))?;
            Some(end(other) + offset - end(&group[mine]))
        };
        let differences: Vec<i128> = matching.groups().filter_map(difference).collect();
        (!differences.is_empty()).then_some((rank, differences))
    })
}

/// An offset as it is kept: no clock of this age is further off.
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
