//! The first bytes of every connection: who speaks which version, and who knows the secret.
//!
//! Noise `NNpsk0`, after a preamble in plain bytes that every version keeps:
//!
//! ```text
//! caller: preamble, message 1            proves the knowledge of the secret, but may be a recording
//! door:   preamble, message 2            proves the same, for this caller
//! caller: greeting as the first record   proves that message 1 was not a recording
//! ```
//!
//! Both preambles are part of what is proved, so nobody between the two can change them. A message is its length in two bytes
//! and its content. A door that cannot read message 1 answers with the length 0.
//!
//! Nothing here touches a socket: [`Handshake`] says how many bytes it wants next and what is to be sent.

use std::fmt;
use std::mem;

use snow::{Builder, HandshakeState, TransportState};

use super::{Secrecy, Terms};

const MAGIC: [u8; 8] = *b"paceline";

/// To be raised with every change to what goes over a connection.
const VERSION: u32 = 1;

const NOISE: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// Magic, version, secrecy, three bytes of zero.
pub(super) const PREAMBLE: usize = 16;

/// What encryption adds to a message.
pub(super) const SEAL: usize = 16;

/// The longest message of Noise, and so the longest record of an encrypted stream.
pub(super) const RECORD: usize = 65_535;

/// The longest greeting in bytes.
pub const LONGEST_GREETING: usize = RECORD - SEAL;

/// Messages 1 and 2: a key and a seal.
const MESSAGE: usize = 32 + SEAL;

/// What keeps two sides that met from talking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The other side is not a launcher of this program.
    Stranger,
    /// It speaks another version of the protocol.
    Version(u32),
    /// It wants the other secrecy.
    Secrecy(Secrecy),
    /// It has another secret.
    Secret,
    /// It showed a recording of somebody else's handshake, or somebody changed its bytes.
    Forged,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger => f.write_str("what is there does not speak paceline's protocol"),
            Self::Version(theirs) => write!(
                f,
                "it speaks version {theirs} of the protocol and this is version {VERSION}; use the same paceline on \
                 all hosts"
            ),
            Self::Secrecy(theirs) => {
                write!(f, "it wants {theirs} connections; give --encrypt on all hosts or on none")
            }
            Self::Secret => f.write_str("it has another secret; give all hosts the same"),
            Self::Forged => f.write_str("its greeting is a recording or was changed on the way"),
        }
    }
}

/// What a side does next.
enum Stage {
    Preamble,
    /// The length of a message.
    Length(Expected),
    Message(Expected),
    /// Everything is read; what is left may have to be sent.
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// By the door.
    First,
    /// By the caller.
    Second,
    /// By the door.
    Greeting,
}

/// One side of a handshake.
pub(super) struct Handshake {
    stage: Stage,
    /// The bytes that the stage wants, as far as they are there.
    piece: Vec<u8>,
    wanted: usize,
    /// What is to be sent.
    out: Vec<u8>,
    terms: Terms,
    noise: Option<HandshakeState>,
    transport: Option<TransportState>,
    greeting: Vec<u8>,
}

/// What a handshake leaves.
pub(super) struct Shaken {
    pub transport: TransportState,
    pub greeting: Vec<u8>,
}

fn preamble(secrecy: Secrecy) -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12] = match secrecy {
        Secrecy::Plain => 0,
        Secrecy::Encrypted => 1,
    };
    bytes
}

/// Whether two sides of these preambles can talk.
fn check(theirs: &[u8], ours: Secrecy) -> Result<(), Refusal> {
    if theirs[..8] != MAGIC {
        return Err(Refusal::Stranger);
    }
    let version = u32::from_le_bytes(theirs[8..12].try_into().expect("invariant: four bytes"));
    if version != VERSION {
        return Err(Refusal::Version(version));
    }
    match (theirs == preamble(ours), &theirs[12..]) {
        (true, _) => Ok(()),
        (_, [0, 0, 0, 0]) => Err(Refusal::Secrecy(Secrecy::Plain)),
        (_, [1, 0, 0, 0]) => Err(Refusal::Secrecy(Secrecy::Encrypted)),
        _ => Err(Refusal::Stranger),
    }
}

impl Handshake {
    /// The side that calls, with a greeting of at most [`LONGEST_GREETING`] bytes.
    pub fn caller(terms: &Terms, greeting: &[u8]) -> Self {
        let mut side = Self::new(terms, greeting.to_vec());
        side.out.extend(preamble(terms.secrecy));
        let mut noise = side.noise(Role::Caller);
        side.say(|into| noise.write_message(&[], into));
        side.noise = Some(noise);
        side
    }

    /// The side that is called.
    pub fn door(terms: &Terms) -> Self {
        Self::new(terms, Vec::new())
    }

    fn new(terms: &Terms, greeting: Vec<u8>) -> Self {
        Self {
            stage: Stage::Preamble,
            piece: Vec::with_capacity(MESSAGE),
            wanted: PREAMBLE,
            out: Vec::new(),
            terms: terms.clone(),
            noise: None,
            transport: None,
            greeting,
        }
    }

