//! Scaling laws, fitted to measured points.
//!
//! Throughput X of N workers, one worker's being l:
//!
//! | law | X(N) | |
//! |---|---|---|
//! | linear | `l N` | |
//! | Amdahl (1967) | `l N / (1 + s (N - 1))` | s: the part that is serial, 0 to 1 |
//! | Gustafson (1988) | `l (N - a (N - 1))` | a: the part that does not grow, 0 to 1 |
//! | universal scalability (Gunther 2007) | `l N / (1 + s (N - 1) + k N (N - 1))` | s: contention, k: coherence, 0 to 1 |
//!
//! and the clock: `T = a + b x`, a fixed time and a time per unit of work x of a worker, neither of them
//! negative. If the work is divided among N workers, x is `1 / N` of it.
//!
//! The fit minimises the sum of squared relative errors. The minimum is
//! found by Levenberg (1944) and Marquardt (1963), on every side that the bounds allow: each parameter is left free or
//! set to one of its bounds, and the best that breaks none is taken. The covariance is that of the linear fit at the
//! minimum, `s^2 (J'J)^-1`, over all parameters, bound or not; intervals are Student's t, cut at the bounds. Laws are
//! compared by the corrected criterion of Akaike (Sugiura 1978; Hurvich and Tsai 1989), `n ln(RSS / n) + 2k +
//! 2k (k + 1) / (n - k - 1)`, where k counts the parameters and the variance of the residuals.

use serde::Serialize;

use super::regression::{Estimate, quadratic, solve};
use super::student::t95;

mod minimum;

/// Relative errors below this are rounding; smaller is not better.
const ROUNDING: f64 = 1e-9;

/// A law whose relative errors have a larger standard deviation does not fit.
const ROUGH: f64 = 0.15;

/// Most parameters of a law.
const MOST: usize = 3;

/// Values of a law's parameters; unused ones are zero.
type Values = [f64; MOST];

/// How throughput or time depends on the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Law {
    /// Every worker adds the same.
    Linear,
    /// A serial part remains.
    Amdahl,
    /// A part does not grow with the workers.
    Gustafson,
    /// Workers queue for shared resources and keep each other up to date.
    Usl,
    /// A fixed time, and one for each unit of work.
    Clock,
}

/// A parameter's name, and its bounds.
type Bounded = (&'static str, f64, f64);

const RATE: Bounded = ("lambda", 0.0, UNBOUNDED);
const SIGMA: Bounded = ("sigma", 0.0, 1.0);
const UNBOUNDED: f64 = f64::INFINITY;

/// Names, formulas and parameters of the laws, in their order.
const LAWS: [(&str, &str, &[Bounded]); 5] = [
    ("linear", "X = lambda N", &[RATE]),
    ("Amdahl", "X = lambda N / (1 + sigma (N - 1))", &[RATE, SIGMA]),
    ("Gustafson", "X = lambda (N - alpha (N - 1))", &[RATE, ("alpha", 0.0, 1.0)]),
    ("USL", "X = lambda N / (1 + sigma (N - 1) + kappa N (N - 1))", &[RATE, SIGMA, ("kappa", 0.0, 1.0)]),
    ("clock", "T = fixed + per_unit x", &[("fixed", 0.0, UNBOUNDED), ("per_unit", 0.0, UNBOUNDED)]),
];

impl Law {
    /// The laws of throughput, which [`best`] chooses from.
    pub const THROUGHPUT: [Self; 4] = [Self::Linear, Self::Amdahl, Self::Gustafson, Self::Usl];

    /// Names and bounds of the parameters.
    fn parameters(self) -> &'static [Bounded] {
        LAWS[self as usize].2
    }

    fn value(self, [a, b, c]: Values, x: f64) -> f64 {
        match self {
            Self::Linear | Self::Amdahl | Self::Usl => a * x / (1.0 + b * (x - 1.0) + c * x * (x - 1.0)),
            Self::Gustafson => a * (x - b * (x - 1.0)),
            Self::Clock => a + b * x,
        }
    }

    /// Derivative with respect to each parameter.
    fn gradient(self, [a, b, c]: Values, x: f64) -> Values {
        match self {
            Self::Linear | Self::Amdahl | Self::Usl => {
                let ratio = x / (1.0 + b * (x - 1.0) + c * x * (x - 1.0));
                [ratio, -a * ratio * ratio * (x - 1.0) / x, -a * ratio * ratio * (x - 1.0)]
            }
            Self::Gustafson => [x - b * (x - 1.0), -a * (x - 1.0), 0.0],
            Self::Clock => [1.0, x, 0.0],
        }
    }
}

