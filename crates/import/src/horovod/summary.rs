//! A timeline on one screen.

use std::collections::BTreeMap;
use std::fmt::Write;

use paceline_lab::origin::TopCollective;
use paceline_lab::{Align, Table};
use paceline_record::{Bytes, Nanos, Rank};
use serde::Serialize;

use super::{Exchange, Timeline};
use crate::top::KEPT;

/// Time of one activity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActivityTotal {
    /// Its name, such as `NCCL_ALLREDUCE`.
    pub name: String,
    /// Number of calls, counting each tensor.
    pub calls: u64,
    /// Time summed over tensors, including fused ones that take place together.
    pub summed: Nanos,
    /// Time in which it was under way for at least one tensor.
    pub busy: Nanos,
}

/// How late one rank was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Its number.
    pub rank: Rank,
    /// Exchanges with a known arrival of this rank.
    pub arrivals: u64,
    /// Total time behind the first rank to arrive.
    pub behind: Nanos,
    /// Longest such time in one exchange.
    pub worst: Nanos,
    /// Exchanges in which it was the last rank.
    pub last: u64,
    /// In those, time behind the second-to-last rank: the delay it alone caused. Simultaneous waits count once.
    pub alone: Nanos,
}

/// Summary of a timeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Tensors that occur.
    pub tensors: usize,
    /// Exchanges begun.
    pub exchanges: usize,
    /// Exchanges that ended.
    pub ended: usize,
    /// Exchanges that all ranks arrived for.
    pub complete: usize,
    /// Marked cycles.
    pub cycles: u64,
    /// First to last moment.
    pub span: Nanos,
    /// Bytes of the exchanges with known size; `None` if none has one.
    pub bytes: Option<Bytes>,
    /// Number of ranks: one more than the highest that occurs.
    pub world: u32,
    /// Activities, the longest first.
    pub activities: Vec<ActivityTotal>,
    /// Ranks that occur, in order.
    pub ranks: Vec<Lateness>,
}

/// Time covered by at least one interval.
pub(super) fn union(mut intervals: Vec<(Nanos, Nanos)>) -> Nanos {
    intervals.sort_unstable();
    let (mut covered, mut until) = (Nanos(0), Nanos(0));
    for (begin, end) in intervals {
        covered += end.since(begin.max(until));
        until = until.max(end);
    }
    covered
}

impl Summary {
    /// Sums up a timeline.
    pub fn of(timeline: &Timeline) -> Self {
        let exchanges = &timeline.exchanges;
        let ranks = exchanges.iter().flat_map(|exchange| &exchange.arrivals).map(|&(rank, _)| rank.0);
        let world = ranks.max().map_or(0, |rank| rank + 1);
        let moments = exchanges.iter().flat_map(|exchange| {
            let ends = exchange.activities.iter().filter_map(|activity| activity.end);
            let last = exchange.last_arrival().map(|(_, at)| at);
            [exchange.first(), last, exchange.negotiated, exchange.end].into_iter().flatten().chain(ends)
        });
        let (first, last) = moments.fold((None, Nanos(0)), |(first, last), at| {
            (Some(first.map_or(at, |first: Nanos| first.min(at))), last.max(at))
        });
        let sizes: Vec<u64> = exchanges.iter().filter_map(|exchange| Some(exchange.bytes?.0)).collect();
        Self {
            tensors: timeline.tensors.len(),
            exchanges: exchanges.len(),
            ended: exchanges.iter().filter(|exchange| exchange.end.is_some()).count(),
            complete: exchanges.iter().filter(|exchange| is_complete(exchange, world)).count(),
            cycles: timeline.cycles,
            span: first.map_or(Nanos(0), |first| last.since(first)),
            bytes: (!sizes.is_empty())
                .then(|| Bytes(sizes.iter().fold(0, |sum, &size| sum.saturating_add(size)))),
            world,
            activities: sum_activities(timeline),
            ranks: find_lateness(timeline, world),
        }
    }

    /// Its activities as collectives of a run. Who waited for whom is in the steps.
    pub(super) fn collectives(&self) -> Vec<TopCollective> {
        let all: f64 = self.activities.iter().map(|one| one.busy.seconds()).sum();
        let top = |one: &ActivityTotal| TopCollective {
            name: one.name.clone(),
            count: one.calls,
            busy: one.busy,
            waited: None,
            mean_s: one.summed.seconds() / one.calls.max(1) as f64,
            fraction: if all > 0.0 { one.busy.seconds() / all } else { 0.0 },
            bytes: None,
        };
        self.activities.iter().take(KEPT).map(top).collect()
    }

