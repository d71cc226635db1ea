//! One version for all: the program, the crates and the Python package. docs/release.md says how it is raised.

use std::fs;
use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_program_says_its_version() {
    let output = Command::new(cargo_bin!("paceline")).arg("--version").output().expect("the program runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("paceline {VERSION}\n"));
}

#[test]
fn the_python_package_has_the_version_of_the_program() {
    let module = read("adapters/python/src/paceline/__init__.py");
    let assigned: Vec<&str> = module.lines().filter(|line| line.starts_with("__version__")).collect();
    assert_eq!(assigned, [format!("__version__ = \"{VERSION}\"")]);
}

/// Cargo would take any compatible one; crates that are published together are used together.
#[test]
fn our_crates_ask_for_exactly_this_version_of_each_other() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("TOML");
    let dependencies = manifest["workspace"]["dependencies"].as_table().expect("a table");
    let ours: Vec<_> = dependencies.iter().filter(|(name, _)| name.starts_with("paceline")).collect();
    assert!(!ours.is_empty());
    for (name, asked) in ours {
        assert_eq!(asked["version"].as_str(), Some(format!("={VERSION}").as_str()), "{name}");
    }
}
