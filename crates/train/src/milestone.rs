//! Tests and checkpoints between two steps.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use paceline_engine::{Program, Values};
use paceline_model::{Graph, ParamId};
use paceline_record::{Bytes, EvalRecord, Phase, Rank, RankEvent, Step};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{self, Checkpoint, OnNumerics, Position, Tensor};
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

/// The milestones of a run, on one rank.
pub(crate) struct Course<'a> {
    job: &'a Job,
    graph: &'a Graph,
    /// Epochs that a step takes.
    step: f64,
    test: Option<TestSet>,
    history: Vec<EvalRecord>,
}

impl<'a> Course<'a> {
    pub fn new(job: &'a Job, graph: &'a Graph) -> Result<Self, TrainError> {
        let milestones = &job.milestones;
        let step = match (milestones.eval, &milestones.saving) {
            (None, None) => 0.0,
            _ => job.global_batch() as f64 / job.epoch_len()? as f64,
        };
        let test = match milestones.eval {
            Some(_) => {
                let data = job.data.parse()?;
                Some(TestSet::open(&data, job.input, job.classes, job.seed, job.batch)?)
            }
            None => None,
        };
        Ok(Self { job, graph, step, test, history: Vec::new() })
    }

    /// Loads the checkpoint that the job names, if it names one. Returns the steps done before it.
    pub fn resume(&mut self, program: &mut dyn Program, exchange: &Exchange) -> Result<u64, TrainError> {
        let Some(path) = &self.job.milestones.resume else {
            return Ok(0);
        };
        let checkpoint = Checkpoint::read(path)?;
        // The launcher has compared numerics already.
        checkpoint.check_job(path, self.job, OnNumerics::Renew)?;
        let wrong = |why: String| TrainError::WrongCheckpoint { path: path.clone(), why };
        let find = |tensors: &'_ [Tensor], name: &str, len: usize| -> Result<Vec<f32>, TrainError> {
            match tensors.iter().find(|tensor| tensor.name == name) {
                Some(tensor) if tensor.values.len() == len => Ok(tensor.values.clone()),
                Some(tensor) => Err(wrong(format!(
                    "{name} has {} values where this network has {len}",
                    tensor.values.len()
                ))),
                None => Err(wrong(format!("it lacks {name}"))),
            }
        };
        let weights = checkpoint::arrange(checkpoint.weights, self.graph, path)?;
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
                let values = find(&checkpoint.optimizer, &name, slot.range.len())?;
                state[slot.range.clone()].copy_from_slice(&values);
            }
            program.write(kept, &state)?;
        }
        for (local, shard) in exchange.shards().enumerate() {
            let kept = Values::Statistics(local);
            program.write(kept, &find(&checkpoint.shards, &shard_name(shard), program.len(kept))?)?;
        }
        program.resume_at(checkpoint.position.steps);
        self.history = checkpoint.position.history;
        Ok(checkpoint.position.steps)
    }

    /// What a step is run with, and whether a milestone follows it.
    pub fn stage(&self, step: Step) -> Stage {
        let Milestones { eval, saving, .. } = &self.job.milestones;
        let evaluates = eval.is_some_and(|every| self.is_due(every, step));
        let saves = saving.as_ref().is_some_and(|saving| self.is_due(saving.every, step));
        let learning_rate = self.job.learning.schedule.rate(step.0);
        Stage { step, learning_rate, then_pauses: evaluates || saves }
    }

    fn is_due(&self, every: Every, after: Step) -> bool {
        every.is_due(after.0 + 1, self.job.steps, self.step)
    }

    /// Tests and saves the network if that is due after a step.
    pub fn reach(
        &mut self,
        stage: Stage,
        program: &mut dyn Program,
        exchange: &mut Exchange,
        book: &mut StepBook<'_>,
    ) -> Result<(), TrainError> {
        if !stage.then_pauses {
            return Ok(());
        }
        let done = stage.step.0 + 1;
        let Milestones { eval, saving, .. } = &self.job.milestones;
        let eval = eval.is_some_and(|every| self.is_due(every, stage.step));
        let saving = saving.as_ref().filter(|saving| self.is_due(saving.every, stage.step));
        let first = if saving.is_some() { Phase::Checkpoint } else { Phase::Eval };
        let statistics = book.time(first, || exchange.statistics(program))?;
        let own = Lent::put(program, &mean(&statistics))?;
        // Tested first, so that a checkpoint holds the test of its own step.
        if eval {
            let result = book.time(Phase::Eval, || self.evaluate(done, program, exchange))?;
            self.history.push(result);
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
        own.give_back(program)
    }

    /// Tests the network: each shard has its part of the samples, and the parts are added up in the order of the shards.
    fn evaluate(
        &mut self,
        done: u64,
        program: &mut dyn Program,
        exchange: &mut Exchange,
    ) -> Result<EvalRecord, TrainError> {
        let test = self.test.as_mut().expect("invariant: what is tested is open");
        let edge = |shard: u32| test.len() * shard as usize / self.job.shards() as usize;
        let parts: Vec<_> = exchange.shards().map(|shard| edge(shard)..edge(shard + 1)).collect();
        let mut rows = Vec::new();
        for part in parts {
            let (mut loss, mut correct) = (0.0f64, 0);
            for first in part.clone().step_by(self.job.batch) {
                let (samples, live) = test.batch(first)?;
                // Where the part ends, the next shard's samples begin.
                let live = live.min(part.end - first);
                program.feed(samples)?;
                program.evaluate(live)?;
                let result = program.finish()?;
                loss += f64::from(result.loss) * live as f64;
                correct += result.correct;
            }
            rows.push([loss as f32, correct as f32]);
        }
        let rows = exchange.gather_rows(&rows)?;
        let examples = test.len();
        let loss = rows.iter().map(|row| f64::from(row[0])).sum::<f64>() / examples.max(1) as f64;
        let correct = rows.iter().map(|row| row[1] as u64).sum();
        Ok(EvalRecord {
            at: clock::now(),
            steps: done,
            examples: examples as u64,
            loss: Some(loss as f32).filter(|loss| loss.is_finite()),
            correct: self.graph.judges_labels().then_some(correct),
        })
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
            position: Position { steps: done, history: self.history.clone() },
            weights,
            optimizer,
            shards: shards.collect(),
        })
    }
}

/// The state of a program's update rule, with names.
fn state_of(job: &Job, program: &dyn Program) -> Vec<(&'static str, Values)> {
    let kept = job.learning.optimizer.state_names().iter().copied().zip((0..).map(Values::State));
    kept.filter(|&(_, kept)| program.len(kept) > 0).collect()
}

fn shard_name(shard: u32) -> String {
    format!("shard-{shard}/statistics")
}

/// The mean of several runs of values, added in their order.
fn mean(runs: &[Vec<f32>]) -> Vec<f32> {
    let mut sum = runs[0].clone();
    for run in &runs[1..] {
        sum.iter_mut().zip(run).for_each(|(sum, value)| *sum += value);
    }
    let scale = 1.0 / runs.len() as f32;
    sum.iter_mut().for_each(|sum| *sum *= scale);
    sum
}

/// The running statistics of a program's first shard, while the mean of all shards replaces them.
struct Lent {
    own: Vec<f32>,
}

impl Lent {
    fn put(program: &mut dyn Program, values: &[f32]) -> Result<Self, TrainError> {
        let own = program.to_vec(Values::Statistics(0))?;
        program.write(Values::Statistics(0), values)?;
        Ok(Self { own })
    }

    fn give_back(self, program: &mut dyn Program) -> Result<(), TrainError> {
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
