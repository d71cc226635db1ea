//! What was found out about a machine. What could not be read is `None`.

use std::path::PathBuf;

use paceline_engine::cuda::Library;
use paceline_record::{Bytes, Nanos};
pub use paceline_system::cgroup::{Grant, Limit};
use paceline_system::memory;
use serde::Serialize;

/// All that the checks look at.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// The processor, and which part of it this process may use.
    pub processor: Processor,
    /// Memory, and what limits it.
    pub memory: Memory,
    /// GPUs and what drives them.
    pub accelerators: Accelerators,
    /// What connects hosts, and what starts them.
    pub clusters: Clusters,
    /// Kernel, surroundings, files.
    pub system: System,
    /// How fast the cores run, and what slows them.
    pub speed: Speed,
    /// Who else uses the machine.
    pub activity: Activity,
    /// Clock and cores, as tried out.
    pub probe: Probe,
    /// What the networks of the default study need.
    pub needs: Option<Vec<Need>>,
}

/// The processor, and which part of it this process may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Processor {
    /// Its name.
    pub name: Option<String>,
    /// Hardware threads that are on.
    pub online: Option<Vec<usize>>,
    /// Hardware threads that this process may run on.
    pub allowed: Option<Vec<usize>>,
    /// Hardware threads by the core that they belong to.
    pub siblings: Option<Vec<Vec<usize>>>,
    /// NUMA nodes.
    pub nodes: Option<usize>,
    /// Cores' worth of time that the control group grants.
    pub quota: Option<Limit<f64>>,
    /// The instruction set that the engine computes with.
    pub instructions: Option<String>,
    /// Caches, as the first allowed core sees them.
    pub caches: Option<Vec<Cache>>,
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cache {
    /// `L1d`, `L2`, `L3`.
    pub name: String,
    /// Its size.
    pub size: Bytes,
    /// Hardware threads that share it.
    pub shared_by: Option<usize>,
}

/// Memory, and what limits it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// All of it.
    pub total: Option<Bytes>,
    /// What programs could still take.
    pub available: Option<Bytes>,
    /// What the control group grants.
    pub container: Option<Limit<Grant>>,
    /// The largest file that this process may write, a shared segment included.
    pub largest_file: Option<Limit<Bytes>>,
    /// The file system at `/dev/shm`.
    pub shm: Option<Space>,
    /// When the kernel gives huge pages.
    pub huge_pages: Option<String>,
    /// Swap in use.
    pub swap_used: Option<Bytes>,
    /// Pages that went to and from swap.
    pub swapped_pages: Option<Count>,
}

/// Room on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Space {
    /// Its size.
    pub size: Bytes,
    /// What this user may still fill.
    pub free: Bytes,
}

/// A counter of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Count {
    /// Since it began.
    pub total: u64,
    /// While we watched.
    pub now: u64,
}

/// GPUs and what drives them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Accelerators {
    /// Names of the NVIDIA GPUs that the driver shows.
    pub gpus: Option<Vec<String>>,
    /// The libraries of the CUDA engine, and NCCL.
    pub libraries: Option<Vec<Library>>,
    /// What the CUDA engine runs on, in words with versions, or what it lacks.
    pub engine: Option<Result<String, String>>,
}

/// What connects hosts, and what starts them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Clusters {
    /// MPI libraries that can be used, by their binary interface.
    pub mpi: Option<Vec<MpiLibrary>>,
    /// Why others cannot.
    pub refused: Vec<String>,
    /// The etcd that the environment names.
    pub etcd: Option<Etcd>,
    /// `mpirun` and `srun`, as far as they are there.
    pub programs: Option<Vec<Program>>,
}

/// What is known of etcd.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Etcd {
    /// The environment names none.
    Unnamed,
    /// It answers.
    There {
        /// Its version.
        version: String,
        /// Its address.
        place: String,
    },
    /// It does not.
    Refused(String),
}

