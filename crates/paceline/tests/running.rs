//! A study that is running, or whose launcher was killed, is told as what it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A `paceline` at work in a folder of its own; it is killed at the end.
struct Running {
    folder: tempfile::TempDir,
    child: Child,
}

impl Running {
    fn start(arguments: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let child = Command::new(cargo_bin!("paceline"))
            .current_dir(folder.path())
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program runs");
        Self { folder, child }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("study").join(name)
    }

    /// Waits until a file holds some text.
    fn wait_for(&self, name: &str, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !fs::read_to_string(self.path(name)).is_ok_and(|file| file.contains(text)) {
            assert!(Instant::now() < deadline, "{name} never said {text}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a process of our own");
    }

    fn paceline(&self, arguments: &str) -> Output {
        Command::new(cargo_bin!("paceline"))
            .current_dir(self.folder.path())
            .args(arguments.split_whitespace())
            .output()
            .expect("the program runs")
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.paceline("explain study --json").stdout).expect("JSON")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("a process of our own");
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_running_study_is_told_as_running_and_a_killed_one_as_cut_off() {
    let mut bench =
        Running::start("bench mobilenet_v2 --workers 1,2 --threads 1 --batch 1 --steps 100 --out study");
    bench.wait_for("mobilenet_v2-w2/rank-0.jsonl", "\"step\"");
    // What happens to the workers now is not looked at by anybody: the second case cannot end.
    bench.signal(Signal::STOP);
    let before = names(&bench.path(""));
    for command in ["explain study", "report study"] {
        let output = bench.paceline(command);
        let text = printed(&output);
        assert!(output.status.success(), "{command}: {text}");
        assert!(text.contains("This study is running: 1 of 2 cases are done so far"), "{command}: {text}");
        assert!(text.contains("running: step ") && text.contains(" of 100 done "), "{command}: {text}");
        assert!(!text.contains("fail") && !text.contains("run the same command"), "{command}: {text}");
    }
    let later = "The report will be study/report.html when the study ends.";
    assert!(printed(&bench.paceline("report study")).contains(later));
    assert_eq!(names(&bench.path("")), before, "nothing is written into it");
    let report = bench.json();
    let cases = report["cases"].as_array().expect("a list");
    assert_eq!(report["running"], true);
    assert_eq!((&cases[0]["status"], &cases[1]["status"]), (&"done".into(), &"running".into()));
    assert!(cases[0]["images_per_s"]["mean"].is_number(), "a finished case is told in full");
    assert!(cases[1]["running"]["step"].as_u64().is_some_and(|step| (1..=100).contains(&step)));
    assert_eq!(cases[1]["running"]["of_steps"], 100);

    bench.child.kill().expect("a process of our own");
    bench.child.wait().expect("a process of our own");
    let explained = bench.paceline("explain study");
    let text = printed(&explained);
    assert!(explained.status.success() && text.contains("its launcher is gone"), "{text}");
    assert!(!text.contains("running"), "{text}");
    let report = bench.paceline("report study");
    assert_eq!(report.status.code(), Some(1), "{}", printed(&report));
    let said = "error: not all of 2 cases are done: mobilenet_v2 on 2 workers (failed)";
    assert!(printed(&report).contains(said), "{}", printed(&report));
    assert!(bench.path("report.html").exists());
}

#[test]
fn a_running_training_is_told_as_running() {
    let train = Running::start(
        "train mobilenet_v2 --data synthetic:cifar10 --workers 2 --elastic --threads 1 --batch 1 --steps 5000 --out study",
    );
    train.wait_for("mobilenet_v2-w2/member-0.jsonl", "\"step\"");
    train.signal(Signal::STOP);
    let report = train.paceline("report study");
    let text = printed(&report);
    assert!(report.status.success(), "{text}");
    assert!(text.contains(" of 5000 done ") && text.contains(" with members 0, 1"), "{text}");
}
