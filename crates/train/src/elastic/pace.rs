//! How fast an elastic run goes.

use std::collections::VecDeque;

use paceline_record::Nanos;

/// Time over which the rate is told.
const RATE_WINDOW: Nanos = Nanos(5_000_000_000);

/// When steps were done.
#[derive(Default)]
pub(super) struct Pace {
    /// Recent moments at which a number of steps was seen to be done.
    seen: VecDeque<(Nanos, u64)>,
    /// Times of recent steps.
    steps: VecDeque<Nanos>,
}

impl Pace {
    pub fn see(&mut self, done: u64, now: Nanos) {
        if self.seen.back().is_some_and(|&(_, before)| done < before) {
            // What all devices have lost is done again.
            self.seen.clear();
        }
        if let Some(&(at, before)) = self.seen.back() {
            if before == done {
                return;
            }
            self.steps.push_back(Nanos(now.since(at).0 / (done - before)));
            if self.steps.len() > 31 {
                self.steps.pop_front();
            }
        }
        self.seen.push_back((now, done));
        while self.seen.len() > 2 && now.since(self.seen[0].0) > RATE_WINDOW {
            self.seen.pop_front();
        }
    }

    pub fn median(&self) -> Option<Nanos> {
        let mut steps: Vec<Nanos> = self.steps.iter().copied().collect();
        steps.sort_unstable();
        // The first ones are slow.
        (steps.len() >= 3).then(|| steps[steps.len() / 2])
    }

    /// Over the last seconds; it falls while nothing is done.
    pub fn steps_per_s(&self, now: Nanos) -> Option<f64> {
        let (&(from, first), &(_, last)) = (self.seen.front()?, self.seen.back()?);
        (last > first).then(|| (last - first) as f64 / now.since(from).seconds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_training_that_goes_back_is_paced_from_there() {
        let mut pace = Pace::default();
        for (done, at) in [(0, 0), (10, 10), (8, 12), (9, 13), (10, 14)] {
            pace.see(done, Nanos(at * 1_000_000_000));
        }
        assert_eq!(pace.steps_per_s(Nanos(14_000_000_000)), Some(1.0));
        assert_eq!(pace.median(), Some(Nanos(1_000_000_000)));
    }
}
