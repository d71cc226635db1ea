//! The logs of one case, read and checked against each other.

mod arrivals;
mod crew;
mod machines;
mod sample;

use std::collections::BTreeMap;
use std::path::Path;

use paceline_record::log::{LauncherLog, RankLog, WorkerHeader};
use paceline_record::{Case, EvalRecord, Nanos, Outcome, Phase, Step, StepRecord, Who, Whole};

pub(crate) use self::crew::Crew;
pub(crate) use self::machines::clocks_of;
use crate::hosts::{self, Hosts};
use crate::membership::Membership;
use crate::stats::Work;
use crate::{LabError, Status};

/// One run of a case, from its logs.
#[derive(Clone, Debug)]
pub struct Run {
    /// The launcher's log.
    pub launcher: LauncherLog,
    /// The logs of the ranks, without the single exchanges of their steps. A rank that died before it could write anything
    /// is missing. Where workers come and go, the logs of all members; one that wrote nothing has an empty log.
    pub ranks: Vec<RankLog>,
    /// Waiting for late ranks, by the rank that was late.
    pub waited_for: BTreeMap<Who, Waited>,
    /// Who came and went; `None` where workers stay.
    pub membership: Option<Membership>,
    /// Where they ran; `None` for a run on one host.
    pub hosts: Option<Hosts>,
    /// Steps asked for, where somebody has said.
    pub asked: Option<u64>,
    /// Whether its launcher was at work when the logs were read.
    pub is_held: bool,
    /// Whether it was followed from outside and every rank left its steps behind, however it ended.
    pub is_whole: bool,
}

/// Waiting for one rank, summed over the ranks that waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// Time blocked until it arrived.
    pub time: Nanos,
    /// Steps in which it was waited for longest.
    pub steps: u64,
}

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Begin.
    pub begin: Nanos,
    /// End.
    pub end: Nanos,
}

/// Most steps that a record may stand for; more is damage.
const MOST_COVERED: u64 = 1 << 40;

/// How many steps a record stands for.
pub(crate) fn covers(record: &StepRecord) -> u64 {
    record.covers.clamp(1, MOST_COVERED)
}

/// Time spent on evaluation and checkpoints after a step; not part of the step's own time.
pub(crate) fn pause(step: &StepRecord) -> Nanos {
    step.phases[Phase::Eval] + step.phases[Phase::Checkpoint]
}

/// Time of a step without evaluation and checkpoints.
pub(crate) fn own_time(step: &StepRecord) -> Nanos {
    step.end.since(step.begin).since(pause(step))
}

impl Span {
    /// Its length in seconds.
    pub fn seconds(self) -> f64 {
        self.end.since(self.begin).seconds()
    }
}

impl Run {
    /// Reads a case's folder.
    pub fn read(folder: &Path) -> Result<Self, LabError> {
        let held = LauncherLog::is_held(folder);
        let mut launcher = LauncherLog::read(folder)?;
        let mut crew = Crew::read(folder, &launcher)?;
        if launcher.header.host.is_none() {
            let machines = machines::read(folder)?;
            crew.complete(folder, &launcher, &machines)?;
            let far = || LabError::Contradiction {
                folder: folder.into(),
                why: "a launcher has moments that no reading of its clock is near to".into(),
            };
            machines::join(&mut launcher, machines, &crew.clocks).ok_or_else(far)?;
            if !crew.clocks.is_empty() {
                machines::widen(&mut launcher, &crew.ranks);
            }
        }
        let outcome = launcher.outcome();
        let mut run = match hosts::Told::by(&launcher) {
            Some(told) => {
                // A job is for as many workers on each host as on the first; they may have others.
                let case = &mut launcher.header.case;
                case.workers = told.workers().unwrap_or(case.workers);
                hosts::gather(folder, launcher, crew, told)
            }
            None => Self::new(launcher, crew.ranks, crew.waited_for),
        };
        // Who has not said the last word may have begun just after the first look.
        run.is_held = held || LauncherLog::is_held(folder);
        match run.check_complete(folder) {
            Err(error) if outcome == Outcome::Done => return Err(error),
            checked => run.is_whole = run.is_followed() && checked.is_ok(),
        }
        Ok(run)
    }

