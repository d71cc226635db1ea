use super::*;
use crate::Length;

fn job(instructions: &str) -> Job {
    let hosts = Hosts { min: 2, max: 2, workers: 0, local: false };
    let mut job = Job {
        hosts: Some(hosts),
        numerics: Some(computed_with(instructions)),
        ..Job::training("mobilenet_v2")
    };
    job.settle(1).expect("a job that can be run");
    job
}

fn computed_with(instructions: &str) -> Numerics {
    Numerics { instruction_set: Some(instructions.into()), ..Numerics::default() }
}

/// A machine that has AVX2 and no AVX-512.
fn older() -> Processor {
    Processor {
        best: Some(computed_with("avx2")),
        has: |numerics| numerics.instruction_set.as_deref() != Some("avx512"),
    }
}

fn meet_with(first: &Job, own: &Job) -> Result<Job, String> {
    let welcome = Welcome {
        host: Host(1),
        first: (Host(0), "first".into()),
        run: 1,
        job: first.without_places(),
        fingerprint: first.checksum().expect("a checksum"),
        history: Vec::new(),
        has_begun: false,
    };
    agree(own, &welcome, "box", &older())
}

#[test]
fn a_host_without_the_instruction_set_of_the_first_is_refused_in_words() {
    let why = meet_with(&job("avx512"), &job("avx2")).expect_err("it cannot compute alike");
    assert!(why.contains("the processor of box has no avx512"), "{why}");
    assert!(why.contains("--instructions"), "{why}");
}

#[test]
fn hosts_compute_with_what_the_first_was_told_to_use() {
    for told in ["avx2", "portable"] {
        let agreed = meet_with(&job(told), &job("avx2")).expect("it has that");
        assert_eq!(agreed.numerics, Some(computed_with(told)));
    }
}

#[test]
fn a_host_that_asks_for_another_instruction_set_than_the_first_is_refused() {
    let why = meet_with(&job("avx2"), &job("portable")).expect_err("weights would differ");
    assert!(why.contains("--instructions is portable on box, and avx2 on the first host"), "{why}");
    // Its best is what a host uses that asks for nothing; one that asks for it is not given another.
    let own = Job { instructions_asked: true, ..job("avx2") };
    let why = meet_with(&job("portable"), &own).expect_err("weights would differ");
    assert!(why.contains("--instructions is avx2 on box, and portable on the first host"), "{why}");
}

#[test]
fn what_differs_is_named_by_its_option() {
    let first = job("avx2");
    let change = |change: fn(&mut Job)| {
        let mut own = job("avx2");
        change(&mut own);
        own.settle(1).expect("a job that can be run");
        meet_with(&first, &own).expect_err("another job")
    };
    for (why, expected) in [
        (change(|job| job.shards = Some(8)), "--shards is 8 on box, and 2 on the first host"),
        (change(|job| job.seed = 7), "--seed is 7 on box, and 0 on the first host"),
        (change(|job| job.learning.schedule.base = 0.5), "--lr is 0.5 on box"),
        (change(|job| job.length = Length::Steps(9)), "the number of steps is 9 on box"),
        (
            change(|job| job.hosts.iter_mut().for_each(|hosts| hosts.min = 1)),
            "--hosts is 1:2 on box, and 2 on",
        ),
    ] {
        assert!(why.contains(expected), "{why}");
    }
}
