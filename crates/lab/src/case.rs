//! The numbers of one case, its repeats pooled.

use std::collections::BTreeMap;

use paceline_record::{Case, Host, LayerTime, Load, Member, Nanos, Phase, Who, date};
use serde::ser::Error;
use serde::{Serialize, Serializer};

use crate::numbers::hosts::HostReport;
use crate::numbers::phases::{PhaseSeconds, RankPhases};
use crate::numbers::series::Series;
use crate::numbers::speedup::Interval;
use crate::numbers::steady::Records;
use crate::numbers::{
    communication, computation, course, dispersion, fixed, followed, hosts, idle, learning, memory, off_core,
    phases, rate, recovery, series, steady, time, waterfall,
};
use crate::origin::{Origin, UNKNOWN_RANKS};
use crate::run::{Waited, add_waits};
use crate::stats::Work;
use crate::stats::steady::Verdict;
use crate::{LabError, Run, SoFar, Status, words};

mod logged;
mod speedups;

/// The numbers of one case. What is not known is `None`.
///
/// With several repeats, times, phases and examples are means, rates are pooled, and memory is the maximum.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CaseReport {
    /// How it ended, or that it is running: done if any repeat finished.
    pub status: Status,
    /// What went wrong, or how far it has come; `None` if all is done.
    pub reason: Option<String>,
    /// How far it had come when it was read; `None` unless it is running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<SoFar>,
    /// What was run. Where not all ranks were recorded, `workers` is the number of those that were, and `null` in JSON.
    #[serde(flatten, serialize_with = "tell_case")]
    pub case: Case,
    /// When its first run was started, in UTC; `None` where its clock has no date.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// What else the machine did just before it, in the repeat that found most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Runs pooled in these numbers.
    pub repeats: u32,
    /// Members' lives over the time of the run; `None` where workers stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_workers: Option<f64>,
    /// Samples that all workers saw together.
    pub examples: Option<u64>,
    /// Steps of each worker.
    pub steps: u64,
    /// First spawn to the first step.
    pub init_s: Option<f64>,
    /// Begin of the first step to the end of the last.
    pub train_s: Option<f64>,
    /// Part of `train_s` in which training paused for evaluation and checkpoints.
    pub paused_s: Option<f64>,
    /// First spawn to last reap.
    pub total_s: Option<f64>,
    /// The steady rate.
    pub images_per_s: Option<rate::Rate>,
    /// Speed-up over one worker by images per second.
    pub speedup_speed: Option<f64>,
    /// Speed-up over one worker by training time.
    pub speedup_time: Option<f64>,
    /// Speed-up over one worker by the time of the whole run.
    pub speedup_total: Option<f64>,
    /// `speedup_speed` over workers.
    pub efficiency_speed: Option<f64>,
    /// `speedup_time` over workers.
    pub efficiency_time: Option<f64>,
    /// 95 % interval of `speedup_speed`; `None` where it has none, as on one worker.
    pub speedup_speed_interval: Option<Interval>,
    /// The same for `speedup_time`.
    pub speedup_time_interval: Option<Interval>,
    /// The same for `speedup_total`.
    pub speedup_total_interval: Option<Interval>,
    /// The same for `efficiency_speed`.
    pub efficiency_speed_interval: Option<Interval>,
    /// The same for `efficiency_time`.
    pub efficiency_time_interval: Option<Interval>,
    /// Seconds by phase, summed over ranks; they add up to workers times `total_s`. Of an imported run phases that its
    /// source cannot tell are missing.
    #[serde(serialize_with = "phases::serialise_known")]
    pub phases_s: Option<PhaseSeconds>,
    /// Part of the phases of the steps in which a thread could have run and was not on a core, and what the system says about it;
    /// `None` where the log does not tell.
    pub off_core: Option<off_core::OffCore>,
    /// The same for each rank.
    pub ranks: Option<Vec<RankPhases>>,
    /// `comm_wait`, by cause.
    pub comm_wait_split_s: Option<communication::CommWaitSplit>,
    /// Idle time of devices, by cause; `None` where there was none, or no device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_split_s: Option<idle::IdleSplit>,
    /// Seconds in which devices had nothing to do because their host was late, summed over ranks; `None` where nobody told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starved_s: Option<f64>,
    /// Seconds in which any collective was under way, summed over ranks.
    pub comm_busy_s: Option<f64>,
    /// Fraction of the communication that was hidden behind other work.
    pub overlap: Option<f64>,
    /// Exposed communication over the time of all steps.
    #[serde(rename = "communication_share")]
    pub communication_fraction: Option<f64>,
    /// The second number of 10 : x, computation to communication.
    pub communication_ratio: Option<f64>,
    /// Forward and backward of a typical rank, in steady worker-seconds per example.
    pub computation_s: Option<f64>,
    /// The rank that the others waited for most.
    pub straggler: Option<Straggler>,
    /// Spread of steps and ranks.
    pub dispersion: Option<dispersion::Dispersion>,
    /// Fixed costs: time besides the steady steps.
    pub fixed: Option<fixed::Fixed>,
    /// Peak memory, measured.
    pub peak_memory_bytes: Option<memory::Memory>,
    /// Memory that the engine planned for its program.
    pub planned_memory_bytes: Option<memory::Memory>,
    /// Where the steady state begins.
    pub steady: Option<steady::Steady>,
    /// Step times over the first repeat.
    pub step_times: Option<Series>,
    /// The same with more points, to zoom into.
    #[serde(skip)]
    pub step_detail: Option<Series>,
    /// Loss of the first step.
    pub loss_first: Option<f64>,
    /// Loss of the last step.
    pub loss_last: Option<f64>,
    /// Loss and accuracy; `None` if the log counts no epochs and has no test.
    pub learning: Option<learning::Learning>,
    /// Loss, accuracy and learning rate over the steps of the first repeat, however it ended; `None` if it is no training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub course: Option<course::Course>,
    /// What it cost that workers were lost, came and went; `None` where workers stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<recovery::Recovery>,
    /// The hosts of a run on several, in its first repeat; `None` for a run on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<HostReport>>,
    /// What of the hosts is missing from these numbers, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_notes: Vec<String>,
    /// What its ranks say about their own times, and how these were completed, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Where it was imported from, and what its source says beyond its steps; `None` for our own runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Computation of a typical rank in its median step, steady or not, per example.
    #[serde(skip)]
    pub(crate) median_computation_s: Option<f64>,
    /// The cost of an example by cause, for the waterfall.
    #[serde(skip)]
    pub cost: Option<waterfall::Cost>,
    /// Its files, relative to the study's folder.
    #[serde(skip)]
    pub files: Vec<String>,
    /// The time of each layer of rank 0 in the first repeat; empty without a profile.
    #[serde(skip)]
    pub layers: Vec<LayerTime>,
    /// The steady steps of each repeat, for intervals over several cases.
    #[serde(skip)]
    pub steady_steps: Vec<Vec<Work>>,
}

