//! What a column means, guessed from its name and the units of its cells.

use std::str::FromStr;

use serde::Serialize;

use super::figure::Unit;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Meaning {
    /// Number of workers.
    Workers,
    /// Time before training.
    InitTime,
    /// Time of training.
    TrainTime,
    /// Total time.
    TotalTime,
    /// Time of an epoch.
    EpochTime,
    /// Time of a step.
    StepTime,
    /// Time of communication.
    CommTime,
    /// Time of another part of the whole.
    PartTime,
    /// Examples per second, of one worker or of all.
    Rate,
    /// Examples per second of one worker.
    RatePerWorker,
    /// Examples per second of all workers.
    RateGlobal,
    /// Speed-up over one worker.
    Speedup,
    /// Speed-up over the number of workers.
    Efficiency,
    /// Memory.
    Memory,
    /// Accuracy.
    Accuracy,
    /// Loss.
    Loss,
    /// Fraction of the time that communication takes.
    CommShare,
    /// Computation against communication.
    CommRatio,
    /// Epochs trained.
    Epochs,
    /// Steps taken.
    Steps,
    /// Examples of a step.
    Batch,
    /// Examples in total.
    Examples,
    /// Nothing that matters here.
    Ignore,
}

impl Meaning {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::Workers,
        Self::InitTime,
        Self::TrainTime,
        Self::TotalTime,
        Self::EpochTime,
        Self::StepTime,
        Self::CommTime,
        Self::PartTime,
        Self::Rate,
        Self::RatePerWorker,
        Self::RateGlobal,
        Self::Speedup,
        Self::Efficiency,
        Self::Memory,
        Self::Accuracy,
        Self::Loss,
        Self::CommShare,
        Self::CommRatio,
        Self::Epochs,
        Self::Steps,
        Self::Batch,
        Self::Examples,
        Self::Ignore,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::InitTime => "init-time",
            Self::TrainTime => "train-time",
            Self::TotalTime => "total-time",
            Self::EpochTime => "epoch-time",
            Self::StepTime => "step-time",
            Self::CommTime => "comm-time",
            Self::PartTime => "part-time",
            Self::Rate => "rate",
            Self::RatePerWorker => "rate-per-worker",
            Self::RateGlobal => "rate-global",
            Self::Speedup => "speedup",
            Self::Efficiency => "efficiency",
            Self::Memory => "memory",
            Self::Accuracy => "accuracy",
            Self::Loss => "loss",
            Self::CommShare => "comm-share",
            Self::CommRatio => "comm-ratio",
            Self::Epochs => "epochs",
            Self::Steps => "steps",
            Self::Batch => "batch",
            Self::Examples => "examples",
            Self::Ignore => "ignore",
        }
    }

    /// Whether the column holds seconds.
    pub fn is_time(self) -> bool {
        use Meaning::*;
        matches!(self, InitTime | TrainTime | TotalTime | EpochTime | StepTime | CommTime | PartTime)
    }

    /// Whether the column holds examples per second.
    pub fn is_rate(self) -> bool {
        matches!(self, Self::Rate | Self::RatePerWorker | Self::RateGlobal)
    }

    /// Whether the column holds fractions, which may be printed in percent.
    pub fn is_fraction(self) -> bool {
        matches!(self, Self::Efficiency | Self::CommShare | Self::Accuracy)
    }
}

impl FromStr for Meaning {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|meaning| meaning.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|meaning| meaning.name()).collect();
            format!("unknown meaning {name:?}; known are {}", names.join(", "))
        })
    }
}

