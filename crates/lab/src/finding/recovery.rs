//! What lost workers cost.

use paceline_record::Exit;

use super::{Finding, Kind, Loss, Member};
use crate::numbers::recovery::{Recovery, What};

/// A part of the cost is named if it is more than this fraction of it.
const MOST_OF_IT: f64 = 0.5;

/// The signal that ends a process whatever it does.
const KILL: i32 = 9;

impl Member<'_> {
    /// Reported whenever a worker was lost, however little that cost.
    pub(super) fn recovery(&self) -> Option<Finding> {
        let recovery = self.case.recovery.as_ref()?;
        let cost = recovery.worker_s;
        if recovery.losses + recovery.expulsions == 0 || cost.sum <= 0.0 {
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
            "with {}, {}{repeat} cost {percent} % of the workers' time{}",
            self.worker_count(),
            count_losses(recovery),
            self.seconds(loss.seconds, digits)
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
                "; steps with fewer workers than before took {slower:.2} s longer in all"
            ));
        }
        Some(self.finding(Kind::Recovery, text, advise(recovery).into(), Some(loss)))
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
    ];
    let named = counts.into_iter().filter(|&(count, ..)| count > 0);
    let named = named.map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many }));
    named.collect::<Vec<_>>().join(" and ")
}

fn advise(recovery: &Recovery) -> &'static str {
    let mut ends = recovery.events.iter().filter(|event| matches!(event.what, What::Lost | What::Expelled));
    if recovery.more_events == 0 && ends.all(|event| event.planted.is_some()) {
        return "every loss was planted with --faults: without faults this time would not be lost";
    }
    "find out why workers were lost: the table of events says when and how each ended"
}
