//! The least sum of squared relative errors within bounds.

use super::{Law, MOST, Point, Values};
use crate::stats::regression::solve;

const ITERATIONS: usize = 200;

/// The search ends when no parameter moves by more than this fraction.
const ARRIVED: f64 = 1e-13;

/// The parameters with the smallest errors, and which of them are at a bound; `None` if no search ends within the bounds.
pub(super) fn find(law: Law, points: &[Point]) -> Option<(Values, [bool; MOST])> {
    let bounds = law.parameters();
    let scale = points.iter().map(|p| p.y / p.x).fold(0.0, f64::max);
    // Each parameter is free (0), at its lower (1) or at its upper bound (2).
    let sides = (0..3usize.pow(bounds.len() as u32)).map(|code| [code % 3, code / 3 % 3, code / 9]);
    let mut least: Option<(f64, Values, [bool; MOST])> = None;
    for side in sides {
        let mut start = [0.0; MOST];
        let mut free = Vec::new();
        for (at, &(_, low, high)) in bounds.iter().enumerate() {
            start[at] = [if high.is_finite() { 0.01 } else { scale }, low, high][side[at]];
            free.extend((side[at] == 0).then_some(at));
        }
        if !start.iter().all(|x| x.is_finite()) {
            continue;
        }
        let reached = match free[..] {
            [a] => descend(law, points, start, [a]),
            [a, b] => descend(law, points, start, [a, b]),
            [a, b, c] => descend(law, points, start, [a, b, c]),
            _ => continue,
        };
        let within = bounds.iter().zip(reached).all(|(&(_, low, high), x)| low <= x && x <= high);
        let squares = sum_squares(law, points, reached);
        if within && squares.is_finite() && least.is_none_or(|(best, ..)| squares < best) {
            least = Some((squares, reached, side.map(|side| side > 0)));
        }
    }
    least.map(|(_, values, fixed)| (values, fixed))
}

/// The sum of squared relative errors; infinite if the law gives a value that is not positive.
pub(super) fn sum_squares(law: Law, points: &[Point], values: Values) -> f64 {
    let square = |p: &Point| match law.value(values, p.x) {
        y if y > 0.0 => (1.0 - y / p.y).powi(2),
        _ => f64::INFINITY,
    };
    points.iter().map(square).sum()
}

/// Damped Gauss-Newton steps over the free parameters, with less damping after each success.
fn descend<const F: usize>(law: Law, points: &[Point], start: Values, free: [usize; F]) -> Values {
    let mut values = start;
    let mut squares = sum_squares(law, points, values);
    let mut damping = 1e-3;
    for _ in 0..ITERATIONS {
        let row = |p: &Point| -> [f64; F] { free.map(|at| law.gradient(values, p.x)[at] / p.y) };
        let mut rows: Vec<[f64; F]> = points.iter().map(row).collect();
        let mut errors: Vec<f64> = points.iter().map(|p| 1.0 - law.value(values, p.x) / p.y).collect();
        for k in 0..F {
            // Damping adds one row per parameter that pulls its step to zero.
            let norm = rows[..points.len()].iter().map(|row| row[k] * row[k]).sum::<f64>();
            rows.push(std::array::from_fn(|j| if j == k { (damping * norm).sqrt() } else { 0.0 }));
            errors.push(0.0);
        }
        let Some((step, _)) = solve(&rows, &errors) else { break };
        let mut next = values;
        free.iter().zip(step).for_each(|(&at, step)| next[at] += step);
        let reached = sum_squares(law, points, next);
        let moved =
            free.iter().any(|&at| (next[at] - values[at]).abs() > ARRIVED * (values[at].abs() + ARRIVED));
        if reached <= squares {
            (values, squares) = (next, reached);
            damping = (damping * 0.1).max(1e-12);
        } else {
            damping *= 10.0;
        }
        if !moved || damping > 1e12 {
            break;
        }
    }
    values
}
