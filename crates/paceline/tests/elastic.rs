//! `--elastic`: trainings that outlive their workers end with the same bits, whoever was lost, and whenever.

mod training;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Output};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use training::{EACH, paceline, pictures, refuse, report, run, weights};

/// 60 samples, 8 a step: 3 epochs are 22.5 steps, with a test and a checkpoint after each.
const RECIPE: &str =
    "mobilenet_v2 --data cifar10:pictures --global-batch 8 --shards 4 --lr 0.05 --threads 1 --epochs 3";
const STEPS: u64 = 23;

/// Steps of the newest checkpoint of a run.
fn newest(run: &Path) -> u64 {
    let checkpoints = fs::read_dir(run.join("checkpoints")).expect("checkpoints").flatten();
    let newest =
        checkpoints.filter_map(|entry| entry.file_name().into_string().ok()).max().expect("one of them");
    newest.trim_start_matches("step-").parse().expect("a step")
}

/// What a training comes to: weights, state, and its tests and losses.
#[derive(PartialEq)]
struct Outcome {
    weights: (Vec<u8>, Vec<u8>),
    losses: Vec<Value>,
    tests: Vec<Value>,
}

impl Outcome {
    fn of(run: &Path) -> Self {
        let case = &report(run)["cases"][0];
        let steps = newest(run);
        let manifest = run.join(format!("checkpoints/step-{steps:08}/checkpoint.json"));
        let manifest = fs::read(manifest).expect("a manifest");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let history = manifest["position"]["history"].as_array().expect("tests");
        let tests =
            history.iter().map(|test| serde_json::json!([test["steps"], test["loss"], test["correct"]]));
        Self {
            weights: weights(run, steps),
            losses: vec![case["loss_first"].clone(), case["loss_last"].clone()],
            tests: tests.collect(),
        }
    }
}

fn undisturbed(folder: &Path, more: &str) -> Outcome {
    run(folder, &format!("train {RECIPE} {more} --workers 1 --out whole"));
    Outcome::of(&folder.join("whole"))
}

/// Runs a training, lets members strike themselves at named points, and compares what it comes to.
fn same_with(folder: &Path, whole: &Outcome, out: &str, more: &str, strikes: &str) {
    let mut command = paceline(folder, &format!("train {RECIPE} --elastic {more} --out {out}"));
    let output = command.env("PACELINE_STRIKE", strikes).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{strikes}: {said}");
    let found = Outcome::of(&folder.join(out));
    assert_eq!(report(&folder.join(out))["cases"][0]["status"], "done", "{strikes} {more}");
    assert!(found.weights == whole.weights, "{strikes} {more}: the weights differ");
    assert_eq!(found.tests, whole.tests, "{strikes} {more}");
    assert_eq!(found.losses, whole.losses, "{strikes} {more}");
    leaves_nothing_behind(&folder.join(out));
}

/// No process of the run is left, nor its socket.
fn leaves_nothing_behind(run: &Path) {
    let name = run.to_str().expect("text");
    for entry in fs::read_dir("/proc").expect("processes").flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let is_ours = environment.windows(name.len()).any(|part| part == name.as_bytes());
        assert!(!is_ours, "{} is left", entry.path().display());
    }
    for case in fs::read_dir(run).expect("a run").flatten() {
        assert!(!case.path().join("control.sock").exists(), "the socket is left");
    }
}

#[test]
fn a_kill_at_any_point_of_a_step_changes_no_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let whole = undisturbed(folder.path(), "");
    let points = [
        "kill@before-join:1:1",
        "kill@after-join:1:1",
        "kill@in-shard:1:0",
        "kill@in-shard:9:1",
        "kill@before-flag:30:1",
        "kill@after-flag:47:0",
        "kill@before-last-flag:5:1",
        "kill@before-slice:11:0",
        "kill@in-slice:13:1",
        "kill@in-slice:1:0",
        "kill@in-test:1:1",
        "kill@in-checkpoint:1:0",
        "kill@before-end:1:1",
        // The last step.
        "kill@in-shard:46:0",
    ];
    for (number, point) in points.into_iter().enumerate() {
        same_with(folder.path(), &whole, &format!("point-{number}"), "--workers 2", point);
    }
}

