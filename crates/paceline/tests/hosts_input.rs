//! `--hosts` with bad input, full disks, and several ways to meet: one clear sentence on every host, and the healthy go on.

mod training;

use std::fs;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use paceline_comm::Deadline;
use paceline_comm::wire::{Letters, Secrecy, Secret, Terms, call};
use rustix::process::{Resource, Rlimit, Signal, prlimit};
use training::hosts::{
    LONG, LONG_STEPS, Launcher, RECIPE, SHORT, STEPS, newest, own_address, somewhere, undisturbed, wait_for,
};
use training::{pictures, report, run, weights};

const SECRET: &str = "a secret of many bytes";

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until a first host has its folder, which is before it answers.
fn wait_for_first(folder: &Path) {
    wait_for(&folder.join("first/study.json"), "mobilenet");
}

#[test]
fn hosts_meet_in_a_shared_folder_and_leave_nothing_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    let place = folder.join("meet");
    fs::create_dir(&place).expect("a folder");
    // Left by a first host that was killed.
    fs::write(place.join("rendezvous"), "127.0.0.1:1 1-1\n").expect("a file");
    let at = own_address();
    let meet = format!("--rendezvous file://{} --interface {}", place.display(), at.ip());
    let job = format!("{RECIPE} {SHORT} --workers 1 --hosts 2 {meet}");
    let first = Launcher::start(folder, &format!("{job} --port {} --out first", at.port()));
    wait_for(&place.join("rendezvous"), &format!("{at} "));
    wait_for_first(folder);
    Launcher::start(folder, &format!("{job} --out second")).ends_well();
    let output = first.end();
    let words = said(&output);
    assert!(output.status.success() && !words.contains("sent away"), "{words}");
    assert!(weights(&folder.join("first"), STEPS) == whole, "the weights differ");
    assert_eq!(fs::read_dir(&place).expect("a folder").count(), 0, "something is left");

    let alone = Launcher::start(folder, &format!("{job} --out alone"));
    wait_for(&folder.join("alone/mobilenet_v2-w2/launcher.jsonl"), "\"joined\"");
    alone.signal(Signal::INT);
    assert!(alone.fails().contains("interrupted"));
    assert_eq!(fs::read_dir(&place).expect("a folder").count(), 0, "something is left");
}

#[test]
fn hosts_meet_over_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no ::1");
        return;
    }
    let at = SocketAddr::from((Ipv6Addr::LOCALHOST, own_address().port()));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    let job = format!("{RECIPE} {SHORT} --workers 1 --hosts 3 --rendezvous tcp://{at}");
    let first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for_first(folder);
    let others = ["second", "third"].map(|out| Launcher::start(folder, &format!("{job} --out {out}")));
    others.into_iter().for_each(Launcher::ends_well);
    first.ends_well();
    assert!(weights(&folder.join("first"), STEPS) == whole, "the weights differ");
}

#[test]
fn bytes_go_to_the_interface_that_each_host_names() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    let job = format!("{RECIPE} {SHORT} --workers 1 --hosts 3 {}", somewhere());
    let first = Launcher::start(folder, &format!("{job} --interface 127.0.0.2 --out first"));
    wait_for_first(folder);
    // The door of each is nowhere else.
    let second = Launcher::start(folder, &format!("{job} --interface 127.0.0.3 --out second"));
    let third = Launcher::start(folder, &format!("{job} --interface 127.0.0.4 --out third"));
    second.ends_well();
    third.ends_well();
    first.ends_well();
    assert!(weights(&folder.join("first"), STEPS) == whole, "the weights differ");
}

#[test]
fn hosts_compute_with_the_instruction_set_that_the_job_names() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|found| found == flag);
    let has_avx2 = has("avx2") && has("fma");
    for set in ["avx2", "portable"].into_iter().filter(|&set| set != "avx2" || has_avx2) {
        let job = format!("{RECIPE} {SHORT} --workers 1 --instructions {set}");
        run(folder, &format!("{job} --out alone-{set}"));
        run(folder, &format!("{job} --hosts 2 --local --out local-{set}"));
        let [alone, local] =
            ["alone", "local"].map(|out| weights(&folder.join(format!("{out}-{set}")), STEPS));
        assert!(alone == local, "{set}: the weights differ");
    }
    // The second host is told by the first, or must ask for the same.
    let job = format!("{RECIPE} {SHORT} --workers 1 --hosts 2 {}", somewhere());
    let first = Launcher::start(folder, &format!("{job} --instructions portable --out first"));
    wait_for_first(folder);
    if has_avx2 && has("avx512f") {
        let output = Launcher::start(folder, &format!("{job} --instructions avx2 --out other")).end();
        let words = said(&output);
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(words.contains("--instructions is avx2 on"), "{words}");
    }
    Launcher::start(folder, &format!("{job} --out second")).ends_well();
    first.ends_well();
    let [alone, hosts] = ["alone-portable", "first"].map(|out| weights(&folder.join(out), STEPS));
    assert!(alone == hosts, "the weights differ");
}

