//! Units as types, so that a rank is never taken for a step, nor seconds for nanoseconds.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// A worker's number, from 0 to world - 1: its place in the roster, where workers come and go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

/// A training step's number, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Step(pub u64);

/// A worker process of a run whose workers come and go. Numbers are never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Member(pub u32);

/// A worker, by the name that its run knows it by. In JSON one field, `rank` or `member`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// A rank, where workers stay.
    Rank(Rank),
    /// A member, where workers come and go.
    Member(Member),
}

impl Who {
    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            Self::Rank(Rank(number)) | Self::Member(Member(number)) => number,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Member(member) => write!(f, "member {member}"),
        }
    }
}

/// A roster's number. The first is 0, and the only one where nobody comes or goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// A host's number in a run on several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Host(pub u32);

/// Nanoseconds: a length of time, or a moment on the host's monotonic clock, which all its processes share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Nanos {
    /// The same length in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 * 1e-9
    }

    /// Whether it is zero.
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// Time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sum for Nanos {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self(0), Add::add)
    }
}

impl Generation {
    /// Whether it is that of the first roster.
    pub fn is_first(&self) -> bool {
        self.0 == 0
    }
}

macro_rules! shown_as_a_number {
    ($($unit:ty),*) => {
        $(impl fmt::Display for $unit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        })*
    };
}

shown_as_a_number!(Rank, Step, Member, Generation, Host);
