//! Update strategies: what `--update`, `--bucket-mb`, `--overlap` and `--compress` name. A strategy is its [`Plan`]; to add one is
//! to add a variant with its name and its plan here.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use paceline_comm::{Half, slice};
use paceline_record::Rank;
use serde::{Deserialize, Serialize};

/// An update strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Gradients are averaged by all workers together, and each updates its copy of the parameters.
    #[default]
    #[serde(rename = "allreduce")]
    AllReduce,
    /// Each worker averages and updates its slice of the parameters, of which there is one copy for all.
    Sharded,
    /// Every worker reads the gradients of all and averages them by itself.
    Replicated,
    /// Rank 0 keeps the parameters: it averages all gradients and updates, the others fetch the result.
    PsCpu,
    /// The same with parameters on the server's GPU.
    PsGpu,
    /// No exchange: each worker trains a network of its own.
    Independent,
}

impl Strategy {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 6] =
        [Self::AllReduce, Self::Sharded, Self::Replicated, Self::PsCpu, Self::PsGpu, Self::Independent];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "allreduce",
            Self::Sharded => "sharded",
            Self::Replicated => "replicated",
            Self::PsCpu => "ps-cpu",
            Self::PsGpu => "ps-gpu",
            Self::Independent => "independent",
        }
    }

    /// What it asks of one of `world` ranks.
    pub fn plan(self, rank: Rank, world: u32) -> Plan {
        let is_server = rank == Plan::SERVER;
        let alone = Plan {
            rank,
            world,
            reduce: Reduce::Nothing,
            updates: Updates::All,
            publish: Publish::Nothing,
            parameters: Parameters::Own,
        };
        let server = Plan {
            reduce: Reduce::AtServer,
            updates: if is_server { Updates::All } else { Updates::Nothing },
            publish: Publish::FromServer,
            ..alone
        };
        match self {
            Self::AllReduce => Plan { reduce: Reduce::ToAll, ..alone },
            Self::Sharded => Plan {
                reduce: Reduce::Scatter,
                updates: Updates::OwnSlice,
                publish: Publish::Slices,
                parameters: Parameters::Common,
                ..alone
            },
            Self::Replicated => Plan { reduce: Reduce::ByEach, ..alone },
            Self::PsCpu => Plan { parameters: Parameters::AtHostServer, ..server },
            Self::PsGpu => Plan { parameters: Parameters::AtDeviceServer, ..server },
            Self::Independent => alone,
        }
    }
}

/// What a strategy asks of one rank, as plain data for the exchange through the host, the one between devices, and the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whose plan it is.
    pub rank: Rank,
    /// Ranks in all.
    pub world: u32,
    /// What becomes of the gradients of a bucket.
    pub reduce: Reduce,
    /// What this rank updates of a bucket's parameters.
    pub updates: Updates,
    /// How updated parameters reach the other ranks.
    pub publish: Publish,
    /// Where the parameters are kept.
    pub parameters: Parameters,
}

/// What becomes of the gradients of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// They stay with their rank.
    Nothing,
    /// All ranks average them together, and each gets all means.
    ToAll,
    /// All ranks average them together, and each gets the means of its slice.
    Scatter,
    /// Each rank reads the gradients of all and averages them by itself.
    ByEach,
    /// The server averages them.
    AtServer,
}

/// What a rank updates of a bucket's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// All of them.
    All,
    /// Its slice.
    OwnSlice,
    /// Nothing: another rank does.
    Nothing,
}

/// How updated parameters reach the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// Not at all: each rank has updated its own.
    Nothing,
    /// Each rank's slice goes to all.
    Slices,
    /// All of them, from the server to all.
    FromServer,
}

/// Where the parameters are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// Each rank has a copy of its own.
    Own,
    /// Ranks of one host that exchange through its memory have one copy for all; devices have copies of their own.
    Common,
    /// The server's are in the host's memory, whatever computes; the others have copies.
    AtHostServer,
    /// The server's are on its device; the others have copies.
    AtDeviceServer,
}

impl Plan {
    /// The rank that updates for all, where one does.
    pub const SERVER: Rank = Rank(0);

    /// Whether ranks have anything to do with each other.
    pub fn exchanges(&self) -> bool {
        self.reduce != Reduce::Nothing
    }

    /// Whether this rank averages and updates for all.
    pub fn is_server(&self) -> bool {
        self.reduce == Reduce::AtServer && self.rank == Self::SERVER
    }

