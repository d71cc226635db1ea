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
//!
//! Intervals cover the uncertainty of both sides. That of `speedup_speed` comes from a bootstrap of both rates. The time of an
//! example by the clock is as uncertain as the steady rate makes it: `t + 1/rate.lo - 1/rate.mean` at most; what comes once a
//! run, as start-up, counts as it was. The distances of both sides are added in quadrature, as logarithms.

use serde::Serialize;

use super::rate::Rate;

/// A 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub lo: f64,
    /// Upper end.
    pub hi: f64,
}

impl Interval {
    /// The interval of a value that is this one's over a number.
    pub fn over(self, divisor: f64) -> Self {
        Self { lo: self.lo / divisor, hi: self.hi / divisor }
    }
}

/// How many seconds an example took by a clock, and the rate that makes this uncertain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clocked {
    /// Seconds per example.
    pub seconds: f64,
    /// The steady rate.
    pub rate: Rate,
}

impl Clocked {
    /// Its interval, as factors of it.
    fn spread(&self) -> Option<Interval> {
        let Rate { mean, lo: Some(lo), hi: Some(hi), .. } = self.rate else { return None };
        let part = |rate: f64| 1.0 + (1.0 / rate - 1.0 / mean) / self.seconds;
        let spread = Interval { lo: part(hi), hi: part(lo) };
        (spread.lo > 0.0 && spread.hi.is_finite()).then_some(spread)
    }
}

/// The interval of a speed-up by the clock; `None` where a rate has none.
pub fn clock_interval(case: &Clocked, one: &Clocked) -> Option<Interval> {
    let (many, alone) = (case.spread()?, one.spread()?);
    let ratio = one.seconds / case.seconds;
    let below = alone.lo.ln().hypot(many.hi.ln());
    let above = alone.hi.ln().hypot(many.lo.ln());
    Some(Interval { lo: ratio * (-below).exp(), hi: ratio * above.exp() })
}

/// The numbers of a case that speed-ups are computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Worker processes.
    pub workers: u32,
    /// Samples that all workers saw together; `None` if only their rate is known.
    pub examples: Option<u64>,
    /// The steady rate.
    pub images_per_s: f64,
    /// Begin of the first step to end of the last.
    pub train_s: Option<f64>,
    /// Part of `train_s` spent on evaluation and checkpoints.
    pub paused_s: Option<f64>,
    /// First spawn to last reap; `None` if only a window of the run is known.
    pub total_s: Option<f64>,
}

impl Pace {
    /// Fraction of the training time that ran at the steady rate.
    pub fn steady_fraction(&self) -> Option<f64> {
        self.per_example(self.train_s).map(|seconds| 1.0 / (self.images_per_s * seconds))
    }

    /// Seconds of an example, of those of all.
    pub fn per_example(&self, seconds: Option<f64>) -> Option<f64> {
        Some(seconds? / self.examples? as f64)
    }
}

/// The measures of one speed-up, and the two fractions that turn one into the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speedup {
    /// Worker processes.
    pub workers: u32,
    /// By images per second.
    pub speed: f64,
    /// By training time; `None` if unknown.
    pub time: Option<f64>,
    /// By the time of the whole run; `None` if unknown.
    pub total: Option<f64>,
    /// `s(N)`: fraction of the training time that ran at the steady rate.
    #[serde(rename = "steady_share")]
    pub steady_fraction: Option<f64>,
    /// `s(1)`: the same for one worker.
    #[serde(rename = "steady_share_one")]
    pub steady_fraction_one: Option<f64>,
}

/// The speed-ups of a case over its one-worker case.
pub fn speedup(case: &Pace, one: &Pace) -> Speedup {
    let ratio = |of: fn(&Pace) -> Option<f64>| Some(one.per_example(of(one))? / case.per_example(of(case))?);
    Speedup {
        workers: case.workers,
        speed: case.images_per_s / one.images_per_s,
        time: ratio(|pace| pace.train_s),
        total: ratio(|pace| pace.total_s),
        steady_fraction: case.steady_fraction(),
        steady_fraction_one: one.steady_fraction(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocked(seconds: f64, half: f64) -> Clocked {
        let (mean, lo, hi) = (100.0, Some(100.0 - half), Some(100.0 + half));
        Clocked { seconds, rate: Rate { median: mean, mean, lo, hi } }
    }

    #[test]
    fn a_speed_up_by_the_clock_is_as_uncertain_as_both_rates_make_it() {
        let interval = |many, one| clock_interval(&many, &one).expect("rates with intervals");
        // All time at the steady rate: the interval is that of the rate.
        let one_sided = interval(clocked(0.01, 5.0), clocked(0.01, 0.0));
        assert!((one_sided.lo - 0.95).abs() < 1e-9 && (one_sided.hi - 1.05).abs() < 1e-9, "{one_sided:?}");
        let both = interval(clocked(0.01, 5.0), clocked(0.01, 5.0));
        assert!(both.lo < one_sided.lo && both.hi > one_sided.hi, "{both:?}");
        // Half of the time comes once a run: the rate moves only the other half.
        let half = interval(clocked(0.02, 5.0), clocked(0.02, 0.0));
        assert!(half.lo > 0.973 && half.hi < 1.025, "{half:?}");
        let unknown = Rate { lo: None, ..clocked(0.01, 5.0).rate };
        assert_eq!(clock_interval(&Clocked { seconds: 0.01, rate: unknown }, &clocked(0.01, 5.0)), None);
    }

    proptest::proptest! {
        #[test]
        fn the_two_measures_reconcile_exactly(
            rates in (1.0f64..1e5, 1.0f64..1e5),
            train in (0.01f64..1e4, 0.01f64..1e4),
            examples in (1u64..1_000_000, 1u64..1_000_000),
        ) {
            let pace = |workers, examples, images_per_s, train_s| Pace {
                workers, examples: Some(examples), images_per_s, train_s: Some(train_s), paused_s: Some(0.0), total_s: Some(train_s + 1.0),
            };
            let s = speedup(&pace(8, examples.0, rates.0, train.0), &pace(1, examples.1, rates.1, train.1));
            let parts = s.steady_fraction.zip(s.steady_fraction_one).zip(s.time);
            let ((many, one), time) = parts.expect("all times are known");
            proptest::prop_assert!((s.speed * many / one / time - 1.0).abs() < 1e-12);
        }
    }
}
