//! Trainings on several hosts, which are launchers on this machine that talk over loopback.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{paceline, pictures, run, weights};

/// 60 samples, 8 a step: 3 epochs are 22.5 steps, with a test and a checkpoint after each.
pub const RECIPE: &str =
    "train mobilenet_v2 --data cifar10:pictures --global-batch 8 --shards 4 --lr 0.05 --threads 1 --pin no";
pub const SHORT: &str = "--epochs 3";
pub const STEPS: u64 = 23;

/// Long enough to meet a host on its way.
pub const LONG: &str = "--epochs 16";
pub const LONG_STEPS: u64 = 120;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// What all hosts of a test know.
pub const SECRET: &str = "a secret of many bytes";

pub fn undisturbed(folder: &Path, length: &str, steps: u64) -> (Vec<u8>, Vec<u8>) {
    pictures(folder);
    run(folder, &format!("{RECIPE} {length} --workers 1 --out whole"));
    weights(&folder.join("whole"), steps)
}

/// An address of loopback that no other test has: a free port of 127.0.0.1 may be somebody else's a moment later.
pub fn own_address() -> SocketAddr {
    static TAKEN: AtomicU8 = AtomicU8::new(0);
    let process = std::process::id();
    let [.., b, c] = process.to_be_bytes();
    let ip = [127, b | 64, c, 1 + TAKEN.fetch_add(1, Ordering::Relaxed)];
    // Below the ports that the system gives to whoever names none.
    SocketAddr::from((ip, 20_000 + (process % 10_000) as u16))
}

/// A place to meet that nobody uses.
pub fn somewhere() -> String {
    format!("--rendezvous tcp://{}", own_address())
}

/// A host, started; it is killed if it has not ended.
pub struct Launcher(Option<Child>);

impl Launcher {
    pub fn start(folder: &Path, arguments: &str) -> Self {
        Self::of(paceline(folder, arguments))
    }

    pub fn with_secret(folder: &Path, arguments: &str, secret: &str) -> Self {
        let mut command = paceline(folder, arguments);
        command.env("PACELINE_SECRET", secret);
        Self(Some(command.spawn().expect("the program starts")))
    }

    /// A command that knows the secret.
    pub fn of(mut command: Command) -> Self {
        Self(Some(command.env("PACELINE_SECRET", SECRET).spawn().expect("the program starts")))
    }

    pub fn id(&self) -> Pid {
        Pid::from_child(self.0.as_ref().expect("it has not ended"))
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.as_mut().is_none_or(|child| child.try_wait().expect("a process of our own").is_some())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).expect("a process of our own");
    }

    pub fn end(mut self) -> Output {
        self.0.take().expect("it has not ended").wait_with_output().expect("it ends")
    }

    /// How it ended, and what it said.
    pub fn ended(self) -> (Option<i32>, String) {
        let output = self.end();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub fn ends_well(self) {
        let output = self.end();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// What it says when it fails.
    pub fn fails(self) -> String {
        let output = self.end();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until a file of a run holds some text.
pub fn wait_for(path: &Path, text: &str) {
    let begin = Instant::now();
    while !fs::read_to_string(path).is_ok_and(|found| found.contains(text)) {
        assert!(begin.elapsed() < PATIENCE, "{text} is not in {}", path.display());
        thread::sleep(Duration::from_millis(5));
    }
}

pub fn case_folder(run: &Path) -> PathBuf {
    let cases = fs::read_dir(run).expect("a run").flatten().map(|entry| entry.path());
    cases.into_iter().find(|path| path.join("launcher.jsonl").exists()).expect("a case")
}

/// Steps of the newest checkpoint of a folder.
pub fn newest(folder: &Path) -> u64 {
    let checkpoints = fs::read_dir(folder.join("checkpoints")).expect("checkpoints").flatten();
    let names = checkpoints.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).max().expect("one of them")
}

/// Phases of all members on all hosts tile their lives.
pub fn numbers_add_up(case: &Value) {
    let sum: f64 = case["phases_s"].as_object().expect("phases").values().filter_map(Value::as_f64).sum();
    let lives = case["mean_workers"].as_f64().expect("lives") * case["total_s"].as_f64().expect("a time");
    assert!((sum - lives).abs() < 1e-3 * lives, "{sum} and {lives}");
}
