//! Checkpoints: a network and where its training stands, on the disk.
//!
//! ```text
//! checkpoints/step-00000390/weights.safetensors   parameters and running statistics, with what rebuilds the network
//!                           state.safetensors     the optimizer's memory, and the running statistics of each shard
//!                           checkpoint.json       the job and where it stands; length and SHA-256 of the other two
//! ```
//!
//! A checkpoint is written under a hidden name, synced, and renamed, so that whatever stops the writer leaves the
//! newest one whole. What a stopped writer left behind is hidden, is never read, and goes with the next write.
//! Random numbers are functions of seed and position, so the position is all the random state there is.
//! The same weights give the same bytes.

mod disk;
mod error;
mod manifest;
mod tensors;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use paceline_engine::cpu::Simd;
use paceline_model::Graph;
use paceline_record::EvalRecord;
use serde::{Deserialize, Serialize};

use crate::milestone::{mean, shard_name};
use crate::{Job, Numerics, Scaling, SumOrder, TrainError, numerics};
pub use error::CheckpointError;
use manifest::Manifest;

/// A run's folder keeps its checkpoints under this name.
pub const FOLDER: &str = "checkpoints";

/// The network's file in a checkpoint, and in the folder of a run that has ended.
pub const WEIGHTS_FILE: &str = "weights.safetensors";

const STATE_FILE: &str = "state.safetensors";
const MANIFEST_FILE: &str = "checkpoint.json";

/// Named values.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Unique among those it is kept with.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// As many as the dimensions say.
    pub values: Vec<f32>,
}

/// The contents of a file of weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// In the order of the file.
    pub tensors: Vec<Tensor>,
    /// The network they belong to, where the file tells.
    pub network: Option<Description>,
}

/// What rebuilds a network that weights belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Its name in the zoo.
    pub model: String,
    /// Height and width of its images.
    pub input: (usize, usize),
    /// Classes.
    pub classes: usize,
}

/// Where a training stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Steps done.
    pub steps: u64,
    /// The tests of the network so far; their moments are on the clock of the run that made them.
    pub history: Vec<EvalRecord>,
    /// Where it resumed with another number of shards. From there on its bits are not those of the training before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recuts: Vec<Recut>,
}

/// A change of the shards that each step is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recut {
    /// Steps done before it.
    pub steps: u64,
    /// Shards before.
    pub from: u32,
    /// Shards from then on.
    pub to: u32,
}

impl Position {
    /// The same for a job that resumes there.
    pub(crate) fn resumed(&self, job: &Job) -> Self {
        let mut position = self.clone();
        position.recuts.extend(job.milestones.recut);
        position
    }
}

/// A network and where its training stands. Read back, tensors are in the order of their names.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The job that trains it.
    pub job: Job,
    /// How its numbers were computed.
    pub numerics: Numerics,
    /// What tells its data from other data.
    pub fingerprint: String,
    /// Where the training stands.
    pub position: Position,
    /// Parameters and running statistics, named as in the graph.
    pub weights: Vec<Tensor>,
    /// The optimizer's state: `momentum/<parameter>`, or of Adam `mean/<parameter>` and `square/<parameter>`.
    pub optimizer: Vec<Tensor>,
    /// Running statistics of single shards of the batch: `shard-3/<parameter>`.
    pub shards: Vec<Tensor>,
}

/// Whether a training must resume with the numerics it began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNumerics {
    /// It must, so that it ends with the same bits as if it had never stopped.
    Keep,
    /// It takes this machine's: weights may differ in their last digits.
    Renew,
}

/// A checkpoint on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its folder.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

impl Checkpoint {
    /// Writes `step-<steps>` under `root`, whole or not at all, and then deletes all but the last `keep` up to it.
    /// One of the same step is replaced.
    pub fn write(&self, root: &Path, keep: NonZeroUsize) -> Result<Written, CheckpointError> {
        let weights = weights_file(&self.job.network(), &self.weights);
        let state = tensors::pack_state(&self.optimizer, &self.shards);
        let manifest = Manifest::new(self, &disk::prepare(root, self.position.steps)?, &weights, &state);
        let manifest = manifest.render();
        let files = [(WEIGHTS_FILE, &weights), (STATE_FILE, &state), (MANIFEST_FILE, &manifest)];
        let path = disk::place(root, self.position.steps, &files)?;
        disk::retain(root, self.position.steps, keep)?;
        Ok(Written { path, bytes: files.iter().map(|(_, bytes)| bytes.len() as u64).sum() })
    }

    /// Reads a checkpoint, or the newest of the folder that holds them. Every byte is checked. Where the newest is
    /// damaged that is an error, which names one that is not.
    pub fn read(path: &Path) -> Result<Self, CheckpointError> {
        let folder = locate(path)?;
        Self::load(&folder).map_err(|error| error.name_good_one(&folder))
    }

