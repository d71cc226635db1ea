//! One worker: the step loop.

use std::fs;

use paceline_engine::{Engine, Pass, Program, StepResult};
use paceline_record::log::RankWriter;
use paceline_record::{Bytes, LayerTime, Nanos, Phase, Rank, RankEvent, RankHeader, Step, StepRecord};

use crate::data::{Augment, Loader, Loading};
use crate::exchange::Exchange;
use crate::job::Assignment;
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

/// Trains: load, feed, forward and backward, exchange and update, and a line in the log.
fn train(
    job: &Job,
    mut exchange: Exchange,
    engine: &dyn Engine,
    log: &mut RankWriter,
) -> Result<(), TrainError> {
    let (graph, rank) = (job.graph()?, exchange.rank());
    let homes = exchange.homes(engine.trained_values(&graph, &job.spec())?);
    let mut program = engine.compile_in(&graph, &job.spec(), &homes)?;
    log.append(&RankEvent::Compiled { at: clock::now(), planned: Some(Bytes(program.plan().total())) })?;
    let mut loader = Loader::open(Loading {
        data: job.data.parse()?,
        input: job.input,
        classes: job.classes,
        seed: job.seed,
        batch: job.batch,
        passes: job.accumulate,
        shares: rank.0..rank.0 + 1,
        all_shares: job.workers,
        from_step: 0,
        augment: Augment::Standard,
        threads: 1,
        log: None,
    })?;
    exchange.start(&mut *program, job)?;

    let mut begin = clock::now();
    for step in (0..job.steps).map(Step) {
        let mut record = StepRecord::open(step, begin);
        let mut ready_time = Nanos(0);
        for index in 0..job.accumulate {
            let pass = Pass { index, count: job.accumulate };
            let batch = clock::timed(&mut record, Phase::Load, || loader.next_batch())?;
            program.feed(batch)?;
            program.forward_backward(pass, &mut |ready| exchange.gradient_ready(ready))?;
            ready_time += book(&mut record, program.finish()?, job);
        }
        exchange.finish(&mut *program, &mut record, ready_time)?;
        record.book(Phase::Update, Nanos(program.finish()?.update_ns));
        record.end = clock::now();
        begin = record.end;
        log.append(&RankEvent::Step(record))?;
    }

    if job.profile && rank == Rank(0) {
        write_layers(job, &layer_times(&*program))?;
    }
    log.append(&RankEvent::Done {
        at: clock::now(),
        peak_resident: process::peak_resident(),
        shared: process::shared_resident(),
        peak_device: None,
    })?;
    Ok(())
}

/// Books what the engine measured of a pass; what it spent in calls of the exchange is the exchange's to book.
fn book(record: &mut StepRecord, result: StepResult, job: &Job) -> Nanos {
    for (phase, time) in [
        (Phase::CopyIn, result.copy_in_ns),
        (Phase::Forward, result.forward_ns),
        (Phase::Backward, result.backward_ns),
    ] {
        record.book(phase, Nanos(time));
    }
    record.examples += job.batch as u64;
    // The mean over the passes.
    let loss = record.loss.unwrap_or(0.0) + result.loss / job.accumulate as f32;
    record.loss = Some(loss);
    Nanos(result.ready_ns)
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
