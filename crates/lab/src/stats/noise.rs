//! Noise with known properties, for tests that plant a truth.

use super::random::SplitMix;

/// A number from 0 to 1.
pub(super) fn uniform(draw: &mut SplitMix) -> f64 {
    ((draw.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// A standard normal number (Box and Muller 1958).
pub(super) fn normal(draw: &mut SplitMix) -> f64 {
    let (u, v) = (uniform(draw), uniform(draw));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// A Student t number with three degrees of freedom: tails as heavy as those of step times on a shared machine.
pub(super) fn heavy(draw: &mut SplitMix) -> f64 {
    let chi: f64 = (0..3).map(|_| normal(draw).powi(2)).sum();
    normal(draw) / (chi / 3.0).sqrt()
}

/// An autoregressive series of mean 0 and variance 1: `x[t] = phi x[t-1] + e`.
pub(super) fn autoregressive(draw: &mut SplitMix, phi: f64, length: usize) -> Vec<f64> {
    let mut last = normal(draw);
    let step = |_| {
        let now = last;
        last = phi * last + (1.0 - phi * phi).sqrt() * normal(draw);
        now
    };
    (0..length).map(step).collect()
}
