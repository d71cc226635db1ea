//! `--hosts`: trainings on several hosts end with the same bits as on one, whichever host was lost or came, and whenever.
//! The hosts are launchers on this machine that talk over loopback.

mod training;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use training::hosts::{
    LONG, LONG_STEPS, Launcher, RECIPE, SHORT, STEPS, case_folder, newest, numbers_add_up, somewhere,
    undisturbed, wait_for,
};
use training::{paceline, pictures, refuse, report, run, weights};

#[test]
fn every_number_of_hosts_and_dealing_of_workers_gives_the_same_bits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    for (number, more) in [
        "--hosts 2 --workers 1",
        "--hosts 3 --workers 1",
        "--hosts 4 --workers 1",
        "--hosts 2 --workers 2 --encrypt",
        "--hosts 2 --elastic 1:2 --workers 2 --deal dynamic",
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("hosts-{number}");
        run(folder, &format!("{RECIPE} {SHORT} {more} --local --out {out}"));
        let out = folder.join(out);
        assert!(weights(&out, STEPS) == whole, "{more}: the weights differ");
        let case = &report(&out)["cases"][0];
        assert_eq!(case["status"], "done", "{more}");
        let hosts = case["hosts"].as_array().expect("a table of hosts").len();
        let workers: u64 = more.split(' ').nth(1).and_then(|count| count.parse().ok()).expect("a number");
        assert_eq!(hosts as u64, workers, "{more}");
        let each = if more.contains("--workers 2") { 2 } else { 1 };
        assert_eq!(case["workers"], workers * each, "{more}");
        assert_eq!(case["host_notes"], Value::Null, "{more}");
        numbers_add_up(case);
    }
}

#[test]
fn workers_that_are_killed_on_every_host_change_no_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    for (number, strikes) in [
        "kill@in-shard:3:0",
        "kill@in-slice:9:0,kill@before-flag:20:1",
        "kill@before-slice:7:0,kill@in-test:1:1",
        "kill@after-flag:15:0,kill@in-checkpoint:1:1",
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("struck-{number}");
        let mut command = paceline(
            folder,
            &format!("{RECIPE} {SHORT} --hosts 2 --local --elastic 1:2 --workers 2 --out {out}"),
        );
        let output = command.env("PACELINE_STRIKE", strikes).output().expect("the program starts");
        assert!(output.status.success(), "{strikes}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(weights(&folder.join(out), STEPS) == whole, "{strikes}: the weights differ");
    }
}

#[test]
fn a_case_that_fails_on_several_hosts_takes_no_other_case_with_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let place = somewhere();
    let study = |out: &str| {
        let sizes = "--steps 4 --shards 4,2 --global-batch 8 --threads 1 --workers 1 --pin no";
        paceline(folder, &format!("bench mobilenet_v2 {sizes} --hosts 2 {place} --out {out}"))
    };
    let first = Launcher::of(study("first"));
    // The worker of the other host is killed at its seventh shard: it has eight of them in the one case, and four in the other.
    let mut other = study("other");
    other.env("PACELINE_STRIKE", "kill@in-shard:7:0");
    let said = Launcher::of(other).fails();
    assert!(said.contains("goes on with its next case"), "{said}");
    assert!(said.contains("not all of its cases were done"), "{said}");
    first.fails();
    let cases = report(&folder.join("first"))["cases"].as_array().expect("cases").clone();
    let status: Vec<&Value> = cases.iter().map(|case| &case["status"]).collect();
    assert_eq!(status, ["failed", "done"], "{cases:?}");
    assert_eq!(cases[1]["hosts"].as_array().expect("a table of hosts").len(), 2);
}

#[test]
fn each_sample_is_used_once_whichever_host_it_falls_to() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    run(folder, &format!("{RECIPE} {SHORT} --log-samples --workers 1 --elastic --out whole"));
    run(folder, &format!("{RECIPE} {SHORT} --log-samples --hosts 2 --local --workers 1 --out hosts"));
    let read = |path: &Path| -> BTreeMap<String, usize> {
        let mut lines = BTreeMap::new();
        for line in fs::read_to_string(path).expect("samples").lines() {
            *lines.entry(line.to_owned()).or_default() += 1;
        }
        lines
    };
    let whole = read(&case_folder(&folder.join("whole")).join("samples.txt"));
    let case = case_folder(&folder.join("hosts"));
    let mut all = read(&case.join("samples.txt"));
    for (line, count) in read(&case.join("host-1/samples.txt")) {
        *all.entry(line).or_default() += count;
    }
    assert_eq!(all, whole);
}

