//! Members that are lost, come and go, planted in simulated runs: the report names them and no others, and its numbers add up.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use paceline_lab::numbers::recovery::{Recovery, What};
use paceline_lab::numbers::waterfall::Cause;
use paceline_lab::{CaseReport, Kind, Machine, Planned, Report, Run, SCHEMA, Status, Study};
use paceline_record::{Member, Outcome, Phase, Step};
use paceline_train::launcher::{Surroundings, launch};
use paceline_train::{Bounds, Deal, Elastic, Engines, Job, Length, TrainError};
use proptest::prelude::*;

/// An elastic job of four workers, with these faults on this machine.
fn job(folder: &Path, faults: &str, machine: &str) -> Job {
    let elastic = Elastic::new(Bounds { min: 1, max: 5 });
    let mut job = Job {
        engine: "simulated".into(),
        workers: 4,
        shards: Some(20),
        length: Length::Steps(100),
        scaling: paceline_train::Scaling::Weak { batch: 60 },
        threads_asked: Some(1),
        simulation: machine.parse().expect("known keys"),
        elastic: Some(Elastic { restarts: 100, ..elastic }),
        faults: faults.parse().expect("known faults"),
        folder: folder.into(),
        ..Job::new("mobilenet_v2")
    };
    job.settle(4).expect("a job that adds up");
    job
}

fn attempt(job: &Job) -> Result<(), TrainError> {
    let prepared = job.prepare(&mut Engines::default()).expect("a job that can be simulated");
    let surroundings = Surroundings {
        program: "/nowhere/paceline".into(),
        interrupted: &AtomicBool::new(false),
        load: None,
        meeting: None,
        progress: &mut |_| {},
    };
    launch(job, &prepared, surroundings)
}

fn simulate(job: &Job) -> Run {
    attempt(job).expect("it runs");
    let run = Run::read(&job.folder).expect("whole logs");
    assert_eq!(run.launcher.outcome(), Outcome::Done);
    run
}

fn planted(faults: &str, machine: &str) -> (Run, CaseReport) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = simulate(&job(folder.path(), faults, machine));
    let case = CaseReport::of(std::slice::from_ref(&run));
    assert_adds_up(&run, &case);
    assert_eq!(case.steps, 100);
    (run, case)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-3)
}

fn recovery(case: &CaseReport) -> &Recovery {
    case.recovery.as_ref().expect("an elastic case")
}

/// Phases tile every life, causes sum to all lives, and events to what losses cost.
fn assert_adds_up(run: &Run, case: &CaseReport) {
    let membership = run.membership.as_ref().expect("an elastic run");
    let lives = run.lives_s().expect("lives");
    assert!(near(case.phases_s.as_ref().expect("phases").values().sum(), lives));
    for (rank, life) in case.ranks.as_ref().expect("members").iter().zip(&membership.lives) {
        assert!(near(rank.phases_s.values().sum(), life.span.seconds()), "{}", rank.who);
        assert!(near(rank.phases_s[&Phase::Other], 0.0), "{}: {:?}", rank.who, rank.phases_s);
    }
    let cost = case.cost.as_ref().expect("a cost");
    assert!(near(cost.seconds * case.examples.expect("done") as f64, lives));
    assert!(near(cost.parts.iter().map(|part| part.seconds).sum(), cost.seconds));
    assert!(near(case.mean_workers.expect("a mean") * case.total_s.expect("an end"), lives));
    assert_eq!(case.examples, Some(case.steps * 240));
    let told = recovery(case);
    let part = cost.parts.iter().find(|part| part.cause == Cause::Recovery).expect("a cause");
    assert!(
        near(part.seconds * case.examples.expect("done") as f64, told.worker_s.sum),
        "{part:?} {:?}",
        told.worker_s
    );
    let of_events: f64 = told.events.iter().filter_map(|event| event.cost_s).sum();
    assert!(near(of_events, told.worker_s.sum), "{of_events} of {:?}", told.worker_s);
    let lost: u64 = run.ranks.iter().flat_map(|log| &log.steps).map(|step| step.redone).sum();
    assert_eq!(told.examples_redone, lost);
}

fn happened(case: &CaseReport) -> Vec<(What, Option<Member>, Option<Step>)> {
    recovery(case).events.iter().map(|event| (event.what, event.member, event.step)).collect()
}

