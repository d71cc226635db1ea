//! Workers on GPUs: which GPU each uses, and how GPUs exchange with each other.

pub(crate) mod host;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use paceline_comm::nccl::{DeviceValues, Interface, Library, Nccl, Seat, Stream, UniqueId};
use paceline_comm::{CommError, slice};
use paceline_engine::cuda::Cuda;
use paceline_engine::{Engine, EngineError, Exchanged, Link, Region, Weave, WovenBucket};
use paceline_record::Rank;

use crate::buckets::Bucket;
use crate::exchange::PATIENCE;
use crate::hosts::Hosts;
use crate::job::{CPU, open_cpu, open_cuda};
use crate::strategy::{Compress, ExchangeOptions, Parameters, Plan, Publish, Reduce};
use crate::{Job, TrainError};

/// The name of the engine that computes on GPUs.
pub(crate) const CUDA: &str = "cuda";

impl Job {
    /// Refuses a job that needs more GPUs than the machine has, or an exchange that GPUs cannot do.
    pub(crate) fn check_devices(&self) -> Result<(), TrainError> {
        if self.exchanges_on_device() && self.exchange.compress != Compress::None {
            return Err(TrainError::CompressedDevices);
        }
        if self.engine != CUDA {
            return match self.plan().parameters {
                Parameters::AtDeviceServer => Err(TrainError::NoDevices("ps-gpu keeps parameters on a GPU")),
                _ => Ok(()),
            };
        }
        let devices = Cuda::devices()?;
        let workers = match self.hosts {
            Some(Hosts { local: true, max, .. }) => self.workers * max,
            _ => self.workers,
        };
        if !self.share_gpu && workers as usize > devices {
            return Err(TrainError::TooFewDevices { workers, devices });
        }
        if self.exchanges_on_device() {
            Library::find()?;
        }
        Ok(())
    }

    /// Refuses what groups of GPUs on several hosts cannot do.
    pub(crate) fn check_group(&self) -> Result<(), TrainError> {
        let Some(Hosts { min, max, workers, .. }) = self.hosts else {
            return Err(TrainError::ElasticDevices);
        };
        let bounds = self.elastic.as_ref().map_or(self.workers, |elastic| elastic.max);
        let why = if self.plan().reduce != Reduce::ToAll {
            "every GPU has the whole state, so they update with --update allreduce"
        } else if min != max {
            "every GPU is a rank of one group, so the number of hosts is fixed: give --hosts N (with --elastic another host can replace \
             a lost one)"
        } else if bounds != self.workers || workers != self.workers {
            "every GPU is a rank of one group, so --workers is the same on all hosts, and what --elastic allows at most"
        } else if self.shards() != self.all_workers() {
            "every GPU runs one shard, so leave --shards out"
        } else if self.log_samples {
            "--log-samples notes what members do through the host's memory; leave it out"
        } else {
            return Ok(());
        };
        Err(TrainError::GroupOfDevices(why))
    }

    /// Whether GPUs exchange with each other, through NCCL. They exchange through the host if a server in the host's memory takes
    /// part, if several workers use one GPU, or if a worker runs several shards.
    pub(crate) fn exchanges_on_device(&self) -> bool {
        let plan = self.plan();
        let through_host = self.share_gpu || plan.needs_host() || self.shards() != self.all_workers();
        // On several hosts the state is where the exchange is, so a group of one is one too.
        let is_one = self.workers == 1 && self.hosts.is_none();
        let exchanges = plan.exchanges() && (!is_one || self.exchange.alone);
        let on_device =
            self.engine == CUDA || (self.hosts.is_some() && self.engine == CPU && host::is_asked());
        on_device && exchanges && !through_host
    }

    /// Opens the engine of a rank.
    pub(crate) fn open_engine_of(&self, rank: Rank, pinned: bool) -> Result<Box<dyn Engine>, TrainError> {
        if self.engine == CPU {
            let cpu = open_cpu(self.threads, self.numerics.as_ref())?;
            return Ok(Box::new(if pinned { cpu.on_cores_of_their_own() } else { cpu }));
        }
        let own = rank.0 as usize;
        let device = if self.share_gpu { own % Cuda::devices()?.max(1) } else { own };
        Ok(Box::new(open_cuda(device, self.numerics.as_ref())?))
    }
}

/// The number of GPUs; an error if the driver is missing or too old.
pub fn devices() -> Result<usize, TrainError> {
    Ok(Cuda::devices()?)
}

/// The name of a new group of GPUs.
pub(crate) fn new_group() -> Result<UniqueId, TrainError> {
    Ok(Library::find()?.unique_id()?)
}