#[test]
fn several_losses_at_once_and_of_replacements_change_no_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let whole = undisturbed(folder.path(), "");
    for (number, (workers, strikes)) in [
        (4, "kill@in-shard:3:1,kill@in-shard:3:2"),
        (4, "kill@in-slice:5:0,kill@in-slice:5:1,kill@after-flag:9:3"),
        (2, "kill@in-shard:3:0,kill@in-shard:3:1"),
        (3, "kill@in-shard:2:1,kill@before-join:1:3,kill@in-shard:1:4"),
        (4, "kill@in-test:1:0,kill@in-checkpoint:1:1"),
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("several-{number}");
        same_with(folder.path(), &whole, &out, &format!("--workers {workers}"), strikes);
        let case = &report(&folder.path().join(out))["cases"][0];
        let lost = strikes.split(',').filter(|strike| !strike.contains("join")).count() as u64;
        assert!(case["recovery"]["losses"].as_u64() >= Some(lost), "{case}");
    }
}

#[test]
fn every_way_of_dealing_and_number_of_workers_gives_the_same_bits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let more = "--optimizer adam --lr 0.001 --accumulate 2 --weight-decay 0.001";
    let whole = undisturbed(folder.path(), more);
    for (out, options) in [
        ("one", "--workers 1"),
        ("three", "--workers 3 --faults kill=1@4,join@9"),
        ("dynamic", "--workers 4 --deal dynamic --faults kill=2@3,slow=0@5:2,kill=1@11"),
        ("sharded", "--workers 2 --update sharded --faults leave=0@4,kill=1@7"),
        ("grows", "--workers 1 --elastic 1:4 --faults join@2,join@3,join@4,kill=0@9"),
    ] {
        same_with(folder.path(), &whole, out, &format!("{more} {options}"), "");
    }
}

#[test]
fn a_stopped_worker_is_expelled_or_goes_on_and_no_bit_changes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let whole = undisturbed(folder.path(), "");
    same_with(folder.path(), &whole, "short", "--workers 2 --faults stop=1@6:0.2s", "");
    same_with(folder.path(), &whole, "long", "--workers 2 --faults stop=0@12:30s", "");
    let case = &report(&folder.path().join("long"))["cases"][0];
    assert_eq!(case["recovery"]["expulsions"], 1, "{case}");
    // SIGCONT races the expulsion.
    same_with(folder.path(), &whole, "race", "--workers 3 --faults stop=1@12:0.85s,stop=2@14:0.9s", "");
}

#[test]
fn each_sample_of_an_epoch_is_used_once_whoever_was_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(
        folder.path(),
        &format!(
            "train {RECIPE} --elastic --workers 3 --log-samples --restarts 99 --faults random=kill:4 --out run"
        ),
    );
    let text = fs::read_to_string(folder.path().join("run/mobilenet_v2-w3/samples.txt")).expect("samples");
    for epoch in 0..2 {
        let mut seen = BTreeSet::new();
        for line in text.lines().filter(|line| line.starts_with(&format!("{epoch} "))) {
            for index in line.split(' ').skip(3) {
                assert!(seen.insert(index.to_owned()), "sample {index} twice in epoch {epoch}");
            }
        }
        assert_eq!(seen.len(), 5 * EACH, "epoch {epoch}");
    }
}

#[test]
fn a_run_goes_on_from_a_checkpoint_with_other_workers_and_other_losses() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let whole = undisturbed(folder.path(), "");
    run(
        folder.path(),
        &format!(
            "train {RECIPE} --elastic --workers 3 --faults kill=1@3 --epochs 1.4 --checkpoint-every 0.2 --out cut"
        ),
    );
    run(folder.path(), "train --resume cut --epochs 3 --workers 2 --faults kill=0@13,kill=1@17");
    assert!(weights(&folder.path().join("cut"), STEPS) == whole.weights);
    // And without --elastic.
    run(
        folder.path(),
        &format!("train {RECIPE} --elastic --workers 2 --faults kill=1@3 --epochs 1 --out back"),
    );
    run(folder.path(), "train --resume back --epochs 3 --workers 4 --elastic no");
    assert!(weights(&folder.path().join("back"), STEPS) == whole.weights);
}

/// A training that takes a while, in the background.
struct Background {
    child: Child,
    folder: std::path::PathBuf,
}

impl Background {
    fn start(folder: &Path, more: &str) -> Self {
        let arguments = format!(
            "train mobilenet_v2 --data synthetic:cifar10 --global-batch 16 --shards 4 --threads 1 --steps 100000 \
             --eval-every 0 --out run {more}"
        );
        let child = paceline(folder, &arguments).spawn().expect("the program starts");
        let background = Self { child, folder: folder.into() };
        background.wait_for("its first steps", |status| status["step"].as_u64() > Some(3));
        background
    }