/// A rank that others waited for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Straggler {
    /// The rank, or the member where workers come and go.
    #[serde(flatten)]
    pub who: Who,
    /// Fraction of all waiting for late ranks that was for this one.
    #[serde(rename = "share")]
    pub fraction: f64,
    /// Fraction of the steps with waiting in which this rank was waited for most.
    #[serde(rename = "steps_share")]
    pub steps_fraction: f64,
    /// Examples of its steps, over those of the others' steps on average.
    pub work_ratio: Option<f64>,
}

impl CaseReport {
    /// The numbers of a case from all its repeats, at least one. If no repeat finished, only what is certain is kept:
    /// how far the case got and how long it took.
    pub fn of(repeats: &[Run]) -> Self {
        let is_done = |run: &&Run| run.status() == Status::Done;
        let done: Vec<&Run> = repeats.iter().filter(|run| run.is_told()).collect();
        let rest: Vec<&Run> = repeats.iter().filter(|run| !is_done(run)).collect();
        let running = rest.iter().find(|run| run.status() == Status::Running);
        let unfinished = running.or(rest.first()).copied();
        let finished = repeats.iter().filter(is_done).count();
        let status = match unfinished {
            Some(run) if finished == 0 => run.status(),
            _ => Status::Done,
        };
        let told = match (&done[..], &unfinished) {
            ([], Some(run)) => std::slice::from_ref(run),
            _ => &done[..],
        };
        let report = Self {
            reason: unfinished.map(|run| why(run, finished, repeats.len())),
            running: running.map(|run| SoFar::of(run)),
            date: repeats
                .iter()
                .filter_map(|run| run.launcher.header.started)
                .min_by_key(|it| it.unix)
                .map(|it| date(it.unix)),
            load: repeats
                .iter()
                .filter_map(|run| run.launcher.header.load)
                .max_by(|a, b| taken(a).total_cmp(&taken(b))),
            repeats: done.len() as u32,
            examples: Some(mean_count(told, Run::examples)).filter(|&examples| examples > 0),
            steps: mean_count(told, Run::steps_done),
            total_s: told[0].span().map(|span| span.seconds()),
            course: course::course(told[0]),
            hosts: hosts::hosts(told[0]),
            // The others' logs come when the run ends.
            host_notes: if status == Status::Running { Vec::new() } else { hosts::notes(told[0]) },
            ..Self::empty(status, repeats[0].case())
        };
        if done.is_empty() { report } else { report.finished(&done) }
    }

