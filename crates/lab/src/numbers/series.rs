//! The times of a case's global steps for plots: neighbouring steps are merged until at most so many points are left.

use serde::Serialize;

use crate::stats::{self, Work};

/// Most points of a series.
pub const MOST: usize = 400;

/// Most points of the finer series that a page zooms into.
pub const MOST_DETAIL: usize = 4000;

/// Step times over the run, in seconds. Point i stands for `every` steps, starting at step `every * i`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Steps per point.
    pub every: u64,
    /// Their median.
    pub median_s: Vec<f64>,
    /// The fastest of them.
    pub least_s: Vec<f64>,
    /// The slowest of them.
    pub most_s: Vec<f64>,
}

/// Merges the records of one run, each of which stands for `covers` steps, to at most `points`.
pub fn series(steps: &[Work], covers: u64, points: usize) -> Series {
    let every = steps.len().div_ceil(points).max(1);
    let chunks = || steps.chunks(every).map(|chunk| chunk.iter().map(|step| step.seconds));
    let median = |seconds: Vec<f64>| stats::median(&seconds).expect("invariant: no chunk is empty");
    Series {
        every: covers.saturating_mul(every as u64),
        median_s: chunks().map(|seconds| median(seconds.collect())).collect(),
        least_s: chunks().map(|seconds| seconds.fold(f64::INFINITY, f64::min)).collect(),
        most_s: chunks().map(|seconds| seconds.fold(0.0, f64::max)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_keep_their_extremes_in_few_points() {
        let step = |k: u32| Work { amount: 1.0, seconds: if k == 7 { 9.0 } else { f64::from(1 + k % 2) } };
        let steps: Vec<Work> = (0..1001).map(step).collect();
        assert_eq!(series(&steps, 1, MOST_DETAIL).median_s.len(), 1001);
        let series = series(&steps, 1, MOST);
        assert_eq!((series.every, series.median_s.len()), (3, 334));
        assert_eq!((series.most_s[2], series.least_s[2]), (9.0, 1.0));
        assert_eq!(super::series(&steps[..5], 1, MOST).every, 1);
        assert_eq!(super::series(&steps[..5], 10, MOST).every, 10, "a point of ten steps");
    }
}