fn findings(case: CaseReport) -> Vec<(Kind, String)> {
    let planned = Planned { folder: "case".into(), place: 0, repeat: 1, case: case.case.clone(), steps: 100 };
    let study = Study {
        schema: SCHEMA,
        program: "test".into(),
        command: Vec::new(),
        date: None,
        host: None,
        machine: Machine::default(),
        cases: vec![planned],
    };
    let report = Report::new(&study, vec![case]);
    report.findings.into_iter().map(|finding| (finding.kind, finding.text)).collect()
}

const CALM: &str = "jitter=0.005";

#[test]
fn where_nothing_is_planted_nothing_is_lost() {
    let (run, case) = planted("", CALM);
    let told = recovery(&case);
    assert_eq!((told.losses, told.expulsions, told.joins, told.leaves, told.generations), (0, 0, 0, 0, 1));
    assert_eq!((told.worker_s.sum, told.slower_s, told.examples_redone), (0.0, None, 0));
    assert!(told.events.is_empty());
    assert!(near(run.lives_s().expect("lives"), 4.0 * case.total_s.expect("an end")));
    assert!(near(case.mean_workers.expect("a mean"), 4.0));
    assert_eq!(findings(case), []);
}

#[test]
fn a_kill_is_named_with_what_it_cost() {
    let (_, case) = planted("kill=1@30", "jitter=0,detect=10,fence=40,launch=5,init=2000");
    let told = recovery(&case);
    assert_eq!((told.losses, told.expulsions, told.replacements, told.generations), (1, 0, 1, 3));
    assert_eq!(told.examples_redone, 60, "a quarter of a step");
    assert!(near(told.phases_s.detect, 0.01) && near(told.phases_s.fence, 0.04));
    assert!(told.phases_s.redo > 0.0 && told.slower_s > Some(0.0));
    let happened = happened(&case);
    assert_eq!(happened[0], (What::Lost, Some(Member(1)), Some(Step(30))));
    assert_eq!((happened[1].0, happened[1].1), (What::Started, Some(Member(4))));
    assert_eq!((happened[2].0, happened[2].1), (What::Joined, Some(Member(4))));
    assert_eq!(happened.len(), 3);
    assert_eq!(told.events[0].planted.as_deref(), Some("kill=1@30"));
    assert_eq!(told.events[1].replaces, Some(Member(1)));
    let findings = findings(case);
    let found = findings.iter().find(|(kind, _)| *kind == Kind::Recovery).expect("it is found");
    assert!(found.1.contains("with 4 workers, 1 kill cost "), "{}", found.1);
    assert!(found.1.contains(" %) was starting replacements"), "{}", found.1);
}

#[test]
fn a_long_stop_is_an_expulsion_and_a_short_one_is_not() {
    let (_, case) = planted("stop=2@40:5s", CALM);
    let told = recovery(&case);
    assert_eq!((told.losses, told.expulsions), (0, 1));
    assert!(near(told.phases_s.detect, 1.0), "{:?}", told.phases_s);
    assert_eq!(happened(&case)[0], (What::Expelled, Some(Member(2)), Some(Step(40))));
    assert_eq!(happened(&case)[1].0, What::Started);
    let (_, case) = planted("stop=2@40:0.5s", CALM);
    assert_eq!(happened(&case), [(What::Planted, Some(Member(2)), Some(Step(40)))]);
    assert_eq!(recovery(&case).worker_s.sum, 0.0);
}

#[test]
fn members_that_leave_and_join_cost_no_recovery() {
    let (_, case) = planted("leave=3@20,join@40,slow=0@50:2", CALM);
    let told = recovery(&case);
    assert_eq!((told.losses, told.joins, told.leaves, told.replacements), (0, 1, 1, 0));
    assert_eq!((told.worker_s.sum, told.slower_s), (0.0, None));
    let mean = case.mean_workers.expect("a mean");
    assert!(3.0 < mean && mean < 4.0, "{mean}");
}

#[test]
fn a_slow_member_gets_fewer_shards_where_they_are_dealt_as_members_come() {
    let seconds = |deal| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut job = job(folder.path(), "slow=0@0:3", "jitter=0");
        job.elastic.as_mut().expect("elastic").deal = deal;
        let run = simulate(&job);
        CaseReport::of(&[run]).total_s.expect("an end")
    };
    assert!(seconds(Deal::Dynamic) < 0.6 * seconds(Deal::Static));
}

