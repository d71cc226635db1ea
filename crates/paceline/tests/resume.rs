//! A training that is stopped, cut into other shards, or runs out of room: what it keeps, and how it resumes.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

mod training;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};
use training::{EACH, paceline, pictures, refuse, report, run, weights};

/// 60 samples in an epoch, 8 in a step.
const RECIPE: &str =
    "mobilenet_v2 --data cifar10:pictures --lr 0.02 --threads 1 --eval-every 0 --checkpoint-every 0";

/// How many times each sample was used in each of the first epochs, by all runs of a training.
fn uses(training: &Path) -> Vec<[u32; 5 * EACH]> {
    let mut counts = vec![[0; 5 * EACH]; 4];
    let runs = fs::read_dir(training).expect("a folder").flatten().map(|entry| entry.path());
    let files =
        runs.filter(|path| path.is_dir()).flat_map(|run| fs::read_dir(run).expect("a folder").flatten());
    for file in files.filter(|file| file.file_name().to_string_lossy().starts_with("samples-")) {
        for line in fs::read_to_string(file.path()).expect("a list of samples").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let epoch: usize = words[0].parse().expect("an epoch");
            words[3..].iter().for_each(|index| counts[epoch][index.parse::<usize>().expect("an index")] += 1);
        }
    }
    counts
}

#[test]
fn more_workers_than_shards_cut_the_steps_anew_and_no_sample_is_lost_or_repeated() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(folder.path(), &format!("train {RECIPE} --batch 8 --steps 5 --workers 1 --log-samples --out cut"));
    let output = run(folder.path(), "train --resume cut --workers 2 --steps 15");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "from step 5 on, each step is cut into 2 shards instead of 1, with the same global batch of 8: the weights will differ";
    assert!(said.contains(expected), "{said}");
    // 15 steps are two epochs.
    let counts = uses(&folder.path().join("cut"));
    assert!(counts[..2].iter().flatten().all(|&count| count == 1), "{counts:?}");
    assert!(counts[2..].iter().flatten().all(|&count| count == 0), "{counts:?}");

    let manifest = folder.path().join("cut/checkpoints/step-00000015/checkpoint.json");
    let manifest: Value = serde_json::from_slice(&fs::read(manifest).expect("a manifest")).expect("JSON");
    assert_eq!(manifest["position"]["recuts"], json!([{"steps": 5, "from": 1, "to": 2}]));
    assert_eq!(manifest["job"]["shards"], 2);
    let settings = &report(&folder.path().join("cut"))["cases"][1]["settings"];
    assert_eq!((&settings["shards"], &settings["shards-before"]), (&"2".into(), &"1".into()));

    // From there on it is a training of two shards like any other: whoever runs them.
    let recut = weights(&folder.path().join("cut"), 15);
    let from = "cut/checkpoints/step-00000005";
    for (out, options) in [("one", "--workers 1 --shards 2"), ("elastic", "--workers 1 --elastic 1:2")] {
        run(folder.path(), &format!("train --resume {from} {options} --steps 15 --out {out}"));
        assert!(weights(&folder.path().join(out), 15) == recut, "{options}");
    }
    run(folder.path(), &format!("train --resume {from} --workers 1 --steps 15 --out as-it-was"));
    assert!(weights(&folder.path().join("as-it-was"), 15).0 != recut.0, "other shards, other bits");
}

#[test]
fn steps_that_cannot_be_cut_so_are_refused_in_words() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(folder.path(), &format!("train {RECIPE} --global-batch 8 --shards 2 --steps 2 --out cut"));
    for (options, expected) in [
        ("--workers 3", "its global batch of 8 cannot be divided equally among them; use --shards 4"),
        ("--shards 6", "its global batch of 8 cannot be divided equally among them; use --shards 8"),
        ("--workers 9", "use at most 8"),
        ("--workers 2 --shards 1", "1 shards cannot keep 2 workers busy"),
        ("--elastic 1:3", "use --shards 4"),
        ("--workers 4 --batch 8", "--global-batch 8, not --global-batch 32"),
    ] {
        let said = refuse(folder.path(), &format!("train --resume cut --steps 3 {options}"));
        assert!(said.contains(expected), "{options}: {said}");
    }
    run(folder.path(), "train --resume cut --steps 3 --workers 3 --shards 4");
    // Fewer shards make one of the mean of the old ones.
    let output = run(folder.path(), "train --resume cut --steps 4 --workers 1 --shards 1");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cut into 1 shard instead of 4"), "{said}");
}

