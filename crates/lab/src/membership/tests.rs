use std::fs;

use paceline_record::log::{PlantedFault, member_file};
use paceline_record::{Phase, Step};

use super::*;
use crate::fixture::elastic::{AFTER, begin, calm_run, eventful_run, tested_run, write};
use crate::fixture::{MS, study};
use crate::numbers::recovery::{Recovery, What};
use crate::numbers::waterfall::Cause;
use crate::{CaseReport, Kind, Report, Run, words};

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

fn recovery(case: &CaseReport) -> &Recovery {
    case.recovery.as_ref().expect("an elastic case")
}

#[test]
fn a_run_in_which_nobody_comes_or_goes_has_lives_of_workers_times_its_length() {
    let run = calm_run();
    let case = CaseReport::of(std::slice::from_ref(&run));
    let total = case.total_s.expect("an end");
    assert!(near(run.lives_s().expect("lives"), 3.0 * total));
    assert!(near(case.mean_workers.expect("a mean"), 3.0));
    assert_eq!(recovery(&case).events, []);
    assert!(case.fixed.is_some());
}

#[test]
fn the_lives_of_an_eventful_run_are_told_apart() {
    let run = eventful_run();
    let membership = run.membership.as_ref().expect("members");
    let lives = |member: usize| &membership.lives[member];
    let (tenth, end) = (begin(10), begin(40) + AFTER);
    let spans: Vec<(u64, u64)> =
        membership.lives.iter().map(|life| (life.span.begin.0 / MS, life.span.end.0 / MS)).collect();
    assert_eq!(spans, [(0, end), (0, tenth + 30), (0, begin(30) + 20), (tenth + 50, end)]);
    assert_eq!(lives(0).fate, Fate::Lasted);
    assert_eq!(lives(1).fate, Fate::Lost(Nanos((tenth + 30) * MS), Some(Exit::Signal(9))));
    assert_eq!(lives(2).fate, Fate::Left(Nanos(begin(30) * MS)));
    assert_eq!((lives(3).replaces, lives(1).last), (Some(Member(1)), Some(Step(10))));
}

#[test]
fn an_eventful_run_has_each_step_and_each_sample_once() {
    let run = eventful_run();
    let case = CaseReport::of(std::slice::from_ref(&run));
    assert_eq!((case.steps, case.examples), (40, Some(40 * 192)));
    assert_eq!((case.loss_first, case.loss_last), (Some(2.0), Some(f64::from(2.0f32 / 40.0))));
    let steps = run.global_steps();
    assert!(near(steps[10].seconds, 0.2) && near(steps[15].seconds, 0.15) && near(steps[39].seconds, 0.1));
    assert!(steps.iter().all(|step| step.amount == 192.0));
    let test = case.learning.expect("a test").test.expect("a test");
    assert_eq!((test.steps, test.accuracy), (40, Some(0.8)));
}

#[test]
fn what_a_loss_costs_is_told_and_adds_up_to_the_lives() {
    let run = eventful_run();
    let case = CaseReport::of(std::slice::from_ref(&run));
    let lives = run.lives_s().expect("lives");
    assert!(near(case.phases_s.as_ref().expect("phases").values().sum(), lives));
    let cost = case.cost.as_ref().expect("a cost");
    assert!(near(cost.seconds * case.examples.expect("done") as f64, lives));
    assert!(near(cost.parts.iter().map(|part| part.seconds).sum(), cost.seconds));
    let told = recovery(&case);
    assert_eq!((told.losses, told.expulsions, told.replacements), (1, 0, 1));
    assert_eq!((told.joins, told.leaves, told.generations, told.examples_redone), (1, 1, 4, 64));
    assert!(near(told.phases_s.detect, 0.01) && near(told.phases_s.sum, 0.13));
    // The others' 100 ms each, 30 ms of member 1, and the start of member 3.
    let start = (begin(20) - begin(10) - 50) as f64 / 1e3;
    let worker_s = told.worker_s;
    assert!(near(worker_s.waiting, 0.2) && near(worker_s.unfinished, 0.03), "{worker_s:?}");
    assert!(near(worker_s.replacing, start), "{worker_s:?}");
    let part = cost.parts.iter().find(|part| part.cause == Cause::Recovery).expect("a cause");
    assert!(near(part.seconds * case.examples.expect("done") as f64, worker_s.sum));
    assert!(near(told.slower_s.expect("a loss"), 9.0 * 0.05), "{:?}", told.slower_s);
    let events: Vec<_> = told.events.iter().map(|event| (event.what, event.member, event.step)).collect();
    let expected = [
        (What::Lost, 1, Some(10)),
        (What::Started, 3, None),
        (What::Joined, 3, Some(20)),
        (What::Left, 2, Some(30)),
    ];
    assert_eq!(events, expected.map(|(what, member, step)| (what, Some(Member(member)), step.map(Step))));
    assert!(near(told.events[0].cost_s.expect("a cost"), 0.23));
    assert_eq!(told.events[0].planted.as_deref(), Some("kill=1@10"));
    assert!(near(told.events.iter().filter_map(|event| event.cost_s).sum(), worker_s.sum));
    assert_eq!(told.strength.members[9..=11], [3, 2, 2]);
    assert_eq!(case.fixed, None, "steps differ for other reasons than warm-up");
}