#[test]
fn a_run_that_loses_everybody_goes_on_with_replacements_or_fails() {
    let everybody = "kill=0@50,kill=1@50,kill=2@50,kill=3@50";
    let (_, case) = planted(everybody, CALM);
    let told = recovery(&case);
    assert_eq!((told.losses, told.replacements, told.examples_redone), (4, 4, 240));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut job = job(folder.path(), everybody, CALM);
    let elastic = job.elastic.as_mut().expect("elastic");
    (elastic.restarts, elastic.max) = (0, 4);
    let error = attempt(&job).expect_err("nobody is left");
    let words = "no worker is left and --elastic needs 1, and no restarts remain; member 2 was lost last, in \
                 step 50 (planted: kill=2@50)";
    assert_eq!(error.to_string(), words);
    let case = CaseReport::of(&[Run::read(folder.path()).expect("logs")]);
    assert_eq!((case.status, case.steps), (Status::Failed, 50));
}

#[test]
fn each_seat_has_its_own_restarts_and_then_stays_empty() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Member 4 replaces member 0, member 5 replaces member 1, and nobody replaces member 4.
    let mut job = job(folder.path(), "kill=0@10,kill=1@30,kill=4@60", "jitter=0,launch=1,init=1");
    let elastic = job.elastic.as_mut().expect("elastic");
    (elastic.restarts, elastic.max) = (1, 4);
    let run = simulate(&job);
    let case = CaseReport::of(std::slice::from_ref(&run));
    assert_adds_up(&run, &case);
    assert_eq!((recovery(&case).losses, recovery(&case).replacements), (3, 2));
    assert_eq!(recovery(&case).strength.members.last(), Some(&3));
    assert_eq!(run.ranks[5].header.seat(), Some(1));
}

#[test]
fn random_faults_spare_members_in_the_step_that_they_join() {
    for restarts in [3, 1000] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut job = job(folder.path(), "random=kill:1", "jitter=0,launch=0,init=0,spawn=0");
        job.elastic.as_mut().expect("elastic").restarts = restarts;
        let result = attempt(&job);
        assert_eq!(result.is_ok(), restarts == 1000, "{result:?}");
        let run = Run::read(folder.path()).expect("logs");
        let came = run.ranks.iter().skip(4).filter(|log| !log.faults.is_empty());
        for log in came {
            assert!(!log.steps.is_empty(), "{} was lost in the step that it came in", log.header.who());
        }
        if let Err(error) = result {
            let said = error.to_string();
            assert!(said.contains("no restarts remain; member "), "{said}");
            assert!(said.contains("(planted: kill="), "{said}");
        }
    }
}

/// A fault of four first members and those that may come, in one of thirty steps.
fn any_fault() -> impl Strategy<Value = String> {
    let (member, step) = (0u32..9, 0u64..30);
    (0..7, member, step, 1u32..40).prop_map(|(kind, member, step, amount)| match kind {
        0 | 1 => format!("kill={member}@{step}"),
        2 => format!("stop={member}@{step}:{}s", f64::from(amount) / 10.0),
        3 => format!("slow={member}@{step}:{}", 1.0 + f64::from(amount) / 10.0),
        4 => format!("leave={member}@{step}"),
        5 => format!("join@{step}"),
        _ => format!("random=kill:{amount}"),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_is_planted_the_numbers_add_up(
        faults in proptest::collection::vec(any_fault(), 0..8),
        restarts in 0u32..6,
        min in 1u32..4,
        dynamic in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut job = job(folder.path(), &faults.join(","), "jitter=0.02,spawn=1,eval=7:20,tail_per_worker=1");
        (job.length, job.steps) = (Length::Steps(30), 30);
        let elastic = job.elastic.as_mut().expect("elastic");
        elastic.deal = if dynamic { Deal::Dynamic } else { Deal::Static };
        (elastic.restarts, elastic.min) = (restarts, min);
        let result = attempt(&job);
        let is_true = matches!(result, Ok(()) | Err(TrainError::TooFew { .. }));
        prop_assert!(is_true, "{:?}", result);
        let done = result.is_ok();
        let run = Run::read(folder.path()).expect("logs that agree");
        prop_assert_eq!(done, run.launcher.outcome() == Outcome::Done);
        if done {
            let case = CaseReport::of(std::slice::from_ref(&run));
            assert_adds_up(&run, &case);
            prop_assert_eq!(case.steps, 30);
            let told = recovery(&case);
            let lost = told.losses + told.expulsions;
            let named = findings(case.clone()).iter().any(|(kind, _)| *kind == Kind::Recovery);
            prop_assert_eq!(lost > 0, named);
        }
    }
}
