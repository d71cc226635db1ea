//! Rates and their 95 % intervals by the percentile bootstrap (Efron 1979) with a thousand resamples.
//!
//! - One repeat: step times are autocorrelated, and drawing them one by one would give too narrow an interval. Whole
//!   blocks of neighbouring steps are drawn instead, on a circle (Künsch 1989; Politis and Romano 1992). A block is
//!   about `n^(1/3)` steps long; where neighbours depend on each other more, as long as is best for an
//!   autoregressive series of their correlation r: `(1.5 n)^(1/3) (2r / (1 - r^2))^(2/3)` (Politis and White 2004),
//!   up to a quarter of the steps.
//! - Several repeats: two levels (Davison and Hinkley 1997, section 3.8). Repeats are drawn, then blocks of steps
//!   within each, so that the interval includes variation between runs.
//!
//! The percentile interval is too narrow with few independent units (repeats, or blocks of the only
//! one). Its ends are widened by Student's t: from the quantile 2.5 % to `Phi(-t sqrt(m / (m - 1)))` for m units,
//! t with `m - 1` degrees of freedom (the expanded percentile interval, Hesterberg 2015).

use serde::Serialize;

use super::order::{quantile, sort};
use super::random::SplitMix;
use super::student::{normal_tail, t95};

const RESAMPLES: usize = 1000;

/// An amount of work, and the time it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The amount.
    pub amount: f64,
    /// The time in seconds.
    pub seconds: f64,
}

/// How many times faster one study is than another, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Rate over rate.
    pub ratio: f64,
    /// Lower end of the interval.
    pub lo: f64,
    /// Upper end of the interval.
    pub hi: f64,
}

/// Total work over total time; `None` if that time is zero.
pub fn rate(work: &[Work]) -> Option<f64> {
    total_rate(work.iter().copied())
}

/// The 95 % interval of [`rate`] over the pieces of one or several repeats. `None` with fewer than two pieces: one says
/// nothing about spread.
pub fn bootstrap_rate(repeats: &[&[Work]], seed: u64) -> Option<(f64, f64)> {
    let sample = Sample::new(repeats)?;
    let mut draw = SplitMix(seed);
    find_interval(sample.units(), (0..RESAMPLES).filter_map(|_| sample.draw_rate(&mut draw)))
}

/// The rate of `a` over the rate of `b`, resampled separately. `None` if either has fewer than two pieces
/// or no positive rate.
pub fn bootstrap_ratio(a: &[&[Work]], b: &[&[Work]], seed: u64) -> Option<Ratio> {
    let (above, below) = (Sample::new(a)?, Sample::new(b)?);
    let pooled = |repeats: &[&[Work]]| total_rate(repeats.iter().copied().flatten().copied());
    let ratio = pooled(a)? / pooled(b).filter(|&rate| rate > 0.0)?;
    let mut draw = SplitMix(seed);
    let ratios = (0..RESAMPLES).filter_map(|_| {
        let (a, b) = (above.draw_rate(&mut draw), below.draw_rate(&mut draw));
        Some(a? / b.filter(|&rate| rate > 0.0)?)
    });
    let (lo, hi) = find_interval(above.units().min(below.units()), ratios)?;
    Some(Ratio { ratio, lo, hi })
}

fn total_rate(work: impl Iterator<Item = Work>) -> Option<f64> {
    let add = |(amount, seconds), w: Work| (amount + w.amount, seconds + w.seconds);
    let (amount, seconds) = work.fold((0.0, 0.0), add);
    (seconds > 0.0).then_some(amount / seconds)
}

fn find_interval(units: usize, estimates: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let freedom = units.saturating_sub(1).max(1);
    let tail = normal_tail(t95(freedom) * ((freedom + 1) as f64 / freedom as f64).sqrt());
    let sorted = sort(&estimates.collect::<Vec<_>>());
    Some((quantile(&sorted, tail)?, quantile(&sorted, 1.0 - tail)?))
}

/// The sample: all non-empty repeats.
struct Sample(Vec<Repeat>);

impl Sample {
    fn new(repeats: &[&[Work]]) -> Option<Self> {
        let repeats: Vec<_> = repeats.iter().filter(|r| !r.is_empty()).map(|r| Repeat::new(r)).collect();
        let pieces: usize = repeats.iter().map(|r| r.length).sum();
        (pieces > 1).then_some(Self(repeats))
    }

    /// Number of independent parts of the sample.
    fn units(&self) -> usize {
        match self.0.as_slice() {
            [one] => one.length / one.block,
            repeats => repeats.len(),
        }
    }

    fn draw_rate(&self, draw: &mut SplitMix) -> Option<f64> {
        let Self(repeats) = self;
        let total = repeats.iter().map(|_| repeats[draw.below(repeats.len())].draw_total(draw));
        total_rate(total)
    }
}

/// One repeat, repeated twice as on a circle, so that a block that passes the end is also a difference of two sums.
struct Repeat {
    length: usize,
    block: usize,
    sums: Vec<Work>,
}

impl Repeat {
    fn new(work: &[Work]) -> Self {
        let mut sums = vec![Work { amount: 0.0, seconds: 0.0 }];
        for (at, piece) in work.iter().chain(work).enumerate() {
            let Work { amount, seconds } = sums[at];
            sums.push(Work { amount: amount + piece.amount, seconds: seconds + piece.seconds });
        }
        Self { length: work.len(), block: find_block(work), sums }
    }

    fn draw_total(&self, draw: &mut SplitMix) -> Work {
        let mut total = Work { amount: 0.0, seconds: 0.0 };
        let mut left = self.length;
        while left > 0 {
            let block = self.block.min(left);
            let start = draw.below(self.length);
            let (from, to) = (self.sums[start], self.sums[start + block]);
            total.amount += to.amount - from.amount;
            total.seconds += to.seconds - from.seconds;
            left -= block;
        }
        total
    }
}

/// How many neighbouring pieces are drawn together.
fn find_block(work: &[Work]) -> usize {
    let length = work.len() as f64;
    // The contribution of each piece to the error of the rate: the series whose correlation matters.
    let level = rate(work).unwrap_or(0.0);
    let errors: Vec<f64> = work.iter().map(|w| w.amount - level * w.seconds).collect();
    let power: f64 = errors.iter().map(|e| e * e).sum();
    let product: f64 = errors.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let correlation = if power > 0.0 { (product / power).clamp(0.0, 0.95) } else { 0.0 };
    let dependence = 2.0 * correlation / (1.0 - correlation * correlation);
    let block = length.cbrt().max((1.5 * length).cbrt() * dependence.powf(2.0 / 3.0));
    (block.round() as usize).clamp(1, (work.len() / 4).max(1))
}

#[cfg(test)]
mod tests;
