//! Faults that a run is asked to plant: `--faults kill=1@30,stop=2@40:5s,slow=0@50:3,leave=3@60,join@70,random=kill:20`, and on
//! several hosts `kill=h1@30,cut=h1@30:5s,clock=h1:3s:50ppm`.
//!
//! What happens in which step is decided here, from the words, the job's seed and who is there; whoever runs the job lets it
//! happen.

use std::fmt::{self, Display};
use std::str::FromStr;

use paceline_record::{Host, Member, Nanos, Step};
use serde::{Deserialize, Serialize};

use crate::clock::{self, WrongClock};
use crate::data::Draw;

/// The faults of a run, in the order in which they were asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Faults(pub Vec<Fault>);

/// Something that is made to happen to a member or a host, or to some member now and then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A member is killed in a step.
    Kill {
        /// Whom it happens to.
        member: Member,
        /// When.
        at: Step,
    },
    /// A member stands still for a while.
    Stop {
        /// Whom it happens to.
        member: Member,
        /// When.
        at: Step,
        /// For how long.
        time: Nanos,
    },
    /// A member computes slower from a step on.
    Slow {
        /// Whom it happens to.
        member: Member,
        /// The first slow step.
        at: Step,
        /// How many times slower.
        factor: f64,
    },
    /// A member leaves in good order before a step.
    Leave {
        /// Whom it happens to.
        member: Member,
        /// The first step without it.
        at: Step,
    },
    /// A member is started before a step, and takes part as soon as it is ready.
    Join {
        /// The step before which it is started.
        at: Step,
    },
    /// A host's launcher is killed in a step, and all its members with it.
    KillHost {
        /// Whom it happens to.
        host: Host,
        /// When.
        at: Step,
    },
    /// A host is cut off from all others for a while.
    CutHost {
        /// Whom it happens to.
        host: Host,
        /// When.
        at: Step,
        /// For how long.
        time: Nanos,
    },
    /// A host's clock is wrong, from the start.
    Clock {
        /// Whose.
        host: Host,
        /// How far it is ahead at first.
        ahead: Nanos,
        /// How much it gains, in parts per million.
        gains_ppm: f64,
    },
    /// About every so many steps a random member is killed.
    RandomKill {
        /// Steps between two kills, on average.
        every: u64,
    },
    /// About every so many steps a random member stands still.
    RandomStop {
        /// Steps between two of them, on average.
        every: u64,
        /// For how long.
        time: Nanos,
    },
}

/// The longest time that can be asked for, in seconds, and the largest factor: far more than a run has use for.
const MOST: f64 = 1e6;

/// What a clock gains at most, in parts per million: worse ones are broken, and are taken for that.
const MOST_GAIN: f64 = 200.0;

/// Streams of random numbers.
const KILL: u64 = 0xdead;
const STOP: u64 = 0x5709;

impl Fault {
    /// The step that it is for; `None` for those that come at random.
    pub fn step(&self) -> Option<Step> {
        match *self {
            Self::Kill { at, .. }
            | Self::Stop { at, .. }
            | Self::Slow { at, .. }
            | Self::Leave { at, .. }
            | Self::Join { at }
            | Self::KillHost { at, .. }
            | Self::CutHost { at, .. } => Some(at),
            Self::Clock { .. } | Self::RandomKill { .. } | Self::RandomStop { .. } => None,
        }
    }

    /// Whom it is for; `None` for those that are for nobody or anybody.
    pub fn member(&self) -> Option<Member> {
        match *self {
            Self::Kill { member, .. }
            | Self::Stop { member, .. }
            | Self::Slow { member, .. }
            | Self::Leave { member, .. } => Some(member),
            Self::Join { .. }
            | Self::KillHost { .. }
            | Self::CutHost { .. }
            | Self::Clock { .. }
            | Self::RandomKill { .. }
            | Self::RandomStop { .. } => None,
        }
    }

