//! `paceline run` is not there, as far as the command can tell: its streams, its signals and its end are its own.

mod following;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::{fs, io::Write};

use following::{Place, said};
use rustix::process::{Pid, Signal, kill_process};

/// Runs one line of shell under `paceline run`.
fn shell(place: &Place, line: &str) -> std::process::Output {
    place.command("--").args(["sh", "-c", line]).output().expect("the program runs")
}

#[test]
fn output_and_status_are_those_of_the_command() {
    let place = Place::with("");
    let output = shell(&place, "echo out; echo err >&2; exit 7");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"out\n"[..]));
    let said = said(&output);
    assert!(said.starts_with("err\n") && said.contains("nothing was followed"), "{said}");
    assert!(place.left().is_empty(), "nothing was followed, and nothing is left: {:?}", place.left());
}

#[test]
fn standard_input_is_the_commands() {
    let place = Place::with("");
    let mut child = place
        .command("-- cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    child.stdin.take().expect("a pipe").write_all(b"as it is").expect("room");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"as it is"[..]));
}

#[test]
fn a_command_that_dies_of_a_signal_takes_the_program_with_it() {
    let place = Place::with("");
    for (name, number) in [("TERM", 15), ("KILL", 9), ("INT", 2), ("USR1", 10)] {
        let output = shell(&place, &format!("kill -{name} $$; sleep 9"));
        assert_eq!(output.status.signal(), Some(number), "{name}: {}", said(&output));
    }
}

#[test]
fn what_cannot_be_run_is_said_as_a_shell_would() {
    let place = Place::with("");
    let output = place.run("--out new -- ./no-such-program");
    assert_eq!(output.status.code(), Some(127));
    assert!(said(&output).starts_with("error: cannot run ./no-such-program: "), "{}", said(&output));
    let plain = place.path("plain");
    fs::write(&plain, "text").expect("room");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o600)).expect("our own file");
    assert_eq!(place.run("--out new -- ./plain").status.code(), Some(126));
    assert_eq!(place.left(), ["plain"]);
}

/// Whether whoever started the tests ignores a signal, as `nohup` does: so would the command.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a number");
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn a_signal_to_the_program_reaches_the_command_which_decides() {
    let signals =
        [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT")];
    for (signal, name) in signals.into_iter().filter(|&(signal, _)| !is_ignored(signal)) {
        let place = Place::with("");
        let line = format!("trap 'echo {name}; exit 3' {name}; echo ready; while :; do sleep 0.02; done");
        let mut child = place
            .command("--")
            .args(["sh", "-c", &line])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("a line");
        assert_eq!(first, "ready\n");
        kill_process(Pid::from_child(&child), signal).expect("it lives");
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("text");
        assert_eq!((rest.as_str(), child.wait().expect("it ends").code()), (&*format!("{name}\n"), Some(3)));
    }
}

#[test]
fn signals_that_are_ignored_stay_ignored() {
    let place = Place::with("");
    let program = assert_cmd::cargo::cargo_bin!("paceline");
    let line = format!("trap '' HUP; exec {} run -- sh -c 'kill -HUP $$; echo alive'", program.display());
    let output = std::process::Command::new("sh")
        .args(["-c", &line])
        .current_dir(place.folder.path())
        .output()
        .expect("it runs");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"alive\n"[..]), "{}", said(&output));
}

#[test]
fn python_finds_the_follower_first_and_what_was_there_after_it() {
    let place = Place::with("");
    let line =
        r#"echo "$PYTHONPATH"; ls "${PYTHONPATH%%:*}" "${PYTHONPATH%%:*}/paceline"; echo "$PACELINE_RUN""#;
    let mut command = place.command("--sample 1/10 --batch 32 --model mine --");
    let output = command.args(["sh", "-c", line]).env("PYTHONPATH", "/mine").output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let path = text.lines().next().expect("a line");
    let (ours, rest) = path.split_once(':').expect("two folders");
    assert_eq!(rest, "/mine");
    assert!(text.contains("sitecustomize.py\n") && text.contains("__init__.py\n"), "{text}");
    let task: serde_json::Value =
        serde_json::from_str(text.lines().last().expect("a line")).expect("one line of JSON");
    assert_eq!((&task["sample"], &task["batch"], &task["model"]), (&10.into(), &32.into(), &"mine".into()));
    assert!(task["out"].as_str().expect("a path").starts_with('/') && task["spawn"].is_u64());
    assert!(!std::path::Path::new(ours).exists(), "it is gone with the command");
}

#[test]
fn what_cannot_be_asked_for_is_refused_before_anything_runs() {
    let place = Place::with("");
    fs::create_dir(place.path("foreign")).expect("room");
    fs::write(place.path("foreign/file"), "x").expect("room");
    fs::create_dir(place.path("bench")).expect("room");
    let study = r#"{"schema":2,"program":"0.1.0","command":["bench"],"machine":{},"cases":[]}"#;
    fs::write(place.path("bench/study.json"), study).expect("room");
    for (words, expected) in [
        ("", "COMMAND"),
        ("--workers-sweep 1,2 -- touch ran", "{workers}"),
        ("--workers-sweep 1,0 -- touch {workers}", "--workers-sweep"),
        ("--workers-sweep 2,2 -- touch {workers}", "names 2 twice"),
        ("--sample 10 -- touch ran", "1/10"),
        ("--sample 1/0 -- touch ran", "1/10"),
        ("--repeat 0 -- touch ran", "--repeat"),
        ("--out foreign -- touch ran", "not empty"),
        ("--out bench -- touch ran", "did not make"),
        ("--out train.sh -- touch ran", "train.sh"),
    ] {
        let output = place.run(words);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{words}: {said}");
        assert!(said.contains(expected), "{words}: {said}");
        assert_eq!(said.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{words}: {said}");
        assert!(!place.path("ran").exists(), "{words}");
    }
    let mut left = place.left();
    left.sort();
    assert_eq!(left, ["bench", "foreign"]);
}

#[test]
fn a_command_runs_although_it_cannot_be_followed() {
    let place = Place::with("");
    let mut command = place.command("-- sh -c");
    let output = command.arg("echo ran; exit 5").env("TMPDIR", "/no/such/folder").output().expect("it runs");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(5), &b"ran\n"[..]));
    let said = said(&output);
    assert!(said.contains("warning: the command is not followed"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
