//! One worker: the step loop.

use std::fs;

use paceline_engine::{Engine, Pass, Program, StepResult};
use paceline_record::log::RankWriter;
use paceline_record::{Bytes, LayerTime, Nanos, Phase, Rank, RankEvent, RankHeader, Step, StepRecord};

use crate::data::{Data, Loader};
use crate::job::Assignment;
use crate::{Job, TrainError, clock, open_engine, process};

/// Name of the file in a case's folder that holds the time of each layer.
pub const LAYERS_FILE: &str = "layers.json";

/// Whether this process was started as a worker.
pub fn is_assigned() -> bool {
    std::env::var_os(Assignment::VARIABLE).is_some()
}

/// Does what the launcher assigned to this process, which began at `main`.
pub fn run(main: Nanos) -> Result<(), TrainError> {
    let Assignment { job, rank, launcher } = Assignment::from_environment()?;
    process::die_with(launcher)?;
    let world = job.workers;
    let mut log = RankWriter::create(&job.folder, &RankHeader { rank, world })?;
    log.append(&RankEvent::Main { at: main, pid: std::process::id() })?;
    let engine = open_engine(&job.engine, job.threads)?;
    train(&job, rank, &*engine, &mut log)
}

/// Trains: load, feed, forward and backward, update, and a line in the log.
fn train(job: &Job, rank: Rank, engine: &dyn Engine, log: &mut RankWriter) -> Result<(), TrainError> {
    let graph = job.graph()?;
    let mut program = engine.compile(&graph, &job.spec())?;
    log.append(&RankEvent::Compiled { at: clock::now(), planned: Some(Bytes(program.plan().total())) })?;
    let data: Data = job.data.parse()?;
    let mut loader = Loader::new(&data.resized(job.input, job.classes), job, rank);
    let everything = 0..program.parameters().len;

    let mut begin = clock::now();
    for step in (0..job.steps).map(Step) {
        let mut record = StepRecord::open(step, begin);
        let batch = clock::timed(&mut record, Phase::Load, || loader.next_batch());
        program.feed(batch)?;
        program.forward_backward(Pass::ONLY, &mut |_ready| {})?;
        program.apply(job.learning_rate, everything.clone())?;
        let result = program.finish()?;
        begin = close(&mut record, result, job.batch);
        log.append(&RankEvent::Step(record))?;
    }

    if job.profile {
        write_layers(job, &*program)?;
    }
    log.append(&RankEvent::Done { at: clock::now(), peak_resident: process::peak_resident() })?;
    Ok(())
}

/// Books what the engine measured, and ends the step: where it ends, the next begins.
fn close(record: &mut StepRecord, result: StepResult, examples: usize) -> Nanos {
    for (phase, time) in [
        (Phase::CopyIn, result.copy_in_ns),
        (Phase::Forward, result.forward_ns),
        (Phase::Backward, result.backward_ns),
        (Phase::Update, result.update_ns),
    ] {
        record.book(phase, Nanos(time));
    }
    record.examples = examples as u64;
    record.loss = Some(result.loss);
    record.end = clock::now();
    record.end
}

fn write_layers(job: &Job, program: &dyn Program) -> Result<(), TrainError> {
    let layers: Vec<LayerTime> = program
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
        .collect();
    let path = job.folder.join(LAYERS_FILE);
    let text = serde_json::to_vec_pretty(&layers).expect("invariant: times are plain data");
    fs::write(&path, text).map_err(TrainError::system(format!("write {}", path.display())))
}

#[cfg(test)]
mod tests;
