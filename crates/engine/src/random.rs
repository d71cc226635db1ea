//! Random numbers as a pure function of a stream and an index: any thread can draw any of them.

use paceline_model::{Init, ParamInfo, ParamKind};

/// Scrambles a number (SplitMix64's finaliser; Steele, Lea and Flood 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The `index`-th uniform number of a stream, in \[0, 1).
pub(crate) fn uniform(stream: u64, index: u64) -> f64 {
    let z = mix(stream.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    (z >> 11) as f64 / (1u64 << 53) as f64
}

/// The `index`-th standard normal number of a stream (Box and Muller 1958).
pub(crate) fn normal(stream: u64, index: u64) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(stream, 2 * index)).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(stream, 2 * index + 1)).cos()
}

/// The stream of a layer or parameter with this number: each has its own, so that no other's size matters.
pub(crate) fn stream(seed: u64, number: usize) -> u64 {
    mix(seed ^ mix(number as u64))
}

/// Draws initial values of a parameter from its stream, from its `first` value on.
pub(crate) fn draw(param: &ParamInfo, stream: u64, first: usize, values: &mut [f32]) {
    let fan_in = param.fan_in as f64;
    let indexed = (first as u64..).zip(values.iter_mut());
    match (param.kind, param.init) {
        (ParamKind::Kernel, Some(Init::He)) => {
            let deviation = (2.0 / fan_in).sqrt();
            indexed.for_each(|(i, value)| *value = (deviation * normal(stream, i)) as f32);
        }
        (ParamKind::Kernel, _) => {
            let limit = (6.0 / (fan_in + param.fan_out as f64)).sqrt();
            indexed.for_each(|(i, value)| *value = (limit * (2.0 * uniform(stream, i) - 1.0)) as f32);
        }
        (ParamKind::Gamma | ParamKind::MovingVariance, _) => values.fill(1.0),
        _ => values.fill(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_distributions() {
        let n = 200_000;
        let mean = |f: &dyn Fn(u64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        assert!((mean(&|i| uniform(7, i)) - 0.5).abs() < 3e-3);
        assert!(mean(&|i| normal(7, i)).abs() < 8e-3);
        assert!((mean(&|i| normal(7, i).powi(2)) - 1.0).abs() < 1.5e-2);
    }
}
