//! Scaling laws fitted to a group of cases that differ only in workers; [`crate::stats::laws`] has the formulas.
//!
//! Throughput laws describe `images_per_s.mean` as a function of workers. The clock law describes `total_s` as a function
//! of examples per worker: its constant is the time that does not shrink with N.

use serde::Serialize;

use crate::CaseReport;
use crate::stats;
use crate::stats::laws::{self, Fit, Point, Unfit};
use crate::stats::regression::Estimate;

/// Segments of a law's curve.
const CURVE: u32 = 48;

/// A fitted law.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Law {
    /// The fit.
    #[serde(flatten)]
    pub fit: Fit,
    /// The curve, for plots: workers and images/s (throughput laws only).
    pub curve: Vec<(f64, f64)>,
}

/// A law's prediction for more workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Worker processes.
    pub workers: u32,
    /// Images per second.
    pub images_per_s: f64,
    /// Lower end of the 95 % interval.
    pub lo: f64,
    /// Upper end.
    pub hi: f64,
}

/// The laws of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Laws {
    /// Throughput laws with enough points, in the order linear, Amdahl, Gustafson, USL.
    pub throughput: Vec<Law>,
    /// Name of the law with the lowest AICc, if it fits the points.
    pub best: Option<String>,
    /// Name of the law with the lowest AICc, if it does not fit the points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rough: Option<String>,
    /// Why there is no best law.
    pub unfit: Option<Unfit>,
    /// The clock law: `total_s` as a function of x, the examples per worker.
    pub clock: Option<Law>,
    /// Worker count with the highest throughput by the USL.
    pub peak_workers: Option<f64>,
    /// The best law's prediction for twice the largest measured worker count.
    pub next: Option<Forecast>,
}

/// Fits all laws to the finished cases. For throughput each repeat is a point, for the clock each case.
pub fn fit(cases: &[&CaseReport]) -> Laws {
    // Where members came and went, a case has no one number of workers.
    let known = |case: &&&CaseReport| case.pace().is_some() && !case.has_changed();
    let done: Vec<&&CaseReport> = cases.iter().filter(known).collect();
    let throughput_of = |case: &&&CaseReport| -> Vec<Point> {
        let rates = case.steady_steps.iter().filter_map(|steps| stats::rate(steps));
        rates.map(|y| Point { x: f64::from(case.case.workers), y }).collect()
    };
    let clock_of = |case: &&&CaseReport| {
        let pace = case.pace()?;
        Some(Point { x: pace.examples? as f64 / f64::from(pace.workers), y: pace.total_s? })
    };
    let points: Vec<Point> = done.iter().flat_map(throughput_of).collect();
    let times: Vec<Point> = done.iter().filter_map(clock_of).collect();
    let most = done.iter().map(|case| case.case.workers).max().unwrap_or(0);
    let best = laws::best(&points);
    let fits: Vec<Fit> =
        laws::Law::THROUGHPUT.into_iter().filter_map(|law| laws::fit(law, &points).ok()).collect();
    Laws {
        peak_workers: fits.iter().find_map(|fit| fit.peak),
        unfit: best.as_ref().err().copied().filter(|_| done.len() > 1),
        next: best.as_ref().ok().filter(|fit| !fit.is_rough()).map(|fit| forecast(fit, 2 * most)),
        rough: best.as_ref().ok().filter(|fit| fit.is_rough()).map(|fit| fit.name.into()),
        best: best.ok().filter(|fit| !fit.is_rough()).map(|fit| fit.name.into()),
        throughput: fits.into_iter().map(|fit| Law { curve: curve(&fit, most), fit }).collect(),
        clock: laws::fit(laws::Law::Clock, &times).ok().map(|fit| Law { fit, curve: Vec::new() }),
    }
}

/// A smooth line over the measured range and on to twice as many workers.
fn curve(fit: &Fit, most: u32) -> Vec<(f64, f64)> {
    let places = (0..=CURVE).map(|at| 1.0 + (2.0 * f64::from(most) - 1.0) * f64::from(at) / f64::from(CURVE));
    places.map(|workers| (workers, fit.predict(workers).value)).collect()
}

fn forecast(fit: &Fit, workers: u32) -> Forecast {
    let Estimate { value, lo, hi } = fit.predict(f64::from(workers));
    Forecast { workers, images_per_s: value, lo, hi }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Plan;

    fn cases(plans: impl Iterator<Item = Plan>) -> Vec<CaseReport> {
        plans.map(|plan| CaseReport::of(&[plan.run()])).collect()
    }

    #[test]
    fn a_fixed_cost_is_found_if_the_work_is_divided() {
        let plan = |workers: u32| Plan {
            steps: u64::from(960 / workers),
            init: 5000.0,
            slow_steps: 0,
            late: 0.0,
            transfer: 0.0,
            ..Plan::calm("resnet50", workers)
        };
        let cases = cases([1, 2, 4, 8, 16].into_iter().map(plan));
        let laws = fit(&cases.iter().collect::<Vec<_>>());
        let clock = laws.clock.expect("five points");
        assert!((clock.fit.parameters[0].value - 5.013).abs() < 0.05, "{clock:?}");
        assert_eq!(laws.best.as_deref(), Some("linear"), "steps are as fast at any number of workers");
        let next = laws.next.expect("a law");
        let one = cases[0].images_per_s.expect("done").mean;
        assert_eq!(next.workers, 32);
        assert!((next.images_per_s / one - 32.0).abs() < 0.5, "{next:?}");
    }

    #[test]
    fn a_law_that_misses_the_points_is_not_the_best() {
        let plan = |workers: u32| Plan {
            // Steps take ten times as long at every other worker count.
            compute: if workers.ilog2().is_multiple_of(2) { 90.0 } else { 900.0 },
            ..Plan::calm("resnet50", workers)
        };
        let cases = cases([1, 2, 4, 8, 16].into_iter().map(plan));
        let laws = fit(&cases.iter().collect::<Vec<_>>());
        assert_eq!((&laws.best, &laws.next), (&None, &None));
        let said = crate::words::laws(&laws);
        assert!(laws.rough.is_some() && said[0].starts_with("no scaling law fits"), "{said:?}");
    }

    #[test]
    fn two_worker_counts_are_too_few_for_a_law_and_one_is_not_mentioned() {
        let two = cases([1, 2].into_iter().map(|workers| Plan::calm("resnet50", workers)));
        let laws = fit(&two.iter().collect::<Vec<_>>());
        assert_eq!((laws.best, laws.next), (None, None));
        assert_eq!(laws.unfit, Some(Unfit::TooFewPoints { have: 2, need: 5 }));
        assert_eq!(fit(&[&two[0]]).unfit, None);
    }
}
