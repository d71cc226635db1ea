//! The machine that is simulated: what `--simulate` chooses, as `key=value,key=value`.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::str::FromStr;

use paceline_record::{Nanos, Rank, Step};
use serde::{Deserialize, Serialize};

/// A machine and its faults. By default it has none: each cause of lost time is absent or negligible.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Simulation {
    /// Speed of a thread, in 10^9 operations per second.
    pub gflops: f64,
    /// Layers with given times: name, forward and backward of a pass.
    pub layers: Vec<(String, Nanos, Nanos)>,
    /// Relative standard deviation of a rank's computation from step to step.
    pub jitter: f64,
    /// A file with the noise of a real run, beside the jitter.
    pub noise: Option<PathBuf>,
    /// Part of its computation that a rank is not on a core, because others are.
    pub off_core: f64,
    /// Computation is slower by this fraction for each further worker.
    pub contention: f64,
    /// This many first steps compute slower: the first by this factor, then less and less.
    pub warmup: Option<(u64, f64)>,
    /// From this step on, all ranks compute slower by this factor.
    pub slowdown: Option<(Step, f64)>,
    /// This rank computes slower by this factor, if there are several.
    pub straggler: Option<(Rank, f64)>,
    /// With this probability a rank loses this time in a step, before its backward.
    pub hiccup: Option<(f64, Nanos)>,
    /// From the spawn of one worker to the spawn of the next.
    pub spawn: Nanos,
    /// From a worker's spawn to its first instruction.
    pub launch: Nanos,
    /// From there to its first step.
    pub init: Nanos,
    /// What each further worker adds to that.
    pub init_per_worker: Nanos,
    /// Getting a batch.
    pub load: Nanos,
    /// What each further worker adds to that.
    pub load_contention: Nanos,
    /// Latency of a message.
    pub latency: Nanos,
    /// Bandwidth of a link, in 10^9 bytes per second.
    pub bandwidth: f64,
    /// Fraction of an exchange's time that a worker computes for it instead of for the network.
    pub comm_cpu: f64,
    /// Speed of an update, in 10^9 bytes of parameters per second.
    pub update_gbs: f64,
    /// Updates are slower by this fraction for each further worker.
    pub update_contention: f64,
    /// An evaluation on all ranks: its interval in steps, and its time.
    pub eval: Option<(u64, Nanos)>,
    /// A checkpoint on all ranks: its interval in steps, and its time.
    pub checkpoint: Option<(u64, Nanos)>,
    /// Time of a step that belongs to no phase.
    pub other: Nanos,
    /// From the end of a worker's last step to its reap.
    pub tail: Nanos,
    /// What each further worker adds to that.
    pub tail_per_worker: Nanos,
    /// This rank dies in this step.
    pub fail: Option<(Rank, Step)>,
    /// In an elastic run, from a member's death to the moment when the launcher notices.
    pub detect: Nanos,
    /// From there to the moment when nothing is left of the member and all others know.
    pub fence: Nanos,
}

impl Default for Simulation {
    fn default() -> Self {
        Self {
            gflops: 50.0,
            layers: Vec::new(),
            jitter: 0.005,
            noise: None,
            off_core: 0.0,
            contention: 0.0,
            warmup: None,
            slowdown: None,
            straggler: None,
            hiccup: None,
            spawn: Nanos(0),
            launch: Nanos(2_000_000),
            init: Nanos(50_000_000),
            init_per_worker: Nanos(0),
            load: Nanos(100_000),
            load_contention: Nanos(0),
            latency: Nanos(100),
            bandwidth: 1000.0,
            comm_cpu: 0.0,
            update_gbs: 20.0,
            update_contention: 0.0,
            eval: None,
            checkpoint: None,
            other: Nanos(0),
            tail: Nanos(2_000_000),
            tail_per_worker: Nanos(0),
            fail: None,
            detect: Nanos(1_000_000),
            fence: Nanos(40_000_000),
        }
    }
}

