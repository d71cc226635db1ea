//! `--rendezvous etcd://`: any host may be lost, the first among them, and etcd may be away. Here a small etcd of our own answers; a real
//! one is killed and restarted by `peers/engines etcd`.

#[path = "../../comm/src/etcd/fake.rs"]
mod fake;
mod training;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fake::FakeEtcd;
use rustix::process::Signal;
use serde_json::Value;
use training::hosts::{
    LONG, LONG_STEPS, Launcher, PATIENCE, RECIPE, SHORT, STEPS, case_folder, newest, undisturbed, wait_for,
};
use training::{pictures, refuse, report, weights};

/// A host of a training that meets in etcd.
fn host(folder: &Path, etcd: &FakeEtcd, length: &str, more: &str) -> Launcher {
    let place = format!("--rendezvous etcd://{}/job --workers 1", etcd.at);
    Launcher::start(folder, &format!("{RECIPE} {length} {place} {more}"))
}

/// The first of several hosts, when it has got its door.
fn first(folder: &Path, etcd: &FakeEtcd, length: &str, more: &str) -> Launcher {
    let first = host(folder, etcd, length, more);
    while !etcd.pairs().contains_key("job/first") {
        sleep(Duration::from_millis(5));
    }
    first
}

#[test]
fn hosts_that_meet_in_etcd_end_with_the_same_bits_and_leave_nothing_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let (whole, etcd) = (undisturbed(folder, SHORT, STEPS), FakeEtcd::start());
    let first = first(folder, &etcd, SHORT, "--hosts 2 --out run");
    let second = host(folder, &etcd, SHORT, "--hosts 2");
    second.ends_well();
    first.ends_well();
    assert!(weights(&folder.join("run"), STEPS) == whole, "the weights differ");
    assert!(etcd.pairs().is_empty(), "{:?} are left", etcd.pairs());
}

#[test]
fn a_study_meets_in_etcd_for_each_of_its_cases() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (folder, etcd) = (folder.path(), FakeEtcd::start());
    let study = |out: &str| {
        let place = format!("--hosts 2 --rendezvous etcd://{}/study", etcd.at);
        let sizes = "--steps 3 --global-batch 4,8 --threads 1 --workers 1 --pin no";
        Launcher::start(folder, &format!("bench mobilenet_v2 {sizes} {place} --out {out}"))
    };
    let hosts = ["a", "b"].map(study);
    for host in hosts {
        host.ends_well();
    }
    let reported =
        ["a", "b"].map(|out| folder.join(out)).into_iter().filter(|out| out.join("report.json").exists());
    let [reported] = &reported.collect::<Vec<_>>()[..] else { panic!("one of them is first") };
    let cases = report(reported)["cases"].as_array().expect("cases").clone();
    assert_eq!(cases.iter().filter(|case| case["status"] == "done").count(), 2, "{cases:?}");
    assert!(etcd.pairs().is_empty(), "{:?} are left", etcd.pairs());
}

#[test]
fn the_first_host_is_lost_as_any_other_and_the_training_goes_on_with_the_same_bits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let (whole, etcd) = (undisturbed(folder, LONG, LONG_STEPS), FakeEtcd::start());
    let length = format!("{LONG} --elastic --hosts 1:3");
    let lost = first(folder, &etcd, &length, "--out a");
    let others = ["b", "c"].map(|name| host(folder, &etcd, &length, &format!("--out {name}")));
    let case = |run: &str| folder.join(run).join("run");
    for run in ["b", "c"] {
        wait_for(&case(run).join("member-0.jsonl"), "\"step\":{\"step\":20,");
    }
    lost.signal(Signal::KILL);
    drop(lost);
    others.into_iter().for_each(Launcher::ends_well);
    // One of them has led to the end, and has everything.
    let led: Vec<&str> =
        ["b", "c"].into_iter().filter(|run| folder.join(run).join("report.json").exists()).collect();
    let [led] = led[..] else { panic!("{led:?} have reported") };
    let out = folder.join(led);
    assert!(weights(&out, LONG_STEPS) == whole, "the weights differ");
    assert!(out.join("weights.safetensors").exists());
    let report = report(&out);
    let case = &report["cases"][0];
    assert_eq!(case["status"], "done");
    let hosts = case["hosts"].as_array().expect("a table of hosts");
    assert_eq!(hosts.len(), 3, "{hosts:?}");
    assert!(hosts[0]["lost_s"].is_number() && hosts[0]["unknown"].is_string(), "{}", hosts[0]);
    for host in &hosts[1..] {
        assert_eq!((&host["lost_s"], &host["unknown"]), (&Value::Null, &Value::Null), "{host}");
        assert_eq!(host["joined_s"], 0.0, "{host}");
    }
    assert!(etcd.pairs().is_empty(), "{:?} are left", etcd.pairs());
}

#[test]
fn a_first_host_that_is_asked_to_end_hands_over() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let (whole, etcd) = (undisturbed(folder, LONG, LONG_STEPS), FakeEtcd::start());
    let length = format!("{LONG} --elastic --hosts 1:2");
    let leaving = first(folder, &etcd, &length, "--out a");
    let staying = host(folder, &etcd, &length, "--out b");
    wait_for(&folder.join("b/run/member-0.jsonl"), "\"step\":{\"step\":20,");
    leaving.signal(Signal::TERM);
    let said = leaving.fails();
    assert!(said.contains("To resume"), "{said}");
    staying.ends_well();
    assert!(weights(&folder.join("b"), LONG_STEPS) == whole, "the weights differ");
    let host = &report(&folder.join("b"))["cases"][0]["hosts"][0];
    assert!(host["left_s"].is_number() && host["lost_s"].is_null(), "{host}");
}

