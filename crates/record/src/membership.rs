//! Who takes part in a run whose workers come and go, and what a change costs.
//!
//! A *member* is a worker process; its number is never used again. A *roster* is an ordered list of members, and its
//! number is the *generation*. A rank is a place in a roster: the same member may be rank 2 in one generation and rank 1 in
//! the next.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Exit, Generation, Member, Nanos, Step};

/// Something that happened to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberEvent {
    /// Whom it happened to.
    pub member: Member,
    /// When the launcher noticed.
    pub at: Nanos,
    /// What happened.
    pub change: MemberChange,
}

/// What can happen to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberChange {
    /// Its process is about to be started.
    Spawned,
    /// It is ready, and is in the next roster.
    Joined,
    /// It said that it will do no more tasks.
    Left,
    /// Its process has ended, by itself or by a signal, and nothing is left of it.
    Ended(Exit),
    /// It holds a task and makes no progress, while others do.
    Stalled {
        /// The step that it is in.
        step: Step,
        /// When it last made progress.
        since: Nanos,
    },
    /// It will be in no roster any more, whatever it does.
    Expelled(Expulsion),
    /// Something that a later program tells of.
    #[serde(untagged)]
    Other(Value),
}

/// Why a member was expelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expulsion {
    /// Its process ended.
    Ended,
    /// It was stalled for too long.
    Stalled,
    /// What it computes differs from what the others compute.
    Differs,
    /// Fewer members were asked for.
    Surplus,
    /// A reason that a later program gives.
    #[serde(untagged)]
    Other(Value),
}

/// A new roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Its number, one more than that of the roster before.
    pub generation: Generation,
    /// When it was decided.
    pub at: Nanos,
    /// The first step that is done by it, or that is finished by it.
    pub step: Step,
    /// The members; the place of each is its rank.
    pub members: Vec<Member>,
}

/// One phase of going over to a new roster. The phases of a recovery follow each other without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// The roster that it led to.
    pub generation: Generation,
    /// What was going on.
    pub phase: RecoveryPhase,
    /// When that began.
    pub begin: Nanos,
    /// When it ended.
    pub end: Nanos,
}

/// What the time of a recovery goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryPhase {
    /// From what went wrong until somebody noticed.
    Detect,
    /// Until the lost member can do no more harm: killed, reaped, and all others know.
    Fence,
    /// Connecting to other hosts.
    Rebuild,
    /// Copying state to those that lack it.
    State,
    /// Doing the tasks of the lost member again.
    Redo,
}
