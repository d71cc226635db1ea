//! How weights follow gradients: what `--optimizer`, `--lr`, `--momentum` and their kin name.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use paceline_engine::Optimizer;
use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;

/// How weights follow gradients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learning {
    /// The update rule.
    pub optimizer: OptimizerKind,
    /// Learning rate of each step.
    pub schedule: Schedule,
    /// Epochs of its warm-up.
    pub warmup_epochs: f64,
    /// Fraction of the old velocity that each update keeps, with SGD and Nesterov.
    pub momentum: f32,
    /// L2 penalty on all trained values.
    pub weight_decay: f32,
    /// Part of each label that is spread over all classes.
    pub label_smoothing: f32,
    /// Fraction of batch norm's old running statistics that each step keeps; `None` for the network's own, as in checkpoints
    /// of trainings that had no other.
    pub bn_momentum: Option<f32>,
}

/// The usual fraction of batch norm's old running statistics that each step keeps, PyTorch's. They follow the weights within
/// some ten steps; with those of networks made for long trainings (0.99, 0.999), tests of a short one are of weights long gone.
const BN_MOMENTUM: f32 = 0.9;

impl Learning {
    /// SGD with a momentum of 0.9 at one rate.
    pub const fn at(rate: f32) -> Self {
        Self {
            optimizer: OptimizerKind::Sgd,
            schedule: Schedule::constant(rate),
            warmup_epochs: 0.0,
            momentum: 0.9,
            weight_decay: 0.0,
            label_smoothing: 0.0,
            bn_momentum: Some(BN_MOMENTUM),
        }
    }

    /// Takes another update rule, at its usual learning rate.
    pub fn set_optimizer(&mut self, kind: OptimizerKind) {
        if kind != self.optimizer {
            self.optimizer = kind;
            self.schedule.base = kind.usual_rate();
        }
    }

    /// The update rule as a checkpoint records it.
    pub(crate) fn record(&self) -> OptimizerRecord {
        let constants = match self.rule() {
            Optimizer::Sgd { momentum, weight_decay, .. } => {
                vec![("momentum", momentum), ("weight_decay", weight_decay)]
            }
            Optimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
                vec![("beta1", beta1), ("beta2", beta2), ("epsilon", epsilon), ("weight_decay", weight_decay)]
            }
        };
        let state = self.optimizer.state_names().iter().take(self.rule().state_per_value());
        OptimizerRecord {
            kind: self.optimizer,
            constants: constants.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            state: state.map(ToString::to_string).collect(),
        }
    }

    /// The update rule as an engine wants it. Adam's constants are those of its paper and of PyTorch.
    pub(crate) const fn rule(&self) -> Optimizer {
        let Self { momentum, weight_decay, .. } = *self;
        match self.optimizer {
            OptimizerKind::Sgd => Optimizer::Sgd { momentum, nesterov: false, weight_decay },
            OptimizerKind::Nesterov => Optimizer::Sgd { momentum, nesterov: true, weight_decay },
            OptimizerKind::Adam => Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay },
        }
    }
}

impl Default for Learning {
    fn default() -> Self {
        let mut learning = Self::at(OptimizerKind::default().usual_rate());
        learning.schedule.reference_batch = 64;
        learning
    }
}

/// An update rule with all its constants, and what it keeps: the optimizer's part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerRecord {
    /// Its name.
    pub kind: OptimizerKind,
    /// Constants by name.
    pub constants: BTreeMap<String, f32>,
    /// Names of the values it keeps for each trained one.
    pub state: Vec<String>,
}

/// An update rule by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum.
    #[default]
    Sgd,
    /// The same with Nesterov's momentum, which looks one update ahead.
    Nesterov,
    /// Adam (Kingma and Ba 2015).
    Adam,
}

impl OptimizerKind {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 3] = [Self::Sgd, Self::Nesterov, Self::Adam];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Nesterov => "nesterov",
            Self::Adam => "adam",
        }
    }

    /// The learning rate where none is given.
    pub const fn usual_rate(self) -> f32 {
        match self {
            Self::Sgd | Self::Nesterov => 0.01,
            Self::Adam => 0.001,
        }
    }

    /// Whether `--momentum` means something to it.
    pub const fn has_momentum(self) -> bool {
        matches!(self, Self::Sgd | Self::Nesterov)
    }

    /// Names of the values it keeps for each trained one, in the order in which a program has them.
    pub(crate) const fn state_names(self) -> &'static [&'static str] {
        match self {
            Self::Sgd | Self::Nesterov => &["momentum"],
            Self::Adam => &["mean", "square"],
        }
    }
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for OptimizerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            format!("unknown optimizer '{text}'; use one of {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_optimizer_keeps_as_many_values_as_its_engine_plans() {
        for kind in OptimizerKind::ALL {
            let learning = Learning { optimizer: kind, ..Learning::default() };
            assert_eq!(learning.rule().state_per_value(), kind.state_names().len(), "{kind}");
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("adagrad".parse::<OptimizerKind>().expect_err("no such rule").contains("nesterov"));
    }

    #[test]
    fn another_optimizer_comes_with_its_usual_rate_and_the_same_one_changes_nothing() {
        let mut learning = Learning::at(0.5);
        learning.set_optimizer(OptimizerKind::Sgd);
        assert_eq!(learning, Learning::at(0.5));
        learning.set_optimizer(OptimizerKind::Adam);
        assert_eq!(learning.schedule.base, 0.001);
    }
}
