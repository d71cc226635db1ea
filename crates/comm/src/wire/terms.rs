//! What both sides of a connection must have in common.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};

use super::Cable;
use crate::CommError;

const KEY: usize = 32;

/// What the hosts of a job know and nobody else does. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; KEY]);

impl Secret {
    /// Fewer bytes than this can be guessed from one recorded handshake.
    pub const SHORTEST: usize = 16;

    /// The secret that a user chose; `None` if it has fewer than [`SHORTEST`](Self::SHORTEST) bytes.
    pub fn new(chosen: &[u8]) -> Option<Self> {
        if chosen.len() < Self::SHORTEST {
            return None;
        }
        Some(Self(Sha256::new().chain_update(b"paceline secret\0").chain_update(chosen).finalize().into()))
    }

    /// A secret that nobody chose.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn random() -> Result<Self, CommError> {
        let mut key = [0; KEY];
        let mut filled = 0;
        while filled < KEY {
            match getrandom(&mut key[filled..], GetRandomFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                more => filled += more.map_err(CommError::system("draw a secret"))?,
            }
        }
        Ok(Self(key))
    }

    /// Text to pass the secret on in, which [`from_hex`](Self::from_hex) reads.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The secret that [`to_hex`](Self::to_hex) gave; `None` if it gave another text.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
        let digits = digits.filter(|digits| digits.len() == 2 * KEY)?;
        let mut key = [0; KEY];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (16 * pair[0] + pair[1]) as u8;
        }
        Some(Self(key))
    }

    pub(super) fn key(&self) -> &[u8; KEY] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Whether bytes are encrypted after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// They are not: whoever sees the network reads them, and may change them.
    Plain,
    /// They are.
    Encrypted,
}

impl fmt::Display for Secrecy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Encrypted => "encrypted",
        })
    }
}

/// What both sides of a connection must have in common, and what it goes through on this side.
#[derive(Clone)]
pub struct Terms {
    /// Known to both.
    pub secret: Secret,
    /// Wanted by both.
    pub secrecy: Secrecy,
    /// All connections of a host go through the same.
    pub cable: Cable,
}

impl Terms {
    /// Terms of a host whose cable is whole.
    pub fn new(secret: Secret, secrecy: Secrecy) -> Self {
        Self { secret, secrecy, cable: Cable::default() }
    }
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { secret, secrecy, cable: _ } = self;
        f.debug_struct("Terms").field("secret", secret).field("secrecy", secrecy).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_survives_its_text_and_nothing_else_does() {
        let secret = Secret::random().expect("random numbers");
        let text = secret.to_hex();
        assert_eq!(text.len(), 64);
        assert_eq!(Secret::from_hex(&text), Some(secret));
        assert_eq!(Secret::from_hex(&text[1..]), None);
        assert_eq!(Secret::from_hex(&format!("{text}00")), None);
        assert_eq!(Secret::from_hex(&"g".repeat(64)), None);
        assert_eq!(Secret::from_hex(&"é".repeat(32)), None);
    }

    #[test]
    fn a_short_secret_is_refused_and_none_is_printed() {
        assert_eq!(Secret::new(&[7; Secret::SHORTEST - 1]), None);
        let secret = Secret::new(&[7; Secret::SHORTEST]).expect("it is long enough");
        assert_ne!(Some(&secret), Secret::new(&[7; Secret::SHORTEST + 1]).as_ref());
        assert_ne!(secret, Secret::random().expect("random numbers"));
        let terms = Terms::new(secret, Secrecy::Plain);
        assert_eq!(format!("{terms:?}"), "Terms { secret: Secret(..), secrecy: Plain }");
    }
}