#[test]
fn logs_of_members_are_read_as_they_were_written_and_a_missing_one_is_a_life_without_steps() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = eventful_run();
    write(&run, folder.path());
    let read = Run::read(folder.path()).expect("whole logs");
    assert_eq!(read.ranks, run.ranks);
    assert_eq!(read.membership, run.membership);
    fs::remove_file(folder.path().join(member_file(Member(1)))).expect("a log");
    let read = Run::read(folder.path()).expect("whole logs but for one");
    let case = CaseReport::of(std::slice::from_ref(&read));
    let ranks = case.ranks.as_ref().expect("members");
    assert!(near(ranks[1].phases_s[&Phase::Launch], (begin(10) + 30) as f64 / 1e3));
    assert!(near(case.phases_s.as_ref().expect("phases").values().sum(), read.lives_s().expect("lives")));
    assert_eq!(recovery(&case).losses, 1);
}

#[test]
fn a_member_s_log_that_contradicts_its_life_fails_the_case() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(&eventful_run(), folder.path());
    let change = |from: &str, to: &str| {
        let path = folder.path().join(member_file(Member(3)));
        let text = fs::read_to_string(&path).expect("a log");
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replace(from, to)).expect("the changed log");
        let error = Run::read(folder.path()).expect_err("a contradiction").to_string();
        fs::write(&path, text).expect("the log as it was");
        error
    };
    assert!(change("\"member\":3", "\"member\":7").contains("member 3 says member 7"));
    assert!(change("\"step\":21,", "\"step\":20,").contains("did a step twice"));
    let main = (begin(10) + 60) * MS;
    assert!(change(&format!("\"at\":{main},\"pid\""), "\"at\":5,\"pid\"").contains("outside its life"));
}

#[test]
fn repeats_with_members_of_their_own_are_pooled() {
    let (calm, eventful) = (calm_run(), eventful_run());
    let case = CaseReport::of(&[eventful.clone(), calm.clone()]);
    let lives = [&calm, &eventful].map(|run| run.lives_s().expect("lives")).iter().sum::<f64>();
    assert!(near(case.phases_s.as_ref().expect("phases").values().sum(), lives / 2.0));
    let cost = case.cost.as_ref().expect("a cost");
    assert!(near(cost.seconds, lives / (50.0 * 192.0)));
    assert!(near(cost.parts.iter().map(|part| part.seconds).sum(), cost.seconds));
    assert_eq!(recovery(&case).losses, 1, "the first repeat tells");
}

#[test]
fn a_step_that_everybody_died_after_is_counted_and_so_are_they() {
    let run = tested_run();
    let case = CaseReport::of(std::slice::from_ref(&run));
    assert_eq!((case.steps, case.examples), (10, Some(1920)));
    let told = recovery(&case);
    assert_eq!((told.losses, told.replacements, told.joins), (3, 1, 1));
    assert!(near(case.phases_s.as_ref().expect("phases").values().sum(), run.lives_s().expect("lives")));
    assert!(near(told.events.iter().filter_map(|event| event.cost_s).sum(), told.worker_s.sum));
}