/// The likely meaning of a column, from its name and the common unit of its cells.
pub fn guess(name: &str, unit: Option<Unit>) -> Option<Meaning> {
    use Meaning::*;
    let lower = name.to_lowercase().replace(['_', '-'], " ");
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    let words: Vec<&str> =
        lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let word = |names: &[&str]| words.iter().any(|word| names.contains(word));
    let seconds = matches!(unit.or_else(|| heading_unit(name)), Some(Unit::Seconds(_)));
    let per_second = unit == Some(Unit::PerSecond)
        || per_second_by_name(&lower)
        || has(&["per sec", "throughput", "processed per"])
        || word(&["ips", "fps", "rate", "speed"]) && !has(&["learning", "speed up"]);

    if let Some(time) = time_per_piece(&lower) {
        return Some(time);
    }
    if has(&["efficien", "normalised speed", "normalized speed", "of ideal"]) || word(&["eff"]) {
        return Some(Efficiency);
    }
    if has(&["speedup", "speed up", "scaling"]) || unit == Some(Unit::Times) {
        return Some(Speedup);
    }
    if per_second {
        return Some(rate_scope(&lower));
    }
    if has(&["accura", "top 1", "top1", "top 5", "top5"]) || word(&["acc"]) {
        return Some(Accuracy);
    }
    if word(&["loss"]) {
        return Some(Loss);
    }
    if has(&["memory", "vram"]) || word(&["mem", "rss"]) || matches!(unit, Some(Unit::Bytes(_))) {
        return Some(Memory);
    }
    if has(&["communication", "allreduce", "all reduce"]) || word(&["comm"]) {
        let ratio = has(&["computation", "compute", "ratio"]);
        return Some(if seconds || has(&["time"]) {
            CommTime
        } else if ratio {
            CommRatio
        } else {
            CommShare
        });
    }
    if seconds || has(&["time", "duration", "elapsed", "latency", "wall"]) || word(&["clock"]) {
        return Some(time_kind(&lower, &words));
    }
    if has(&["epoch"]) {
        return Some(Epochs);
    }
    if has(&["batch"]) {
        return Some(Batch);
    }
    if word(&["steps", "iterations"]) {
        return Some(Steps);
    }
    if has(&["dataset size", "data set size", "training set"]) {
        return Some(Examples);
    }
    if has(&["utili", "usage", "power", "temperature", "busy", "price", "cost"])
        || word(&["util", "temp", "mfu"])
    {
        return None;
    }
    if is_workers(name) {
        return Some(Workers);
    }
    word(&["images", "examples", "samples"]).then_some(Examples)
}

/// Whether a name means workers.
pub fn is_workers(name: &str) -> bool {
    let lower = name.to_lowercase();
    let mut words = lower.split(|c: char| !c.is_alphabetic());
    if lower.replace(['_', '-'], " ").contains("world size") {
        return true;
    }
    const NAMES: [&str; 25] = [
        "card",
        "gpu",
        "worker",
        "node",
        "device",
        "rank",
        "replica",
        "proces",
        "core",
        "n",
        "np",
        "accelerator",
        "cpu",
        "ngpu",
        "proc",
        "nproc",
        "nworker",
        "world",
        "machine",
        "host",
        "instance",
        "learner",
        "tpu",
        "npu",
        "chip",
    ];
    words.any(|word| NAMES.contains(&word.trim_end_matches('s').trim_end_matches("se")))
}

fn rate_scope(lower: &str) -> Meaning {
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    if has(&["per gpu", "/gpu", "per worker", "/worker", "a worker", "each", "per device", "per process"]) {
        Meaning::RatePerWorker
    } else if has(&["total", "global", "aggregate", "all workers", "all gpus", "overall"]) {
        Meaning::RateGlobal
    } else {
        Meaning::Rate
    }
}

/// Whether a name ends in a rate: `/s` or `/sec`, and not `/step`.
fn per_second_by_name(lower: &str) -> bool {
    lower.split('/').skip(1).any(|below| {
        let word: String = below.trim().chars().take_while(|c| c.is_alphabetic()).collect();
        ["s", "sec", "secs", "second", "seconds"].contains(&word.as_str())
    })
}

/// A time per unit of work, such as `ms/step` or `minutes/epoch`.
fn time_per_piece(lower: &str) -> Option<Meaning> {
    const UNITS: [&str; 13] =
        ["ns", "us", "ms", "s", "sec", "secs", "second", "seconds", "min", "mins", "minutes", "h", "hours"];
    let (above, below) = lower.split_once('/')?;
    let unit = above.split(|c: char| !c.is_alphanumeric()).rfind(|word| !word.is_empty())?;
    let piece: String = below.trim().chars().take_while(|c| c.is_alphabetic()).collect();
    UNITS.contains(&unit).then_some(())?;
    match piece.as_str() {
        "step" | "it" | "iter" | "iteration" | "batch" => Some(Meaning::StepTime),
        "epoch" => Some(Meaning::EpochTime),
        _ => None,
    }
}