/// One measurement: workers and throughput, or work and time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Workers, or units of work.
    pub x: f64,
    /// What was measured there.
    pub y: f64,
}

/// Why no law can be fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Unfit {
    /// Too few measurements for the parameters, or for a comparison.
    #[error("{have} points, {need} needed")]
    TooFewPoints {
        /// Points given.
        have: usize,
        /// Points needed.
        need: usize,
    },
    /// Measured at too few different sizes.
    #[error("points at {have} different sizes, {need} needed")]
    TooFewSizes {
        /// Different sizes given.
        have: usize,
        /// Sizes needed.
        need: usize,
    },
    /// A point that is not a positive number, or has less than one worker.
    #[error("point {index} is not a positive number")]
    BadPoint {
        /// Index of the point.
        index: usize,
    },
    /// No parameters within the bounds fit.
    #[error("no minimum was found")]
    NoMinimum,
}

/// A parameter of a law, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// Its name in the formula.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// Lower end of the interval.
    pub lo: f64,
    /// Upper end of the interval.
    pub hi: f64,
    /// Whether the fit would exceed the bound, so that the value is the bound.
    #[serde(skip)]
    pub at_bound: bool,
}

/// A law fitted to points.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Which law.
    #[serde(skip)]
    pub law: Law,
    /// Its name in reports.
    pub name: &'static str,
    /// Its formula.
    pub formula: &'static str,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// Number of points it was fitted to.
    #[serde(skip)]
    pub points: usize,
    /// Fraction of the variance that it explains; `None` where all measurements are equal.
    pub r2: Option<f64>,
    /// Corrected Akaike criterion, for comparison on the same points; `None` with too few points.
    pub aicc: Option<f64>,
    /// Standard deviation of the relative errors.
    #[serde(skip)]
    pub residual_sd: f64,
    /// Worker count with the highest throughput, `sqrt((1 - s) / k)`; `None` if it never falls.
    #[serde(skip)]
    pub peak: Option<f64>,
    #[serde(skip)]
    values: Values,
    #[serde(skip)]
    inverse: [[f64; MOST]; MOST],
}

impl Fit {
    /// Whether the law is too far from its points to describe them.
    pub fn is_rough(&self) -> bool {
        self.residual_sd > ROUGH
    }

    /// The expected measurement at x, with its 95 % interval.
    pub fn predict(&self, x: f64) -> Estimate {
        let value = self.law.value(self.values, x);
        let variance = value * value + quadratic(&self.inverse, &self.law.gradient(self.values, x));
        let reach = t95(self.points - self.parameters.len()) * self.residual_sd * variance.sqrt();
        let around = Estimate::around(value, reach);
        Estimate { lo: around.lo.max(0.0), ..around }
    }
}

