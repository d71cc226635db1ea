//! The result of a study in a line or two, before everything else.

use crate::numbers::speedup::{Interval, Speedup};
use crate::numbers::waterfall::{Part, Waterfall};
use crate::stats::steady::Verdict;
use crate::training::{RESUMED, trainings};
use crate::{CaseReport, Explained, Report};

/// Most groups that have a line.
const GROUPS: usize = 4;

/// Most causes that a line names.
const CAUSES: usize = 3;

/// A cause is named from this fraction of what was lost.
const NAMED: f64 = 0.1;

/// The causes named together explain at least this fraction of what was lost.
const EXPLAINED: f64 = 0.5;

/// Where less than this fraction of the cost of an example was lost, there is nothing to explain.
const LOST: f64 = 0.02;

/// What a study found: for each group, the speed-up of its largest case and what kept it from the ideal, and what a training
/// reached. Of many groups only the first have a line. A group without a finished one-worker case has no speed-up.
pub fn verdict(report: &Report) -> Vec<String> {
    let told: Vec<String> = report.explained.iter().flat_map(|group| tell(report, group)).collect();
    told.into_iter().take(GROUPS).collect()
}

fn tell(report: &Report, group: &Explained) -> Vec<String> {
    let name = match report.explained.len() {
        1 => String::new(),
        _ => format!("{}, ", group.key.label()),
    };
    let cases = group.cases.iter().filter_map(|&place| report.cases.get(place));
    let largest = cases.filter(|case| case.is_told()).max_by_key(|case| case.case.workers);
    let Some(case) = largest else { return Vec::new() };
    let of_case = |speedup: &&Speedup| speedup.workers == case.case.workers && speedup.workers > 1;
    let speedup = group.speedups.iter().find(of_case);
    let fall = group.waterfalls.iter().find(|fall| fall.workers == case.case.workers);
    let scaled = speedup.map(|speedup| format!("{name}{}", scale(case, speedup, fall)));
    // Of a training that was resumed the last run tells, and if it is the only one it needs no name.
    let trainings = trainings(report);
    let resumed = trainings.iter().any(|training| {
        let [before @ .., _] = &training[..] else { return false };
        before.iter().any(|stretch| std::ptr::eq(&report.cases[stretch.case], case))
    });
    let name = if trainings.len() == 1 { String::new() } else { name };
    let learned = learn(case).filter(|_| !resumed).map(|learned| format!("{name}{learned}"));
    scaled.into_iter().chain(learned).collect()
}

fn scale(case: &CaseReport, speedup: &Speedup, fall: Option<&Waterfall>) -> String {
    let Speedup { speed, total, .. } = *speedup;
    let within = case.speedup_speed_interval;
    let within = within.map_or_else(String::new, |Interval { lo, hi }| format!(" [{lo:.2} .. {hi:.2}]"));
    let whole = total.map_or_else(String::new, |total| format!(", {total:.2}x for the whole run"));
    let few = case.steady.is_some_and(|steady| steady.verdict == Verdict::TooShort) && !case.is_window();
    let rest = total.and(fall).filter(|_| !few).and_then(rest).unwrap_or_default();
    format!("{}: {speed:.2}x{within} by images/s{whole}{rest}", case.workers_said())
}

/// What the difference to the ideal went to. Only causes that are certain to cost something are named.
fn rest(fall: &Waterfall) -> Option<String> {
    // As in the table of causes, of which some may be negative.
    let lost = fall.to_s - fall.from_s;
    if lost < LOST * fall.to_s {
        return None;
    }
    let certain = |part: &&Part| part.lo.unwrap_or(part.seconds) > 0.0 && part.seconds >= NAMED * lost;
    let mut causes: Vec<&Part> = fall.parts.iter().filter(certain).collect();
    causes.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    causes.truncate(CAUSES);
    // Where most of it is not certain, a part of it would pass for the whole.
    if causes.iter().map(|part| part.seconds).sum::<f64>() < EXPLAINED * lost {
        return None;
    }
    let percent = |part: &&Part| (100.0 * part.seconds / lost).round();
    // Where others made up for a part of it, they are more than all that was lost.
    let is_whole = causes.iter().map(percent).sum::<f64>() <= 100.0;
    let name = |part: &&Part| match is_whole {
        true => format!("{} ({:.0} %)", part.cause.name(), percent(part)),
        false => part.cause.name().into(),
    };
    let named: Vec<String> = causes.iter().map(name).collect();
    Some(format!("; the rest went to {}", named.join(", ")))
}

/// What a training reached, and in what time.
fn learn(case: &CaseReport) -> Option<String> {
    let test = case.learning.as_ref()?.test?;
    let reached = match (test.accuracy, test.lo.zip(test.hi), test.loss) {
        (Some(accuracy), Some((lo, hi)), _) => {
            format!("test accuracy {:.1} % [{:.1} .. {:.1}]", 100.0 * accuracy, 100.0 * lo, 100.0 * hi)
        }
        (Some(accuracy), None, _) => format!("test accuracy {:.1} %", 100.0 * accuracy),
        (None, _, Some(loss)) => format!("test loss {loss:.4}"),
        _ => return None,
    };
    let after = match test.epoch {
        Some(epoch) => format!("{} epochs", short(epoch)),
        None => format!("{} steps", test.steps),
    };
    let rate = case.images_per_s.map_or_else(String::new, |rate| format!(", {:.0} images/s", rate.mean));
    // Its epochs count from the begin of the training, its time from where this run began.
    let since = match case.case.settings.get(RESUMED) {
        Some(step) => format!("since it was resumed at step {step}"),
        None => "of training".into(),
    };
    let time = case.train_s.map_or_else(String::new, |seconds| format!(", {} {since}", duration(seconds)));
    Some(format!("{}: {reached} after {after}{time}{rate}", case.workers_said()))
}

