//! Trainings on several hosts: how launchers meet, what they tell each other, and who carries the bytes.
//!
//! The same command runs on every host. One of them can listen at the rendezvous' address: it is the first, and keeps the roster of
//! hosts ([`Authority`](paceline_comm::tasks::authority::Authority)). The others call it. Each launcher leads its own members, as in
//! an elastic run on one host; its *porter* carries what the hosts need of each other.

mod entrance;
mod first;
mod heir;
mod letter;
pub(crate) mod link;
mod local;
pub(crate) mod measure;
mod meet;
mod other;
mod party;
pub(crate) mod porter;
mod registrar;
mod silence;
mod store;
mod table;

use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use paceline_comm::mpi::Mpi;
use paceline_comm::wire::{Door, Terms};
use paceline_record::Nanos;
use serde::{Deserialize, Serialize};

use crate::{TrainError, affinity};

pub(crate) use link::Link;
pub use local::{Local, local_assignment};
pub(crate) use local::{LocalHost, LocalPlace, end_or_kill};
pub use measure::HostRow;
pub use meet::{Admission, Admitted};
pub(crate) use meet::{Introduction, meet};
pub(crate) use party::{Event, Parted, Party};
pub use registrar::Registrar;

/// How long a host may be silent before it counts as lost, unless it is said.
pub const LEASE: Nanos = Nanos(2_000_000_000);

/// How many hosts a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hosts {
    /// With fewer than this nothing runs.
    pub min: u32,
    /// More than this there never are.
    pub max: u32,
    /// Workers that the first host may have; shards and slices are counted by it, and not by those of other hosts.
    pub workers: u32,
    /// Whether all of them are on one machine and divide its cores.
    pub local: bool,
}

/// The most hosts of a job.
pub const MOST_HOSTS: u32 = 64;

/// The fewest and the most hosts: `N` or `MIN:MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostCount {
    /// The fewest.
    pub min: u32,
    /// The most.
    pub max: u32,
}

impl FromStr for HostCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is no number of hosts; write N, or MIN:MAX with --elastic, as 2 or 2:4");
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        let (min, max): (u32, u32) = min.parse().ok().zip(max.parse().ok()).ok_or_else(wrong)?;
        match (min, max) {
            (0, _) => Err("a job needs at least 1 host".into()),
            _ if min > max => Err(format!("{min} hosts are more than {max}; write {max}:{min}")),
            _ if max > MOST_HOSTS => {
                Err(format!("{max} hosts are more than a job may have, which is {MOST_HOSTS}"))
            }
            _ => Ok(Self { min, max }),
        }
    }
}

impl TryFrom<String> for HostCount {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<HostCount> for String {
    fn from(count: HostCount) -> Self {
        count.to_string()
    }
}

impl Display for HostCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { min, max } if min == max => write!(f, "{max}"),
            Self { min, max } => write!(f, "{min}:{max}"),
        }
    }
}

impl Hosts {
    /// The fewest and the most.
    pub fn count(&self) -> HostCount {
        HostCount { min: self.min, max: self.max }
    }
}

/// Keeps this process, and what it starts from now on, to its share of the cores that several hosts have: its place among them, and
/// how many these are. Where there is not one for each, nothing changes.
pub fn keep_to_share(place: u32, places: u32) -> Result<(), TrainError> {
    affinity::pin_host(place, places).map(drop)
}

/// How this launcher meets those of other hosts.
#[derive(Clone)]
pub struct Meeting {
    /// Whether it is the first, or whom it calls.
    pub role: Role,
    /// What both sides of a connection must have in common.
    pub terms: Terms,
    /// How long a host may be silent.
    pub lease: Nanos,
    /// How long to wait for hosts, or for the first to answer.
    pub patience: Nanos,
    /// This host's name.
    pub name: String,
    /// Whether other runs of the same study follow this one.
    pub is_last: bool,
    /// Where rosters are written down, so that the first host can be lost as any other.
    pub registrar: Option<Arc<Registrar>>,
}

impl Meeting {
    /// Whether this launcher is that of the first host.
    pub fn is_first(&self) -> bool {
        match &self.role {
            Role::First { .. } => true,
            Role::Other(_) => false,
            Role::Rank(mpi) => mpi.rank() == 0,
        }
    }

    /// The MPI job that hosts are ranks of.
    pub(crate) fn mpi(&self) -> Option<&Arc<Mpi>> {
        match &self.role {
            Role::Rank(mpi) => Some(mpi),
            Role::First { .. } | Role::Other(_) => None,
        }
    }
}

/// A launcher's role.
#[derive(Clone)]
pub enum Role {
    /// It listens at the rendezvous' address.
    First {
        /// The door there, and if the bytes of other hosts are to come in elsewhere, that one.
        doors: Vec<Arc<Door>>,
        /// Other hosts of this same machine to be started, for trying.
        local: Option<Local>,
    },
    /// It calls whoever does.
    Other(Call),
    /// It is a rank of an MPI job, through which all goes. The first rank is the first host.
    Rank(Arc<Mpi>),
}

/// Whom to call, and where to be called.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The rendezvous: the addresses that its name has.
    pub at: Vec<SocketAddr>,
    /// The address to listen at for other hosts' bytes; `None` for the one that leads to the rendezvous.
    pub interface: Option<IpAddr>,
    /// The port there; 0 for any.
    pub port: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_hosts_are_read_and_shown_again() {
        assert_eq!("2".parse(), Ok(HostCount { min: 2, max: 2 }));
        assert_eq!("2:4".parse(), Ok(HostCount { min: 2, max: 4 }));
        for text in ["2", "1:3"] {
            assert_eq!(text.parse::<HostCount>().map(|count| count.to_string()), Ok(text.to_owned()));
        }
        for (text, expected) in
            [("", "no number"), ("0", "at least 1"), ("4:2", "write 2:4"), ("65", "64"), ("a:b", "no number")]
        {
            let message = text.parse::<HostCount>().expect_err(text);
            assert!(message.contains(expected), "{message}");
        }
    }
}