/// Fits a law to points; it needs one more point than it has parameters.
pub fn fit(law: Law, points: &[Point]) -> Result<Fit, Unfit> {
    check(law, points)?;
    let (values, fixed) = minimum::find(law, points).ok_or(Unfit::NoMinimum)?;
    let inverse = match law.parameters().len() {
        1 => invert::<1>(law, points, values),
        2 => invert::<2>(law, points, values),
        _ => invert::<3>(law, points, values),
    };
    let inverse = inverse.ok_or(Unfit::NoMinimum)?;
    let (n, count) = (points.len() as f64, law.parameters().len());
    let squares = minimum::sum_squares(law, points, values);
    let residual_sd = (squares / (n - count as f64)).sqrt();
    let parameter = |(at, &(name, low, high)): (usize, &Bounded)| {
        let around =
            Estimate::around(values[at], t95(points.len() - count) * residual_sd * inverse[at][at].sqrt());
        Parameter {
            name,
            value: around.value,
            lo: around.lo.clamp(low, high),
            hi: around.hi.clamp(low, high),
            at_bound: fixed[at],
        }
    };
    let mean = points.iter().map(|p| p.y).sum::<f64>() / n;
    let total: f64 = points.iter().map(|p| (p.y - mean).powi(2)).sum();
    let rest: f64 = points.iter().map(|p| (p.y - law.value(values, p.x)).powi(2)).sum();
    let k = (count + 1) as f64;
    let correction = (n > k + 1.0).then(|| 2.0 * k + 2.0 * k * (k + 1.0) / (n - k - 1.0));
    Ok(Fit {
        law,
        name: LAWS[law as usize].0,
        formula: LAWS[law as usize].1,
        parameters: law.parameters().iter().enumerate().map(parameter).collect(),
        points: points.len(),
        r2: (total > 0.0).then_some(1.0 - rest / total),
        aicc: correction.map(|c| n * (squares / n).max(ROUNDING * ROUNDING).ln() + c),
        residual_sd,
        peak: (law == Law::Usl && values[2] > 0.0).then(|| ((1.0 - values[1]) / values[2]).sqrt()),
        values,
        inverse,
    })
}

/// The throughput law with the lowest AICc, of those that have one: with five points the USL, which has the most
/// parameters, has none; with fewer points no law does.
pub fn best(points: &[Point]) -> Result<Fit, Unfit> {
    check(Law::Linear, points)?;
    let need = MOST + 2;
    if points.len() < need {
        return Err(Unfit::TooFewPoints { have: points.len(), need });
    }
    let have = count_sizes(points);
    if have < MOST {
        // Two sizes fit two laws equally well.
        return Err(Unfit::TooFewSizes { have, need: MOST });
    }
    let fits = Law::THROUGHPUT.iter().filter_map(|&law| fit(law, points).ok());
    let lowest = |a: &Fit, b: &Fit| a.aicc.partial_cmp(&b.aicc).unwrap_or(std::cmp::Ordering::Equal);
    fits.filter(|fit| fit.aicc.is_some()).min_by(lowest).ok_or(Unfit::NoMinimum)
}

fn check(law: Law, points: &[Point]) -> Result<(), Unfit> {
    let least = if law == Law::Clock { f64::MIN_POSITIVE } else { 1.0 };
    let good = |p: &Point| p.x.is_finite() && p.y.is_finite() && p.x >= least && p.y >= f64::MIN_POSITIVE;
    if let Some(index) = points.iter().position(|p| !good(p)) {
        return Err(Unfit::BadPoint { index });
    }
    let count = law.parameters().len();
    if points.len() <= count {
        return Err(Unfit::TooFewPoints { have: points.len(), need: count + 1 });
    }
    let have = count_sizes(points);
    if have < count { Err(Unfit::TooFewSizes { have, need: count }) } else { Ok(()) }
}

fn count_sizes(points: &[Point]) -> usize {
    let mut sizes: Vec<f64> = points.iter().map(|p| p.x).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    sizes.len()
}

/// `(J'J)^-1` of the relative errors over the first K parameters, zero beyond.
fn invert<const K: usize>(law: Law, points: &[Point], values: Values) -> Option<[[f64; MOST]; MOST]> {
    let row = |p: &Point| -> [f64; K] {
        let gradient = law.gradient(values, p.x);
        std::array::from_fn(|k| gradient[k] / p.y)
    };
    let (_, inverse) = solve(&points.iter().map(row).collect::<Vec<_>>(), &vec![0.0; points.len()])?;
    let inside = |i: usize, j: usize| if i < K && j < K { inverse[i][j] } else { 0.0 };
    Some(std::array::from_fn(|i| std::array::from_fn(|j| inside(i, j))))
}

#[cfg(test)]
mod tests;
