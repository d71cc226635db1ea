//! Speed-ups over one worker, and how the measures reconcile.
//!
//! ```text
//! speedup_speed(N) = images_per_s.mean(N) / images_per_s.mean(1)
//! speedup_time(N)  = (train_s(1) / examples(1)) / (train_s(N) / examples(N)),   speedup_total with total_s
//! efficiency       = speed-up / N
//! speedup_time(N)  = speedup_speed(N) * s(N) / s(1),   s = examples / (images_per_s.mean * train_s)
//! ```
//!
//! `s` is the fraction of the training time that ran at the steady rate. It explains why the two measures differ. The rest
//! of the time is warm-up, evaluation and checkpoints.

use serde::Serialize;

/// The numbers of a case that speed-ups are computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Worker processes.
    pub workers: u32,
    /// Samples that all workers saw together.
    pub examples: u64,
    /// The steady rate.
    pub images_per_s: f64,
    /// Begin of the first step to end of the last.
    pub train_s: f64,
    /// Part of `train_s` spent on evaluation and checkpoints.
    pub paused_s: f64,
    /// First spawn to last reap; `None` if only a window of the run is known.
    pub total_s: Option<f64>,
}

impl Pace {
    /// Fraction of the training time that ran at the steady rate.
    pub fn steady_fraction(&self) -> f64 {
        self.examples as f64 / (self.images_per_s * self.train_s)
    }
}

/// The measures of one speed-up, and the two fractions that turn one into the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speedup {
    /// Worker processes.
    pub workers: u32,
    /// By images per second.
    pub speed: f64,
    /// By training time.
    pub time: f64,
    /// By the time of the whole run; `None` if unknown.
    pub total: Option<f64>,
    /// `s(N)`: fraction of the training time that ran at the steady rate.
    #[serde(rename = "steady_share")]
    pub steady_fraction: f64,
    /// `s(1)`: the same for one worker.
    #[serde(rename = "steady_share_one")]
    pub steady_fraction_one: f64,
}

/// The speed-ups of a case over its one-worker case.
pub fn speedup(case: &Pace, one: &Pace) -> Speedup {
    let per_example = |seconds: f64, pace: &Pace| seconds / pace.examples as f64;
    Speedup {
        workers: case.workers,
        speed: case.images_per_s / one.images_per_s,
        time: per_example(one.train_s, one) / per_example(case.train_s, case),
        total: case
            .total_s
            .zip(one.total_s)
            .map(|(many_s, one_s)| per_example(one_s, one) / per_example(many_s, case)),
        steady_fraction: case.steady_fraction(),
        steady_fraction_one: one.steady_fraction(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn the_two_measures_reconcile_exactly(
            rates in (1.0f64..1e5, 1.0f64..1e5),
            train in (0.01f64..1e4, 0.01f64..1e4),
            examples in (1u64..1_000_000, 1u64..1_000_000),
        ) {
            let pace = |workers, examples, images_per_s, train_s| Pace {
                workers, examples, images_per_s, train_s, paused_s: 0.0, total_s: Some(train_s + 1.0),
            };
            let s = speedup(&pace(8, examples.0, rates.0, train.0), &pace(1, examples.1, rates.1, train.1));
            let product = s.speed * s.steady_fraction / s.steady_fraction_one;
            proptest::prop_assert!((product / s.time - 1.0).abs() < 1e-12);
        }
    }
}
