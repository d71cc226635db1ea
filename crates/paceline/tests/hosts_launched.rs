//! Processes that mpirun and srun start, told so by their environment alone: no MPI is needed.

use std::process::Command;

use assert_cmd::cargo::cargo_bin;

const MPIRUN: [(&str, &str); 3] =
    [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), ("PACELINE_MPI", "/nowhere/libmpi.so")];

const SRUN: [(&str, &str); 4] = [
    ("SLURM_PROCID", "0"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_STEP_NODELIST", "n[1-2]"),
    ("SLURM_STEP_NUM_NODES", "2"),
];

/// The exit status, and what it says.
fn run(environment: &[(&str, &str)], words: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(cargo_bin!("paceline"));
    command.args(words.split_whitespace()).current_dir(folder.path());
    let output = command.envs(environment.iter().copied()).output().expect("the program runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[track_caller]
fn assert_refused(environment: &[(&str, &str)], words: &str, expected: &[&str]) {
    let (status, said) = run(environment, words);
    assert_eq!(status, Some(2), "{said}");
    for expected in expected {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn a_library_that_is_missing_is_refused_in_words() {
    let expected = ["/nowhere/libmpi.so", "PACELINE_MPI", "was not found", "Without MPI: --wire tcp"];
    assert_refused(&MPIRUN, "train mobilenet_v2", &expected);
    assert_refused(&MPIRUN, "bench mobilenet_v2 --wire mpi", &expected);
    assert_refused(&MPIRUN, "allreduce", &expected);
}

#[test]
fn options_that_ranks_have_no_use_for_are_refused() {
    for (options, expected) in [
        ("--encrypt", "--encrypt is for hosts that connect over TCP"),
        ("--port 29400", "--port is for hosts that connect over TCP"),
        ("--local", "each of which is a host; leave --local out"),
        ("--wire mpi --rendezvous tcp://a:1", "leave --local and --rendezvous out"),
        ("--hosts 3", "--hosts says 3, and mpirun has started 2 processes"),
        ("--wire mpi --elastic --hosts 1:2", "the ranks of an MPI job cannot come and go"),
        ("--wire tcp", "mpirun does not tell where the first host is: give --rendezvous"),
    ] {
        assert_refused(&MPIRUN, &format!("train mobilenet_v2 {options}"), &[expected]);
    }
}

#[test]
fn srun_that_tells_nothing_of_the_others_is_told_apart_from_one_that_does() {
    let expected = ["srun --mpi=pmix", "srun --mpi=pmi2", "--wire tcp"];
    assert_refused(&SRUN, "train mobilenet_v2 --wire mpi", &expected);
    let speaking = [&SRUN[..], &[("PMI_RANK", "0"), ("PACELINE_MPI", "/nowhere/libmpi.so")]].concat();
    assert_refused(&speaking, "train mobilenet_v2", &["/nowhere/libmpi.so"]);
}

#[test]
fn one_process_of_mpirun_is_a_host_alone_and_may_be_asked_for_the_wire() {
    let alone = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    let words = "bench mobilenet_v2 --engine simulated --workers 1 --steps 5 --wire mpi --lease 3";
    let (status, said) = run(&alone, words);
    assert_eq!(status, Some(0), "{said}");
    assert_refused(&[], words, &["--wire mpi is for processes that mpirun or srun starts"]);
    assert_refused(
        &alone,
        "train mobilenet_v2 --hosts 1 --wire mpi",
        &["which is one host: leave --wire out"],
    );
}
