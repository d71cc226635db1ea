//! Where the level or the spread of a series changes: PELT (Killick, Fearnhead and Eckley 2012).
//!
//! A segment of m values with variance v costs `m (ln s + v / s)`, twice the negative log likelihood of normal values
//! with their own mean and the variance s, less a constant. s is v, but at least a floor: without one, a few equal
//! values would be infinitely likely. The segmentation with the least sum of costs and penalties is found, one penalty
//! for each change: `15 ln n`, which Barrett et al. (2017) use for the iteration times of virtual machines.
//!
//! The floor is relative to the noise, taken from first differences so that levels do not count as noise: half of
//! `MAD(x[i+1] - x[i]) / 0.954`, which is half the standard deviation of independent normal values. Where most
//! neighbours are equal, it is a tenth of the spread of the whole: `1.4826 MAD(x)`, or the mean distance from the
//! median where that is zero as well. All of them move with scale and not with shift, and so do the changes found. Equal
//! values have no change.
//!
//! The search is exact. A candidate for the last change is dropped for good as the paper says, and only once no
//! segment would become too short by it. A flat series drops none, so candidates are also skipped for a while: with
//! a floor of 1 costs are not negative and `C(a, c) >= C(a, b) + C(b, c)`, so what a candidate costs at a checkpoint
//! b bounds what it costs later, and all whose bound exceeds the best so far need no look. With checkpoints every
//! sqrt(n) values, n values take about `n^1.5` steps instead of `n^2`.

use super::order::{mad, mean, median};

/// Limits of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pelt {
    /// Cost of a change, in units of ln n.
    pub penalty: f64,
    /// Fewest values of a segment.
    pub shortest: usize,
}

impl Default for Pelt {
    fn default() -> Self {
        Self { penalty: 15.0, shortest: 5 }
    }
}

impl Pelt {
    /// The indices at which a new segment begins, ascending; none for values that do not change.
    pub fn find_changes(&self, values: &[f64]) -> Vec<usize> {
        let shortest = self.shortest.max(1);
        match Cost::new(values) {
            Some(cost) if values.len() >= 2 * shortest => {
                let penalty = self.penalty * (values.len() as f64).ln();
                search(&cost, penalty, shortest).1
            }
            _ => Vec::new(),
        }
    }
}

/// The smallest standard deviation that a segment of these values can have; `None` if all are equal.
pub(super) fn find_floor(values: &[f64]) -> Option<f64> {
    let positive = |&x: &f64| x > 0.0;
    let steps: Vec<f64> = values.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let noise = mad(&steps).filter(positive).map(|m| 0.5 * m / 0.954);
    let spread = || mad(values).filter(positive).map(|m| 0.1 * 1.4826 * m);
    let middle = median(values)?;
    let distances: Vec<f64> = values.iter().map(|x| (x - middle).abs()).collect();
    noise.or_else(spread).or_else(|| mean(&distances).filter(positive).map(|m| 0.1 * m))
}

/// The cost of any segment in constant time, from sums over all values before a place.
struct Cost(Vec<(f64, f64)>);

impl Cost {
    fn new(values: &[f64]) -> Option<Self> {
        let (middle, floor) = (median(values)?, find_floor(values)?);
        let mut sums = vec![(0.0, 0.0)];
        for (at, value) in values.iter().enumerate() {
            let z = (value - middle) / floor;
            sums.push((sums[at].0 + z, sums[at].1 + z * z));
        }
        Some(Self(sums))
    }

    fn of(&self, from: usize, to: usize) -> f64 {
        let ((a, aa), (b, bb)) = (self.0[from], self.0[to]);
        let count = (to - from) as f64;
        let mean = (b - a) / count;
        let variance = ((bb - aa) / count - mean * mean).max(0.0);
        if variance > 1.0 { count * (variance.ln() + 1.0) } else { count * variance }
    }

    fn length(&self) -> usize {
        self.0.len() - 1
    }
}

/// A candidate for the last change, and the least cost up to a later index with it.
#[derive(Clone, Copy)]
struct Candidate {
    at: usize,
    bound: f64,
    doomed: bool,
}

/// The least cost with its penalties, and the changes that reach it.
fn search(cost: &Cost, penalty: f64, shortest: usize) -> (f64, Vec<usize>) {
    let length = cost.length();
    let stride = (length as f64).sqrt().ceil().max(shortest as f64) as usize;
    let mut best = vec![f64::INFINITY; length + 1];
    let mut last = vec![0; length + 1];
    best[0] = -penalty;
    // Candidates up to the checkpoint, cheapest first, and those that came after it.
    let (mut old, mut young): (Vec<Candidate>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut checkpoint = 0;
    for end in shortest..=length {
        if best[end - shortest].is_finite() {
            young.push(end - shortest);
        }
        let mut least = (f64::INFINITY, 0);
        let mut consider = |at: usize| {
            let sum = best[at] + cost.of(at, end);
            if sum < least.0 {
                least = (sum, at);
            }
            least.0
        };
        let mut limit = young.iter().fold(f64::INFINITY, |_, &at| consider(at));
        let since = if checkpoint < end { cost.of(checkpoint, end) } else { 0.0 };
        for candidate in &old {
            if candidate.bound + since > limit {
                break;
            }
            limit = consider(candidate.at);
        }
        (best[end], last[end]) = (least.0 + penalty, least.1);
        if end - checkpoint >= stride {
            checkpoint = end;
            let known = old.iter().filter(|c| !c.doomed).map(|c| c.at);
            let mut next: Vec<Candidate> = known
                .chain(young.drain(..))
                .map(|at| {
                    let bound = best[at] + cost.of(at, end);
                    // A change here is as good from now on, once there is room for a segment after it.
                    Candidate { at, bound, doomed: bound >= best[end] }
                })
                .collect();
            next.sort_by(|a, b| a.bound.total_cmp(&b.bound));
            old = next;
        }
    }
    let mut changes = Vec::new();
    let mut at = last[length];
    while at > 0 {
        changes.push(at);
        at = last[at];
    }
    changes.reverse();
    (best[length], changes)
}

#[cfg(test)]
mod tests;
