//! Tests and checkpoints between two steps.

use std::mem::take;
use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use paceline_engine::{Program, Values};
use paceline_model::{Graph, ParamId};
use paceline_record::{Bytes, EvalRecord, Phase, Rank, RankEvent, Step};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{self, Checkpoint, OnNumerics, Position, Recut, Tensor};
use crate::data::TestSet;
use crate::exchange::Exchange;
use crate::worker::book::StepBook;
use crate::worker::runner::Stage;
use crate::{Job, Numerics, TrainError, clock};

/// When the network is tested and saved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Milestones {
    /// How often it is tested; `None` for never.
    pub eval: Option<Every>,
    /// How often it is saved, and where; `None` for never.
    pub saving: Option<Saving>,
    /// The checkpoint that the run resumes from.
    pub resume: Option<PathBuf>,
    /// Steps that were done before it.
    pub resumed_at: Option<u64>,
    /// How the shards of the steps from there on differ from those before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recut: Option<Recut>,
}

/// An interval in epochs. Something is also due at the end of the run; 0 means only there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Every(pub f64);

/// How checkpoints are written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saving {
    /// The interval between checkpoints.
    pub every: Every,
    /// Number of checkpoints kept.
    pub keep: NonZeroUsize,
    /// Folder of the checkpoints.
    pub folder: PathBuf,
}

impl Every {
    /// Whether something is due after `done` of `steps` steps, each of `step` epochs.
    fn is_due(self, done: u64, steps: u64, step: f64) -> bool {
        let count = |done: u64| (done as f64 * step / self.0 + 1e-9).floor();
        done == steps || (self.0 > 0.0 && count(done) > count(done - 1))
    }
}

/// When what is due.
pub(crate) struct Calendar<'a> {
    job: &'a Job,
    /// Epochs that a step takes.
    step: f64,
}

/// What is due after a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due<'a> {
    pub eval: bool,
    pub saving: Option<&'a Saving>,
}

impl Due<'_> {
    /// Whether anything is.
    pub fn is_any(&self) -> bool {
        self.eval || self.saving.is_some()
    }
}

impl<'a> Calendar<'a> {
    pub fn new(job: &'a Job) -> Result<Self, TrainError> {
        let step = match (job.milestones.eval, &job.milestones.saving) {
            (None, None) => 0.0,
            _ => job.global_batch() as f64 / job.epoch_len()? as f64,
        };
        Ok(Self { job, step })
    }

    /// What is due after so many steps, at least one.
    pub fn after(&self, steps: u64) -> Due<'a> {
        let is_due = |every: Every| every.is_due(steps, self.job.steps, self.step);
        let Milestones { eval, saving, .. } = &self.job.milestones;
        Due { eval: eval.is_some_and(is_due), saving: saving.as_ref().filter(|saving| is_due(saving.every)) }
    }

    /// What a step is run with, and whether a milestone follows it.
    pub fn stage(&self, step: Step) -> Stage {
        let learning_rate = self.job.learning.schedule.rate(step.0);
        Stage { step, learning_rate, then_pauses: self.after(step.0 + 1).is_any() }
    }
}

/// Tests one part of the pictures: the sum of its losses, and its right guesses. `beat` is called after each batch.
pub(crate) fn test_part(
    test: &mut TestSet,
    program: &mut dyn Program,
    part: Range<usize>,
    batch: usize,
    beat: &mut dyn FnMut(),
) -> Result<(f32, u64), TrainError> {
    let (mut loss, mut correct) = (0.0f64, 0);
    for first in part.clone().step_by(batch) {
        let (samples, live) = test.batch(first)?;
        // Where the part ends, the next shard's samples begin.
        let live = live.min(part.end - first);
        program.feed(samples)?;
        program.evaluate(live)?;
        let result = program.finish()?;
        loss += f64::from(result.loss) * live as f64;
        correct += result.correct as u64;
        beat();
    }
    Ok((loss as f32, correct))
}

/// The part of a test set that a shard has.
pub(crate) fn part_of(samples: usize, shard: u32, shards: u32) -> Range<usize> {
    let edge = |shard: u32| samples * shard as usize / shards as usize;
    edge(shard)..edge(shard + 1)
}

/// The result of a test, from that of each shard's part, in their order.
pub(crate) fn eval_record(done: u64, examples: usize, graph: &Graph, parts: &[(f32, u64)]) -> EvalRecord {
    let loss = parts.iter().map(|&(loss, _)| f64::from(loss)).sum::<f64>() / examples.max(1) as f64;
    EvalRecord {
        at: clock::now(),
        steps: done,
        examples: examples as u64,
        loss: Some(loss as f32).filter(|loss| loss.is_finite()),
        correct: graph.judges_labels().then(|| parts.iter().map(|&(_, correct)| correct).sum()),
    }
}

