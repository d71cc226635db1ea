//! `paceline bench --engine simulated`: what is planted is what the report says.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

fn bench(out: &Path, arguments: &str) -> Output {
    Command::new(cargo_bin!("paceline"))
        .args(["bench", "mobilenet_v2", "--engine", "simulated", "--threads", "1", "--out"])
        .arg(out)
        .args(arguments.split_whitespace())
        .output()
        .expect("the program runs")
}

fn report(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("report.json")).expect("a report")).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number, not {value}"))
}

#[test]
fn a_straggler_is_reported_as_waiting_and_nothing_else_is() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    let output =
        bench(&out, "--workers 1,4,64 --steps 40 --profile=3 --simulate jitter=0,init=80,straggler=1:1.25");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("take turns"), "a machine that does not exist is not crowded: {said}");
    let report = report(&out);
    let [one, four, many] = &report["cases"].as_array().expect("cases")[..] else { panic!("three cases") };
    for case in [one, four, many] {
        assert_eq!((case["status"].as_str(), case["engine"].as_str()), (Some("done"), Some("simulated")));
        let (workers, total) = (number(&case["workers"]), number(&case["total_s"]));
        let phases = case["phases_s"].as_object().expect("phases");
        let sum: f64 = phases.values().map(number).sum();
        assert!((sum - workers * total).abs() < 1e-6, "{sum} s in phases of {workers} x {total} s");
        assert!(number(&phases["other"]).abs() < 1e-6);
        assert!((number(&phases["init"]) - 0.08 * workers).abs() < 1e-9);
    }
    // Three ranks wait for a quarter of what the first took to compute in the run alone.
    let compute = number(&one["phases_s"]["forward"]) + number(&one["phases_s"]["backward"]);
    let late = number(&four["comm_wait_split_s"]["late_rank"]);
    assert!((late / (3.0 * 0.25 * compute) - 1.0).abs() < 1e-6, "{late} s of {compute} s");
    assert!(number(&four["comm_wait_split_s"]["transfer"]) < 0.001 * compute);
    let speedup = number(&four["speedup_speed"]);
    assert!((3.2..3.25).contains(&speedup), "{speedup}");
    let study = fs::read_to_string(out.join("study.json")).expect("what was asked");
    assert!(study.contains("simulated: gflops=50,") && study.contains("straggler=1:1.25"), "{study}");
}

#[test]
fn a_rank_that_is_to_die_fails_its_case() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    let output = bench(&out, "--workers 1,2 --steps 5 --simulate fail=1:3");
    assert_eq!(output.status.code(), Some(1));
    let report = report(&out);
    assert_eq!(report["cases"][0]["status"], "done", "a world of one has no rank 1");
    let case = &report["cases"][1];
    assert_eq!((&case["status"], &case["steps"]), (&"failed".into(), &3.into()));
    let reason = case["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("rank 1 ended in step 3"), "{reason}");
}

#[test]
fn what_means_nothing_is_refused_with_what_does() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    for (arguments, expected) in [
        ("--simulate jiter=1", "the keys are gflops="),
        ("--simulate layer=nonesuch:1:1", "no layer 'nonesuch'"),
        ("--simulate jitter=0 --engine cpu", "--engine simulated"),
    ] {
        let mut command = Command::new(cargo_bin!("paceline"));
        command.args(["bench", "mobilenet_v2", "--out"]).arg(&out);
        if !arguments.contains("--engine") {
            command.args(["--engine", "simulated"]);
        }
        let output = command.args(arguments.split_whitespace()).output().expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
        assert!(!out.exists(), "nothing is left behind");
    }
}
