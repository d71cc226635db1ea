//! How workers share what they learn: what `--update`, `--bucket-mb`, `--overlap` and `--compress` name.

use std::fmt;
use std::str::FromStr;

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

    /// Whether one rank updates for all.
    pub(crate) const fn has_server(self) -> bool {
        matches!(self, Self::PsCpu | Self::PsGpu)
    }

    /// Whether parameters come to the other ranks by memory that all share, where ranks exchange through the host.
    pub(crate) const fn shares_parameters(self) -> bool {
        matches!(self, Self::Sharded | Self::PsCpu | Self::PsGpu)
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

/// Number format of gradients on their way.
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
    /// Values of a rank's own shared memory for so many gradients: the gradients, and half as much for the short form.
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
    /// Number format on the way.
    pub compress: Compress,
    /// Whether a world of one exchanges too, with itself: what the exchange costs before there is anybody to wait for.
    #[serde(default)]
    pub alone: bool,
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
}
