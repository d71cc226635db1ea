//! One worker: the step loop.

use std::fs;

use paceline_engine::{Engine, Program, StepResult};
use paceline_record::log::RankWriter;
use paceline_record::{Bytes, LayerTime, Nanos, Phase, Rank, RankEvent, RankHeader, Step, StepRecord};

use crate::data::{Loader, Loading};
use crate::exchange::Exchange;
use crate::job::Assignment;
use crate::milestone::Course;
use crate::{Job, TrainError, affinity, clock, open_engine, process};

/// Name of the file in a case's folder that holds the time of each layer.
pub const LAYERS_FILE: &str = "layers.json";

/// Whether this process was started as a worker.
pub fn is_assigned() -> bool {
    std::env::var_os(Assignment::VARIABLE).is_some()
}

/// Does what the launcher assigned to this process, which began at `main`.
pub fn run(main: Nanos) -> Result<(), TrainError> {
    let Assignment { job, rank, launcher, segment } = Assignment::from_environment()?;
    process::die_with(launcher)?;
    let pinned = job.pin && affinity::pin(rank, job.workers, job.threads)?;
    let world = job.workers;
    let mut log = RankWriter::create(&job.folder, &RankHeader { rank, world })?;
    log.append(&RankEvent::Main { at: main, pid: std::process::id() })?;
    let engine = open_engine(&job.engine, job.threads, pinned)?;
    let exchange = Exchange::join(&job, rank, segment)?;
    train(&job, exchange, &*engine, &mut log)
}

/// Trains: load, feed, forward and backward, exchange and update, a line in the log, and now and then a test.
fn train(
    job: &Job,
    mut exchange: Exchange,
    engine: &dyn Engine,
    log: &mut RankWriter,
) -> Result<(), TrainError> {
    let (graph, rank, shares) = (job.graph()?, exchange.rank(), exchange.shares());
    let mut course = Course::new(job, &graph)?;
    let spec = job.spec_of(rank);
    let homes = exchange.homes(engine.trained_values(&graph, &spec)?);
    let mut program = engine.compile_in(&graph, &spec, &homes)?;
    log.append(&RankEvent::Compiled { at: clock::now(), planned: Some(Bytes(program.plan().total())) })?;
    let first = course.resume(&mut *program, &exchange)?;
    let mut loader = Loader::open(loading(job, rank, first)?)?;
    exchange.start(&mut *program, job)?;

    let turns = shares.len() * job.accumulate;
    let mut begin = clock::now();
    for step in (first..job.steps).map(Step) {
        let mut record = StepRecord::open(step, begin);
        let mut ready_time = Nanos(0);
        for turn in 0..turns {
            let pass = job.pass(step.0, &shares, turn);
            program.feed(clock::timed(&mut record, Phase::Load, || loader.next_batch())?)?;
            let complete = pass.share + 1 == shares.len();
            program.forward_backward(pass, &mut |ready| {
                if complete {
                    exchange.gradient_ready(ready);
                }
            })?;
            // Where nothing is exchanged the update follows on the device, without a wait in between.
            if exchange.exchanges() || turn + 1 < turns {
                ready_time += book(&mut record, program.finish()?, (job.batch, turns));
            }
        }
        let rate = job.learning.schedule.rate(step.0);
        exchange.finish(&mut *program, &mut record, (rate, ready_time))?;
        let result = program.finish()?;
        if !exchange.exchanges() {
            book(&mut record, result, (job.batch, turns));
        }
        record.book(Phase::Update, Nanos(result.update_ns));
        book_loader(&mut record, loader.cpu(), job);
        let told = course.reach(step.0 + 1, (&mut *program, &mut exchange), &mut record)?;
        record.correct = record.correct.filter(|_| graph.judges_labels());
        record.end = clock::now();
        begin = record.end;
        log.append(&RankEvent::Step(record))?;
        told.iter().try_for_each(|event| log.append(event))?;
    }

    if job.profile && rank == Rank(0) {
        write_layers(job, &layer_times(&*program))?;
    }
    log.append(&RankEvent::Done {
        at: clock::now(),
        peak_resident: process::peak_resident(),
        shared: process::shared_resident(),
        peak_device: program.peak_device().map(Bytes),
    })?;
    Ok(())
}

/// Books what the engine measured of a pass; what it spent in calls of the exchange is the exchange's to book.
fn book(record: &mut StepRecord, result: StepResult, (batch, turns): (usize, usize)) -> Nanos {
    for (phase, time) in [
        (Phase::CopyIn, result.copy_in_ns),
        (Phase::Forward, result.forward_ns),
        (Phase::Backward, result.backward_ns),
    ] {
        record.book(phase, Nanos(time));
    }
    record.examples += batch as u64;
    // The mean over the passes.
    record.loss = Some(record.loss.unwrap_or(0.0) + result.loss / turns as f32);
    record.correct = Some(record.correct.unwrap_or(0) + result.correct as u64);
    Nanos(result.ready_ns)
}

/// What the loader's threads computed on this worker's own cores was taken from forward and backward: it is loading.
fn book_loader(record: &mut StepRecord, cpu: Nanos, job: &Job) {
    if !job.pin {
        return;
    }
    let (forward, backward) = (record.phases[Phase::Forward], record.phases[Phase::Backward]);
    let both = forward + backward;
    let taken = Nanos(cpu.0 / job.threads as u64).min(both);
    let of_forward = Nanos((u128::from(taken.0) * u128::from(forward.0) / u128::from(both.0.max(1))) as u64);
    record.phases[Phase::Forward] = forward.since(of_forward);
    record.phases[Phase::Backward] = backward.since(taken.since(of_forward));
    record.book(Phase::Load, taken);
}

/// What a rank's loader hands out from a step on.
fn loading(job: &Job, rank: Rank, from_step: u64) -> Result<Loading, TrainError> {
    Ok(Loading {
        data: job.data.parse()?,
        input: job.input,
        classes: job.classes,
        seed: job.seed,
        batch: job.batch,
        passes: job.accumulate,
        shares: job.shares_of(rank),
        all_shares: job.shares(),
        from_step,
        augment: job.augment,
        threads: job.threads,
        log: job.log_samples.then(|| job.folder.join(format!("samples-{rank}.txt"))),
    })
}

fn layer_times(program: &dyn Program) -> Vec<LayerTime> {
    program
        .layer_times()
        .into_iter()
        .map(|layer| LayerTime {
            name: layer.name,
            calls: layer.calls,
            forward: Nanos(layer.forward_ns),
            backward: Nanos(layer.backward_ns),
            forward_flops: layer.forward_flops,
            backward_flops: layer.backward_flops,
        })
        .collect()
}

/// Leaves the time of each layer in the job's folder.
pub(crate) fn write_layers(job: &Job, layers: &[LayerTime]) -> Result<(), TrainError> {
    let path = job.folder.join(LAYERS_FILE);
    let text = serde_json::to_vec_pretty(layers).expect("invariant: times are plain data");
    fs::write(&path, text).map_err(TrainError::system(format!("write {}", path.display())))
}

#[cfg(test)]
mod tests;