    /// A case whose logs cannot be read.
    pub fn unreadable(case: &Case, error: &LabError) -> Self {
        Self { reason: Some(error.to_string()), ..Self::empty(Status::Failed, case) }
    }

    /// A case of which only the outcome is known.
    fn empty(status: Status, case: &Case) -> Self {
        Self { status, case: case.clone(), ..Self::default() }
    }

    /// Whether it has numbers: it finished, or its logs tell where its time went although it did not.
    pub fn is_told(&self) -> bool {
        self.repeats > 0
    }

    /// Adds the numbers that only runs have whose ranks all told theirs.
    fn finished(self, done: &[&Run]) -> Self {
        let steps: Vec<Vec<Work>> = done.iter().map(|run| run.global_steps()).collect();
        let window = done[0].launcher.header.window;
        let records: Vec<Records> =
            done.iter().zip(&steps).map(|(run, steps)| Records::new(steps, run.covers())).collect();
        let mut states: Vec<_> = records.iter().map(|records| steady::find(&records.means)).collect();
        for state in states.iter_mut().filter(|state| window && state.verdict == Verdict::TooShort) {
            // A window does not start at the beginning of the run, so its first steps are like the others.
            state.from = 0;
        }
        let steady: Vec<&[Work]> =
            steps.iter().zip(&states).map(|(steps, state)| &steps[state.from..]).collect();
        let runs: Vec<(&Run, usize)> =
            done.iter().zip(&states).map(|(&run, state)| (run, state.from)).collect();
        let times: Vec<_> = done.iter().filter_map(|run| time::times(run)).collect();
        let mean = |of: fn(&time::Times) -> f64| {
            (!times.is_empty()).then(|| times.iter().map(of).sum::<f64>() / times.len() as f64)
        };
        let step_series = |points: usize| {
            let records = records.first()?;
            let covers = records.steps() as f64 / records.covers.len().max(1) as f64;
            Some(series::series(&records.means, covers.round() as u64, points))
        };
        let communication = communication::communication(done);
        let ranks = phases::ranks(done);
        let mut report = Self {
            init_s: mean(|times| times.init_s),
            train_s: mean(|times| times.train_s),
            paused_s: mean(|times| times.paused_s),
            total_s: mean(|times| times.total_s),
            images_per_s: rate::rate(&steady),
            phases_s: ranks.as_deref().map(phases::sum),
            off_core: off_core::off_core(done),
            ranks,
            comm_wait_split_s: Some(communication.wait),
            idle_split_s: idle::split(done),
            starved_s: followed::starved(done),
            notes: followed::notes(done),
            comm_busy_s: Some(communication.busy),
            overlap: communication.overlap,
            communication_fraction: communication.fraction,
            communication_ratio: communication.ratio,
            computation_s: computation::typical(&runs),
            median_computation_s: computation::typical_step(done),
            straggler: find_straggler(done),
            // Means of several steps do not show how single steps vary.
            dispersion: records
                .iter()
                .all(Records::are_steps)
                .then(|| dispersion::dispersion(done, &steady))
                .flatten(),
            peak_memory_bytes: memory::peak(done),
            planned_memory_bytes: memory::planned(done),
            steady: steady::sum_up(&states, &records),
            step_times: step_series(series::MOST),
            step_detail: step_series(series::MOST_DETAIL),
            loss_first: done[0].loss(0),
            loss_last: done[0].loss(done[0].steps().saturating_sub(1)),
            learning: learning::learning(done),
            mean_workers: mean_workers(done),
            recovery: recovery::recovery(done[0]),
            cost: waterfall::cost(&runs),
            steady_steps: steady.iter().map(|steps| steps.to_vec()).collect(),
            ..self
        };
        if let Some(steady) = &mut report.steady {
            steady::judge_spread(
                steady,
                report.dispersion.as_ref(),
                report.steps * u64::from(report.repeats),
            );
        }
        if done.iter().any(|run| run.hosts.as_ref().is_some_and(|hosts| !hosts.are_known())) {
            // What all members took together is not known.
            (report.mean_workers, report.cost) = (None, None);
            (report.peak_memory_bytes, report.planned_memory_bytes) = (None, None);
        }
        report.forget_untold(done);
        if window {
            // A window shows nothing of what came before and after.
            (report.init_s, report.total_s) = (None, None);
        }
        // Where the roster changed, steps differ for other reasons than warm-up.
        if !report.has_changed() {
            report.fixed = report.pace().and_then(|pace| fixed::fixed(&pace, report.steps));
        }
        report
    }

