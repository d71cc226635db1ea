//! What a column means, by the words of its heading and the units of its cells.
//!
//! A heading has words that say what is measured, and words that say of what: `Throughput - TF32 (img/s)` is a rate, of TF32. The
//! second kind is its *qualifier*. Columns of different qualifiers describe different runs.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::figure::{self, Unit};

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// What distinguishes runs, such as a model.
    Setting,
    /// Nothing that matters here.
    Ignore,
}

use Meaning::*;

impl Meaning {
    /// The name on the command line.
    pub fn name(self) -> String {
        serde_json::to_value(self)
            .ok()
            .and_then(|name| Some(name.as_str()?.to_owned()))
            .expect("invariant: a name")
    }

    /// Whether the column holds seconds.
    pub fn is_time(self) -> bool {
        matches!(self, InitTime | TrainTime | TotalTime | EpochTime | StepTime | CommTime | PartTime)
    }

    /// Whether the column holds examples per second.
    pub fn is_rate(self) -> bool {
        matches!(self, Rate | RatePerWorker | RateGlobal)
    }

    /// Whether the column holds fractions, which may be printed in percent.
    pub fn is_fraction(self) -> bool {
        matches!(self, Efficiency | CommShare | Accuracy)
    }

    /// Whether the column is a setting of a run, not a result.
    pub fn is_setting(self) -> bool {
        matches!(self, Epochs | Steps | Batch | Examples | Setting)
    }
}

impl FromStr for Meaning {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        serde_json::from_value(name.into())
            .map_err(|error| error.to_string().replacen("unknown variant", "there is no meaning", 1))
    }
}

/// Whether a list, its words separated by spaces, has a word.
pub fn among(list: &str, word: &str) -> bool {
    list.split(' ').any(|other| other == word)
}

/// What counts as a worker, in the singular.
const DEVICES: &str = "gpu worker card rank process proc replica device npu tpu accelerator chip learner np ngpu nproc \
    nworker nthread ncore ncpu core thread cpu hpu";
const NODES: &str = "node machine host server nnode";

/// What a heading or a cell counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Workers.
    Devices,
    /// Workers of a node.
    OnEach,
    /// Machines.
    Nodes,
}

/// What a single word counts, if anything.
pub fn counts(word: &str) -> Option<Counts> {
    let lower = word.to_lowercase();
    let single = lower
        .strip_suffix("es")
        .filter(|stem| stem.ends_with('s'))
        .unwrap_or_else(|| lower.trim_end_matches('s'));
    let is = |names: &str| among(names, single) || among(names, &lower);
    if is(DEVICES) { Some(Counts::Devices) } else { is(NODES).then_some(Counts::Nodes) }
}

/// What a heading counts, if it says nothing else: `# of GPUs`, `num_gpus`, `Nodes`, `GPUs per node`.
pub fn counted(name: &str) -> Option<Counts> {
    let words = words(name);
    let filler = "number numbers num nr no of the count total used in and or task training physical logical";
    let keeps = |word: &&str| {
        !among(filler, word) && (word.len() > 1 || word.starts_with(|c: char| c.is_ascii_digit()))
    };
    let left: Vec<&str> = words.iter().map(String::as_str).filter(keeps).collect();
    match &left[..] {
        // `MPI tasks`.
        ["world", "size"] | ["mpi"] => Some(Counts::Devices),
        // The number of a rank is no number of ranks.
        ["rank"] => None,
        [one] => counts(one),
        [one, "per", other] if counts(one) == Some(Counts::Devices) && counts(other) == counts(one) => {
            counts(one)
        }
        [each, "per" | "each" | "a", node] if counts(node) == Some(Counts::Nodes) => {
            counts(each).filter(|each| *each == Counts::Devices).map(|_| Counts::OnEach)
        }
        // `GPU cards`, `CPU cores`, `MPI processes`, `GPUs (V100)`.
        [first, second] => match (counts(first), counts(second)) {
            (Some(one), Some(other)) if one == other => Some(one),
            // `nodes x GPUs`.
            (Some(Counts::Nodes), Some(other)) => Some(other),
            (None, Some(one))
                if ["mpi", "omp", "openmp", "cuda", "nvidia", "parallel", "compute", "worker", "horovod"]
                    .contains(first) =>
            {
                Some(one)
            }
            (Some(one), None) if is_product(second) => Some(one),
            (None, Some(one)) if is_product(first) => Some(one),
            _ => None,
        },
        _ => None,
    }
}