/// What the first host answers to a caller that says this of itself.
fn answer_to(at: SocketAddr, greeting: &str) -> String {
    let secret = Secret::new(SECRET.as_bytes()).expect("it is long enough");
    let terms = Terms::new(secret, Secrecy::Plain);
    let stream = call(at, &terms, greeting.as_bytes(), Deadline::after(Duration::from_secs(10)));
    let mut letters = Letters::new(stream.expect("it lets us in"));
    loop {
        if let Some(letter) = letters.progress().expect("an answer").first() {
            return String::from_utf8_lossy(letter).into_owned();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn hosts_that_cannot_take_part_are_told_why_and_named_on_the_first_which_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, SHORT, STEPS);
    // One pixel is another.
    let (data, other) = (folder.join("pictures"), folder.join("others"));
    fs::create_dir(&other).expect("a folder");
    for entry in fs::read_dir(&data).expect("pictures").flatten() {
        fs::copy(entry.path(), other.join(entry.file_name())).expect("a copy");
    }
    let batch = other.join("data_batch_3.bin");
    let mut bytes = fs::read(&batch).expect("pictures");
    let last = bytes.last_mut().expect("a pixel");
    *last ^= 1;
    fs::write(&batch, bytes).expect("a file");

    let at = own_address();
    let job = format!("{RECIPE} {SHORT} --workers 1 --hosts 2 --rendezvous tcp://{at}");
    let first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for_first(folder);
    for (more, expected) in [
        ("--data cifar10:others", "cifar10:others is other data on "),
        ("--shards 8", "--shards is 8 on "),
        ("--seed 3", "--seed is 3 on "),
        ("--epochs 4", "the number of steps is 30 on "),
    ] {
        let output = Launcher::start(folder, &format!("{job} {more} --out other")).end();
        let words = said(&output);
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(words.contains(expected) && words.contains("on the first host"), "{more}: {words}");
        assert!(!words.contains("leads"), "it was not taken in: {words}");
    }
    // The first host's own folder, as if both shared a disk.
    let output = Launcher::start(folder, &format!("{job} --out first")).end();
    let words = said(&output);
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("first is not empty") && words.contains("leave --out out"), "{words}");
    let answer = answer_to(at, r#"{"control":{"version":"0.0.7","name":"old-box"}}"#);
    assert!(answer.contains("sent_away") && answer.contains("old-box has Paceline 0.0.7"), "{answer}");

    let output = Launcher::start(folder, &format!("{job} --out second")).end();
    let words = said(&output);
    assert!(output.status.success() && words.contains("host 1 in the training of mobilenet_v2"), "{words}");
    let output = first.end();
    let words = said(&output);
    assert!(output.status.success(), "{words}");
    for named in ["is other data on", "--shards is 8 on", "old-box has Paceline 0.0.7, and the first host"] {
        assert!(words.contains(named), "{named}: {words}");
    }
    assert!(weights(&folder.join("first"), STEPS) == whole, "the weights differ");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches("from the start").count(), 2, "{text}");
}

#[test]
fn a_host_that_cannot_create_its_folder_is_named_on_both() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    fs::write(folder.join("file"), "in the way of a folder").expect("a file");
    let job = format!("{RECIPE} {SHORT} --workers 1 --hosts 2 --host-wait 4 {}", somewhere());
    let first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for_first(folder);
    let words = Launcher::start(folder, &format!("{job} --out file/second")).fails();
    assert!(words.contains("create file/second/run"), "{words}");
    let words = first.fails();
    assert!(words.contains("was sent away") && words.contains("create file/second/run"), "{words}");
}

#[test]
fn a_rendezvous_that_nobody_answers_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let job =
        "train mobilenet_v2 --batch 2 --steps 2 --threads 1 --workers 1 --hosts 2 --host-wait 1 --out other";
    // An address for documents, which nobody has.
    let words = Launcher::start(folder, &format!("{job} --rendezvous tcp://192.0.2.1:29400")).fails();
    assert!(words.contains("192.0.2.1:29400") && words.contains("--host-wait"), "{words}");
    assert!(!folder.join("other").exists());
}

