//! `paceline import`, from other programs' files to a report.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;
use serde_json::{Value, json};

fn paceline(folder: &Path, arguments: &str) -> Output {
    Command::new(cargo_bin!("paceline"))
        .current_dir(folder)
        .args(arguments.split_whitespace())
        .output()
        .expect("the program runs")
}

/// A PyTorch trace of a rank with four steps of 10 ms, in each of which one kernel runs for 6 ms.
fn trace(rank: u32) -> String {
    let mut events = Vec::new();
    for step in 0..4u64 {
        let begin = 1_000_000 + 10_000 * step;
        let name = format!("ProfilerStep#{step}");
        events.push(json!({"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": begin, "dur": 10_000}));
        let args = json!({"device": 0, "stream": 7, "correlation": step + 1});
        events.push(json!({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": begin + 1_000, "dur": 6_000, "args": args}));
    }
    json!({
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "traceEvents": events,
    })
    .to_string()
}

#[test]
fn a_folder_of_traces_becomes_a_study_that_is_reported_like_our_own() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(folder.path().join("traces")).expect("a folder");
    for rank in 0..2 {
        // The name says nothing: what a file holds decides.
        fs::write(folder.path().join(format!("traces/{rank}.bin")), trace(rank)).expect("a file");
    }
    let output = paceline(folder.path(), "import traces --out study --model resnet50 --batch 64 --json");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let case = &report["cases"][0];
    assert_eq!(
        (&case["model"], &case["workers"], &case["steps"]),
        (&json!("resnet50"), &json!(2), &json!(4))
    );
    assert_eq!((&case["total_s"], &case["init_s"]), (&Value::Null, &Value::Null), "a window does not know");
    let seconds = |phase: &str| case["phases_s"][phase].as_f64().expect("a number");
    assert!((seconds("compute") - 2.0 * 4.0 * 0.006).abs() < 1e-9, "{}", case["phases_s"]);
    assert!((seconds("idle") - 2.0 * 4.0 * 0.004).abs() < 1e-9, "{}", case["phases_s"]);
    let rate = case["images_per_s"]["mean"].as_f64().expect("a rate");
    assert!((rate - 2.0 * 64.0 / 0.01).abs() < 1.0, "{rate}");
    assert_eq!(case["origin"]["format"], "kineto");
    // What only traces tell is in the study, and each note is said once.
    for command in ["report study", "explain study", "explain traces"] {
        let output = paceline(folder.path(), command);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("kernels and operators"), "{command}: {text}");
        assert!(text.matches("no collective in common").count() == 1, "{command}: {text}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let over = paceline(folder.path(), "explain traces/0.bin --timeline traces/0.bin");
    assert_eq!(over.status.code(), Some(2), "a profile is not written over");
    assert_eq!(fs::read_to_string(folder.path().join("traces/0.bin")).expect("a trace"), trace(0));
    assert!(fs::read_to_string(folder.path().join("study/report.html")).expect("a page").contains("gemm"));
}

#[test]
fn what_cannot_be_imported_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("notes.json"), "buy milk").expect("a file");
    fs::write(folder.path().join("trace.json"), trace(0)).expect("a file");
    for (at, to) in [("one", "other"), ("other", "one")] {
        std::os::unix::fs::symlink(to, folder.path().join(at)).expect("a link");
    }
    for (arguments, expected) in [
        ("import trace.json --out notes.json", "notes.json"),
        ("import one --out study", "symbolic links"),
        ("import notes.json --out study", "notes.json"),
        ("import nowhere --out study", "nowhere"),
        ("import notes.json", "--out"),
    ] {
        let output = paceline(folder.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(expected), "{arguments}: {said}");
        assert!(!folder.path().join("study").exists());
    }
}

#[test]
fn profiles_of_jax_and_chrome_traces_are_shown_and_only_the_first_are_runs() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("logs/plugins/profile/run");
    fs::create_dir_all(&run).expect("a folder");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/corpus");
    for file in ["xplane/tpu.xplane.pb", "chrome/object.json"] {
        let name = Path::new(file).file_name().expect("a name");
        fs::copy(corpus.join(file), run.join(name)).expect("a file");
    }
    let shown = |arguments: &str| {
        let output = paceline(folder.path(), arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let screens = shown("explain logs/plugins/profile/run/tpu.xplane.pb");
    assert_eq!(screens.matches("all_reduce      2  21.0 us").count(), 2, "{screens}");
    let timeline = shown("explain logs/plugins/profile/run/object.json");
    assert!(timeline.contains("2 processes, 2 threads") && !timeline.contains("exchange ms"), "{timeline}");
    let report: Value = serde_json::from_str(&shown("import logs --out study --json")).expect("JSON");
    let case = &report["cases"][0];
    assert_eq!((&case["workers"], &case["origin"]["format"]), (&json!(2), &json!("xplane")));
    let refused = paceline(folder.path(), "import logs/plugins/profile/run/object.json --out other");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && why.contains("steps are not looked for"), "{why}");
    assert_eq!(why.lines().count(), 1, "{why}");
}
