//! `--faults` on several hosts: a host is killed or cut off, and its clock may be wrong. The hosts are launchers on this machine
//! that talk over loopback.

mod training;

use std::path::Path;

use paceline_lab::Run;
use paceline_record::log::LauncherLog;
use paceline_record::{ClockReading, Host, LauncherEvent, Nanos, Recovery, RecoveryPhase};
use rustix::process::Signal;
use serde_json::Value;
use training::hosts::{
    Launcher, RECIPE, SHORT, STEPS, case_folder, newest, numbers_add_up, somewhere, undisturbed, wait_for,
};
use training::{pictures, refuse, report, run, weights};

/// Long beside whatever a busy machine does to a host: for tests in which nobody is to be silent.
const PATIENT: &str = "--lease 30";
/// What the others have completed at least when a host is lost in step 8: it may be ahead of them by the slices that it owns.
const BEHIND_8: u64 = 7;

/// Starts so many hosts one after another, so that their numbers are known.
fn start(folder: &Path, arguments: &str, hosts: u32) -> Vec<Launcher> {
    let job = format!("{RECIPE} {SHORT} --workers 1 {} {arguments}", somewhere());
    let mut launchers = Vec::new();
    for host in 0..hosts {
        launchers.push(Launcher::start(folder, &format!("{job} --out host-{host}")));
        let log = folder.join("host-0").join(format!("mobilenet_v2-w{hosts}/launcher.jsonl"));
        wait_for(&log, &format!("\"host\":{{\"host\":{host},"));
    }
    launchers
}

/// What happened to a host, in the report's words: what, by which fault.
fn events_of(case: &Value, host: u64) -> Vec<(String, String)> {
    let events = case["recovery"]["events"].as_array().expect("events").iter();
    let own = events.filter(|event| event["host"] == host && event["member"].is_null());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    own.map(|event| (text(&event["what"]), text(&event["planted"]))).collect()
}

#[test]
fn a_host_that_is_killed_changes_no_bit_and_the_report_says_that_it_was_planted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    run(
        folder,
        &format!(
            "{RECIPE} {SHORT} {PATIENT} --hosts 1:3 --local --elastic --workers 1 --faults kill=h1@8 --out hosts"
        ),
    );
    let out = folder.join("hosts");
    assert!(weights(&out, STEPS) == whole, "the weights differ");
    let case = &report(&out)["cases"][0];
    assert_eq!((&case["status"], &case["recovery"]["hosts_lost"]), (&"done".into(), &1.into()), "{case}");
    assert_eq!(events_of(case, 1), [("lost".to_owned(), "kill=h1@8".to_owned())], "{case}");
    // What the others waited is the cost of this loss, and the finding says so.
    let lost =
        case["recovery"]["events"].as_array().expect("events").iter().find(|event| event["what"] == "lost");
    assert!(lost.expect("it is told")["cost_s"].as_f64() > Some(0.0), "{case}");
    let findings = report(&out)["findings"].to_string();
    assert!(findings.contains("1 lost host cost"), "{findings}");
    // Those that go on were there to see it.
    assert!(events_of(case, 2).is_empty(), "{case}");
    // From the loss until work goes on, every moment has a name.
    let log = LauncherLog::read(&case_folder(&out)).expect("a whole log");
    let phases: Vec<Recovery> = log.membership.iter().filter_map(recovery_of).collect();
    let rebuilt = phases.iter().position(|one| one.phase == RecoveryPhase::Rebuild).expect("hosts connected");
    let around = &phases[rebuilt - 2..=rebuilt + 1];
    let names: Vec<RecoveryPhase> = around.iter().map(|one| one.phase).collect();
    use RecoveryPhase::{Detect, Fence, Rebuild};
    assert_eq!(names, [Detect, Fence, Rebuild, Fence], "{phases:?}");
    assert!(around.windows(2).all(|pair| pair[0].end == pair[1].begin), "{phases:?}");
    assert!(case["recovery"]["phases_s"]["rebuild"].as_f64() > Some(0.0), "{case}");
}

fn recovery_of(event: &LauncherEvent) -> Option<Recovery> {
    match event {
        LauncherEvent::Recovery(recovery) => Some(*recovery),
        _ => None,
    }
}

#[test]
fn a_host_that_comes_logs_how_long_it_copied_the_state() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let place = somewhere();
    let job = format!("{RECIPE} --epochs 16 {PATIENT} --elastic --workers 1 --hosts 1:2 {place}");
    let first = Launcher::start(folder, &format!("{job} --out host-0"));
    wait_for(&folder.join("host-0/mobilenet_v2-w2/member-0.jsonl"), "\"step\":5,");
    let (status, said) = Launcher::start(folder, &format!("{job} --out host-1")).ended();
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = first.ended();
    assert_eq!(status, Some(0), "{said}");
    let log = LauncherLog::read(&case_folder(&folder.join("host-0")).join("host-1")).expect("a whole log");
    let phases: Vec<Recovery> = log.membership.iter().filter_map(recovery_of).collect();
    let copied = phases.iter().filter(|one| one.phase == RecoveryPhase::State).count();
    assert_eq!(copied, 1, "{phases:?}");
    let case = &report(&folder.join("host-0"))["cases"][0];
    assert!(case["recovery"]["phases_s"]["state"].as_f64() > Some(0.0), "{case}");
    numbers_add_up(case);
}

