//! What the times of the steps look like: too few, slower and slower, scattered, uncertain.

use super::{Finding, Kind, Loss, Member, NOTABLE};
use crate::numbers::steady::{Slowdown, Steady};
use crate::stats::steady::Verdict;

/// From this factor on, it is told how much longer than the median the slowest twentieth of the steps takes.
const TAIL: f64 = 1.1;

/// A rate is reported as uncertain if half the width of its interval exceeds this fraction of it.
const UNCERTAIN: f64 = 0.05;

impl Member<'_> {
    /// Whether a run has too few steps to say anything about them. A window of a run is what its reader chose to look at.
    pub(super) fn has_few_steps(&self) -> bool {
        let short = |steady: Steady| steady.verdict == Verdict::TooShort && steady.points.is_none();
        self.case.steady.is_some_and(short) && !self.case.is_window()
    }

    /// Whether no steady state was found.
    pub(super) fn is_unsettled(&self) -> bool {
        self.case.steady.is_some_and(|steady| steady.verdict == Verdict::NoSteadyState)
    }

    pub(super) fn few_steps(&self) -> Option<Finding> {
        self.has_few_steps().then(|| {
            let steps = self.case.steps;
            let count = if steps == 1 { "1 step is".to_owned() } else { format!("{steps} steps are") };
            let text = format!("with {}, {count} too few to say where their time goes", self.worker_count());
            let finding = self.finding(Kind::FewSteps, text, self.program().more_steps().into(), None);
            Finding { size: -(steps as f64), ..finding }
        })
    }

    pub(super) fn noisy(&self) -> Option<Finding> {
        self.case.steady.filter(|steady| steady.verdict == Verdict::Noisy)?;
        let spread = self.case.dispersion?;
        let cv = spread.cv?;
        let tail = spread.p95_s / spread.p50_s;
        let often = match tail >= TAIL {
            true => format!(" (one in twenty takes at least {tail:.1} times the median)"),
            false => String::new(),
        };
        let text = format!("with {}, step times vary by {:.0} %{often}", self.worker_count(), 100.0 * cv);
        let finding = self.finding(Kind::Noisy, text, self.program().unsteady().into(), None);
        Some(Finding { size: cv, ..finding })
    }

    pub(super) fn slowdown(&self) -> Option<Finding> {
        let steady = self.case.steady.filter(|steady| steady.verdict == Verdict::Slowdown)?;
        let Slowdown { from_step, compared_steps, factor, lost_s } = steady.slowdown?;
        let (lost_s, train_s) = lost_s.zip(self.case.train_s)?;
        let seconds = self.workers() * lost_s;
        let loss = Loss { seconds, fraction: lost_s / train_s };
        if loss.fraction < NOTABLE {
            return None;
        }
        let text = format!(
            "with {}, steps take {:.0} % longer from step {from_step} on than in the {compared_steps} steps before \
             ({seconds:.1} worker-seconds)",
            self.worker_count(),
            100.0 * (factor - 1.0)
        );
        let advice = self.program().slowdown(self.case.repeats);
        Some(self.finding(Kind::Slowdown, text, advice.into(), Some(loss)))
    }

    pub(super) fn no_steady_state(&self) -> Option<Finding> {
        self.case.steady.filter(|steady| steady.verdict == Verdict::NoSteadyState)?;
        let text = format!(
            "with {}, step times do not settle on one level, and the rate averages over several",
            self.worker_count()
        );
        let advice = self.program().unsteady();
        Some(self.finding(Kind::NoSteadyState, text, advice.into(), None))
    }

    pub(super) fn uncertain(&self) -> Option<Finding> {
        let rate = self.case.images_per_s?;
        let half = (rate.hi? - rate.lo?) / 2.0 / rate.mean;
        (half > UNCERTAIN).then(|| {
            let text = format!(
                "with {}, images/s is known only to within {:.0} % (95 % interval)",
                self.worker_count(),
                100.0 * half
            );
            let advice = self.program().uncertain(self.case.repeats);
            Finding { size: half, ..self.finding(Kind::Uncertain, text, advice.into(), None) }
        })
    }
}
