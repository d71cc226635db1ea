//! What moved between hosts, as the porter of one of them tells it.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Generation, Host, Nanos, Step};

/// First line of a porter's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PorterHeader {
    /// The host whose porter it is.
    pub host: Host,
    /// Its name in the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What carries the bytes, as `tcp` or `mpi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<String>,
}

/// What a porter tells. On a line, an object whose one key names the event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PorterEvent {
    /// A host can be reached.
    Connected {
        /// That host.
        peer: Host,
        /// From when on.
        at: Nanos,
        /// The hosts' roster that it is for.
        generation: Generation,
    },
    /// Bytes went to and fro.
    Moved(Transfer),
    /// What the porter itself took in a step, on cores that workers use too.
    Worked {
        /// The step.
        step: Step,
        /// From the end of the step before.
        begin: Nanos,
        /// When the step was done on this host.
        end: Nanos,
        /// Processor time.
        cpu: Nanos,
        /// Time in which there was nothing to move.
        waited: Nanos,
    },
    /// Bytes of an old roster came and were thrown away.
    Dropped {
        /// Where they came from.
        peer: Host,
        /// When they came.
        at: Nanos,
        /// The roster that they were for.
        generation: Generation,
        /// How many they were.
        bytes: Bytes,
    },
    /// A host can no longer be reached.
    Lost {
        /// That host.
        peer: Host,
        /// When it was noticed.
        at: Nanos,
    },
}

/// What moved between two hosts within a stretch of time, usually a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The other host.
    pub peer: Host,
    /// The hosts' roster that it was for.
    pub generation: Generation,
    /// The step that it was for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// When the first byte moved.
    pub begin: Nanos,
    /// When the last byte had moved.
    pub end: Nanos,
    /// Bytes to the other host.
    pub sent: Bytes,
    /// Bytes from the other host.
    pub received: Bytes,
}
