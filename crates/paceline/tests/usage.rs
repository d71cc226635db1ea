//! Bad usage: exit status 2, one clear error, and nothing left behind.

use std::process::Command;

use assert_cmd::cargo::cargo_bin;

/// Runs `paceline` in an empty folder; what it said on standard error.
fn refuse(arguments: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(cargo_bin!("paceline"))
        .current_dir(folder.path())
        .args(arguments.split_whitespace())
        .output()
        .expect("the program runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
    assert!(output.stdout.is_empty(), "{arguments} wrote to standard output");
    let errors = said.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), 1, "{arguments}: {said}");
    let left = folder.path().read_dir().expect("the folder").count();
    assert_eq!(left, 0, "{arguments} left something behind");
    said
}

fn assert_refused(cases: &[(&str, &str)]) {
    for (arguments, expected) in cases {
        let said = refuse(arguments);
        assert!(said.contains(expected), "{arguments}: {said}");
    }
}

#[test]
fn a_network_that_is_not_there_is_refused_with_the_nearest_name() {
    assert_refused(&[("bench resnet", "did you mean resnet50"), ("bench nonesuch", "vgg_19")]);
}

#[test]
fn sizes_that_a_network_does_not_admit_are_refused() {
    assert_refused(&[
        ("bench inception_v3", "75x75"),
        ("bench image_compression --input 30x30", "multiples of 16"),
        ("bench --input 32", "HxW"),
        ("bench --input 0x32", "HxW"),
        ("models --input 32x32x3", "HxW"),
        ("bench --data synthetic:32x32x1", "3 channels"),
    ]);
}

#[test]
fn numbers_out_of_range_are_refused() {
    assert_refused(&[
        ("bench --batch 0", "--batch"),
        ("bench --threads 0", "--threads"),
        ("bench --steps 0", "--steps"),
        ("bench --classes 0", "--classes"),
        ("bench --lr -1", "--lr"),
        ("bench --lr nan", "--lr"),
        ("models --classes 0", "--classes"),
    ]);
}

#[test]
fn names_that_mean_nothing_are_refused() {
    assert_refused(&[
        ("bench --layout hwcn", "nhwc or nchw"),
        ("bench --precision fp8", "fp32"),
        ("bench --engine abacus", "'abacus'"),
        ("bench --data mnist", "synthetic:cifar10"),
        ("bench --profile=some", "--profile"),
        ("bench --nonsense", "--nonsense"),
        ("race", "race"),
        ("worker", "worker"),
    ]);
}

#[test]
fn what_the_cpu_does_not_do_is_refused() {
    assert_refused(&[
        ("bench --precision tf32", "fp32 or bf16"),
        ("bench --instructions avx512_bf16", "avx512_bf16"),
        ("bench --instructions mmx", "avx512_bf16"),
        ("bench --workers 0", "0"),
        ("bench --workers two", "two"),
        ("bench --update gossip", "ps-cpu"),
        ("bench --compress zip", "bf16"),
        ("bench --hosts 2 --local --profile", "leave --elastic and --hosts out"),
        ("bench --elastic --profile", "leave --elastic and --hosts out"),
        ("bench --compress bf16 --update sharded", "allreduce only"),
        ("bench --bucket-mb 0", "above 0"),
        ("bench --overlap maybe", "yes or no"),
        ("bench --accumulate 0", "0"),
        ("bench --pin perhaps", "yes or no"),
    ]);
}

#[test]
fn more_memory_than_the_machine_has_is_refused_before_it_is_taken() {
    assert_refused(&[("bench vgg_19 --input 224x224 --batch 1000000", "--batch")]);
}

#[test]
fn folders_that_cannot_hold_a_study_are_refused() {
    let taken = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(taken.path().join("thesis.tex"), "years of work").expect("a file");
    let path = taken.path().display();
    assert_refused(&[
        (&format!("bench --out {path}"), "has no study.json"),
        (&format!("bench --out {path}/thesis.tex/study"), "cannot create"),
        ("bench --out /proc/study", "cannot create"),
    ]);
}
