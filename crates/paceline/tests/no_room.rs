//! Files that cannot be written: what was measured is shown, and one error says what is wrong.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

mod training;

use assert_cmd::cargo::cargo_bin;
use training::pictures;

#[test]
fn a_file_beyond_the_limit_on_sizes_is_an_error_like_any_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let train = "train mobilenet_v2 --data cifar10:pictures --workers 1 --threads 1 --batch 4 --steps 2 --eval-every 0 --out run";
    let command = format!("ulimit -f 4000; exec {} {train}", cargo_bin!("paceline").display());
    let output =
        Command::new("sh").args(["-c", &command]).current_dir(folder.path()).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("File too large") && !said.contains("with signal"), "{said}");
    let checkpoints = fs::read_dir(folder.path().join("run/checkpoints"));
    let left = checkpoints.into_iter().flatten().map(|entry| entry.expect("an entry").file_name());
    let torn: Vec<_> = left.filter(|name| name.to_string_lossy().ends_with(".new")).collect();
    assert!(torn.is_empty(), "{torn:?}");
}

/// Waits for a file.
fn until_there(path: &Path) {
    let began = Instant::now();
    while !path.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "{} does not appear", path.display());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_study_whose_files_cannot_be_written_is_shown_before_the_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    let bench = "bench mobilenet_v2 --workers 1 --threads 1 --batch 8 --steps 30 --out study";
    let child = Command::new(cargo_bin!("paceline"))
        .args(bench.split_whitespace())
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    until_there(&out.join("study.json"));
    fs::write(out.join("tensorboard"), "in the way of a folder").expect("a file");
    let output = child.wait_with_output().expect("it ends");
    let (shown, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && said.contains("tensorboard"), "{said}");
    assert!(shown.contains("Findings") && shown.contains("images/s"), "{shown}");
}
