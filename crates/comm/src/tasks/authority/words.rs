//! What hosts and their authority tell each other, and by what it decides.

use paceline_record::{Host, Nanos};
use serde::{Deserialize, Serialize};

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPolicy {
    /// With fewer hosts than this nothing runs.
    pub min: u32,
    /// More than this there never are.
    pub max: u32,
    /// Whether the training goes on without hosts that are lost.
    pub elastic: bool,
    /// Whether every host has shards from its first roster on: the state is on devices, and nobody can follow as a guest.
    pub no_guests: bool,
    /// How long to wait with fewer than `min`.
    pub patience: Nanos,
    /// How long the first roster waits for more than `min`, after the last one came.
    pub grace: Nanos,
    /// How long whoever takes the place of a lost first host waits for the others to notice.
    pub returns: Nanos,
    /// How long to wait for news of a host that another one misses: whoever is gone is soon heard to be.
    pub doubt: Nanos,
    /// Shards of a step.
    pub shards: u32,
    /// Whether a roster is called only when it has been [granted](super::Authority::grant).
    pub asks: bool,
}

/// A host's place in a roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The host.
    pub host: Host,
    /// Where its shards end; those of a guest end where they begin.
    pub end: u32,
}

/// A roster of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Its number.
    pub generation: u64,
    /// The hosts, in the order of their shards, guests last.
    pub places: Vec<Place>,
    /// Whether a host was lost that had shards in the roster before.
    pub is_loss: bool,
}

impl Roster {
    /// Where the shards of each host end.
    pub fn ends(&self) -> Vec<u32> {
        self.places.iter().map(|place| place.end).collect()
    }

    /// The place of a host.
    pub fn place_of(&self, host: Host) -> Option<usize> {
        self.places.iter().position(|place| place.host == host)
    }

    pub(super) fn is_guest(&self, host: Host) -> bool {
        let Some(place) = self.place_of(host) else { return false };
        place > 0 && self.places[place].end == self.places[place - 1].end
    }
}

/// How far a host stands when a roster is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stand {
    /// Steps done; `None` where it has no state at all.
    pub done: Option<u64>,
    /// Slices of the step after these that it has not done; all of them, if it has no state.
    pub missing: Vec<(u32, u32)>,
    /// Parts of the test after these that it lacks.
    pub untested: Vec<u32>,
    /// Whether it has done what is due after these steps.
    pub passed: bool,
    /// The name of the group of devices by this roster, from the host that makes it up: the one in the first place.
    #[serde(default)]
    pub group: Option<Vec<u8>>,
}

/// What the authority tells a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Stop members, make connections, and say how you stand.
    Call(Roster),
    /// All stand like this, in the order of the roster: go on.
    Go {
        /// The roster.
        generation: u64,
        /// By place.
        stands: Vec<Stand>,
    },
    /// Say before which step you can stop.
    Limit,
    /// Stop before this step.
    Hold(u64),
    /// All have done all.
    Bye,
    /// Save and end.
    End(String),
}

/// What a host tells the authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// An answer to [`Order::Call`].
    Stands {
        /// The roster.
        generation: u64,
        /// How it stands.
        stand: Stand,
    },
    /// Another host of the roster cannot be reached.
    Misses {
        /// The roster.
        generation: u64,
        /// That host.
        host: Host,
        /// What happened.
        why: String,
    },
    /// A guest has come up with the others.
    CaughtUp,
    /// A member was lost without which nobody can go on: another roster is needed, of the same hosts.
    Breaks {
        /// The roster.
        generation: u64,
    },
    /// An answer to [`Order::Limit`].
    CanHold(u64),
    /// It stands before the step that it was to hold at.
    Holds(u64),
    /// It has done all.
    Finished,
    /// It takes no part any more.
    Leaves(String),
}

/// What a decision was, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// A host was lost.
    Lost(Host, String),
    /// A host left.
    Left(Host),
    /// A roster takes effect, with the steps done before it.
    Roster(Roster, u64),
    /// A roster would be called, if it is granted.
    Proposed(Roster),
}
