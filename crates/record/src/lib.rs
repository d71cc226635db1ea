//! What happened: units, phases, events, and the run log that carries them.
//!
//! The log is the only door between the part that trains and the part that says what it means; see [`log`] for its
//! format.

mod date;
mod error;
mod event;
mod hosts;
pub mod log;
mod membership;
mod phase;
mod porter;
mod scheduling;
mod units;

pub use date::date;
pub use error::LogError;
pub use event::{
    ArrivalRecord, BucketRecord, Case, EvalRecord, Exit, LauncherEvent, LauncherHeader, LayerTime, Load,
    MemberHeader, Outcome, RankEvent, RankHeader, Started, StepRecord, Whole,
};
pub use hosts::{ClockReading, HostChange, HostEvent, HostPlace, HostRoster};
pub use membership::{Expulsion, MemberChange, MemberEvent, Recovery, RecoveryPhase, Roster};
pub use phase::{Phase, PhaseTimes};
pub use porter::{PorterEvent, PorterHeader, Transfer};
pub use scheduling::{Faults, Scheduling, Switches};
pub use units::{Bytes, Generation, Host, Member, Nanos, Rank, Step, Who};