    /// The newest checkpoint under `root`, unread.
    pub fn newest(root: &Path) -> Result<Option<PathBuf>, CheckpointError> {
        Ok(disk::list(root)?.pop().map(|(_, path)| path))
    }

    /// Renames checkpoints under `root` that are later than `steps` to `step-<steps>.abandoned`: a run that resumes from an
    /// earlier one does not lead to them.
    pub fn abandon_later(root: &Path, steps: u64) -> Result<(), CheckpointError> {
        disk::abandon_later(root, steps)
    }

    /// The job that resumes this training, which is at `path`: with the same global batch and shards on any number of
    /// workers up to the shards; [`Checkpoint::recut`] allows for more. Refuses numerics that this machine lacks.
    pub fn resume(&self, path: &Path, policy: OnNumerics) -> Result<Job, CheckpointError> {
        let mut job = self.job.clone();
        job.shards = Some(job.shards());
        job.scaling = Scaling::Strong { global_batch: job.batch * job.shards() as usize };
        job.milestones.resume = Some(path.to_owned());
        job.milestones.resumed_at = Some(self.position.steps);
        job.numerics = match policy {
            OnNumerics::Keep => Some(self.numerics.engine.clone()),
            OnNumerics::Renew => None,
        };
        if let Some(recorded) = job.numerics.as_ref().filter(|recorded| !numerics::is_available(recorded)) {
            let recorded = recorded.instruction_set.clone().unwrap_or_default();
            return Err(other_numerics(path, "the instruction set", recorded, Simd::best(job.precision)));
        }
        Ok(job)
    }

    /// Cuts the steps of a job that resumes this training, which is at `path`, into as many shards as were asked for, or as
    /// its workers need. The global batch stays, so samples go on where they were. Refuses what cannot be cut so.
    pub fn recut(&self, path: &Path, job: &mut Job, asked: Option<u32>) -> Result<(), CheckpointError> {
        let from = self.job.shards();
        let to = asked.unwrap_or_else(|| from.max(job.most_workers()));
        let global_batch = self.job.batch * from as usize;
        if !global_batch.is_multiple_of(to as usize) {
            let instead = (to as usize..=global_batch).find(|shards| global_batch.is_multiple_of(*shards));
            return Err(CheckpointError::Uncuttable {
                path: path.to_owned(),
                shards: to,
                global_batch,
                instead,
            });
        }
        job.shards = Some(to);
        job.milestones.recut = (to != from).then_some(Recut { steps: self.position.steps, from, to });
        Ok(())
    }

    /// The running statistics that a shard of a job goes on with: its own, or where the shards were cut anew the mean of
    /// all that there were, in their order.
    pub(crate) fn statistics_of(
        &self,
        shard: u32,
        job: &Job,
        len: usize,
        path: &Path,
    ) -> Result<Vec<f32>, TrainError> {
        let kept = |shard| find(&self.shards, &shard_name(shard), len, path);
        match job.milestones.recut {
            None => Ok(kept(shard)?.to_vec()),
            Some(Recut { from, .. }) => {
                let all = (0..from)
                    .map(|shard| Ok(kept(shard)?.to_vec()))
                    .collect::<Result<Vec<_>, TrainError>>()?;
                Ok(mean(&all))
            }
        }
    }

    /// Refuses to resume, at `path`, with settings that decide the weights and are not those of this checkpoint.
    pub fn check_job(&self, path: &Path, job: &Job, policy: OnNumerics) -> Result<(), TrainError> {
        let (recorded, order) = (&self.numerics.sum_order, SumOrder::of(job));
        if policy == OnNumerics::Keep && self.job.engine != job.engine {
            return Err(other_numerics(path, "the engine", &self.job.engine, &job.engine).into());
        }
        let set = |numerics: &paceline_engine::Numerics| numerics.instruction_set.clone();
        let sets = set(&self.numerics.engine).zip(job.numerics.as_ref().and_then(set));
        if let Some((recorded, asked)) = sets.filter(|(recorded, asked)| recorded != asked)
            && policy == OnNumerics::Keep
        {
            let path = path.to_owned();
            return Err(CheckpointError::OtherInstructions { path, recorded, asked }.into());
        }
        let data = ("data", self.fingerprint.clone());
        let wrote = self.job.fixed_settings().into_iter().chain([data]);
        let asks = job.fixed_settings().into_iter().chain([("data", job.fingerprint()?)]);
        let differences: Vec<_> = wrote
            .zip(asks)
            .filter(|(wrote, asks)| wrote != asks)
            .map(|((name, wrote), (_, asks))| format!("--{name} {wrote}, not --{name} {asks}"))
            .collect();
        if !differences.is_empty() {
            let differences = differences.join("; ");
            return Err(CheckpointError::OtherJob { path: path.to_owned(), differences }.into());
        }
        // Shards that are cut anew add up to other bits in any order.
        if policy == OnNumerics::Keep && *recorded != order && job.milestones.recut.is_none() {
            return Err(other_numerics(path, "sums in the order", recorded, order).into());
        }
        Ok(())
    }