/// A training that would go on for hours.
struct Endless {
    child: Child,
    folder: PathBuf,
    workers: u32,
}

/// Whom a signal is sent to.
#[derive(Clone, Copy, Debug)]
enum To {
    Launcher,
    Group,
    Worker(u32),
}

impl Endless {
    fn start(folder: &Path, workers: u32, options: &str) -> Self {
        Self::spawn(folder, workers, paceline(folder, &Self::arguments(workers, options)))
    }

    fn arguments(workers: u32, options: &str) -> String {
        format!("train {RECIPE} --global-batch 8 {options} --workers {workers} --steps 1000000 --out cut")
    }

    fn spawn(folder: &Path, workers: u32, mut command: Command) -> Self {
        let child = command.process_group(0).spawn().expect("the program starts");
        let endless = Self { child, folder: folder.into(), workers };
        let begin = Instant::now();
        while endless.steps() < 3 {
            assert!(begin.elapsed() < Duration::from_secs(60), "it takes too long");
            thread::sleep(Duration::from_millis(10));
        }
        endless
    }

    fn log(&self, rank: u32) -> String {
        let path = self.folder.join(format!("cut/mobilenet_v2-w{}/rank-{rank}.jsonl", self.workers));
        fs::read_to_string(path).unwrap_or_default()
    }

    fn steps(&self) -> usize {
        (0..self.workers).map(|rank| self.log(rank).matches("{\"step\":{").count()).min().unwrap_or(0)
    }

    fn worker(&self, rank: u32) -> Pid {
        let log = self.log(rank);
        let pid = log.split("\"pid\":").nth(1).expect("a worker tells its process");
        let pid: String = pid.chars().take_while(char::is_ascii_digit).collect();
        Pid::from_raw(pid.parse().expect("a number")).expect("a process")
    }

    fn signal(&self, signal: Signal, to: To) {
        let launcher = Pid::from_child(&self.child);
        match to {
            To::Launcher => kill_process(launcher, signal),
            To::Group => kill_process_group(launcher, signal),
            To::Worker(rank) => kill_process(self.worker(rank), signal),
        }
        .expect("it runs");
    }

    fn wait(self) -> Output {
        self.child.wait_with_output().expect("it ends")
    }
}

#[test]
fn whoever_is_told_to_stop_all_ranks_save_the_same_step_and_it_resumes_bit_for_bit() {
    for (workers, signal, to) in [
        (1, Signal::INT, To::Launcher),
        (1, Signal::TERM, To::Group),
        (2, Signal::TERM, To::Launcher),
        (2, Signal::INT, To::Group),
        (3, Signal::TERM, To::Group),
        (3, Signal::TERM, To::Worker(2)),
    ] {
        let context = format!("{signal:?} to {to:?} of {workers} workers");
        let folder = tempfile::tempdir().expect("a temporary folder");
        pictures(folder.path());
        // Some ranks have one shard, others two.
        let options = if workers == 1 { "" } else { "--shards 4 --update sharded" };
        let endless = Endless::start(folder.path(), workers, options);
        endless.signal(signal, to);
        let output = endless.wait();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{context}: {said}");
        let report = report(&folder.path().join("cut"));
        assert_eq!(report["cases"][0]["status"], "interrupted", "{context}: {said}");
        // No step that was done is lost.
        let steps = report["cases"][0]["steps"].as_u64().expect("a number");
        let resumes = format!("To resume from step-{steps:08}: paceline train --resume cut");
        assert!(said.contains("interrupted\n") && said.contains(&resumes), "{context}: {said}");
        let end = steps + 2;
        run(folder.path(), &format!("train --resume cut --steps {end}"));
        run(
            folder.path(),
            &format!(
                "train {RECIPE} --global-batch 8 {options} --workers {workers} --steps {end} --out whole"
            ),
        );
        let [cut, whole] = ["cut", "whole"].map(|run| weights(&folder.path().join(run), end));
        assert!(cut == whole, "{context}: after {steps} and {end} steps");
    }
}

#[test]
fn an_elastic_training_is_saved_too_when_its_whole_group_is_told_to_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let arguments =
        format!("train {RECIPE} --global-batch 8 --workers 2 --elastic --steps 1000000 --out cut");
    let child = paceline(folder.path(), &arguments).process_group(0).spawn().expect("the program starts");
    let begin = Instant::now();
    let status = || paceline(folder.path(), "status cut --json").output().expect("it answers").stdout;
    while !serde_json::from_slice::<Value>(&status()).is_ok_and(|status| status["step"].as_u64() > Some(3)) {
        assert!(begin.elapsed() < Duration::from_secs(60), "it takes too long");
        thread::sleep(Duration::from_millis(10));
    }
    kill_process_group(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("To resume from step-") && said.contains("paceline train --resume cut"), "{said}");
    assert_eq!(report(&folder.path().join("cut"))["cases"][0]["status"], "interrupted");
}

