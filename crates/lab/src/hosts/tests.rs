use std::fs;
use std::path::Path;

use paceline_record::log::LAUNCHER_FILE;
use paceline_record::{RecoveryPhase, Step};
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::fixture::hosts::{Face, STEPS, Story, WITHIN_US, begin};
use crate::fixture::study;
use crate::{CaseReport, Kind, Report, Status, terminal, timeline};

const AHEAD: Face = Face { ahead: 3_000_000_000, ppm: 50 };

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

fn written(story: Story) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    story.write(folder.path());
    folder
}

fn read(folder: &Path) -> Run {
    Run::read(folder).expect("logs that agree")
}

/// Every number and word of a report, with the way to it.
fn leaves(path: &str, value: &Value, into: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| leaves(&format!("{path}.{name}"), value, into));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| leaves(&format!("{path}.{at}"), item, into));
        }
        leaf => into.push((path.into(), leaf.clone())),
    }
}

#[test]
fn an_offset_of_3_s_and_a_drift_of_50_ppm_change_no_number_by_more_than_the_stated_uncertainty() {
    let numbers = |face: Face| {
        let report = Story { face, third: false }.report();
        let within = report.cases[0].hosts.as_ref().expect("hosts")[1].clock_within_s.expect("a clock");
        let mut all = Vec::new();
        leaves("", &serde_json::to_value(&report).expect("plain data"), &mut all);
        (within, all)
    };
    let (within, expected) = numbers(Face::default());
    let (drifting_within, found) = numbers(AHEAD);
    let read = 1e-6 * WITHIN_US as f64;
    assert!((read..2.0 * read).contains(&within) && (drifting_within - within).abs() < 1e-8, "{within}");
    assert!(expected.len() > 500 && expected.len() == found.len(), "{}", expected.len());
    for ((path, expected), (_, found)) in expected.iter().zip(&found) {
        match (expected.as_f64(), found.as_f64()) {
            (Some(a), Some(b)) => {
                // A rate is as uncertain as the times that it is a ratio of: a second or longer.
                let unit = if path.contains("images_per_s") { a } else { 1.0 };
                assert!((a - b).abs() <= within * unit, "{path}: {a} and {b}");
            }
            _ => assert_eq!(expected, found, "{path}"),
        }
    }
}

#[test]
fn the_logs_of_all_hosts_are_one_run() {
    let folder = written(Story { face: AHEAD, third: false });
    let run = read(folder.path());
    let names: Vec<String> = run.ranks.iter().map(|log| run.name(log.header.who())).collect();
    let expected = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1)];
    assert_eq!(names, expected.map(|(own, host)| format!("member {own} of host {host}")));
    let membership = run.membership.as_ref().expect("members");
    let rosters: Vec<(u64, Vec<u32>)> = membership
        .rosters
        .iter()
        .map(|roster| (roster.step.0, roster.members.iter().map(|member| member.0).collect()))
        .collect();
    assert_eq!(rosters, [(0, vec![0, 1, 2, 3]), (40, vec![0, 1, 2]), (45, vec![0, 1, 2, 4])]);
    assert_eq!(membership.lives[4].replaces, Some(Member(3)), "the one on its seat of the same host");
    assert_eq!(membership.evaluations.len(), 1, "every host tells of the same test");
    let phases: Vec<(RecoveryPhase, u64)> = membership
        .recoveries
        .iter()
        .map(|it| (it.phase, (it.end.since(it.begin).seconds() * 1e3).round() as u64))
        .collect();
    let expected = [
        (RecoveryPhase::Detect, 10),
        (RecoveryPhase::Fence, 20),
        (RecoveryPhase::Rebuild, 10),
        (RecoveryPhase::Redo, 90),
    ];
    assert_eq!(phases, expected, "no moment counts twice");
    let case = CaseReport::of(std::slice::from_ref(&run));
    assert_eq!((case.status, case.steps, case.examples), (Status::Done, STEPS, Some(STEPS * 256)));
    assert!(near(case.phases_s.expect("phases").values().sum(), run.lives_s().expect("lives")));
}