    /// A run with these logs.
    pub(crate) fn new(launcher: LauncherLog, ranks: Vec<RankLog>, waited_for: BTreeMap<Who, Waited>) -> Self {
        let membership = Membership::new(&launcher, &ranks);
        Self {
            launcher,
            ranks,
            waited_for,
            membership,
            hosts: None,
            asked: None,
            is_held: false,
            is_whole: false,
        }
    }

    /// Whether its logs tell where its time went.
    pub fn is_told(&self) -> bool {
        self.is_whole || self.status() == Status::Done
    }

    /// Whether its ranks were followed by somebody who knew nothing of the training: nobody can say which steps were asked for.
    pub fn is_followed(&self) -> bool {
        let followed = |log: &RankLog| match &log.header {
            WorkerHeader::Rank(header) => header.case.is_some(),
            WorkerHeader::Member(_) => false,
        };
        !self.ranks.is_empty() && self.ranks.iter().all(followed)
    }

    /// How it ended, or that it has not. Of a launcher that is gone without a word nothing good is known.
    pub fn status(&self) -> Status {
        match self.launcher.over {
            None if self.is_held => Status::Running,
            _ => self.launcher.outcome().into(),
        }
    }

    /// A rank or member, as its logs know it.
    pub fn name(&self, who: Who) -> String {
        let place = match who {
            Who::Member(member) => self.hosts.as_ref().and_then(|hosts| hosts.place(member)),
            Who::Rank(_) => None,
        };
        place.map_or_else(|| who.to_string(), |(host, own)| hosts::name(host, own))
    }

    /// A finished run has a span, and all its ranks did the same steps within it.
    fn check_complete(&self, folder: &Path) -> Result<(), LabError> {
        let contradiction = |why: String| LabError::Contradiction { folder: folder.into(), why };
        if self.membership.is_none() && self.ranks.len() != self.case().workers as usize {
            return Err(contradiction("the logs of some ranks are missing".into()));
        }
        let whole = self
            .span()
            .ok_or_else(|| contradiction("the run is finished, but its spawn or reap is missing".into()))?;
        if let Some(membership) = &self.membership {
            if membership.steps.is_empty() {
                return Err(contradiction("the run is finished, but nobody did a step".into()));
            }
            return self.check_members(membership).map_err(contradiction);
        }
        for log in &self.ranks {
            let who = log.header.who();
            let (Some(main), Some(first), Some(last)) = (log.main, log.steps.first(), log.steps.last())
            else {
                return Err(contradiction(format!("{who} finished without a step")));
            };
            if log.steps.len() != self.ranks[0].steps.len() {
                return Err(contradiction(format!(
                    "{who} did {} steps, rank 0 did {}",
                    log.steps.len(),
                    self.ranks[0].steps.len()
                )));
            }
            if main < whole.begin || first.begin < main || whole.end < last.end {
                return Err(contradiction(format!("{who} reports times outside the run")));
            }
        }
        Ok(())
    }

    /// Each member of a finished run did its steps within its life, one after the other.
    pub(crate) fn check_members(&self, membership: &Membership) -> Result<(), String> {
        for log in &self.ranks {
            let who = log.header.who();
            let Some(life) = membership.life(who) else { continue };
            if !log.steps.is_sorted_by(|one, next| one.step < next.step) {
                return Err(format!("{who} did a step twice"));
            }
            let begun = log.main.is_none_or(|main| life.span.begin <= main);
            let (Some(first), Some(last)) = (log.steps.first(), log.steps.last()) else {
                continue;
            };
            let main = log.main.ok_or_else(|| format!("{who} did steps before its first instruction"))?;
            if !begun || first.begin < main || life.span.end < last.end {
                return Err(format!("{who} reports times outside its life"));
            }
        }
        Ok(())
    }

    /// What was run.
    pub fn case(&self) -> &Case {
        &self.launcher.header.case
    }

    /// First spawn to last reap.
    pub fn span(&self) -> Option<Span> {
        Some(Span { begin: self.launcher.first_spawn?, end: self.launcher.last_reap? })
    }

    /// Begin of the first step to the end of the last, over all ranks.
    pub fn training(&self) -> Option<Span> {
        let first = self.ranks.iter().filter_map(|rank| rank.steps.first());
        let last = self.ranks.iter().filter_map(|rank| rank.steps.last());
        Some(Span { begin: first.map(|step| step.begin).min()?, end: last.map(|step| step.end).max()? })
    }

