use paceline_record::log::{LauncherLog, RankLog, WorkerHeader};
use paceline_record::{Bytes, LauncherHeader, Nanos, Outcome, Phase, Rank, RankHeader, Step, StepRecord};

use super::*;
use crate::origin::Traced;
use crate::stats::steady::Verdict;

const MS: u64 = 1_000_000;

/// A rank that starts its main at 10 ms and its first step at 100 ms, and whose steps take the given milliseconds, of
/// which 3/10 are forward, 5/10 backward and 1/10 update.
fn rank(rank: u32, world: u32, steps: &[u64]) -> RankLog {
    let mut begin = Nanos(100 * MS);
    let step = |(number, &ms): (usize, &u64)| {
        let mut step = StepRecord::open(Step(number as u64), begin);
        step.book(Phase::Forward, Nanos(ms * MS * 3 / 10));
        step.book(Phase::Backward, Nanos(ms * MS * 5 / 10));
        step.book(Phase::Update, Nanos(ms * MS / 10));
        step.end = begin + Nanos(ms * MS);
        step.examples = 64;
        step.loss = Some(2.0 - 0.5 * number as f32);
        begin = step.end;
        step
    };
    RankLog {
        header: WorkerHeader::Rank(RankHeader::new(Rank(rank), world)),
        main: Some(Nanos(10 * MS)),
        planned: Some(Bytes(1000)),
        steps: steps.iter().enumerate().map(step).collect(),
        evaluations: Vec::new(),
        recoveries: Vec::new(),
        faults: Vec::new(),
        notes: Vec::new(),
        done: None,
        peak_resident: Some(Bytes(2000 + u64::from(rank))),
        shared: Some(Bytes(500)),
        peak_device: None,
    }
}

fn run(ranks: Vec<RankLog>, last_reap: u64) -> Run {
    let case = Case { model: "resnet50".into(), workers: ranks.len() as u32, ..Case::default() };
    let launcher = LauncherLog {
        header: LauncherHeader::new(case),
        first_spawn: Some(Nanos(0)),
        last_reap: Some(Nanos(last_reap * MS)),
        membership: Vec::new(),
        over: Some((Outcome::Done, None)),
    };
    Run::new(launcher, ranks, Default::default())
}

fn near(got: Option<f64>, expected: f64) -> bool {
    got.is_some_and(|got| (got - expected).abs() < 1e-9)
}

#[test]
fn one_worker_s_numbers_are_those_of_its_log() {
    let report = CaseReport::of(&[run(vec![rank(0, 1, &[50, 40, 20, 20])], 250)]);
    assert!(near(report.init_s, 0.1));
    assert!(near(report.train_s, 0.13));
    assert!(near(report.total_s, 0.25));
    assert_eq!((report.steps, report.examples), (4, Some(256)));
    let rate = report.images_per_s.expect("a finished case has a rate");
    assert!(near(Some(rate.mean), 3200.0) && near(Some(rate.median), 3200.0));
    assert!(near(rate.lo, 3200.0) && near(rate.hi, 3200.0));
    let steady = report.steady.expect("steps");
    assert_eq!(steady.from_step, 2);
    assert_eq!(steady.verdict, Verdict::TooShort);
    assert_eq!((report.loss_first, report.loss_last), (Some(2.0), Some(0.5)));
    assert_eq!(report.peak_memory_bytes.map(|m| m.per_worker), Some(Bytes(2000)));
}

#[test]
fn phases_tile_the_whole_run() {
    let report = CaseReport::of(&[run(vec![rank(0, 1, &[50, 40, 20, 20])], 250)]);
    let phases = report.phases_s.expect("a finished case has phases");
    assert_eq!(phases.len(), Phase::ALL.len());
    for (phase, expected) in [
        (Phase::Launch, 0.010),
        (Phase::Init, 0.090),
        (Phase::Forward, 0.039),
        (Phase::Backward, 0.065),
        (Phase::Update, 0.013),
        (Phase::Load, 0.0),
        (Phase::Tail, 0.020),
        (Phase::Other, 0.013),
    ] {
        assert!(near(Some(phases[&phase]), expected), "{phase}: {}", phases[&phase]);
    }
    assert!(near(Some(phases.values().sum()), 0.25));
}