#[test]
fn waiting_for_a_late_host_is_told_from_moving_bytes() {
    let folder = written(Story { face: AHEAD, third: false });
    let run = read(folder.path());
    let step = &run.ranks[0].steps[3];
    let [late, waited] = [step.late_rank, step.phases[Phase::CommWait]].map(|time| time.seconds() * 1e3);
    // 20 ms less what the clocks cannot tell; the rest moves bytes.
    let within = 1e3 * run.hosts.as_ref().expect("hosts").all[1].within.expect("a clock").seconds();
    assert!((late - (20.0 - within)).abs() < 1e-4 && (waited - 25.0).abs() < 1e-4, "{late} {waited}");
    let case = CaseReport::of(&[run]);
    let late = case.straggler.expect("somebody is late");
    assert_eq!(case.name(late.who), "member 1 of host 1");
    assert!(late.steps_fraction <= 1.0, "{late:?}");
    let hosts = case.hosts.expect("hosts");
    assert_eq!(hosts[0].waited_for_s, Some(0.0));
    let waited = hosts[1].waited_for_s.expect("it is known");
    assert!((waited - 60.0 * 2.0 * (20.0 - within) / 1e3).abs() < 1e-5, "{waited}");
}

#[test]
fn the_report_has_a_table_of_hosts_and_blames_the_porter() {
    let report = Story { face: AHEAD, third: true }.report();
    let text = terminal::render_report(&report, terminal::Screen { width: 200, ..terminal::Screen::PLAIN });
    let line = |part: &str| {
        let line = text.lines().find(|line| line.contains(part));
        line.unwrap_or_else(|| panic!("no {part} in\n{text}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert!(text.contains("6 workers: hosts"), "{text}");
    assert_eq!(line(" box-0 "), "0 box-0 2 6 2.00 3.00 12.00 0.00 0 from the start");
    assert_eq!(line(" box-1 "), "1 box-1 2 6 2.00 3.00 12.00 2.38 145 from the start");
    assert!(line(" box-2 ").starts_with("2 box-2 2 4"), "{text}");
    assert!(line(" box-2 ").ends_with("s: no word from it for 2 s"), "{text}");
    assert!(text.contains("host 2 was lost: no word from it for 2 s"), "{text}");
    assert!(text.contains("hosts: 1 lost; members: 1 lost, 1 joined; 4 rosters"), "{text}");
    // What all took together is unknown, so that nothing is said about parts of it.
    assert!(report.findings.iter().all(|finding| finding.kind != Kind::OffCore), "{:?}", report.findings);

    let report = Story::default().report();
    let off =
        report.findings.iter().find(|finding| finding.kind == Kind::OffCore).expect("8 ms of each step");
    assert!(off.text.ends_with("kept off their cores; the porter of their host ran there"), "{}", off.text);
    let mut idle = report.cases[0].clone();
    idle.off_core.as_mut().expect("it is told").porter_s = Some(0.1);
    let report = Report::new(&study(std::slice::from_ref(&idle.case)), vec![idle]);
    let off =
        report.findings.iter().find(|finding| finding.kind == Kind::OffCore).expect("8 ms of each step");
    assert!(!off.text.contains("porter"), "{}", off.text);
}

#[test]
fn hosts_that_are_groups_of_their_own_are_throttled_together() {
    let folder = written(Story::default());
    let mut run = read(folder.path());
    for step in run.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
        let told = step.scheduling.as_mut().expect("it is told");
        // Of 16 ms that a host's two members are off their cores.
        told.throttled = Some(Nanos(10_000_000));
    }
    let case = CaseReport::of(std::slice::from_ref(&run));
    let told = case.off_core.as_ref().expect("it is told");
    let throttled = told.throttled_s.expect("a quota");
    assert!(near(throttled, 2.0 * 0.010 * STEPS as f64), "{told:?}");
    let report = Report::new(&study(std::slice::from_ref(&case.case)), vec![case]);
    let off = report.findings.iter().find(|finding| finding.kind == Kind::OffCore).expect("of each step");
    assert!(off.text.ends_with("; the quota of a control group was used up"), "{}", off.text);
}

/// What is said of a case with a third host, whose logs are as `change` leaves them.
fn with_third(change: impl FnOnce(&Path)) -> (CaseReport, Run) {
    let folder = written(Story { face: Face::default(), third: true });
    change(folder.path());
    let run = read(folder.path());
    (CaseReport::of(std::slice::from_ref(&run)), run)
}

fn check_third_is_unknown((case, run): &(CaseReport, Run), why: &str) {
    assert_eq!((case.status, case.case.workers, case.host_notes.len()), (Status::Done, 6, 1));
    let note = &case.host_notes[0];
    assert!(note.starts_with("the members of host 2 are unknown") && note.contains(why), "{note}");
    assert_eq!(case.hosts.as_ref().expect("hosts")[2].clock_within_s, None);
    let lives = run.lives_s().expect("lives");
    assert!(near(case.phases_s.as_ref().expect("phases").values().sum(), lives));
    assert_eq!((case.examples, case.mean_workers, &case.cost), (Some(STEPS * 256), None, &None));
    assert_eq!(case.peak_memory_bytes, None);
}

#[test]
fn a_lost_host_is_unknown_and_not_zero() {
    check_third_is_unknown(&with_third(|_| {}), "it was lost, and its logs with it");
    let file = with_third(|folder| fs::write(folder.join("host-2"), "no folder").expect("a file"));
    check_third_is_unknown(&file, "host-2 is not a folder");
    let empty = with_third(|folder| fs::create_dir(folder.join("host-2")).expect("a folder"));
    check_third_is_unknown(&empty, "its clock was never compared");
}

/// Changes the text of a file.
fn edit(path: &Path, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(path).expect("a log");
    fs::write(path, change(text)).expect("room");
}

/// What is said of host 1 after its logs were changed.
fn note_on_second(change: impl FnOnce(&Path)) -> String {
    let folder = written(Story { face: AHEAD, third: false });
    change(folder.path());
    let run = read(folder.path());
    assert_eq!(run.ranks.len(), 2, "the first host's members are known all the same");
    timeline::write(&[("case".into(), folder.path().into())], &mut Vec::new()).expect("a timeline");
    let mut case = CaseReport::of(&[run]);
    assert_eq!((case.status, case.host_notes.len()), (Status::Done, 1));
    case.host_notes.remove(0)
}

#[test]
fn torn_and_damaged_logs_of_a_host_are_unknown_and_say_why() {
    let launcher = |folder: &Path| folder.join("host-1").join(LAUNCHER_FILE);
    let torn = note_on_second(|folder| edit(&launcher(folder), |text| text[..text.len() - 10].into()));
    assert!(torn.ends_with("its launcher did not live to tell the end"), "{torn}");
    let empty = note_on_second(|folder| edit(&launcher(folder), |_| String::new()));
    assert!(empty.contains("launcher.jsonl"), "{empty}");
    let gone = note_on_second(|folder| fs::remove_file(launcher(folder)).expect("a log"));
    assert!(gone.ends_with("its launcher's log has not been gathered"), "{gone}");
    let other =
        note_on_second(|folder| edit(&launcher(folder), |text| text.replace("\"host\":1", "\"host\":7")));
    assert!(other.ends_with("holds the log of another host"), "{other}");
    let negative = note_on_second(|folder| {
        edit(&launcher(folder), |text| text.replacen("\"at\":", "\"at\":-", 1));
    });
    assert!(negative.contains("is damaged"), "{negative}");
    let garbage = note_on_second(|folder| {
        edit(&folder.join("host-1/member-0.jsonl"), |text| text.replace("\"examples\"", "\"begin\""));
    });
    assert!(garbage.contains("member-0.jsonl"), "{garbage}");
    let twice = note_on_second(|folder| {
        edit(&folder.join("host-1/member-0.jsonl"), |text| text.replace("\"step\":9,", "\"step\":8,"));
    });
    assert!(twice.contains("member 0 did a step twice"), "{twice}");
    let far = note_on_second(|folder| {
        edit(&launcher(folder), |text| text.replacen("\"at\":1", "\"at\":900000001", 1));
    });
    assert!(far.contains("was not compared") || far.contains("outside its life"), "{far}");
}

#[test]
fn hostile_readings_leave_the_host_out_and_say_why() {
    let readings = |with: &str| {
        let (with, mut count) = (with.to_owned(), 0);
        note_on_second(move |folder| {
            edit(&folder.join(LAUNCHER_FILE), |text| {
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.iter_mut().filter(|line| line.contains("\"clock\"")).for_each(|line| {
                    count += 1;
                    *line = with.replace("COUNT", &count.to_string());
                });
                lines.join("\n") + "\n"
            });
        })
    };
    for offset in [i64::MAX, i64::MIN] {
        let far = readings(&format!(
            "{{\"clock\":{{\"host\":1,\"at\":1000COUNT,\"offset\":{offset},\"within\":{}}}}}",
            u64::MAX
        ));
        assert!(far.contains("was not compared"), "{far}");
    }
    let backwards = readings("{\"clock\":{\"host\":1,\"at\":COUNT000,\"offset\":-COUNT000000,\"within\":0}}");
    assert!(backwards.contains("contradict"), "{backwards}");
    let none = readings("{\"clock\":{\"host\":9,\"at\":1,\"offset\":0,\"within\":0}}");
    assert!(none.contains("never compared"), "{none}");
}

#[test]
fn readings_without_end_are_read() {
    let folder = written(Story { face: AHEAD, third: false });
    edit(&folder.path().join(LAUNCHER_FILE), |text| {
        let poor = |at: u64| {
            format!(
                "{{\"clock\":{{\"host\":1,\"at\":{at}00000,\"offset\":3000000000,\"within\":90000000}}}}\n"
            )
        };
        let (header, rest) = text.split_once('\n').expect("lines");
        format!("{header}\n{}{rest}", (100_000..200_000).map(poor).collect::<String>())
    });
    let run = read(folder.path());
    let hosts = run.hosts.expect("hosts");
    assert!(hosts.all[1].within < Some(Nanos(2000 * WITHIN_US)), "none of them was needed");
}

#[test]
fn a_folder_of_a_host_that_nobody_told_of_is_left_out_and_named() {
    let folder = written(Story { face: AHEAD, third: false });
    fs::create_dir(folder.path().join("host-9999")).expect("a folder");
    let case = CaseReport::of(&[read(folder.path())]);
    assert_eq!(case.host_notes, ["host-9999 was left out: the first host's log tells of no such host"]);
    assert!(case.cost.is_some(), "all hosts that took part are known");
}

#[test]
fn a_damaged_log_of_a_porter_costs_what_it_moved_and_nothing_else() {
    let folder = written(Story { face: AHEAD, third: false });
    edit(&folder.path().join("porter.jsonl"), |text| text.replacen("\"sent\"", "\"spent\"", 1));
    let case = CaseReport::of(&[read(folder.path())]);
    let [first, second] = case.hosts.as_deref().expect("hosts") else { panic!("two hosts") };
    assert_eq!((first.sent_bytes, second.sent_bytes), (None, Some(2e6)));
    assert!(case.host_notes[0].starts_with("what host 0 moved is unknown: "), "{:?}", case.host_notes);
    assert!(case.cost.is_some());
}

#[test]
fn the_timeline_is_on_one_clock_and_shows_what_porters_moved() {
    let drawn = |face: Face| {
        let folder = written(Story { face, third: false });
        let mut out = Vec::new();
        timeline::write(&[("case".into(), folder.path().into())], &mut out).expect("a timeline");
        serde_json::from_slice::<Value>(&out).expect("JSON")
    };
    let (plain, drifting) = (drawn(Face::default()), drawn(AHEAD));
    let events = |whole: &Value| whole["traceEvents"].as_array().expect("a list").clone();
    let (plain, drifting) = (events(&plain), events(&drifting));
    assert_eq!(plain.len(), drifting.len());
    for (one, other) in plain.iter().zip(&drifting) {
        assert_eq!((&one["name"], &one["pid"]), (&other["name"], &other["pid"]));
        let (one, other) = (one["ts"].as_f64().unwrap_or(0.0), other["ts"].as_f64().unwrap_or(0.0));
        assert!((one - other).abs() <= WITHIN_US as f64, "{one} {other}");
    }
    let named = |name: &str| drifting.iter().filter(|event| event["args"]["name"] == name).count();
    assert_eq!((named("case member 2 of host 1"), named("case porter of host 1")), (1, 1));
    let transfers: Vec<&Value> = drifting.iter().filter(|event| event["cat"] == "transfer").collect();
    assert_eq!(transfers.len() as u64, 2 * STEPS);
    assert_eq!((&transfers[3]["name"], &transfers[3]["args"]["sent"]), (&"step 3".into(), &2_000_000.into()));
    assert!(drifting.iter().any(|event| event["name"] == "waiting for rank 1 of this host"));
}

#[test]
fn a_step_is_there_in_the_logs_of_both_hosts_once() {
    let run = read(written(Story { face: AHEAD, third: false }).path());
    let training = run.training().expect("steps");
    assert!((training.seconds() - (begin(STEPS) - begin(0)) as f64 / 1e3).abs() < 1e-6 * WITHIN_US as f64);
    assert_eq!((run.steps(), run.number(59)), (60, Some(Step(59))));
}