    /// The time that a rank or member of the run is accounted for; `None` if the run has no begin or no end.
    pub fn span_of(&self, who: Who) -> Option<Span> {
        match &self.membership {
            Some(membership) => membership.life(who).map(|life| life.span),
            None => self.span(),
        }
    }

    /// Worker-seconds of all members together; `None` where workers stay.
    pub fn lives_s(&self) -> Option<f64> {
        let membership = self.membership.as_ref()?;
        let lives = membership.lives.iter().map(|life| life.span.end.since(life.span.begin));
        (!membership.lives.is_empty()).then(|| lives.sum::<Nanos>().seconds())
    }

    /// Records of steps that every rank finished; where workers come and go, steps that anybody finished.
    pub fn steps(&self) -> usize {
        if let Some(membership) = &self.membership {
            return membership.steps.len();
        }
        let finished = self.ranks.iter().map(|rank| rank.steps.len()).min();
        finished.unwrap_or(0)
    }

    /// The number of the k-th step.
    pub fn number(&self, k: usize) -> Option<Step> {
        match &self.membership {
            Some(membership) => membership.steps.get(k).copied(),
            None => self.ranks.first()?.steps.get(k).map(|step| step.step),
        }
    }

    /// The records of the k-th step, one for each rank that did it.
    pub fn records(&self, k: usize) -> impl Iterator<Item = &StepRecord> + Clone {
        let number = self.membership.as_ref().map(|membership| membership.steps[k]);
        self.ranks.iter().filter_map(move |rank| match number {
            Some(number) => {
                let place = rank.steps.binary_search_by_key(&number, |step| step.step).ok()?;
                Some(&rank.steps[place])
            }
            None => Some(&rank.steps[k]),
        })
    }

