//! The numbers of one case.

use std::collections::BTreeMap;

use paceline_record::log::RankLog;
use paceline_record::{Bytes, Case, Outcome, Phase};
use serde::Serialize;

use crate::run::{Run, Span, tile};
use crate::stats::{self, Work};

/// Steps that are left out of the steady rate: the first ones warm caches and fault pages in.
const WARM_UP: usize = 2;

/// Under this many steps no steady state can be told.
const SHORT: usize = 20;

/// Seed of every interval: the same logs give the same report.
const SEED: u64 = 0x9ace;

/// Images a second over the steady steps, all workers together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// At the median step time.
    pub median: f64,
    /// Examples over time.
    pub mean: f64,
    /// Lower end of the mean's 95 % interval; `None` of a single step.
    pub lo: Option<f64>,
    /// Upper end of the mean's 95 % interval.
    pub hi: Option<f64>,
}

/// Where the steady state begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Steady {
    /// First step that counts.
    pub from_step: u64,
    /// What the step times look like; `None` where it has not been looked for.
    pub verdict: Option<&'static str>,
}

/// Waiting in collectives, by cause, in seconds summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CommWaitSplit {
    /// Until the last rank had arrived.
    pub late_rank: f64,
    /// From there on.
    pub transfer: f64,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The worker that took most.
    pub per_worker: Bytes,
    /// All workers.
    pub total: Bytes,
}

/// The numbers of one case. What is not known is `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseReport {
    /// How it ended.
    pub status: Outcome,
    /// Why, unless all went well.
    pub reason: Option<String>,
    /// What was run.
    #[serde(flatten)]
    pub case: Case,
    /// Runs pooled in these numbers.
    pub repeats: u32,
    /// Samples that all workers together saw.
    pub examples: u64,
    /// Steps of each worker.
    pub steps: u64,
    /// First spawn to the first step.
    pub init_s: Option<f64>,
    /// Begin of the first step to the end of the last.
    pub train_s: Option<f64>,
    /// First spawn to last reap.
    pub total_s: Option<f64>,
    /// The steady rate.
    pub images_per_s: Option<Rate>,
    /// Against one worker, by images a second.
    pub speedup_speed: Option<f64>,
    /// Against one worker, by training time.
    pub speedup_time: Option<f64>,
    /// Against one worker, by the whole run's time.
    pub speedup_total: Option<f64>,
    /// `speedup_speed` over workers.
    pub efficiency_speed: Option<f64>,
    /// `speedup_time` over workers.
    pub efficiency_time: Option<f64>,
    /// Seconds by phase, summed over ranks; they add up to workers times `total_s`.
    pub phases_s: Option<BTreeMap<Phase, f64>>,
    /// `comm_wait`, by cause.
    pub comm_wait_split_s: Option<CommWaitSplit>,
    /// Seconds in which a collective was under way at all, summed over ranks.
    pub comm_busy_s: Option<f64>,
    /// Share of the communication that was hidden behind other work.
    pub overlap: Option<f64>,
    /// Peak memory, measured.
    pub peak_memory_bytes: Option<Memory>,
    /// Memory that the engine planned, its program alone.
    pub planned_memory_bytes: Option<Memory>,
    /// Where the steady state begins.
    pub steady: Option<Steady>,
    /// Loss of the first step.
    pub loss_first: Option<f64>,
    /// Loss of the last step.
    pub loss_last: Option<f64>,
}

impl CaseReport {
    /// The numbers of a run. One that did not finish keeps what is certain: how far it came, and how long it took.
    pub fn of(run: &Run) -> Self {
        let over = run.launcher.over.clone();
        let (status, reason) = over.unwrap_or_else(|| {
            let reason = "the launcher ended before its workers did";
            (Outcome::Failed, Some(reason.into()))
        });
        let report = Self {
            status,
            reason,
            case: run.case().clone(),
            repeats: 1,
            examples: run.examples(),
            steps: run.steps() as u64,
            total_s: run.span().map(Span::seconds),
            init_s: None,
            train_s: None,
            images_per_s: None,
            speedup_speed: None,
            speedup_time: None,
            speedup_total: None,
            efficiency_speed: None,
            efficiency_time: None,
            phases_s: None,
            comm_wait_split_s: None,
            comm_busy_s: None,
            overlap: None,
            peak_memory_bytes: None,
            planned_memory_bytes: None,
            steady: None,
            loss_first: None,
            loss_last: None,
        };
        match (status, run.span(), run.training()) {
            (Outcome::Done, Some(span), Some(training)) => report.finished(run, span, training),
            _ => report,
        }
    }

