//! The phases that tile a rank's time.

use std::fmt;
use std::ops::{Add, AddAssign, Index, IndexMut};

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Nanos;

/// What a rank's time went to. Phases do not overlap, and together they leave nothing out of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// First spawn of the run to the worker's first instruction.
    Launch,
    /// From there to its first step.
    Init,
    /// Getting a batch.
    Load,
    /// Copying it to where it is computed.
    CopyIn,
    /// Forward.
    Forward,
    /// Backward.
    Backward,
    /// Forward and backward, where the source does not tell one from the other.
    Compute,
    /// Copying gradients or results out.
    CopyOut,
    /// Blocked on a collective.
    CommWait,
    /// Work for a collective on the worker's own cores.
    CommCpu,
    /// Applying the update.
    Update,
    /// A device that had nothing to do.
    Idle,
    /// Evaluation.
    Eval,
    /// Writing a checkpoint.
    Checkpoint,
    /// Lost to a worker that was lost: waiting until that was noticed and dealt with, and doing its tasks again.
    Recovery,
    /// End of the last step to the last reap of the run.
    Tail,
    /// What no other phase accounts for.
    Other,
}

impl Phase {
    /// All of them, in the order in which they are printed.
    pub const ALL: [Self; 17] = [
        Self::Launch,
        Self::Init,
        Self::Load,
        Self::CopyIn,
        Self::Forward,
        Self::Backward,
        Self::Compute,
        Self::CopyOut,
        Self::CommWait,
        Self::CommCpu,
        Self::Update,
        Self::Idle,
        Self::Eval,
        Self::Checkpoint,
        Self::Recovery,
        Self::Tail,
        Self::Other,
    ];

    /// Its name in logs and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Init => "init",
            Self::Load => "load",
            Self::CopyIn => "copy_in",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Compute => "compute",
            Self::CopyOut => "copy_out",
            Self::CommWait => "comm_wait",
            Self::CommCpu => "comm_cpu",
            Self::Update => "update",
            Self::Idle => "idle",
            Self::Eval => "eval",
            Self::Checkpoint => "checkpoint",
            Self::Recovery => "recovery",
            Self::Tail => "tail",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Time by phase. In a log only phases that took time are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes([Nanos; Phase::ALL.len()]);

impl PhaseTimes {
    /// Time of all phases together.
    pub fn total(&self) -> Nanos {
        self.0.iter().copied().sum()
    }

    /// Phases that took time, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Phase, Nanos)> + '_ {
        Phase::ALL.into_iter().map(|phase| (phase, self[phase])).filter(|&(_, time)| time > Nanos(0))
    }
}

impl Index<Phase> for PhaseTimes {
    type Output = Nanos;

    fn index(&self, phase: Phase) -> &Nanos {
        &self.0[phase as usize]
    }
}

impl IndexMut<Phase> for PhaseTimes {
    fn index_mut(&mut self, phase: Phase) -> &mut Nanos {
        &mut self.0[phase as usize]
    }
}

impl AddAssign for PhaseTimes {
    fn add_assign(&mut self, other: Self) {
        for (time, more) in self.0.iter_mut().zip(other.0) {
            *time += more;
        }
    }
}

impl Add for PhaseTimes {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl Serialize for PhaseTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (phase, time) in self.iter() {
            map.serialize_entry(phase.name(), &time)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for PhaseTimes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;

        impl<'de> Visitor<'de> for Map {
            type Value = PhaseTimes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("nanoseconds by phase")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PhaseTimes, A::Error> {
                let mut times = PhaseTimes::default();
                while let Some((phase, time)) = map.next_entry::<Phase, Nanos>()? {
                    times[phase] += time;
                }
                Ok(times)
            }
        }

        deserializer.deserialize_map(Map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_written_as_it_is_named() {
        for phase in Phase::ALL {
            let json = serde_json::to_string(&phase).expect("a phase is plain data");
            assert_eq!(json, format!("\"{phase}\""));
        }
    }

    #[test]
    fn times_are_added_phase_by_phase() {
        let mut times = PhaseTimes::default();
        times[Phase::Forward] = Nanos(3);
        let mut more = PhaseTimes::default();
        more[Phase::Forward] = Nanos(4);
        more[Phase::Update] = Nanos(5);
        times += more;
        assert_eq!(times.iter().collect::<Vec<_>>(), [(Phase::Forward, Nanos(7)), (Phase::Update, Nanos(5))]);
        assert_eq!((times + more).total(), Nanos(21));
    }

    #[test]
    fn times_leave_out_phases_that_took_none_and_come_back_whole() {
        let mut times = PhaseTimes::default();
        times[Phase::CopyIn] = Nanos(5);
        times[Phase::Forward] = Nanos(7);
        let json = serde_json::to_string(&times).expect("times are plain data");
        assert_eq!(json, r#"{"copy_in":5,"forward":7}"#);
        assert_eq!(serde_json::from_str::<PhaseTimes>(&json).expect("own output"), times);
        assert_eq!(times.total(), Nanos(12));
    }
}
