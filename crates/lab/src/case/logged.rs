//! A case of which only the points of a log are known.

use paceline_record::Case;

use super::CaseReport;
use crate::numbers::steady::{self, Records};
use crate::numbers::{dispersion, rate, series};
use crate::origin::Progress;
use crate::stats::steady::Verdict;
use crate::{LabError, Status};

impl CaseReport {
    /// The numbers of a case from its log: its rate, and its times if the log has them. Ranks and phases are unknown.
    pub(crate) fn logged(case: &Case, progress: &Progress) -> Self {
        let steps = progress.work();
        if steps.iter().any(|work| !(work.seconds > 0.0 && work.seconds.is_finite() && work.amount >= 0.0)) {
            let why = "a point has neither a rate nor a time".into();
            return Self::unreadable(
                case,
                &LabError::BadFile { path: crate::origin::ORIGIN_FILE.into(), why },
            );
        }
        let timed = progress.is_timed();
        let records = Records::new(&steps, progress.points.iter().map(|point| point.covers.max(1)).collect());
        let mut state = steady::find(&records.means);
        // A log does not say what came before it, so its first points are like the others.
        if state.verdict == Verdict::TooShort {
            state.from = 0;
        }
        let settled = &steps[state.from..];
        let spread =
            (timed && records.are_steps()).then(|| dispersion::dispersion(&[], &[settled])).flatten();
        let covers = records.steps() as f64 / records.covers.len().max(1) as f64;
        let times =
            |points| timed.then(|| series::series(&records.means, covers.round().max(1.0) as u64, points));
        let examples = steps.iter().map(|work| work.amount).sum::<f64>().round() as u64;
        let loss =
            |point: Option<&crate::origin::LogPoint>| point.and_then(|point| point.loss).map(f64::from);
        let mut report = Self {
            repeats: 1,
            steps: progress.steps(),
            examples: Some(examples).filter(|&examples| timed && examples > 0),
            train_s: timed.then(|| steps.iter().map(|work| work.seconds).sum()),
            images_per_s: rate::rate(&[settled]),
            dispersion: spread,
            steady: steady::sum_up(std::slice::from_ref(&state), std::slice::from_ref(&records)),
            step_times: times(series::MOST),
            step_detail: times(series::MOST_DETAIL),
            loss_first: loss(progress.points.first()),
            loss_last: loss(progress.points.last()),
            steady_steps: vec![settled.to_vec()],
            ..Self::empty(Status::Done, case)
        };
        if let Some(steady) = &mut report.steady {
            steady::judge_spread(steady, spread.as_ref(), report.steps);
            if !timed && let Some(slowdown) = &mut steady.slowdown {
                slowdown.lost_s = None;
            }
        }
        report
    }
}
