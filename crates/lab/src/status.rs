//! How a case stands: how it ended, or how far it has come.

use std::fmt;

use paceline_record::{LauncherEvent, Member, Outcome};
use serde::Serialize;

use crate::Run;

/// How a case stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All ranks did all their steps.
    Done,
    /// A rank failed, or the launcher is gone.
    #[default]
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
    /// Samples so far over the time from the begin of the first step to the end of the last, pauses included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images_per_s: Option<f64>,
    /// Loss of the last of these steps, if it was logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
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
        let rate = |run: &Run| {
            let seconds = run.training()?.seconds();
            (seconds > 0.0).then(|| run.examples() as f64 / seconds)
        };
        Self {
            step: run.steps().checked_sub(1).and_then(|last| run.number(last)).map_or(0, |last| last.0 + 1),
            of_steps: run.asked,
            seconds: seconds(run),
            images_per_s: rate(run),
            loss: run.steps().checked_sub(1).and_then(|last| run.loss(last)),
            members: { members }.next(),
        }
    }
}

impl fmt::Display for SoFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, of_steps, seconds, images_per_s, loss, members } = self;
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
        if let Some(rate) = images_per_s {
            write!(f, ", {rate:.1} images/s so far")?;
        }
        if let Some(loss) = loss {
            write!(f, ", loss {loss:.4}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::learning_plans;

    #[test]
    fn a_running_case_tells_its_speed_and_loss_so_far() {
        let mut run = learning_plans()[0].run();
        (run.launcher.over, run.is_held) = (None, true);
        let so_far = SoFar::of(&run);
        let rate = so_far.images_per_s.expect("a rate");
        let loss = so_far.loss.expect("a loss");
        let told = so_far.to_string();
        assert!(
            rate > 0.0 && told.ends_with(&format!(", {rate:.1} images/s so far, loss {loss:.4}")),
            "{told}"
        );
        run.ranks.iter_mut().for_each(|rank| rank.steps.clear());
        assert!(
            SoFar::of(&run).to_string().ends_with("is done yet"),
            "before the first step nothing is known"
        );
    }
}