/// Whether a word is a device's name, such as `v100` or `p100`.
fn is_product(word: &str) -> bool {
    word.len() > 2
        && word.starts_with(|c: char| c.is_alphabetic())
        && word.ends_with(|c: char| c.is_ascii_digit())
}

/// Whether a text begins with a device's name.
pub fn is_device(text: &str) -> bool {
    let word = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_lowercase();
    is_product(&word)
        || ["gtx", "rtx", "tesla", "titan", "nvidia", "quadro", "t4", "amd"].contains(&word.as_str())
}

/// The words of a heading in lower case. A slash is `per`; `speed-up` is one word.
pub fn words(name: &str) -> Vec<String> {
    // `TimeMs` is two words.
    let mut spaced = String::new();
    for letter in name.chars() {
        let joins =
            letter.is_uppercase() && spaced.ends_with(char::is_lowercase) && !name.contains([' ', '_', '-']);
        spaced.extend(joins.then_some(' '));
        spaced.push(letter);
    }
    let lower = spaced
        .to_lowercase()
        .replace("speed-up", "speedup")
        .replace("speed up", "speedup")
        .replace("speed_up", "speedup");
    let lower = lower
        .replace("all-reduce", "allreduce")
        .replace("all reduce", "allreduce")
        .replace('/', " per ")
        .replace('%', " percent ");
    let lower =
        lower.replace("top-", "top").replace("wall-clock", "wallclock").replace("end-to-end", "endtoend");
    let pieces = lower.split(|c: char| !c.is_alphanumeric() && c != '#').map(|word| word.trim_matches('#'));
    pieces.filter(|word| !word.is_empty()).map(Into::into).collect()
}

/// Spellings of a second.
pub const SECONDS: &str = "s sec second secs seconds";
const BYTES: &str = "gb mb kb gib mib tb bytes byte";
const EXAMPLES: &str = "image images img imgs example examples sample samples sequence sequences seq seqs sentence \
    sentences token tokens tok toks word words frame frames item items record records";
const TIMES: &str = "time times duration elapsed latency wallclock runtime walltime";
const STEPS: &str = "step steps it its iter iters iteration iterations batch batches minibatch";
const UNITS: &str =
    "ns us µs μs ms s sec secs second seconds min mins minute minutes h hr hrs hour hours percent x m";

/// Words that say how precisely numbers are held, each with its synonyms. They always distinguish columns.
const PRECISIONS: [&str; 8] =
    ["fp32 float32 single", "tf32", "fp16 float16 half", "mixed amp", "bf16 bfloat16", "fp64", "fp8", "int8"];

/// The words that distinguish a column from others of the same meaning.
pub type Qualifier = BTreeSet<String>;

/// Whether a word of a qualifier names a precision.
pub fn is_precision(word: &str) -> bool {
    PRECISIONS.iter().any(|names| among(names, word))
}

/// A heading, understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Heading {
    /// What is measured, if known.
    pub meaning: Option<Meaning>,
    /// Of what.
    pub qualifier: Qualifier,
}

/// The last word before `per`, and the word after it.
fn pairs(words: &[String]) -> impl Iterator<Item = (&str, &str)> {
    words.windows(3).filter(|three| three[1] == "per").map(|three| (three[0].as_str(), three[2].as_str()))
}

/// Understands a heading; `unit` is what its cells print.
pub fn read(name: &str, unit: Option<Unit>) -> Heading {
    let words = words(name);
    let meaning = guess(&words, unit.or_else(|| heading_unit(name)));
    let qualifier = words.iter().filter(|word| !says_what(word, meaning)).map(|word| {
        let precision =
            PRECISIONS.iter().find(|names| among(names, word)).and_then(|names| names.split(' ').next());
        precision.unwrap_or(word).to_owned()
    });
    Heading { meaning, qualifier: qualifier.collect() }
}

