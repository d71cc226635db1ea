//! Where other hosts come in: doors in the network, or the ranks of an MPI job.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use paceline_comm::mpi::{Mpi, RankVisitor};
use paceline_comm::wire::{Address, Cable, Door, Letters};

/// Where the first host is called.
#[derive(Clone)]
pub(super) enum Entrance {
    /// The rendezvous', and if bytes come in elsewhere, that one.
    Doors(Vec<Arc<Door>>),
    /// All others are ranks, whose bytes come by themselves.
    Ranks(Arc<Mpi>, Cable),
}

/// Somebody who has called.
pub(super) struct Visitor {
    pub greeting: Vec<u8>,
    pub letters: Letters,
    pub from: Address,
}

impl Entrance {
    /// The next one, if somebody has called.
    pub fn next(&self) -> Option<Visitor> {
        match self {
            Self::Doors(doors) => {
                let visitor = doors.iter().find_map(|door| door.next())?;
                let from = visitor.from.into();
                Some(Visitor { greeting: visitor.greeting, letters: Letters::new(visitor.stream), from })
            }
            Self::Ranks(mpi, cable) => {
                let RankVisitor { rank, greeting, mut letters } = mpi.visitor()?;
                letters.set_cable(cable);
                Some(Visitor { greeting, letters, from: Address::Rank(rank) })
            }
        }
    }

    /// What is readable while somebody has called.
    pub fn files(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Doors(doors) => doors.iter().map(|door| door.as_fd()).collect(),
            Self::Ranks(mpi, _) => vec![mpi.visited()],
        }
    }

    /// Where bytes come in, if not where hosts are met.
    pub fn bytes(&self) -> Option<SocketAddr> {
        match self {
            Self::Doors(doors) => doors.get(1).map(|door| door.address()),
            Self::Ranks(..) => None,
        }
    }

    /// Where hosts are met, in words.
    pub fn place(&self) -> String {
        match self {
            Self::Doors(doors) => format!("at {}", doors[0].address()),
            Self::Ranks(..) => "of the MPI job".into(),
        }
    }
}
