//! Steps of a run log from a timeline.
//!
//! A step ends when the last of its tensors has been exchanged; a tensor that occurs again starts the next step. From its
//! last arrival in a step to that end, a rank is blocked: until the last rank arrives it waits for a late one, then bytes
//! move. The timeline does not show what it did before.

use std::collections::HashSet;

use paceline_lab::origin::{Alignment, Common, Traced};
use paceline_record::{BucketRecord, Bytes, Nanos, Phase, Rank, Step, StepRecord};

use super::summary::{Summary, union};
use super::{Exchange, Timeline};
use crate::collectives::late_steps;
use crate::{Imported, ImportedRank};

/// Most exchanges of all steps and ranks that are written individually.
const MOST_BUCKETS: usize = 2_000_000;

/// Most steps of all ranks together.
const MOST_STEPS: usize = 4_000_000;

/// The exchanges of one step, and when the last of them ended.
struct Group<'a> {
    exchanges: Vec<&'a Exchange>,
    end: Nanos,
}

impl Timeline {
    /// The run in the timeline, with all ranks on the clock of the rank that wrote it.
    pub fn to_run(&self) -> Imported {
        let mut run = Imported { warnings: self.warnings.clone(), ..Imported::default() };
        let ranks = self.exchanges.iter().flat_map(|exchange| &exchange.arrivals).map(|&(rank, _)| rank.0);
        let world = ranks.max().map_or(1, |rank| rank + 1);
        run.case.workers = world;
        run.case.update = Some("allreduce".into());
        let mut groups = self.find_groups(&mut run.warnings);
        let most = MOST_STEPS / world as usize;
        if groups.len() > most + 1 {
            run.warnings.push(format!("only the first {most} of {} steps were kept", groups.len() - 1));
            groups.truncate(most + 1);
        }
        if groups.len() < 2 {
            run.warnings
                .push("the timeline has no complete step: a step starts where the previous one ends".into());
        } else {
            run.warnings.push(
                "the timeline does not show what ranks did between exchanges, nor how many examples they processed; the \
                 first step is skipped because its begin is unknown"
                    .into(),
            );
        }
        let buckets: usize = groups.iter().skip(1).map(|group| group.exchanges.len()).sum();
        let each = buckets.saturating_mul(world as usize) <= MOST_BUCKETS;
        if !each {
            run.warnings.push("too many exchanges to list: only the last one of each step is kept".into());
        }
        for rank in (0..world).map(Rank) {
            let steps = groups.windows(2).zip(1..).map(|(pair, number)| {
                let begin = pair[0].end;
                pair[1].step(&Place { rank, number: Step(number), begin, each })
            });
            run.ranks.push(ImportedRank { rank, steps: steps.collect(), peak_device: None });
        }
        let summary = Summary::of(self);
        run.traced = Some(Traced {
            alignment: Alignment {
                common: Common::Writer,
                offsets: vec![0; world as usize],
                ..Alignment::default()
            },
            collectives: summary.collectives(),
            late: late_steps(&run.ranks),
            ..Traced::default()
        });
        run.tells = vec![Phase::CommWait];
        run
    }

    /// Exchanges by step. Broadcasts before the first other exchange belong to the start-up.
    fn find_groups(&self, warnings: &mut Vec<String>) -> Vec<Group<'_>> {
        let mut ended: Vec<(Nanos, Nanos, &Exchange)> = (self.exchanges.iter())
            .filter_map(|exchange| Some((exchange.first()?, exchange.end?, exchange)))
            .collect();
        ended.sort_by_key(|&(first, end, exchange)| (first, end, exchange.tensor));
        let is_broadcast = |exchange: &Exchange| {
            exchange.operation.is_some_and(|name| self.names.text(name).starts_with("BROADCAST"))
        };
        let start = ended.iter().position(|(_, _, exchange)| !is_broadcast(exchange)).unwrap_or(ended.len());
        let mut groups: Vec<Group> = Vec::new();
        let mut seen = HashSet::new();
        for &(_, end, exchange) in &ended[start..] {
            if groups.is_empty() || seen.contains(&exchange.tensor) {
                seen.clear();
                let end = groups.last().map_or(end, |group| group.end);
                groups.push(Group { exchanges: Vec::new(), end });
            }
            seen.insert(exchange.tensor);
            let group = groups.last_mut().expect("invariant: one was pushed");
            group.exchanges.push(exchange);
            group.end = group.end.max(end);
        }
        if let [.., before, last] = groups.as_slice()
            && last.exchanges.len() < before.exchanges.len()
        {
            warnings.push("the last step is incomplete and was skipped".into());
            groups.pop();
        }
        groups
    }
}

/// A step of a rank.
struct Place {
    rank: Rank,
    number: Step,
    begin: Nanos,
    /// Whether all its exchanges are listed, or only the deciding one.
    each: bool,
}

impl Group<'_> {
    fn step(&self, place: &Place) -> StepRecord {
        let mut step = StepRecord::open(place.number, place.begin);
        step.end = self.end;
        let arrival = |exchange: &Exchange| {
            let own = exchange.arrivals.binary_search_by_key(&place.rank, |&(rank, _)| rank).ok()?;
            Some(exchange.arrivals[own].1.max(place.begin))
        };
        let under_way = |exchange: &&Exchange| Some((arrival(exchange)?, exchange.end?));
        step.comm_busy = union(self.exchanges.iter().filter_map(under_way).collect());
        let deciding = (self.exchanges.iter().enumerate())
            .filter_map(|(at, exchange)| Some((exchange.last_arrival()?.1, at)))
            .max();
        let ready = self.exchanges.iter().filter_map(|exchange| arrival(exchange)).max();
        if let (Some((latest, _)), Some(ready)) = (deciding, ready) {
            let latest = latest.clamp(ready, self.end.max(ready));
            step.late_rank = latest.since(ready);
            step.book(Phase::CommWait, self.end.since(ready));
        }
        for (at, exchange) in self.exchanges.iter().enumerate() {
            let decides = deciding.is_some_and(|(_, deciding)| deciding == at);
            let known = (arrival(exchange), exchange.last_arrival(), exchange.end);
            let (Some(begun), Some((last_rank, last_arrival)), Some(ended)) = known else { continue };
            if !place.each && !decides {
                continue;
            }
            let waited = if decides { step.phases[Phase::CommWait] } else { Nanos(0) };
            let waited_late = if decides { step.late_rank } else { Nanos(0) };
            step.buckets.push(BucketRecord {
                bytes: exchange.bytes.unwrap_or(Bytes(0)),
                begun,
                last_arrival,
                last_rank,
                ended,
                waited_late,
                waited_transfer: waited.since(waited_late),
                cpu: Nanos(0),
                moved: Bytes(0),
            });
        }
        step
    }
}
