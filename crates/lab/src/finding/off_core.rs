//! Threads that could have run, and were not on a core.

use super::advice::{Program, is_on_host};
use super::{Finding, Kind, Loss, Member, NOTABLE};
use crate::numbers::off_core::OffCore;
use crate::numbers::waterfall::Cause;
use crate::{Straggler, stats, words};

/// A reason is named if it covers at least this fraction of the time off the core.
const COVERS: f64 = 0.5;

const SHARED_HOST: &str = "other machines share this host: measure again, or on a host of your own";

const SIMULATED: &str =
    "the simulated machine takes its workers off their cores: off_core of --simulate says by how much";

impl Member<'_> {
    pub(super) fn off_core(&self) -> Option<Finding> {
        let told = self.case.off_core.as_ref()?;
        let Some(loss) = self.loss_from(NOTABLE, Cause::OffCore) else {
            return self.stolen(told);
        };
        let covers = |part: Option<f64>| part.is_some_and(|part| part >= COVERS * told.seconds);
        let (why, advice) = if self.program() == Program::Simulated {
            (String::new(), SIMULATED)
        } else if covers(told.throttled_s) {
            (
                "; the quota of a control group was used up".into(),
                "give the control group more processor time (cpu.max), or use fewer workers or threads",
            )
        } else if let Some((threads, cores)) = self.crowd() {
            let (threads, cores) = (words::threads(threads), words::cores(cores));
            (format!("; {threads} of the run itself share {cores}"), "use fewer workers or threads")
        } else if covers(told.porter_s) {
            (
                "; the porter of their host ran there".into(),
                "leave the porter a core (fewer workers or threads on each host), or have it move less: a larger batch, gradient \
                 accumulation, compressed gradients",
            )
        } else if covers(told.queued_s) {
            (
                "; other threads ran there".into(),
                "end what else runs on these cores and measure again: these times say little about the network or the strategy",
            )
        } else if covers(told.steal_s) {
            (String::new(), SHARED_HOST)
        } else {
            (String::new(), "look for other work on these cores, a quota, and pages that come from a disk")
        };
        let whom = self.spends(&format!("kept off {}", self.its_cores()), loss);
        let stolen = self.stolen_time(told).map_or_else(String::new, |stolen| {
            format!(
                "; the hypervisor took {:.0} % of the time of {}",
                100.0 * stolen.fraction,
                self.its_cores()
            )
        });
        Some(self.finding(Kind::OffCore, format!("{whom}{why}{stolen}"), advice.into(), Some(loss)))
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

    /// More threads than cores: their numbers. A quota is no number of cores: threads that it stops are not taking turns.
    pub(super) fn crowd(&self) -> Option<(u32, u32)> {
        let cores = self.case.load.map(|load| load.cores).or(self.study.machine.cores)?;
        // Cores are counted on the first host.
        let workers = match self.case.hosts.iter().flatten().next() {
            Some(first) => first.workers?,
            None => self.case.case.workers,
        };
        let threads = workers.checked_mul(self.case.case.threads?)?;
        let real = match self.case.case.engine.as_deref() {
            Some("pytorch") => is_on_host(&self.case.case),
            engine => engine == Some("cpu"),
        };
        (real && threads > cores).then_some((threads, cores))
    }

    fn its_cores(&self) -> &'static str {
        match (self.case.case.workers, self.case.case.threads) {
            (1, None | Some(1)) => "its core",
            (1, _) => "its cores",
            _ => "their cores",
        }
    }

    /// What the hypervisor took, if it is notable. Where a guest's clocks count it as computing, no phase shows it.
    fn stolen_time(&self, told: &OffCore) -> Option<Loss> {
        let seconds = told.steal_s?;
        let loss = Loss { seconds, fraction: seconds / (self.workers() * self.case.train_s?) };
        (loss.fraction >= NOTABLE).then_some(loss)
    }

    fn stolen(&self, told: &OffCore) -> Option<Finding> {
        let loss = self.stolen_time(told)?;
        let text = format!(
            "with {}, the hypervisor took {:.0} % of the time of {} ({:.1} worker-seconds)",
            self.worker_count(),
            100.0 * loss.fraction,
            self.its_cores(),
            loss.seconds
        );
        Some(self.finding(Kind::OffCore, text, SHARED_HOST.into(), Some(loss)))
    }
}

#[cfg(test)]
mod tests {
    use paceline_record::{Load, Nanos, Phase, PhaseTimes, Scheduling};

