//! Taken off the core: time in which a thread could have run, and something else had its core.
//!
//! A split of each phase of the steps, not a phase. While a thread computes it does not sleep, so what its processor clock lacks of
//! that time it was not on a core: another process or thread had it, a control group's quota was used up, or a page came from a
//! disk. In phases that sleep, it is the time that the thread waited for a core once it was woken. [`Scheduling`] also tells
//! causes: waiting in the run queue, throttling, and what the hypervisor took, which a guest's clocks may count as computing.

use paceline_record::log::RankLog;
use paceline_record::{Phase, PhaseTimes, Scheduling, StepRecord, Who};
use serde::Serialize;

use super::phases::PhaseSeconds;
use crate::Run;
use crate::hosts::HostLog;

/// Time off the core of a case, in seconds summed over ranks, as the mean over repeats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OffCore {
    /// In all phases together.
    pub seconds: f64,
    /// By phase; phases without any are left out.
    pub phases_s: PhaseSeconds,
    /// Time that the threads that ran the steps waited for a core; `None` where the system does not tell.
    pub queued_s: Option<f64>,
    /// Part of `seconds` that the porters of the members' hosts were on a core for; `None` for a run on one host, and where no porter
    /// told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub porter_s: Option<f64>,
    /// Time in which a control group's quota stopped its processes, during the steps of the rank that saw most of it: the counter
    /// is the group's, not a rank's. Of several hosts, which may be groups of their own, the sum; none counts for more than its
    /// members were off their cores. `None` without a quota.
    pub throttled_s: Option<f64>,
    /// Time that the hypervisor took from the ranks' cores; `None` where it does not tell.
    pub steal_s: Option<f64>,
    /// How often another thread got a core instead; `None` where the system does not tell.
    pub involuntary_switches: Option<u64>,
    /// Mean frequency of the ranks' first cores in MHz; `None` where it cannot be read.
    pub mhz: Option<f64>,
}

/// How much of each phase of a step its thread was not on a core; nothing where the log does not tell.
pub(super) fn of_step(step: &StepRecord) -> PhaseTimes {
    let told = step.scheduling.as_ref().and_then(|scheduling| scheduling.off_core);
    let mut times = told.unwrap_or_default();
    for phase in Phase::ALL {
        let there = match phase {
            Phase::Other => step.end.since(step.begin).since(step.phases.total()),
            _ => step.phases[phase],
        };
        // A damaged log may claim more than there was.
        times[phase] = times[phase].min(there);
    }
    times
}

/// Seconds of a step in which its thread was not on a core; `None` where the log does not tell.
pub(super) fn told_of(step: &StepRecord) -> Option<f64> {
    step.scheduling.as_ref()?.off_core?;
    Some(of_step(step).total().seconds())
}

/// Time off the core over all steps; `None` unless every step tells.
pub fn off_core(repeats: &[&Run]) -> Option<OffCore> {
    let steps = || repeats.iter().flat_map(|run| &run.ranks).flat_map(|rank| &rank.steps);
    if steps().next().is_none() || !steps().all(|step| told_of(step).is_some()) {
        return None;
    }
    let count = repeats.len() as f64;
    let mut phases = PhaseTimes::default();
    steps().for_each(|step| phases += of_step(step));
    let scheduling = || steps().filter_map(|step| step.scheduling.as_deref());
    let sum = |of: fn(&Scheduling) -> Option<f64>| {
        let told: Vec<f64> = scheduling().filter_map(of).collect();
        (!told.is_empty()).then(|| told.iter().sum::<f64>())
    };
    let seconds = |of: fn(&Scheduling) -> Option<f64>| sum(of).map(|sum| sum / count);
    let frequencies = scheduling().filter(|told| told.mhz.is_some()).count();
    Some(OffCore {
        seconds: phases.total().seconds() / count,
        phases_s: phases.iter().map(|(phase, time)| (phase, time.seconds() / count)).collect(),
        queued_s: seconds(|told| told.queued.map(|time| time.seconds())),
        porter_s: porters(repeats),
        throttled_s: throttled(repeats),
        steal_s: seconds(|told| told.steal.map(|time| time.seconds())),
        involuntary_switches: sum(|told| told.switches.map(|switches| switches.involuntary as f64))
            .map(|switches| (switches / count).round() as u64),
        mhz: sum(|told| told.mhz.map(f64::from)).map(|sum| sum / frequencies as f64),
    })
}

/// Logs of the members of each host; of a run on one host, those of all ranks.
fn by_host(run: &Run) -> Vec<Vec<&RankLog>> {
    let Some(hosts) = &run.hosts else { return vec![run.ranks.iter().collect()] };
    let of = |host: &HostLog| {
        let is_here = |log: &&RankLog| match log.header.who() {
            Who::Member(member) => host.members.iter().any(|&(number, _)| number == member),
            Who::Rank(_) => false,
        };
        run.ranks.iter().filter(is_here).collect()
    };
    hosts.all.iter().map(of).collect()
}

/// How long members were off their cores.
fn off(members: &[&RankLog]) -> f64 {
    members.iter().flat_map(|log| &log.steps).filter_map(told_of).sum()
}

/// Of each host, the processor time of its porter, but no more than its members were off their cores.
fn porters(repeats: &[&Run]) -> Option<f64> {
    let mut sum = None;
    for run in repeats {
        for (host, members) in run.hosts.iter().flat_map(|hosts| &hosts.all).zip(by_host(run)) {
            let Some(porter) = host.porter else { continue };
            sum = Some(sum.unwrap_or(0.0) + off(&members).min(porter.cpu.seconds()));
        }
    }
    sum.map(|sum| sum / repeats.len() as f64)
}

fn throttled(repeats: &[&Run]) -> Option<f64> {
    let of_rank = |log: &&RankLog| {
        let told = log.steps.iter().filter_map(|step| step.scheduling.as_ref()?.throttled);
        told.map(|time| time.seconds()).reduce(|sum, more| sum + more)
    };
    let of_host = |members: &Vec<&RankLog>| members.iter().filter_map(of_rank).max_by(f64::total_cmp);
    let mut sum = None;
    for run in repeats {
        for members in by_host(run) {
            let Some(told) = of_host(&members) else { continue };
            let told = if run.hosts.is_some() { told.min(off(&members)) } else { told };
            sum = Some(sum.unwrap_or(0.0) + told);
        }
    }
    sum.map(|sum| sum / repeats.len() as f64)
}
