//! `--engine cuda` from the command line. Where there is no GPU the tests say so, check the refusal, and pass.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Map, Value};

/// The program; a copy of it where the tests run on another machine than they were built on.
fn program() -> String {
    std::env::var("PACELINE_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_paceline").into())
}

fn paceline(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(program());
    command.current_dir(folder).args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(folder: &Path, arguments: &str) -> Output {
    let output = paceline(folder, arguments).output().expect("the program starts");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn refused(folder: &Path, arguments: &str) -> String {
    let output = paceline(folder, arguments).output().expect("the program starts");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
    said
}

/// A folder to work in where there is a GPU. Where there is none, the refusal must say what is missing.
fn with_gpu() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let probe = "bench mobilenet_v2 --engine cuda --workers 1 --steps 1 --batch 2 --out probe";
    let output = paceline(folder.path(), probe).output().expect("the program starts");
    if output.status.success() {
        return Some(folder);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = excuse(&said).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(!folder.path().join("probe").exists(), "nothing half-written");
    static TOLD: Once = Once::new();
    // Not `eprintln!`, which is shown only where a test fails.
    TOLD.call_once(|| {
        let _ = writeln!(io::stderr(), "skipped: these tests need an NVIDIA GPU: {why}");
    });
    None
}

/// The error of a program that lacks a GPU, or a driver or library that is new enough. Whatever else goes wrong is a failure.
fn excuse(said: &str) -> Option<&str> {
    let error = said.lines().find_map(|line| line.strip_prefix("error: "))?;
    let missing = [
        "the NVIDIA driver (libcuda) was not found;",
        "cuDNN (libcudnn) was not found;",
        "cuBLASLt (libcublasLt) was not found;",
        "cuInit failed: no CUDA-capable device is detected;",
        "the driver has no GPU;",
    ];
    let too_old = error.contains(" or later is needed; install a newer one");
    (too_old || missing.iter().any(|begin| error.starts_with(begin))).then_some(error)
}

#[test]
fn only_a_missing_library_or_gpu_excuses_a_test() {
    for excused in [
        "warning: slow\nerror: cuDNN (libcudnn) was not found; 9.10 or later is needed",
        "error: cuDNN (libcudnn) 9.1.0 was found; 9.10 or later is needed; install a newer one, or name its folder",
    ] {
        assert!(excuse(excused).is_some(), "{excused}");
    }
    for failure in [
        "error: cuDNN (libcudnn) of unknown version was found; 9.10 or later is needed",
        "error: cuInit failed: unknown error",
        "error: GPU 0 was asked for, and the driver has 0",
        "thread 'main' panicked: the driver has no GPU;",
        "",
    ] {
        assert_eq!(excuse(failure), None);
    }
}

const SMALL: &str = "mobilenet_v2 --engine cuda --batch 8 --data synthetic:cifar10";

fn weights(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name).join("weights.safetensors")).expect("weights")
}

