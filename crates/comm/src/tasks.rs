//! Steps as tasks that anybody may do: what lets a training outlive its workers.
//!
//! Each task reads values that nobody writes while it may run, writes values that are nobody's input, and then raises a
//! *flag*. A task without its flag can be done again by anyone, and gives the same bits. So a lost worker costs its unfinished
//! tasks and nothing else, and there is nothing to vote on: only who takes part needs an authority, and that is the launcher.
//!
//! - A **shard** task computes the gradients of a shard, bucket by bucket, with a flag for each bucket.
//! - A **slice** task adds up a part of a bucket over all shards, and writes that part of the next state.
//! - A **test** task tests the network on a part of the samples.
//!
//! There are two states, of even and of odd steps. A member starts a step when all slices of the step before are flagged, so
//! nobody reads what is written. A task is *claimed* before it is begun, so nobody does it twice at once.
//!
//! The launcher's [`Warden`] publishes rosters. Members acknowledge a roster where they read nobody's gradients; once all have,
//! the claims of the lost are freed, the flags of their unfinished shards are taken back, and work goes on.
//!
//! All of this is written over [`Words`]: real shared memory is a [`Ground`], and the tests run the same code on memory of
//! their own, where they decide who runs when, what is torn, and who dies.

pub mod authority;
mod bell;
mod board;
mod cargo;
mod flag;
mod ground;
mod group;
mod member;
mod parts;
mod porter;
pub mod registry;
mod warden;
mod words;

pub use bell::Bell;
pub use board::{Board, Shape, side};
pub use cargo::{Cargo, GroundCargo, Span};
pub use ground::{Ground, GroundSize};
pub use group::Seating;
pub use member::{Dealing, Ended, Member, ShardTask, Shards, SliceTask, Slices, Tests, Wait, Waiting};
pub use parts::{Node, Parts, cover};
pub use porter::{Moved, Porter, Standing, given};
pub use warden::{Done, Fenced, Lost, Warden};
pub use words::Words;

#[cfg(test)]
mod simulation;