/// The milestones of a run, on one rank.
pub(crate) struct Course<'a> {
    job: &'a Job,
    graph: &'a Graph,
    calendar: Calendar<'a>,
    test: Option<TestSet>,
    /// Where the training stood when the run began, and the tests since then.
    position: Position,
}

impl<'a> Course<'a> {
    pub fn new(job: &'a Job, graph: &'a Graph) -> Result<Self, TrainError> {
        let calendar = Calendar::new(job)?;
        let test = job.milestones.eval.map(|_| open_test(job)).transpose()?;
        Ok(Self { job, graph, calendar, test, position: Position::default() })
    }

    /// Loads the checkpoint that the job names, if it names one. Returns the steps done before it.
    pub fn resume(&mut self, program: &mut dyn Program, exchange: &Exchange) -> Result<u64, TrainError> {
        let Some(path) = &self.job.milestones.resume else {
            return Ok(0);
        };
        let mut checkpoint = Checkpoint::read(path)?;
        // The launcher has compared numerics already.
        checkpoint.check_job(path, self.job, OnNumerics::Renew)?;
        let weights = checkpoint::arrange(take(&mut checkpoint.weights), self.graph, path)?;
        for (id, (param, values)) in self.graph.params.iter().zip(&weights).enumerate() {
            if param.kind.trainable() && exchange.writes_parameters() {
                program.write(Values::Param(ParamId(id)), values)?;
            }
        }
        let slots = program.slots().to_vec();
        for (kind, kept) in state_of(self.job, program) {
            let mut state = vec![0.0; program.len(kept)];
            for slot in &slots {
                let name = format!("{kind}/{}", self.graph.params[slot.param.0].name);
                let values = checkpoint::find(&checkpoint.optimizer, &name, slot.range.len(), path)?;
                state[slot.range.clone()].copy_from_slice(values);
            }
            program.write(kept, &state)?;
        }
        for (local, shard) in exchange.shards().enumerate() {
            let kept = Values::Statistics(local);
            let values = checkpoint.statistics_of(shard, self.job, program.len(kept), path)?;
            program.write(kept, &values)?;
        }
        self.position = checkpoint.position.resumed(self.job);
        program.resume_at(self.position.steps);
        Ok(self.position.steps)
    }

    /// What a step is run with, and whether a milestone follows it.
    pub fn stage(&self, step: Step) -> Stage {
        self.calendar.stage(step)
    }

    /// Tests and saves the network if that is due after a step. It is also saved where all ranks stop, and then they do.
    pub fn reach(
        &mut self,
        stage: Stage,
        program: &mut dyn Program,
        exchange: &mut Exchange,
        book: &mut StepBook<'_>,
    ) -> Result<ControlFlow<()>, TrainError> {
        let done = stage.step.0 + 1;
        let stops = exchange.stops_after(done);
        let flow = if stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        if !stage.then_pauses && !stops {
            return Ok(flow);
        }
        let Due { eval, saving } = self.calendar.after(done);
        let saving = saving.or(self.job.milestones.saving.as_ref().filter(|_| stops));
        let first = if saving.is_some() { Phase::Checkpoint } else { Phase::Eval };
        let statistics = book.time(first, || exchange.statistics(program))?;
        let own = Lent::put(program, &mean(&statistics))?;
        // Tested first, so that a checkpoint holds the test of its own step.
        if eval {
            let result = book.time(Phase::Eval, || self.evaluate(done, program, exchange))?;
            self.position.history.push(result);
            if exchange.rank() == Rank(0) {
                book.note(RankEvent::Evaluated(result));
            }
        }
        if let Some(saving) = saving {
            let bytes = book.time(Phase::Checkpoint, || {
                exchange.complete_state(program)?;
                let written = match exchange.rank() {
                    Rank(0) => {
                        let checkpoint = self.checkpoint(done, program, &statistics)?;
                        Some(Bytes(checkpoint.write(&saving.folder, saving.keep)?.bytes))
                    }
                    _ => None,
                };
                exchange.wait_for_all()?;
                Ok::<_, TrainError>(written)
            })?;
            if let Some(bytes) = bytes {
                book.note(RankEvent::Saved { at: clock::now(), steps: done, bytes });
            }
        }
        own.give_back(program)?;
        Ok(flow)
    }

