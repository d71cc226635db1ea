//! `paceline bench`, from the command to the report.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use paceline_record::log::RankReader;
use paceline_record::{Rank, RankEvent};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long something may take that should happen at once.
const PATIENCE: Duration = Duration::from_secs(20);

fn bench(out: &Path, arguments: &str) -> Command {
    let mut command = Command::new(cargo_bin!("paceline"));
    command
        .args(["bench", "--threads", "1", "--workers", "1", "--out"])
        .arg(out)
        .args(arguments.split_whitespace())
        .stdin(Stdio::null());
    command
}

fn run(out: &Path, arguments: &str) -> Output {
    let output = bench(out, arguments).output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    output
}

fn report(out: &Path) -> Value {
    let text = fs::read(out.join("report.json")).expect("a report");
    serde_json::from_slice(&text).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn a_small_study_leaves_a_report_whose_numbers_add_up() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    let output = run(&out, "mobilenet_v2 --batch 16 --steps 8");
    let table = String::from_utf8(output.stdout).expect("text");
    let (made, table) = table.split_once('\n').expect("lines");
    assert!(table.contains("\nResults\n") && table.contains("batch 16 per worker"), "{table}");
    assert!(table.contains("study"), "{table}");

    let report = report(&out);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert_eq!(report["host"], host.trim());
    let date = report["date"].as_str().expect("a date");
    assert!(
        date.starts_with("20") && date.ends_with('Z') && date.len() == "2026-11-16T08:33:34Z".len(),
        "{date}"
    );
    let version = env!("CARGO_PKG_VERSION");
    let expected =
        format!("Paceline {version}, {} UTC, on {}", date.replace(['T', 'Z'], " ").trim(), host.trim());
    assert_eq!(made, expected);

    let case = &report["cases"][0];
    assert_eq!(case["status"], "done");
    assert!(case["date"].as_str().is_some_and(|started| started >= date), "{}", case["date"]);
    assert!(case["load"]["busy_cores"].as_f64().is_some_and(|busy| busy >= 0.0), "{}", case["load"]);
    assert_eq!(case["model"], "mobilenet_v2");
    assert_eq!((&case["steps"], &case["examples"]), (&8.into(), &128.into()));
    assert_eq!(case["steady"]["verdict"], "too short");
    assert_eq!(number(&case["speedup_total"]), 1.0);

    let total = number(&case["total_s"]);
    let phases = case["phases_s"].as_object().expect("an object");
    let sum: f64 = phases.values().map(number).sum();
    assert!((sum - total).abs() < 1e-6, "{sum} is not {total}");
    let other = number(&phases["other"]);
    // A busy machine may take a worker off its core between two phases, too.
    assert!(other.abs() < 0.1 * total, "{other} of {total} s went elsewhere");
    assert!(number(&case["init_s"]) + number(&case["train_s"]) <= total);
    assert!(number(&case["init_s"]) < 1.0);

    let rate = &case["images_per_s"];
    assert!(number(&rate["lo"]) <= number(&rate["mean"]));
    assert!(number(&rate["mean"]) <= number(&rate["hi"]));
    assert!(number(&case["peak_memory_bytes"]["total"]) > 0.0);
    assert!(number(&case["loss_first"]) > 0.0);
}

#[test]
fn json_is_the_report_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    let output = run(&out, "mobilenet_v2 --batch 2 --steps 2 --json --profile");
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!(printed, report(&out));
}

#[test]
fn a_profile_lists_layers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    let output = run(&out, "mobilenet_v2 --batch 2 --steps 2 --profile=3");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("GFLOP/s") && text.contains("% of time"), "{text}");
    assert!(out.join("mobilenet_v2-w1/layers.json").exists());
}

#[test]
fn several_networks_are_several_cases() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    run(&out, "mobilenet_v2 image_compression --batch 2 --steps 2 --layout nchw");
    let report = report(&out);
    let models: Vec<_> = report["cases"].as_array().expect("a list").iter().map(|c| &c["model"]).collect();
    assert_eq!(models, ["mobilenet_v2", "image_compression"]);
    let study = fs::read(out.join("study.json")).expect("what was asked");
    let study: Value = serde_json::from_slice(&study).expect("JSON");
    assert_eq!(study["cases"][1]["layout"], "nchw");
}

#[test]
fn without_out_a_study_gets_a_folder_of_its_own() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for _ in 0..2 {
        let output = Command::new(cargo_bin!("paceline"))
            .current_dir(folder.path())
            .args("bench mobilenet_v2 --batch 1 --steps 1".split_whitespace())
            .output()
            .expect("the program runs");
        assert!(output.status.success());
    }
    assert!(folder.path().join("study-1/report.json").exists());
    assert!(folder.path().join("study-2/report.json").exists());
}

/// A study that would go on for hours, its worker in the middle of the steps.
struct Endless {
    launcher: Child,
    worker: Pid,
    out: PathBuf,
    _folder: tempfile::TempDir,
}

fn start_endless() -> Endless {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    let launcher = bench(&out, "mobilenet_v2 --batch 1 --steps 1000000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let case = out.join("mobilenet_v2-w1");
    let worker = wait_for(|| find_worker(&case));
    Endless { launcher, worker, out, _folder: folder }
}

/// The worker's process, once it has done a step.
fn find_worker(case: &Path) -> Option<Pid> {
    let mut log = RankReader::open(case, Rank(0)).ok()?;
    let mut worker = None;
    loop {
        match log.next_event().expect("a healthy log")? {
            RankEvent::Main { pid, .. } => worker = Pid::from_raw(pid as i32),
            RankEvent::Step(_) => return worker,
            _ => {}
        }
    }
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "it did not happen in time");
        sleep(Duration::from_millis(10));
    }
}

/// Waits until a process does nothing any more. One that nobody reaps stays in the system's list, as a zombie.
fn wait_until_gone(process: Pid) {
    let path = format!("/proc/{}/status", process.as_raw_pid());
    let is_zombie = |status: String| status.lines().any(|line| line.starts_with("State:\tZ"));
    wait_for(|| fs::read_to_string(&path).map_or(true, is_zombie).then_some(()));
}

#[test]
fn a_worker_that_is_killed_is_named_with_its_step_and_signal() {
    let Endless { launcher, worker, out, _folder } = start_endless();
    kill_process(worker, Signal::KILL).expect("it runs");
    let output = launcher.wait_with_output().expect("the launcher ends");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("rank 0 ended in step"), "{said}");
    assert!(said.contains("signal 9 (SIGKILL)"), "{said}");
    let report = report(&out);
    assert_eq!(report["cases"][0]["status"], "failed");
    assert!(report["cases"][0]["reason"].as_str().is_some_and(|r| r.contains("SIGKILL")));
    assert_eq!(report["cases"][0]["images_per_s"], Value::Null);
}

#[test]
fn a_worker_dies_with_its_launcher() {
    let mut endless = start_endless();
    endless.launcher.kill().expect("it runs");
    endless.launcher.wait().expect("it ends");
    wait_until_gone(endless.worker);
}

#[test]
fn an_interruption_ends_the_worker_and_is_reported() {
    let Endless { launcher, worker, out, _folder } = start_endless();
    kill_process(Pid::from_child(&launcher), Signal::INT).expect("it runs");
    let output = launcher.wait_with_output().expect("the launcher ends");
    assert_eq!(output.status.code(), Some(1));
    wait_until_gone(worker);
    assert_eq!(report(&out)["cases"][0]["status"], "interrupted");
}
