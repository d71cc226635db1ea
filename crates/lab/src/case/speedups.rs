//! A case compared with one worker.

use super::CaseReport;
use crate::numbers::SEED;
use crate::numbers::speedup::{self, Clocked, Interval, Pace, Speedup};
use crate::stats::{self, Ratio, Work};

impl CaseReport {
    /// What its speed-ups are computed from; `None` if it has no rate.
    pub fn pace(&self) -> Option<Pace> {
        Some(Pace {
            workers: self.case.workers,
            examples: self.examples,
            images_per_s: self.images_per_s?.mean,
            train_s: self.train_s,
            paused_s: self.paused_s,
            total_s: self.total_s,
        })
    }

    /// Fills in the speed-ups over a one-worker case.
    pub(crate) fn compare(&mut self, one: &Self) -> Option<Speedup> {
        let speedup = speedup::speedup(&self.pace()?, &one.pace()?);
        let workers = self.workers_on_average();
        self.speedup_speed = Some(speedup.speed);
        self.speedup_time = speedup.time;
        self.speedup_total = speedup.total;
        self.efficiency_speed = Some(speedup.speed / workers);
        self.efficiency_time = speedup.time.map(|time| time / workers);
        // One worker compared with itself is exactly as fast.
        if self.case.workers > 1 {
            self.speedup_speed_interval = self.speed_interval(one);
            self.speedup_time_interval = self.clock_interval(one, |pace| pace.train_s);
            self.speedup_total_interval = self.clock_interval(one, |pace| pace.total_s);
            self.efficiency_speed_interval =
                self.speedup_speed_interval.map(|interval| interval.over(workers));
            self.efficiency_time_interval = self.speedup_time_interval.map(|interval| interval.over(workers));
        }
        Some(speedup)
    }

    fn speed_interval(&self, one: &Self) -> Option<Interval> {
        let many: Vec<&[Work]> = self.steady_steps.iter().map(Vec::as_slice).collect();
        let alone: Vec<&[Work]> = one.steady_steps.iter().map(Vec::as_slice).collect();
        stats::bootstrap_ratio(&many, &alone, SEED).map(|Ratio { lo, hi, .. }| Interval { lo, hi })
    }

    fn clock_interval(&self, one: &Self, of: fn(&Pace) -> Option<f64>) -> Option<Interval> {
        let clocked = |case: &Self| {
            let pace = case.pace()?;
            Some(Clocked { seconds: pace.per_example(of(&pace))?, rate: case.images_per_s? })
        };
        speedup::clock_interval(&clocked(self)?, &clocked(one)?)
    }
}
