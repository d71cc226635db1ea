//! What a log can say: headers and events.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    Bytes, ClockReading, Generation, Host, HostEvent, HostRoster, Member, MemberEvent, Nanos, Phase,
    PhaseTimes, Rank, Recovery, Roster, Scheduling, Step,
};

/// What one case of a study trains, and how. What its source does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Case {
    /// The network.
    pub model: String,
    /// What computes.
    pub engine: Option<String>,
    /// Order of dimensions.
    pub layout: Option<String>,
    /// Number format.
    pub precision: Option<String>,
    /// Update strategy.
    pub update: Option<String>,
    /// `weak` or `strong`.
    pub scaling: Option<String>,
    /// Worker processes.
    pub workers: u32,
    /// Samples a step on each worker.
    pub batch_per_worker: Option<u64>,
    /// Threads in each worker.
    pub threads: Option<u32>,
    /// Height and width of the images, as `32x32`.
    pub input: Option<String>,
    /// Classes of the data.
    pub classes: Option<u64>,
    /// Samples a step on all workers together, where that is what is held fixed (`strong`).
    #[serde(default)]
    pub global_batch: Option<u64>,
    /// Samples that make an epoch, where the data has an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_examples: Option<u64>,
    /// What else sets the case apart, by the names of the command line's options.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

impl Case {
    /// Whether two cases are the same but for the number of workers, and what follows from it: under strong scaling
    /// each worker's part of the batch.
    pub fn same_but_workers(&self, other: &Self) -> bool {
        let mut unified = Self { workers: self.workers, ..other.clone() };
        if self.global_batch.is_some() {
            unified.batch_per_worker = self.batch_per_worker;
        }
        *self == unified
    }
}

/// First line of a rank's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankHeader {
    /// The rank whose log it is.
    pub rank: Rank,
    /// Ranks in the run.
    pub world: u32,
    /// The machine whose clock its moments are on: ranks with the same name share it. `None` where all ranks do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// What is trained, where the rank found that out and its launcher did not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case: Option<Box<Case>>,
    /// Phases that it cannot tell: without time in them they are unknown, not zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untold: Vec<Phase>,
}

impl RankHeader {
    /// Of a rank that tells all phases, and whose launcher knows the rest.
    pub const fn new(rank: Rank, world: u32) -> Self {
        Self { rank, world, host: None, case: None, untold: Vec::new() }
    }
}

/// First line of a member's log, which takes the place of a rank's in a run whose workers come and go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberHeader {
    /// Whose log it is. Its rank is its place in the roster of a step's generation.
    pub member: Member,
    /// Its place on the host: the cores that it keeps to. Whoever replaces it gets the same.
    #[serde(default, skip_serializing_if = "is_first_seat")]
    pub seat: u32,
    /// The host that it runs on, of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
}

/// First line of the launcher's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LauncherHeader {
    /// The case that was run.
    pub case: Case,
    /// Whether the log covers a window of the run only: its first spawn and last reap are then where the window begins and
    /// ends, and how long the whole run took is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub window: bool,
    /// The date of the run's clock; `None` where nobody noted it, or where the clock is simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Started>,
    /// What else the machine did just before the run; `None` where nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// The host whose launcher it is, in a run on several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
}

impl LauncherHeader {
    /// Of a whole run, with nothing known about when and beside what it ran.
    pub const fn new(case: Case) -> Self {
        Self { case, window: false, started: None, load: None, host: None }
    }
}

/// One moment on two clocks, so that all moments of a run have a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// On the clock that all ranks share.
    pub at: Nanos,
    /// Since the beginning of 1970, UTC.
    pub unix: Nanos,
}

/// What else a machine did just before a run. What could not be read is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Cores that the run may use.
    pub cores: u32,
    /// How many of them other programs kept busy.
    pub busy_cores: Option<f64>,
    /// How many of them the hypervisor gave to others.
    pub stolen_cores: Option<f64>,
    /// Cores' worth of time that a control group's quota grants; `None` where there is no quota too.
    pub quota_cores: Option<f64>,
}

/// One exchange of a step: a bucket of gradients. Moments are on the clock that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketRecord {
    /// Gradients in it.
    pub bytes: Bytes,
    /// When this rank arrived.
    pub begun: Nanos,
    /// When the last rank arrived: before, nothing could be done.
    pub last_arrival: Nanos,
    /// The rank that arrived last.
    pub last_rank: Rank,
    /// When the last part was done.
    pub ended: Nanos,
    /// Time that this rank was blocked until the last rank arrived.
    pub waited_late: Nanos,
    /// Time that this rank was blocked while others moved bytes.
    pub waited_transfer: Nanos,
    /// Processor time of this rank.
    pub cpu: Nanos,
    /// What this rank read and wrote.
    pub moved: Bytes,
}

