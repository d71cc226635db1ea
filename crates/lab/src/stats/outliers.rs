//! Outliers: steps that say nothing about the level around them.
//!
//! After Barrett et al. (2017, "Virtual Machine Warmup Blows Hot and Cold"): within a rolling window of 200 steps, a value far from
//! the median is an outlier. They measure the distance in `P90 - P10`; we do in `P75 - P25`, which stays narrow where up to a quarter
//! of the steps are slow. With the wider one, a tenth of slow steps is marked in one window and not in the next, which then looks
//! like another level. `5.7 (P75 - P25)` is as far for normal values as their `3 (P90 - P10)`: 7.7 standard deviations. Normal
//! values never lie that far out; heavy tails and single hiccups do. Two things are added:
//!
//! - a run of outliers as long as a segment is a level of its own, and none of them is marked; nor is one with four others among the
//!   five steps before and after it;
//! - slow steps at the very start are warm-up, never outliers. A start can be in one place only, so less
//!   evidence is needed: `1.5 (P90 - P10)` over the median of the following steps (3.8 standard deviations). One
//!   slow step may follow another after a pause: the start is the longest of which half the steps are slow. It
//!   is at most a quarter of the steps, or 15: longer ones are for change points to find. Where 2 % of the later steps are at least half
//!   as slow, those at the start are chance.

use super::order::{quantile, sort};

const WINDOW: usize = 200;
const FAR: f64 = 5.7;
const FAR_AT_START: f64 = 1.5;
const LONGEST_START: usize = 15;
/// Slow steps that make up this fraction of the later ones say nothing at the start.
const OFTEN: f64 = 0.02;
/// With so many others around it, a value is one of a level.
const CROWD: usize = 4;

/// Slow starts and outliers of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Number of slow steps at the start.
    pub leading: usize,
    /// Indices of the outliers after them, ascending.
    pub outliers: Vec<usize>,
}

/// Marks outliers of finite values; runs of `segment` steps or more are levels and not marked.
pub fn mark(values: &[f64], segment: usize) -> Marks {
    let leading = count_leading(values);
    let far = find_far(&values[leading..]);
    let mut outliers = Vec::new();
    for run in far.chunk_by(|a, b| a + 1 == *b).filter(|run| run.len() < segment) {
        let alone = run.iter().filter(|&&at| count_around(&far, at, segment) < CROWD);
        outliers.extend(alone.map(|at| at + leading));
    }
    Marks { leading, outliers }
}

/// How many others lie within a segment's length on either side.
fn count_around(far: &[usize], at: usize, segment: usize) -> usize {
    let from = far.partition_point(|&other| other + segment < at);
    let to = far.partition_point(|&other| other <= at + segment);
    to - from - 1
}

fn count_leading(values: &[f64]) -> usize {
    let longest = LONGEST_START.min(values.len() / 4);
    let after = &values[longest..values.len().min(longest + WINDOW)];
    let Some(band) = Band::new(&sort(after), 0.1) else { return 0 };
    let slow = |at: usize| values[at] - band.middle > FAR_AT_START * band.width;
    if (0..=longest).all(slow) {
        return 0;
    }
    let (mut count, mut leading) = (0, 0);
    for at in (0..longest).filter(|&at| slow(at)) {
        count += 1;
        if 2 * count > at {
            leading = at + 1;
        }
    }
    // Where steps as slow come up later as well, those at the start are no warm-up.
    let peak = values[..leading].iter().copied().fold(band.middle, f64::max);
    let later = &values[longest..];
    let alike = later.iter().filter(|&&value| value - band.middle >= 0.5 * (peak - band.middle)).count();
    if alike > 1 && alike as f64 > OFTEN * later.len() as f64 { 0 } else { leading }
}

/// Indices of all values far from the middle of their window.
fn find_far(values: &[f64]) -> Vec<usize> {
    let width = WINDOW.min(values.len());
    let mut window = sort(&values[..width]);
    let mut start = 0;
    let mut far = Vec::new();
    for (at, value) in values.iter().enumerate() {
        // The window is centred, and shifted inwards at both ends.
        if at > start + width / 2 && start + width < values.len() {
            let place = |window: &[f64], value: f64| window.partition_point(|x| x.total_cmp(&value).is_lt());
            window.remove(place(&window, values[start]));
            window.insert(place(&window, values[start + width]), values[start + width]);
            start += 1;
        }
        let Some(band) = Band::new(&window, 0.25) else { break };
        if (value - band.middle).abs() > FAR * band.width {
            far.push(at);
        }
    }
    far
}

/// Where the bulk of some values lies.
struct Band {
    middle: f64,
    width: f64,
}

impl Band {
    /// Between the quantiles `tail` and `1 - tail`.
    fn new(sorted: &[f64], tail: f64) -> Option<Self> {
        let width = quantile(sorted, 1.0 - tail)? - quantile(sorted, tail)?;
        Some(Self { middle: quantile(sorted, 0.5)?, width })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::noise::{heavy, normal};
    use crate::stats::random::SplitMix;

    fn noisy(length: usize) -> Vec<f64> {
        let mut draw = SplitMix(5);
        (0..length).map(|_| 1.0 + 0.02 * normal(&mut draw)).collect()
    }

    #[test]
    fn normal_noise_has_no_outliers() {
        assert_eq!(mark(&noisy(10_000), 5), Marks::default());
        assert_eq!(mark(&[], 5), Marks::default());
        assert_eq!(mark(&[1.0], 5), Marks::default());
    }

    #[test]
    fn hiccups_are_outliers_on_both_sides() {
        let mut values = noisy(1000);
        for (at, value) in [(3, 0.3), (250, 3.0), (251, 2.0), (999, 9.0)] {
            values[at] = value;
        }
        assert_eq!(mark(&values, 5), Marks { leading: 0, outliers: vec![3, 250, 251, 999] });
    }

    #[test]
    fn slow_steps_at_the_start_are_warm_up() {
        let mut values = noisy(30);
        values[0] = 1.5;
        assert_eq!(mark(&values, 5), Marks { leading: 1, outliers: vec![] });
        values[2] = 4.0;
        assert_eq!(mark(&values, 5), Marks { leading: 3, outliers: vec![] });
    }

    #[test]
    fn a_run_as_long_as_a_segment_is_a_level() {
        let mut values = noisy(300);
        values[290..].fill(2.0);
        assert_eq!(mark(&values, 5), Marks::default());
        values.truncate(294);
        assert_eq!(mark(&values, 5).outliers, [290, 291, 292, 293]);
    }

    #[test]
    fn the_window_follows_a_level() {
        let mut values = noisy(1000);
        values[500..].iter_mut().for_each(|x| *x += 10.0);
        values[700] = 1.0;
        assert_eq!(mark(&values, 5).outliers, [700]);
    }

    #[test]
    fn heavy_tails_are_marked_seldom() {
        let mut draw = SplitMix(5);
        let values: Vec<f64> = (0..10_000).map(|_| heavy(&mut draw)).collect();
        let marked = mark(&values, 5).outliers.len();
        // t with three degrees of freedom lies beyond 9.8 in 0.2 % of all cases.
        assert!((10..=40).contains(&marked), "{marked} of 10000");
    }
}
