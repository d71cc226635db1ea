//! A run on a machine that does not exist: a discrete-event simulation on a virtual clock, in one process, that leaves the
//! same logs as real workers. What [`Simulation`] plants is the only cause of what the logs show.
//!
//! A rank's step is a worker's: load, forward, backward with the exchange beside it, update, and what is due after the step.
//! Ranks meet only in the exchange. Random draws depend on the job's seed, the rank and the step, and each cause has its own
//! stream, so planting one cause does not change another.

mod elastic;
mod machine;
mod network;
mod noise;
mod workload;

use std::fs;
use std::sync::atomic::Ordering;

use paceline_record::log::{LauncherWriter, RankWriter};
use paceline_record::{
    Bytes, Exit, LauncherEvent, Nanos, Phase, PhaseTimes, Rank, RankEvent, RankHeader, Scheduling, Step,
    StepRecord,
};

use crate::data::Draw;
use crate::launcher::{Failure, Glance, Surroundings, words_file};
use crate::{Job, Publish, TrainError, worker};

pub use machine::Simulation;
use network::{Lane, Rules};
use workload::Workload;

/// Its name for `--engine`.
pub(crate) const ENGINE: &str = "simulated";

/// Steps between two progress reports.
const TOLD: u64 = 100;

/// Streams of random numbers, one for each cause.
const JITTER: u64 = 0x717e;
const HICCUP: u64 = 0x41cc;

/// A time in nanoseconds, scaled by a factor.
fn scaled(factor: f64, time: f64) -> Nanos {
    Nanos((factor * time).round() as u64)
}

/// Whether a job can be simulated.
pub(crate) fn check(job: &Job) -> Result<(), TrainError> {
    Workload::new(job).map(|_| ())
}

/// Runs a job on its simulated machine, and writes what its ranks and its launcher would have written.
pub(crate) fn run(
    job: &Job,
    surroundings: Surroundings<'_>,
    log: &mut LauncherWriter,
) -> Result<Option<Failure>, TrainError> {
    if let Some(elastic) = &job.elastic {
        return elastic::run(job, elastic, surroundings, log).map(|()| None);
    }
    let world = World { job, workload: Workload::new(job)? };
    let mut workers = world.start(log)?;
    let mut deadline = world.foresee_death(&workers);
    let mut interrupted = false;
    let mut passes = 0.0;
    for step in (0..job.steps).map(Step) {
        interrupted = surroundings.interrupted.load(Ordering::Relaxed);
        deadline = deadline.or_else(|| world.meet_death(step, &workers));
        if interrupted || (deadline.is_some() && world.exchanges()) {
            break;
        }
        let running = workers.iter().filter(|worker| worker.runs);
        let parts: Vec<Part> = running.map(|worker| world.part(worker.rank, worker.at)).collect();
        let records = world.step(step, &parts);
        for (worker, record) in workers.iter_mut().filter(|worker| worker.runs).zip(records) {
            worker.live_through(record, deadline)?;
        }
        passes += if job.profile { world.pace(0, step).factor } else { 0.0 };
        if step.0.is_multiple_of(TOLD) {
            (surroundings.progress)(Glance { steps: step.0 + 1, events: &[], said: &[] });
        }
    }
    if job.profile {
        let accumulated = job.accumulate as u64;
        let times = world.workload.layer_times(job.steps * accumulated, passes * accumulated as f64);
        worker::write_layers(job, &times)?;
    }
    let failure = match (interrupted, job.simulation.fail) {
        (true, _) => Some((workers.iter().map(|worker| worker.at).max().unwrap_or_default(), None)),
        (false, Some((rank, _))) => deadline.map(|at| (at, Some(rank))),
        (false, None) => None,
    };
    world.end(workers, failure, log)
}

/// A simulated worker.
struct Worker {
    rank: Rank,
    log: RankWriter,
    /// Where its last step ended.
    at: Nanos,
    /// Whether it is still running.
    runs: bool,
}