/// An exchange of a step as one rank saw it. Who came last is known only when the ranks are compared; it becomes a
/// [`BucketRecord`] then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalRecord {
    /// Bytes exchanged.
    pub bytes: Bytes,
    /// When this rank arrived.
    pub begun: Nanos,
    /// When it was done on this rank.
    pub ended: Nanos,
    /// Processor time of this rank for it.
    #[serde(default)]
    pub cpu: Nanos,
}

/// One step of one rank. The time between `begin` and `end` that no phase holds is [`Phase::Other`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its number; of several, that of the last.
    pub step: Step,
    /// How many steps it stands for, all its fields being sums over them: logs of other programs tell of every tenth.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub covers: u64,
    /// The roster that did it.
    #[serde(default, skip_serializing_if = "Generation::is_first")]
    pub generation: Generation,
    /// When it began: where the step before ended, or where the first began.
    pub begin: Nanos,
    /// When it ended.
    pub end: Nanos,
    /// Whether its phases were measured. Of a step whose were not only those in [`Self::phases`] are known, and nothing about its
    /// exchanges.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub sampled: bool,
    /// What it spent its time on.
    pub phases: PhaseTimes,
    /// Samples this rank worked on.
    pub examples: u64,
    /// Mean loss over them; `None` where it is not known or not a number.
    pub loss: Option<f32>,
    /// Samples whose class was guessed right, before the update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correct: Option<u64>,
    /// The learning rate of its update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f32>,
    /// The whole step, of all shards, whoever ran them; `None` where ranks only tell of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Whole>,
    /// Samples among [`Self::examples`] that somebody lost had been given before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redone: u64,
    /// Part of [`Phase::CommWait`] that was spent until the last rank arrived; the rest went to moving bytes.
    #[serde(default, skip_serializing_if = "Nanos::is_zero")]
    pub late_rank: Nanos,
    /// Time that a collective was under way at all, beside the phases.
    #[serde(default, skip_serializing_if = "Nanos::is_zero")]
    pub comm_busy: Nanos,
    /// Part of `comm_busy` in which this rank computed: an intersection of intervals. `None` where nobody measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlapped: Option<Nanos>,
    /// Part of [`Phase::Idle`] in which the host was on its way to hand over what came next, and late.
    #[serde(default, skip_serializing_if = "Nanos::is_zero")]
    pub idle_host: Nanos,
    /// Part of [`Phase::Idle`] in which work was queued but had to wait for other work.
    #[serde(default, skip_serializing_if = "Nanos::is_zero")]
    pub idle_queued: Nanos,
    /// Part of [`Phase::Idle`] in which nothing was queued, and the host did nothing that shows.
    #[serde(default, skip_serializing_if = "Nanos::is_zero")]
    pub idle_empty: Nanos,
    /// Time in which a device had nothing to do because its host was late, whatever phase it fell into; `None` where that is
    /// not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starved: Option<Nanos>,
    /// What the system did to the thread that ran it; `None` where nobody asked. Boxed, as most records in memory have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Box<Scheduling>>,
    /// The exchanges, in the order in which they began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<BucketRecord>,
    /// The exchanges of a rank that does not know when the others arrived, in the order in which they began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrivals: Vec<ArrivalRecord>,
    /// When it was blocked on [`Self::arrivals`]: begins and ends, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<(Nanos, Nanos)>,
}

const fn yes() -> bool {
    true
}

const fn is_true(value: &bool) -> bool {
    *value
}

const fn one() -> u64 {
    1
}

const fn is_one(count: &u64) -> bool {
    *count == 1
}

const fn is_first_seat(seat: &u32) -> bool {
    *seat == 0
}

const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A step as a whole: each sample of it once, whoever ran it and however often.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Whole {
    /// Samples of the step.
    pub examples: u64,
    /// Mean loss over them, added up in the order of the shards; `None` where it is not a number.
    pub loss: Option<f32>,
    /// Samples whose class was guessed right, before the update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correct: Option<u64>,
}

impl StepRecord {
    /// A step that begins at `begin` and has not done anything yet.
    pub fn open(step: Step, begin: Nanos) -> Self {
        Self {
            step,
            covers: one(),
            generation: Generation(0),
            begin,
            end: begin,
            sampled: yes(),
            phases: PhaseTimes::default(),
            examples: 0,
            loss: None,
            correct: None,
            learning_rate: None,
            whole: None,
            redone: 0,
            late_rank: Nanos(0),
            comm_busy: Nanos(0),
            overlapped: None,
            idle_host: Nanos(0),
            idle_queued: Nanos(0),
            idle_empty: Nanos(0),
            starved: None,
            scheduling: None,
            buckets: Vec::new(),
            arrivals: Vec::new(),
            waits: Vec::new(),
        }
    }

    /// Books time to a phase.
    pub fn book(&mut self, phase: Phase, time: Nanos) {
        self.phases[phase] += time;
    }
}

