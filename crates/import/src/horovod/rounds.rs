//! Traces from the exchanges of a timeline.
//!
//! Steps are told if all tensors that are exchanged again are exchanged equally often, one round after the other: a step
//! then lasts from the end of a round to the end of the next. Otherwise a timeline says nothing about steps.
//!
//! A rank that was ready for its last tensor in a round waits until the last rank is ready, too. Before, it had more to
//! compute: waiting of other tensors was no waiting of the rank. While an earlier exchange is under way, it is that which is
//! waited for; and what Horovod does between the last rank and the bytes (cycles, queues, fusion) is no rank's fault.

use std::collections::{BTreeMap, HashMap};

use paceline_lab::run::Span;
use paceline_record::{Nanos, Rank};

use super::Exchange;
use crate::trace::{Clock, Collective, Kind, Slice, StepRange, Trace, Track};

/// The traces in a timeline, each with all exchanges; `names` are those of the tensors.
pub(super) fn make_traces(
    mut exchanges: Vec<Exchange>,
    names: &HashMap<u64, String>,
    mut warnings: Vec<String>,
) -> Vec<Trace> {
    exchanges.sort_by_key(|exchange| (exchange.begin, exchange.end, exchange.tensor));
    let world = exchanges.iter().filter_map(count_ranks).max();
    let rounds = find_rounds(&exchanges).unwrap_or_default();
    warnings.push(
        "the timeline does not show computation: how much of the exchange it hides, and how many examples there are, is unknown"
            .into(),
    );
    let is_known = |&at: &usize| world.is_some() && count_ranks(&exchanges[at]) == world;
    let known = !rounds.is_empty() && rounds.iter().flatten().all(is_known);
    let unknown = (0..exchanges.len()).filter(|at| !is_known(at)).count();
    if unknown > 0 {
        warnings.push(format!(
            "{unknown} exchanges do not show when ranks were ready, so waiting for late ranks is unknown: Horovod answers for \
             known tensors from a cache (HOROVOD_CACHE_CAPACITY=0 records all)"
        ));
    }
    let end = |round: &Vec<usize>| round.iter().map(|&at| exchanges[at].end).max().unwrap_or_default();
    let steps: Vec<StepRange> = rounds
        .windows(2)
        .zip(1..)
        .map(|(pair, number)| StepRange { number, begin: end(&pair[0]), end: end(&pair[1]) })
        .collect();
    let within = |exchange: &Exchange| match (steps.first(), steps.last()) {
        (Some(first), Some(last)) => first.begin <= exchange.begin && exchange.begin < last.end,
        _ => true,
    };
    let outside = exchanges.iter().filter(|exchange| !within(exchange)).count();
    warnings.push(match steps.is_empty() {
        true => "its steps, and so who waited for whom, are unknown: tensors are not exchanged in rounds".into(),
        false => format!(
            "a step is a round of all tensors; the first was left out, because its begin is unknown, and so were all \
             {outside} exchanges outside the steps"
        ),
    });
    let ended = exchanges.iter().scan(Nanos(0), |ended, exchange| {
        *ended = exchange.end.max(*ended);
        Some(*ended)
    });
    let moved: Vec<Nanos> = ended.collect();
    let ranks = if known { world.unwrap_or(1) } else { 1 };
    let shown: Vec<usize> = (0..exchanges.len()).filter(|&at| within(&exchanges[at])).collect();
    let traces = (0..ranks).map(Rank).map(|rank| {
        let mut waits = vec![None; exchanges.len()];
        for round in rounds.iter().filter(|_| known) {
            wait(&exchanges, &moved, round, rank, &mut waits);
        }
        let mut trace = make_trace(shown.iter().map(|&at| (&exchanges[at], waits[at])), names);
        (trace.rank, trace.world) = (Some(rank), world);
        trace.steps.clone_from(&steps);
        trace
    });
    let mut traces: Vec<Trace> = traces.collect();
    traces[0].warnings = warnings;
    traces
}

