//! What can go wrong between workers, grouped by what the caller can do.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use paceline_record::{Bytes, Nanos, Rank};

use crate::Operation;
use crate::wire::{Address, Refusal};

/// A collective's refusal or failure.
///
/// After [`PeerLost`](Self::PeerLost), [`TimedOut`](Self::TimedOut) or [`Mismatch`](Self::Mismatch) the values of the
/// operation are neither the old nor the new ones, and the world cannot go on: drop the collective.
#[derive(Debug, thiserror::Error)]
pub enum CommError {
    /// Go on without it, in a new world: a rank has died.
    #[error("rank {rank} was lost ({why}) in {operation}")]
    PeerLost {
        /// The rank that died.
        rank: Rank,
        /// What this rank was doing.
        operation: Underway,
        /// What the launcher knows about it.
        why: String,
    },
    /// Go on without them, in a new world: ranks were late.
    #[error("{} {stage} {operation} after {:.3} s", Ranks(missing), waited.seconds())]
    TimedOut {
        /// The ranks that were late.
        missing: Vec<Rank>,
        /// What they had not done.
        stage: Stage,
        /// The operation that this rank waited in.
        operation: Underway,
        /// Time since this rank had begun it.
        waited: Nanos,
    },
    /// Report a bug: the ranks do not do the same things in the same order.
    #[error("rank {rank} began {began} as its operation {number} where rank {other} began {other_began}")]
    Mismatch {
        /// The number of the operation on every rank.
        number: u64,
        /// The first rank that differs.
        rank: Rank,
        /// What it began.
        began: Operation,
        /// The rank that it differs from.
        other: Rank,
        /// What that rank began.
        other_began: Operation,
    },
    /// Reject the input: it cannot be done as it stands.
    #[error("cannot begin {operation}: {why}")]
    Invalid {
        /// What was asked for.
        operation: Operation,
        /// What is wrong with it.
        why: String,
    },
    /// Reject the input: these values are not this rank's to touch now.
    #[error("cannot touch values {}..{}: {why}", range.start, range.end)]
    Busy {
        /// The values.
        range: std::ops::Range<usize>,
        /// What is wrong with them.
        why: String,
    },
    /// Reject the input: the segment is larger than the memory that is left.
    #[error(
        "shared memory for {world} workers takes {} MB, and {} MB are available; use fewer workers or a smaller model",
        needed.0.div_ceil(1_000_000), available.0 / 1_000_000
    )]
    TooLarge {
        /// The number of ranks.
        world: u32,
        /// What the segment takes.
        needed: Bytes,
        /// What is left.
        available: Bytes,
    },
    /// Report a bug: what should be a segment is not one, or a different one.
    #[error("no usable segment of shared memory: {why}")]
    Segment {
        /// What is wrong.
        why: String,
    },
    /// Go on without it: the library that GPUs exchange through is missing or too old.
    #[error(
        "NCCL (libnccl) {}; 2.27 or later is needed; install it, or name its folder in LD_LIBRARY_PATH",
        found.as_ref().map_or("was not found".to_owned(), |found| format!("{found} was found"))
    )]
    NoNccl {
        /// Its version, where it was found.
        found: Option<String>,
    },
    /// Go on without them, in a new world: NCCL or a GPU refused a call.
    #[error("{call} failed: {answer}")]
    Nccl {
        /// What was asked of it.
        call: &'static str,
        /// Its answer.
        answer: String,
    },
    /// Go on without them, in a new world: other GPUs did not answer.
    #[error("the other GPUs had not answered after {} s, and the exchange was given up", waited.as_secs())]
    Silent {
        /// How long this rank had waited.
        waited: std::time::Duration,
    },
    /// Go on in another group: this one was given up because of a new roster.
    #[error("the group of GPUs was given up: it goes on with another one")]
    Recalled,
    /// Go on without it: the library that hosts would exchange through is missing or too old.
    #[error(
        "{why}; install an MPI library, name its folder in LD_LIBRARY_PATH, or name the library itself in {}",
        crate::mpi::VARIABLE
    )]
    NoMpi {
        /// What was found, and what is needed.
        why: String,
    },
    /// Reject the input: the library does not see the others.
    #[error(
        "{started} processes were started, and the MPI library sees {found}: it is another one than the launcher's, or speaks another PMI"
    )]
    Alone {
        /// How many there should be.
        started: u32,
        /// How many it sees.
        found: u32,
    },
    /// End the job: MPI refused a call.
    #[error("{call} failed: {answer}")]
    Mpi {
        /// What was asked of it.
        call: &'static str,
        /// Its answer.
        answer: String,
    },
    /// Try again: etcd did not answer, could not do it now, or something else answered.
    #[error("etcd at {at} does not answer: {why}")]
    NoEtcd {
        /// Its address.
        at: String,
        /// What came instead of an answer.
        why: String,
    },
    /// Reject the input: etcd answered, and will not do it.
    #[error("etcd at {at} refuses: {why}")]
    EtcdRefused {
        /// Its address.
        at: String,
        /// Its reason.
        why: String,
    },
    /// Reject the input: a file that TLS needs cannot be used.
    #[error("cannot use {} for TLS: {why}", path.display())]
    EtcdFile {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Reject the input: nothing can listen at an address.
    #[error("cannot listen at {address}: {source}")]
    NoDoor {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// Try again: nobody answered at an address, or not in time.
    #[error("cannot reach {address}: {why}")]
    Unreached {
        /// The address.
        address: SocketAddr,
        /// What came instead of an answer.
        why: String,
    },
    /// Reject the input: somebody answered at an address, and the two cannot talk.
    #[error("no connection with {address}: {refusal}")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// What is between them.
        refusal: Refusal,
    },
    /// Go on without it: a connection broke.
    #[error("the connection with {address} was lost: {why}")]
    Disconnected {
        /// The other side.
        address: Address,
        /// How it broke.
        why: String,
    },
    /// Report the failure: the system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl CommError {
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }

    pub(crate) fn segment(why: impl Into<String>) -> Self {
        Self::Segment { why: why.into() }
    }
}

