//! Sets of times as sorted, disjoint spans, and arithmetic on them. Everything is linear in
//! the number of spans.

use paceline_lab::run::Span;
use paceline_record::Nanos;

use crate::trace::StepRange;

/// A set of times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(Vec<Span>);

impl Spans {
    /// Adds a span. Spans must come in order of their begin; the part of a span before the last
    /// begin is dropped.
    pub fn push(&mut self, begin: Nanos, end: Nanos) {
        match self.0.last_mut() {
            Some(last) if begin <= last.end => last.end = last.end.max(end),
            _ if begin < end => self.0.push(Span { begin, end }),
            _ => {}
        }
    }

    /// The time of steps, which must come in order.
    pub fn of_steps(steps: &[StepRange]) -> Self {
        let mut spans = Self::default();
        steps.iter().for_each(|step| spans.push(step.begin, step.end));
        spans
    }

    /// The spans, in order.
    pub fn as_slice(&self) -> &[Span] {
        &self.0
    }

    /// First begin to last end.
    pub fn extent(&self) -> Option<Span> {
        Some(Span { begin: self.0.first()?.begin, end: self.0.last()?.end })
    }

    /// Union.
    pub fn union(&self, other: &Self) -> Self {
        let (mut mine, mut others) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut union = Self(Vec::with_capacity(self.0.len().max(other.0.len())));
        loop {
            let from_mine = match (mine.peek(), others.peek()) {
                (Some(a), Some(b)) => a.begin <= b.begin,
                (a, _) => a.is_some(),
            };
            let Some(next) = (if from_mine { mine.next() } else { others.next() }) else {
                return union;
            };
            union.push(next.begin, next.end);
        }
    }

    /// Intersection.
    pub fn intersect(&self, other: &Self) -> Self {
        let (mut a, mut b) = (0, 0);
        let mut both = Self::default();
        while let (Some(mine), Some(others)) = (self.0.get(a), other.0.get(b)) {
            both.push(mine.begin.max(others.begin), mine.end.min(others.end));
            if mine.end <= others.end {
                a += 1;
            } else {
                b += 1;
            }
        }
        both
    }

    /// Difference.
    pub fn subtract(&self, other: &Self) -> Self {
        let mut left = Self::default();
        let mut first = 0;
        for mine in &self.0 {
            let mut begin = mine.begin;
            while other.0.get(first).is_some_and(|hole| hole.end <= begin) {
                first += 1;
            }
            for hole in other.0[first..].iter().take_while(|hole| hole.begin < mine.end) {
                left.push(begin, hole.begin);
                begin = begin.max(hole.end);
            }
            left.push(begin, mine.end);
        }
        left
    }

    /// Total length.
    pub fn total(&self) -> Nanos {
        self.0.iter().map(|mine| mine.end.since(mine.begin)).sum()
    }

    /// How much of a span is in the set.
    pub fn within(&self, span: Span) -> Nanos {
        let first = self.0.partition_point(|mine| mine.end <= span.begin);
        let inside = self.0[first..].iter().take_while(|mine| mine.begin < span.end);
        inside.map(|mine| mine.end.min(span.end).since(mine.begin.max(span.begin))).sum()
    }

    /// Whether a time is in the set.
    pub fn contains(&self, moment: Nanos) -> bool {
        let next = self.0.partition_point(|mine| mine.end <= moment);
        self.0.get(next).is_some_and(|mine| mine.begin <= moment)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A set from any spans.
    pub(crate) fn spans(stretches: &[(u64, u64)]) -> Spans {
        let mut sorted = stretches.to_vec();
        sorted.sort_unstable();
        let mut spans = Spans::default();
        for (begin, end) in sorted {
            spans.push(Nanos(begin), Nanos(end));
        }
        spans
    }

    fn stretches() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0u64..60, 0u64..9).prop_map(|(begin, length)| (begin, begin + length)), 0..12)
    }

    proptest! {
        #[test]
        fn every_moment_is_where_a_naive_count_puts_it(a in stretches(), b in stretches(), cut in (0u64..70, 0u64..70)) {
            let (left, right) = (spans(&a), spans(&b));
            let is_in = |all: &[(u64, u64)], t: u64| all.iter().any(|&(begin, end)| begin <= t && t < end);
            for t in 0..70 {
                let (in_a, in_b) = (is_in(&a, t), is_in(&b, t));
                prop_assert_eq!(left.contains(Nanos(t)), in_a);
                prop_assert_eq!(left.union(&right).contains(Nanos(t)), in_a || in_b);
                prop_assert_eq!(left.intersect(&right).contains(Nanos(t)), in_a && in_b);
                prop_assert_eq!(left.subtract(&right).contains(Nanos(t)), in_a && !in_b);
            }
            let inside = (cut.0..cut.1).filter(|&t| is_in(&a, t)).count() as u64;
            prop_assert_eq!(left.within(Span { begin: Nanos(cut.0), end: Nanos(cut.1) }), Nanos(inside));
            let apart = |spans: &Spans| spans.as_slice().windows(2).all(|pair| pair[0].end < pair[1].begin);
            prop_assert!(apart(&left.union(&right)) && apart(&left.subtract(&right)));
        }
    }
}