/// An MPI library.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MpiLibrary {
    /// Whose binary interface it has.
    pub interface: &'static str,
    /// Its name and version.
    pub version: String,
    /// Where it is.
    pub path: Option<PathBuf>,
}

/// A program that the search path leads to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Program {
    /// What it is called.
    pub name: &'static str,
    /// Where it is.
    pub path: PathBuf,
    /// What it says that it is.
    pub version: Option<String>,
}

/// Kernel, surroundings, files.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct System {
    /// Version of the kernel.
    pub kernel: Option<String>,
    /// Whether a hypervisor runs this machine.
    pub virtual_machine: Option<bool>,
    /// Whether this process is in a container.
    pub container: Option<bool>,
    /// The current folder's file system.
    pub disk: Option<Space>,
    /// Files that one process may hold open.
    pub open_files: Option<Limit<u64>>,
}

/// How fast the cores run, and what slows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Speed {
    /// The frequency governors in use.
    pub governors: Option<Vec<String>>,
    /// Whether cores may run above their nominal frequency.
    pub boost: Option<bool>,
    /// The highest frequency of the allowed cores.
    pub highest_khz: Option<u64>,
    /// Times that heat slowed a core.
    pub heat: Option<Count>,
    /// Times that the control group's quota stopped this process.
    pub throttled: Option<Count>,
}

/// Who else uses the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Activity {
    /// Load average over one minute.
    pub load: Option<f64>,
    /// Fraction of the allowed cores' time that others computed.
    pub busy: Option<f64>,
    /// Fraction of the allowed cores' time that the hypervisor gave to others.
    pub stolen: Option<f64>,
    /// Other processes that computed, by name, the busiest first.
    pub busiest: Option<Vec<Busy>>,
}

/// Processes of one name that compute.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Busy {
    /// Their name.
    pub name: String,
    /// Cores that they fill.
    pub cores: f64,
}

/// Clock and cores, as tried out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Probe {
    /// The kernel's clock source.
    pub clock: Option<String>,
    /// Time that one reading of the clock takes.
    pub reading: Option<Nanos>,
    /// What became of a thread that did nothing but watch the clock, core by core.
    pub spins: Option<Vec<Spin>>,
}

/// A core whose thread did nothing but watch the clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spin {
    /// The core.
    pub core: usize,
    /// Fraction of the time that went by in gaps.
    pub lost: f64,
    /// The longest gap.
    pub longest: Nanos,
    /// The core's frequency at the end.
    pub khz: Option<u64>,
}

/// What a network of the default study needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Need {
    /// The network.
    pub model: String,
    /// Memory of each worker.
    pub worker: Bytes,
    /// The part of it that all workers share.
    pub shared: Option<Bytes>,
}

impl Processor {
    /// Cores' worth of time that this process has: as many as it may run on, and the whole ones of its quota.
    pub fn usable(&self) -> Option<usize> {
        let allowed = self.allowed.as_ref()?.len();
        Some(match self.quota {
            Some(Limit::At(quota)) => allowed.min(quota as usize).max(1),
            _ => allowed,
        })
    }

    /// The first allowed hardware thread of each core.
    pub fn one_each(&self) -> Option<Vec<usize>> {
        let allowed = self.allowed.as_ref()?;
        let first = |core: &Vec<usize>| core.iter().copied().find(|thread| allowed.contains(thread));
        let mut threads: Vec<usize> = self.siblings.as_ref()?.iter().filter_map(first).collect();
        threads.sort_unstable();
        Some(threads)
    }

    /// Workers that have a core each.
    pub fn workers(&self) -> Option<usize> {
        let usable = self.usable()?;
        Some(self.one_each().map_or(usable, |cores| usable.min(cores.len())).max(1))
    }
}

impl Memory {
    /// What this process could still take.
    pub fn left(&self) -> Option<Bytes> {
        memory::least(self.available, self.container)
    }
}
