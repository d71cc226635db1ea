//! What this process is among hosts, before it meets the others.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use paceline_comm::CommError;
use paceline_comm::mpi::{Family, Library, Mpi};
use paceline_lab::words;
use paceline_record::Nanos;
use paceline_system::cores;
use paceline_system::tree::Tree;
use paceline_train::{Job, hosts};
use serde::{Deserialize, Serialize};

use super::launched::{Launched, Step};
use crate::machine;
use crate::outcome::Usage;

/// How hosts are to find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// As options say.
    Meet,
    /// On the first node of a Slurm job.
    Slurm(Step),
    /// They are ranks of an MPI job.
    Mpi(Family),
}

/// What this process is among hosts.
pub struct Place {
    pub(super) way: Way,
    pub(super) launched: Option<Launched>,
    /// How many processes divide the cores that this one was given among them, itself included.
    pub(super) sharing: u32,
}

/// How the others are found.
pub(super) enum Way {
    Alone,
    Meet,
    Slurm(Step),
    Mpi(Arc<Mpi>),
}

impl Place {
    /// Refuses jobs that need more cores than whoever started this process has left it.
    pub fn check_cores<'a>(&self, jobs: impl IntoIterator<Item = &'a Job>) -> Result<(), Usage> {
        let Some(launched) = &self.launched else { return Ok(()) };
        let cores = machine::cores();
        let needed = |job: &&Job| job.workers as usize * job.threads;
        let Some(job) = jobs.into_iter().filter(|job| job.engine == "cpu").max_by_key(needed) else {
            return Ok(());
        };
        if needed(&job) <= cores {
            return Ok(());
        }
        let (by, left) = (&launched.by, words::cores(cores as u32));
        let why = match self.sharing {
            1 => format!("{by} has left this launcher {left}"),
            sharing => format!(
                "{sharing} launchers that {by} has started divide the cores here, which leaves this one {left}"
            ),
        };
        Err(Usage::new(format!(
            "{} of {} on each host need {}, and {why}; use fewer --workers or --threads, or let one process on each host have all cores: {}",
            words::workers(job.workers),
            if job.threads == 1 { "1 thread".into() } else { format!("{} threads", job.threads) },
            words::cores(needed(&job) as u32),
            by.unbound()
        )))
    }
}

/// Whether Slurm has given this process as many cores as it was asked for, and so no other one the same.
pub(super) fn has_own_cores() -> bool {
    let asked = std::env::var("SLURM_CPUS_PER_TASK").ok().and_then(|text| text.parse::<usize>().ok());
    asked.is_some_and(|asked| machine::cores() <= asked)
}

/// What ranks tell each other at the start.
#[derive(Serialize, Deserialize)]
struct Told {
    version: String,
    /// What tells this machine from others, as long as it is on.
    machine: Option<String>,
    cores: Vec<usize>,
}

/// Begins MPI, and keeps to this rank's share of the cores that several have; also how many these are.
pub(super) fn join_mpi(family: Family, launched: &Launched, patience: Nanos) -> Result<(Arc<Mpi>, u32)> {
    let refuse = |error: CommError| match error {
        CommError::NoMpi { .. } | CommError::Alone { .. } => {
            let more = ". Without MPI: --wire tcp, under mpirun with --rendezvous tcp://HOST:PORT";
            anyhow::Error::from(Usage::new(format!("{error}{more}")))
        }
        error => error.into(),
    };
    let library = Library::find(family).map_err(refuse)?;
    let patience = Duration::from_nanos(patience.0);
    let mpi = Mpi::start(library, launched.world, patience).map_err(refuse)?;
    let own = Told {
        version: env!("CARGO_PKG_VERSION").into(),
        machine: Tree::new("/").line("/proc/sys/kernel/random/boot_id"),
        cores: cores::allowed().unwrap_or_default(),
    };
    let text = serde_json::to_string(&own).expect("invariant: plain data");
    let all = mpi.gather(&text, patience).map_err(refuse)?;
    let all: Vec<Option<Told>> = all.iter().map(|text| serde_json::from_str(text).ok()).collect();
    if let Some(rank) =
        all.iter().position(|told| told.as_ref().is_none_or(|told| told.version != own.version))
    {
        return Err(Usage::new(format!(
            "rank {rank} runs another version of Paceline; use the same on all hosts"
        ))
        .into());
    }
    let alike = |(rank, told): (usize, &Option<Told>)| {
        let told = told.as_ref()?;
        let is_it = own.machine.is_some() && told.machine == own.machine && told.cores == own.cores;
        is_it.then_some(rank as u32)
    };
    let sharing: Vec<u32> = all.iter().enumerate().filter_map(alike).collect();
    let places = (sharing.len() as u32).max(1);
    if let Some(place) = sharing.iter().position(|&rank| rank == mpi.rank()).filter(|_| places > 1) {
        hosts::keep_to_share(place as u32, places)?;
        mpi.run(|_| {
            // Its porter keeps to the same: it takes over what the first thread has.
            let _ = hosts::keep_to_share(0, 1);
        });
    }
    Ok((Arc::new(mpi), places))
}
