//! What the system did to the thread that ran a step.

use serde::{Deserialize, Serialize};

use crate::{Nanos, PhaseTimes};

/// How a step's thread was scheduled: differences of the system's counters between the ends of two steps. What the system
/// does not tell is `None`, never zero. It lies beside the phases and is not added to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// Processor time of the thread that ran the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Nanos>,
    /// Processor time of all threads of its process, that one included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_cpu: Option<Nanos>,
    /// Time that the thread was ready to run and waited for a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<Nanos>,
    /// Part of each phase in which the thread was not on a core although it had not gone to sleep; what it waited for a
    /// core after it was woken counts as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_core: Option<PhaseTimes>,
    /// How often the thread gave its core up or lost it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<Switches>,
    /// Page faults of the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<Faults>,
    /// Time that a control group's quota stopped the processes of the group, this one among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<Nanos>,
    /// Time that the hypervisor took from the thread's cores since the last step that tells: it is read less often than
    /// the rest, and in units of 10 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal: Option<Nanos>,
    /// Frequency of the thread's first core in MHz, in a step in which it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mhz: Option<u32>,
}

/// Context switches of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches {
    /// The thread waited for something.
    pub voluntary: u64,
    /// Somebody else got the core.
    pub involuntary: u64,
}

/// Page faults of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// The page was in memory, or had to be zeroed.
    pub minor: u64,
    /// The page had to be read from a disk.
    pub major: u64,
}
