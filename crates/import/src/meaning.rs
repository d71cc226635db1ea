//! What the series of a log are about, by the vocabulary that tables are read with.

use paceline_lab::explain::figure::Unit;
use paceline_lab::explain::meaning::{self, Heading, Meaning};

/// What a series holds; where one has several of a kind, the first kind counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Seconds of a step.
    StepTime,
    /// Steps a second.
    StepRate,
    /// Examples a second.
    Rate,
    /// Loss in training.
    Loss,
    /// Examples a second since the first step.
    AverageRate,
}

/// What a series with this name holds, and what its numbers are multiplied by; `None` if it is of no use here.
pub fn of(name: &str) -> Option<(Kind, f64)> {
    let words = meaning::words(name);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let has = |list: &str| words.iter().any(|word| meaning::among(list, word));
    // Another set of data, or a mean of what is already a series.
    if has("val validation eval test avg mean") {
        return None;
    }
    let Heading { meaning, qualifier } = meaning::read(name, None);
    let per_second =
        words.windows(2).any(|pair| pair[0] == "per" && meaning::among(meaning::SECONDS, pair[1]));
    let average = words.contains(&"average");
    let kind = match meaning? {
        Meaning::StepTime if !average => Kind::StepTime,
        rate if rate.is_rate() && per_second => match (meaning::counted_by(&words), average) {
            (meaning::Counted::Steps, false) => Kind::StepRate,
            (meaning::Counted::Examples, false) => Kind::Rate,
            (meaning::Counted::Examples, true) => Kind::AverageRate,
            _ => return None,
        },
        // The loss of a part is none.
        Meaning::Loss if qualifier.is_empty() || words.ends_with(&["train", "loss"]) && !average => {
            Kind::Loss
        }
        _ => return None,
    };
    let scale = match meaning::heading_unit(name) {
        Some(Unit::Seconds(seconds)) if kind == Kind::StepTime => seconds,
        _ => 1.0,
    };
    Some((kind, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood_in_their_common_spellings() {
        for (kind, scale, names) in [
            (
                Kind::Rate,
                1.0,
                &[
                    "examples_per_s",
                    "current_examples_per_sec",
                    "images/sec",
                    "train/samples_per_second",
                    "perf/img/s",
                ][..],
            ),
            (Kind::AverageRate, 1.0, &["average_examples_per_sec"]),
            (Kind::StepRate, 1.0, &["global_step/sec", "steps_per_second", "it/s"]),
            (Kind::StepTime, 1e-3, &["step_ms", "step_time_ms"]),
            (Kind::StepTime, 1.0, &["step_seconds", "perf/step_time_s", "sec_per_step", "s/it"]),
            (
                Kind::Loss,
                1.0,
                &[
                    "loss",
                    "train/loss",
                    "losses/total_loss",
                    "Loss/train",
                    "epoch_loss",
                    "total_loss_1",
                    "model/train_loss",
                ],
            ),
        ] {
            names.iter().for_each(|name| assert_eq!(of(name), Some((kind, scale)), "{name}"));
        }
    }

    #[test]
    fn a_name_that_only_looks_alike_has_no_meaning() {
        for name in [
            "val/loss",
            "eval_loss",
            "mean_images_per_sec",
            "lr",
            "learning_rate/s",
            "dropout_rate",
            "rpn_loss",
            "seconds",
            "",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
