//! The kernels and collectives that took most time in a run.

use std::cmp::Reverse;
use std::collections::HashMap;

use paceline_lab::origin::{Top, TopCollective};
use paceline_lab::run::Span;
use paceline_record::{Bytes, Nanos};

use super::collectives::Exchanges;
use super::spans::Spans;
use super::split::{Sight, is_exchange};
use crate::trace::{Kind, Slice, Trace};

/// Rows of each list that are kept.
pub const KEPT: usize = 20;

/// Longer names are cut.
const LONGEST_NAME: usize = 400;

/// Sums by name.
#[derive(Default)]
struct Sums(HashMap<String, (u64, Nanos)>);

impl Sums {
    fn add(&mut self, name: &str, time: Nanos) {
        if !self.0.contains_key(name) {
            self.0.insert(name.into(), (0, Nanos(0)));
        }
        if let Some((count, total)) = self.0.get_mut(name) {
            *count += 1;
            *total = Nanos(total.0.saturating_add(time.0));
        }
    }

    fn rank(self) -> Vec<Top> {
        let all: f64 = self.0.values().map(|(_, total)| total.seconds()).sum();
        let top = |(name, (count, total)): (String, (u64, Nanos))| Top {
            name: name.chars().take(LONGEST_NAME).collect(),
            count,
            total,
            mean_s: total.seconds() / count as f64,
            fraction: if all > 0.0 { total.seconds() / all } else { 0.0 },
        };
        let mut tops: Vec<Top> = self.0.into_iter().map(top).collect();
        tops.sort_unstable_by(|a, b| (Reverse(a.total), &a.name).cmp(&(Reverse(b.total), &b.name)));
        tops.truncate(KEPT);
        tops
    }
}

/// Kernels of the ranks, each within its window; without a device, outermost operators.
pub fn kernels(traces: &[Trace], windows: &[Span]) -> Vec<Top> {
    let mut sums = Sums::default();
    for (trace, window) in traces.iter().zip(windows) {
        let sight = Sight::of(trace);
        let exchanges: Vec<bool> = trace.names.texts().map(is_exchange).collect();
        let is_exchange = |slice: &Slice| exchanges.get(slice.name.0 as usize).copied().unwrap_or(false);
        let mut until = vec![Nanos(0); trace.tracks.len()];
        let mut is_outermost = |slice: &Slice| match until.get_mut(slice.track as usize) {
            Some(until) if slice.begin < *until => false,
            Some(until) => {
                *until = slice.end;
                true
            }
            None => true,
        };
        for slice in trace.slices.iter().filter(|slice| begins_within(slice, *window)) {
            let computes = matches!(slice.kind, Kind::Compute | Kind::Operator) && !is_exchange(slice);
            if computes && sight.counts(trace, slice) && (sight.device || is_outermost(slice)) {
                sums.add(trace.names.text(slice.name), slice.end.since(slice.begin));
            }
        }
    }
    sums.rank()
}

/// Sums over the collectives of one operation.
#[derive(Default)]
struct Exchanged {
    count: u64,
    summed: f64,
    busy: Nanos,
    waited: Option<Nanos>,
    bytes: Option<u64>,
}

