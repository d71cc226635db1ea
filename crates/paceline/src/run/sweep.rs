//! The same command for another number of workers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::outcome::Usage;

/// Stands for the number of workers in a command.
const PLACEHOLDER: &[u8] = b"{workers}";

/// Starters of workers, by the name of the program or module, and the options that say how many.
const STARTERS: [(&[&str], &[&str]); 3] = [
    (
        &["torchrun", "torch.distributed.run", "torch.distributed.launch"],
        &["--nproc-per-node", "--nproc_per_node"],
    ),
    (&["accelerate", "accelerate.commands.launch"], &["--num_processes", "--num-processes"]),
    (&["mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.hydra"], &["-np", "-n", "--np", "--n"]),
];

/// The command for a number of workers.
pub fn with_workers(command: &[OsString], workers: u32) -> Result<Vec<OsString>, Usage> {
    let number = workers.to_string();
    if command.iter().any(|word| find(word.as_bytes(), PLACEHOLDER).is_some()) {
        return Ok(command.iter().map(|word| fill(word, number.as_bytes())).collect());
    }
    for (names, options) in STARTERS {
        let Some(starter) = command.iter().position(|word| is_one_of(word, names)) else { continue };
        if let Some(changed) = replace(command, starter + 1, options, &number) {
            return Ok(changed);
        }
    }
    Err(Usage::new(
        "--workers-sweep does not find the number of workers in the command: write {workers} in its place, or start it by \
         torchrun with --nproc-per-node, accelerate launch with --num_processes, or mpirun with -np",
    ))
}

fn is_one_of(word: &OsStr, names: &[&str]) -> bool {
    let name = Path::new(word).file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| names.contains(&name))
}

/// Changes the first of these options from a place on; `None` if it is not there.
fn replace(command: &[OsString], from: usize, options: &[&str], number: &str) -> Option<Vec<OsString>> {
    let mut changed = command.to_vec();
    for at in from..command.len() {
        let word = command[at].to_str().unwrap_or_default();
        if options.contains(&word) {
            *changed.get_mut(at + 1)? = number.into();
            return Some(changed);
        }
        if let Some((option, _)) = word.split_once('=')
            && options.contains(&option)
        {
            changed[at] = format!("{option}={number}").into();
            return Some(changed);
        }
    }
    None
}

fn find(word: &[u8], part: &[u8]) -> Option<usize> {
    word.windows(part.len()).position(|window| window == part)
}

fn fill(word: &OsStr, number: &[u8]) -> OsString {
    let (mut rest, mut filled) = (word.as_bytes(), Vec::new());
    while let Some(at) = find(rest, PLACEHOLDER) {
        filled.extend_from_slice(&rest[..at]);
        filled.extend_from_slice(number);
        rest = &rest[at + PLACEHOLDER.len()..];
    }
    filled.extend_from_slice(rest);
    OsString::from_vec(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(command: &str, workers: u32) -> String {
        let words: Vec<OsString> = command.split(' ').map(Into::into).collect();
        let changed = with_workers(&words, workers).expect("it can be found");
        changed.iter().map(|word| word.to_str().expect("text")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_starter_is_told_its_number_in_its_own_way() {
        for (command, expected) in [
            ("torchrun --nproc-per-node 2 train.py -n 5", "torchrun --nproc-per-node 4 train.py -n 5"),
            (
                "/opt/bin/torchrun --nproc_per_node=gpu train.py",
                "/opt/bin/torchrun --nproc_per_node=4 train.py",
            ),
            (
                "python -m torch.distributed.run --nnodes 1 --nproc-per-node=2 train.py",
                "python -m torch.distributed.run --nnodes 1 --nproc-per-node=4 train.py",
            ),
            ("accelerate launch --num_processes 2 train.py", "accelerate launch --num_processes 4 train.py"),
            ("env A=1 mpirun -np 2 python train.py", "env A=1 mpirun -np 4 python train.py"),
            ("python train.py --workers {workers} --tag w{workers}", "python train.py --workers 4 --tag w4"),
        ] {
            assert_eq!(with(command, 4), expected);
        }
    }

    #[test]
    fn a_placeholder_counts_before_an_option() {
        assert_eq!(
            with("torchrun --nproc-per-node 2 t.py {workers}", 4),
            "torchrun --nproc-per-node 2 t.py 4"
        );
    }

    #[test]
    fn a_command_without_a_number_is_refused_with_what_to_write() {
        for command in ["python train.py -n 2", "torchrun train.py", "mpirun -np"] {
            let words: Vec<OsString> = command.split(' ').map(Into::into).collect();
            let error = with_workers(&words, 2).expect_err("no number").to_string();
            assert!(error.contains("{workers}") && error.contains("--nproc-per-node"), "{error}");
        }
    }
}
