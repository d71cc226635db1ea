//! What launchers tell each other over control connections.

use std::net::{IpAddr, SocketAddr};

use paceline_comm::CommError;
use paceline_comm::tasks::authority::{Order, Word};
use paceline_comm::wire::Letters;
use paceline_record::{Bytes, EvalRecord, Host, Nanos};
use serde::{Deserialize, Serialize};

use super::Meeting;
use crate::Job;

/// What whoever calls a door says first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Greeting {
    /// A host would like to take part.
    Control(Hello),
    /// A host would like to take part in a measurement between so many.
    Measure { hello: Hello, hosts: u32 },
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

impl Hello {
    pub fn new(meeting: &Meeting) -> Self {
        Self { version: env!("CARGO_PKG_VERSION").into(), name: meeting.name.clone() }
    }

    /// Why the two cannot work together, if they cannot.
    pub fn refusal(&self) -> Option<String> {
        let (Self { version, name }, own) = (self, env!("CARGO_PKG_VERSION"));
        (version != own).then(|| {
            format!("{name} has Paceline {version}, and the first host {own}; use the same on all hosts")
        })
    }
}

/// A letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Letter {
    /// What the first host runs.
    Welcome(Box<Welcome>),
    /// It runs nothing like that, or has no room.
    SentAway { why: String },
    /// The caller has the same job, so many workers, and a door at this port: of the address that it calls from, or of another one.
    Ready { workers: u32, port: u16, interface: Option<IpAddr> },
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
    /// What hosts of a measurement tell each other.
    Cue(Cue),
}

/// What hosts tell each other that measure all-reduces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Cue {
    /// From the first host: all are there. The caller's number, what tells this measurement from others, the sizes, and where the
    /// doors of hosts are that may have to be called.
    Plan { host: Host, run: u64, sizes: Vec<Bytes>, doors: Vec<(Host, SocketAddr)> },
    /// A sign of life.
    Alive,
    /// To the first host: all rounds of a size are done, with so many wrong values.
    Done { wrong: u64 },
    /// From the first host: they are done on all hosts.
    Next,
    /// To the first host: another one cannot be reached.
    Misses { host: Host, why: String },
    /// To the first host: the sender cannot go on.
    Failed { why: String },
    /// From the first host: it is over for all.
    Over { why: String },
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