    /// The host that it is for; `None` for those that are for members.
    pub fn host(&self) -> Option<Host> {
        match *self {
            Self::KillHost { host, .. } | Self::CutHost { host, .. } | Self::Clock { host, .. } => Some(host),
            _ => None,
        }
    }
}

impl Faults {
    /// Whether none were asked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives this process, which is that of a host, the wrong clock that the host was asked to have.
    pub(crate) fn plant_clock(&self, own: Host) {
        for fault in &self.0 {
            if let Fault::Clock { host, ahead, gains_ppm } = *fault
                && host == own
            {
                WrongClock { ahead, gains_ppm, since: clock::now() }.plant();
            }
        }
    }

    /// What happens to members in a step while these are there, random faults drawn: each is for that step and, but for joins,
    /// for one of the members. The same seed and members give the same faults.
    pub fn due(&self, step: Step, seed: u64, members: &[Member]) -> Vec<Fault> {
        let of_step = |(place, fault): (usize, &Fault)| match *fault {
            Fault::RandomKill { every } => {
                let member = draw(&[seed, step.0, place as u64, KILL], every, members)?;
                Some(Fault::Kill { member, at: step })
            }
            Fault::RandomStop { every, time } => {
                let member = draw(&[seed, step.0, place as u64, STOP], every, members)?;
                Some(Fault::Stop { member, at: step, time })
            }
            fault => {
                let there = fault.member().is_none_or(|member| members.contains(&member));
                (fault.step() == Some(step) && fault.host().is_none() && there).then_some(fault)
            }
        };
        self.0.iter().enumerate().filter_map(of_step).collect()
    }
}

/// One of the members in about one of `every` draws.
fn draw(keys: &[u64], every: u64, members: &[Member]) -> Option<Member> {
    let mut draw = Draw::new(keys);
    let now = f64::from(draw.unit()) * (every as f64) < 1.0;
    (now && !members.is_empty()).then(|| members[draw.below(members.len())])
}

/// The forms of a fault, for error messages.
const FORMS: &str = "kill=MEMBER@STEP, stop=MEMBER@STEP:SECONDSs, slow=MEMBER@STEP:FACTOR, leave=MEMBER@STEP, join@STEP, \
                     random=kill:STEPS, random=stop:STEPS:SECONDSs, and for hosts kill=hHOST@STEP, cut=hHOST@STEP:SECONDSs, \
                     clock=hHOST:SECONDSs:GAINppm";

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').filter(|entry| !entry.is_empty()).map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map_err(|why| format!("cannot plant '{text}': {why}; the faults are {FORMS}"))
    }
}

fn parse(text: &str) -> Result<Fault, String> {
    if let Some(at) = text.strip_prefix("join@") {
        return Ok(Fault::Join { at: step(at)? });
    }
    let (name, value) = text.split_once('=').ok_or("there is no such fault")?;
    match name {
        "kill" if value.starts_with('h') => host_place(value).map(|(host, at)| Fault::KillHost { host, at }),
        "cut" => {
            let (value, length) = value.rsplit_once(':').ok_or("write for how long, as cut=h1@30:5s")?;
            let (host, at) = host_place(value)?;
            let time = time(length)?;
            match time.is_zero() {
                true => Err("a cut takes a while, as cut=h1@30:5s".into()),
                false => Ok(Fault::CutHost { host, at, time }),
            }
        }
        "clock" => match value.split(':').collect::<Vec<_>>()[..] {
            [host, ahead, gain] => {
                let known = gain.strip_suffix("ppm").and_then(|gain| gain.parse::<f64>().ok());
                let known = known.filter(|gain| gain.abs() <= MOST_GAIN);
                let gains_ppm = known.ok_or_else(|| {
                    format!("'{gain}' is not what a clock gains, at most {MOST_GAIN}ppm, as 50ppm")
                })?;
                Ok(Fault::Clock { host: host_number(host)?, ahead: time(ahead)?, gains_ppm })
            }
            _ => Err("write how far it is ahead and what it gains, as clock=h1:3s:50ppm".into()),
        },
        "kill" => place(value).map(|(member, at)| Fault::Kill { member, at }),
        "leave" => place(value).map(|(member, at)| Fault::Leave { member, at }),
        "stop" => {
            let (value, length) = value.rsplit_once(':').ok_or("write for how long, as stop=2@40:5s")?;
            let (member, at) = place(value)?;
            Ok(Fault::Stop { member, at, time: time(length)? })
        }
        "slow" => {
            let (value, factor) = value.rsplit_once(':').ok_or("write by what factor, as slow=0@50:3")?;
            let (member, at) = place(value)?;
            let known = factor.parse().ok().filter(|factor| (1.0..=MOST).contains(factor));
            let factor = known.ok_or_else(|| format!("'{factor}' is not a factor of at least 1"))?;
            Ok(Fault::Slow { member, at, factor })
        }
        "random" => match value.split(':').collect::<Vec<_>>()[..] {
            ["kill", every] => Ok(Fault::RandomKill { every: steps(every)? }),
            ["stop", every, length] => Ok(Fault::RandomStop { every: steps(every)?, time: time(length)? }),
            _ => Err("write random=kill:20 or random=stop:50:2s".into()),
        },
        _ => Err("there is no such fault".into()),
    }
}

