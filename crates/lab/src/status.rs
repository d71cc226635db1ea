//! How a case stands: how it ended, or how far it has come.

use std::fmt;

use paceline_record::{LauncherEvent, Member, Outcome};
use serde::Serialize;

use crate::Run;

/// How a case stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All ranks did all their steps.
    Done,
    /// A rank failed, or the launcher is gone.
    Failed,
    /// The user stopped it.
    Interrupted,
    /// Its launcher is at work.
    Running,
}

impl Status {
    /// Its name, as in `report.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Running => "running",
        }
    }
}

impl From<Outcome> for Status {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::Done,
            Outcome::Failed => Self::Failed,
            Outcome::Interrupted => Self::Interrupted,
        }
    }
}

/// How far a running case had come when its logs were read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SoFar {
    /// Steps done, those before it was resumed too.
    pub step: u64,
    /// Steps asked for.
    pub of_steps: Option<u64>,
    /// First spawn to the end of the last of these steps; `None` before the first step.
    pub seconds: Option<f64>,
    /// Who takes part, where workers come and go.
    pub members: Option<Vec<Member>>,
}

impl SoFar {
    /// Of a run whose logs have no end yet.
    pub(crate) fn of(run: &Run) -> Self {
        let seconds = |run: &Run| Some(run.training()?.end.since(run.launcher.first_spawn?).seconds());
        let rosters = run.launcher.membership.iter().rev();
        let members = rosters.filter_map(|event| match event {
            LauncherEvent::Roster(roster) => Some(roster.members.clone()),
            _ => None,
        });
        Self {
            step: run.steps().checked_sub(1).and_then(|last| run.number(last)).map_or(0, |last| last.0 + 1),
            of_steps: run.asked,
            seconds: seconds(run),
            members: { members }.next(),
        }
    }
}

impl fmt::Display for SoFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, of_steps, seconds, members } = self;
        let of = of_steps.map_or_else(String::new, |steps| format!(" of {steps}"));
        match seconds {
            Some(seconds) => write!(f, "step {step}{of} done {seconds:.1} s after the start")?,
            None => write!(f, "no step{of} is done yet")?,
        }
        if let Some(members) = members {
            let names: Vec<String> = members.iter().map(ToString::to_string).collect();
            let noun = if names.len() == 1 { "member" } else { "members" };
            write!(f, " with {noun} {}", names.join(", "))?;
        }
        Ok(())
    }
}
