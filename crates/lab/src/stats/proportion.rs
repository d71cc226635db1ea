//! The fraction of successful trials, and its 95 % interval by Wilson (1927).
//!
//! ```text
//! (p + z^2 / 2n  +-  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
//! ```
//!
//! Unlike the textbook interval it stays within 0 and 1, and keeps its coverage even near them.

/// Two-sided 95 % quantile of the normal distribution.
const Z95: f64 = 1.959_963_985;

/// The interval of a fraction (0 to 1) of `trials`; `None` without trials.
pub fn wilson(fraction: f64, trials: f64) -> Option<(f64, f64)> {
    let z2 = Z95 * Z95 / trials;
    let middle = fraction + z2 / 2.0;
    let half = (z2 * (fraction * (1.0 - fraction) + z2 / 4.0)).sqrt();
    (trials > 0.0).then(|| (((middle - half) / (1.0 + z2)).max(0.0), ((middle + half) / (1.0 + z2)).min(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::random::SplitMix;

    #[test]
    fn intervals_are_those_of_the_tables() {
        for (right, trials, lo, hi) in [
            (8.0, 10.0, 0.4902, 0.9433),
            (0.0, 10.0, 0.0, 0.2775),
            (10.0, 10.0, 0.7225, 1.0),
            (9_000.0, 10_000.0, 0.8940, 0.9057),
        ] {
            let (low, high) = wilson(right / trials, trials).expect("trials");
            assert!(
                (low - lo).abs() < 5e-5 && (high - hi).abs() < 5e-5,
                "{right} of {trials}: {low} .. {high}"
            );
        }
        assert_eq!(wilson(0.5, 0.0), None);
    }

    #[test]
    fn the_interval_holds_the_planted_share_as_often_as_it_says() {
        let mut draw = SplitMix(3);
        for planted in [0.1, 0.5, 0.95] {
            let mut held = 0;
            for _ in 0..2000 {
                let right = (0..200).filter(|_| (draw.bits() as f64 / u64::MAX as f64) < planted).count();
                let (lo, hi) = wilson(right as f64 / 200.0, 200.0).expect("trials");
                held += usize::from(lo <= planted && planted <= hi);
            }
            let held = held as f64 / 2000.0;
            assert!((0.93..0.97).contains(&held), "{planted}: {held}");
        }
    }
}
