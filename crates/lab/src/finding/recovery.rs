//! What lost workers and hosts cost.

use paceline_record::Exit;

use super::{Finding, Kind, Loss, Member};
use crate::numbers::recovery::{Recovery, What};
use crate::{CaseReport, Status};

/// A part of the cost is named if it is more than this fraction of it.
const MOST_OF_IT: f64 = 0.5;

/// The signal that ends a process whatever it does.
const KILL: i32 = 9;

impl Member<'_> {
    /// Reported whenever a worker or a host was lost, however little that cost.
    pub(super) fn recovery(&self) -> Option<Finding> {
        let recovery = self.case.recovery.as_ref()?;
        let cost = recovery.worker_s;
        if recovery.losses + recovery.expulsions + recovery.hosts_lost == 0 || cost.sum <= 0.0 {
            return None;
        }
        let loss = Loss { seconds: cost.sum, fraction: recovery.fraction };
        let percent = match 100.0 * loss.fraction {
            small if small < 0.05 => "less than 0.1".into(),
            percent if percent < 9.95 => format!("{percent:.1}"),
            percent => format!("{percent:.0}"),
        };
        let digits = if loss.seconds < 9.95 { 2 } else { 0 };
        let repeat = match self.case.repeats {
            0 | 1 => String::new(),
            repeats => format!(" (in the first of {repeats} repeats)"),
        };
        let mut text = format!(
            "with {}, {}{repeat} cost {percent} % of the workers' time ({:.digits$} worker-seconds)",
            self.worker_count(),
            count_losses(recovery),
            loss.seconds
        );
        let parts = [
            (cost.replacing, "starting replacements"),
            (cost.waiting, "waiting for the recovery and doing lost work again"),
            (cost.unfinished, "the last, unfinished steps of the lost workers"),
        ];
        if let Some((part, name)) = parts.into_iter().find(|(part, _)| *part > MOST_OF_IT * cost.sum) {
            text.push_str(&format!("; most of it ({:.0} %) was {name}", 100.0 * part / cost.sum));
        }
        if let Some(slower) = recovery.slower_s.filter(|&slower| slower >= 0.005) {
            text.push_str(&format!(
                "; steps with fewer workers than before a loss took {slower:.2} s longer in all"
            ));
        }
        Some(self.finding(Kind::Recovery, text, advise(recovery).into(), Some(loss)))
    }
}

/// A difference below this fraction is not told from none.
const SAME: f64 = 0.005;

impl Member<'_> {
    /// How long a run with planted faults took beside the same run without them.
    pub(super) fn faults(&self) -> Option<Finding> {
        let faults = self.case.case.settings.get("faults").filter(|faults| !faults.is_empty())?;
        let is_twin = |other: &&CaseReport| {
            let mut case = other.case.clone();
            let planted = case.settings.insert("faults".into(), faults.clone());
            other.status == Status::Done
                && planted.is_none_or(|faults| faults.is_empty())
                && case == self.case.case
        };
        let twin = self.cases.iter().find(is_twin)?;
        let (with, without) = (self.case.total_s?, twin.total_s.filter(|&seconds| seconds > 0.0)?);
        let longer = with / without - 1.0;
        let percent = 100.0 * longer.abs();
        let change = match longer {
            _ if longer.abs() < SAME => "about as long".into(),
            _ if longer > 0.0 => format!("{percent:.0} % longer"),
            _ => format!("{percent:.0} % shorter"),
        };
        let digits = if with.min(without) < 9.95 { 2 } else { 1 };
        let text = format!(
            "with {} and {faults}, the run took {with:.digits$} s instead of {without:.digits$} s ({change})",
            self.worker_count()
        );
        let advice = self.program().compared(self.case.repeats.min(twin.repeats));
        Some(self.finding(Kind::Faults, text, advice.into(), None))
    }
}

/// "2 kills and 1 expulsion".
fn count_losses(recovery: &Recovery) -> String {
    let killed = recovery.events.iter().filter(|event| event.exit == Some(Exit::Signal(KILL))).count() as u64;
    // Losses that are not listed may have ended in any way.
    let killed = if recovery.more_events == 0 { killed } else { 0 };
    let counts = [
        (killed, "kill", "kills"),
        (recovery.losses - killed, "lost worker", "lost workers"),
        (recovery.expulsions, "expulsion", "expulsions"),
        (recovery.hosts_lost, "lost host", "lost hosts"),
    ];
    let named = counts.into_iter().filter(|&(count, ..)| count > 0);
    let named = named.map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many }));
    named.collect::<Vec<_>>().join(" and ")
}

fn advise(recovery: &Recovery) -> &'static str {
    let mut ends = recovery.events.iter().filter(|event| matches!(event.what, What::Lost | What::Expelled));
    if recovery.more_events == 0 && ends.all(|event| event.planted.is_some()) {
        return PLANTED;
    }
    NOT_PLANTED
}

pub(super) const PLANTED: &str =
    "every loss was planted with --faults: without faults this time would not be lost";
pub(super) const NOT_PLANTED: &str =
    "find out why they were lost: the table of events says when and how each ended";
