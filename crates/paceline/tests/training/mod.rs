//! What tests of trainings share: a small data set, the program, and the weights it leaves.

#![allow(dead_code, reason = "each test program uses some of it")]

pub mod hosts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_paceline");

/// Samples in each of the six files of [`pictures`].
pub const EACH: usize = 12;

/// A data set in CIFAR-10's binary form, small: a bright stripe at the height of the class.
pub fn pictures(folder: &Path) -> PathBuf {
    let path = folder.join("pictures");
    fs::create_dir_all(&path).expect("a folder");
    let mut state = 1u32;
    let mut draw = |limit: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % limit
    };
    for name in ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    {
        let mut bytes = Vec::new();
        for _ in 0..EACH {
            let label = draw(10) as u8;
            bytes.push(label);
            for pixel in 0..3 * 1024 {
                let row = pixel % 1024 / 32;
                let stripe = if row / 3 == usize::from(label) { 150 } else { 0 };
                bytes.push(stripe + draw(100) as u8);
            }
        }
        fs::write(path.join(format!("{name}.bin")), bytes).expect("a file");
    }
    path
}

pub fn paceline(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn run(folder: &Path, arguments: &str) -> Output {
    let output = paceline(folder, arguments).output().expect("the program starts");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// What a command that is refused says.
pub fn refuse(folder: &Path, arguments: &str) -> String {
    let output = paceline(folder, arguments).output().expect("the program starts");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
    said
}

/// The weights of a run, and its optimizer's memory with the statistics of each shard.
pub fn weights(run: &Path, steps: u64) -> (Vec<u8>, Vec<u8>) {
    let state = run.join(format!("checkpoints/step-{steps:08}/state.safetensors"));
    (fs::read(run.join("weights.safetensors")).expect("weights"), fs::read(state).expect("state"))
}

pub fn report(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("report.json")).expect("a report")).expect("JSON")
}