/// An operation and its number on the rank that tells: the first that a rank begins is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underway {
    /// Its number.
    pub number: u64,
    /// The operation itself.
    pub operation: Operation,
}

impl fmt::Display for Underway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {}, {}", self.number, self.operation)
    }
}

/// What every rank does in every operation, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Begin it.
    Arrival,
    /// Do its part of the work.
    Completion,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arrival => "had not begun",
            Self::Completion => "had not done a part of",
        })
    }
}

struct Ranks<'a>(&'a [Rank]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank" } else { "ranks" })?;
        for (i, rank) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { " " } else { ", " })?;
            rank.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reduction;

    fn reduce(range: std::ops::Range<usize>) -> Operation {
        Operation::AllReduce { range, reduction: Reduction::Sum }
    }

    #[test]
    fn errors_say_who_and_in_what() {
        let operation = Underway { number: 7, operation: reduce(0..50) };
        let lost = CommError::PeerLost {
            rank: Rank(2),
            operation: operation.clone(),
            why: "signal 9 (SIGKILL)".into(),
        };
        assert_eq!(
            lost.to_string(),
            "rank 2 was lost (signal 9 (SIGKILL)) in operation 7, all-reduce (sum) of values 0..50"
        );
        let late = CommError::TimedOut {
            missing: vec![Rank(1), Rank(3)],
            stage: Stage::Arrival,
            operation,
            waited: Nanos(1_500_000_000),
        };
        assert_eq!(
            late.to_string(),
            "ranks 1, 3 had not begun operation 7, all-reduce (sum) of values 0..50 after 1.500 s"
        );
        let mismatch = CommError::Mismatch {
            number: 7,
            rank: Rank(2),
            began: reduce(0..100),
            other: Rank(0),
            other_began: reduce(0..50),
        };
        assert_eq!(
            mismatch.to_string(),
            "rank 2 began all-reduce (sum) of values 0..100 as its operation 7 where rank 0 began all-reduce (sum) of \
             values 0..50"
        );
    }

    #[test]
    fn too_little_memory_is_told_in_numbers() {
        let error =
            CommError::TooLarge { world: 16, needed: Bytes(3_000_000_001), available: Bytes(2_000_000_000) };
        assert_eq!(
            error.to_string(),
            "shared memory for 16 workers takes 3001 MB, and 2000 MB are available; use fewer workers or a smaller model"
        );
    }
}