/// How many ranks were ready, if these are all that there are.
fn count_ranks(exchange: &Exchange) -> Option<u32> {
    let all = exchange.arrivals.iter().zip(0..).all(|(&(rank, _), place)| rank.0 == place);
    (all && !exchange.arrivals.is_empty()).then_some(exchange.arrivals.len() as u32)
}

/// The exchanges of each round; `None` if tensors are not exchanged in rounds.
fn find_rounds(exchanges: &[Exchange]) -> Option<Vec<Vec<usize>>> {
    let mut tensors: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, exchange) in exchanges.iter().enumerate() {
        tensors.entry(exchange.tensor).or_default().push(at);
    }
    tensors.retain(|_, times| times.len() > 1);
    let fewest = tensors.values().map(Vec::len).min()?;
    // The last round may be cut off.
    if tensors.values().any(|times| times.len() > fewest + 1) {
        return None;
    }
    let round = |number: usize| tensors.values().map(|times| times[number]).collect::<Vec<usize>>();
    let rounds: Vec<Vec<usize>> = (0..fewest).map(round).collect();
    let apart = |pair: &[Vec<usize>]| {
        let begin = pair[1].iter().map(|&at| exchanges[at].begin).min();
        pair[0].iter().map(|&at| exchanges[at].end).max() <= begin
    };
    rounds.windows(2).all(apart).then_some(rounds)
}

/// Finds when a rank waited for others before each exchange of a round: for no time, if it came last or had more to do.
/// `moved` is when all exchanges so far had ended, one for each.
fn wait(exchanges: &[Exchange], moved: &[Nanos], round: &[usize], rank: Rank, waits: &mut [Option<Span>]) {
    let own = |at: usize| exchanges[at].arrivals[rank.0 as usize].1;
    let ready = round.iter().map(|&at| own(at)).max().unwrap_or_default();
    for &at in round {
        let last = exchanges[at].arrivals.iter().map(|&(_, at)| at).max().unwrap_or_default();
        let earlier = exchanges.partition_point(|other| other.begin < last);
        let free = moved[..earlier].last().map_or(ready, |&moved| ready.max(moved));
        let begin = if free < last { free } else { own(at) };
        waits[at] = Some(Span { begin, end: if free < last { last } else { begin } });
    }
}

/// The trace of a rank from its exchanges, each after the rank's waiting for others.
fn make_trace<'a>(
    exchanges: impl Iterator<Item = (&'a Exchange, Option<Span>)>,
    names: &HashMap<u64, String>,
) -> Trace {
    let track = Track { name: "exchanges".into(), device: None };
    let mut trace = Trace { clock: Clock::Writer, tracks: vec![track], unread: true, ..Trace::default() };
    let mut times: HashMap<u64, u64> = HashMap::new();
    for (exchange, wait) in exchanges {
        let time = times.entry(exchange.tensor).or_default();
        *time += 1;
        let tensor = names.get(&exchange.tensor).filter(|name| !name.is_empty());
        let tensor = tensor.cloned().unwrap_or_else(|| format!("tensor {}", exchange.tensor));
        let (operation, group) = (trace.names.enter(&exchange.name), Some(trace.names.enter(&tensor)));
        let moving = Span { begin: exchange.begin, end: exchange.end };
        let pieces = [wait.map(|wait| (wait, Some(*time), None)), Some((moving, None, exchange.bytes))];
        for (Span { begin, end }, sequence, bytes) in pieces.into_iter().flatten() {
            trace.collectives.push(Collective { slice: trace.slices.len(), operation, group, sequence });
            let kind = Kind::Collective;
            trace.slices.push(Slice { kind, name: operation, begin, end, track: 0, correlation: 0, bytes });
        }
    }
    let backend = |name: &str| Some(name.split_once('_')?.0.to_lowercase());
    trace.backend = trace.slices.iter().find_map(|slice| backend(trace.names.text(slice.name)));
    trace.sort();
    trace
}
