//! The kernels and collectives that took most time in a run.

use std::cmp::Reverse;
use std::collections::HashMap;

use paceline_lab::origin::{Top, TopCollective};
use paceline_record::{Bytes, Nanos};

use super::collectives::Exchanges;
use super::spans::Spans;
use super::split::{Sight, is_exchange};
use crate::trace::{Kind, Slice, Trace};

/// Rows of each list that are kept.
pub const KEPT: usize = 20;

/// Longer names are cut.
const LONGEST_NAME: usize = 400;

/// Work of one name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// Number of slices.
    pub count: u64,
    /// Their time within the window.
    pub total: Nanos,
    /// Bytes of those that have some.
    pub bytes: Option<u64>,
    /// Number of those.
    pub sized: u64,
    /// All the time of those that copy or exchange, in nanoseconds: that of a fill is mostly its launch.
    pub moving: u64,
}

impl Row {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.total = Nanos(self.total.0.saturating_add(other.total.0));
        self.bytes = self.bytes.into_iter().chain(other.bytes).reduce(u64::saturating_add);
        self.sized += other.sized;
        self.moving = self.moving.saturating_add(other.moving);
    }
}

/// Work summed up by name.
#[derive(Default)]
pub(super) struct Tally<'trace>(HashMap<&'trace str, Row>);

impl<'trace> Tally<'trace> {
    /// Adds a slice, if it is in the window.
    pub fn add(&mut self, name: &'trace str, slice: &Slice, window: &Spans) {
        let total = window.within(slice.span());
        if total.is_zero() && (slice.begin < slice.end || !window.contains(slice.begin)) {
            return;
        }
        let bytes = slice.bytes.map(|bytes| bytes.0);
        let moving = bytes.filter(|_| slice.kind != Kind::Fill).map_or(0, |_| slice.length().0);
        let sized = u64::from(bytes.is_some());
        self.0.entry(name).or_default().add(Row { count: 1, total, bytes, sized, moving });
    }

    /// The rows that took most, and all together.
    pub fn rows(self, most: usize) -> (Vec<(&'trace str, Row)>, Row) {
        let mut all = Row::default();
        self.0.values().for_each(|row| all.add(*row));
        let mut rows: Vec<(&str, Row)> = self.0.into_iter().collect();
        rows.sort_by_key(|&(name, row)| (Reverse(row.total), name));
        rows.truncate(most);
        (rows, all)
    }
}

/// Adds the work of a rank in a window to four lists: kernels, copies, collectives by operation, and ranges. Without
/// work of a device, outermost operators are the kernels.
pub(super) fn tally<'trace>(trace: &'trace Trace, window: &Spans, lists: &mut [Tally<'trace>; 4]) {
    let sight = Sight::of(trace);
    let exchanges: Vec<bool> = trace.names.texts().map(is_exchange).collect();
    let mut operations = trace.collectives.iter().map(|one| (one.slice, one.operation)).peekable();
    let mut until = vec![Nanos(0); trace.tracks.len()];
    // A range may occur twice: on the host that opened it and on the device that reached it.
    let on_host = |slice: &Slice| trace.device_of(slice).is_none();
    let by_host = trace.slices.iter().any(|slice| slice.kind == Kind::Range && on_host(slice));
    for (at, slice) in trace.slices.iter().enumerate() {
        let operation = operations.next_if(|(slice, _)| *slice == at).map(|(_, operation)| operation);
        let list = match slice.kind {
            Kind::Range if on_host(slice) || !by_host => 3,
            Kind::Range | Kind::Call => continue,
            _ if !sight.lists(trace, slice) => continue,
            Kind::Compute | Kind::Operator => {
                let outer = &mut until[slice.track as usize];
                if exchanges[slice.name.0 as usize] || !sight.shown && slice.begin < *outer {
                    continue;
                }
                *outer = slice.end;
                0
            }
            Kind::Collective => 2,
            Kind::CopyIn | Kind::CopyOut | Kind::CopyDevice | Kind::Fill => 1,
        };
        lists[list].add(trace.names.text(operation.unwrap_or(slice.name)), slice, window);
    }
}

/// Kernels of the ranks, each within its window.
pub fn kernels(traces: &[Trace], windows: &[Spans]) -> Vec<Top> {
    let mut lists = Default::default();
    for (trace, window) in traces.iter().zip(windows) {
        tally(trace, window, &mut lists);
    }
    let [kernels, ..] = lists;
    let (rows, all) = kernels.rows(KEPT);
    let top = |(name, row): (&str, Row)| Top {
        name: name.chars().take(LONGEST_NAME).collect(),
        count: row.count,
        total: row.total,
        mean_s: row.total.seconds() / row.count.max(1) as f64,
        fraction: if all.total.is_zero() { 0.0 } else { row.total.seconds() / all.total.seconds() },
    };
    rows.into_iter().map(top).collect()
}

/// Collectives of the ranks by operation, each within its window. `exchanges` has their waiting times.
pub fn collectives(traces: &[Trace], windows: &[Spans], exchanges: &[Exchanges]) -> Vec<TopCollective> {
    let mut tops: HashMap<&str, TopCollective> = HashMap::new();
    for ((trace, window), exchanges) in traces.iter().zip(windows).zip(exchanges) {
        let sight = Sight::of(trace);
        let mut spans: HashMap<&str, (Spans, Spans)> = HashMap::new();
        for collective in &trace.collectives {
            let slice = &trace.slices[collective.slice];
            if !window.contains(slice.begin) || !sight.counts(trace, slice) {
                continue;
            }
            let name = trace.names.text(collective.operation);
            let (busy, waiting) = spans.entry(name).or_default();
            busy.push(slice.begin, slice.end);
            let top = tops.entry(name).or_default();
            let waited = exchanges.waited(collective.slice);
            // What is nothing but waiting has its transfer in a slice of its own.
            top.count += u64::from(waited != Some(slice.length()));
            // A sum, until all are known.
            top.mean_s += slice.length().seconds();
            let bytes = top.bytes.into_iter().chain(slice.bytes);
            top.bytes = bytes.reduce(|all, more| Bytes(all.0.saturating_add(more.0)));
            if let Some(waited) = waited {
                waiting.push(slice.begin, slice.begin + waited);
                top.waited.get_or_insert_default();
            }
        }
        for (name, (busy, waiting)) in spans {
            let top = tops.entry(name).or_default();
            top.busy += busy.total();
            top.waited = top.waited.map(|waited| waited + waiting.total());
        }
    }
    let all: f64 = tops.values().map(|top| top.busy.seconds()).sum();
    let finish = |(name, top): (&str, TopCollective)| TopCollective {
        name: name.chars().take(LONGEST_NAME).collect(),
        mean_s: top.mean_s / top.count.max(1) as f64,
        fraction: if all > 0.0 { top.busy.seconds() / all } else { 0.0 },
        ..top
    };
    let mut tops: Vec<TopCollective> = tops.into_iter().map(finish).collect();
    tops.sort_unstable_by(|a, b| (Reverse(a.busy), &a.name).cmp(&(Reverse(b.busy), &b.name)));
    tops.truncate(KEPT);
    tops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spans::tests::spans;
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
        let (trace, window) = (draft.trace(), spans(&[(0, 100)]));
        let tops = kernels(std::slice::from_ref(&trace), std::slice::from_ref(&window));
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
        let tops = kernels(&[draft.trace()], &[spans(&[(0, 100)])]);
        assert_eq!((tops.len(), tops[0].total), (1, Nanos(50)));
    }
}