#[test]
fn a_host_that_waits_for_the_first_ends_at_once_when_it_is_asked_to() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    // Somebody is there, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = silent.local_addr().expect("an address");
    let job = "train mobilenet_v2 --batch 2 --steps 2 --threads 1 --workers 1 --hosts 2 --host-wait 3600";
    let mut launcher = Launcher::start(folder, &format!("{job} --rendezvous tcp://{at} --out other"));
    let _held = silent.accept().expect("it calls");
    launcher.signal(Signal::TERM);
    for _ in 0..1200 {
        if launcher.has_ended() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(launcher.has_ended(), "it still waits");
    assert_eq!(launcher.end().status.signal(), Some(Signal::TERM.as_raw()));
    assert!(!folder.join("other").exists());
}

/// From here on nothing can be written by a launcher, as on a full disk.
fn fill_disk(launcher: &Launcher) {
    let none = Rlimit { current: Some(0), maximum: None };
    prlimit(Some(launcher.id()), Resource::Fsize, none).expect("a process of our own");
}

#[test]
fn a_full_disk_of_one_host_ends_a_training_that_is_not_elastic_and_is_named_on_both() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    for is_first in [false, true] {
        let job = format!("{RECIPE} {LONG} --workers 1 --hosts 2 {}", somewhere());
        let (one, two) = (format!("first-{is_first}"), format!("second-{is_first}"));
        let first = Launcher::start(folder, &format!("{job} --out {one}"));
        wait_for(&folder.join(&one).join("study.json"), "mobilenet");
        let second = Launcher::start(folder, &format!("{job} --out {two}"));
        wait_for(&folder.join(&one).join("mobilenet_v2-w2/member-0.jsonl"), "\"step\":3,");
        fill_disk(if is_first { &first } else { &second });
        let [first, second] = [first.fails(), second.fails()];
        for words in [&first, &second] {
            assert!(words.contains("File too large"), "{words}");
        }
        if is_first {
            assert!(second.contains("the first host ended"), "{second}");
            assert!(newest(&folder.join(&two)) >= 3);
        } else {
            assert!(first.contains("host 1 ("), "{first}");
            assert!(newest(&folder.join(&one)) >= 3);
        }
    }
}

#[test]
fn an_elastic_training_goes_on_without_a_host_whose_disk_is_full() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, LONG, LONG_STEPS);
    let job = format!("{RECIPE} {LONG} --elastic --workers 1 --hosts 1:2 --host-wait 30 {}", somewhere());
    let first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for_first(folder);
    let second = Launcher::start(folder, &format!("{job} --out second"));
    wait_for(&folder.join("first/mobilenet_v2-w2/launcher.jsonl"), "\"hosts\":{\"generation\":1");
    wait_for(&folder.join("first/mobilenet_v2-w2/member-0.jsonl"), "\"step\":9,");
    fill_disk(&second);
    let words = second.fails();
    assert!(words.contains("File too large"), "{words}");
    let output = first.end();
    let words = said(&output);
    assert!(output.status.success() && words.contains("File too large"), "{words}");
    assert!(weights(&folder.join("first"), LONG_STEPS) == whole, "the weights differ");
}

#[test]
fn a_host_that_leaves_in_good_order_is_not_reported_as_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    for (out, hosts) in [("elastic", "--elastic --hosts 1:2"), ("first", "--hosts 2")] {
        let job = format!("{RECIPE} {LONG} --workers 1 {hosts} --host-wait 30 {}", somewhere());
        let first = Launcher::start(folder, &format!("{job} --out {out}"));
        wait_for(&folder.join(out).join("study.json"), "mobilenet");
        let second = Launcher::start(folder, &format!("{job} --out {out}-second"));
        let case = folder.join(out).join("mobilenet_v2-w2");
        wait_for(&case.join("launcher.jsonl"), "\"hosts\":{\"generation\":1");
        wait_for(&case.join("member-0.jsonl"), "\"step\":9,");
        second.signal(Signal::INT);
        let words = second.fails();
        assert!(words.contains("interrupted") && words.contains("on this host alone"), "{words}");
        let output = first.end();
        let words = said(&output);
        assert_eq!(output.status.success(), out == "elastic", "{words}");
        assert!(words.contains("host 1 (") && words.contains("interrupted"), "{words}");
        let case = &report(&folder.join(out))["cases"][0];
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("from the start; left at "), "{text}");
        if out == "elastic" {
            let recovery = &case["recovery"];
            let counts = ["losses", "expulsions", "leaves", "hosts_left"].map(|name| recovery[name].as_u64());
            assert_eq!(counts, [Some(0), Some(0), Some(1), Some(1)], "{recovery}");
            assert!(!text.contains("SIGKILL") && !text.contains("losses cost"), "{text}");
        } else {
            assert!(words.contains("on this host alone"), "{words}");
        }
    }
}
