//! Messages of porters, as tags.

use super::super::Node;
use crate::wire::Tag;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// A node of a slice, for its owner.
    Node { bucket: u32, slice: u32, node: Node },
    /// The mean of a slice, from its owner.
    Mean { bucket: u32, slice: u32 },
    /// Running statistics of a shard after the step.
    Statistics { shard: u32 },
    /// Loss and right guesses of a shard.
    Result { shard: u32 },
    /// The result of a part of a test after so many steps.
    Tested { part: u32 },
    /// So many steps are done on the sender.
    Done,
    /// A slice of the state after so many steps.
    State { bucket: u32, slice: u32, number: u32 },
    /// Nothing but that the sender is there, so many times.
    Alive,
}

impl Item {
    pub fn tag(self, step: u64) -> Tag {
        let (kind, numbers) = match self {
            Self::Node { bucket, slice, node } => (1, [bucket, slice, node.first, node.level]),
            Self::Mean { bucket, slice } => (2, [bucket, slice, 0, 0]),
            Self::Statistics { shard } => (3, [shard, 0, 0, 0]),
            Self::Result { shard } => (4, [shard, 0, 0, 0]),
            Self::Tested { part } => (5, [part, 0, 0, 0]),
            Self::Done => (6, [0; 4]),
            Self::State { bucket, slice, number } => (7, [bucket, slice, number, 0]),
            Self::Alive => (8, [0; 4]),
        };
        let [a, b, c, d] = numbers;
        Tag([kind, step as u32, a, b, c, d])
    }

    pub fn read(Tag([kind, step, a, b, c, d]): Tag) -> Option<(Self, u64)> {
        let item = match kind {
            1 => Self::Node { bucket: a, slice: b, node: Node { first: c, level: d } },
            2 => Self::Mean { bucket: a, slice: b },
            3 => Self::Statistics { shard: a },
            4 => Self::Result { shard: a },
            5 => Self::Tested { part: a },
            6 => Self::Done,
            7 => Self::State { bucket: a, slice: b, number: c },
            8 => Self::Alive,
            _ => return None,
        };
        Some((item, u64::from(step)))
    }
}
