//! How workers talk: collectives between the worker processes of one host.
//!
//! The launcher [creates](Segment::create) a [`Segment`] of shared memory and starts the workers, which inherit it by the
//! number of its file descriptor. Each worker [attaches](Segment::attach) to it and [joins](Segment::join) as a rank; the
//! [`Shm`] that it gets is a [`Collective`].
//!
//! Values live in the segment from the start, so that an operation copies nothing in or out. The steps and bytes of each
//! operation are in `docs/algorithms.md`.

mod area;
mod collective;
mod control;
mod deadline;
mod error;
pub mod etcd;
mod futex;
mod half;
mod handoff;
mod ledger;
pub mod measure;
mod memfd;
pub mod mpi;
pub mod nccl;
mod operation;
mod reduction;
mod segment;
mod shm;
mod slice;
pub mod tasks;
mod vector;
pub mod wire;

pub use area::Area;
pub use collective::{Collective, Finished, Ticket, Waited};
pub use deadline::Deadline;
pub use error::{CommError, Stage, Underway};
pub use operation::{Half, Operation, Reduction};
pub use segment::{Segment, SegmentSize};
pub use shm::Shm;
pub use slice::{deal, slice};
