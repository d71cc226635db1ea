//! What can go wrong in training, grouped by what the caller can do.

use std::error::Error;
use std::fmt;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};

use paceline_comm::CommError;
use paceline_comm::wire::Address;
use paceline_engine::EngineError;
use paceline_model::ModelError;
use paceline_record::{Exit, LogError, Rank, Step};

use crate::checkpoint::CheckpointError;
use crate::elastic::Bounds;
use crate::strategy::Strategy;

/// A job that cannot be run, or did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Reject the input: hosts of a simulated machine.
    #[error("the simulated machine is one host; leave --hosts out")]
    SimulatedHosts,
    /// Report the usage error: layers are timed where workers stay.
    #[error("--profile times the layers of workers that stay, on one host; leave --elastic and --hosts out")]
    ElasticProfile,
    /// Report the usage error: this host has not the address, or not the port, that others are to reach it at.
    #[error("cannot listen at {at}, where --interface and --port say that other hosts reach this one")]
    NoDoor {
        /// Where.
        at: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Report the failure: the hosts of the job end it.
    #[error("{0}")]
    HostsEnded(String),
    /// Report the failure: a worker was lost, and none takes its place.
    #[error("{0}")]
    WorkerLost(String),
    /// Report the failure: the first host does not take this one in.
    #[error("the first host, {first}, does not take this one: {why}")]
    SentAway {
        /// Where the first host was called.
        first: Address,
        /// Why.
        why: String,
    },
    /// Reject the input: the first host runs another job.
    #[error("the first host, {first}, runs another job: {why}")]
    AnotherJob {
        /// Where the first host was called.
        first: Address,
        /// What differs.
        why: String,
    },
    /// Reject the input: a folder that is to be this host's alone.
    #[error(
        "{0} is not empty, and this host keeps its logs there until the first has them; leave --out out on all hosts but the first, \
         or name a new folder"
    )]
    Taken(PathBuf),
    /// Reject the input: there is no such data.
    #[error(
        "cannot use the data '{name}': {why}; there are synthetic:cifar10, synthetic:imagenet, synthetic:HxWxC, \
         cifar10:DIR and images:DIR"
    )]
    Data {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Reject the input: a file of the data is not there or not as it should be.
    #[error("{}: {what}; {help}", path.display())]
    DataFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// What to do about it.
        help: String,
    },
    /// Report the failure: its cause has been reported.
    #[error("the loader ended after an error")]
    LoaderEnded,
    /// Reject the input: the network reads pictures of another depth.
    #[error("{model} reads {expected} channels, but the data has {got}; use synthetic:HxWx{expected}")]
    Channels {
        /// The network.
        model: String,
        /// Channels it reads.
        expected: usize,
        /// Channels of the data.
        got: usize,
    },
    /// Reject the input: some workers would have nothing to do.
    #[error(
        "{shards} shards cannot keep {workers} workers busy; use --shards {workers} or more, or fewer workers"
    )]
    Shards {
        /// Shards of a step.
        shards: u32,
        /// Workers.
        workers: u32,
    },
    /// Reject the input: an elastic job that begins outside of its own bounds.
    #[error("--elastic {bounds} does not allow {workers} workers; use --workers {} or other bounds", bounds.max)]
    Bounds {
        /// Workers to begin with.
        workers: u32,
        /// What was asked for.
        bounds: Bounds,
    },
    /// Reject the input: a step that cannot be cut into equal shards.
    #[error(
        "a global batch of {global_batch} cannot be divided equally among {shards} {among}; use a multiple of {shards}, as \
         {use_instead}"
    )]
    UnequalShards {
        /// Samples of a step.
        global_batch: usize,
        /// Shards of a step.
        shards: usize,
        /// What the user knows them as.
        among: &'static str,
        /// An option that would do.
        use_instead: String,
    },
    /// Reject the input: a short number format where gradients are not added up by an all-reduce.
    #[error("gradients are exchanged in 16 bits with --update allreduce only; leave --compress out")]
    CompressedUpdate,
    /// Reject the input: shards that nobody adds up.
    #[error("independent workers add nothing up, so that --shards means nothing; leave it out")]
    LonelyShards,
    /// Reject the input: an exchange with oneself, of nothing.
    #[error("independent workers exchange nothing, not even with themselves; leave --exchange-alone out")]
    LonelyExchange,
    /// Reject the input: Nesterov's rule without what it is about.
    #[error(
        "nesterov looks ahead by its momentum, and --momentum is 0; use --optimizer sgd, or a --momentum above 0"
    )]
    NoMomentum,
    /// Reject the input: what needs GPUs was asked of another engine.
    #[error("{0}; use it with --engine cuda")]
    NoDevices(&'static str),
    /// Reject the input: more workers than GPUs.
    #[error(
        "{workers} workers want a GPU each, and the driver has {devices}; use fewer --workers, or --share-gpu to let several \
         use one, for testing"
    )]
    TooFewDevices {
        /// Workers.
        workers: u32,
        /// GPUs.
        devices: usize,
    },
    /// Reject the input: NCCL moves gradients as they are.
    #[error("gradients between GPUs travel in 32 bits; leave --compress out")]
    CompressedDevices,
    /// Reject the input: a checkpoint of something else.
    #[error("cannot resume {}: {why}", path.display())]
    WrongCheckpoint {
        /// The checkpoint.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// Reject the input: there is no such engine.
    #[error("unknown engine '{0}'; use cpu, cuda or simulated")]
    UnknownEngine(String),
    /// Reject the input: the machine cannot be simulated as asked.
    #[error("cannot simulate: {0}")]
    Simulation(String),
    /// Reject the input: the network cannot be built as asked.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Reject the input, or report the failure: the engine says which.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Report the failure: the other ranks, or the memory shared with them.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Reject the input, or report the failure: the checkpoint's error says which.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Report the failure: the run log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Report the failure: a worker was not started by a launcher.
    #[error("a worker is started by the launcher, not by hand: {0}")]
    NoAssignment(String),
    /// Report the failure: the launcher is gone, and with it the run.
    #[error("the launcher ended")]
    Orphaned,
    /// Report the failure: the system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Report the failure: a worker did not finish.
    #[error("{0}")]
    Died(Death),
    /// Report the failure: an elastic job has too few workers left.
    #[error(
        "{} left and --elastic needs {min}{}{}{last}",
        match there { 0 => "no worker is".to_owned(), 1 => "1 worker is".to_owned(), _ => format!("{there} workers are") },
        waited.map_or_else(|| ", and no restarts remain".to_owned(), |s| format!(", after waiting for {s} s")),
        if last.is_empty() { "" } else { "; " }
    )]
    TooFew {
        /// Workers that are left.
        there: u32,
        /// Workers that it takes.
        min: u32,
        /// Seconds waited for more; `None` where none would have come.
        waited: Option<f64>,
        /// What is known about the last one that was lost.
        last: String,
    },
    /// Report the failure: a process that the system will not end.
    #[error("member {member} cannot be killed, as when it waits for a disk that is gone")]
    Unkillable {
        /// The member.
        member: u32,
    },
    /// Report a bug: everybody waits for somebody else.
    #[error("in step {step} all workers wait for each other; please report this")]
    Deadlock {
        /// The step.
        step: Step,
    },
    /// Report both: why a run ended, and why its last state could not be saved.
    #[error("{}; and its state could not be saved: {}", describe(&**error), describe(&**saving))]
    Unsaved {
        /// Why it ended.
        error: Box<TrainError>,
        /// What went wrong then.
        saving: Box<TrainError>,
    },
    /// Report the failure: workers that were asked to stop had not saved their state in time, and were killed.
    #[error("workers did not finish their step and write a checkpoint within {seconds} s")]
    SlowToStop {
        /// How long they were waited for.
        seconds: u64,
    },
    /// Reject the input: an elastic job whose strategy needs every worker.
    #[error(
        "--elastic and --hosts go with --update allreduce and sharded, not {0}: it needs every worker, and memory that all of them \
         share"
    )]
    ElasticUpdate(Strategy),
    /// Reject the input: a fault that would never come.
    #[error("{fault} is after the last of {steps} steps, which are counted from 0; choose an earlier step")]
    LateFault {
        /// The fault.
        fault: String,
        /// Steps of the run.
        steps: u64,
    },
    /// Reject the input: a fault of a host in a job for one.
    #[error("{0} is for several hosts; use it with --hosts N")]
    FaultOfHost(String),
    /// Reject the input: a fault of a host that there will not be.
    #[error("{fault} is for none of {hosts} hosts, which are counted from 0; choose one below {hosts}")]
    FaultOfNoHost {
        /// The fault.
        fault: String,
        /// The most hosts of the job.
        hosts: u32,
    },
    /// Reject the input: a fault that one worker does not outlive, in a job that needs all of them.
    #[error("{0} is for workers that come and go; use it with --elastic")]
    FaultOfMember(String),
    /// Reject the input: an elastic job that exchanges between GPUs of one host.
    #[error(
        "on GPUs --elastic goes with --hosts N, through NCCL, or with --share-gpu, through the host's memory"
    )]
    ElasticDevices,
    /// Reject the input: what a group of GPUs on several hosts cannot do.
    #[error("on GPUs of several hosts: {0}; --share-gpu exchanges through the hosts' memory instead")]
    GroupOfDevices(&'static str),
    /// Stop: the user asked for it.
    #[error("interrupted")]
    Interrupted,
}

