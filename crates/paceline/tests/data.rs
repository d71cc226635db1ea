//! `paceline data` as users run it, without a network.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;

/// Runs `paceline data cifar10 set` where only the programs in `bin` can be found; its status, and what it said.
fn run(folder: &Path, more: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(cargo_bin!("paceline"))
        .current_dir(folder)
        .env("PATH", folder.join("bin"))
        .args(["data", "cifar10", "set"])
        .args(more)
        .output()
        .expect("the program runs");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

fn write_program(folder: &Path, name: &str, script: &str) {
    let path = folder.join("bin").join(name);
    fs::create_dir_all(folder.join("bin")).expect("a writable folder");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a writable folder");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("own file");
}

#[test]
fn where_nothing_can_be_reached_it_says_what_to_do_by_hand() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (status, said) = run(folder.path(), &[]);
    assert_eq!(status, Some(1), "{said}");
    let error = said.lines().last().expect("an error");
    for part in
        ["error: cannot fetch", "cannot run curl", "cannot run npm", "https://www.cs.toronto.edu", "--from"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is left behind");
}

#[test]
fn where_the_home_page_gives_no_archive_the_registry_is_tried() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // A page that wants one to log in, say, and a registry that is not there.
    write_program(folder.path(), "curl", r#"while [ "$1" != --output ]; do shift; done; echo hello > "$2""#);
    write_program(folder.path(), "npm", "echo 'npm error code ENOTFOUND' >&2; exit 1");
    let (status, said) = run(folder.path(), &[]);
    assert_eq!(status, Some(1), "{said}");
    let error = said.lines().last().expect("an error");
    assert!(error.contains("cannot read") && error.contains("npm error code ENOTFOUND"), "{error}");
    assert!(!folder.path().join("set").exists());
}

#[test]
fn a_file_that_is_not_there_or_holds_something_else_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (status, said) = run(folder.path(), &["--from", "missing.tar.gz"]);
    assert_eq!((status, said.as_str()), (Some(2), "error: there is no missing.tar.gz\n"));
    fs::write(folder.path().join("page.html"), "<html>").expect("a writable folder");
    let (status, said) = run(folder.path(), &["--from", "page.html"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("cannot read page.html"), "{said}");
    let (status, said) = run(folder.path(), &["--from", "."]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("is not CIFAR-10: it holds neither"), "{said}");
    assert!(!folder.path().join("set").exists());
}

#[test]
fn a_place_that_is_no_folder_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("set"), "mine").expect("a writable folder");
    let (status, said) = run(folder.path(), &[]);
    assert_eq!((status, said.as_str()), (Some(2), "error: set is not a folder\n"));
}
