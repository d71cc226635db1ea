//! Several workers as processes: what they report, and what happens when one of them, or the launcher, dies.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_paceline");

fn bench(out: &Path, arguments: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["bench", "--threads", "1", "--out"]).arg(out).args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(out: &Path, arguments: &str) -> Output {
    let output = bench(out, arguments).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn report(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("report.json")).expect("a report")).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number, not {value}"))
}

#[test]
fn the_phases_of_all_ranks_tile_the_run_and_every_strategy_reports_its_exchange() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    run(
        &out,
        "mobilenet_v2 --workers 2 --batch 32 --steps 6 --update allreduce,sharded,replicated,ps-cpu,independent",
    );
    let report = report(&out);
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 5);
    for case in cases {
        let update = case["update"].as_str().expect("a name");
        assert_eq!(case["status"], "done", "{case}");
        assert_eq!((case["workers"].as_u64(), case["examples"].as_u64()), (Some(2), Some(2 * 6 * 32)));
        let phases = case["phases_s"].as_object().expect("phases");
        let sum: f64 = phases.values().map(number).sum();
        let total = number(&case["total_s"]);
        assert!((sum - 2.0 * total).abs() < 1e-6, "{update}: {sum} s in phases, {total} s in all");
        // A busy machine takes a worker off its core between two phases, too; what is left is the program's own.
        let other = number(&phases["other"]) - case["off_core"]["phases_s"]["other"].as_f64().unwrap_or(0.0);
        assert!(other.abs() < 0.1 * 2.0 * total, "{update}: other is {other} of {total} s on the core");
        let split = &case["comm_wait_split_s"];
        let waited = number(&split["late_rank"]) + number(&split["transfer"]);
        assert!((waited - number(&phases["comm_wait"])).abs() < 1e-6, "{update}");
        let busy = number(&case["comm_busy_s"]);
        assert_eq!(busy > 0.0, update != "independent", "{update}");
        assert_eq!(number(&phases["comm_cpu"]) > 0.0, update != "independent", "{update}");
        if update == "ps-cpu" {
            assert!(number(&phases["copy_in"]) > 0.0, "the others fetch the parameters");
        }
    }
    let losses: Vec<f64> = cases[..4].iter().map(|case| number(&case["loss_last"])).collect();
    assert!(losses.iter().all(|loss| *loss == losses[0]), "all of them train the same network: {losses:?}");
    let log = fs::read_to_string(out.join("mobilenet_v2-w2/rank-1.jsonl")).expect("a log");
    assert!(log.contains("last_arrival") && log.contains("comm_busy"), "{log}");
}

#[test]
fn one_worker_and_two_stand_side_by_side_with_their_speed_up() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    run(
        &out,
        "mobilenet_v2 --workers 1,2 --batch 8 --steps 5 --accumulate 2 --bucket-mb 1 --overlap no --pin no",
    );
    let report = report(&out);
    assert_eq!(report["cases"][0]["speedup_speed"], 1.0);
    let speedup = number(&report["cases"][1]["speedup_speed"]);
    let rate = |case: usize| number(&report["cases"][case]["images_per_s"]["mean"]);
    assert!((speedup - rate(1) / rate(0)).abs() < 1e-9);
    assert_eq!(report["cases"][1]["examples"], 2 * 5 * 2 * 8);
}

#[test]
fn gradients_travel_in_16_bits_on_request_and_more_workers_than_cores_are_warned_of() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output =
        run(&folder.path().join("study"), "mobilenet_v2 --workers 67 --batch 1 --steps 2 --compress bf16");
    let words = String::from_utf8_lossy(&output.stderr);
    let warned = words.contains("take turns");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(warned, cores < 67, "{words}");
}

/// A study that would run for hours.
struct Endless {
    child: Child,
    folder: tempfile::TempDir,
}