#[test]
fn phases_of_several_ranks_sum_to_ranks_times_the_span() {
    let ranks = vec![rank(0, 2, &[30, 20, 20]), rank(1, 2, &[20, 20, 25])];
    let report = CaseReport::of(&[run(ranks, 200)]);
    let phases = report.phases_s.expect("a finished case has phases");
    assert!(near(Some(phases.values().sum()), 0.4));
    assert_eq!(report.comm_busy_s, Some(0.0));
    assert_eq!(report.overlap, None, "without communication nothing is hidden");
    let memory = report.peak_memory_bytes.expect("both ranks told");
    assert_eq!((memory.per_worker, memory.total), (Bytes(1751), Bytes(3501)), "what is shared counts once");
}

#[test]
fn waiting_is_split_and_overlap_is_what_did_not_show() {
    let mut ranks = vec![rank(0, 2, &[50, 50]), rank(1, 2, &[50, 50])];
    for log in &mut ranks {
        for step in &mut log.steps {
            step.book(Phase::CommWait, Nanos(3 * MS));
            step.book(Phase::CommCpu, Nanos(MS));
            step.late_rank = Nanos(2 * MS);
            step.comm_busy = Nanos(16 * MS);
            step.overlapped = Some(Nanos(12 * MS));
        }
    }
    let mut untold = ranks.clone();
    untold[1].steps[1].overlapped = None;
    assert_eq!(CaseReport::of(&[run(untold, 250)]).overlap, None, "one step does not tell");
    let report = CaseReport::of(&[run(ranks, 250)]);
    let split = report.comm_wait_split_s.expect("a finished case");
    assert!(near(Some(split.late_rank), 0.008) && near(Some(split.transfer), 0.004));
    assert!(near(report.comm_busy_s, 0.064));
    assert!(near(report.overlap, 0.75));
}

#[test]
fn rates_of_independent_ranks_are_summed() {
    let mut alone = run(vec![rank(0, 2, &[20; 4]), rank(1, 2, &[40; 4])], 400);
    alone.launcher.header.case.update = Some("independent".into());
    let rate = CaseReport::of(&[alone]).images_per_s.expect("a rate");
    assert!(near(Some(rate.mean), 64.0 / 0.02 + 64.0 / 0.04), "{}", rate.mean);
}

#[test]
fn a_global_step_ends_when_its_last_rank_does() {
    let steps = run(vec![rank(0, 2, &[30, 20]), rank(1, 2, &[20, 45])], 200).global_steps();
    assert_eq!(steps.len(), 2);
    assert!(near(Some(steps[0].seconds), 0.030));
    assert!(near(Some(steps[1].seconds), 0.035));
    assert_eq!(steps[1].amount, 128.0);
}

#[test]
fn even_one_step_has_a_rate_but_no_interval() {
    let report = CaseReport::of(&[run(vec![rank(0, 1, &[50])], 250)]);
    let rate = report.images_per_s.expect("a finished case has a rate");
    assert!(near(Some(rate.mean), 1280.0));
    assert_eq!((rate.lo, rate.hi), (None, None));
}

#[test]
fn a_failed_run_keeps_only_what_is_certain() {
    let mut failed = run(vec![rank(0, 1, &[50, 40])], 250);
    failed.launcher.over = Some((Outcome::Failed, Some("killed".into())));
    let report = CaseReport::of(&[failed]);
    assert_eq!(report.status, Status::Failed);
    assert_eq!(report.reason.as_deref(), Some("killed"));
    assert_eq!(report.steps, 2);
    assert!(near(report.total_s, 0.25));
    assert_eq!(report.images_per_s, None);
    assert_eq!(report.phases_s, None);
}

#[test]
fn a_launcher_that_died_is_a_failure() {
    let mut lost = run(vec![rank(0, 1, &[50])], 250);
    lost.launcher.over = None;
    lost.launcher.last_reap = None;
    let report = CaseReport::of(&[lost]);
    assert_eq!(report.status, Status::Failed);
    assert!(report.reason.is_some());
    assert_eq!(report.total_s, None);
}