#[test]
fn a_training_goes_on_without_a_host_and_with_one_that_comes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, LONG, LONG_STEPS);
    let job = format!("{RECIPE} {LONG} --elastic --workers 1 --hosts 1:3 --host-wait 30 {}", somewhere());
    let first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for(&folder.join("first/study.json"), "mobilenet");
    let second = Launcher::start(folder, &format!("{job} --out second"));
    let third = Launcher::start(folder, &format!("{job} --out third"));
    let log = folder.join("first/mobilenet_v2-w3/launcher.jsonl");
    wait_for(&log, "\"hosts\":{\"generation\":1");
    wait_for(&folder.join("first/mobilenet_v2-w3/member-0.jsonl"), "\"step\":12,");
    second.signal(Signal::KILL);
    drop(second);
    wait_for(&log, "\"lost\"");
    let fourth = Launcher::start(folder, &format!("{job} --out fourth"));
    first.ends_well();
    third.ends_well();
    fourth.ends_well();
    assert!(weights(&folder.join("first"), LONG_STEPS) == whole, "the weights differ");
    let case = &report(&folder.join("first"))["cases"][0];
    assert_eq!(
        (&case["recovery"]["hosts_lost"], &case["recovery"]["hosts_joined"]),
        (&1.into(), &1.into()),
        "{case}"
    );
    // What was lost with a host is unknown, and is said.
    assert_eq!(case["host_notes"].as_array().map(Vec::len), Some(1), "{}", case["host_notes"]);
}

#[test]
fn without_the_first_host_the_others_save_and_any_of_them_can_be_resumed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, LONG, LONG_STEPS);
    let job = format!("{RECIPE} {LONG} --elastic --workers 1 --hosts 2 {}", somewhere());
    let first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for(&folder.join("first/study.json"), "mobilenet");
    let second = Launcher::start(folder, &format!("{job} --out second"));
    wait_for(&folder.join("first/mobilenet_v2-w2/member-0.jsonl"), "\"step\":9,");
    first.signal(Signal::KILL);
    drop(first);
    let said = second.fails();
    assert!(said.contains("the first host") && said.contains("this host has saved"), "{said}");
    assert!(newest(&folder.join("second")) >= 9);
    run(folder, "train --resume second/checkpoints --elastic no --workers 1 --out resumed");
    let resumed = folder.join("resumed");
    assert!(fs::read(resumed.join("weights.safetensors")).expect("weights") == whole.0, "the weights differ");
}

#[test]
fn hosts_may_have_other_numbers_of_workers_and_the_report_has_the_total() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    let job = format!("{RECIPE} {SHORT} --hosts 2 {}", somewhere());
    let first = Launcher::start(folder, &format!("{job} --workers 1 --out first"));
    wait_for(&folder.join("first/study.json"), "mobilenet");
    Launcher::start(folder, &format!("{job} --workers 2 --out second")).ends_well();
    first.ends_well();
    assert!(weights(&folder.join("first"), STEPS) == whole, "the weights differ");
    let case = &report(&folder.join("first"))["cases"][0];
    assert_eq!(case["workers"], 3);
    numbers_add_up(case);
}

#[test]
fn who_cannot_be_found_may_come_later_so_it_is_no_bad_usage() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let job = "train mobilenet_v2 --batch 2 --steps 2 --workers 1 --hosts 2 --host-wait 0.5 --out never";
    for (place, expected) in [
        (
            "tcp://no.such.host.invalid:29400",
            "cannot find no.such.host.invalid:29400, where hosts are to meet",
        ),
        ("etcd://no.such.host.invalid:2379/job", "etcd at no.such.host.invalid:2379 does not answer"),
    ] {
        let mut command = paceline(folder.path(), &format!("{job} --rendezvous {place}"));
        let output =
            command.env("PACELINE_SECRET", "a secret of many bytes").output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected) && said.contains("--host-wait"), "{said}");
        assert!(!folder.path().join("never").exists());
    }
}

#[test]
fn a_host_that_is_not_the_first_keeps_to_a_folder_of_its_own() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    fs::create_dir(folder.join("run")).expect("a folder");
    fs::write(folder.join("run/mine"), "x").expect("a file");
    let place = TcpListener::bind("127.0.0.1:0").expect("somebody listens");
    let at = place.local_addr().expect("an address");
    let job = "train mobilenet_v2 --batch 2 --steps 2 --threads 1 --workers 1 --hosts 2";
    let mut command = paceline(folder, &format!("{job} --rendezvous tcp://{at} --out ."));
    let output =
        command.env("PACELINE_SECRET", "a secret of many bytes").output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("is not empty"), "{said}");
    assert!(folder.join("run/mine").exists(), "what is there stays");
}

#[test]
fn a_training_that_is_not_elastic_ends_with_its_first_lost_host() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let job = format!("{RECIPE} {LONG} --workers 1 --hosts 2 {}", somewhere());
    let first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for(&folder.join("first/study.json"), "mobilenet");
    let second = Launcher::start(folder, &format!("{job} --out second"));
    wait_for(&folder.join("first/mobilenet_v2-w2/member-0.jsonl"), "\"step\":9,");
    second.signal(Signal::KILL);
    drop(second);
    let said = first.fails();
    assert!(said.contains("host 1") && said.contains("--resume first"), "{said}");
    assert!(newest(&folder.join("first")) >= 9);
}