    /// Adds what only a finished run can tell.
    fn finished(self, run: &Run, span: Span, training: Span) -> Self {
        let steps = run.global_steps();
        let steady = find_steady(&steps);
        let init = Span { begin: span.begin, end: training.begin };
        let phases = sum_phases(run, span);
        let waited = run.sum_steps(|step| step.phases[Phase::CommWait]);
        let late_rank = run.sum_steps(|step| step.late_rank);
        let busy = run.sum_steps(|step| step.comm_busy);
        let exposed = waited + run.sum_steps(|step| step.phases[Phase::CommCpu]);
        Self {
            init_s: Some(init.seconds()),
            train_s: Some(training.seconds()),
            images_per_s: steady.and_then(|s| find_rate(&steps[s.from_step as usize..])),
            phases_s: phases,
            comm_wait_split_s: Some(CommWaitSplit { late_rank, transfer: waited - late_rank }),
            comm_busy_s: Some(busy),
            overlap: (busy > 0.0).then(|| 1.0 - exposed / busy),
            peak_memory_bytes: sum_peaks(run),
            planned_memory_bytes: sum_memory(run, |rank| rank.planned),
            steady,
            loss_first: run.loss(0),
            loss_last: run.loss(steps.len().saturating_sub(1)),
            ..self
        }
    }

    /// Whether two cases are the same but for the number of workers.
    pub fn same_but_workers(&self, other: &Self) -> bool {
        let unified = Case { workers: self.case.workers, ..other.case.clone() };
        self.case == unified
    }

    /// Fills in the speed-ups over a one-worker case.
    pub(crate) fn compare(&mut self, one: &Self) {
        let workers = f64::from(self.case.workers);
        let rate = |case: &Self| case.images_per_s.map(|rate| rate.mean);
        let per_example = |time: Option<f64>, case: &Self| {
            time.filter(|_| case.examples > 0).map(|time| time / case.examples as f64)
        };
        let ratio = |above: Option<f64>, below: Option<f64>| {
            below.filter(|&b| b > 0.0).and_then(|b| Some(above? / b))
        };
        self.speedup_speed = ratio(rate(self), rate(one));
        self.speedup_time = ratio(per_example(one.train_s, one), per_example(self.train_s, self));
        self.speedup_total = ratio(per_example(one.total_s, one), per_example(self.total_s, self));
        self.efficiency_speed = self.speedup_speed.map(|s| s / workers);
        self.efficiency_time = self.speedup_time.map(|s| s / workers);
    }
}

/// Leaves out the warm-up, but never the last step: a finished case always has a rate.
fn find_steady(steps: &[Work]) -> Option<Steady> {
    let last = steps.len().checked_sub(1)?;
    Some(Steady {
        from_step: WARM_UP.min(last) as u64,
        verdict: (steps.len() < SHORT).then_some("too short"),
    })
}

fn find_rate(steps: &[Work]) -> Option<Rate> {
    let rates: Vec<f64> = steps.iter().map(|w| w.amount / w.seconds).collect();
    let interval = stats::bootstrap_rate(&[steps], SEED);
    Some(Rate {
        median: stats::median(&rates)?,
        mean: stats::rate(steps)?,
        lo: interval.map(|(lo, _)| lo),
        hi: interval.map(|(_, hi)| hi),
    })
}

fn sum_phases(run: &Run, span: Span) -> Option<BTreeMap<Phase, f64>> {
    let mut sums: BTreeMap<Phase, f64> = Phase::ALL.map(|phase| (phase, 0.0)).into();
    for rank in &run.ranks {
        let times = tile(rank, span)?;
        for (sum, time) in sums.values_mut().zip(times) {
            *sum += time;
        }
    }
    Some(sums)
}

/// Peak memory measured. What ranks share counts once in all, and to an equal part for each of them.
fn sum_peaks(run: &Run) -> Option<Memory> {
    let mut private = Vec::new();
    let mut shared = 0;
    for rank in &run.ranks {
        let common = rank.shared.map_or(0, |bytes| bytes.0);
        private.push(rank.peak_resident?.0.saturating_sub(common));
        shared = common.max(shared);
    }
    Some(Memory {
        per_worker: Bytes(private.iter().max()? + shared / run.ranks.len() as u64),
        total: Bytes(private.iter().sum::<u64>() + shared),
    })
}

fn sum_memory(run: &Run, of: fn(&RankLog) -> Option<Bytes>) -> Option<Memory> {
    let all: Option<Vec<Bytes>> = run.ranks.iter().map(of).collect();
    let all = all?;
    Some(Memory { per_worker: *all.iter().max()?, total: Bytes(all.iter().map(|bytes| bytes.0).sum()) })
}

#[cfg(test)]
mod tests;