impl Endless {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let out = folder.path().join("study");
        let child = bench(&out, "mobilenet_v2 --workers 3 --batch 2 --steps 1000000")
            .process_group(0)
            .spawn()
            .expect("it starts");
        let endless = Self { child, folder };
        // All ranks have begun to train.
        endless.until(|| (0..3).all(|rank| endless.log(rank).contains("\"step\"")));
        endless
    }

    fn log(&self, rank: u32) -> String {
        let path = self.folder.path().join(format!("study/mobilenet_v2-w3/rank-{rank}.jsonl"));
        fs::read_to_string(path).unwrap_or_default()
    }

    fn worker(&self, rank: u32) -> u32 {
        let log = self.log(rank);
        let pid = log.split("\"pid\":").nth(1).expect("a worker tells its process");
        pid.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
    }

    fn until(&self, done: impl Fn() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it takes too long");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn kill(process: u32) {
    let status = Command::new("kill").args(["-9", &process.to_string()]).status().expect("kill is there");
    assert!(status.success());
}

fn is_gone(process: u32) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        Err(_) => true,
        // A zombie has ended; its parent has not looked yet.
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
    }
}

#[test]
fn one_dead_worker_ends_the_run_on_all_ranks_and_is_named() {
    let endless = Endless::start();
    let workers: Vec<u32> = (0..3).map(|rank| endless.worker(rank)).collect();
    kill(workers[1]);
    let begin = Instant::now();
    let Endless { child, folder } = endless;
    let output = child.wait_with_output().expect("it ends");
    assert!(begin.elapsed() < Duration::from_secs(2), "it ended after {:?}", begin.elapsed());
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("rank 1") && words.contains("SIGKILL") && words.contains("step"), "{words}");
    assert!(workers.iter().all(|&worker| is_gone(worker)), "nobody is left");
    let report = report(&folder.path().join("study"));
    assert_eq!(report["cases"][0]["status"], "failed");
}

#[test]
fn a_worker_that_is_interrupted_alone_is_a_death_and_no_wish_of_the_user() {
    let endless = Endless::start();
    let status =
        Command::new("kill").args(["-2", &endless.worker(2).to_string()]).status().expect("kill is there");
    assert!(status.success());
    let output = endless.child.wait_with_output().expect("it ends");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("rank 2") && words.contains("SIGINT"), "{words}");
}

#[test]
fn a_group_that_is_told_to_end_is_interrupted_and_has_not_failed() {
    let endless = Endless::start();
    let group = Pid::from_child(&endless.child);
    kill_process_group(group, Signal::TERM).expect("it runs");
    let Endless { child, folder } = endless;
    let output = child.wait_with_output().expect("it ends");
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert_eq!(report(&folder.path().join("study"))["cases"][0]["status"], "interrupted", "{words}");
}

#[test]
fn many_sizes_do_not_fill_a_pipe_that_nobody_reads() {
    let sizes: Vec<String> = (1..=600).map(|values| (4 * values).to_string()).collect();
    let output = Command::new(PROGRAM)
        .args(["allreduce", "--workers", "2", "--sizes", &sizes.join(",")])
        .output()
        .expect("the program starts");
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).lines().count() > 600);
}

#[test]
fn all_workers_die_with_their_launcher() {
    let mut endless = Endless::start();
    let workers: Vec<u32> = (0..3).map(|rank| endless.worker(rank)).collect();
    kill(endless.child.id());
    endless.child.wait().expect("it was killed");
    endless.until(|| workers.iter().all(|&worker| is_gone(worker)));
}

#[test]
fn all_reduces_are_timed_and_right() {
    let output = Command::new(PROGRAM)
        .args(["allreduce", "--workers", "1,3", "--sizes", "4,4K..8K"])
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(2), "a list of sizes or a doubling, not both");
    let output = Command::new(PROGRAM)
        .args(["allreduce", "--workers", "1,3", "--sizes", "4K..16K"])
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let wrong = text.lines().find(|line| line.contains("wrong")).expect("a heading");
    let column =
        wrong.split("  ").filter(|word| !word.trim().is_empty()).position(|word| word.trim() == "wrong");
    let rows = text.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    let values: Vec<&str> =
        rows.filter_map(|row| row.split_whitespace().nth(column.expect("a column"))).collect();
    assert_eq!(values, ["0"; 6]);
}
