//! How the clocks of ranks were aligned.

use std::fmt;

use paceline_record::Nanos;
use serde::{Deserialize, Serialize};

/// What the clocks were aligned on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Common {
    /// There is only one rank.
    #[default]
    Alone,
    /// All ranks ran on one host.
    Host,
    /// One rank wrote about all of them.
    Writer,
    /// The ends of this many collectives.
    Ends(usize),
    /// No collective in common: the ranks' clocks, which all count from 1970, are used as they are.
    Epoch,
    /// No collective in common and unrelated clocks: the begin of the first step.
    FirstStep,
}

/// How the clocks of the ranks were aligned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Alignment {
    /// What they were aligned on.
    pub common: Common,
    /// What was added to each rank's clock, in nanoseconds.
    pub offsets: Vec<i64>,
    /// Remaining error, as a standard deviation, of the worst rank; `None` if unknown.
    pub uncertainty: Option<Nanos>,
    /// On a common clock, the median distance between the ends of a collective: scheduling noise, and a bound on the error
    /// of the clock.
    pub ends_apart: Option<Nanos>,
}

impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.common {
            Common::Alone => return f.write_str("one rank, so no clocks to align"),
            Common::Host => {
                f.write_str("ranks of one host share a clock")?;
                return self.ends_apart.map_or(Ok(()), |apart| {
                    write!(f, "; their collectives end {:.3} ms apart (median)", 1e3 * apart.seconds())
                });
            }
            Common::Writer => return f.write_str("one rank recorded all ranks, on its own clock"),
            Common::Epoch => f.write_str("clocks not aligned: no collective in common")?,
            Common::FirstStep => {
                f.write_str("clocks aligned on the begin of the first step: no collective in common")?;
            }
            Common::Ends(1) => f.write_str("clocks aligned on the end of 1 collective")?,
            Common::Ends(count) => write!(f, "clocks aligned on the ends of {count} collectives")?,
        }
        match self.uncertainty {
            Some(left) => write!(f, ", to +/- {:.3} ms", 1e3 * left.seconds()),
            None => f.write_str("; the accuracy is unknown"),
        }
    }
}
