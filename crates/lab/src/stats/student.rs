//! Student's t distribution (1908), for whole degrees of freedom.
//!
//! With `theta = atan(t / sqrt(v))`, the probability of `|T| <= t` is a finite sum (Abramowitz and Stegun 1964, 26.7.3
//! and 26.7.4):
//!
//! - v odd: `2/pi (theta + sin theta (cos theta + 2/3 cos^3 theta + ... ))`, up to the power `v - 2`;
//! - v even: `sin theta (1 + 1/2 cos^2 theta + 1*3/(2*4) cos^4 theta + ...)`, up to the power `v - 2`.
//!
//! The tail of the normal distribution is their 7.1.26, with an error under 1e-7.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, SQRT_2};

/// Two-sided 95 % quantile; infinite without a degree of freedom.
pub fn t95(freedom: usize) -> f64 {
    t_within(0.95, freedom)
}

/// Two-sided quantile: the t within which a fraction (0 to 1) of the values lies.
pub fn t_within(fraction: f64, freedom: usize) -> f64 {
    if freedom == 0 {
        return f64::INFINITY;
    }
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if fraction_within(middle, freedom) < fraction { low = middle } else { high = middle }
    }
    (0.5 * (low + high)).tan() * (freedom as f64).sqrt()
}

fn fraction_within(theta: f64, freedom: usize) -> f64 {
    let (sin, cos) = theta.sin_cos();
    let odd = freedom % 2;
    // Terms run over the powers of the cosine with the parity of v; each follows from the one before.
    let mut term = if odd == 1 { cos } else { 1.0 };
    let mut sum = 0.0;
    for power in (odd..freedom.saturating_sub(1)).step_by(2) {
        sum += term;
        term *= cos * cos * (power + 1) as f64 / (power + 2) as f64;
    }
    if odd == 1 { FRAC_2_PI * (theta + sin * sum) } else { sin * sum }
}

/// The fraction of a normal distribution that lies above z standard deviations, for z >= 0.
pub(crate) fn normal_tail(z: f64) -> f64 {
    let x = z / SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let weights = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let polynomial = weights.iter().fold(0.0, |sum, weight| (sum + weight) * t);
    0.5 * polynomial * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        // Two-sided 95 % and 99 %, as every table of the t distribution prints them.
        let table = [
            (1, 12.706, 63.657),
            (2, 4.303, 9.925),
            (3, 3.182, 5.841),
            (4, 2.776, 4.604),
            (5, 2.571, 4.032),
            (10, 2.228, 3.169),
            (29, 2.045, 2.756),
            (30, 2.042, 2.750),
            (120, 1.980, 2.617),
            (100_001, 1.960, 2.576),
        ];
        for (freedom, t_95, t_99) in table {
            assert!((t95(freedom) - t_95).abs() < 6e-4, "{freedom}: {}", t95(freedom));
            assert!((t_within(0.99, freedom) - t_99).abs() < 6e-4, "{freedom}");
        }
        assert_eq!(t95(0), f64::INFINITY);
    }

    #[test]
    fn the_normal_tail_is_that_of_the_tables() {
        for (z, tail) in [(0.0, 0.5), (1.0, 0.158_655), (1.959_964, 0.025), (3.0, 0.001_350)] {
            assert!((normal_tail(z) - tail).abs() < 1e-6, "{z}: {}", normal_tail(z));
        }
    }
}