#[test]
fn every_host_is_told_which_worker_ended_a_training_that_is_not_elastic() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let job = format!("{RECIPE} {LONG} --workers 1 --hosts 2 {}", somewhere());
    let first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for(&folder.join("first/study.json"), "mobilenet");
    let second = Launcher::start(folder, &format!("{job} --out second"));
    let log = folder.join("second/run/member-0.jsonl");
    wait_for(&log, "\"step\":{\"step\":3,");
    let text = fs::read_to_string(&log).expect("a log");
    let main = text.lines().find_map(|line| serde_json::from_str::<Value>(line).ok()?.get("main").cloned());
    let pid = main.and_then(|main| main["pid"].as_i64()).and_then(|pid| Pid::from_raw(pid as i32));
    kill_process(pid.expect("its number"), Signal::KILL).expect("a process of our own");
    for said in [first.fails(), second.fails()] {
        assert!(said.contains("worker 0 was lost (signal 9 (SIGKILL))"), "{said}");
    }
}

#[test]
fn a_host_with_another_job_is_sent_away_and_others_are_waited_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    let meet = somewhere();
    let job = format!("{RECIPE} {SHORT} --workers 1 --hosts 2 {meet}");
    let first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for(&folder.join("first/study.json"), "mobilenet");
    for (more, expected) in
        [("--seed 7", "seed is 7"), ("--lr 0.5", "--lr is 0.5"), ("--hosts 3", "--hosts is 3")]
    {
        let output = Launcher::start(folder, &format!("{job} {more} --out other")).end();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && said.contains("another job"), "{said}");
    }
    let output =
        Launcher::with_secret(folder, &format!("{job} --out other"), "another secret, also long").end();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("secret"), "{said}");
    assert!(!folder.join("other").exists(), "nothing is left of who was sent away");
    Launcher::start(folder, &format!("{job} --out second")).ends_well();
    let output = first.end();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("was sent away") && said.contains("seed is 7"), "{said}");
    assert!(weights(&folder.join("first"), STEPS) == whole, "the weights differ");
    assert!(!folder.join("second").exists(), "its logs are with the first host");
}

#[test]
fn hosts_that_nobody_meets_give_up_and_say_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let job = "train mobilenet_v2 --batch 2 --steps 2 --threads 1 --workers 1 --hosts 2 --host-wait 1";
    let first = Launcher::start(folder, &format!("{job} {} --out first", somewhere()));
    let said = first.fails();
    assert!(said.contains("only 1 of at least 2 hosts came within 1 s"), "{said}");
    // An address that this machine does not have, where nobody listens.
    let other = Launcher::start(
        folder,
        &format!("{job} --rendezvous tcp://127.0.0.2:1 --interface 127.0.0.1 --out other"),
    );
    let output = other.end();
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    for (arguments, expected) in [
        ("--hosts 2", "--rendezvous tcp://HOST:PORT"),
        ("--hosts 1:2 --local", "use it with --elastic"),
        ("--hosts 0 --local", "at least 1 host"),
        ("--hosts x --local", "no number of hosts"),
        ("--local", "use it with --hosts N"),
        ("--encrypt", "use it with --hosts N"),
        ("--hosts 2 --rendezvous first:29400", "there are tcp://HOST:PORT, file:///DIR and etcd://"),
        ("--hosts 2 --rendezvous tcp://first", "no host or no port"),
        ("--hosts 2 --rendezvous tcp://0.0.0.0:29400 --secret-file secret", "every host's address"),
        ("--hosts 2 --rendezvous tcp://127.0.0.1:29400", "hosts show each other a secret"),
        ("--hosts 2 --rendezvous tcp://127.0.0.1:29400 --secret-file short", "too short"),
        ("--hosts 2 --rendezvous tcp://127.0.0.1:29400 --secret-file missing", "cannot read missing"),
        ("--hosts 2 --local --update ps-cpu", "ps-cpu"),
        ("--hosts 2 --rendezvous file:///no/such/place --secret-file secret", "/no/such/place is no folder"),
        ("--hosts 2 --local --workers 3 --shards 4", "4 shards cannot keep 6 workers busy"),
    ] {
        fs::write(folder.join("secret"), "0123456789abcdef\n").expect("a file");
        fs::write(folder.join("short"), "1234\n").expect("a file");
        let said = refuse(folder, &format!("train mobilenet_v2 --batch 2 --steps 2 {arguments} --out never"));
        assert!(said.contains(expected), "{arguments}: {said}");
        assert!(!folder.join("never").exists(), "{arguments}");
    }
}
