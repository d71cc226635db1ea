//! How a training outlives its workers: how many it needs, how many it may have, and what is done when some are lost.

pub mod control;
mod crew;
mod follow;
mod hosting;
pub(crate) mod lead;
pub(crate) mod member;
mod pace;
mod point;
mod process;
mod samples;
mod state;
mod watch;

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use lead::awaits_test;
pub(crate) use state::Layout;

/// What an elastic job is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Elastic {
    /// With fewer members than this the training waits for more.
    pub min: u32,
    /// More members than this there never are.
    pub max: u32,
    /// Times that each worker is replaced after it was lost.
    pub restarts: u32,
    /// How the shards of a step are dealt to the members.
    pub deal: Deal,
    /// How long the training waits with fewer than `min` members, in seconds.
    pub patience_s: f64,
}

impl Elastic {
    /// An elastic job with the usual value of every other setting.
    pub fn new(Bounds { min, max }: Bounds) -> Self {
        Self { min, max, restarts: 3, deal: Deal::default(), patience_s: 60.0 }
    }

    /// The fewest and the most members.
    pub fn bounds(&self) -> Bounds {
        Bounds { min: self.min, max: self.max }
    }
}

/// The fewest and the most members of an elastic job: `MIN:MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// The fewest.
    pub min: u32,
    /// The most.
    pub max: u32,
}

impl FromStr for Bounds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
        match parsed {
            Some((min, max)) if 0 < min && min <= max => Ok(Self { min, max }),
            Some((0, _)) => Err(format!("'{text}' allows no workers at all; write 1:MAX")),
            Some((min, max)) => Err(format!("{min} workers are more than {max}; write {max}:{min}")),
            None => Err(format!("'{text}' is not MIN:MAX, as 2:4; a network comes before --elastic")),
        }
    }
}

impl Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.min, self.max)
    }
}

/// How the shards of a step are dealt to the members. The weights are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deal {
    /// Equal ranges, by the roster.
    #[default]
    Static,
    /// A member that is done takes the next.
    Dynamic,
}

impl FromStr for Deal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "static" => Ok(Self::Static),
            "dynamic" => Ok(Self::Dynamic),
            _ => Err(format!("'{text}' is no way to deal; there are static and dynamic")),
        }
    }
}

impl Display for Deal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Static => "static",
            Self::Dynamic => "dynamic",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_and_shown_again() {
        assert_eq!("2:4".parse(), Ok(Bounds { min: 2, max: 4 }));
        assert_eq!(Bounds { min: 1, max: 1 }.to_string().parse(), Ok(Bounds { min: 1, max: 1 }));
        for (text, expected) in
            [("4", "MIN:MAX"), ("0:4", "write 1:MAX"), ("4:2", "write 2:4"), ("a:b", "MIN:MAX")]
        {
            let message = text.parse::<Bounds>().expect_err(text);
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn ways_to_deal_are_read_and_shown_again() {
        for deal in [Deal::Static, Deal::Dynamic] {
            assert_eq!(deal.to_string().parse(), Ok(deal));
        }
        assert!("fair".parse::<Deal>().expect_err("no such way").contains("static and dynamic"));
    }
}