#[test]
fn a_slow_host_is_named_as_late_and_not_the_network() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let place = somewhere();
    let job = format!("{RECIPE} {SHORT} {PATIENT} --elastic --workers 1 --hosts 2 {place}");
    let first = Launcher::start(folder, &format!("{job} --out host-0"));
    wait_for(&folder.join("host-0/mobilenet_v2-w2/launcher.jsonl"), "\"joined\"");
    // Each host plants its own faults.
    let slow = Launcher::start(folder, &format!("{job} --faults slow=0@1:8 --out host-1"));
    for launcher in [slow, first] {
        let (status, said) = launcher.ended();
        assert_eq!(status, Some(0), "{said}");
    }
    let report = report(&folder.join("host-0"));
    let case = &report["cases"][0];
    let waited = |host: usize| case["hosts"][host]["waited_for_s"].as_f64().expect("it is known");
    assert!(waited(1) > 10.0 * waited(0), "{case}");
    let split = &case["comm_wait_split_s"];
    let (late, moving) = (split["late_rank"].as_f64(), split["transfer"].as_f64());
    assert!(late > moving && late.is_some() && moving.is_some(), "{split}");
    let findings = report["findings"].as_array().expect("findings").iter();
    let stragglers: Vec<&Value> = findings.filter(|finding| finding["kind"] == "stragglers").collect();
    let text = stragglers.first().and_then(|finding| finding["text"].as_str()).unwrap_or_default();
    assert!(text.contains("for member 0 of host 1"), "{report}");
}

#[test]
fn a_cut_that_heals_within_the_lease_disturbs_nobody() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    let job = format!("{RECIPE} {SHORT} {PATIENT} --hosts 2 --local --workers 1");
    for host in [0, 1] {
        run(folder, &format!("{job} --faults cut=h{host}@8:0.5s --out cut-{host}"));
        let out = folder.join(format!("cut-{host}"));
        assert!(weights(&out, STEPS) == whole, "the weights differ");
        let case = &report(&out)["cases"][0];
        assert_eq!(case["status"], "done");
        assert_eq!(events_of(case, host), [("planted".to_owned(), format!("cut=h{host}@8:0.5s"))], "{case}");
        assert_eq!(case["host_notes"], Value::Null, "{case}");
        numbers_add_up(case);
    }
}

#[test]
fn a_host_that_is_cut_off_for_longer_than_the_lease_saves_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    let hosts = start(folder, "--hosts 1:3 --elastic --host-wait 30 --faults cut=h1@8:60s", 3);
    let [first, cut, other]: [Launcher; 3] = hosts.try_into().unwrap_or_else(|_| panic!("three hosts"));
    let (status, said) = cut.ended();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("the first host") && said.contains("this host has saved"), "{said}");
    assert!(newest(&folder.join("host-1")) >= 8);
    for going_on in [first, other] {
        let (status, said) = going_on.ended();
        assert_eq!(status, Some(0), "{said}");
    }
    assert!(weights(&folder.join("host-0"), STEPS) == whole, "the weights differ");
    let case = &report(&folder.join("host-0"))["cases"][0];
    assert_eq!(events_of(case, 1), [("lost".to_owned(), "cut=h1@8:60s".to_owned())], "{case}");
}

#[test]
fn where_the_first_host_is_cut_off_the_other_saves_and_never_trains_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    let hosts = start(folder, "--hosts 1:2 --elastic --host-wait 30 --faults cut=h0@8:60s", 2);
    let [first, other]: [Launcher; 2] = hosts.try_into().unwrap_or_else(|_| panic!("two hosts"));
    let (status, said) = other.ended();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("the first host") && said.contains("this host has saved"), "{said}");
    // It has not done what only the first host could go on with.
    assert!((BEHIND_8..STEPS).contains(&newest(&folder.join("host-1"))), "{said}");
    let (status, said) = first.ended();
    assert_eq!(status, Some(0), "{said}");
    assert!(weights(&folder.join("host-0"), STEPS) == whole, "the weights differ");
}

#[test]
fn without_elastic_every_host_that_is_left_saves() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let hosts = start(folder, &format!("{PATIENT} --hosts 3 --faults kill=h1@8"), 3);
    for (host, launcher) in hosts.into_iter().enumerate() {
        let (status, said) = launcher.ended();
        if host == 1 {
            assert_eq!(status, None, "it was killed: {said}");
            continue;
        }
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("host 1"), "{said}");
        assert!(newest(&folder.join(format!("host-{host}"))) >= BEHIND_8, "host {host}");
    }
}

#[test]
fn without_the_first_host_the_others_save() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let hosts = start(folder, &format!("{PATIENT} --hosts 1:2 --elastic --faults kill=h0@8"), 2);
    let [first, other]: [Launcher; 2] = hosts.try_into().unwrap_or_else(|_| panic!("two hosts"));
    assert_eq!(first.ended().0, None, "it was killed");
    let (status, said) = other.ended();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("the first host") && said.contains("this host has saved"), "{said}");
    assert!(newest(&folder.join("host-1")) >= BEHIND_8);
}