#[test]
fn a_short_window_counts_from_its_first_step_on() {
    let mut window = run(vec![rank(0, 1, &[50, 40, 20, 20])], 230);
    window.launcher.header.window = true;
    let report = CaseReport::of(&[window]);
    assert_eq!(report.steady.map(|steady| (steady.from_step, steady.verdict)), Some((0, Verdict::TooShort)));
    assert!(near(report.images_per_s.map(|rate| rate.mean), 256.0 / 0.13));
    assert_eq!(crate::words::steady(&report).as_deref(), Some("too short to tell: 4 steps, all counted"));
}

#[test]
fn a_rate_of_no_examples_is_not_known() {
    let mut uncounted = rank(0, 1, &[20; 4]);
    uncounted.steps.iter_mut().for_each(|step| step.examples = 0);
    let report = CaseReport::of(&[run(vec![uncounted], 250)]);
    assert_eq!((report.images_per_s, report.fixed, report.computation_s), (None, None, None));
    let cost = report.cost.expect("time was spent");
    assert!(near(Some(cost.seconds), 0.25 / 4.0), "by the step: {}", cost.seconds);
}

#[test]
fn a_rank_that_saves_while_the_others_go_on_is_not_the_slowest() {
    let mut ranks = vec![rank(0, 2, &[20; 4]), rank(1, 2, &[20; 4])];
    // Rank 0 saves for 7 ms after its second step; rank 1 takes 2 ms longer for that step, and waits in the next.
    for (log, ends) in ranks.iter_mut().zip([[120, 147, 167, 187], [120, 142, 167, 187]]) {
        let mut begin = Nanos(100 * MS);
        for (step, end) in log.steps.iter_mut().zip(ends) {
            (step.begin, step.end) = (begin, Nanos(end * MS));
            begin = step.end;
        }
    }
    ranks[0].steps[1].book(Phase::Checkpoint, Nanos(7 * MS));
    ranks[1].steps[2].book(Phase::CommWait, Nanos(5 * MS));
    let run = run(ranks, 250);
    let steps: Vec<f64> = run.global_steps().iter().map(|step| 1e3 * step.seconds).collect();
    for (got, expected) in steps.iter().zip([20.0, 22.0, 20.0, 20.0]) {
        assert!((got - expected).abs() < 1e-9, "{steps:?}");
    }
    let report = CaseReport::of(&[run]);
    assert!(near(report.paused_s, 0.005), "what the slower rank did not need: {:?}", report.paused_s);
    assert!(near(report.train_s, 0.087));
    let slowest = report.dispersion.and_then(|spread| spread.slowest).expect("two ranks");
    assert_eq!(slowest.who, Who::Rank(Rank(1)));
}

#[test]
fn ranks_of_traces_keep_their_numbers_and_one_alone_does_not_know_who_was_late() {
    let mut report = CaseReport::of(&[run(vec![rank(0, 2, &[20, 20]), rank(1, 2, &[30, 30])], 250)]);
    report.straggler =
        Some(Straggler { who: Who::Rank(Rank(1)), fraction: 1.0, steps_fraction: 1.0, work_ratio: None });
    let traced = Traced { numbers: vec![Rank(1), Rank(3)], ..Traced::default() };
    let phases = vec![Phase::Forward, Phase::CommWait];
    let origin = Origin { traced: Some(traced), phases, ..Origin::new(None) };
    report.imported_from(origin.clone());
    assert_eq!(report.straggler.map(|late| late.who), Some(Who::Rank(Rank(3))));
    let ranks: Vec<Who> = report.ranks.iter().flatten().map(|rank| rank.who).collect();
    assert_eq!(ranks, [Who::Rank(Rank(1)), Who::Rank(Rank(3))]);
    let causes: Vec<_> = report.cost.iter().flat_map(|cost| &cost.parts).map(|part| part.cause).collect();
    assert!(!causes.contains(&waterfall::Cause::OffCore), "{causes:?}");

    let mut alone = CaseReport::of(&[run(vec![rank(0, 1, &[20, 20])], 250)]);
    assert!(alone.comm_wait_split_s.is_some());
    alone.case.settings.insert("ranks".into(), "1 of 4".into());
    alone.imported_from(origin);
    assert_eq!(alone.comm_wait_split_s, None);
}