/// An error with its causes, each of them once: some errors quote their cause themselves.
pub fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in iter::successors(error.source(), |&cause| cause.source()).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

impl TrainError {
    /// Whether the user must ask for something else. Otherwise the system, another process or this program is to blame.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Engine(error) => !matches!(
                error,
                EngineError::Refused { .. } | EngineError::Exchange(_) | EngineError::Device { .. }
            ),
            Self::Comm(error) => matches!(
                error,
                CommError::TooLarge { .. } | CommError::NoNccl { .. } | CommError::Refused { .. }
            ),
            Self::Checkpoint(error) => error.is_usage(),
            Self::LoaderEnded
            | Self::Log(_)
            | Self::NoAssignment(_)
            | Self::Orphaned
            | Self::System { .. }
            | Self::Died(_)
            | Self::TooFew { .. }
            | Self::Unkillable { .. }
            | Self::Deadlock { .. }
            | Self::Unsaved { .. }
            | Self::SlowToStop { .. }
            | Self::HostsEnded(_)
            | Self::WorkerLost(_)
            | Self::SentAway { .. }
            | Self::Interrupted => false,
            _ => true,
        }
    }

    /// Whether it is the failure of one run alone: other cases of a study can still be done.
    pub fn is_of_a_case(&self) -> bool {
        matches!(
            self,
            Self::HostsEnded(_)
                | Self::WorkerLost(_)
                | Self::TooFew { .. }
                | Self::Died(_)
                | Self::Deadlock { .. }
        )
    }

    /// Whether the user stopped the run, wherever that led.
    pub fn is_interruption(&self) -> bool {
        match self {
            Self::Interrupted => true,
            Self::Unsaved { error, .. } => error.is_interruption(),
            _ => false,
        }
    }

    /// Something is wrong with a file of the data.
    pub(crate) fn damaged(path: &Path, what: impl Into<String>, help: &str) -> Self {
        Self::DataFile { path: path.into(), what: what.into(), help: help.into() }
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// How a worker ended that should not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The worker.
    pub rank: Rank,
    /// The step it was in; `None` before the first.
    pub step: Option<Step>,
    /// What the system says about its end.
    pub exit: Exit,
    /// The file of everything it printed.
    pub log: PathBuf,
    /// The last lines of that file.
    pub last_words: String,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ended ", self.rank)?;
        match self.step {
            Some(step) => write!(f, "in step {step}")?,
            None => f.write_str("before its first step")?,
        }
        write!(f, " with {}", self.exit)?;
        if self.exit == Exit::Signal(9) {
            f.write_str(", as when memory runs out")?;
        }
        write!(f, "; its log is {}", self.log.display())?;
        if !self.last_words.is_empty() {
            write!(f, "\n{}", self.last_words)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_all_its_causes_once_and_its_type_says_who_must_act() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let reason = full().to_string();
        // This one leaves its cause to the chain, and the other quotes it.
        let log: TrainError = LogError::Io { path: "rank-0.jsonl".into(), source: full() }.into();
        let checkpoint: TrainError =
            CheckpointError::Io { what: "write", path: "step-1".into(), source: full() }.into();
        for error in [log, checkpoint] {
            assert!(!error.is_usage(), "{error}");
            let text = describe(&error);
            assert_eq!(text.matches(&reason).count(), 1, "{text}");
        }
        let missing: TrainError = CheckpointError::Missing { path: "run".into() }.into();
        assert!(
            missing.is_usage() && TrainError::NoMomentum.is_usage() && !TrainError::Interrupted.is_usage()
        );
    }
}
