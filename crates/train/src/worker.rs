//! One worker: the step loop.

mod diary;
mod feeding;

use std::fs;

use paceline_engine::{Engine, Pass, Program, StepResult};
use paceline_record::log::RankWriter;
use paceline_record::{Bytes, LayerTime, Nanos, Phase, Rank, RankEvent, RankHeader, Step, StepRecord};

use crate::exchange::Exchange;
use crate::job::Assignment;
use crate::milestone::Course;
use crate::{Job, TrainError, affinity, clock, process};
use diary::Diary;
use feeding::Feeding;

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
    let engine = job.open_engine_of(rank, pinned)?;
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
    let (graph, rank, shards) = (job.graph()?, exchange.rank(), exchange.shards());
    let mut course = Course::new(job, &graph)?;
    let spec = job.spec_of(rank);
    let homes = exchange.homes(engine.trained_values(&graph, &spec)?);
    let mut program = engine.compile_in(&graph, &spec, &homes)?;
    log.append(&RankEvent::Compiled { at: clock::now(), planned: Some(Bytes(program.plan().total())) })?;
    let first = course.resume(&mut *program, &exchange)?;
    let mut feeding = Feeding::open(job, rank, first)?;
    exchange.start(&mut *program, job)?;

    let turns = shards.len() * job.accumulate;
    let mut begin = clock::now();
    let mut diary = Diary::open(log);
    for step in (first..job.steps).map(Step) {
        let mut record = StepRecord::open(step, begin);
        let mut ready_time = Nanos(0);
        let rate = job.learning.schedule.rate(step.0);
        for turn in 0..turns {
            let last = turn + 1 == turns;
            let update = Some(rate).filter(|_| last && exchange.is_woven());
            let pass = Pass { update, ..job.pass(step.0, &shards, turn) };
            feeding.feed(&mut *program, &mut record)?;
            let complete = pass.shard + 1 == shards.len();
            program.forward_backward(pass, &mut |ready| {
                if complete {
                    exchange.gradient_ready(ready);
                }
            })?;
            // What a device does meanwhile hides this.
            if program.runs_behind() && !(last && course.is_due(step.0 + 1)) {
                feeding.feed_ahead(&mut *program)?;
                diary.write()?;
            }
            // Where nothing is exchanged here the update follows on the device, without a wait in between.
            if exchange.exchanges() || !last {
                ready_time += book(&mut record, program.finish()?, (job.batch, turns));
            }
        }
        exchange.finish(&mut *program, &mut record, (rate, ready_time))?;
        let result = program.finish()?;
        if exchange.exchanges() {
            book_times(&mut record, &result);
        } else {
            book(&mut record, result, (job.batch, turns));
        }
        if exchange.is_woven() {
            exchange.book_woven(&mut *program, &mut record, clock::now())?;
        }
        diary.compare(&mut exchange);
        feeding.book_threads(&mut record, job, &*program);
        let reached = course.reach(step.0 + 1, (&mut *program, &mut exchange), &mut record)?;
        record.correct = record.correct.filter(|_| graph.judges_labels());
        record.end = clock::now();
        feeding.book_ahead(&mut record);
        begin = record.end;
        diary.take(record, reached, &*program)?;
    }
    diary.close(&mut exchange)?;

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
    book_times(record, &result);
    record.examples += batch as u64;
    // The mean over the passes.
    record.loss = Some(record.loss.unwrap_or(0.0) + result.loss / turns as f32);
    record.correct = Some(record.correct.unwrap_or(0) + result.correct as u64);
    Nanos(result.ready_ns)
}

/// Books how long the parts of it took.
pub(crate) fn book_times(record: &mut StepRecord, result: &StepResult) {
    for (phase, time) in [
        (Phase::CopyIn, result.copy_in_ns),
        (Phase::Forward, result.forward_ns),
        (Phase::Backward, result.backward_ns),
        (Phase::CopyOut, result.copy_out_ns),
        (Phase::CommWait, result.exchange_ns),
        (Phase::Update, result.update_ns),
    ] {
        record.book(phase, Nanos(time));
    }
    record.idle_host += Nanos(result.idle_ns);
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
