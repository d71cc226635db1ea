//! The logs of the workers of one launcher.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::thread;

use paceline_record::log::{LauncherLog, RankLog, WorkerHeader};
use paceline_record::{LogError, MemberHeader, Nanos, Outcome, Phase, Rank, RankHeader, StepRecord, Who};

use super::machines::Machine;
use super::{Waited, add_waits, arrivals, machines, sample};
use crate::hosts::clock::Clock;
use crate::{LabError, membership};

/// The logs of all workers that one launcher started.
pub(crate) struct Crew {
    /// One of each.
    pub ranks: Vec<RankLog>,
    /// Waiting for late ranks, by the rank that was late.
    pub waited_for: BTreeMap<Who, Waited>,
    /// Of each log, what is known of the exchanges of its steps; empty for a run on one host, which needs none of it.
    pub arrivals: Vec<Vec<Arrival>>,
    /// Of ranks on other machines than the first, their clocks; the logs are on the first one's already.
    pub clocks: BTreeMap<Who, Clock>,
}

/// What the exchanges of a step tell, as one worker saw them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    /// When the last gradients of its own host were there.
    pub at: Option<Nanos>,
    /// Who brought them.
    pub last: Option<Who>,
    /// Whom it waited for longest, and how long.
    pub blamed: Option<Who>,
    pub waited: Nanos,
}

impl Crew {
    /// Reads the logs that a launcher's log tells of.
    pub(crate) fn read(folder: &Path, launcher: &LauncherLog) -> Result<Self, LabError> {
        let (world, outcome) = (launcher.header.case.workers, launcher.outcome());
        let members = membership::members(launcher);
        let elastic = !members.is_empty();
        let workers: Vec<Who> = match elastic {
            true => members.into_iter().map(Who::Member).collect(),
            false => (0..world).map(|rank| Who::Rank(Rank(rank))).collect(),
        };
        let mut crew = Self {
            ranks: Vec::new(),
            waited_for: BTreeMap::new(),
            arrivals: Vec::new(),
            clocks: BTreeMap::new(),
        };
        let mut absent = Vec::new();
        for (who, read) in read_workers(folder, launcher, &workers) {
            match read {
                Ok(read) if is_whose(&read.log.header, who, world) => {
                    add_waits(&mut crew.waited_for, read.waited_for);
                    crew.ranks.push(read.log);
                    crew.arrivals.push(read.arrivals);
                }
                Ok(WorkerRead { log, .. }) => {
                    let why = match &log.header {
                        WorkerHeader::Rank(RankHeader { rank, world: said, .. }) => {
                            format!("the log of {who} of {world} says rank {rank} of {said}")
                        }
                        WorkerHeader::Member(header) => {
                            format!("the log of {who} says member {}", header.member)
                        }
                    };
                    return Err(LabError::Contradiction { folder: folder.into(), why });
                }
                // Whoever was lost before its first instruction left no log.
                Err(LogError::Io { source, .. }) if elastic && source.kind() == io::ErrorKind::NotFound => {
                    crew.wrote_nothing(who);
                }
                Err(LogError::Io { source, .. })
                    if outcome == Outcome::Done && source.kind() == io::ErrorKind::NotFound =>
                {
                    absent.push(who.number().to_string());
                }
                Err(error) if outcome == Outcome::Done => return Err(error.into()),
                Err(_) if elastic => crew.wrote_nothing(who),
                Err(_) => {}
            }
        }
        if !absent.is_empty() {
            let (rank, is) = if absent.len() == 1 { ("rank", "is") } else { ("ranks", "are") };
            let why = format!(
                "what {rank} {} of {world} logged {is} not here; if that was on another machine, copy the files of its folder of \
                 this case here",
                absent.join(", ")
            );
            return Err(LabError::Contradiction { folder: folder.into(), why });
        }
        Ok(crew)
    }

    /// Compares ranks that told only of themselves, and completes steps that were not measured. Of ranks that are not all there
    /// nobody knows who was late.
    pub(super) fn complete(
        &mut self,
        folder: &Path,
        launcher: &LauncherLog,
        machines: &[Machine],
    ) -> Result<(), LabError> {
        let contradiction = |why: String| LabError::Contradiction { folder: folder.into(), why };
        self.clocks = machines::clocks(&self.ranks, launcher, machines).map_err(contradiction)?;
        for log in &mut self.ranks {
            if let Some(clock) = self.clocks.get(&log.header.who()) {
                let who = log.header.who();
                let far =
                    || contradiction(format!("{who} has moments that no reading of its clock is near to"));
                machines::set(log, clock).ok_or_else(far)?;
            }
        }
        self.cut_to_common_steps();
        let raw = self.ranks.iter().flat_map(|log| &log.steps).any(|step| !step.arrivals.is_empty());
        if raw && self.ranks.len() == launcher.header.case.workers as usize {
            arrivals::compare(&mut self.ranks);
            for step in self.ranks.iter_mut().flat_map(|log| &mut log.steps) {
                count_waits(step, &|_, rank| Some(Who::Rank(rank)), &mut self.waited_for);
            }
        }
        for log in &mut self.ranks {
            for step in &mut log.steps {
                (step.arrivals, step.waits) = (Vec::new(), Vec::new());
            }
            sample::fill(&mut log.steps);
            if let (false, WorkerHeader::Rank(header)) = (sample::is_measured(&log.steps), &mut log.header) {
                header.untold = Phase::ALL.into();
            }
        }
        Ok(())
    }