    use super::OffCore;
    use crate::fixture::{MS, Plan, study};
    use crate::{CaseReport, Finding, Kind, Report};

    /// Two workers with a thread each that are off their cores for 40 ms of each step.
    fn disturbed() -> CaseReport {
        let mut run = Plan::calm("resnet50", 2).run();
        for step in run.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
            let mut off = PhaseTimes::default();
            off[Phase::Backward] = Nanos(40 * MS);
            step.scheduling = Some(Box::new(Scheduling { off_core: Some(off), ..Scheduling::default() }));
        }
        CaseReport::of(&[run])
    }

    /// What is found on a machine that a quota makes look like this many cores.
    fn found(case: CaseReport, cores: u32) -> Vec<Finding> {
        let mut study = study(std::slice::from_ref(&case.case));
        study.machine.cores = Some(cores);
        Report::new(&study, vec![case]).findings
    }

    fn off_core(findings: &[Finding]) -> &Finding {
        findings.iter().find(|finding| finding.kind == Kind::OffCore).expect("40 ms of each step")
    }

    #[test]
    fn a_quota_is_no_number_of_cores() {
        let mut case = disturbed();
        case.load =
            Some(Load { cores: 2, busy_cores: Some(2.0), stolen_cores: Some(0.0), quota_cores: Some(1.2) });
        let told = case.off_core.as_mut().expect("it is told");
        (told.queued_s, told.throttled_s) = (Some(told.seconds), Some(0.0));
        let findings = found(case, 1);
        let text = &off_core(&findings).text;
        assert!(text.ends_with("; other threads ran there"), "{text}");
        assert!(findings.iter().all(|finding| finding.kind != Kind::Crowded), "{findings:?}");
    }

    #[test]
    fn one_core_is_not_several() {
        let findings = found(disturbed(), 1);
        let text = &off_core(&findings).text;
        assert!(text.ends_with("; 2 threads of the run itself share 1 core"), "{text}");
        let crowded = findings.iter().find(|finding| finding.kind == Kind::Crowded).expect("two on one");
        assert!(crowded.text.ends_with("2 threads took turns on 1 core"), "{}", crowded.text);
    }

    #[test]
    fn what_the_hypervisor_took_is_told_beside_other_reasons() {
        let mut case = disturbed();
        let time = 2.0 * case.train_s.expect("it is done");
        let told = case.off_core.as_mut().expect("it is told");
        (told.queued_s, told.steal_s) = (Some(told.seconds), Some(0.09 * time));
        let findings = found(case, 2);
        let both = "; other threads ran there; the hypervisor took 9 % of the time of their cores";
        assert!(off_core(&findings).text.ends_with(both), "{}", off_core(&findings).text);
    }

    #[test]
    fn one_worker_has_a_core_of_its_own() {
        let mut case = CaseReport::of(&[Plan::calm("resnet50", 1).run()]);
        let time = case.train_s.expect("it is done");
        case.off_core = disturbed().off_core.map(|told| OffCore { steal_s: Some(0.09 * time), ..told });
        let text = off_core(&found(case, 2)).text.clone();
        assert!(text.contains("the hypervisor took 9 % of the time of its core"), "{text}");
    }

    #[test]
    fn a_group_has_one_counter_of_throttling_however_many_ranks_read_it() {
        let mut run = Plan::calm("resnet50", 2).run();
        let steps = run.ranks[0].steps.len() as f64;
        for step in run.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
            let (off_core, throttled) = (Some(PhaseTimes::default()), Some(Nanos(5 * MS)));
            step.scheduling = Some(Box::new(Scheduling { off_core, throttled, ..Scheduling::default() }));
        }
        let told = CaseReport::of(&[run]).off_core.expect("every step tells");
        assert!((told.throttled_s.expect("a quota") - 0.005 * steps).abs() < 1e-9, "{told:?}");
    }

    #[test]
    fn nothing_else_runs_on_a_simulated_machine() {
        let mut case = disturbed();
        case.case.engine = Some("simulated".into());
        let told = case.off_core.as_mut().expect("it is told");
        told.queued_s = Some(told.seconds);
        let findings = found(case, 2);
        let Finding { text, advice, .. } = off_core(&findings);
        assert!(
            text.ends_with("kept off their cores") && advice.contains("off_core of --simulate"),
            "{text}; {advice}"
        );
    }
}