/// The numbers in a file of weights.
fn numbers(bytes: &[u8]) -> Vec<f32> {
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[8 + header..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn strategies_on_a_shared_gpu_come_to_the_same_weights() {
    let Some(folder) = with_gpu() else { return };
    let folder = folder.path();
    let train = |update: &str, workers: u32, steps: u32| {
        let out = format!("{update}-{workers}");
        let arguments = format!(
            "train {SMALL} --steps {steps} --workers {workers} --share-gpu --update {update} --out {out}"
        );
        let said = String::from_utf8(run(folder, &arguments).stderr).expect("text");
        assert!(said.contains(&format!("{workers} workers share one GPU")), "{said}");
        weights(folder, &out)
    };
    let all = train("allreduce", 2, 5);
    assert!(all == train("replicated", 2, 5) && all == train("ps-gpu", 2, 5), "updated on the device");
    let host = train("sharded", 2, 5);
    assert!(host == train("ps-cpu", 2, 5), "updated on the host");
    for (device, host) in [(all, host), (train("allreduce", 4, 3), train("ps-cpu", 4, 3))] {
        let (device, host) = (numbers(&device), numbers(&host));
        let furthest = device.iter().zip(&host).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-3 && device.len() == host.len(), "off by {furthest}");
    }
}

#[test]
fn independent_workers_on_a_shared_gpu_train_a_network_each() {
    let Some(folder) = with_gpu() else { return };
    let arguments =
        format!("bench {SMALL} --steps 5 --workers 2 --share-gpu --update independent --json --out study");
    let report: Value = serde_json::from_slice(&run(folder.path(), &arguments).stdout).expect("a report");
    let phases = phases_that_add_up(&report["cases"][0], 2);
    assert!(phases["forward"].as_f64() > Some(0.0), "{phases:?}");
}

#[test]
fn an_exchange_with_oneself_through_nccl_changes_no_bit() {
    let Some(folder) = with_gpu() else { return };
    let folder = folder.path();
    let losses = |arguments: &str| -> Vec<Value> {
        let report: Value = serde_json::from_slice(&run(folder, arguments).stdout).expect("a report");
        report["cases"].as_array().expect("cases").iter().map(|case| case["loss_last"].clone()).collect()
    };
    let bench = format!("bench {SMALL} --workers 1 --steps 8 --json --bucket-mb 1");
    let plain = losses(&format!("{bench} --out plain"));
    let all = "allreduce,sharded,replicated,ps-gpu";
    let alone = losses(&format!("{bench} --exchange-alone --update {all} --overlap yes,no --out alone"));
    assert_eq!(alone, vec![plain[0].clone(); 8]);
}

#[test]
fn a_training_goes_on_from_a_checkpoint_bit_for_bit() {
    let Some(folder) = with_gpu() else { return };
    let folder = folder.path();
    run(folder, &format!("train {SMALL} --precision bf16 --steps 10 --out whole"));
    run(folder, &format!("train {SMALL} --precision bf16 --steps 4 --out halves"));
    run(folder, "train --resume halves --steps 10");
    assert!(weights(folder, "whole") == weights(folder, "halves"));
}

/// The phases of a case, which all workers' time goes to.
fn phases_that_add_up(case: &Value, workers: u32) -> &Map<String, Value> {
    let phases = case["phases_s"].as_object().expect("phases");
    let sum: f64 = phases.values().filter_map(Value::as_f64).sum();
    let total = f64::from(workers) * case["total_s"].as_f64().expect("a time");
    assert!((sum - total).abs() < 1e-6 * total.max(1.0), "{sum} is not {total}: {phases:?}");
    phases
}

#[test]
fn phases_and_memory_are_told_and_add_up() {
    let Some(folder) = with_gpu() else { return };
    let folder = folder.path();
    let json = run(folder, &format!("bench {SMALL} --workers 1 --steps 30 --json --out study")).stdout;
    let report: Value = serde_json::from_slice(&json).expect("a report");
    let case = &report["cases"][0];
    let phases = phases_that_add_up(case, 1);
    for phase in ["forward", "backward", "update", "copy_in"] {
        assert!(phases[phase].as_f64() > Some(0.0), "{phase}: {phases:?}");
    }
    assert!(case["peak_memory_bytes"]["per_worker"].as_u64() > Some(10_000_000), "{case}");
}

#[test]
fn a_killed_worker_ends_the_others_on_a_shared_gpu() {
    let Some(folder) = with_gpu() else { return };
    let folder = folder.path();
    let arguments = format!("bench {SMALL} --workers 2 --share-gpu --steps 1000000 --out study");
    let mut launcher = paceline(folder, &arguments).spawn().expect("the program starts");
    let case = folder.join("study");
    let pid_of = |rank: u32| -> Option<Pid> {
        let inside =
            fs::read_dir(&case).ok()?.flatten().map(|entry| entry.path().join(format!("rank-{rank}.jsonl")));
        let log =
            inside.filter_map(|path| fs::read_to_string(path).ok()).find(|log| log.contains("\"step\":"))?;
        let line = log.lines().find(|line| line.starts_with("{\"main\""))?;
        let main: Value = serde_json::from_str(line).ok()?;
        Pid::from_raw(main["main"]["pid"].as_i64()? as i32)
    };
    let by = Instant::now() + Duration::from_secs(60);
    let (first, second) = loop {
        if let (Some(first), Some(second)) = (pid_of(0), pid_of(1)) {
            break (first, second);
        }
        assert!(Instant::now() < by, "no step within a minute");
        thread::sleep(Duration::from_millis(50));
    };
    kill_process(second, Signal::KILL).expect("it runs");
    let status = launcher.wait().expect("it ends");
    assert_eq!(status.code(), Some(1));
    assert!(test_kill_process(first).is_err(), "nobody is left");
}

#[test]
fn more_workers_than_gpus_are_refused() {
    let Some(folder) = with_gpu() else { return };
    let said = refused(folder.path(), &format!("bench {SMALL} --workers 1024 --steps 1"));
    assert!(said.contains("1024 workers want a GPU each") && said.contains("--share-gpu"), "{said}");
}

#[test]
fn what_only_gpus_can_do_is_refused_on_the_cpu() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let said = refused(folder.path(), "bench mobilenet_v2 --update ps-gpu --steps 1 --workers 2");
    assert!(said.contains("ps-gpu") && said.contains("--engine cuda"), "{said}");
    let said = refused(folder.path(), "bench mobilenet_v2 --share-gpu --steps 1 --workers 2");
    assert!(said.contains("--share-gpu") && said.contains("--engine cuda"), "{said}");
    let said = refused(folder.path(), "bench mobilenet_v2 --share-gpu --engine simulated --steps 1");
    assert!(said.contains("--share-gpu") && said.contains("--engine cuda"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing half-written");
}

#[test]
fn one_worker_that_exchanges_nothing_cannot_exchange_with_itself() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let arguments = "bench mobilenet_v2 --workers 1 --steps 1 --exchange-alone --update";
    for updates in ["independent", "allreduce,independent", "independent --engine simulated"] {
        let said = refused(folder.path(), &format!("{arguments} {updates}"));
        assert!(said.contains("independent") && said.contains("leave --exchange-alone out"), "{said}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing half-written");
}

#[test]
fn one_worker_on_the_cpu_can_exchange_with_itself() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let arguments = "bench mobilenet_v2 --workers 1 --steps 3 --batch 2 --exchange-alone --json --out study";
    let report: Value = serde_json::from_slice(&run(folder.path(), arguments).stdout).expect("a report");
    assert!(report["cases"][0]["comm_busy_s"].as_f64() > Some(0.0), "{}", report["cases"][0]);
}
