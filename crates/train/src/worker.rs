//! One worker: the step loop.

pub(crate) mod book;
pub(crate) mod runner;

use std::fs;

use paceline_engine::{Engine, Measured, lay_out};
use paceline_record::log::RankWriter;
use paceline_record::{Bytes, LayerTime, Nanos, Rank, RankEvent, RankHeader, Step};

use crate::exchange::Exchange;
use crate::job::Assignment;
use crate::milestone::Course;
use crate::{Job, TrainError, affinity, clock, elastic, process};
use book::StepBook;
use runner::{Deal, Runner};

/// Name of the file in a case's folder that holds the time of each layer.
pub const LAYERS_FILE: &str = "layers.json";

/// The exit status of a worker that stopped because it was asked to, with its state saved: "try again" in sysexits.h.
pub const STOPPED: u8 = 75;

/// How a worker ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With all steps done.
    Done,
    /// Where all ranks agreed to stop.
    Stopped,
}

/// Whether this process was started as a worker.
pub fn is_assigned() -> bool {
    std::env::var_os(Assignment::VARIABLE).is_some()
}

/// Does what the launcher assigned to this process, which began at `main`.
pub fn run(main: Nanos) -> Result<Ending, TrainError> {
    let Assignment { job, rank, launcher, segment, membership } = Assignment::from_environment()?;
    process::die_with(launcher)?;
    if let Some(own) = membership {
        return elastic::member::run(&job, &own, main).map(|()| Ending::Done);
    }
    // What is not saved has nothing to do before it ends.
    let asked = job.milestones.saving.as_ref().map(|_| process::leave_on_request()).transpose()?;
    let pinned = job.pin && affinity::pin(rank, job.workers, job.threads)?;
    let world = job.workers;
    let mut log = RankWriter::create(&job.folder, &RankHeader::new(rank, world))?;
    log.append(&RankEvent::Main { at: main, pid: std::process::id() })?;
    let engine = job.open_engine_of(rank, pinned)?;
    let mut exchange = Exchange::join(&job, rank, segment)?;
    exchange.heed(asked.unwrap_or_default());
    train(&job, exchange, &*engine, &mut log)
}

/// Trains: for each step load, forward and backward, exchange, update, record; now and then a test or a checkpoint.
fn train(
    job: &Job,
    mut exchange: Exchange,
    engine: &dyn Engine,
    log: &mut RankWriter,
) -> Result<Ending, TrainError> {
    let (graph, rank) = (job.graph()?, exchange.rank());
    let mut course = Course::new(job, &graph)?;
    let spec = job.spec_of(rank);
    let homes = exchange.homes(lay_out(&graph).trained);
    let mut program = engine.compile_in(&graph, &spec, &homes)?;
    log.append(&RankEvent::Compiled { at: clock::now(), planned: Some(Bytes(program.plan().total())) })?;
    let first = course.resume(&mut *program, &exchange)?;
    let mut runner = Runner::open(job, rank, first, program)?;
    exchange.start(runner.program(), job)?;
    let driving = runner.program().driving();
    let deal = Deal::new(job, rank, driving);

    let mut book = StepBook::open(log, &graph, driving);
    let mut ending = Ending::Done;
    for step in (first..job.steps).map(Step) {
        let stage = course.stage(step);
        exchange.agree_to_stop(step);
        book.begin(step, stage.learning_rate);
        for turn in deal.turns(stage) {
            runner.run(&turn, &mut book, &mut |slots| exchange.offer(turn.pass, slots))?;
        }
        exchange.finish(runner.program(), &mut book, stage.learning_rate)?;
        let flow = course.reach(stage, runner.program(), &mut exchange, &mut book)?;
        book.close()?;
        if flow.is_break() && step.0 + 1 < job.steps {
            ending = Ending::Stopped;
            break;
        }
    }
    exchange.leave(&mut book)?;
    drop(book);

    let Measured { peak_device, layers } = runner.program().measured();
    if job.profile && rank == Rank(0) {
        write_layers(job, &layers)?;
    }
    log.append(&RankEvent::Done {
        at: clock::now(),
        peak_resident: process::peak_resident(),
        shared: process::shared_resident(),
        peak_device,
    })?;
    Ok(ending)
}

/// Leaves the time of each layer in the job's folder.
pub(crate) fn write_layers(job: &Job, layers: &[LayerTime]) -> Result<(), TrainError> {
    let path = job.folder.join(LAYERS_FILE);
    let text = serde_json::to_vec_pretty(layers).expect("invariant: times are plain data");
    fs::write(&path, text).map_err(TrainError::system(format!("write {}", path.display())))
}

#[cfg(test)]
mod tests;
