//! What decides the last digits of a job's results, beside its settings.
//!
//! Sums in another order round differently. So on the CPU the order is decided once and is the same for every worker; GPUs each
//! choose their algorithms. Checkpoints record what was chosen (of GPUs: what rank 0 chose), and a training resumes with it.

use std::fmt;

use paceline_engine::cpu::Simd;
use paceline_engine::{Layout, Precision};
use serde::{Deserialize, Serialize};

use crate::Job;
use crate::job::CPU;
use crate::strategy::Compress;

/// How a training's numbers are computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numerics {
    /// Order of dimensions.
    pub layout: Layout,
    /// Number format.
    pub precision: Precision,
    /// The order in which gradients of shards are added.
    pub sum_order: SumOrder,
    /// What the engine chose.
    pub engine: paceline_engine::Numerics,
}

impl Numerics {
    /// Those of a job whose engine chose so.
    pub fn new(job: &Job, engine: paceline_engine::Numerics) -> Self {
        Self { layout: job.layout, precision: job.precision, sum_order: SumOrder::of(job), engine }
    }
}

/// What an engine of this machine must choose, so that every worker computes alike; `None` where it is known only once a
/// network is compiled.
pub(crate) fn here(engine: &str, precision: Precision) -> Option<paceline_engine::Numerics> {
    (engine == CPU).then(|| {
        let instruction_set = Some(Simd::best(precision).to_string());
        paceline_engine::Numerics { instruction_set, ..Default::default() }
    })
}

/// Whether this machine has a recorded instruction set. Whether it has a recorded GPU shows when the engine is opened.
pub(crate) fn is_available(numerics: &paceline_engine::Numerics) -> bool {
    numerics.instruction_set.is_none() || numerics.simd().is_ok_and(|simd| simd.is_none_or(Simd::available))
}

/// The order in which the gradients of a step's shards are added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SumOrder {
    /// A binary tree over the shards, split at the largest power of two.
    #[default]
    #[serde(rename = "binary-tree-1")]
    BinaryTree,
    /// The same tree with every node of it rounded to 16 bits.
    #[serde(rename = "rounded-tree-1")]
    RoundedTree,
    /// NCCL's own, between GPUs.
    #[serde(rename = "nccl")]
    Nccl,
    /// One that this program does not have.
    #[serde(untagged)]
    Other(String),
}

impl SumOrder {
    /// The order in which a job adds.
    pub fn of(job: &Job) -> Self {
        match job.exchange.compress {
            _ if job.exchanges_on_device() => Self::Nccl,
            Compress::None => Self::BinaryTree,
            Compress::Fp16 | Compress::Bf16 => Self::RoundedTree,
        }
    }
}

impl fmt::Display for SumOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BinaryTree => "binary-tree-1",
            Self::RoundedTree => "rounded-tree-1",
            Self::Nccl => "nccl",
            Self::Other(name) => name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_back_even_if_this_program_lacks_it() {
        for (order, text) in [
            (SumOrder::BinaryTree, "\"binary-tree-1\""),
            (SumOrder::RoundedTree, "\"rounded-tree-1\""),
            (SumOrder::Other("ring-7".into()), "\"ring-7\""),
        ] {
            assert_eq!(serde_json::to_string(&order).expect("plain data"), text);
            assert_eq!(serde_json::from_str::<SumOrder>(text).expect("own output"), order);
            assert_eq!(format!("\"{order}\""), text);
        }
    }

    #[test]
    fn an_instruction_set_that_nobody_knows_is_not_available() {
        let recorded = |name: &str| paceline_engine::Numerics {
            instruction_set: Some(name.into()),
            ..Default::default()
        };
        assert!(
            is_available(&recorded("portable")) && is_available(&recorded("avx2")) == Simd::Avx2.available()
        );
        for precision in [Precision::Fp32, Precision::Bf16] {
            assert!(here(CPU, precision).as_ref().is_some_and(is_available));
        }
        assert!(!is_available(&recorded("avx4096")));
    }
}
