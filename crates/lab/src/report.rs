//! All cases of a study side by side: what `report.json` holds.

use paceline_record::Outcome;
use serde::Serialize;

use crate::{CaseReport, SCHEMA};

/// Every number of a study's report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Version of this form.
    pub schema: u32,
    /// One for each case, in the order of the study.
    pub cases: Vec<CaseReport>,
    /// One waterfall for each group of cases that differ only in workers; one case alone has nothing to explain.
    pub explained: [(); 0],
}

impl Report {
    /// Sets cases side by side. Speed-ups are against the one-worker case of the same study, where there is one.
    pub fn new(mut cases: Vec<CaseReport>) -> Self {
        let done = cases.iter().filter(|case| case.status == Outcome::Done);
        let ones: Vec<CaseReport> = done.filter(|c| c.case.workers == 1).cloned().collect();
        for case in &mut cases {
            if let Some(one) = ones.iter().find(|one| one.same_but_workers(case)) {
                case.compare(one);
            }
        }
        Self { schema: SCHEMA, cases, explained: [] }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use paceline_record::Case;

    use super::*;
    use crate::{Rate, Run};

    /// A case that processed a thousand examples at the given rate.
    pub(crate) fn case(workers: u32, rate: f64, train_s: f64) -> CaseReport {
        let empty = Run {
            launcher: paceline_record::log::LauncherLog {
                header: paceline_record::LauncherHeader {
                    case: Case { model: "resnet50".into(), workers, ..Case::default() },
                },
                first_spawn: None,
                last_reap: None,
                over: Some((Outcome::Done, None)),
            },
            ranks: Vec::new(),
        };
        CaseReport {
            examples: 1000,
            images_per_s: Some(Rate { median: rate, mean: rate, lo: Some(rate - 1.0), hi: Some(rate + 1.0) }),
            train_s: Some(train_s),
            total_s: Some(train_s + 1.0),
            ..CaseReport::of(&empty)
        }
    }

    #[test]
    fn one_worker_is_as_fast_as_itself() {
        let report = Report::new(vec![case(1, 100.0, 10.0)]);
        let one = &report.cases[0];
        for ratio in [
            one.speedup_speed,
            one.speedup_time,
            one.speedup_total,
            one.efficiency_speed,
            one.efficiency_time,
        ] {
            assert_eq!(ratio, Some(1.0));
        }
    }

    #[test]
    fn speedups_compare_with_the_one_worker_case() {
        let report = Report::new(vec![case(1, 100.0, 10.0), case(2, 180.0, 6.0)]);
        let two = &report.cases[1];
        assert_eq!(two.speedup_speed, Some(1.8));
        assert_eq!(two.efficiency_speed, Some(0.9));
        assert!((two.speedup_time.expect("both have times") - 10.0 / 6.0).abs() < 1e-12);
        assert!((two.speedup_total.expect("both have times") - 11.0 / 7.0).abs() < 1e-12);
    }

    #[test]
    fn without_a_one_worker_case_there_is_no_speedup() {
        let mut other = case(1, 100.0, 10.0);
        other.case.model = "vgg_19".into();
        let mut failed = case(1, 100.0, 10.0);
        failed.status = Outcome::Failed;
        let report = Report::new(vec![case(2, 180.0, 6.0), other, failed]);
        assert_eq!(report.cases[0].speedup_speed, None);
        assert_eq!(report.cases[0].efficiency_time, None);
    }

    #[test]
    fn the_json_has_every_field_of_the_contract() {
        let report = Report::new(vec![case(1, 100.0, 10.0)]);
        let json = serde_json::to_value(&report).expect("a report is plain data");
        assert_eq!(json["explained"], serde_json::json!([]));
        let case = json["cases"][0].as_object().expect("an object");
        for field in "status reason model engine layout precision update scaling workers \
            batch_per_worker threads input classes examples steps init_s train_s total_s \
            images_per_s speedup_speed speedup_time speedup_total efficiency_speed \
            efficiency_time phases_s comm_wait_split_s comm_busy_s overlap peak_memory_bytes \
            steady loss_first loss_last repeats"
            .split_whitespace()
        {
            assert!(case.contains_key(field), "{field} is missing");
        }
        assert_eq!(case["status"], "done");
    }
}