fn guess(words: &[String], unit: Option<Unit>) -> Option<Meaning> {
    let has = |names: &str| words.iter().any(|word| among(names, word));
    let begins = |stem: &str| words.iter().any(|word| word.starts_with(stem));
    let timed = matches!(unit, Some(Unit::Seconds(_)));
    // What somebody hopes for is no measure; neither is what differs between runs.
    if has(
        "ideal theoretical expected perfect linear amdahl gustafson lo hi lower upper p90 p95 p99 50th 75th 90th 95th 99th percentile without \
         projected predicted estimated hidden overlap overlapped gflop tflop mflops flop std stddev stdev deviation variance \
         error err learning lr params parameters flops tflops gflops bandwidth utilization \
         utilisation util usage power temperature price cost energy version date link log mfu watt \
         watts",
    ) {
        return None;
    }
    if begins("efficien") || has("eff") {
        return Some(Efficiency);
    }
    // `gain from X` and `length scaling` are ratios of something else.
    let plain = words.iter().all(|word| says_what(word, Some(Speedup)) || is_precision(word));
    // `speed-up vs naive` compares methods.
    let compares = words.windows(2).any(|pair| {
        let one = "1 one single serial sequential seq base baseline linear fewest the a";
        among("vs versus over to", &pair[0]) && !among(one, &pair[1]) && counts(&pair[1]).is_none()
    });
    if has("speedup speedups") && (compares || has("gain")) {
        return None;
    }
    if has("speedup speedups") || plain && (has("scaling scalability") || unit == Some(Unit::Times)) {
        return Some(Speedup);
    }
    let communicates = begins("communicat") || has("comm allreduce exchange exchanges");
    for (above, below) in pairs(words) {
        if among(SECONDS, below) {
            // Bytes per second are a bandwidth.
            return (!among(BYTES, above)).then(|| rate_scope(words));
        }
        // Rates are read per second only; `ns/day` is simulated time.
        if among(UNITS, below) || among("day days", below) {
            return None;
        }
        if among(UNITS, above) || above == "time" || above == "cost" || above == "duration" {
            if among(STEPS, below) {
                // Of a step, these are parts.
                let part = has("forward backward update optimizer load loading");
                return Some(if communicates {
                    CommTime
                } else if part {
                    PartTime
                } else {
                    StepTime
                });
            }
            if below == "epoch" {
                return Some(EpochTime);
            }
        }
    }
    if unit == Some(Unit::PerSecond) || has("throughput ips fps qps wps sps") || has("speed rate") && !timed {
        return Some(rate_scope(words));
    }
    if begins("accura") || has("acc top1 top5") && !has("grad gradient") {
        return Some(Accuracy);
    }
    if has("loss") {
        return Some(Loss);
    }
    if has("memory mem vram rss") || matches!(unit, Some(Unit::Bytes(_))) {
        return Some(Memory);
    }
    let takes_time = timed || has(TIMES);
    if communicates {
        let share = unit == Some(Unit::Percent) || has("share fraction part percentage");
        return match (takes_time, begins("comput") || has("ratio"), share) {
            (true, ..) => Some(CommTime),
            (_, true, _) => Some(CommRatio),
            (.., share) => share.then_some(CommShare),
        };
    }
    if takes_time {
        // `Latency 99 %` is a percentile.
        let percentile = words.windows(2).any(|pair| pair[1] == "percent" && pair[0].parse::<f64>().is_ok());
        // In percent, it is a part of a time; one worker's time is no time of these.
        let other = percentile || unit == Some(Unit::Percent) || has("seq sequential serial baseline");
        return if other { None } else { time_kind(words) };
    }
    if has("epoch epochs") {
        return Some(Epochs);
    }
    if has("batch batchsize bs minibatch") {
        return Some(Batch);
    }
    let counts = ["steps", "iterations", "number", "num", "of", "total", "train", "training", "max"];
    let only = words.iter().all(|word| counts.contains(&word.as_str()));
    (only && has("steps iterations")).then_some(Steps)
}

fn rate_scope(words: &[String]) -> Meaning {
    let of = |word: &String| counts(word) == Some(Counts::Devices);
    let each = words
        .windows(2)
        .any(|pair| ["per", "each", "a", "single"].contains(&pair[0].as_str()) && of(&pair[1]));
    // The rate of a node is neither that of a worker nor that of all.
    if words.windows(2).any(|pair| pair[0] == "per" && counts(&pair[1]) == Some(Counts::Nodes)) {
        Ignore
    } else if each {
        RatePerWorker
    } else if words.iter().any(|word| {
        ["total", "global", "aggregate", "aggregated", "overall", "all", "cluster", "system"]
            .contains(&word.as_str())
    }) {
        RateGlobal
    } else {
        Rate
    }
}

