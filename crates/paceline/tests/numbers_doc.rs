//! The worked example of `docs/numbers.md` is what the program prints.

use std::fs;
use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;

#[test]
fn the_worked_example_is_what_the_program_prints() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/numbers.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, example) = page.split_once("$ COLUMNS=110 paceline ").expect("an example");
    let (command, lines) = example.split_once('\n').expect("its output");
    let lines: Vec<&str> = lines.lines().take_while(|line| !line.starts_with("```")).collect();
    assert!(lines.len() > 5, "{lines:?}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(cargo_bin!("paceline"))
        .env("COLUMNS", "110")
        .args(command.split_whitespace())
        .arg("--out")
        .arg(folder.path().join("study"))
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).expect("text");
    for line in lines.into_iter().filter(|&line| line != "...") {
        assert!(printed.contains(line), "not printed: {line}\n{printed}");
    }
}