fn time_kind(lower: &str, words: &[&str]) -> Meaning {
    use Meaning::*;
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    let word = |names: &[&str]| words.iter().any(|word| names.contains(word));
    if has(&["init", "start up", "startup", "launch", "set up", "setup"]) {
        InitTime
    } else if has(&["epoch"]) {
        EpochTime
    } else if has(&["per step", "step time", "/step", "per batch", "iteration", "/batch"]) {
        StepTime
    } else if has(&["total", "overall", "end to end", "wall", "elapsed"]) {
        TotalTime
    } else if has(&["train"]) {
        TrainTime
    } else if words.iter().all(|word| {
        ["time", "s", "sec", "secs", "seconds", "min", "minutes", "ms", "h", "hours", "in", "run"]
            .contains(word)
    }) || word(&["runtime", "duration"])
    {
        TotalTime
    } else {
        PartTime
    }
}

/// The unit that a heading names, in brackets or as a word of its own.
pub fn heading_unit(name: &str) -> Option<Unit> {
    let lower = name.to_lowercase();
    let inside = |open: char, close: char| {
        let from = lower.rfind(open)? + open.len_utf8();
        let to = from + lower[from..].find(close)?;
        super::figure::unit(&lower[from..to])
    };
    let last = || {
        let word = lower.rsplit([' ', '_', ',']).next()?;
        // A single letter is a name, unless it was marked as a unit.
        (word.len() > 1 || lower.ends_with("_s")).then(|| super::figure::unit(word))?
    };
    inside('(', ')').or_else(|| inside('[', ']')).or_else(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_columns_mean() {
        use Meaning::*;
        for (name, meaning) in [
            ("GPUs", Workers),
            ("Workers", Workers),
            ("Number of processes", Workers),
            ("world size", Workers),
            ("world_size", Workers),
            ("ranks", Workers),
            ("cards", Workers),
            ("#procs", Workers),
            ("ngpus", Workers),
            ("TPU chips", Workers),
            ("eff. %", Efficiency),
            ("devices", Workers),
            ("nodes x GPUs", Workers),
            ("Init time(s)", InitTime),
            ("Train time(s)", TrainTime),
            ("Training time (secs)", TrainTime),
            ("Total time(s)", TotalTime),
            ("total task time", TotalTime),
            ("Time [min]", TotalTime),
            ("wall_s", TotalTime),
            ("Average time per epoch (secs)", EpochTime),
            ("step time (ms)", StepTime),
            ("Speedup (train)", Speedup),
            ("Speedup Ratio", Speedup),
            ("Scaling efficiency", Efficiency),
            ("Examples/s", Rate),
            ("Images processed per sec", Rate),
            ("img/s per GPU", RatePerWorker),
            ("total images/s", RateGlobal),
            ("Test accuracy", Accuracy),
            ("Maximum Memory Consumption", Memory),
            ("communication", CommShare),
            ("computation/communication", CommRatio),
            ("allreduce time", CommTime),
            ("tensor.numpy() time", PartTime),
            ("Epochs", Epochs),
            ("Batch size", Batch),
            ("dataset size", Examples),
        ] {
            assert_eq!(guess(name, None), Some(meaning), "{name}");
        }
        assert_eq!(guess("apply_gradients", Some(Unit::Seconds(1.0))), Some(PartTime));
        assert_eq!(guess("speed", Some(Unit::PerSecond)), Some(Rate));
        for other in ["colour", "GPU util", "GPU utilisation (%)", "GPU power", "node cost"] {
            assert_eq!(guess(other, None), None, "{other}");
        }
    }

    #[test]
    fn a_meaning_is_found_by_its_name() {
        for meaning in Meaning::ALL {
            assert_eq!(meaning.name().parse(), Ok(meaning));
            assert_eq!(serde_json::to_value(meaning).expect("a name"), meaning.name());
        }
        assert!("speed".parse::<Meaning>().expect_err("unknown meaning").contains("rate-per-worker"));
    }

    #[test]
    fn a_time_over_a_piece_of_work_is_no_rate() {
        for (name, meaning) in [
            ("ms/step", Meaning::StepTime),
            ("s/it", Meaning::StepTime),
            ("time sec/epoch", Meaning::EpochTime),
            ("minutes/epoch", Meaning::EpochTime),
            ("hours", Meaning::TotalTime),
        ] {
            assert_eq!(guess(name, None), Some(meaning), "{name}");
        }
        assert!(
            matches!(guess("images/s", None), Some(Meaning::RateGlobal | Meaning::Rate)),
            "{:?}",
            guess("images/s", None)
        );
    }
}