    /// The records of a rank's steps, from the k-th of the run on.
    pub fn steps_from<'a>(&self, rank: &'a RankLog, k: usize) -> &'a [StepRecord] {
        match &self.membership {
            Some(membership) => {
                let from = membership.steps.get(k).copied().unwrap_or(Step(u64::MAX));
                &rank.steps[rank.steps.partition_point(|step| step.step < from)..]
            }
            None => &rank.steps[k..],
        }
    }

    /// What is known of all of the k-th step, where workers come and go. Members that know only of their own samples tell of all of it
    /// together, if their logs have every sample once.
    pub fn whole(&self, k: usize) -> Option<Whole> {
        let whole = self.records(k).find_map(|step| step.whole)?;
        if whole.loss.is_some() || whole.correct.is_some() {
            return Some(whole);
        }
        let told = self.records(k).map(|step| step.examples).fold(0, u64::saturating_add);
        if told != whole.examples || told == 0 {
            return Some(whole);
        }
        let losses: Option<f64> =
            self.records(k).map(|step| Some(f64::from(step.loss?) * step.examples as f64)).sum();
        let correct = self.records(k).try_fold(0, |sum: u64, step| Some(sum.saturating_add(step.correct?)));
        Some(Whole { loss: losses.map(|sum| (sum / told as f64) as f32), correct, ..whole })
    }

    /// Samples of the k-th step, each once.
    pub fn step_examples(&self, k: usize) -> u64 {
        let whole = self.membership.as_ref().and_then(|_| self.records(k).find_map(|step| step.whole));
        // A damaged log may contain any number.
        whole.map_or_else(
            || self.records(k).map(|step| step.examples).fold(0, u64::saturating_add),
            |whole| whole.examples,
        )
    }

    /// How many steps each record stands for, by the first rank.
    pub fn covers(&self) -> Vec<u64> {
        (0..self.steps()).map(|k| self.records(k).next().map_or(1, covers)).collect()
    }

    /// Steps that every rank finished.
    pub fn steps_done(&self) -> u64 {
        let unlogged = self.membership.as_ref().map_or(0, |membership| membership.unlogged);
        self.covers().into_iter().fold(unlogged, u64::saturating_add)
    }

    /// Samples that all ranks processed together; where workers come and go, those of the whole steps.
    pub fn examples(&self) -> u64 {
        if let Some(membership) = &self.membership {
            let logged: Vec<u64> = (0..self.steps()).map(|k| self.step_examples(k)).collect();
            // Steps that nobody logged had as many as the others, if those all had as many.
            let same = logged.first().filter(|first| logged.iter().all(|examples| examples == *first));
            let unlogged = same.map_or(0, |examples| examples.saturating_mul(membership.unlogged));
            return logged.into_iter().fold(unlogged, u64::saturating_add);
        }
        let steps = self.ranks.iter().flat_map(|rank| &rank.steps);
        steps.map(|step| step.examples).sum()
    }

    /// The tests of the network, in order.
    pub fn evaluations(&self) -> impl Iterator<Item = &EvalRecord> {
        let launcher = self.membership.iter().flat_map(|membership| &membership.evaluations);
        launcher.chain(self.ranks.iter().flat_map(|rank| &rank.evaluations))
    }

    /// The global steps: step k lasts from the latest end of k - 1 until the last rank finished k and
    /// went on to evaluation or checkpoints, if any were due. Ranks that do not wait for each other have no common steps:
    /// there the ranks' own rates are summed.
    pub fn global_steps(&self) -> Vec<Work> {
        let Some(training) = self.training() else {
            return Vec::new();
        };
        if self.is_independent() {
            return self.independent_steps();
        }
        let mut begin = training.begin;
        let step = |(k, (done, end)): (usize, (Nanos, Nanos))| {
            let work = Work { amount: self.step_examples(k) as f64, seconds: done.since(begin).seconds() };
            begin = end;
            work
        };
        self.ends().enumerate().map(step).collect()
    }

    /// For each global step, the latest time at which a rank finished it, without evaluation and checkpoints, and the
    /// latest at which it ended.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (Nanos, Nanos)> {
        let latest =
            |k: usize, of: fn(&StepRecord) -> Nanos| self.records(k).map(of).max().unwrap_or_default();
        (0..self.steps())
            .map(move |k| (latest(k, |step| step.end.since(pause(step))), latest(k, |step| step.end)))
    }

    fn is_independent(&self) -> bool {
        self.case().update.as_deref() == Some("independent")
    }

    /// Steps of independent ranks: the work of all ranks, in the mean of their times weighted by their rates.
    /// So the rate of all steps is the sum of the ranks' rates.
    fn independent_steps(&self) -> Vec<Work> {
        let time = |step: &StepRecord| own_time(step).seconds();
        let rate = |rank: &RankLog| {
            let examples: u64 = rank.steps.iter().map(|step| step.examples).sum();
            examples as f64 / rank.steps.iter().map(time).sum::<f64>()
        };
        let rates: Vec<f64> = self.ranks.iter().map(rate).collect();
        let all: f64 = rates.iter().sum();
        let step = |k: usize| {
            let parts = || self.ranks.iter().map(move |rank| &rank.steps[k]);
            Work {
                amount: parts().map(|step| step.examples as f64).sum(),
                seconds: parts().zip(&rates).map(|(step, rate)| rate / all * time(step)).sum(),
            }
        };
        (0..self.steps()).map(step).collect()
    }

    /// Seconds of the training spent on evaluation and checkpoints: training time minus the global steps. For independent
    /// ranks, the mean.
    pub fn paused(&self) -> f64 {
        if self.is_independent() {
            return self.sum_steps(pause) / self.ranks.len() as f64;
        }
        self.ends().map(|(done, end)| end.since(done)).sum::<Nanos>().seconds()
    }

    /// Seconds of `of` over all steps of all ranks.
    pub fn sum_steps(&self, of: impl Fn(&StepRecord) -> Nanos) -> f64 {
        let steps = self.ranks.iter().flat_map(|rank| &rank.steps);
        steps.map(of).sum::<Nanos>().seconds()
    }

    /// Mean over the ranks of the loss of a step; where workers come and go, the loss of the whole step.
    pub fn loss(&self, step: usize) -> Option<f64> {
        if self.membership.is_some() {
            let whole = (step < self.steps()).then(|| self.whole(step))?;
            return whole?.loss.map(f64::from);
        }
        let losses: Option<Vec<f64>> =
            self.ranks.iter().map(|rank| rank.steps.get(step)?.loss.map(f64::from)).collect();
        let losses = losses.filter(|losses| !losses.is_empty())?;
        Some(losses.iter().sum::<f64>() / losses.len() as f64)
    }
}

/// Adds up what was waited for whom.
pub(crate) fn add_waits(sums: &mut BTreeMap<Who, Waited>, more: impl IntoIterator<Item = (Who, Waited)>) {
    for (late, waited) in more {
        let sum = sums.entry(late).or_default();
        sum.time += waited.time;
        sum.steps += waited.steps;
    }
}