/// A count of epochs with at most two decimals.
fn short(epochs: f64) -> String {
    format!("{}", (100.0 * epochs).round() / 100.0)
}

/// A time in the largest unit that it fills.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, Plan, report_on};
    use crate::numbers::waterfall::Cause;

    fn part(cause: Cause, seconds: f64, within: Option<(f64, f64)>) -> Part {
        Part { cause, seconds, lo: within.map(|(lo, _)| lo), hi: within.map(|(_, hi)| hi) }
    }

    #[test]
    fn a_study_is_summed_up_by_its_largest_case_and_what_it_lost() {
        let mut report = report_on(&[Plan::calm("resnet50", 1), Plan::calm("resnet50", 2)]);
        let fall = &mut report.explained[0].waterfalls[0];
        (fall.from_s, fall.to_s) = (1.0, 1.5);
        fall.parts = vec![
            part(Cause::StartUp, 0.12, None),
            part(Cause::Computation, -0.1, Some((-0.2, 0.0))),
            part(Cause::Communication, 0.3, Some((0.2, 0.4))),
            part(Cause::Stragglers, 0.18, Some((-0.1, 0.3))),
        ];
        let (speed, total) = (report.cases[1].speedup_speed, report.cases[1].speedup_total);
        let within = report.cases[1].speedup_speed_interval.expect("many steps");
        let said = verdict(&report);
        assert_eq!(said.len(), 1, "{said:?}");
        let begin =
            format!("2 workers: {:.2}x [{:.2} .. {:.2}]", speed.expect("compared"), within.lo, within.hi);
        assert!(said[0].starts_with(&begin), "{}", said[0]);
        let end = format!(
            "by images/s, {:.2}x for the whole run; the rest went to exposed communication (60 %), start-up (24 %)",
            total.expect("compared")
        );
        assert!(said[0].ends_with(&end), "what may be nothing is not named: {}", said[0]);
    }

    #[test]
    fn a_small_certain_part_does_not_pass_for_the_whole() {
        let mut report = report_on(&[Plan::calm("resnet50", 1), Plan::calm("resnet50", 2)]);
        let fall = &mut report.explained[0].waterfalls[0];
        (fall.from_s, fall.to_s) = (1.0, 1.5);
        fall.parts = vec![
            part(Cause::Computation, 0.43, Some((-0.1, 0.9))),
            part(Cause::Stragglers, 0.07, Some((0.05, 0.09))),
        ];
        assert!(verdict(&report)[0].ends_with("for the whole run"), "{:?}", verdict(&report));
    }

    #[test]
    fn causes_that_others_made_up_for_have_no_percentages() {
        let mut report = report_on(&[Plan::calm("resnet50", 1), Plan::calm("resnet50", 2)]);
        let fall = &mut report.explained[0].waterfalls[0];
        (fall.from_s, fall.to_s) = (1.0, 1.5);
        fall.parts = vec![part(Cause::Communication, 0.8, None), part(Cause::Computation, -0.3, None)];
        assert!(
            verdict(&report)[0].ends_with("; the rest went to exposed communication"),
            "{:?}",
            verdict(&report)
        );
    }

    #[test]
    fn nothing_is_explained_where_next_to_nothing_was_lost() {
        let mut report = report_on(&[Plan::calm("resnet50", 1), Plan::calm("resnet50", 2)]);
        let fall = &mut report.explained[0].waterfalls[0];
        (fall.from_s, fall.to_s) = (1.0, 1.01);
        fall.parts = vec![part(Cause::StartUp, 0.01, None)];
        assert!(verdict(&report)[0].ends_with("for the whole run"), "{:?}", verdict(&report));
    }

    #[test]
    fn without_a_single_worker_there_is_no_speedup_to_tell() {
        assert_eq!(verdict(&report_on(&[Plan::calm("resnet50", 2), Plan::calm("resnet50", 4)])), [""; 0]);
        assert_eq!(verdict(&report_on(&[Plan::calm("resnet50", 1)])), [""; 0]);
    }

    #[test]
    fn a_training_is_summed_up_by_its_last_test() {
        let said = verdict(&report_on(&fixture::learning_plans()));
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("4 workers: ") && said[0].contains("] by images/s"), "{}", said[0]);
        assert!(
            said[1].starts_with("4 workers: test accuracy 58.0 % [57.0 .. 59.0] after 3 epochs, "),
            "{}",
            said[1]
        );
    }

    #[test]
    fn groups_are_named_where_there_are_several() {
        let plans = ["a", "b", "c", "d", "e"].map(|name| [Plan::calm(name, 1), Plan::calm(name, 2)]);
        let said = verdict(&report_on(&plans.concat()));
        assert_eq!(said.len(), GROUPS);
        assert!(said[0].starts_with("a, 2 workers: ") && said[3].starts_with("d, 2 workers: "), "{said:?}");
    }
}