fn place(text: &str) -> Result<(Member, Step), String> {
    let (member, at) = text.split_once('@').ok_or("write the member and the step, as 1@30")?;
    let member = member.parse().map_err(|_| format!("'{member}' is not the number of a member"))?;
    Ok((Member(member), step(at)?))
}

fn host_place(text: &str) -> Result<(Host, Step), String> {
    let (host, at) = text.split_once('@').ok_or("write the host and the step, as h1@30")?;
    Ok((host_number(host)?, step(at)?))
}

fn host_number(text: &str) -> Result<Host, String> {
    let number = text.strip_prefix('h').and_then(|number| number.parse().ok());
    number.map(Host).ok_or_else(|| format!("'{text}' is not a host, as h1"))
}

fn step(text: &str) -> Result<Step, String> {
    text.parse().map(Step).map_err(|_| format!("'{text}' is not the number of a step"))
}

fn steps(text: &str) -> Result<u64, String> {
    let known = text.parse().ok().filter(|&steps| steps > 0);
    known.ok_or_else(|| format!("'{text}' is not a number of steps"))
}

fn time(text: &str) -> Result<Nanos, String> {
    let seconds = text.strip_suffix('s').and_then(|seconds| seconds.parse::<f64>().ok());
    let known = seconds.filter(|seconds| (0.0..=MOST).contains(seconds));
    known
        .map(|seconds| Nanos((seconds * 1e9).round() as u64))
        .ok_or_else(|| format!("'{text}' is not a time, as 5s or 0.5s"))
}

/// All faults, in the form that is parsed.
impl Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(Fault::to_string).collect::<Vec<_>>().join(","))
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Nanos| time.0 as f64 / 1e9;
        match *self {
            Self::Kill { member, at } => write!(f, "kill={member}@{at}"),
            Self::Stop { member, at, time } => write!(f, "stop={member}@{at}:{}s", seconds(time)),
            Self::Slow { member, at, factor } => write!(f, "slow={member}@{at}:{factor}"),
            Self::Leave { member, at } => write!(f, "leave={member}@{at}"),
            Self::Join { at } => write!(f, "join@{at}"),
            Self::KillHost { host, at } => write!(f, "kill=h{host}@{at}"),
            Self::CutHost { host, at, time } => write!(f, "cut=h{host}@{at}:{}s", seconds(time)),
            Self::Clock { host, ahead, gains_ppm } => {
                write!(f, "clock=h{host}:{}s:{gains_ppm}ppm", seconds(ahead))
            }
            Self::RandomKill { every } => write!(f, "random=kill:{every}"),
            Self::RandomStop { every, time } => write!(f, "random=stop:{every}:{}s", seconds(time)),
        }
    }
}

