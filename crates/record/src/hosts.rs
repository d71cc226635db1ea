//! Who takes part in a run on several hosts, and how their clocks compare.
//!
//! Each host has a launcher with a log of its own, on a clock of its own. The first host's launcher also decides which hosts take
//! part, and tells it in its log: everything here is on its clock.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Generation, Host, Nanos, Step};

/// Something that happened to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEvent {
    /// Which one; its number is never used again.
    pub host: Host,
    /// When the first host learnt of it.
    pub at: Nanos,
    /// What happened.
    pub change: HostChange,
}

/// What can happen to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostChange {
    /// It has the same job and may take part.
    Joined {
        /// Its name in the network.
        name: String,
        /// Workers that it was asked to have.
        workers: u32,
    },
    /// It cannot be reached any more, and takes no part any more.
    Lost {
        /// What was noticed.
        why: String,
    },
    /// It said that it takes no part any more.
    Left,
    /// Its logs have been copied to the first host.
    Gathered,
    /// A fault that was asked for is about to be planted in it.
    Planted {
        /// Steps that it has done.
        step: Step,
        /// The fault, in the words of `--faults`.
        fault: String,
    },
    /// Something that a later program tells of.
    #[serde(untagged)]
    Other(Value),
}

/// From here on the shards are dealt to these hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRoster {
    /// Its number, one more than that of the hosts' roster before.
    pub generation: Generation,
    /// When all of them were ready for it.
    pub at: Nanos,
    /// The first step that is done by it, or that is finished by it.
    pub step: Step,
    /// The hosts, in the order of their shards.
    pub hosts: Vec<HostPlace>,
}

/// A host's part of every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPlace {
    /// The host.
    pub host: Host,
    /// Its first shard.
    pub first_shard: u32,
    /// How many it has.
    pub shards: u32,
}

/// How the clock of a host compares with that of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// The host.
    pub host: Host,
    /// When, on the first host's clock.
    pub at: Nanos,
    /// What that host's clock showed then, less what the first host's did, in nanoseconds.
    pub offset: i64,
    /// How much the offset may be wrong in either direction: half of what the question took there and back.
    pub within: Nanos,
}