    /// As text, at most `most` activities and as many ranks.
    pub fn render(&self, most: usize) -> String {
        let count = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let mut text = format!(
            "{} of {} in {:.3} s, {} completed; {}, all arrived for {}; {}",
            count(self.exchanges as u64, "exchange"),
            count(self.tensors as u64, "tensor"),
            self.span.seconds(),
            self.ended,
            count(self.world.into(), "rank"),
            self.complete,
            count(self.cycles, "cycle")
        );
        if let Some(bytes) = self.bytes {
            let _ = write!(text, "; {:.1} MB", bytes.0 as f64 * 1e-6);
        }
        text.push('\n');
        let ms = |time: Nanos| format!("{:.3}", 1e3 * time.seconds());
        if !self.activities.is_empty() {
            let mut table = Table::new([
                ("activity", Align::Left),
                ("calls", Align::Right),
                ("busy ms", Align::Right),
                ("summed ms", Align::Right),
            ]);
            for one in self.activities.iter().take(most) {
                table.row([one.name.clone(), one.calls.to_string(), ms(one.busy), ms(one.summed)]);
            }
            let _ = write!(text, "\n{table}");
        }
        if !self.ranks.is_empty() {
            let mut table = Table::new(
                [("rank", Align::Right), ("arrivals", Align::Right), ("last", Align::Right)]
                    .into_iter()
                    .chain(["alone ms", "mean behind ms", "worst ms"].map(|title| (title, Align::Right))),
            );
            let mut ranks = self.ranks.clone();
            ranks.sort_by_key(|one| (std::cmp::Reverse((one.alone, one.behind)), one.rank));
            for one in ranks.iter().take(most) {
                let mean = Nanos(one.behind.0 / one.arrivals.max(1));
                table.row([
                    one.rank.to_string(),
                    one.arrivals.to_string(),
                    one.last.to_string(),
                    ms(one.alone),
                    ms(mean),
                    ms(one.worst),
                ]);
            }
            let _ = write!(text, "\n{table}");
        }
        text
    }
}

/// Whether all ranks arrived for it.
fn is_complete(exchange: &Exchange, world: u32) -> bool {
    world > 0 && exchange.arrivals.len() == world as usize
}

fn sum_activities(timeline: &Timeline) -> Vec<ActivityTotal> {
    let mut spans: BTreeMap<_, Vec<(Nanos, Nanos)>> = BTreeMap::new();
    for exchange in &timeline.exchanges {
        for activity in &exchange.activities {
            if let Some(end) = activity.end {
                spans.entry(activity.name).or_default().push((activity.begin, end));
            }
        }
    }
    let mut totals: Vec<ActivityTotal> = spans
        .into_iter()
        .map(|(name, spans)| ActivityTotal {
            name: timeline.names.text(name).into(),
            calls: spans.len() as u64,
            summed: Nanos(
                spans.iter().fold(0, |sum: u64, &(begin, end)| sum.saturating_add(end.since(begin).0)),
            ),
            busy: union(spans),
        })
        .collect();
    totals.sort_by(|a, b| b.busy.cmp(&a.busy).then_with(|| a.name.cmp(&b.name)));
    totals
}

fn find_lateness(timeline: &Timeline, world: u32) -> Vec<Lateness> {
    let mut ranks: BTreeMap<Rank, Lateness> = BTreeMap::new();
    let mut alone: BTreeMap<Rank, Vec<(Nanos, Nanos)>> = BTreeMap::new();
    for exchange in &timeline.exchanges {
        let Some(first) = exchange.arrivals.iter().map(|&(_, at)| at).min() else { continue };
        for &(rank, at) in &exchange.arrivals {
            let behind = at.since(first);
            let one = ranks.entry(rank).or_insert(Lateness { rank, ..Lateness::default() });
            one.arrivals += 1;
            one.behind = Nanos(one.behind.0.saturating_add(behind.0));
            one.worst = one.worst.max(behind);
        }
        let last = exchange.last_arrival().filter(|_| world > 1 && is_complete(exchange, world));
        let Some((last, at)) = last else { continue };
        let before = exchange.arrivals.iter().filter(|&&(rank, _)| rank != last).map(|&(_, at)| at).max();
        let one = ranks.get_mut(&last).expect("invariant: it arrived");
        one.last += 1;
        alone.entry(last).or_default().push((before.unwrap_or(at), at));
    }
    for (rank, waits) in alone {
        ranks.get_mut(&rank).expect("invariant: it arrived").alone = union(waits);
    }
    ranks.into_values().collect()
}