    /// Makes phases unknown that the source of the case cannot tell, and what follows from them.
    fn forget(&mut self, knows: &dyn Fn(Phase) -> bool) {
        let known = |phases: &mut PhaseSeconds| phases.retain(|&phase, _| knows(phase));
        self.phases_s.iter_mut().for_each(known);
        self.ranks.iter_mut().flatten().for_each(|rank| known(&mut rank.phases_s));
        if !knows(Phase::CommWait) {
            (self.comm_wait_split_s, self.comm_busy_s, self.communication_fraction) = (None, None, None);
            (self.overlap, self.communication_ratio, self.straggler) = (None, None, None);
        }
        if ![Phase::Forward, Phase::Backward, Phase::Compute].into_iter().any(knows) {
            (self.communication_ratio, self.computation_s) = (None, None);
        }
    }

    /// Makes phases unknown that the ranks said they could not tell, and did not.
    fn forget_untold(&mut self, done: &[&Run]) {
        let untold = followed::untold(done);
        if untold.is_empty() {
            return;
        }
        let knows = |phase: Phase| !untold.contains(&phase);
        self.forget(&knows);
        if let Some(cost) = &mut self.cost {
            cost.parts.retain(|part| part.cause.is_known(&knows));
        }
        if !knows(Phase::Forward) || !knows(Phase::Backward) {
            self.median_computation_s = None;
        }
    }

    /// Records where the case was imported from: what its source does not show becomes unknown.
    pub(crate) fn imported_from(&mut self, origin: Origin) {
        let knows = |phase: Phase| origin.knows(phase);
        self.forget(&knows);
        // Of one rank alone nobody knows when the others arrived.
        let alone = self.case.workers == 1 && recorded_part(&self.case).is_some();
        if alone {
            (self.comm_wait_split_s, self.straggler) = (None, None);
        }
        if let Some(cost) = &mut self.cost {
            let unknown =
                |cause| cause == waterfall::Cause::OffCore || alone && cause == waterfall::Cause::Stragglers;
            cost.parts.retain(|part| part.cause.is_known(&knows) && !unknown(part.cause));
        }
        let numbers = origin.traced.as_ref().map_or(&[][..], |traced| &traced.numbers);
        let rename = |who: &mut Who| {
            if let Who::Rank(rank) = who {
                *rank = numbers.get(rank.0 as usize).copied().unwrap_or(*rank);
            }
        };
        self.straggler.iter_mut().for_each(|late| rename(&mut late.who));
        self.dispersion
            .iter_mut()
            .flat_map(|spread| &mut spread.slowest)
            .for_each(|slowest| rename(&mut slowest.who));
        self.ranks.iter_mut().flatten().for_each(|rank| rename(&mut rank.who));
        // The numbers of a log are in the report already.
        self.origin = Some(Origin { progress: None, ..origin });
    }

    /// The number of workers in tables; a dash if it is unknown.
    pub(crate) fn workers_shown(&self) -> String {
        match recorded_part(&self.case) {
            Some(part) if part.ends_with(UNKNOWN_RANKS) => "-".into(),
            Some(part) => part.to_owned(),
            None => self.case.workers.to_string(),
        }
    }

    /// The same in a sentence: "4 workers", "1 of 4 workers", "1 of an unknown number of workers".
    pub fn workers_said(&self) -> String {
        let said = |part: &str| match part.ends_with(UNKNOWN_RANKS) {
            true => format!("{part} of workers"),
            false => format!("{part} workers"),
        };
        recorded_part(&self.case).map_or_else(|| words::workers(self.case.workers), said)
    }

    /// Whether it finished but only a window of it is known.
    pub(crate) fn is_window(&self) -> bool {
        self.is_told() && self.total_s.is_none()
    }

    /// Exposed communication of all ranks, in seconds. If waiting is known but work on the host is not, that work counts as zero.
    pub fn exchange_s(&self) -> Option<f64> {
        let phases = self.phases_s.as_ref()?;
        Some(phases.get(&Phase::CommWait)? + phases.get(&Phase::CommCpu).unwrap_or(&0.0))
    }

    /// Workers, or the mean over the run where they come and go.
    pub fn workers_on_average(&self) -> f64 {
        self.mean_workers.unwrap_or(f64::from(self.case.workers))
    }