    /// Tests the network: each shard has its part of the samples, and the parts are added up in the order of the shards.
    fn evaluate(
        &mut self,
        done: u64,
        program: &mut dyn Program,
        exchange: &mut Exchange,
    ) -> Result<EvalRecord, TrainError> {
        let test = self.test.as_mut().expect("invariant: what is tested is open");
        let (samples, shards) = (test.len(), self.job.shards());
        let mut rows = Vec::new();
        for shard in exchange.shards() {
            let part = part_of(samples, shard, shards);
            let (loss, correct) = test_part(test, program, part, self.job.batch, &mut || {})?;
            rows.push([loss, correct as f32]);
        }
        let parts: Vec<(f32, u64)> =
            exchange.gather_rows(&rows)?.into_iter().map(|[loss, correct]| (loss, correct as u64)).collect();
        Ok(eval_record(done, samples, self.graph, &parts))
    }

    fn checkpoint(
        &self,
        done: u64,
        program: &mut dyn Program,
        statistics: &[Vec<f32>],
    ) -> Result<Checkpoint, TrainError> {
        let mut weights = Vec::new();
        for (id, param) in self.graph.params.iter().enumerate() {
            let values = program.to_vec(Values::Param(ParamId(id)))?;
            weights.push(Tensor { name: param.name.clone(), shape: param.dims.clone(), values });
        }
        let slots = program.slots().to_vec();
        let mut optimizer = Vec::new();
        for (kind, kept) in state_of(self.job, program) {
            let state = program.to_vec(kept)?;
            optimizer.extend(slots.iter().map(|slot| {
                let param = &self.graph.params[slot.param.0];
                let values = state[slot.range.clone()].to_vec();
                Tensor { name: format!("{kind}/{}", param.name), shape: param.dims.clone(), values }
            }));
        }
        let shards = (0..).zip(statistics).map(|(shard, values)| Tensor {
            name: shard_name(shard),
            shape: vec![values.len()],
            values: values.clone(),
        });
        Ok(Checkpoint {
            job: self.job.clone(),
            numerics: Numerics::new(self.job, program.numerics()),
            fingerprint: self.job.fingerprint()?,
            position: Position { steps: done, ..self.position.clone() },
            weights,
            optimizer,
            shards: shards.collect(),
        })
    }
}

/// Opens the pictures that a job is tested on.
pub(crate) fn open_test(job: &Job) -> Result<TestSet, TrainError> {
    TestSet::open(&job.data.parse()?, job.input, job.classes, job.seed, job.batch)
}

/// The state of a program's update rule, with names.
fn state_of(job: &Job, program: &dyn Program) -> Vec<(&'static str, Values)> {
    let kept = job.learning.optimizer.state_names().iter().copied().zip((0..).map(Values::State));
    kept.filter(|&(_, kept)| program.len(kept) > 0).collect()
}

pub(crate) fn shard_name(shard: u32) -> String {
    format!("shard-{shard}/statistics")
}

/// The mean of several runs of values, added in their order.
pub(crate) fn mean(runs: &[Vec<f32>]) -> Vec<f32> {
    let mut sum = runs[0].clone();
    for run in &runs[1..] {
        sum.iter_mut().zip(run).for_each(|(sum, value)| *sum += value);
    }
    let scale = 1.0 / runs.len() as f32;
    sum.iter_mut().for_each(|sum| *sum *= scale);
    sum
}

/// The running statistics of a program's first shard, while the mean of all shards replaces them.
pub(crate) struct Lent {
    own: Vec<f32>,
}

impl Lent {
    pub(crate) fn put(program: &mut dyn Program, values: &[f32]) -> Result<Self, TrainError> {
        let own = program.to_vec(Values::Statistics(0))?;
        program.write(Values::Statistics(0), values)?;
        Ok(Self { own })
    }

    pub(crate) fn give_back(self, program: &mut dyn Program) -> Result<(), TrainError> {
        Ok(program.write(Values::Statistics(0), &self.own)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_time_where_a_step_completes_an_epoch_and_at_the_end() {
        // 100 samples, 32 a step: epochs end in steps 4, 7, 10 and 13.
        let due = |every: f64| -> Vec<u64> {
            (1..=14).filter(|&done| Every(every).is_due(done, 14, 0.32)).collect()
        };
        assert_eq!(due(1.0), [4, 7, 10, 13, 14]);
        assert_eq!(due(2.0), [7, 13, 14]);
        assert_eq!(due(0.0), [14]);
    }

    #[test]
    fn a_whole_number_of_steps_to_the_epoch_ends_it_on_time() {
        // 390 steps of 1/390 of an epoch are one epoch, whatever the digits say.
        let step = 1.0 / 390.0;
        assert!(Every(1.0).is_due(390, 1000, step) && !Every(1.0).is_due(391, 1000, step));
    }

    #[test]
    fn a_mean_is_added_in_order() {
        assert_eq!(mean(&[vec![1.0, 2.0], vec![3.0, -2.0]]), [2.0, 0.0]);
        assert_eq!(mean(&[vec![0.1]]), [0.1]);
    }
}
