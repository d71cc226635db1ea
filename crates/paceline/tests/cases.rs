//! The pages under `docs/cases` show what the program prints.

use std::fs;
use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;

/// Stands for lines that a page leaves out.
const LEFT_OUT: &str = "[...]";

/// Runs a command of a page in the folder of the pages.
fn run(folder: &Path, command: &str) -> String {
    let arguments = command.strip_prefix("paceline ").expect("pages run paceline").split_whitespace();
    let output = Command::new(cargo_bin!("paceline"))
        .current_dir(folder)
        .args(arguments)
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_page_shows_what_its_commands_print() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cases");
    let mut shown = 0;
    for entry in fs::read_dir(&folder).expect("the pages").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let page = fs::read_to_string(&path).expect("a page");
        for block in page.split("```console\n").skip(1) {
            let block = block.split("```").next().expect("a block");
            let (command, printed) = block.split_once('\n').expect("a command and its output");
            let output = run(&folder, command.trim_start_matches("$ "));
            let mut rest = output.as_str();
            for piece in printed.split(LEFT_OUT).map(str::trim).filter(|piece| !piece.is_empty()) {
                let at = rest.find(piece);
                let at = at.unwrap_or_else(|| {
                    panic!("{}: {command} does not print\n{piece}\nbut\n{rest}", path.display())
                });
                rest = &rest[at + piece.len()..];
            }
            shown += 1;
        }
    }
    assert!(shown >= 5, "{shown} commands");
}