#[test]
fn a_host_that_comes_after_the_first_was_lost_is_taken_in_by_the_one_in_its_place() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let (whole, etcd) = (undisturbed(folder, LONG, LONG_STEPS), FakeEtcd::start());
    // Without a second host it waits.
    let length = format!("{LONG} --elastic --hosts 2:3");
    let lost = first(folder, &etcd, &length, "--out a");
    let heir = host(folder, &etcd, &length, "--out b");
    wait_for(&folder.join("b/run/member-0.jsonl"), "\"step\":{\"step\":10,");
    lost.signal(Signal::KILL);
    drop(lost);
    let late = host(folder, &etcd, &length, "--out c");
    late.ends_well();
    heir.ends_well();
    assert!(weights(&folder.join("b"), LONG_STEPS) == whole, "the weights differ");
    let log = fs::read_to_string(case_folder(&folder.join("b")).join("launcher.jsonl")).expect("a log");
    let mut generations: Vec<u64> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["hosts"]["generation"].as_u64())
        .collect();
    assert!(generations.len() > 2, "{generations:?}");
    let known = generations.clone();
    generations.dedup();
    assert!(generations == known && generations.is_sorted(), "{known:?}: a number was used twice");
}

#[test]
fn etcd_may_be_away_and_may_forget_while_all_are_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let (whole, etcd) = (undisturbed(folder, LONG, LONG_STEPS), FakeEtcd::start());
    let length = format!("{LONG} --elastic --hosts 1:2");
    let first = first(folder, &etcd, &length, "--out a");
    let second = host(folder, &etcd, &length, "--out b");
    let log = folder.join("b/run/member-0.jsonl");
    wait_for(&log, "\"step\":{\"step\":10,");
    etcd.set_down(true);
    sleep(Duration::from_millis(2_500));
    etcd.forget();
    etcd.set_down(false);
    // What it has forgotten is written down again while all are there, and then one of them may go.
    while !etcd.pairs().contains_key("job/roster") {
        sleep(Duration::from_millis(20));
    }
    second.signal(Signal::KILL);
    drop(second);
    let (status, said) = first.ended();
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains("does not answer") && said.contains("goes on with the hosts that it has"),
        "{said}"
    );
    assert!(said.contains("answers again") && said.contains("written down again"), "{said}");
    assert!(weights(&folder.join("a"), LONG_STEPS) == whole, "the weights differ");
}

/// More than any test waits for.
const ENDLESS: &str = "--epochs 4000";

/// Waits until the first host's member has done some steps.
fn wait_for_steps(run: &Path) {
    let begin = Instant::now();
    let logs =
        || fs::read_dir(run).into_iter().flatten().flatten().map(|case| case.path().join("member-0.jsonl"));
    while logs().all(|log| !log.exists()) {
        assert!(begin.elapsed() < PATIENCE, "no member has begun in {}", run.display());
        sleep(Duration::from_millis(20));
    }
    wait_for(&case_folder(run).join("member-0.jsonl"), "\"step\":{\"step\":5,");
}

#[test]
fn whoever_comes_while_etcd_is_away_joins_the_training_that_etcd_has_lost_sight_of() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let etcd = FakeEtcd::start();
    let length = format!("{ENDLESS} --elastic --hosts 1:2");
    let first = first(folder, &etcd, &length, "--out a");
    wait_for_steps(&folder.join("a"));
    etcd.set_down(true);
    let late = host(folder, &etcd, &length, "--out b");
    // All leases run out.
    sleep(Duration::from_millis(2_500));
    assert_eq!(etcd.pairs().into_keys().collect::<Vec<_>>(), ["job/roster"]);
    etcd.set_down(false);
    // Only a host that takes part in another one's training has this folder.
    wait_for(&folder.join("b/run/member-0.jsonl"), "\"step\":{\"step\":");
    drop((first, late));
}

#[test]
fn a_first_host_that_finds_another_ones_roster_ends_its_run_with_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let etcd = FakeEtcd::start();
    let first = first(folder, &etcd, &format!("{ENDLESS} --elastic --hosts 1:2"), "--out a");
    wait_for_steps(&folder.join("a"));
    let roster = etcd.pairs().remove("job/roster").expect("it was granted");
    let mut other: Value = serde_json::from_str(&roster).expect("JSON");
    (other["run"], other["by"]) = (7.into(), 8.into());
    etcd.put("job/roster", &other.to_string());
    let said = first.fails();
    assert!(said.contains("another host leads the run") && said.contains("taken for lost"), "{said}");
    assert!(newest(&folder.join("a")) > 0);
    assert_eq!(etcd.pairs().get("job/roster"), Some(&other.to_string()), "it is the other one's");
}

#[test]
fn places_that_cannot_be_used_are_refused_in_words() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    fs::write(folder.join("secret"), training::hosts::SECRET).expect("a file");
    let base = "train mobilenet_v2 --hosts 2 --steps 2 --rendezvous";
    for (place, expected) in [
        ("etcd://127.0.0.1:1", "write etcd://HOST:PORT/PREFIX"),
        ("etcds://127.0.0.1:1/job", "ETCDCTL_CACERT"),
    ] {
        let message = refuse(folder, &format!("{base} {place} --secret-file secret"));
        assert!(message.contains(expected), "{message}");
    }
}
