//! The logs of one case, read and checked against each other.

use std::path::Path;

use paceline_record::log::{LauncherLog, RankLog};
use paceline_record::{Case, Nanos, Outcome, Phase, PhaseTimes, Rank, StepRecord};

use crate::LabError;
use crate::stats::Work;

/// One run of a case, as its logs tell it.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the launcher told.
    pub launcher: LauncherLog,
    /// What each rank told. A rank that died before it could write anything is missing.
    pub ranks: Vec<RankLog>,
}

/// A moment at which something began, and the one at which it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Begin.
    pub begin: Nanos,
    /// End.
    pub end: Nanos,
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
        let launcher = LauncherLog::read(folder)?;
        let world = launcher.header.case.workers;
        let mut ranks = Vec::new();
        for rank in (0..world).map(Rank) {
            match RankLog::read(folder, rank) {
                Ok(log) if log.header.rank == rank && log.header.world == world => ranks.push(log),
                Ok(log) => {
                    return Err(LabError::Contradiction {
                        folder: folder.into(),
                        why: format!(
                            "the log of rank {rank} of {world} says rank {} of {}",
                            log.header.rank, log.header.world
                        ),
                    });
                }
                Err(error) if launcher.outcome() == Outcome::Done => return Err(error.into()),
                Err(_) => {}
            }
        }
        let run = Self { launcher, ranks };
        if run.launcher.outcome() == Outcome::Done {
            run.check_complete(folder)?;
        }
        Ok(run)
    }

    /// A finished run has a span, and all its ranks did the same steps within it.
    fn check_complete(&self, folder: &Path) -> Result<(), LabError> {
        let contradiction = |why: String| LabError::Contradiction { folder: folder.into(), why };
        let whole =
            self.span().ok_or_else(|| contradiction("a finished run without a spawn and a reap".into()))?;
        for log in &self.ranks {
            let rank = log.header.rank;
            let (Some(main), Some(first), Some(last)) = (log.main, log.steps.first(), log.steps.last())
            else {
                return Err(contradiction(format!("rank {rank} finished without a step")));
            };
            if log.steps.len() != self.ranks[0].steps.len() {
                return Err(contradiction(format!(
                    "rank {rank} did {} steps, rank 0 did {}",
                    log.steps.len(),
                    self.ranks[0].steps.len()
                )));
            }
            if main < whole.begin || first.begin < main || whole.end < last.end {
                return Err(contradiction(format!("rank {rank} reports times outside of the run")));
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

    /// Steps that every rank finished.
    pub fn steps(&self) -> usize {
        let finished = self.ranks.iter().map(|rank| rank.steps.len()).min();
        finished.unwrap_or(0)
    }

    /// Samples that all ranks together worked on.
    pub fn examples(&self) -> u64 {
        let steps = self.ranks.iter().flat_map(|rank| &rank.steps);
        steps.map(|step| step.examples).sum()
    }

    /// The global steps: step k lasts from the latest end of k - 1 to the latest end of k over the ranks. Ranks that do
    /// not wait for each other have no step in common: there the ranks' own rates are summed.
    pub fn global_steps(&self) -> Vec<Work> {
        let Some(training) = self.training() else {
            return Vec::new();
        };
        if self.case().update.as_deref() == Some("independent") {
            return (0..self.steps()).map(|step| self.independent_step(step)).collect();
        }
        let mut begin = training.begin;
        let step = |k: usize| {
            let parts = self.ranks.iter().map(|rank| &rank.steps[k]);
            let end = parts.clone().map(|step| step.end).max();
            let end = end.expect("invariant: training has ranks");
            let work = Work {
                amount: parts.map(|step| step.examples as f64).sum(),
                seconds: end.since(begin).seconds(),
            };
            begin = end;
            work
        };
        (0..self.steps()).map(step).collect()
    }

    /// A step of each rank by itself: as much work as all did, at the sum of their rates.
    fn independent_step(&self, step: usize) -> Work {
        let parts = self.ranks.iter().map(|rank| &rank.steps[step]);
        let amount = parts.clone().map(|step| step.examples as f64).sum();
        let rate: f64 = parts.map(|step| step.examples as f64 / step.end.since(step.begin).seconds()).sum();
        Work { amount, seconds: amount / rate }
    }

    /// Seconds of `of` over all steps of all ranks.
    pub fn sum_steps(&self, of: impl Fn(&StepRecord) -> Nanos) -> f64 {
        let steps = self.ranks.iter().flat_map(|rank| &rank.steps);
        steps.map(of).sum::<Nanos>().seconds()
    }

    /// Mean over the ranks of the loss of a step.
    pub fn loss(&self, step: usize) -> Option<f64> {
        let losses: Option<Vec<f64>> =
            self.ranks.iter().map(|rank| rank.steps.get(step)?.loss.map(f64::from)).collect();
        let losses = losses.filter(|losses| !losses.is_empty())?;
        Some(losses.iter().sum::<f64>() / losses.len() as f64)
    }
}

/// The time of a rank over a run's span in seconds, tiled by phases; their sum is the span's length.
///
/// `other` is what is left. It is negative where phases, timed on a device's own clock, overlap the host's.
pub fn tile(rank: &RankLog, span: Span) -> Option<[f64; Phase::ALL.len()]> {
    let (first, last) = (rank.steps.first()?, rank.steps.last()?);
    let main = rank.main?;
    let mut times = PhaseTimes::default();
    for (phase, time) in rank.steps.iter().flat_map(|step| step.phases.iter()) {
        times[phase] += time;
    }
    times[Phase::Launch] += main.since(span.begin);
    times[Phase::Init] += first.begin.since(main);
    times[Phase::Tail] += span.end.since(last.end);
    let known = times.total().seconds() - times[Phase::Other].seconds();
    Some(Phase::ALL.map(|phase| match phase {
        Phase::Other => span.seconds() - known,
        _ => times[phase].seconds(),
    }))
}
