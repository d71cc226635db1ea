//! `paceline doctor`, as a user sees it.

use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

fn doctor(arguments: &[&str]) -> String {
    let output = Command::new(cargo_bin!("paceline"))
        .arg("doctor")
        .args(arguments)
        .output()
        .expect("the program runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), said.as_str()), (Some(0), ""));
    String::from_utf8(output.stdout).expect("text")
}

/// Names of the checks in a table, in order.
fn names(table: &str) -> Vec<String> {
    let start = table.lines().next().and_then(|header| header.find("what")).expect("a header");
    let end = table.lines().next().and_then(|header| header.find("value")).expect("a header");
    let is_check = |line: &&str| ["ok ", "note ", "warning "].iter().any(|level| line.starts_with(level));
    table.lines().filter(is_check).map(|line| line[start..end].trim().to_owned()).collect()
}

#[test]
fn the_table_has_its_sections_a_last_line_and_no_colour() {
    let table = doctor(&[]);
    let titles = [
        "Processor",
        "Memory",
        "GPUs and their libraries",
        "Several hosts",
        "System",
        "What would spoil a measurement",
        "A study on this machine",
    ];
    let found: Vec<&str> = table.lines().filter(|line| titles.contains(line)).collect();
    assert_eq!(found, titles, "{table}");
    assert!(!table.contains('\u{1b}'), "{table:?}");
    let warnings = table.lines().filter(|line| line.starts_with("warning ")).count();
    let expected = match warnings {
        0 => "nothing found that would spoil a measurement".to_owned(),
        1 => "1 warning: this machine's numbers should be taken with care".to_owned(),
        _ => format!("{warnings} warnings: this machine's numbers should be taken with care"),
    };
    assert_eq!(table.lines().last(), Some(expected.as_str()), "{table}");
}

#[test]
fn the_json_holds_the_same_checks_and_the_facts_behind_them() {
    let report: Value = serde_json::from_str(&doctor(&["--json"])).expect("JSON");
    let checks = report["checks"].as_array().expect("a list");
    let told: Vec<&str> = checks.iter().filter_map(|check| check["what"].as_str()).collect();
    assert_eq!(told, names(&doctor(&[])));
    for check in checks {
        for field in ["section", "level", "value"] {
            assert!(check[field].is_string(), "{field}: {check}");
        }
        assert!(check["level"] != "warning" || check["advice"].is_string(), "{check}");
    }
    let warnings = checks.iter().filter(|check| check["level"] == "warning").count();
    assert_eq!(report["warnings"], warnings);
    assert!(report["summary"].is_string());
}

#[test]
fn every_core_that_the_process_may_use_is_tried_out() {
    let report: Value = serde_json::from_str(&doctor(&["--json"])).expect("JSON");
    let facts = &report["facts"];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(facts["probe"]["spins"].as_array().map(Vec::len), Some(cores));
    assert!(facts["probe"]["reading"].as_u64() > Some(0));
    assert!(facts["memory"]["total"].as_u64() > Some(0));
    let needs = facts["needs"].as_array().expect("a list");
    assert!(needs.iter().all(|need| need["worker"].as_u64() > Some(1_000_000)), "{needs:?}");
}