    /// The part of a bucket that this rank updates.
    pub fn updated(&self, bucket: Range<usize>) -> Range<usize> {
        match self.updates {
            Updates::All => bucket,
            Updates::OwnSlice => slice(bucket, self.rank, self.world),
            Updates::Nothing => bucket.start..bucket.start,
        }
    }

    /// Whether ranks that exchange through the host need memory for one copy of the parameters in common.
    pub fn needs_common_memory(&self) -> bool {
        self.publish != Publish::Nothing
    }

    /// Whether devices must exchange through the host's memory.
    pub fn needs_host(&self) -> bool {
        self.parameters == Parameters::AtHostServer
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown update strategy '{text}'; use one of {names}")
        })
    }
}

/// Number format of gradients in the exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compress {
    /// 32 bits, as computed.
    #[default]
    None,
    /// IEEE half precision: 10 bits of mantissa, up to 65504.
    Fp16,
    /// The upper half of a 32-bit float: 7 bits of mantissa, the full range.
    Bf16,
}

impl Compress {
    /// The format of 16 bits, if it is one.
    pub(crate) fn half(self) -> Option<Half> {
        match self {
            Self::None => None,
            Self::Fp16 => Some(Half::Fp16),
            Self::Bf16 => Some(Half::Bf16),
        }
    }

    /// Values of a rank's shared memory for so many gradients: the gradients, and half as much again for the 16-bit form.
    pub(crate) fn own_values(self, gradients: usize) -> usize {
        match self {
            Self::None => gradients,
            Self::Fp16 | Self::Bf16 => gradients + gradients.div_ceil(2),
        }
    }
}

impl fmt::Display for Compress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
        })
    }
}

impl FromStr for Compress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "fp16" => Ok(Self::Fp16),
            "bf16" => Ok(Self::Bf16),
            _ => Err(format!("unknown compression '{text}'; use none, fp16 or bf16")),
        }
    }
}

/// How gradients are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExchangeOptions {
    /// Gradients are handed over in buckets of so many bytes.
    pub bucket_bytes: usize,
    /// The first bucket is smaller, so that the exchange begins early.
    pub first_bucket_bytes: usize,
    /// Whether the exchange runs while backward goes on.
    pub overlap: bool,
    /// Number format in the exchange.
    pub compress: Compress,
    /// Whether a single worker exchanges with itself: the cost of an exchange without any waiting.
    #[serde(default)]
    pub alone: bool,
}

impl ExchangeOptions {
    /// Sets the size of a bucket; the first is smaller.
    pub fn set_bucket_mb(&mut self, megabytes: f64) {
        self.bucket_bytes = (megabytes * f64::from(1 << 20)) as usize;
        self.first_bucket_bytes = self.bucket_bytes.min(1 << 20);
    }

    /// The size of a bucket in MB.
    pub fn bucket_mb(&self) -> f64 {
        self.bucket_bytes as f64 / f64::from(1 << 20)
    }
}

impl Default for ExchangeOptions {
    fn default() -> Self {
        Self {
            bucket_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            overlap: true,
            compress: Compress::None,
            alone: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_unknown_ones_are_answered_with_all() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        let error = "gossip".parse::<Strategy>().expect_err("no such strategy");
        assert!(error.contains("gossip") && error.contains("ps-cpu"), "{error}");
        for compress in [Compress::None, Compress::Fp16, Compress::Bf16] {
            assert_eq!(compress.to_string().parse(), Ok(compress));
        }
    }

    #[test]
    fn each_value_is_updated_by_as_many_ranks_as_keep_it() {
        let bucket = 100..1000;
        for strategy in Strategy::ALL {
            let plans: Vec<Plan> = (0..4).map(|rank| strategy.plan(Rank(rank), 4)).collect();
            let times = |value: usize| {
                plans.iter().filter(|plan| plan.updated(bucket.clone()).contains(&value)).count()
            };
            // Whoever publishes updates for all; whoever does not updates its own copy.
            let expected = if plans[0].publish == Publish::Nothing { 4 } else { 1 };
            assert!(bucket.clone().all(|value| times(value) == expected), "{strategy}");
            assert!(
                plans.iter().all(|plan| plan.reduce == plans[0].reduce && plan.publish == plans[0].publish)
            );
        }
    }

    #[test]
    fn only_a_server_updates_for_others() {
        for strategy in Strategy::ALL {
            let others = (1..3).map(|rank| strategy.plan(Rank(rank), 3));
            let has_server = strategy.plan(Plan::SERVER, 3).is_server();
            assert!(others.clone().all(|plan| !plan.is_server()));
            assert!(
                others.clone().all(|plan| (plan.updates == Updates::Nothing) == has_server),
                "{strategy}"
            );
        }
    }
}