    /// Whether its workers came or went between its first step and its last.
    pub(crate) fn has_changed(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| {
            let members = recovery.losses + recovery.expulsions + recovery.joins + recovery.leaves;
            members + recovery.hosts_lost + recovery.hosts_joined + recovery.hosts_left > 0
        })
    }

    /// The host that a member runs on, and its number in that host's logs; `None` for a run on one host.
    pub fn place(&self, member: Member) -> Option<(Host, Member)> {
        let of = |host: &HostReport| {
            let found = host.members.iter().find(|it| it.member == member);
            found.map(|it| (host.host, it.own))
        };
        self.hosts.iter().flatten().find_map(of)
    }

    /// A rank or member, as the logs know it.
    pub fn name(&self, who: Who) -> String {
        let place = match who {
            Who::Member(member) => self.place(member),
            Who::Rank(_) => None,
        };
        place.map_or_else(|| who.to_string(), |(host, own)| crate::hosts::name(host, own))
    }
}

/// Which of its ranks were recorded, as "1 of 4" or "1 of an unknown number"; `None` if all were.
pub(crate) fn recorded_part(case: &Case) -> Option<&str> {
    case.settings.get("ranks").map(String::as_str)
}

/// How many workers ran it; `None` if not all of them were recorded.
pub(crate) fn whole_workers(case: &Case) -> Option<u32> {
    recorded_part(case).is_none().then_some(case.workers)
}

fn tell_case<S: Serializer>(case: &Case, to: S) -> Result<S::Ok, S::Error> {
    let mut fields = serde_json::to_value(case).map_err(S::Error::custom)?;
    fields["workers"] = whole_workers(case).into();
    fields.serialize(to)
}

/// Why a case is not complete; with repeats, how many did not finish.
fn why(run: &Run, done: usize, repeats: usize) -> String {
    let reason = match &run.launcher.over {
        Some((_, Some(reason))) => reason.clone(),
        Some((_, None)) => "unknown reason".into(),
        None if run.is_held => SoFar::of(run).to_string(),
        None => LAUNCHER_GONE.into(),
    };
    match done {
        0 => reason,
        _ if run.status() == Status::Running => {
            format!("{done} of {repeats} repeats are done; one is running: {reason}")
        }
        _ => format!("{} of {repeats} repeats did not finish: {reason}", repeats - done),
    }
}

/// Why a run has no end, though nobody is at work on it.
pub(crate) const LAUNCHER_GONE: &str = "its launcher is gone";

/// Cores that were not there for a run, as far as known.
fn taken(load: &Load) -> f64 {
    load.busy_cores.unwrap_or(0.0) + load.stolen_cores.unwrap_or(0.0)
}

fn mean_count(runs: &[&Run], of: fn(&Run) -> u64) -> u64 {
    let sum = runs.iter().map(|run| of(run)).fold(0, u64::saturating_add);
    sum / runs.len() as u64
}

/// Lives of all repeats over their time.
fn mean_workers(done: &[&Run]) -> Option<f64> {
    let lives: Option<f64> = done.iter().map(|run| run.lives_s()).sum();
    let total: Option<f64> = done.iter().map(|run| run.span().map(|span| span.seconds())).sum();
    Some(lives? / total.filter(|&total| total > 0.0)?)
}

fn find_straggler(done: &[&Run]) -> Option<Straggler> {
    let mut waits: BTreeMap<Who, Waited> = BTreeMap::new();
    for run in done {
        add_waits(&mut waits, run.waited_for.clone());
    }
    let all: Nanos = waits.values().map(|waited| waited.time).sum();
    let steps: u64 = waits.values().map(|waited| waited.steps).sum();
    let (who, most) = waits.into_iter().max_by_key(|(_, waited)| waited.time)?;
    (!all.is_zero()).then(|| Straggler {
        who,
        fraction: most.time.seconds() / all.seconds(),
        steps_fraction: most.steps as f64 / steps.max(1) as f64,
        work_ratio: work_ratio(done, who),
    })
}

/// How much of a step's work is somebody's: its examples a step over the mean of the others'.
fn work_ratio(done: &[&Run], who: Who) -> Option<f64> {
    let ranks = || done.iter().flat_map(|run| &run.ranks);
    let per_step = |is_meant: &dyn Fn(Who) -> bool| {
        let of = ranks().filter(|rank| is_meant(rank.header.who())).flat_map(|rank| &rank.steps);
        let (examples, steps) =
            of.fold((0, 0), |(examples, steps), step| (examples + step.examples, steps + step.covers));
        (steps > 0).then(|| examples as f64 / steps as f64)
    };
    let (own, others) = (per_step(&|other| other == who)?, per_step(&|other| other != who)?);
    (others > 0.0).then(|| own / others)
}

#[cfg(test)]
mod tests;
