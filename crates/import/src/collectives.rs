//! Matches the same collective on all its ranks: who waited, for whom, and how long bytes moved.
//!
//! The shortest duration of a collective over its ranks is the transfer; the rest of a rank's duration is waiting for the
//! last rank to arrive, and no longer than that took. Collectives overlap: waiting time counts once, and only while the
//! rank did nothing else.

use std::collections::{BTreeMap, HashMap};

use paceline_lab::origin::LateStep;
use paceline_lab::run::Span;
use paceline_record::{BucketRecord, Bytes, Nanos, Rank, Step};

use super::ImportedRank;
use super::align::Shift;
use super::operations;
use super::spans::Spans;
use super::split::Sight;
use super::steps;
use super::top::KEPT;
use crate::trace::{Clock, StepRange, Trace};

/// What identifies a collective, up to identical ones: operation, group, and number.
type Key<'trace> = (&'trace str, Option<&'trace str>, Number);

/// Its sequence number in the group or, without one, the step in which it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Number {
    Sequence(u64),
    Step(u64),
}

/// One rank's part of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the rank's trace.
    pub rank: usize,
    /// Index of the slice in that trace.
    pub slice: usize,
}

/// Slices of different ranks that belong to the same collective.
#[derive(Clone, Debug, Default)]
pub struct Matching {
    /// The parts of each collective that at least two ranks have, in order of their ranks.
    pub groups: Vec<Vec<Part>>,
    /// Slices within the steps whose partners are unknown.
    pub unmatched: usize,
}

impl Matching {
    /// Matches the collectives that begin within the steps that all ranks have in common: by group and sequence number, or by
    /// order among those with the same operation, group and step. If a rank has fewer of those, order does not help.
    pub fn of(traces: &[Trace], steps: &[Vec<StepRange>]) -> Self {
        let (mut alike, mut all) = (BTreeMap::<Key<'_>, Vec<Vec<Part>>>::new(), 0);
        for (rank, trace) in traces.iter().enumerate() {
            let sight = Sight::of(trace);
            let mut places: HashMap<Key<'_>, usize> = HashMap::new();
            for collective in &trace.collectives {
                let slice = &trace.slices[collective.slice];
                let Some(step) = steps::find_at(&steps[rank], slice.begin) else { continue };
                let operation = trace.names.text(collective.operation);
                // Where one rank wrote about all, only those with a number show who was late.
                let told = collective.sequence.is_some() || trace.clock != Clock::Writer;
                if !told || !sight.counts(trace, slice) || !operations::is_collective(operation) {
                    continue;
                }
                let group = collective.group.map(|group| trace.names.text(group));
                let number = collective.sequence.map_or(Number::Step(step.number), Number::Sequence);
                let key = (operation, group, number);
                let place = places.entry(key).or_default();
                let groups = alike.entry(key).or_default();
                groups.resize(groups.len().max(*place + 1), Vec::new());
                groups[*place].push(Part { rank, slice: collective.slice });
                *place += 1;
                all += 1;
            }
        }
        // Ranks with fewer are missing at the last place.
        alike.retain(|key, groups| {
            matches!(key.2, Number::Sequence(_))
                || groups.first().map(Vec::len) == groups.last().map(Vec::len)
        });
        let groups: Vec<Vec<Part>> = alike.into_values().flatten().filter(|group| group.len() > 1).collect();
        let unmatched = all - groups.iter().map(Vec::len).sum::<usize>();
        Self { groups, unmatched }
    }
}

/// One rank's part of a collective, compared with the others.
#[derive(Clone, Copy, Debug)]
struct Waited {
    slice: usize,
    last_arrival: Nanos,
    last_rank: Rank,
    /// Until the last rank arrived.
    late: Nanos,
}

/// A rank's collectives, and when it waited and did nothing else.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    waited: Vec<Waited>,
    /// When it waited for a late rank.
    late: Spans,
    /// When it waited for bytes.
    moving: Spans,
}