/// How a network did on samples that it was not trained with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// When the result was known.
    pub at: Nanos,
    /// Steps done before.
    pub steps: u64,
    /// Samples tested.
    pub examples: u64,
    /// Mean loss over them; `None` where it is not a number.
    pub loss: Option<f32>,
    /// Samples whose class was guessed right; `None` for a network without classes.
    #[serde(default)]
    pub correct: Option<u64>,
}

/// What a rank tells. On a line, an object whose one key names the event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "nearly all events are steps")]
pub enum RankEvent {
    /// The worker's first instruction.
    Main {
        /// The moment of it.
        at: Nanos,
        /// Its process; 0 where it is simulated.
        pid: u32,
    },
    /// The program is compiled.
    Compiled {
        /// When it was ready.
        at: Nanos,
        /// Memory it planned.
        planned: Option<Bytes>,
    },
    /// A step ended.
    Step(StepRecord),
    /// The network was tested; its time is in the step before. Rank 0 tells, for all ranks.
    Evaluated(EvalRecord),
    /// A checkpoint is on the disk; its time is in the step before. Rank 0 tells.
    Saved {
        /// When it was complete.
        at: Nanos,
        /// Steps done before.
        steps: u64,
        /// Its size.
        bytes: Bytes,
    },
    /// A phase of a recovery, as this worker saw it. It lies between steps or within one, beside its phases.
    Recovery(Recovery),
    /// A fault that was asked for is about to be planted in this worker.
    Fault {
        /// The moment before it is.
        at: Nanos,
        /// The step that it is in.
        step: Step,
        /// The fault, in the words of `--faults`.
        fault: String,
    },
    /// What a reader of its times should know, as a sentence.
    Note {
        /// When it was noticed.
        at: Nanos,
        /// The sentence.
        text: String,
        /// Phases that it cannot tell either, as it found out after it had written its header.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        untold: Vec<Phase>,
    },
    /// The worker has nothing left to do.
    Done {
        /// When it had come to its end.
        at: Nanos,
        /// The most memory it held.
        peak_resident: Option<Bytes>,
        /// Part of that which it shares with the other ranks, so that nobody counts it twice.
        #[serde(default)]
        shared: Option<Bytes>,
        /// The most memory of a device that it held.
        #[serde(default)]
        peak_device: Option<Bytes>,
    },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// Whether it did what it was asked to.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => {
                write!(f, "signal {signal}")?;
                match signal {
                    2 => f.write_str(" (SIGINT)"),
                    4 => f.write_str(" (SIGILL)"),
                    6 => f.write_str(" (SIGABRT)"),
                    7 => f.write_str(" (SIGBUS)"),
                    9 => f.write_str(" (SIGKILL)"),
                    11 => f.write_str(" (SIGSEGV)"),
                    15 => f.write_str(" (SIGTERM)"),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All ranks did all their steps.
    Done,
    /// A rank failed.
    Failed,
    /// The user stopped it.
    Interrupted,
}

/// What the launcher tells. On a line, an object whose one key names the event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LauncherEvent {
    /// A worker is about to be started.
    Spawn {
        /// The rank that it will be.
        rank: Rank,
        /// The moment before it is.
        at: Nanos,
    },
    /// A worker has ended and nothing is left of it.
    Reap {
        /// The rank that it was.
        rank: Rank,
        /// When the launcher had learnt of it.
        at: Nanos,
        /// How it ended.
        exit: Exit,
    },
    /// Something happened to a member, in a run whose workers come and go.
    Member(MemberEvent),
    /// From here on the work is dealt to these members.
    Roster(Roster),
    /// A phase of a recovery, as the launcher saw it.
    Recovery(Recovery),
    /// The network was tested, in a run whose workers come and go; its time is in the members' step before.
    Evaluated(EvalRecord),
    /// A checkpoint of such a run is on the disk; its time is in the members' step before.
    Saved {
        /// When it was complete.
        at: Nanos,
        /// Steps done before.
        steps: u64,
        /// Its size.
        bytes: Bytes,
    },
    /// Something happened to a host, in a run on several.
    Host(HostEvent),
    /// From here on the shards are dealt to these hosts.
    Hosts(HostRoster),
    /// How a host's clock compares with that of the first host.
    Clock(ClockReading),
    /// Another number of workers was asked for.
    Scaled {
        /// When it was asked for.
        at: Nanos,
        /// Workers that there should be.
        workers: u32,
    },
    /// The case is over.
    Over {
        /// How it ended.
        outcome: Outcome,
        /// Why, unless all went well.
        reason: Option<String>,
    },
}

/// Time of one layer over a run, as `layers.json` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerTime {
    /// The layer, or the layers that run as one.
    pub name: String,
    /// Calls counted.
    pub calls: u64,
    /// Forward, all calls.
    pub forward: Nanos,
    /// Backward, all calls.
    pub backward: Nanos,
    /// Floating-point operations of forward, per call.
    pub forward_flops: u64,
    /// Floating-point operations of backward, per call.
    pub backward_flops: u64,
}