impl From<Faults> for String {
    fn from(faults: Faults) -> Self {
        faults.to_string()
    }
}

impl TryFrom<String> for Faults {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "kill=1@30,stop=2@40:5s,slow=0@50:3,leave=3@60,join@70,random=kill:20,random=stop:50:0.25s,kill=h1@30,cut=h2@40:0.5s,clock=h1:3s:-50ppm";

    #[test]
    fn every_fault_is_read_and_shown_again() {
        let faults: Faults = ALL.parse().expect("all forms");
        assert_eq!(faults.to_string(), ALL);
        assert_eq!(faults.0[1], Fault::Stop { member: Member(2), at: Step(40), time: Nanos(5_000_000_000) });
        let json = serde_json::to_string(&faults).expect("plain data");
        assert_eq!(json, format!("\"{ALL}\""));
        assert_eq!(serde_json::from_str::<Faults>(&json).expect("own output"), faults);
        assert_eq!("".parse(), Ok(Faults::default()));
    }

    #[test]
    fn what_means_nothing_is_answered_with_the_reason_and_all_forms() {
        for (text, expected) in [
            ("crash=1@3", "'crash=1@3': there is no such fault"),
            ("kill", "there is no such fault"),
            ("join=3", "there is no such fault"),
            ("kill=1", "write the member and the step"),
            ("kill=hx@3", "'hx' is not a host, as h1"),
            ("kill=h1", "write the host and the step"),
            ("cut=1@3:5s", "'1' is not a host, as h1"),
            ("cut=h1@3", "write for how long"),
            ("clock=h1:3s", "write how far it is ahead"),
            ("clock=h1:3s:5000ppm", "'5000ppm' is not what a clock gains"),
            ("clock=1:3s:5ppm", "'1' is not a host"),
            ("stop=h1@3:5s", "'h1' is not the number of a member"),
            ("kill=1@soon", "'soon' is not the number of a step"),
            ("stop=2@40", "write for how long"),
            ("stop=2@40:5", "'5' is not a time"),
            ("stop=2@40:-1s", "'-1s' is not a time"),
            ("slow=0@50:0.5", "'0.5' is not a factor of at least 1"),
            ("slow=0@50:nan", "'nan' is not a factor"),
            ("random=kill:0", "'0' is not a number of steps"),
            ("random=leave:5", "write random=kill:20"),
        ] {
            let message = format!("join@1,{text}").parse::<Faults>().expect_err(text);
            assert!(message.contains(expected), "{message}");
            assert!(message.contains("slow=MEMBER@STEP:FACTOR"), "{message}");
        }
    }

    #[test]
    fn a_fault_is_due_in_its_step_if_its_member_is_there() {
        let faults: Faults = "kill=1@3,kill=2@3,kill=h1@3,join@3,leave=1@4".parse().expect("faults");
        let members = [Member(0), Member(1)];
        let due = faults.due(Step(3), 7, &members);
        assert_eq!(due, [Fault::Kill { member: Member(1), at: Step(3) }, Fault::Join { at: Step(3) }]);
        assert!(faults.due(Step(5), 7, &members).is_empty());
    }

    #[test]
    fn random_kills_come_about_as_often_as_asked_and_the_same_each_time() {
        let faults: Faults = "random=kill:20".parse().expect("faults");
        let members: Vec<Member> = (0..4).map(Member).collect();
        let due = |seed| -> Vec<Fault> {
            (0..10_000).flat_map(|step| faults.due(Step(step), seed, &members)).collect()
        };
        let kills = due(1);
        assert!((400..600).contains(&kills.len()), "{}", kills.len());
        assert!(members.iter().all(|&member| kills.iter().any(|kill| kill.member() == Some(member))));
        assert_eq!(kills, due(1));
        assert_ne!(kills, due(2));
    }
}