    fn noise(&self, role: Role) -> HandshakeState {
        // Both sides have the same preamble, or there is no handshake.
        let prologue = preamble(self.terms.secrecy);
        let builder = Builder::new(NOISE.parse().expect("invariant: a pattern of Noise"))
            .psk(0, self.terms.secret.key())
            .and_then(|builder| builder.prologue(&prologue))
            .expect("invariant: neither is given twice");
        match role {
            Role::Caller => builder.build_initiator(),
            Role::Door => builder.build_responder(),
        }
        .expect("invariant: the pattern needs no other key")
    }

    /// Adds a message to what is to be sent.
    fn say(&mut self, write: impl FnOnce(&mut [u8]) -> Result<usize, snow::Error>) {
        let begin = self.out.len();
        self.out.resize(begin + 2 + RECORD, 0);
        let length =
            write(&mut self.out[begin + 2..]).expect("invariant: the message fits and it is its turn");
        self.out[begin..begin + 2].copy_from_slice(&(length as u16).to_le_bytes());
        self.out.truncate(begin + 2 + length);
    }

    /// How many bytes it wants now; 0 if it needs none any more.
    pub fn wants(&self) -> usize {
        self.wanted - self.piece.len()
    }

    /// What is to be sent. The caller takes away what was.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Whether the other side has shown the secret, if only in a recording.
    pub fn is_promising(&self) -> bool {
        self.transport.is_some()
    }

    /// Takes bytes that the other side sent, as many as it [`wants`](Self::wants) or fewer. After an error, what is
    /// [`out`](Self::out) is still for the other side, which learns from it what is wrong.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.piece.extend_from_slice(bytes);
        if self.wants() > 0 || self.wanted == 0 {
            return Ok(());
        }
        let piece = mem::take(&mut self.piece);
        let stage = mem::replace(&mut self.stage, Stage::Done);
        (self.stage, self.wanted) = self.next(stage, &piece)?;
        self.piece = piece;
        self.piece.clear();
        Ok(())
    }

    /// The stage after one whose piece is complete, and how many bytes that wants.
    fn next(&mut self, stage: Stage, piece: &[u8]) -> Result<(Stage, usize), Refusal> {
        match stage {
            Stage::Preamble if self.noise.is_some() => {
                check(piece, self.terms.secrecy)?;
                Ok((Stage::Length(Expected::Second), 2))
            }
            Stage::Preamble => {
                let checked = check(piece, self.terms.secrecy);
                if checked != Err(Refusal::Stranger) {
                    self.out.extend(preamble(self.terms.secrecy));
                }
                checked?;
                Ok((Stage::Length(Expected::First), 2))
            }
            Stage::Length(expected) => {
                let length = usize::from(u16::from_le_bytes([piece[0], piece[1]]));
                let fits = match expected {
                    Expected::Second if length == 0 => return Err(Refusal::Secret),
                    Expected::First | Expected::Second => length == MESSAGE,
                    Expected::Greeting => length >= SEAL,
                };
                if fits { Ok((Stage::Message(expected), length)) } else { Err(Refusal::Stranger) }
            }
            Stage::Message(Expected::First) => {
                let mut noise = self.noise(Role::Door);
                if noise.read_message(piece, &mut []).is_err() {
                    self.out.extend([0, 0]);
                    return Err(Refusal::Secret);
                }
                self.say(|into| noise.write_message(&[], into));
                self.transport =
                    Some(noise.into_transport_mode().expect("invariant: both messages are exchanged"));
                Ok((Stage::Length(Expected::Greeting), 2))
            }
            Stage::Message(Expected::Second) => {
                let mut noise = self.noise.take().expect("invariant: the caller has begun");
                noise.read_message(piece, &mut []).map_err(|_| Refusal::Secret)?;
                let mut transport =
                    noise.into_transport_mode().expect("invariant: both messages are exchanged");
                let greeting = mem::take(&mut self.greeting);
                self.say(|into| transport.write_message(&greeting, into));
                self.transport = Some(transport);
                Ok((Stage::Done, 0))
            }
            Stage::Message(Expected::Greeting) => {
                let transport = self.transport.as_mut().expect("invariant: the door has answered");
                self.greeting.resize(piece.len() - SEAL, 0);
                transport.read_message(piece, &mut self.greeting).map_err(|_| Refusal::Forged)?;
                Ok((Stage::Done, 0))
            }
            Stage::Done => Ok((Stage::Done, 0)),
        }
    }

    /// What it leaves, once it wants nothing and nothing is to be sent.
    pub fn finish(&mut self) -> Option<Shaken> {
        if self.wanted > 0 || !self.out.is_empty() {
            return None;
        }
        let transport = self.transport.take()?;
        Some(Shaken { transport, greeting: mem::take(&mut self.greeting) })
    }
}

#[derive(Clone, Copy)]
enum Role {
    Caller,
    Door,
}