impl Worker {
    /// Logs a step, unless the run is over before it ends.
    fn live_through(&mut self, record: StepRecord, deadline: Option<Nanos>) -> Result<(), TrainError> {
        if deadline.is_some_and(|deadline| record.end >= deadline) {
            self.runs = false;
            return Ok(());
        }
        self.at = record.end;
        Ok(self.log.append(&RankEvent::Step(record))?)
    }
}

/// A rank's part in a step.
#[derive(Clone, Copy, Debug)]
struct Part {
    rank: Rank,
    /// The number that random draws and a straggler know it by.
    number: u32,
    /// When it begins.
    begin: Nanos,
    /// Passes that it runs.
    passes: u64,
    /// How many times slower than usual it computes.
    slow: f64,
    /// Time that it stands still, before its backward.
    lost: Nanos,
}

/// Largest part of its computation that a rank may be off its core: it has to come to its end.
const MOST_OFF_CORE: f64 = 0.99;

/// How fast a rank is in a step.
struct Pace {
    /// How much slower than full speed it computes.
    factor: f64,
    /// Time that it loses.
    lost: Nanos,
}

/// A job, and what it costs.
struct World<'a> {
    job: &'a Job,
    workload: Workload,
}

impl World<'_> {
    fn exchanges(&self) -> bool {
        !self.workload.parcels.is_empty()
    }

    /// A cost that grows with the number of workers.
    fn per_worker(&self, time: Nanos) -> Nanos {
        Nanos(time.0 * u64::from(self.job.workers - 1))
    }

    /// Starts the workers; they begin their first step together.
    fn start(&self, log: &mut LauncherWriter) -> Result<Vec<Worker>, TrainError> {
        let (job, machine) = (self.job, &self.job.simulation);
        let mut workers = Vec::new();
        for rank in (0..job.workers).map(Rank) {
            let spawned = Nanos(machine.spawn.0 * u64::from(rank.0));
            log.append(&LauncherEvent::Spawn { rank, at: spawned })?;
            let header = RankHeader::new(rank, job.workers);
            let mut log = RankWriter::create(&job.folder, &header)?.collecting();
            let main = spawned + machine.launch;
            let at = main + machine.init + self.per_worker(machine.init_per_worker);
            // It is not a process: no system uses this number.
            log.append(&RankEvent::Main { at: main, pid: 0 })?;
            log.append(&RankEvent::Compiled { at, planned: Some(self.workload.memory) })?;
            workers.push(Worker { rank, log, at, runs: true });
        }
        let begin = workers.iter().map(|worker| worker.at).max().unwrap_or_default();
        workers.iter_mut().for_each(|worker| worker.at = begin);
        Ok(workers)
    }

    /// The usual part of a rank.
    fn part(&self, rank: Rank, begin: Nanos) -> Part {
        let passes = self.job.accumulate as u64;
        Part { rank, number: rank.0, begin, passes, slow: 1.0, lost: Nanos(0) }
    }

    fn pace(&self, number: u32, step: Step) -> Pace {
        let machine = &self.job.simulation;
        let further = self.job.workers - 1;
        let mut factor = 1.0 + machine.contention * f64::from(further);
        if let Some((steps, slower)) = machine.warmup {
            factor *= 1.0 + (slower - 1.0) * (1.0 - step.0 as f64 / steps as f64).max(0.0);
        }
        if let Some((_, slower)) = machine.slowdown.filter(|&(from, _)| step >= from) {
            factor *= slower;
        }
        if let Some((_, slower)) = machine.straggler.filter(|&(who, _)| who.0 == number && further > 0) {
            factor *= slower;
        }
        let draw = |cause| Draw::new(&[self.job.seed, u64::from(number), step.0, cause]);
        if machine.jitter > 0.0 {
            // Log-normal, with mean 1.
            factor *= (machine.jitter * draw(JITTER).normal() - 0.5 * machine.jitter.powi(2)).exp();
        }
        if let Some(noise) = &self.workload.noise {
            factor *= noise.factor(self.job.seed, number, step.0);
        }
        let hiccup = machine.hiccup.filter(|&(chance, _)| f64::from(draw(HICCUP).unit()) < chance);
        Pace { factor, lost: hiccup.map_or(Nanos(0), |(_, time)| time) }
    }

    /// A rank's step up to the backward of its last pass.
    fn open(&self, part: Part, step: Step) -> (StepRecord, Lane) {
        let Part { number, begin, passes, .. } = part;
        let pace = self.pace(number, step);
        let off_core = self.job.simulation.off_core.min(MOST_OFF_CORE);
        let (factor, lost) = (pace.factor * part.slow / (1.0 - off_core), pace.lost + part.lost);
        let times = |time: Nanos, count: u64| Nanos(time.0 * count);
        let backward = scaled(self.workload.backward, factor);
        let mut record = StepRecord::open(step, begin);
        record.book(Phase::Load, times(self.workload.load, passes));
        record.book(Phase::Forward, times(scaled(self.workload.forward, factor), passes) + lost);
        record.book(Phase::Backward, times(backward, passes.saturating_sub(1)));
        // Who has nothing to compute is ready for the exchange at once.
        let lane = Lane::new(begin + record.phases.total(), if passes > 0 { factor } else { 0.0 });
        record.book(Phase::Backward, times(backward, passes.min(1)));
        if off_core > 0.0 {
            let mut off = PhaseTimes::default();
            off[Phase::Forward] = scaled(off_core, record.phases[Phase::Forward].since(lost).0 as f64);
            off[Phase::Backward] = scaled(off_core, record.phases[Phase::Backward].0 as f64);
            let queued = Some(off.total());
            record.scheduling =
                Some(Box::new(Scheduling { off_core: Some(off), queued, ..Scheduling::default() }));
        }
        record.examples = passes * self.job.batch as u64;
        record.loss = Some(self.loss(step));
        (record, lane)
    }

    /// Starts at the loss of a random guess and falls to a tenth of it; half of the way takes about a hundred steps.
    fn loss(&self, step: Step) -> f32 {
        let guess = (self.job.classes.max(2) as f32).ln();
        guess * (0.1 + 0.9 / (1.0 + step.0 as f32 / 100.0))
    }

    /// One step of the ranks that still run, each from its own start.
    fn step(&self, step: Step, parts: &[Part]) -> Vec<StepRecord> {
        let opened = parts.iter().map(|&part| self.open(part, step));
        let (mut records, mut lanes): (Vec<_>, Vec<_>) = opened.unzip();
        let parcels = &self.workload.parcels;
        let fraction = self.job.simulation.comm_cpu;
        let rules = Rules { overlap: self.job.exchange.overlap, fraction, backward: self.workload.backward };
        let windows = network::exchange(&mut lanes, parcels, rules);
        for ((lane, record), part) in lanes.iter_mut().zip(&mut records).zip(parts) {
            lane.settle(parcels, &windows, fraction, record);
            let update = self.workload.update(part.rank);
            record.book(Phase::Update, update);
            lane.at += update;
        }
        if self.exchanges() && self.job.plan().publish != Publish::Nothing {
            self.hand_out(&mut lanes, &mut records);
        }
        for (lane, record) in lanes.into_iter().zip(&mut records) {
            self.close(lane.at, record);
        }
        records
    }

    /// Waits until all parameters are updated, and fetches them from the server if there is one. As with real workers, no rank
    /// counts as late here: the time is the exchange's.
    fn hand_out(&self, lanes: &mut [Lane], records: &mut [StepRecord]) {
        let updated = lanes.iter().map(|lane| lane.at).max().unwrap_or_default();
        let wait = |record: &mut StepRecord, time: Nanos| {
            record.book(Phase::CommWait, time);
            record.comm_busy += time;
        };
        for (rank, (lane, record)) in (0..).map(Rank).zip(lanes.iter_mut().zip(records)) {
            let plan = self.job.update.plan(rank, self.job.workers);
            wait(record, updated.since(lane.at));
            lane.at = updated + self.workload.fetch;
            if plan.is_server() {
                wait(record, self.workload.fetch);
            } else if plan.publish == Publish::FromServer {
                record.book(Phase::CopyIn, self.workload.fetch);
                // A rank's own part of what passes through the server's link.
                let world = u64::from(self.job.workers);
                record.buckets.iter_mut().for_each(|bucket| bucket.moved.0 /= world);
            }
        }
    }

    /// Ends a step with what is due after it.
    fn close(&self, at: Nanos, record: &mut StepRecord) {
        let machine = &self.job.simulation;
        if record.comm_busy > Nanos(0) {
            let exposed = record.phases[Phase::CommWait] + record.phases[Phase::CommCpu];
            record.overlapped = Some(record.comm_busy.since(exposed));
        }
        record.end = at + machine.other;
        for (phase, due) in [(Phase::Eval, machine.eval), (Phase::Checkpoint, machine.checkpoint)] {
            if let Some((every, time)) = due
                && (record.step.0 + 1).is_multiple_of(every)
            {
                record.book(phase, time);
                record.end += time;
            }
        }
    }

    /// When the planted death happens, if ranks do not exchange: the others run on until then.
    fn foresee_death(&self, workers: &[Worker]) -> Option<Nanos> {
        let (rank, last) = self.job.simulation.fail.filter(|_| !self.exchanges())?;
        let mut at = workers.get(rank.0 as usize)?.at;
        for step in (0..last.0.min(self.job.steps)).map(Step) {
            at = self.step(step, &[self.part(rank, at)])[0].end;
        }
        (last.0 < self.job.steps).then(|| self.death(self.part(rank, at), last))
    }

    /// When the planted death happens, if it is in this step.
    fn meet_death(&self, step: Step, workers: &[Worker]) -> Option<Nanos> {
        let (rank, last) = self.job.simulation.fail.filter(|_| self.exchanges())?;
        let worker = workers.get(rank.0 as usize)?;
        (step == last).then(|| self.death(self.part(rank, worker.at), last))
    }

    /// A rank dies before its backward.
    fn death(&self, part: Part, step: Step) -> Nanos {
        let (record, _) = self.open(part, step);
        part.begin + record.phases[Phase::Load] + record.phases[Phase::Forward]
    }

    /// Ends the workers. A failure has a time and a rank; without a rank it is an interruption by the user.
    fn end(
        &self,
        workers: Vec<Worker>,
        failure: Option<(Nanos, Option<Rank>)>,
        log: &mut LauncherWriter,
    ) -> Result<Option<Failure>, TrainError> {
        let machine = &self.job.simulation;
        let mut reaped = Vec::new();
        for Worker { rank, mut log, at, runs } in workers {
            // A failure stops ranks that wait for others, and ranks that were still running.
            let stopped = failure.filter(|(_, who)| who.is_none() || self.exchanges() || !runs);
            let reap = match stopped {
                Some((moment, who)) => {
                    let exit = if who == Some(rank) { Exit::Code(1) } else { Exit::Signal(9) };
                    (moment.max(at), rank, exit)
                }
                None => {
                    let (peak_resident, shared) = (Some(self.workload.memory), Some(Bytes(0)));
                    log.append(&RankEvent::Done { at, peak_resident, shared, peak_device: None })?;
                    (at + machine.tail + self.per_worker(machine.tail_per_worker), rank, Exit::Code(0))
                }
            };
            log.flush()?;
            reaped.push(reap);
        }
        reaped.sort_by_key(|&(at, rank, _)| (at, rank));
        for (at, rank, exit) in reaped {
            log.append(&LauncherEvent::Reap { rank, at, exit })?;
        }
        let Some((_, who)) = failure else { return Ok(None) };
        let Some(rank) = who else { return Ok(Some(Failure::Interrupted)) };
        let path = words_file(&self.job.folder, rank);
        fs::write(&path, "error: the simulation ends this rank\n")
            .map_err(TrainError::system(format!("write {}", path.display())))?;
        Ok(Some(Failure::Died(rank, Exit::Code(1))))
    }
}

#[cfg(test)]
mod tests;