#[test]
fn a_second_request_ends_a_training_at_once_that_cannot_finish_its_step() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let endless = Endless::start(folder.path(), 2, "--shards 2");
    // The other rank waits for this one, and so does the checkpoint.
    endless.signal(Signal::STOP, To::Worker(1));
    endless.signal(Signal::INT, To::Launcher);
    // Twice in a moment is one request: it still waits.
    endless.signal(Signal::INT, To::Launcher);
    thread::sleep(Duration::from_secs(1));
    let mut endless = endless;
    assert!(endless.child.try_wait().expect("a process of ours").is_none(), "it waits for the checkpoint");
    endless.signal(Signal::INT, To::Launcher);
    let begin = Instant::now();
    while endless.child.try_wait().expect("a process of ours").is_none() {
        // Without a second request it would wait for a minute.
        assert!(begin.elapsed() < Duration::from_secs(30), "it takes too long");
        thread::sleep(Duration::from_millis(10));
    }
    let output = endless.wait();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Ctrl-C again ends at once") && said.contains("ended at once"), "{said}");
}

#[test]
fn weights_that_find_no_room_are_not_announced_and_leave_no_fragment() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(folder.path(), &format!("train {RECIPE} --batch 8 --steps 1 --out run"));
    fs::remove_file(folder.path().join("run/weights.safetensors")).expect("weights");
    // What is written aside goes to a device that is always full.
    symlink("/dev/full", folder.path().join("run/.weights")).expect("a link");
    let output =
        paceline(folder.path(), "train --resume run --steps 2").output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = "error: cannot write run/weights.safetensors: No space left on device (os error 28); the same weights are in \
                    run/checkpoints/step-00000002/weights.safetensors: make room, and copy them";
    assert!(said.contains(expected) && !said.contains("Weights:"), "{said}");
    let hidden = |name: &str| name.starts_with(".weights") || name == "weights.safetensors";
    let names =
        fs::read_dir(folder.path().join("run")).expect("a folder").flatten().map(|entry| entry.file_name());
    let left: Vec<_> = names.filter(|name| hidden(&name.to_string_lossy())).collect();
    assert!(left.is_empty(), "{left:?}");
    run(folder.path(), "eval run");
    run(folder.path(), "train --resume run --steps 3");
    assert!(folder.path().join("run/weights.safetensors").exists());
}

/// The program with files of at most 1 MB: the system refuses in the middle of one that becomes longer, as a full disk does.
fn without_room(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new("sh");
    command.current_dir(folder).args(["-c", r#"trap "" XFSZ; ulimit -f 2048; exec "$@""#, "sh"]);
    command.arg(training::PROGRAM).args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn an_interrupted_training_that_finds_no_room_says_that_its_state_is_not_saved() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    // Alone, as memory that workers share is a file too.
    let command = without_room(folder.path(), &Endless::arguments(1, ""));
    let endless = Endless::spawn(folder.path(), 1, command);
    endless.signal(Signal::INT, To::Group);
    let output = endless.wait();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted; and its state could not be saved: rank 0 ended"), "{said}");
    assert!(said.contains("weights.safetensors: File too large"), "{said}");
    assert!(said.contains("there is no checkpoint to resume from"), "{said}");
    assert_eq!(report(&folder.path().join("cut"))["cases"][0]["status"], "interrupted");
}

#[test]
fn a_checkpoint_that_finds_no_room_names_the_file_the_reason_and_the_last_good_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(folder.path(), &format!("train {RECIPE} --batch 8 --steps 1 --out run"));
    let mut command = without_room(folder.path(), "train --resume run --steps 2");
    let output = command.output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("weights.safetensors: File too large"), "{said}");
    assert!(said.contains("To resume from step-00000001: paceline train --resume run"), "{said}");
    assert!(!said.contains("Weights:"), "{said}");
    let names = fs::read_dir(folder.path().join("run/checkpoints")).expect("a folder").flatten();
    let names: Vec<_> = names.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
    assert_eq!(names, ["step-00000001"], "no draft is left");
    run(folder.path(), "train --resume run --steps 2");
}