    /// Leaves out the steps of ranks that were followed which others did not do, as when one was lost, or its data ended earlier.
    fn cut_to_common_steps(&mut self) {
        let is_followed =
            |log: &RankLog| matches!(&log.header, WorkerHeader::Rank(header) if header.case.is_some());
        let lengths = || self.ranks.iter().map(|log| log.steps.len());
        let (Some(fewest), Some(most)) = (lengths().min(), lengths().max()) else { return };
        if fewest == most || fewest == 0 || !self.ranks.iter().all(is_followed) {
            return;
        }
        let note = format!(
            "ranks logged between {fewest} and {most} steps: the first {fewest} of each are compared, and the time of the \
             others is in the tail"
        );
        for log in &mut self.ranks {
            log.steps.truncate(fewest);
            log.notes.push(note.clone());
        }
    }

    fn wrote_nothing(&mut self, who: Who) {
        self.ranks.push(empty_log(who));
        self.arrivals.push(Vec::new());
    }
}

/// Whether a log is the one that its name says.
fn is_whose(header: &WorkerHeader, who: Who, workers: u32) -> bool {
    let world = match header {
        WorkerHeader::Rank(header) => header.world == workers,
        WorkerHeader::Member(_) => true,
    };
    world && header.who() == who
}

/// The log of a worker that wrote nothing.
fn empty_log(who: Who) -> RankLog {
    let header = match who {
        Who::Rank(rank) => WorkerHeader::Rank(RankHeader::new(rank, 0)),
        Who::Member(member) => WorkerHeader::Member(MemberHeader { member, seat: 0, host: None }),
    };
    RankLog::empty(header)
}

/// The content of one worker's log.
struct WorkerRead {
    log: RankLog,
    waited_for: BTreeMap<Who, Waited>,
    arrivals: Vec<Arrival>,
}

/// Reads the logs of all workers in parallel, in their order.
fn read_workers(
    folder: &Path,
    launcher: &LauncherLog,
    workers: &[Who],
) -> Vec<(Who, Result<WorkerRead, LogError>)> {
    let places = membership::places(launcher);
    let named = |step: &StepRecord, rank: Rank| match workers.first() {
        Some(Who::Member(_)) => places.get(&(step.generation, rank)).copied().map(Who::Member),
        _ => Some(Who::Rank(rank)),
    };
    let read = |&who: &Who| {
        let mut read = read_worker(folder, who, &named);
        if let (Ok(read), None) = (&mut read, launcher.header.host) {
            read.arrivals = Vec::new();
        }
        (who, read)
    };
    let read_some = |some: &[Who]| some.iter().map(read).collect::<Vec<_>>();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let parts = workers.chunks(workers.len().div_ceil(threads).max(1));
    thread::scope(|scope| {
        let readers: Vec<_> = parts.map(|part| scope.spawn(move || read_some(part))).collect();
        let read =
            readers.into_iter().map(|reader| reader.join().expect("invariant: reading does not panic"));
        read.flatten().collect()
    })
}

/// Takes the exchanges out of a step, and counts who was waited for.
fn count_waits(
    step: &mut StepRecord,
    named: &impl Fn(&StepRecord, Rank) -> Option<Who>,
    waited_for: &mut BTreeMap<Who, Waited>,
) -> Arrival {
    let buckets = std::mem::take(&mut step.buckets);
    for bucket in &buckets {
        if let Some(late) = named(step, bucket.last_rank) {
            waited_for.entry(late).or_default().time += bucket.waited_late;
        }
    }
    let mut arrival = Arrival::default();
    let longest = buckets.iter().max_by_key(|bucket| bucket.waited_late);
    let longest = longest.filter(|bucket| !bucket.waited_late.is_zero());
    if let Some((bucket, late)) = longest.and_then(|it| Some((it, named(step, it.last_rank)?))) {
        waited_for.entry(late).or_default().steps += 1;
        (arrival.blamed, arrival.waited) = (Some(late), bucket.waited_late);
    }
    if let Some(last) = buckets.iter().max_by_key(|bucket| bucket.last_arrival) {
        (arrival.at, arrival.last) = (Some(last.last_arrival), named(step, last.last_rank));
    }
    arrival
}

/// Reads one log; `named` says who a rank was in a step.
fn read_worker(
    folder: &Path,
    who: Who,
    named: &impl Fn(&StepRecord, Rank) -> Option<Who>,
) -> Result<WorkerRead, LogError> {
    let mut waited_for: BTreeMap<Who, Waited> = BTreeMap::new();
    let mut arrivals = Vec::new();
    let fold = |step: &mut StepRecord| arrivals.push(count_waits(step, named, &mut waited_for));
    let log = match who {
        Who::Rank(rank) => RankLog::read_folding(folder, rank, fold)?,
        Who::Member(member) => RankLog::read_member_folding(folder, member, fold)?,
    };
    Ok(WorkerRead { log, waited_for, arrivals })
}