/// Where a key's value is stored, and so how it is parsed and printed.
enum Value<'a> {
    /// Above 0.
    Rate(&'a mut f64),
    /// From 0 up.
    Fraction(&'a mut f64),
    /// From 0 to 1.
    Part(&'a mut f64),
    Millis(&'a mut Nanos),
    Micros(&'a mut Nanos),
    Layers(&'a mut Vec<(String, Nanos, Nanos)>),
    CountFactor(&'a mut Option<(u64, f64)>),
    StepFactor(&'a mut Option<(Step, f64)>),
    RankFactor(&'a mut Option<(Rank, f64)>),
    ChanceMillis(&'a mut Option<(f64, Nanos)>),
    EveryMillis(&'a mut Option<(u64, Nanos)>),
    RankStep(&'a mut Option<(Rank, Step)>),
    File(&'a mut Option<PathBuf>),
}

/// The longest time and the largest number that can be given; larger ones would overflow.
const MOST: f64 = 1e9;

const MILLI: f64 = 1e6;
const MICRO: f64 = 1e3;

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number| (0.0..=MOST).contains(number))
}

fn rate(text: &str) -> Option<f64> {
    number(text).filter(|&rate| rate >= 1.0 / MOST)
}

fn part(text: &str) -> Option<f64> {
    number(text).filter(|&part| part <= 1.0)
}

fn time(text: &str, unit: f64) -> Option<Nanos> {
    number(text).map(|number| Nanos((number * unit).round() as u64))
}

fn millis(text: &str) -> Option<Nanos> {
    time(text, MILLI)
}

fn show_time(time: Nanos, unit: f64) -> String {
    (time.0 as f64 / unit).to_string()
}

fn rank(text: &str) -> Option<Rank> {
    text.parse().ok().map(Rank)
}

fn step(text: &str) -> Option<Step> {
    text.parse().ok().map(Step)
}

fn count(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&count| count > 0)
}

/// Two values with a colon between them.
fn pair<A, B>(
    text: &str,
    first: impl FnOnce(&str) -> Option<A>,
    second: impl FnOnce(&str) -> Option<B>,
) -> Option<(A, B)> {
    let (a, b) = text.rsplit_once(':')?;
    Some((first(a)?, second(b)?))
}

fn show_pair<A: Display, B: Display>(pair: &Option<(A, B)>) -> Vec<String> {
    pair.iter().map(|(a, b)| format!("{a}:{b}")).collect()
}

fn show_timed<A: Display>(pair: &Option<(A, Nanos)>) -> Vec<String> {
    pair.iter().map(|(a, time)| format!("{a}:{}", show_time(*time, MILLI))).collect()
}

impl Value<'_> {
    /// The form of the value, for help texts.
    const fn form(&self) -> &'static str {
        match self {
            Self::Rate(_) => "NUMBER",
            Self::Fraction(_) => "FRACTION",
            Self::Part(_) => "0..1",
            Self::Millis(_) => "MS",
            Self::Micros(_) => "US",
            Self::Layers(_) => "NAME:FORWARD_MS:BACKWARD_MS",
            Self::CountFactor(_) => "STEPS:FACTOR",
            Self::StepFactor(_) => "STEP:FACTOR",
            Self::RankFactor(_) => "RANK:FACTOR",
            Self::ChanceMillis(_) => "PROBABILITY:MS",
            Self::EveryMillis(_) => "EVERY:MS",
            Self::RankStep(_) => "RANK:STEP",
            Self::File(_) => "FILE",
        }
    }

    /// Sets the value; `None` if the text is not a valid one.
    fn read(self, text: &str) -> Option<()> {
        match self {
            Self::Rate(value) => *value = rate(text)?,
            Self::Fraction(value) => *value = number(text)?,
            Self::Part(value) => *value = part(text)?,
            Self::Millis(value) => *value = millis(text)?,
            Self::Micros(value) => *value = time(text, MICRO)?,
            Self::Layers(layers) => {
                let ((name, forward), backward) =
                    pair(text, |rest| pair(rest, |name| Some(name.to_owned()), millis), millis)?;
                layers.retain(|(known, ..)| *known != name);
                layers.push((name, forward, backward));
            }
            Self::CountFactor(value) => *value = Some(pair(text, count, rate)?),
            Self::StepFactor(value) => *value = Some(pair(text, step, rate)?),
            Self::RankFactor(value) => *value = Some(pair(text, rank, rate)?),
            Self::ChanceMillis(value) => *value = Some(pair(text, part, millis)?),
            Self::EveryMillis(value) => *value = Some(pair(text, count, millis)?),
            Self::RankStep(value) => *value = Some(pair(text, rank, step)?),
            Self::File(value) => *value = Some(text).filter(|text| !text.is_empty()).map(PathBuf::from),
        }
        Some(())
    }

    /// The value in the form that is parsed: none if it is unset, several for layers.
    fn show(&self) -> Vec<String> {
        match self {
            Self::Rate(value) | Self::Fraction(value) | Self::Part(value) => vec![value.to_string()],
            Self::Millis(value) => vec![show_time(**value, MILLI)],
            Self::Micros(value) => vec![show_time(**value, MICRO)],
            Self::Layers(layers) => {
                let show = |(name, forward, backward): &(String, Nanos, Nanos)| {
                    format!("{name}:{}:{}", show_time(*forward, MILLI), show_time(*backward, MILLI))
                };
                layers.iter().map(show).collect()
            }
            Self::CountFactor(value) => show_pair(value),
            Self::StepFactor(value) => show_pair(value),
            Self::RankFactor(value) => show_pair(value),
            Self::ChanceMillis(value) => show_timed(value),
            Self::EveryMillis(value) => show_timed(value),
            Self::RankStep(value) => show_pair(value),
            Self::File(value) => value.iter().map(|path| path.display().to_string()).collect(),
        }
    }
}

impl Simulation {
    /// Every key and its place: the one table for parsing, printing and error messages.
    fn keys(&mut self) -> [(&'static str, Value<'_>); 29] {
        [
            ("gflops", Value::Rate(&mut self.gflops)),
            ("layer", Value::Layers(&mut self.layers)),
            ("jitter", Value::Part(&mut self.jitter)),
            ("noise", Value::File(&mut self.noise)),
            ("off_core", Value::Part(&mut self.off_core)),
            ("contention", Value::Fraction(&mut self.contention)),
            ("warmup", Value::CountFactor(&mut self.warmup)),
            ("slowdown", Value::StepFactor(&mut self.slowdown)),
            ("straggler", Value::RankFactor(&mut self.straggler)),
            ("hiccup", Value::ChanceMillis(&mut self.hiccup)),
            ("spawn", Value::Millis(&mut self.spawn)),
            ("launch", Value::Millis(&mut self.launch)),
            ("init", Value::Millis(&mut self.init)),
            ("init_per_worker", Value::Millis(&mut self.init_per_worker)),
            ("load", Value::Millis(&mut self.load)),
            ("load_contention", Value::Millis(&mut self.load_contention)),
            ("latency_us", Value::Micros(&mut self.latency)),
            ("bandwidth", Value::Rate(&mut self.bandwidth)),
            ("comm_cpu", Value::Part(&mut self.comm_cpu)),
            ("update_gbs", Value::Rate(&mut self.update_gbs)),
            ("update_contention", Value::Fraction(&mut self.update_contention)),
            ("eval", Value::EveryMillis(&mut self.eval)),
            ("checkpoint", Value::EveryMillis(&mut self.checkpoint)),
            ("other", Value::Millis(&mut self.other)),
            ("tail", Value::Millis(&mut self.tail)),
            ("tail_per_worker", Value::Millis(&mut self.tail_per_worker)),
            ("fail", Value::RankStep(&mut self.fail)),
            ("detect", Value::Millis(&mut self.detect)),
            ("fence", Value::Millis(&mut self.fence)),
        ]
    }
}

impl FromStr for Simulation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut simulation = Self::default();
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
            let place = simulation.keys().into_iter().find(|(known, _)| *known == key);
            let why = match place {
                None => "there is no such key".to_owned(),
                Some((_, place)) => {
                    let form = place.form();
                    if place.read(value).is_some() {
                        continue;
                    }
                    format!("write {key}={form}")
                }
            };
            let keys =
                Self::default().keys().map(|(key, value)| format!("{key}={}", value.form())).join(", ");
            return Err(format!("cannot simulate '{entry}': {why}; the keys are {keys}"));
        }
        Ok(simulation)
    }
}

/// All values, in the form that is parsed.
impl Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.clone();
        let entry = |(key, value): (&str, Value<'_>)| {
            value.show().into_iter().map(|value| format!("{key}={value}")).collect::<Vec<_>>()
        };
        f.write_str(&shown.keys().into_iter().flat_map(entry).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "gflops=80.5,layer=conv1:1.5:3,layer=top:0:0.25,jitter=0,noise=a/b.txt,off_core=0.25,contention=0.1,warmup=5:3,\
        slowdown=40:1.5,straggler=3:2,hiccup=0.01:20,spawn=0.5,launch=1,init=2,init_per_worker=3,load=4,\
        load_contention=0.5,latency_us=25.001,bandwidth=1.25,comm_cpu=0.3,update_gbs=6,update_contention=0.2,\
        eval=10:30,checkpoint=20:40,other=0.7,tail=8,tail_per_worker=9,fail=1:7,detect=2,fence=30";

    #[test]
    fn every_key_is_read_and_shown_again() {
        let simulation: Simulation = ALL.parse().expect("all keys");
        assert_eq!(simulation.to_string(), ALL);
        for (key, _) in Simulation::default().keys() {
            assert!(ALL.contains(&format!("{key}=")), "{key} is not tried");
        }
        assert_eq!(simulation.layers[1], ("top".into(), Nanos(0), Nanos(250_000)));
        assert_eq!(simulation.latency, Nanos(25_001));
        assert_eq!(simulation.fail, Some((Rank(1), Step(7))));
        let json = serde_json::to_string(&simulation).expect("plain data");
        assert_eq!(serde_json::from_str::<Simulation>(&json).expect("own output"), simulation);
    }

    #[test]
    fn nothing_is_a_calm_machine_and_the_last_word_counts() {
        assert_eq!("".parse(), Ok(Simulation::default()));
        let shown = Simulation::default().to_string();
        assert_eq!(shown.parse(), Ok(Simulation::default()));
        let simulation: Simulation = "load=1,layer=a:1:1,layer=a:2:2,load=2".parse().expect("twice");
        assert_eq!((simulation.load, simulation.layers.len()), (Nanos(2_000_000), 1));
    }

    #[test]
    fn what_means_nothing_is_answered_with_the_form_and_all_keys() {
        for (text, expected) in [
            ("jiter=0.1", "'jiter=0.1': there is no such key"),
            ("load", "write load=MS"),
            ("load=-1", "write load=MS"),
            ("load=nan", "write load=MS"),
            ("load=1e12", "write load=MS"),
            ("gflops=0", "write gflops=NUMBER"),
            ("comm_cpu=1.5", "write comm_cpu=0..1"),
            ("hiccup=2:5", "write hiccup=PROBABILITY:MS"),
            ("eval=0:5", "write eval=EVERY:MS"),
            ("straggler=2", "write straggler=RANK:FACTOR"),
            ("straggler=-1:2", "write straggler=RANK:FACTOR"),
            ("layer=conv1:3", "write layer=NAME:FORWARD_MS:BACKWARD_MS"),
            ("init=1,fail=1:2:3", "write fail=RANK:STEP"),
        ] {
            let message = text.parse::<Simulation>().expect_err(text);
            assert!(message.contains(expected), "{message}");
            assert!(message.contains("straggler=RANK:FACTOR, hiccup="), "{message}");
        }
    }
}