    fn load(folder: &Path) -> Result<Self, CheckpointError> {
        let manifest = Manifest::read(folder)?;
        let weights = manifest.read_weights(folder)?.tensors;
        let (optimizer, shards) =
            tensors::unpack_state(&manifest.read_state(folder)?, &folder.join(STATE_FILE))?;
        let Manifest { job, numerics, data, position, .. } = manifest;
        Ok(Self { job, numerics, fingerprint: data.fingerprint, position, weights, optimizer, shards })
    }
}

fn other_numerics(
    path: &Path,
    what: &'static str,
    recorded: impl ToString,
    here: impl ToString,
) -> CheckpointError {
    CheckpointError::OtherNumerics {
        path: path.to_owned(),
        what,
        recorded: recorded.to_string(),
        here: here.to_string(),
    }
}

/// A checkpoint's folder: `path` itself, the newest in it, or the newest of the run whose folder it is.
pub fn locate(path: &Path) -> Result<PathBuf, CheckpointError> {
    if disk::exists(&path.join(MANIFEST_FILE))? || disk::parse_step(path).is_some() && disk::exists(path)? {
        return Ok(path.to_owned());
    }
    for root in [path, &path.join(FOLDER)] {
        if let Some(newest) = Checkpoint::newest(root)? {
            return Ok(newest);
        }
    }
    Err(CheckpointError::Missing { path: path.to_owned() })
}

/// Reads the weights of a safetensors file, or of a checkpoint as [`Checkpoint::read`] finds it. Those of a checkpoint are
/// checked byte by byte.
pub fn read_weights(path: &Path) -> Result<Weights, CheckpointError> {
    let beside = path.parent().filter(|_| path.file_name().is_some_and(|name| name == WEIGHTS_FILE));
    let folder = match beside {
        Some(folder) if disk::exists(&folder.join(MANIFEST_FILE))? => folder.to_owned(),
        _ if path.is_file() => return tensors::unpack(&disk::read(path)?, path),
        _ => locate(path)?,
    };
    let weights = Manifest::read(&folder).and_then(|manifest| manifest.read_weights(&folder));
    weights.map_err(|error| error.name_good_one(&folder))
}

/// Weights as the bytes of a safetensors file, which are the same for the same weights in any order.
pub fn weights_file(network: &Description, weights: &[Tensor]) -> Vec<u8> {
    tensors::pack(Some(network), weights.iter().map(|tensor| (tensor.name.clone(), tensor)).collect())
}

/// The values of each of the graph's parameters, in its order. Refuses weights of another network; `path` says whose.
pub fn arrange(tensors: Vec<Tensor>, graph: &Graph, path: &Path) -> Result<Vec<Vec<f32>>, CheckpointError> {
    let refuse = |why| CheckpointError::OtherNetwork {
        path: path.to_owned(),
        model: graph.name.clone(),
        input: (graph.input().h, graph.input().w),
        classes: graph.classes,
        why,
    };
    let mut by_name: HashMap<_, _> =
        tensors.into_iter().map(|tensor| (tensor.name, (tensor.shape, tensor.values))).collect();
    let mut take = |name: &str, dims: &[usize]| match by_name.remove(name) {
        None => Err(refuse(format!("{name} is missing"))),
        Some((shape, _)) if shape != dims => Err(refuse(format!("{name} is {shape:?}, not {dims:?}"))),
        Some((_, values)) => Ok(values),
    };
    let values = graph.params.iter().map(|param| take(&param.name, &param.dims)).collect::<Result<_, _>>()?;
    match by_name.into_keys().min() {
        Some(name) => Err(refuse(format!("it has no {name}"))),
        None => Ok(values),
    }
}

/// The values of a tensor by its name. Refuses a checkpoint without it, or with another number of them.
pub(crate) fn find<'a>(
    tensors: &'a [Tensor],
    name: &str,
    len: usize,
    path: &Path,
) -> Result<&'a [f32], TrainError> {
    let wrong = |why: String| TrainError::WrongCheckpoint { path: path.to_owned(), why };
    match tensors.iter().find(|tensor| tensor.name == name) {
        Some(tensor) if tensor.values.len() == len => Ok(&tensor.values),
        Some(tensor) => {
            Err(wrong(format!("{name} has {} values where this network has {len}", tensor.values.len())))
        }
        None => Err(wrong(format!("it lacks {name}"))),
    }
}

#[cfg(test)]
mod tests;
