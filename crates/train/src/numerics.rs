//! What decides the last digits of a job's results, beside its settings.
//!
//! Sums in another order round differently. So the order is decided once, is the same for every worker, and is recorded
//! in checkpoints: a training resumes with the numerics it began with.

use std::fmt;

use paceline_engine::cpu::Simd;
use paceline_engine::{Layout, Precision};
use serde::{Deserialize, Serialize};

use crate::Job;
use crate::job::CPU;

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
    pub engine: EngineNumerics,
}

impl Numerics {
    /// Those of a job.
    pub fn of(job: &Job) -> Self {
        Self {
            layout: job.layout,
            precision: job.precision,
            sum_order: SumOrder::default(),
            engine: job.numerics.clone(),
        }
    }
}

/// What an engine chose that decides the last digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineNumerics {
    /// Of the CPU engine: its instruction set, by name; `None` for the best of the machine.
    pub instruction_set: Option<String>,
}

impl EngineNumerics {
    /// What an engine of this machine chooses.
    pub fn here(engine: &str) -> Self {
        let instruction_set = (engine == CPU).then(|| Simd::detect().to_string());
        Self { instruction_set }
    }

    /// The instruction set; `None` where none is recorded, or where it is not one of this program's.
    pub(crate) fn simd(&self) -> Option<Simd> {
        self.instruction_set.as_deref()?.parse().ok()
    }

    /// Whether this machine can compute so.
    pub(crate) fn available(&self) -> bool {
        self.instruction_set.is_none() || self.simd().is_some_and(Simd::available)
    }
}

/// The order in which the gradients of a step's shards are added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SumOrder {
    /// A binary tree over the shards, split at the largest power of two.
    #[default]
    #[serde(rename = "binary-tree-1")]
    BinaryTree,
    /// One that this program does not have.
    #[serde(untagged)]
    Other(String),
}

impl fmt::Display for SumOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BinaryTree => "binary-tree-1",
            Self::Other(name) => name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_back_even_if_this_program_lacks_it() {
        for (order, text) in
            [(SumOrder::BinaryTree, "\"binary-tree-1\""), (SumOrder::Other("ring-7".into()), "\"ring-7\"")]
        {
            assert_eq!(serde_json::to_string(&order).expect("plain data"), text);
            assert_eq!(serde_json::from_str::<SumOrder>(text).expect("own output"), order);
            assert_eq!(format!("\"{order}\""), text);
        }
    }

    #[test]
    fn an_instruction_set_that_nobody_knows_is_not_available() {
        let recorded = |name: &str| EngineNumerics { instruction_set: Some(name.into()) };
        assert!(recorded("portable").available() && EngineNumerics::here("cpu").available());
        assert!(!recorded("avx4096").available());
    }
}