/// Joins a group of GPUs, and turns a plan into the exchange that a program records into its steps.
pub(crate) fn weave(
    plan: Plan,
    group: UniqueId,
    buckets: &[Bucket],
    options: &ExchangeOptions,
) -> Result<Weave, TrainError> {
    let seat = Seat { group, rank: plan.rank, world: plan.world };
    let nccl = Nccl::join(Arc::new(Library::find()?), seat, PATIENCE)?;
    Ok(weave_with(Joined { nccl, recall: Box::new(|| false) }, plan, options, &ranges(buckets)))
}

/// Whether a group is given up for another one. It is asked again and again while devices are waited for.
pub(crate) type Recall = Box<dyn FnMut() -> bool + Send>;

/// The way into a group whose members come and go.
pub(crate) struct Entry {
    pub group: UniqueId,
    pub recall: Recall,
}

/// The same with members that come and go: an error as soon as the group is recalled.
pub(crate) fn weave_until(
    plan: Plan,
    Entry { group, mut recall }: Entry,
    buckets: &[Bucket],
    options: &ExchangeOptions,
) -> Result<Weave, TrainError> {
    let seat = Seat { group, rank: plan.rank, world: plan.world };
    let nccl = Nccl::join_unless(Arc::new(Library::find()?), seat, PATIENCE, &mut recall)?;
    Ok(weave_with(Joined { nccl, recall }, plan, options, &ranges(buckets)))
}

/// A place in a group, and who can recall it.
struct Joined {
    nccl: Nccl,
    recall: Recall,
}

fn ranges(buckets: &[Bucket]) -> Vec<Range<usize>> {
    buckets.iter().map(|bucket| bucket.range.clone()).collect()
}

fn weave_with(joined: Joined, plan: Plan, options: &ExchangeOptions, buckets: &[Range<usize>]) -> Weave {
    let Joined { nccl, recall } = joined;
    let slices = |range: &Range<usize>| {
        let within = |part: Range<usize>| part.start - range.start..part.end - range.start;
        (0..plan.world).map(|other| within(slice(range.clone(), Rank(other), plan.world))).collect()
    };
    Weave {
        buckets: buckets
            .iter()
            .map(|range| WovenBucket { range: range.clone(), updated: plan.updated(range.clone()) })
            .collect(),
        overlap: options.overlap,
        gathered: (plan.reduce == Reduce::ByEach).then_some(plan.world as usize),
        link: Box::new(GpuLink { plan, slices: buckets.iter().map(slices).collect(), nccl, recall }),
    }
}

/// A plan in NCCL's operations.
struct GpuLink {
    nccl: Nccl,
    plan: Plan,
    /// Each rank's slice of each bucket, counted from the bucket's start.
    slices: Vec<Vec<Range<usize>>>,
    recall: Recall,
}

impl Drop for GpuLink {
    fn drop(&mut self) {
        // A group is left in good order by all its ranks, or by none.
        if (self.recall)() {
            self.nccl.give_up();
        }
    }
}

fn told(error: CommError) -> EngineError {
    EngineError::Exchange(error.to_string())
}

fn values(region: Region) -> DeviceValues {
    // SAFETY: a region is values of the program that puts the operation on its stream, which keeps them, and does not touch
    // them otherwise, until it has waited for that stream.
    unsafe { DeviceValues::new(region.address(), region.len()) }
}

/// The stream that a program hands to its link.
fn on(stream: u64) -> Stream {
    // SAFETY: it is a stream of the program, which lives until it has waited for it.
    unsafe { Stream::new(stream) }
}

impl Link for GpuLink {
    fn put_gradients(
        &mut self,
        bucket: usize,
        Exchanged { own, gathered }: Exchanged,
        stream: u64,
    ) -> Result<(), EngineError> {
        let (at, stream) = (values(own), on(stream));
        let put = match (self.plan.reduce, gathered) {
            (Reduce::ByEach, Some(into)) => self.nccl.gather_beside(at, values(into), stream),
            (Reduce::Scatter, _) => self.nccl.reduce_scatter(at, &self.slices[bucket], stream),
            (Reduce::AtServer, _) => self.nccl.reduce(at, Plan::SERVER, stream),
            (Reduce::ToAll | Reduce::ByEach, _) => self.nccl.all_reduce(at, stream),
            (Reduce::Nothing, _) => Ok(()),
        };
        put.map_err(told)
    }

    fn put_parameters(&mut self, bucket: usize, parameters: Region, stream: u64) -> Result<(), EngineError> {
        let (at, stream) = (values(parameters), on(stream));
        let put = match self.plan.publish {
            Publish::Slices => self.nccl.all_gather(at, &self.slices[bucket], stream),
            Publish::FromServer => self.nccl.broadcast(at, Plan::SERVER, stream),
            Publish::Nothing => Ok(()),
        };
        put.map_err(told)
    }

    fn watch(&mut self, waited: Duration) -> Result<(), EngineError> {
        if (self.recall)() {
            self.nccl.give_up();
            return Err(told(CommError::Recalled));
        }
        self.nccl.watch(waited, PATIENCE).map_err(told)
    }
}

#[cfg(test)]
mod tests;
