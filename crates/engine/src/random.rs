//! Random numbers as a pure function of a stream and an index: any thread can draw any of them.

use std::ops::Range;

use paceline_model::{Graph, Init, ParamInfo, ParamKind};

use crate::request::check_len;
use crate::{EngineError, lay_out};

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

/// Draws the initial weights and running statistics of a network on so many threads, laid out as programs have them
/// ([`lay_out`]), with the bits that a program of this seed begins with.
pub fn draw(
    graph: &Graph,
    seed: u64,
    threads: usize,
    parameters: &mut [f32],
    statistics: &mut [f32],
) -> Result<(), EngineError> {
    let places = lay_out(graph);
    check_len("parameters to draw", places.trained, parameters.len())?;
    check_len("running statistics to draw", places.statistics_len, statistics.len())?;
    let trained = places.slots.iter().map(|slot| (slot.param.0, &slot.range));
    let ranges = places.statistics.iter().enumerate();
    let kept = ranges.filter_map(|(number, range)| Some((number, range.as_ref()?)));
    let mut pieces = cut(trained, parameters);
    pieces.extend(cut(kept, statistics));
    let mut dealt: Vec<Vec<Piece>> = (0..threads.max(1)).map(|_| Vec::new()).collect();
    for (index, piece) in pieces.into_iter().enumerate() {
        dealt[index % threads.max(1)].push(piece);
    }
    std::thread::scope(|scope| {
        for pieces in dealt {
            scope.spawn(move || {
                for Piece { number, first, values } in pieces {
                    draw_values(&graph.params[number], stream(seed, number), first, values);
                }
            });
        }
    });
    Ok(())
}

/// Some of a parameter's values, from its `first` on.
struct Piece<'a> {
    number: usize,
    first: usize,
    values: &'a mut [f32],
}

/// Cuts parameters at rising places into pieces; the gaps between them become 0.
fn cut<'a, 'b>(
    places: impl Iterator<Item = (usize, &'b Range<usize>)>,
    mut rest: &'a mut [f32],
) -> Vec<Piece<'a>> {
    const PIECE: usize = 1 << 16;
    let mut pieces = Vec::new();
    let mut reached = 0;
    for (number, range) in places {
        let (gap, from) = rest.split_at_mut(range.start - reached);
        gap.fill(0.0);
        let (values, after) = from.split_at_mut(range.len());
        let numbered = values.chunks_mut(PIECE).enumerate();
        pieces.extend(numbered.map(|(piece, values)| Piece { number, first: piece * PIECE, values }));
        (rest, reached) = (after, range.end);
    }
    rest.fill(0.0);
    pieces
}

/// Draws initial values of a parameter from its stream, from its `first` value on.
pub(crate) fn draw_values(param: &ParamInfo, stream: u64, first: usize, values: &mut [f32]) {
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
