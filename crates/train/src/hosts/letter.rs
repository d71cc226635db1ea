//! What launchers tell each other over control connections.

use std::net::SocketAddr;

use paceline_comm::CommError;
use paceline_comm::tasks::authority::{Order, Word};
use paceline_comm::wire::Letters;
use paceline_record::{EvalRecord, Host, Nanos};
use serde::{Deserialize, Serialize};

use crate::Job;

/// What whoever calls a door says first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Greeting {
    /// A host would like to take part.
    Control(Hello),
    /// One of the streams for the bytes of a roster.
    Data { run: u64, generation: u64, from: Host },
}

/// Who a host is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The version of the program.
    pub version: String,
    /// The host's name.
    pub name: String,
}

/// A letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Letter {
    /// What the first host runs.
    Welcome(Box<Welcome>),
    /// It runs nothing like that, or has no room.
    SentAway { why: String },
    /// The caller has the same job, so many workers, and a door at this port.
    Ready { workers: u32, port: u16 },
    /// The caller has another job.
    Differs { why: String },
    /// What the authority tells a host, and where the hosts' doors are that it may have to call.
    Order { order: Order, doors: Vec<(Host, SocketAddr)> },
    /// What a host tells the authority.
    Word(Word),
    /// A sign of life, with the time at which it was sent.
    Ping { sent: Nanos },
    /// An answer to it, with the time on the other side.
    Pong { sent: Nanos, there: Nanos },
    /// A piece of a file of the sender's case, as text. The last one of all says so by having no name.
    File { name: String, text: String },
    /// All files have been stored.
    Stored { is_last: bool },
}

/// What a host needs to know to take part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// Its number.
    pub host: Host,
    /// What tells this run from others of the same address.
    pub run: u64,
    /// The job as the first host has it.
    pub job: Job,
    /// What tells its data from other data.
    pub fingerprint: String,
    /// Tests so far.
    pub history: Vec<EvalRecord>,
    /// Whether the training has begun elsewhere: the state comes from there.
    pub has_begun: bool,
}

impl Letter {
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("invariant: a letter is plain data")
    }

    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("a letter that makes no sense: {error}"))
    }
}

pub(super) fn send(letters: &mut Letters, letter: &Letter) -> Result<(), CommError> {
    letters.send(&letter.to_bytes())
}
