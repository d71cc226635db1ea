//! Threads that could have run, and were not on a core.

use super::{Finding, Kind, Loss, Member, NOTABLE};
use crate::numbers::off_core::OffCore;
use crate::numbers::waterfall::Cause;
use crate::{Straggler, stats, words};

/// A reason is named if it covers at least this fraction of the time off the core.
const COVERS: f64 = 0.5;

impl Member<'_> {
    pub(super) fn off_core(&self) -> Option<Finding> {
        let told = self.case.off_core.as_ref()?;
        let Some(loss) = self.loss(Cause::OffCore).filter(|loss| loss.fraction >= NOTABLE) else {
            return self.stolen(told);
        };
        let covers = |part: Option<f64>| part.is_some_and(|part| part >= COVERS * told.seconds);
        let crowd = self.crowd();
        let (why, advice) = if covers(told.throttled_s) {
            (
                "; the quota of a control group stopped them".into(),
                "give the control group more processor time (cpu.max), or use fewer workers or threads",
            )
        } else if let Some((threads, cores)) = crowd {
            (
                format!("; {threads} threads of the run itself share {cores} cores"),
                "use fewer workers or threads",
            )
        } else if covers(told.queued_s) {
            (
                "; other threads had their cores".into(),
                "end what else runs on these cores and measure again: these times say little about the network or the strategy",
            )
        } else {
            (String::new(), "look for other work on these cores, a quota, and pages that come from a disk")
        };
        let whom = self.spends("ready to run, but not on a core", loss);
        Some(self.finding(Kind::OffCore, format!("{whom}{why}"), advice.into(), Some(loss)))
    }

    /// How much longer than a typical rank the late one was not on a core, if that explains most of the waiting for it.
    pub(super) fn kept_off(&self, late: &Straggler, waited: Loss) -> Option<f64> {
        let ranks = self.case.ranks.as_ref()?;
        let own = ranks.iter().find(|rank| rank.who == late.who)?.off_core_s?;
        let others = ranks.iter().filter(|rank| rank.who != late.who);
        let others: Vec<f64> = others.map(|rank| rank.off_core_s).collect::<Option<_>>()?;
        let more = own - stats::median(&others)?;
        // All others wait as long as it is late.
        let delay = late.fraction * waited.seconds / others.len() as f64;
        (more >= COVERS * delay).then_some(more)
    }

    /// More threads than cores: their numbers.
    pub(super) fn crowd(&self) -> Option<(u32, u32)> {
        let cores = self.study.machine.cores?;
        let threads = self.case.case.workers.checked_mul(self.case.case.threads?)?;
        let real = self.case.case.engine.as_deref() == Some("cpu");
        (real && threads > cores).then_some((threads, cores))
    }

    /// What the hypervisor took. Where a guest's clocks count it as computing, no phase shows it.
    fn stolen(&self, told: &OffCore) -> Option<Finding> {
        let time = self.workers() * self.case.train_s?;
        let fraction = told.steal_s? / time;
        let loss = Loss { seconds: told.steal_s?, fraction };
        (fraction >= NOTABLE).then(|| {
            let text = format!(
                "with {}, the hypervisor took {:.0} % of the time of their cores{}",
                words::workers(self.case.case.workers),
                100.0 * fraction,
                self.seconds(loss.seconds, 1)
            );
            let advice = "other machines share this host: measure again, or on a host of your own";
            self.finding(Kind::OffCore, text, advice.into(), Some(loss))
        })
    }
}
