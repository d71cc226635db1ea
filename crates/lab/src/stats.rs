//! Statistics on plain numbers.

/// The middle of some values: the mean of the two middle ones where their number is even; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 0 => Some((sorted[half - 1] + sorted[half]) / 2.0),
        _ => Some(sorted[half]),
    }
}

/// An amount of work, and the time it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// How much.
    pub amount: f64,
    /// How long, in seconds.
    pub seconds: f64,
}

/// Work over time of all together; `None` where no time went by.
pub fn rate(work: &[Work]) -> Option<f64> {
    let amount: f64 = work.iter().map(|w| w.amount).sum();
    let seconds: f64 = work.iter().map(|w| w.seconds).sum();
    (seconds > 0.0).then_some(amount / seconds)
}

const RESAMPLES: usize = 1000;

/// The 95 % interval of [`rate`] by the percentile bootstrap (Efron 1979): pieces of work are drawn anew, with
/// replacement, a thousand times. `None` under two pieces: one says nothing about spread.
pub fn bootstrap_rate(work: &[Work], seed: u64) -> Option<(f64, f64)> {
    if work.len() < 2 {
        return None;
    }
    let mut draw = SplitMix(seed);
    let mut rates = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let (mut amount, mut seconds) = (0.0, 0.0);
        for _ in work {
            let piece = work[draw.below(work.len())];
            amount += piece.amount;
            seconds += piece.seconds;
        }
        if seconds > 0.0 {
            rates.push(amount / seconds);
        }
    }
    rates.sort_by(f64::total_cmp);
    Some((quantile(&rates, 0.025)?, quantile(&rates, 0.975)?))
}

/// The value below which a share of sorted values lies, interpolated between neighbours.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * (sorted.len().checked_sub(1)?) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * place.fract())
}

/// The generator of Steele, Lea and Flood (2014): small, and the same everywhere.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(seconds: &[f64]) -> Vec<Work> {
        let piece = |&seconds| Work { amount: 64.0, seconds };
        seconds.iter().map(piece).collect()
    }

    #[test]
    fn the_median_takes_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_rate_weighs_slow_pieces_by_their_time() {
        assert_eq!(rate(&pieces(&[1.0, 3.0])), Some(32.0));
        assert_eq!(rate(&[]), None);
    }

    #[test]
    fn one_piece_has_no_interval_and_equal_pieces_have_a_point() {
        assert_eq!(bootstrap_rate(&pieces(&[1.0]), 0), None);
        assert_eq!(bootstrap_rate(&pieces(&[0.5; 9]), 0), Some((128.0, 128.0)));
    }

    proptest::proptest! {
        #[test]
        fn the_interval_lies_within_the_extremes_and_repeats(
            seconds in proptest::collection::vec(0.01f64..1.0, 2..40),
            seed in 0u64..1000,
        ) {
            let work = pieces(&seconds);
            let (lo, hi) = bootstrap_rate(&work, seed).expect("two pieces or more");
            let slowest = seconds.iter().copied().fold(0.0, f64::max);
            let fastest = seconds.iter().copied().fold(1.0, f64::min);
            proptest::prop_assert!(lo <= hi);
            proptest::prop_assert!(64.0 / slowest <= lo * (1.0 + 1e-12));
            proptest::prop_assert!(hi <= 64.0 / fastest * (1.0 + 1e-12));
            proptest::prop_assert_eq!(bootstrap_rate(&work, seed), Some((lo, hi)));
        }
    }

    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_it_says() {
        let mut draw = SplitMix(7);
        let mut covered = 0;
        for trial in 0..200 {
            let seconds: Vec<f64> =
                (0..40).map(|_| 0.9 + 0.2 * (draw.next() as f64 / u64::MAX as f64)).collect();
            let (lo, hi) = bootstrap_rate(&pieces(&seconds), trial).expect("forty pieces");
            covered += usize::from(lo <= 64.0 && 64.0 <= hi);
        }
        assert!((180..=198).contains(&covered), "{covered} of 200");
    }
}