/// Compares the parts of each collective. `slack` is the possible error of the clocks.
pub fn weigh(traces: &[Trace], matching: &Matching, shifts: &[Shift], slack: Nanos) -> Vec<Exchanges> {
    let mut ranks: Vec<Exchanges> = vec![Exchanges::default(); traces.len()];
    for group in &matching.groups {
        let slice = |part: &Part| &traces[part.rank].slices[part.slice];
        let arrived = |part: &Part| shifts[part.rank].apply(slice(part).begin);
        let lasted = |part: &Part| slice(part).length();
        let shortest = group.iter().map(lasted).min().unwrap_or_default();
        let last = group.iter().max_by_key(|part| (arrived(part), std::cmp::Reverse(part.rank)));
        let Some(last) = last else { continue };
        for part in group {
            let until_last = Nanos(arrived(last).since(arrived(part)).0.saturating_add(slack.0));
            let late = if part.rank == last.rank { Nanos(0) } else { lasted(part).since(shortest) };
            ranks[part.rank].waited.push(Waited {
                slice: part.slice,
                last_arrival: arrived(last),
                last_rank: Rank(last.rank as u32),
                late: late.min(until_last),
            });
        }
    }
    for exchanges in &mut ranks {
        exchanges.waited.sort_unstable_by_key(|waited| waited.slice);
    }
    ranks
}

impl Exchanges {
    /// Finds when the rank waited, within its exposed communication.
    pub fn settle(&mut self, trace: &Trace, exposed: &Spans) {
        let mut late = Spans::default();
        for waited in &self.waited {
            let begin = trace.slices[waited.slice].begin;
            late.push(begin, begin + waited.late);
        }
        self.late = late.intersect(exposed);
        self.moving = exposed.subtract(&late);
    }

    /// How long a slice waited for a late rank, from its begin; `None` if its partners are unknown.
    pub fn waited(&self, slice: usize) -> Option<Nanos> {
        let place = self.waited.binary_search_by_key(&slice, |waited| waited.slice).ok()?;
        Some(self.waited[place].late)
    }

    /// Total time the rank waited for late ranks.
    pub fn late(&self, step: Span) -> Nanos {
        self.late.within(step)
    }

    /// The exchanges that began in a step, on the common clock. Simultaneous waiting counts for the first.
    pub fn buckets(&self, trace: &Trace, step: Span, shift: Shift) -> Vec<BucketRecord> {
        let begin = |waited: &Waited| trace.slices[waited.slice].begin;
        let first = self.waited.partition_point(|waited| begin(waited) < step.begin);
        let own = self.waited[first..].iter().take_while(|waited| begin(waited) < step.end);
        let (mut late_until, mut busy_until) = (step.begin, step.begin);
        let count = |spans: &Spans, until: &mut Nanos, begin: Nanos, end: Nanos| {
            let end = end.min(step.end);
            let counted = spans.within(Span { begin: begin.max(*until), end });
            *until = end.max(*until);
            counted
        };
        own.map(|waited| {
            let slice = &trace.slices[waited.slice];
            let bytes = slice.bytes.unwrap_or(Bytes(0));
            BucketRecord {
                bytes,
                begun: shift.apply(slice.begin),
                last_arrival: waited.last_arrival,
                last_rank: waited.last_rank,
                ended: shift.apply(slice.end),
                waited_late: count(&self.late, &mut late_until, slice.begin, slice.begin + waited.late),
                waited_transfer: count(&self.moving, &mut busy_until, slice.begin, slice.end),
                cpu: Nanos(0),
                moved: bytes,
            }
        })
        .collect()
    }
}

/// Which rank was late in which step, most waiting first. Several late ranks of one step have one entry each.
pub fn late_steps(ranks: &[ImportedRank], numbers: &[Rank]) -> Vec<LateStep> {
    let mut waits: HashMap<(Step, Rank), Vec<Nanos>> = HashMap::new();
    for step in ranks.iter().flat_map(|rank| &rank.steps) {
        let mut own: HashMap<Rank, Nanos> = HashMap::new();
        for bucket in &step.buckets {
            *own.entry(bucket.last_rank).or_default() += bucket.waited_late;
        }
        own.into_iter().for_each(|(rank, waited)| waits.entry((step.step, rank)).or_default().push(waited));
    }
    let late = |((step, rank), waits): ((Step, Rank), Vec<Nanos>)| {
        let (waited, longest) = (waits.iter().copied().sum(), waits.iter().copied().max());
        LateStep { step, rank: numbers.get(rank.0 as usize).copied().unwrap_or(rank), waited, longest }
    };
    let mut late: Vec<LateStep> = waits.into_iter().map(late).collect();
    late.retain(|late| !late.waited.is_zero());
    late.sort_unstable_by_key(|late| (std::cmp::Reverse(late.waited), late.step, late.rank));
    late.truncate(KEPT);
    late
}

#[cfg(test)]
mod tests;
