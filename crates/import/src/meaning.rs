//! What the columns and series of foreign files hold, by their names: the one vocabulary of all readers.

/// What a column or a series holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meaning {
    /// Seconds of a step.
    StepSeconds,
    /// Milliseconds of a step.
    StepMillis,
    /// Steps a second.
    StepsPerSecond,
    /// Examples a second.
    Rate,
    /// Loss in training.
    Loss,
    /// Examples a second since the first step.
    AverageRate,
    /// The number of a device.
    Device,
    /// A unique name of a device.
    DeviceId,
    /// Percent of time in which a kernel ran on a device.
    Utilisation,
    /// Memory of a device in use, in mebibytes.
    Mebibytes,
    /// Power of a device.
    Watts,
}

use Meaning::*;

/// Names, in words that [`word`] knows; those with a star may have more words in front. The first that fits counts.
const NAMES: [(&str, Meaning); 22] = [
    ("average examples per s", AverageRate),
    ("* examples per s", Rate),
    ("* steps per s", StepsPerSecond),
    ("* steps ms", StepMillis),
    ("* steps time ms", StepMillis),
    ("* steps s", StepSeconds),
    ("* steps time s", StepSeconds),
    ("* s per steps", StepSeconds),
    ("* train loss", Loss),
    ("* total loss", Loss),
    ("index", Device),
    ("gpu", Device),
    ("sm", Utilisation),
    ("fb", Mebibytes),
    ("pwr", Watts),
    ("uuid", DeviceId),
    ("gpu uuid", DeviceId),
    ("pci bus id", DeviceId),
    ("utilization gpu", Utilisation),
    ("memory used", Mebibytes),
    ("power draw", Watts),
    ("power draw instant", Watts),
];

/// Words that make a name mean something else: another set of data, or a mean of what is already a series.
const OTHERS: [&str; 7] = ["val", "validation", "eval", "test", "average", "avg", "mean"];

/// Words beside `loss` that leave it the loss in training: `Loss/train`, `epoch_loss`, `loss_1`.
const OF_A_LOSS: [&str; 7] = ["loss", "train", "total", "batch", "epoch", "steps", "1"];

/// The meaning of a name; `None` if it has none that a reader uses.
pub fn of(name: &str) -> Option<Meaning> {
    let words = words(name);
    let is = |known: &str| match known.strip_prefix("* ") {
        Some(end) => {
            words.ends_with(&end.split(' ').collect::<Vec<_>>())
                && !words.iter().any(|word| OTHERS.contains(word))
        }
        None => known.split(' ').eq(words.iter().copied()),
    };
    let known = NAMES.into_iter().find(|(known, _)| is(known)).map(|(_, meaning)| meaning);
    let is_loss = || words.contains(&"loss") && words.iter().all(|word| OF_A_LOSS.contains(word));
    known.or_else(|| is_loss().then_some(Loss))
}

/// The words of a name, each in one spelling; `images/sec` is `examples per s`, and `s/it` is `s per steps`.
fn words(name: &str) -> Vec<&'static str> {
    let mut words = Vec::new();
    for (place, part) in name.split('/').enumerate() {
        let begin = words.len();
        words.extend(
            part.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).map(word),
        );
        let is_second = |at: Option<usize>| at.and_then(|at| words.get(at)) == Some(&"s");
        if place > 0 && (is_second(Some(begin)) || is_second(begin.checked_sub(1))) {
            words.insert(begin, "per");
        }
    }
    words
}

/// A word in the spelling of the tables; one that is in none of them is "?".
fn word(text: &str) -> &'static str {
    const SAME: [(&str, &str); 22] = [
        ("example", "examples"),
        ("image", "examples"),
        ("images", "examples"),
        ("img", "examples"),
        ("imgs", "examples"),
        ("sample", "examples"),
        ("samples", "examples"),
        ("sec", "s"),
        ("second", "s"),
        ("seconds", "s"),
        ("step", "steps"),
        ("iter", "steps"),
        ("iters", "steps"),
        ("iteration", "steps"),
        ("iterations", "steps"),
        ("it", "steps"),
        ("batches", "steps"),
        ("losses", "loss"),
        ("training", "train"),
        ("utilisation", "utilization"),
        ("millis", "ms"),
        ("milliseconds", "ms"),
    ];
    let text = text.to_ascii_lowercase();
    let known = SAME.into_iter().find(|(other, _)| *other == text).map_or(text.as_str(), |(_, one)| one);
    let all = NAMES.iter().flat_map(|(name, _)| name.split(' ')).chain(OTHERS).chain(OF_A_LOSS);
    all.into_iter().find(|word| *word == known).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood_in_their_common_spellings() {
        for (meaning, names) in [
            (
                Rate,
                &[
                    "examples_per_s",
                    "examples/sec",
                    "current_examples_per_sec",
                    "images/sec",
                    "train/samples_per_second",
                    "perf/img/s",
                ][..],
            ),
            (AverageRate, &["average_examples_per_sec"]),
            (StepsPerSecond, &["global_step/sec", "steps_per_second", "it/s"]),
            (StepMillis, &["step_ms", "step_time_ms"]),
            (StepSeconds, &["step_seconds", "perf/step_time_s", "sec_per_step", "s/it"]),
            (
                Loss,
                &[
                    "loss",
                    "train/loss",
                    "losses/total_loss",
                    "Loss/train",
                    "train_loss_step",
                    "epoch_loss",
                    "total_loss_1",
                    "model/train_loss",
                ],
            ),
            (Device, &["index", "gpu"]),
            (Utilisation, &["utilization.gpu", "sm"]),
            (Mebibytes, &["memory.used"]),
            (Watts, &["power.draw", "power.draw.instant"]),
        ] {
            names.iter().for_each(|name| assert_eq!(of(name), Some(meaning), "{name}"));
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
            "rpn_loss",
            "memory.total",
            "utilization.memory",
            "seconds",
            "",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
