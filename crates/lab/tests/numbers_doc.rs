//! `docs/numbers.md` names every file that computes a number, and every field that a report or a comparison has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use paceline_lab::numbers::waterfall::Cause;
use paceline_record::Phase;

/// Structs that are tables of the page, and what its first column calls them.
const TABLES: [(&str, &str); 5] = [
    ("Report", "report"),
    ("CaseReport", "case"),
    ("Explained", "`explained`"),
    ("Finding", "`findings`"),
    ("Comparison", "comparison"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn page() -> String {
    read(&root().join("docs/numbers.md"))
}

/// All Rust files below a folder, except tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found
}

/// A field of a struct that is written to JSON.
struct Field {
    name: String,
    /// The struct in it, possibly inside an option or a list, or the last name of its type.
    holds: String,
    /// Whether it is flattened.
    flat: bool,
}

/// The fields of every serialised struct of a source file; rustfmt puts one on each line.
fn find_structs(source: &str) -> BTreeMap<String, Vec<Field>> {
    let mut structs: BTreeMap<String, Vec<Field>> = BTreeMap::new();
    let (mut serialised, mut attributes, mut inside) = (false, String::new(), None);
    for line in source.lines() {
        let text = line.trim();
        if text.starts_with("#[") {
            serialised |= text.starts_with("#[derive(") && text.contains("Serialize");
            attributes.push_str(text);
        } else if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) {
            inside = serialised.then(|| name.to_owned());
            attributes.clear();
        } else if line == "}" {
            (serialised, inside) = (false, None);
        } else if let (Some(name), Some((field, kind))) =
            (&inside, text.strip_prefix("pub ").and_then(|field| field.split_once(':')))
        {
            let holds = kind.rsplit(['<', ':', ' ']).next().expect("a type").trim_end_matches([',', '>']);
            if !attributes.contains("skip)") {
                let renamed =
                    attributes.split_once("rename = \"").and_then(|(_, rest)| rest.split('"').next());
                structs.entry(name.clone()).or_default().push(Field {
                    name: renamed.unwrap_or(field).into(),
                    holds: holds.into(),
                    flat: attributes.contains("flatten"),
                });
            }
            attributes.clear();
        }
    }
    structs
}

fn all_structs() -> BTreeMap<String, Vec<Field>> {
    let lab = root().join("crates/lab/src");
    let mut files = sources(&lab.join("numbers"));
    files.extend(
        ["case.rs", "report.rs", "finding.rs", "compare.rs", "study.rs", "status.rs"]
            .map(|file| lab.join(file)),
    );
    files.push(root().join("crates/record/src/event.rs"));
    files.iter().flat_map(|file| find_structs(&read(file))).collect()
}

/// Names of a field and of all fields inside it, except structs with their own table.
fn names(field: &Field, structs: &BTreeMap<String, Vec<Field>>) -> Vec<String> {
    let apart = TABLES.iter().any(|(name, _)| *name == field.holds);
    let held = structs.get(&field.holds).filter(|_| !apart).into_iter().flatten();
    let held = held.flat_map(|field| names(field, structs));
    // A flattened field has the names of what it holds.
    let own = (!field.flat).then(|| field.name.clone());
    own.into_iter().chain(held).collect()
}

#[test]
fn every_field_has_a_row_that_names_all_it_holds() {
    let (page, structs) = (page(), all_structs());
    let mut checked = 0;
    for (name, called) in TABLES {
        let fields = structs[name].iter();
        for field in
            fields.flat_map(
                |field| if field.flat { &structs[&field.holds][..] } else { std::slice::from_ref(field) },
            )
        {
            let named = |cell: &str| cell.contains(&format!("`{}`", field.name));
            let begin = format!("| {called} |");
            let rows = page.lines().filter_map(|line| line.strip_prefix(&begin));
            let row = rows.clone().find(|row| row.split('|').next().is_some_and(named));
            let row = row.unwrap_or_else(|| panic!("{name}: no row of docs/numbers.md has `{}`", field.name));
            for part in names(field, &structs) {
                assert!(
                    row.contains(&format!("`{part}`")),
                    "the row of `{}` does not name `{part}`",
                    field.name
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "only {checked} names were found in the sources");
}

#[test]
fn every_file_that_computes_is_named() {
    let (page, lab) = (page(), root().join("crates/lab/src"));
    let files: Vec<PathBuf> =
        ["numbers", "stats"].iter().flat_map(|folder| sources(&lab.join(folder))).collect();
    assert!(files.len() > 20, "only {} files", files.len());
    for file in files {
        let name = file.strip_prefix(&lab).expect("invariant: a file of it").display().to_string();
        assert!(page.contains(&format!("`{name}`")), "docs/numbers.md does not name {name}");
    }
}

#[test]
fn every_phase_cause_and_kind_of_finding_is_named() {
    let page = page();
    let json = |value: serde_json::Result<String>| value.expect("a name").trim_matches('"').to_owned();
    let mut all: Vec<String> = Phase::ALL.map(|phase| phase.name().into()).into();
    all.extend(Cause::all().map(|cause| json(serde_json::to_string(&cause))));
    let source = read(&root().join("crates/lab/src/finding.rs"));
    let kinds =
        source.split("pub enum Kind {").nth(1).and_then(|rest| rest.split('}').next()).expect("a list");
    let kinds = kinds.lines().map(str::trim).filter(|line| !line.starts_with("///"));
    all.extend(kinds.filter_map(|line| line.strip_suffix(',')).map(snake));
    assert!(all.len() > 50, "{all:?}");
    for name in all {
        assert!(page.contains(&format!("`{name}`")), "docs/numbers.md does not name `{name}`");
    }
}

/// `NoSteadyState` as `no_steady_state`.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
