//! What can happen to the members and hosts of a run.

use paceline_record::{Exit, Expulsion, Host, Member, Step};
use serde::Serialize;

/// Something that happened to the membership of a run. What is not known, or does not apply, is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Event {
    /// Seconds since the first spawn.
    pub at_s: f64,
    /// The step that was under way, or that a member began or ended with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// Whom it happened to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<Member>,
    /// The host that it happened to, or on, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// What happened.
    pub what: What,
    /// How a lost member's process ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// Why a member was expelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Expulsion>,
    /// How the loss of a host was noticed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whose place a started member takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Member>,
    /// The fault that was planted in the member, in the words of `--faults`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planted: Option<String>,
    /// Workers that were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Worker-seconds that it cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_s: Option<f64>,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A member was started after the first step.
    #[default]
    Started,
    /// It took part from then on.
    Joined,
    /// It left in good order.
    Left,
    /// It made no progress.
    Stalled,
    /// Its process ended without being asked to.
    Lost,
    /// It was expelled.
    Expelled,
    /// Another number of workers was asked for.
    Scaled,
    /// A fault was planted in it that nothing else here tells of.
    Planted,
}
