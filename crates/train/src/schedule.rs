//! The learning rate of each step: what `--schedule`, `--warmup-epochs` and `--lr-rule` name.
//!
//! The linear rule and its warm-up are those of Goyal et al. (2017), <https://arxiv.org/abs/1706.02677>.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the rate changes after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It stays the same.
    #[default]
    Constant,
    /// A tenth after half of the run's steps, a hundredth after three quarters.
    Step,
    /// Half a cosine wave, down to zero at the end of the run.
    Cosine,
}

impl Kind {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 3] = [Self::Constant, Self::Step, Self::Cosine];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Step => "step",
            Self::Cosine => "cosine",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            format!("unknown schedule '{text}'; use one of {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// How the rate follows the global batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Not at all.
    #[default]
    None,
    /// In proportion: k times the samples per step, k times the rate.
    Linear,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Linear => "linear",
        })
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "linear" => Ok(Self::Linear),
            _ => Err(format!("unknown rule '{text}'; use none or linear")),
        }
    }
}

/// The learning rate as a function of the step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// How it changes after the warm-up.
    pub kind: Kind,
    /// The rate that was asked for: the one for the reference batch.
    pub base: f32,
    /// How it follows the global batch.
    pub rule: Rule,
    /// Samples per step, on all workers together.
    pub global_batch: u64,
    /// Samples per step that `base` was chosen for.
    pub reference_batch: u64,
    /// Steps of the warm-up.
    pub warmup_steps: u64,
    /// Steps of the run.
    pub total_steps: u64,
}

impl Schedule {
    /// The same rate at every step.
    pub const fn constant(rate: f32) -> Self {
        Self {
            kind: Kind::Constant,
            base: rate,
            rule: Rule::None,
            global_batch: 1,
            reference_batch: 1,
            warmup_steps: 0,
            total_steps: 0,
        }
    }

    /// The rate at the end of the warm-up.
    pub fn peak(&self) -> f32 {
        self.exact_peak() as f32
    }

    fn exact_peak(&self) -> f64 {
        let base = f64::from(self.base);
        match self.rule {
            Rule::None => base,
            Rule::Linear => base * self.global_batch as f64 / self.reference_batch.max(1) as f64,
        }
    }

    /// The rate of a step, the first being 0. In the warm-up it grows by the same amount each step: under the linear
    /// rule from `base` to the peak, which the first step after the warm-up has; otherwise from the peak over the number
    /// of its steps to the peak, which its last step has.
    pub fn rate(&self, step: u64) -> f32 {
        let peak = self.exact_peak();
        let rate = if step < self.warmup_steps {
            let warmup = self.warmup_steps as f64;
            match self.rule {
                Rule::None => peak * (step + 1) as f64 / warmup,
                Rule::Linear => {
                    let from = peak.min(f64::from(self.base));
                    from + (peak - from) * step as f64 / warmup
                }
            }
        } else {
            peak * self.decay(step)
        };
        rate as f32
    }