fn time_kind(words: &[String]) -> Option<Meaning> {
    let has = |names: &str| words.iter().any(|word| among(names, word));
    let timed = has(TIMES) || words.iter().all(|word| among(UNITS, word));
    Some(if has("init initialization initialisation startup launch setup") {
        InitTime
    } else if has("epoch") {
        EpochTime
    } else if has(STEPS) {
        StepTime
    } else if has("total overall endtoend wall wallclock walltime elapsed runtime execution running run") {
        TotalTime
    } else if has("train training") {
        TrainTime
    } else if words.iter().all(|word| says_what(word, Some(TotalTime))) {
        return timed.then_some(TotalTime);
    } else {
        PartTime
    })
}

/// Whether a word of a heading belongs to what is measured, not to what it is measured of.
fn says_what(word: &str, meaning: Option<Meaning>) -> bool {
    const SAYS: &str = "loss losses per of in the a to for and on with by vs over total overall global aggregate all average avg mean \
    median measured actual throughput speed rate ips fps qps wps time times duration elapsed latency \
    wall wallclock walltime clock runtime run execution running init startup launch setup train \
    training epoch epochs speedup speedups scaling scalability scale strong weak factor ratio \
    efficiency eff efficient parallel communication comm processed precision cumulative accuracy \
    memory one 1 value result taken spent whole p50 95 interval";
    among(SAYS, word)
        || among(EXAMPLES, word)
        || among(UNITS, word)
        || counts(word).is_some()
        || among(STEPS, word)
            && !(["batch", "batches"].contains(&word) && meaning.is_some_and(Meaning::is_rate))
        || among(BYTES, word)
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counted {
    /// Images, samples or the like.
    Examples,
    /// Tokens of text.
    Tokens,
    /// Steps, of whatever batch.
    Steps,
    /// Something else, such as files.
    Units,
}

impl Counted {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Examples => "examples",
            Self::Tokens => "tokens",
            Self::Steps => "steps",
            Self::Units => "units",
        }
    }
}

/// What a rate counts, by the words of its heading.
pub fn counted_by(words: &[&str]) -> Counted {
    let any = |list: &str| words.iter().any(|word| among(list, word));
    if any("tok toks token tokens") {
        Counted::Tokens
    } else if any("it its iter iters iteration iterations step steps batches") {
        Counted::Steps
    } else {
        let other = |three: &[&str]| {
            three[1] == "per"
                && among(SECONDS, three[2])
                && !among("throughput speed rate processed", three[0])
        };
        if !any(EXAMPLES) && words.windows(3).any(other) { Counted::Units } else { Counted::Examples }
    }
}

/// The unit that a heading names, in brackets or as a word of its own.
pub fn heading_unit(name: &str) -> Option<Unit> {
    let lower = name.to_lowercase();
    let inside = |open: char, close: char| {
        let from = lower.rfind(open)? + open.len_utf8();
        let to = from + lower[from..].find(close)?;
        // `Tokens (M)` are millions.
        let minutes = lower[from..to].trim() == "m" && !words(name).iter().any(|word| among(TIMES, word));
        figure::unit(&lower[from..to]).filter(|_| !minutes)
    };
    let last = || {
        let word = lower.rsplit([' ', '_', ',']).next()?;
        // A single letter is a name, unless it is marked as a unit, or stands after a time.
        let timed = ["init", "train", "total", "time", "epoch", "wall"]
            .iter()
            .any(|name| lower.ends_with(&format!("{name} s")));
        let per = words(name).iter().any(|word| word == "per");
        let unit = figure::unit(word)?;
        let marked = word.len() > 1 || lower.ends_with("_s") || timed;
        (marked && !per || matches!(unit, Unit::Bytes(_))).then_some(unit)
    };
    // `exchange ms per step`, `memory MB per worker`, but not `images per sec`.
    let within = || {
        let words = words(name);
        // `95 % interval` and `99 % latency` are not in percent.
        let counted = |at: usize| at > 0 && words[at - 1].parse::<f64>().is_ok();
        let plain = |at: &usize| {
            let after = words[..*at].iter().any(|word| word == "per");
            words[*at].len() > 1 && words[*at] != "min" && !after && !counted(*at)
        };
        let units = (0..words.len()).filter(plain).filter_map(|at| figure::unit(&words[at]));
        units.into_iter().find(|unit| !matches!(unit, Unit::Times | Unit::PerSecond))
    };
    inside('(', ')').or_else(|| inside('[', ']')).or_else(last).or_else(within)
}

#[cfg(test)]
mod tests;
