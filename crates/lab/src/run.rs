//! The logs of one case, read and checked against each other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use paceline_record::log::{LauncherLog, RankLog};
use paceline_record::{Case, LogError, Nanos, Outcome, Phase, Rank, StepRecord};

use crate::LabError;
use crate::stats::Work;

/// One run of a case, from its logs.
#[derive(Clone, Debug)]
pub struct Run {
    /// The launcher's log.
    pub launcher: LauncherLog,
    /// The logs of the ranks, without the single exchanges of their steps. A rank that died before it could write anything
    /// is missing.
    pub ranks: Vec<RankLog>,
    /// Waiting for late ranks, by the rank that was late.
    pub waited_for: BTreeMap<Rank, Waited>,
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
        let launcher = LauncherLog::read(folder)?;
        let mut run = Self { launcher, ranks: Vec::new(), waited_for: BTreeMap::new() };
        let (world, outcome) = (run.case().workers, run.launcher.outcome());
        for (rank, read) in read_ranks(folder, world) {
            match read {
                Ok(read) if read.log.header.rank == rank && read.log.header.world == world => {
                    for (late, waited) in read.waited_for {
                        let sum = run.waited_for.entry(late).or_default();
                        sum.time += waited.time;
                        sum.steps += waited.steps;
                    }
                    run.ranks.push(read.log);
                }
                Ok(RankRead { log, .. }) => {
                    return Err(LabError::Contradiction {
                        folder: folder.into(),
                        why: format!(
                            "the log of rank {rank} of {world} says rank {} of {}",
                            log.header.rank, log.header.world
                        ),
                    });
                }
                Err(error) if outcome == Outcome::Done => return Err(error.into()),
                Err(_) => {}
            }
        }
        if outcome == Outcome::Done {
            run.check_complete(folder)?;
        }
        Ok(run)
    }

    /// A finished run has a span, and all its ranks did the same steps within it.
    fn check_complete(&self, folder: &Path) -> Result<(), LabError> {
        let contradiction = |why: String| LabError::Contradiction { folder: folder.into(), why };
        let whole = self
            .span()
            .ok_or_else(|| contradiction("the run is finished, but its spawn or reap is missing".into()))?;
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
                return Err(contradiction(format!("rank {rank} reports times outside the run")));
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

    /// Records of steps that every rank finished.
    pub fn steps(&self) -> usize {
        let finished = self.ranks.iter().map(|rank| rank.steps.len()).min();
        finished.unwrap_or(0)
    }

    /// How many steps each record stands for, by the first rank.
    pub fn covers(&self) -> Vec<u64> {
        let first = self.ranks.first().into_iter().flat_map(|rank| &rank.steps);
        first.take(self.steps()).map(covers).collect()
    }

    /// Steps that every rank finished.
    pub fn steps_done(&self) -> u64 {
        self.covers().into_iter().fold(0, u64::saturating_add)
    }

    /// Samples that all ranks processed together.
    pub fn examples(&self) -> u64 {
        let steps = self.ranks.iter().flat_map(|rank| &rank.steps);
        steps.map(|step| step.examples).sum()
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
            let examples = self.ranks.iter().map(|rank| rank.steps[k].examples as f64);
            let work = Work { amount: examples.sum(), seconds: done.since(begin).seconds() };
            begin = end;
            work
        };
        self.ends().enumerate().map(step).collect()
    }

    /// For each global step, the latest time at which a rank finished it, without evaluation and checkpoints, and the
    /// latest at which it ended.
    fn ends(&self) -> impl Iterator<Item = (Nanos, Nanos)> {
        let latest = |k: usize, of: fn(&StepRecord) -> Nanos| {
            self.ranks.iter().map(|rank| of(&rank.steps[k])).max().unwrap_or_default()
        };
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

    /// Mean over the ranks of the loss of a step.
    pub fn loss(&self, step: usize) -> Option<f64> {
        let losses: Option<Vec<f64>> =
            self.ranks.iter().map(|rank| rank.steps.get(step)?.loss.map(f64::from)).collect();
        let losses = losses.filter(|losses| !losses.is_empty())?;
        Some(losses.iter().sum::<f64>() / losses.len() as f64)
    }
}

/// The content of one rank's log.
struct RankRead {
    log: RankLog,
    waited_for: BTreeMap<Rank, Waited>,
}

/// Reads the logs of all ranks in parallel, and sorts them.
fn read_ranks(folder: &Path, world: u32) -> Vec<(Rank, Result<RankRead, LogError>)> {
    let next = AtomicU32::new(0);
    let read_some = || {
        let mut some = Vec::new();
        loop {
            let rank = Rank(next.fetch_add(1, Ordering::Relaxed));
            if rank.0 >= world {
                return some;
            }
            some.push((rank, read_rank(folder, rank)));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(world as usize);
    let mut all = thread::scope(|scope| {
        let readers: Vec<_> = (1..threads).map(|_| scope.spawn(read_some)).collect();
        let mut all = read_some();
        for reader in readers {
            all.extend(reader.join().expect("invariant: reading does not panic"));
        }
        all
    });
    all.sort_by_key(|&(rank, _)| rank);
    all
}

fn read_rank(folder: &Path, rank: Rank) -> Result<RankRead, LogError> {
    let mut waited_for: BTreeMap<Rank, Waited> = BTreeMap::new();
    let log = RankLog::read_folding(folder, rank, |step| {
        let buckets = std::mem::take(&mut step.buckets);
        // No number is made of it, and a long run's would fill the memory.
        step.scheduling = None;
        for bucket in &buckets {
            waited_for.entry(bucket.last_rank).or_default().time += bucket.waited_late;
        }
        let longest = buckets.iter().max_by_key(|bucket| bucket.waited_late);
        if let Some(longest) = longest.filter(|bucket| !bucket.waited_late.is_zero()) {
            waited_for.entry(longest.last_rank).or_default().steps += 1;
        }
    })?;
    Ok(RankRead { log, waited_for })
}