    /// Fraction of the peak that is left at a step after the warm-up.
    fn decay(&self, step: u64) -> f64 {
        let fraction_from = |from: u64| {
            let length = self.total_steps.saturating_sub(from).max(1);
            ((step - from) as f64 / length as f64).min(1.0)
        };
        match self.kind {
            Kind::Constant => 1.0,
            Kind::Step => match fraction_from(0) {
                done if done < 0.5 => 1.0,
                done if done < 0.75 => 0.1,
                _ => 0.01,
            },
            Kind::Cosine => 0.5 * (1.0 + (PI * fraction_from(self.warmup_steps)).cos()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: Kind) -> Schedule {
        Schedule { kind, base: 0.1, total_steps: 100, ..Schedule::constant(0.1) }
    }

    #[test]
    fn a_constant_rate_stays() {
        assert_eq!([0, 1, 1_000_000].map(|step| Schedule::constant(0.1).rate(step)), [0.1; 3]);
    }

    #[test]
    fn steps_fall_tenfold_at_half_and_at_three_quarters_of_the_run() {
        let rates = [0, 49, 50, 74, 75, 99, 200].map(|step| schedule(Kind::Step).rate(step));
        assert_eq!(rates, [0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.001]);
        let odd = Schedule { total_steps: 5, ..schedule(Kind::Step) };
        assert_eq!([0, 2, 3, 4].map(|step| odd.rate(step)), [0.1, 0.1, 0.01, 0.001]);
    }

    #[test]
    fn a_cosine_falls_to_zero_over_the_steps_after_the_warm_up() {
        let plain = schedule(Kind::Cosine);
        assert_eq!([0, 50, 100, 150].map(|step| plain.rate(step)), [0.1, 0.05, 0.0, 0.0]);
        // (1 + cos 60°) / 2 = 0.75; (1 + cos 120°) / 2 = 0.25.
        let warmed = Schedule { warmup_steps: 10, total_steps: 100, ..plain };
        assert_eq!([10, 40, 55, 70].map(|step| warmed.rate(step)), [0.1, 0.075, 0.05, 0.025]);
        assert!(warmed.rate(99) > 0.0, "the last step still learns");
    }

    #[test]
    fn the_linear_rule_multiplies_the_rate_as_the_batch_was_multiplied() {
        let eightfold = Schedule {
            rule: Rule::Linear,
            global_batch: 2048,
            reference_batch: 256,
            ..schedule(Kind::Constant)
        };
        assert_eq!(eightfold.rate(0), 0.8);
        assert_eq!(eightfold.peak(), 0.8);
        assert_eq!(Schedule { rule: Rule::None, ..eightfold }.rate(0), 0.1);
    }

    #[test]
    fn warm_up_under_the_linear_rule_goes_from_the_unscaled_rate_to_the_scaled_one() {
        let goyal = Schedule {
            rule: Rule::Linear,
            global_batch: 8192,
            reference_batch: 256,
            warmup_steps: 4,
            ..schedule(Kind::Constant)
        };
        // 0.1 to 3.2 in four steps of 0.775.
        assert_eq!([0, 1, 2, 3, 4, 5].map(|step| goyal.rate(step)), [0.1, 0.875, 1.65, 2.425, 3.2, 3.2]);
        let alone = Schedule { global_batch: 256, ..goyal };
        assert_eq!([0, 2, 4].map(|step| alone.rate(step)), [0.1; 3], "one worker has nothing to warm up to");
        let small = Schedule { global_batch: 128, ..goyal };
        assert_eq!(
            [0, 2, 4].map(|step| small.rate(step)),
            [0.05; 3],
            "a smaller batch never gets the larger rate"
        );
    }

    #[test]
    fn warm_up_without_a_rule_rises_from_a_fraction_of_the_rate() {
        let warmed = Schedule { warmup_steps: 4, ..schedule(Kind::Constant) };
        assert_eq!([0, 1, 2, 3, 4].map(|step| warmed.rate(step)), [0.025, 0.05, 0.075, 0.1, 0.1]);
    }

    #[test]
    fn a_warm_up_longer_than_the_run_and_a_run_of_no_steps_have_a_rate() {
        for kind in Kind::ALL {
            let short = Schedule { warmup_steps: 200, ..schedule(kind) };
            assert!((0..400).all(|step| short.rate(step).is_finite()));
            assert!(Schedule { total_steps: 0, ..schedule(kind) }.rate(0).is_finite());
        }
    }

    #[test]
    fn names_are_read_back_and_a_schedule_travels_as_json() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for rule in [Rule::None, Rule::Linear] {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        assert!("exponential".parse::<Kind>().expect_err("no such schedule").contains("cosine"));
        assert!("sqrt".parse::<Rule>().expect_err("no such rule").contains("linear"));
        let sent = Schedule { rule: Rule::Linear, ..schedule(Kind::Cosine) };
        let json = serde_json::to_string(&sent).expect("plain data");
        assert_eq!(serde_json::from_str::<Schedule>(&json).expect("own output"), sent);
    }
}