/// Collectives of the ranks by operation, each within its window. `exchanges` has their waiting times.
pub fn collectives(traces: &[Trace], windows: &[Span], exchanges: &[Exchanges]) -> Vec<TopCollective> {
    let mut sums: HashMap<String, Exchanged> = HashMap::new();
    for ((trace, window), exchanges) in traces.iter().zip(windows).zip(exchanges) {
        let sight = Sight::of(trace);
        let mut spans: HashMap<&str, (Spans, Spans)> = HashMap::new();
        for collective in &trace.collectives {
            let slice = &trace.slices[collective.slice];
            if !begins_within(slice, *window) || !sight.counts(trace, slice) {
                continue;
            }
            let name = trace.names.text(collective.operation);
            let (busy, waiting) = spans.entry(name).or_default();
            busy.push(slice.begin, slice.end);
            let one = sums.entry(name.chars().take(LONGEST_NAME).collect()).or_default();
            one.count += 1;
            one.summed += slice.end.since(slice.begin).seconds();
            one.bytes =
                one.bytes.into_iter().chain(slice.bytes.map(|bytes| bytes.0)).reduce(u64::saturating_add);
            if let Some(waited) = exchanges.waited(collective.slice) {
                waiting.push(slice.begin, slice.begin + waited);
                one.waited.get_or_insert_default();
            }
        }
        for (name, (busy, waiting)) in spans {
            let Some(one) = sums.get_mut(name) else { continue };
            one.busy += busy.total();
            one.waited = one.waited.map(|waited| waited + waiting.total());
        }
    }
    rank_collectives(sums)
}

fn rank_collectives(sums: HashMap<String, Exchanged>) -> Vec<TopCollective> {
    let all: f64 = sums.values().map(|one| one.busy.seconds()).sum();
    let top = |(name, one): (String, Exchanged)| TopCollective {
        name,
        count: one.count,
        busy: one.busy,
        waited: one.waited,
        mean_s: one.summed / one.count.max(1) as f64,
        fraction: if all > 0.0 { one.busy.seconds() / all } else { 0.0 },
        bytes: one.bytes.map(Bytes),
    };
    let mut tops: Vec<TopCollective> = sums.into_iter().map(top).collect();
    tops.sort_unstable_by(|a, b| (Reverse(a.busy), &a.name).cmp(&(Reverse(b.busy), &b.name)));
    tops.truncate(KEPT);
    tops
}

fn begins_within(slice: &Slice, window: Span) -> bool {
    window.begin <= slice.begin && slice.begin < window.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::tests::Draft;

    #[test]
    fn kernels_and_collectives_are_ranked_by_their_time() {
        let mut draft = Draft::default();
        let (stream, host) = (draft.stream(), draft.thread());
        for (name, begin, end) in [("gemm", 0, 10), ("relu", 10, 12), ("gemm", 12, 40), ("late", 200, 300)] {
            draft.slice(stream, Kind::Compute, name, (begin, end));
        }
        draft.slice(host, Kind::Operator, "aten::mm", (0, 90));
        draft.collective(stream, "all_reduce", None, (40, 50));
        let (trace, window) = (draft.trace(), Span { begin: Nanos(0), end: Nanos(100) });
        let tops = kernels(std::slice::from_ref(&trace), &[window]);
        let expected =
            Top { name: "gemm".into(), count: 2, total: Nanos(38), mean_s: 19e-9, fraction: 38.0 / 40.0 };
        assert_eq!(
            (tops.len(), &tops[0].name, tops[0].count, tops[0].total),
            (2, &expected.name, 2, Nanos(38))
        );
        assert!(
            (tops[0].mean_s - expected.mean_s).abs() < 1e-15
                && (tops[0].fraction - expected.fraction).abs() < 1e-9
        );
        let exchanged = collectives(&[trace], &[window], &[Exchanges::default()]);
        assert_eq!((exchanged[0].name.as_str(), exchanged[0].busy), ("all_reduce", Nanos(10)));
        assert_eq!(exchanged[0].waited, None, "one rank alone does not tell");
    }

    #[test]
    fn without_a_device_only_the_outermost_operators_count() {
        let mut draft = Draft::default();
        let host = draft.thread();
        draft.slice(host, Kind::Operator, "aten::conv2d", (0, 50));
        draft.slice(host, Kind::Operator, "aten::mkldnn", (1, 49));
        draft.slice(host, Kind::Operator, "c10d::allreduce_", (50, 60));
        let tops = kernels(&[draft.trace()], &[Span { begin: Nanos(0), end: Nanos(100) }]);
        assert_eq!((tops.len(), tops[0].total), (1, Nanos(50)));
    }
}
