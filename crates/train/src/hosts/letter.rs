//! What launchers tell each other over control connections.

use std::net::{IpAddr, SocketAddr};

use paceline_comm::CommError;
use paceline_comm::tasks::authority::{Order, Word};
use paceline_comm::wire::Letters;
use paceline_record::{Bytes, EvalRecord, Host, Nanos, Step};
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
    /// A host has lost the first one, and comes to whoever has taken its place.
    Back(Back),
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
    /// Its number, where whoever started all of them has given it one.
    pub rank: Option<u32>,
}

/// Who a host is that has taken part before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Back {
    pub hello: Hello,
    /// The run that it takes part in.
    pub run: u64,
    /// Its number there.
    pub host: Host,
    /// As in [`Letter::Ready`].
    pub workers: u32,
    pub port: u16,
    pub interface: Option<IpAddr>,
}

impl Hello {
    pub fn new(meeting: &Meeting) -> Self {
        let rank = meeting.mpi().map(|mpi| mpi.rank());
        Self { version: env!("CARGO_PKG_VERSION").into(), name: meeting.name.clone(), rank }
    }

    /// Why the two cannot work together, if they cannot.
    pub fn refusal(&self) -> Option<String> {
        let (Self { version, name, .. }, own) = (self, env!("CARGO_PKG_VERSION"));
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
    /// From the first host: it leaves, and another one takes its place.
    HandsOver,
    /// A sign of life, with the time at which it was sent.
    Ping { sent: Nanos },
    /// An answer to it, with the time on the other side.
    Pong { sent: Nanos, there: Nanos },
    /// A fault that was asked for is about to be planted in the sender.
    Planted { step: Step, fault: String },
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
    Plan { host: Host, run: u64, sizes: Vec<Bytes>, doors: Vec<(Host, Option<SocketAddr>)> },
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
    /// The first host's number and name.
    pub first: (Host, String),
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

#[cfg(test)]
mod tests {
    use paceline_comm::tasks::authority::Stand;
    use proptest::prelude::*;

    use super::*;
    use crate::job::tests::job;

    fn letters() -> Vec<Letter> {
        let stand = Stand {
            done: Some(7),
            missing: vec![(1, 2)],
            untested: vec![3],
            passed: true,
            group: Some(vec![7; 128]),
        };
        let address = "10.0.0.7:29400".parse().expect("an address");
        let welcome = Welcome {
            host: Host(1),
            first: (Host(0), "a".into()),
            run: 9,
            job: job(std::path::Path::new("run")),
            fingerprint: "f".into(),
            history: Vec::new(),
            has_begun: true,
        };
        vec![
            Letter::Welcome(Box::new(welcome)),
            Letter::SentAway { why: "no \u{1f980}".into() },
            Letter::Ready { workers: 2, port: 1, interface: None },
            Letter::Order { order: Order::Hold(5), doors: vec![(Host(1), address)] },
            Letter::Order {
                order: Order::Go { generation: 3, stands: vec![stand.clone()] },
                doors: Vec::new(),
            },
            Letter::Word(Word::Stands { generation: 3, stand }),
            Letter::Pong { sent: Nanos(1), there: Nanos(u64::MAX) },
            Letter::Planted { step: Step(3), fault: "kill=h1@3".into() },
            Letter::File { name: "launcher.jsonl".into(), text: "{}\n".into() },
            Letter::Cue(Cue::Misses { host: Host(2), why: "w".into() }),
        ]
    }

    #[test]
    fn letters_are_read_as_they_were_written() {
        for letter in letters() {
            assert_eq!(Letter::read(&letter.to_bytes()), Ok(letter));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn damaged_letters_and_greetings_are_refused_in_words_or_make_sense(
            which in 0..9_usize,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6),
        ) {
            let mut bytes = letters()[which].to_bytes();
            for (at, value, kind) in changes {
                let at = at.index(bytes.len());
                match kind {
                    0 => bytes[at] = value,
                    1 => bytes.insert(at, value),
                    _ if bytes.len() > 1 => { bytes.remove(at); }
                    _ => {}
                }
            }
            if let Err(why) = Letter::read(&bytes) {
                prop_assert!(why.starts_with("a letter that makes no sense: "), "{}", why);
            }
            // Whoever is no caller of ours is sent away; that it does not panic is what is tested.
            let _ = serde_json::from_slice::<Greeting>(&bytes);
        }
    }
}