#[test]
fn what_a_member_does_in_a_test_that_it_joins_is_no_start() {
    let case = CaseReport::of(&[tested_run()]);
    let phases = &case.ranks.as_ref().expect("members")[3].phases_s;
    for (phase, seconds) in
        [(Phase::Launch, 0.01), (Phase::Init, 0.02), (Phase::Eval, 0.3), (Phase::Tail, 0.02)]
    {
        assert!(near(phases[&phase], seconds), "{phases:?}");
    }
    assert!(near(phases.values().sum(), 0.35));
    assert!(near(recovery(&case).worker_s.replacing, 0.03));
}

#[test]
fn an_expulsion_is_one_event_and_planted_slowness_another() {
    let mut run = eventful_run();
    let at = Nanos((begin(10) + 30) * MS);
    let tell = |change| LauncherEvent::Member(MemberEvent { member: Member(1), at, change });
    for event in &mut run.launcher.membership {
        if *event == tell(MemberChange::Expelled(Expulsion::Ended)) {
            *event = tell(MemberChange::Expelled(Expulsion::Stalled));
        }
    }
    let step = Step(10);
    run.launcher.membership.push(tell(MemberChange::Stalled { step, since: Nanos(begin(10) * MS) }));
    let planted = |fault: &str| PlantedFault { at: Nanos(begin(5) * MS), step: Step(5), fault: fault.into() };
    run.ranks[0].faults.push(planted("slow=0@5:2"));
    let run = Run::new(run.launcher, run.ranks, run.waited_for);
    let case = CaseReport::of(&[run]);
    let events: Vec<_> = recovery(&case).events.iter().map(|event| (event.what, event.member)).collect();
    let first = [(What::Planted, Some(Member(0))), (What::Expelled, Some(Member(1)))];
    assert_eq!(events[..2], first);
    assert!(events.iter().all(|(what, _)| *what != What::Stalled), "{events:?}");
    let table = words::event_table(&case, 9).expect("events").to_string();
    assert!(
        table.contains("planted: slow=0@5:2") && table.contains("expelled: it made no progress"),
        "{table}"
    );
}

#[test]
fn steps_that_were_not_slower_are_not_told_as_slower() {
    let mut case = CaseReport::of(&[eventful_run()]);
    let longer = |case: &CaseReport| words::recovery(case).iter().any(|told| told.contains("longer in all"));
    assert!(longer(&case));
    case.recovery.as_mut().expect("an elastic case").slower_s = Some(-0.29);
    assert!(!longer(&case));
    let found = findings_of(vec![case], Kind::Recovery);
    assert!(!found[0].contains("longer"), "{found:?}");
    let found = findings_of(vec![CaseReport::of(&[eventful_run()])], Kind::Recovery);
    assert!(found[0].contains("steps with fewer workers than before a loss took 0.45 s longer"), "{found:?}");
}

fn findings_of(cases: Vec<CaseReport>, kind: Kind) -> Vec<String> {
    let planned: Vec<_> = cases.iter().map(|case| case.case.clone()).collect();
    let findings = Report::new(&study(&planned), cases).findings;
    findings.into_iter().filter(|finding| finding.kind == kind).map(|finding| finding.text).collect()
}

#[test]
fn a_run_with_faults_is_compared_with_the_same_run_without() {
    let with = |total_s: f64, settings: &[(&str, &str)]| {
        let mut case = CaseReport::of(&[eventful_run()]);
        let held = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        case.case.settings.extend(held);
        case.total_s = Some(total_s);
        case
    };
    let (calm, planted) = (with(2.9, &[]), with(3.1, &[("faults", "kill=1@10")]));
    let found = findings_of(vec![calm.clone(), planted.clone()], Kind::Faults);
    let words = "with 3 workers and kill=1@10, the run took 3.10 s instead of 2.90 s (7 % longer)";
    assert!(found.len() == 1 && found[0].ends_with(words), "{found:?}");
    let other = with(2.9, &[("deal", "dynamic")]);
    assert!(findings_of(vec![other, planted.clone()], Kind::Faults).is_empty());
    let mut failed = calm;
    failed.status = crate::Status::Failed;
    assert!(findings_of(vec![failed, planted], Kind::Faults).is_empty());
}
