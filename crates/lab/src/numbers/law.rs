//! Scaling laws fitted to a group of cases that differ only in workers; [`crate::stats::laws`] has the formulas.
//!
//! Throughput laws describe `images_per_s.mean` against workers. The clock law describes `total_s` against examples over
//! workers: its constant is what does not shrink with N.

use serde::Serialize;

use super::speedup::Pace;

/// A parameter of a law, with its 95 % interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// Its name in the formula.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Lower end; `None` where there are no more points than parameters.
    pub lo: Option<f64>,
    /// Upper end.
    pub hi: Option<f64>,
}

/// A fitted law.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Law {
    /// Its name.
    pub name: String,
    /// Its formula.
    pub formula: String,
    /// What was fitted.
    pub parameters: Vec<Parameter>,
    /// Part of the variance that it explains.
    pub r2: Option<f64>,
    /// Corrected Akaike information criterion: less is better; `None` with too few points.
    pub aicc: Option<f64>,
    /// The curve, for plots: workers and images/s (throughput laws only).
    pub curve: Vec<(f64, f64)>,
}

/// What a law says of more workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// How many.
    pub workers: u32,
    /// Images a second.
    pub images_per_s: f64,
    /// Lower end of the 95 % interval.
    pub lo: Option<f64>,
    /// Upper end.
    pub hi: Option<f64>,
}

/// Points that there are, and that would be needed to choose between laws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TooFew {
    /// Numbers of workers that were measured.
    pub have: usize,
    /// Numbers of workers that it takes.
    pub need: usize,
}

/// The laws of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Laws {
    /// Fits of the throughput, in the order Amdahl, Gustafson, USL.
    pub throughput: Vec<Law>,
    /// Name of the one that fits best.
    pub best: Option<String>,
    /// Why there is no best one.
    pub too_few: Option<TooFew>,
    /// Fit of the clock: T = a + b * examples / N.
    pub clock: Option<Law>,
    /// Workers at which the throughput is highest, by the USL.
    pub peak_workers: Option<f64>,
    /// Twice as many workers as were measured, by the best law.
    pub next: Option<Forecast>,
}

/// Fits all laws.
pub fn fit(_paces: &[Pace]) -> Laws {
    Laws::default()
}
