//! What stands before each piece of a message on a stream.

use super::Tag;

/// First word of every head: of a piece with a sum, and of one without.
const SUMMED: u32 = u32::from_le_bytes(*b"plck");
const PLAIN: u32 = u32::from_le_bytes(*b"plcn");

/// Bytes of a head.
pub(super) const HEAD: usize = 56;

/// A piece of a message: which, how long that is, and which bytes of it follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub tag: Tag,
    pub total: u64,
    pub offset: u64,
    pub len: u32,
    /// CRC-32C of the bytes that follow, where nothing else keeps them from damage.
    pub sum: Option<u32>,
}

impl Head {
    /// The head as it goes over a stream. All numbers are little-endian; the last is the CRC-32C of what is before it.
    pub fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let magic = if self.sum.is_some() { SUMMED } else { PLAIN };
        bytes[..4].copy_from_slice(&magic.to_le_bytes());
        for (into, word) in bytes[4..28].chunks_exact_mut(4).zip(self.tag.0) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes[28..36].copy_from_slice(&self.total.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.offset.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.len.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.sum.unwrap_or(0).to_le_bytes());
        let sum = crc_fast::crc32_iscsi(&bytes[..52]);
        bytes[52..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The head that stands there; `None` if none does.
    pub fn from_bytes(bytes: &[u8; HEAD]) -> Option<Self> {
        let word =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes"));
        let long =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("invariant: eight bytes"));
        if word(52) != crc_fast::crc32_iscsi(&bytes[..52]) {
            return None;
        }
        let sum = match word(0) {
            SUMMED => Some(word(48)),
            PLAIN => None,
            _ => return None,
        };
        let tag = Tag(std::array::from_fn(|i| word(4 + 4 * i)));
        Some(Self { tag, total: long(28), offset: long(36), len: word(44), sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_not_with_any_bit_changed() {
        for sum in [Some(99), None] {
            let tag = Tag([1, 2, 3, 4, 5, u32::MAX]);
            let head = Head { tag, total: 1 << 40, offset: 1 << 33, len: 77, sum };
            let bytes = head.to_bytes();
            assert_eq!(Head::from_bytes(&bytes), Some(head));
            for bit in 0..8 * HEAD {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Head::from_bytes(&changed), None, "bit {bit}");
            }
        }
    }
}