    fn status(&self) -> Option<Value> {
        let output = paceline(&self.folder, "status run --json").output().expect("the program starts");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        loop {
            match self.status() {
                Some(status) if is_so(&status) => return status,
                status => assert!(begin.elapsed() < Duration::from_secs(120), "no {what}: {status:?}"),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(pid: u64, signal: Signal) {
        let pid = Pid::from_raw(pid as i32).expect("a process");
        kill_process(pid, signal).expect("it is there");
    }

    /// Ends it by a signal to the launcher; what it said.
    fn end(mut self, signal: Signal) -> Output {
        Self::signal(self.child.id().into(), signal);
        let child =
            std::mem::replace(&mut self.child, paceline(&self.folder, "models").spawn().expect("starts"));
        child.wait_with_output().expect("it ends")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn training(status: &Value) -> usize {
    let members = status["members"].as_array().expect("members");
    members.iter().filter(|member| member["state"] == "training").count()
}

#[test]
fn a_running_training_is_asked_scaled_and_stopped() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = Background::start(folder.path(), "--workers 1 --elastic 1:3");
    let text = paceline(folder.path(), "status run").output().expect("it answers");
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(text.contains("mobilenet_v2: step ") && text.contains("1 worker asked for (1 to 3)"), "{text}");
    let more = paceline(folder.path(), "scale run 3").output().expect("it answers");
    assert!(more.status.success());
    let said = String::from_utf8_lossy(&more.stdout).into_owned();
    assert!(said.contains("going on with 3 workers") && said.contains("thread"), "{said}");
    run.wait_for("three members", |status| training(status) == 3);
    let said = refuse(folder.path(), "scale run 4");
    assert!(said.contains("at most 3 workers") && said.contains("--elastic MIN:4"), "{said}");
    assert!(refuse(folder.path(), "scale run 0").contains("at least 1 worker"));
    assert!(paceline(folder.path(), "scale run 2").output().expect("it answers").status.success());
    let status = run.wait_for("two members", |status| status["members"].as_array().map(Vec::len) == Some(2));
    // A worker that is asked to end finishes its task, leaves, and is not replaced.
    Background::signal(status["members"][0]["pid"].as_u64().expect("a process"), Signal::TERM);
    let status = run.wait_for("one member", |status| status["members"].as_array().map(Vec::len) == Some(1));
    let step = status["step"].as_u64().expect("a step");
    run.wait_for("more steps", |status| status["step"].as_u64() > Some(step + 3));
    let output = run.end(Signal::TERM);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted") && said.contains("paceline train --resume run"), "{said}");
    leaves_nothing_behind(&folder.path().join("run"));
    assert!(
        refuse(folder.path(), "status run")
            .contains("no training with --elastic or --hosts is running in run")
    );
    assert!(refuse(folder.path(), "scale nowhere 2").contains("there is no folder nowhere"));
}

fn pid(status: &Value, place: usize) -> u64 {
    status["members"][place]["pid"].as_u64().expect("a process")
}

#[test]
fn workers_stopped_while_they_wait_and_two_of_three_are_expelled() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Member 0 is so slow that the others wait for it nearly all the time.
    let run = Background::start(folder.path(), "--workers 3 --elastic --faults slow=0@2:20 --restarts 9");
    let status = run.wait_for("all", |status| training(status) == 3);
    let stopped = [pid(&status, 1), pid(&status, 2)];
    stopped.iter().for_each(|&pid| Background::signal(pid, Signal::STOP));
    let is_there = |status: &Value, pid: u64| {
        status["members"].as_array().expect("members").iter().any(|member| member["pid"] == pid)
    };
    let status = run.wait_for("replacements", |status| {
        training(status) == 3 && stopped.iter().all(|&pid| !is_there(status, pid))
    });
    // A member that is dismissed and killed before it has finished its task leaves nothing that others wait for.
    assert!(paceline(folder.path(), "scale run 2").output().expect("it answers").status.success());
    let _ = kill_process(Pid::from_raw(pid(&status, 2) as i32).expect("a process"), Signal::KILL);
    let step = status["step"].as_u64().expect("a step");
    run.wait_for("more steps", |status| status["step"].as_u64() > Some(step + 5));
    assert!(refuse(folder.path(), "scale run 0").contains("at least 1 worker"));
    let output = run.end(Signal::INT);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--resume run"));
    leaves_nothing_behind(&folder.path().join("run"));
}

#[test]
fn a_test_that_was_interrupted_is_made_up_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let whole = undisturbed(folder.path(), "");
    // All workers stop in the test after the last step, and the user interrupts.
    let arguments = format!("train {RECIPE} --elastic --workers 2 --out cut");
    let mut command = paceline(folder.path(), &arguments);
    command.env("PACELINE_STRIKE", "stop@in-test:5:0,stop@in-test:5:1");
    let child = command.spawn().expect("the program starts");
    let background = Background { child, folder: folder.path().into() };
    let begin = Instant::now();
    let asks = || paceline(folder.path(), "status cut --json").output().expect("it answers");
    while !serde_json::from_slice::<Value>(&asks().stdout).is_ok_and(|status| status["step"] == STEPS) {
        assert!(begin.elapsed() < Duration::from_secs(120), "the last step is not reached");
        thread::sleep(Duration::from_millis(5));
    }
    background.end(Signal::INT);
    run(folder.path(), "train --resume cut");
    let found = Outcome::of(&folder.path().join("cut"));
    assert!(found.weights == whole.weights);
    assert_eq!(found.tests, whole.tests);
}

#[test]
fn a_killed_launcher_takes_its_workers_along_and_its_training_resumes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run_ = Background::start(folder.path(), "--workers 2 --elastic --checkpoint-every 0.002");
    run_.wait_for("a checkpoint", |status| status["step"].as_u64() > Some(20));
    let output = run_.end(Signal::KILL);
    assert_eq!(output.status.signal(), Some(9));
    let begin = Instant::now();
    let name = folder.path().join("run").to_str().expect("text").to_owned();
    let is_left = || {
        fs::read_dir("/proc").expect("processes").flatten().any(|entry| {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            environment.windows(name.len()).any(|part| part == name.as_bytes())
        })
    };
    while is_left() {
        assert!(begin.elapsed() < Duration::from_secs(20), "workers outlive their launcher");
        thread::sleep(Duration::from_millis(20));
    }
    let steps = newest(&folder.path().join("run"));
    run(folder.path(), &format!("train --resume run --steps {}", steps + 4));
    run(
        folder.path(),
        &format!(
            "train mobilenet_v2 --data synthetic:cifar10 --global-batch 16 --shards 4 --threads 1 --steps {} \
             --eval-every 0 --workers 1 --out whole",
            steps + 4
        ),
    );
    let end = |run: &str| fs::read(folder.path().join(run).join("weights.safetensors")).expect("weights");
    assert!(end("run") == end("whole"));
}

#[test]
fn with_too_few_workers_left_it_saves_and_says_why() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let command =
        format!("train {RECIPE} --elastic 2:2 --workers 2 --restarts 0 --faults kill=1@5 --out few");
    let output = paceline(folder.path(), &command).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("1 worker is left and --elastic needs 2, and no restarts remain"), "{said}");
    assert!(said.contains("member 1 was lost last") && said.contains("--resume few"), "{said}");
    leaves_nothing_behind(&folder.path().join("few"));
    // All of them: the launcher still holds their state.
    let command =
        format!("train {RECIPE} --elastic --workers 2 --restarts 0 --faults kill=1@5,kill=0@5 --out none");
    let output = paceline(folder.path(), &command).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let whole = undisturbed(folder.path(), "");
    for cut in ["few", "none"] {
        run(folder.path(), &format!("train --resume {cut} --restarts 3"));
        assert!(weights(&folder.path().join(cut), STEPS) == whole.weights, "{cut}");
    }
}

#[test]
fn what_cannot_be_elastic_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let start = "train mobilenet_v2 --steps 2 --out x";
    for (options, expected) in [
        ("--elastic --update ps-cpu --workers 2", "not ps-cpu"),
        ("--elastic 3:4 --workers 2", "--elastic 3:4 does not allow 2 workers"),
        ("--elastic 4", "'4' is not MIN:MAX"),
        ("--faults kill=1@3", "use it with --elastic"),
        ("--restarts 2", "use it with --elastic"),
        ("--deal dynamic", "use it with --elastic"),
        ("--elastic --faults explode=1", "there is no such fault"),
        ("--elastic 1:8 --shards 4", "4 shards cannot keep 8 workers busy"),
    ] {
        let said = refuse(folder.path(), &format!("{start} {options}"));
        assert!(said.contains(expected), "{options}: {said}");
        assert!(!folder.path().join("x").exists(), "{options}");
    }
}