#[test]
fn faults_of_hosts_that_there_are_not_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (arguments, expected) in [
        ("--faults kill=h1@3", "kill=h1@3 is for several hosts; use it with --hosts N"),
        ("--elastic --faults cut=h1@3:1s", "cut=h1@3:1s is for several hosts"),
        ("--hosts 2 --local --faults kill=h2@3", "kill=h2@3 is for none of 2 hosts"),
        ("--hosts 2 --local --faults clock=h5:3s:50ppm", "is for none of 2 hosts"),
        ("--hosts 2 --local --faults kill=h1@30", "after the last of 4 steps"),
        ("--hosts 2 --local --faults cut=h1@3:0s", "a cut takes a while"),
        ("--hosts 2 --local --faults kill=1@3", "kill=1@3 is for workers that come and go"),
        ("--engine simulated --hosts 2 --local --faults kill=h1@3", "simulated"),
    ] {
        let said =
            refuse(folder.path(), &format!("train mobilenet_v2 --batch 2 --steps 4 {arguments} --out never"));
        assert!(said.contains(expected), "{arguments}: {said}");
        assert!(!folder.path().join("never").exists(), "{arguments}");
    }
}

#[test]
fn a_host_that_was_stopped_is_told_that_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    let hosts = start(folder, "--hosts 1:2 --elastic", 2);
    let [first, other]: [Launcher; 2] = hosts.try_into().unwrap_or_else(|_| panic!("two hosts"));
    let log = folder.join("host-0/mobilenet_v2-w2/launcher.jsonl");
    wait_for(&log, "\"hosts\":");
    other.signal(Signal::STOP);
    wait_for(&log, "\"lost\":");
    other.signal(Signal::CONT);
    let (status, said) = other.ended();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("took this one for lost: it was silent for"), "{said}");
    assert!(said.contains("the same command joins them again"), "{said}");
    first.ends_well();
    assert!(weights(&folder.join("host-0"), STEPS) == whole, "the weights differ");
}

/// How the clock of host 1 was seen to differ.
fn readings(run: &Run) -> Vec<ClockReading> {
    let told = run.launcher.membership.iter().filter_map(|event| match event {
        LauncherEvent::Clock(reading) if reading.host == Host(1) => Some(*reading),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_clock_that_is_ahead_and_gains_is_measured_and_changes_nothing_by_more_than_is_said() {
    const AHEAD: i64 = 3_000_000_000;
    const GAIN: f64 = 50e-6;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    run(
        folder,
        &format!(
            "{RECIPE} {SHORT} {PATIENT} --hosts 2 --local --workers 1 --faults clock=h1:3s:50ppm --out hosts"
        ),
    );
    let out = folder.join("hosts");
    assert!(weights(&out, STEPS) == whole, "the weights differ");
    let case = &report(&out)["cases"][0];
    assert_eq!(case["host_notes"], Value::Null, "{case}");
    assert_eq!(events_of(case, 1), [("planted".to_owned(), "clock=h1:3s:50ppm".to_owned())], "{case}");
    numbers_add_up(case);

    let run = Run::read(&case_folder(&out)).expect("whole logs");
    let read = readings(&run);
    // The clock began to gain after the first host's launcher had begun, and before the first reading.
    let begun = run.launcher.header.started.expect("a real clock").at;
    let gained = |from: Nanos, to: Nanos| GAIN * to.since(from).0 as f64;
    for reading in &read {
        let (within, extra) = (reading.within.0 as f64, (reading.offset - AHEAD) as f64);
        let most = gained(begun, reading.at);
        assert!(-within <= extra && extra <= most + within, "{reading:?} in {read:?}");
    }
    for pair in read.windows(2) {
        let drift = (pair[1].offset - pair[0].offset) as f64 - gained(pair[0].at, pair[1].at);
        assert!(drift.abs() <= (pair[0].within + pair[1].within).0 as f64 + 1.0, "{pair:?}");
    }

    let hosts = run.hosts.as_ref().expect("several hosts");
    let within = hosts.all[1].within.expect("it is known");
    assert!(within < Nanos(AHEAD as u64 / 10), "{within:?}");
    let of_host = |host: u32| {
        let logs = run.ranks.iter().filter(move |log| match log.header.who() {
            paceline_record::Who::Member(member) => {
                hosts.place(member).is_some_and(|(place, _)| place == Host(host))
            }
            paceline_record::Who::Rank(_) => false,
        });
        logs.flat_map(|log| &log.steps)
    };
    let mut compared = 0;
    for one in of_host(0) {
        for other in of_host(1).filter(|other| other.step == one.step) {
            // Nobody ends a step before everybody has begun it.
            assert!(one.end + within >= other.begin && other.end + within >= one.begin, "{one:?} {other:?}");
            compared += 1;
        }
    }
    assert_eq!(compared, STEPS);
}
