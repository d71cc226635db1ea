//! `paceline explain`, as a user sees it.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use assert_cmd::cargo::cargo_bin;

const TABLE: &str = "| GPUs | Train time (s) | Examples/s | Speedup |\n|-|-|-|-|\n| 1 | 140.3 | 100 | 1.00 |\n| 2 | 75.8 | 200 | 2.00 |\n| 4 | 43.7 | 400 | 4.00 |\n| 8 | 28.2 | 800 | 8.80 |\n";

fn explain(table: &[u8], arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("table.md");
    fs::write(&file, table).expect("a table");
    Command::new(cargo_bin!("paceline"))
        .arg("explain")
        .arg(file)
        .args(arguments)
        .output()
        .expect("the program runs")
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn a_table_is_understood_checked_and_reconciled() {
    let text = printed(&explain(TABLE.as_bytes(), &["--steps", "400"]));
    let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words:?} is not in\n{text}"));
    let order = [
        place("read as"),
        place("printed 8.80, recomputed 8.00 (800 / 100, if Examples/s, 8 workers, is"),
        place("the batch is consistent with 32"),
        place("too few points to choose a law"),
        place("What the table does not show"),
    ];
    assert!(order.is_sorted(), "{text}");
}

#[test]
fn the_same_comes_as_json_and_from_standard_input() {
    let json = printed(&explain(TABLE.as_bytes(), &["--steps", "400", "--json"]));
    let found: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let fitted = &found["series"][0]["reconciliation"];
    assert_eq!((&fitted["kind"], &fitted["batch"]["expected"]), (&"fitted".into(), &32.into()));
    assert_eq!(found["series"][0]["audit"]["slips"][0]["check"], "speedup");

    let mut piped = Command::new(cargo_bin!("paceline"))
        .args(["explain", "-", "--steps", "400", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    piped.stdin.take().expect("a pipe").write_all(TABLE.as_bytes()).expect("written");
    assert_eq!(printed(&piped.wait_with_output().expect("an end")), json);
}

#[test]
fn a_table_in_utf_16_is_read() {
    let bytes: Vec<u8> =
        "\u{feff}".encode_utf16().chain(TABLE.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    assert_eq!(printed(&explain(&bytes, &[])), printed(&explain(TABLE.as_bytes(), &[])));
}

#[test]
fn a_column_is_told_and_bad_input_is_refused() {
    let told = printed(&explain(TABLE.as_bytes(), &["--map", "Examples/s=rate-per-worker"]));
    assert!(told.contains("rate-per-worker (given)"), "{told}");
    for (table, arguments, reason) in [
        (TABLE.as_bytes(), &["--map", "Examples/s=colour"][..], "there is no meaning `colour`"),
        (TABLE.as_bytes(), &["--map", "nothing=loss"], "no table has a column"),
        (TABLE.as_bytes(), &["--map", "GPUs=workers", "--map", "gpus=steps"], "two meanings"),
        (b"", &[], "the file is empty"),
        (b"\x7fELF\x02\x01\x00\xff\xfe\x00", &[], "a program, not a profile"),
        (b"{\n  \"a\": 1\n}\n", &[], "JSON that is no trace"),
        (b"only words", &[], "no table"),
    ] {
        let output = explain(table, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(reason) && output.stdout.is_empty(), "{said}");
    }
}

#[test]
fn what_nvidia_smi_saw_is_explained_alone_and_kept_beside_a_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let paceline = |arguments: &[&str]| {
        let run = Command::new(cargo_bin!("paceline")).current_dir(folder.path()).args(arguments).output();
        printed(&run.expect("the program runs"))
    };
    let samples = "index, utilization.gpu [%], memory.used [MiB]\n0, 90 %, 4096 MiB\n0, 5 %, 4000 MiB\n0, 95 %, 3000 MiB\n";
    fs::write(folder.path().join("smi.csv"), samples).expect("a file");
    let alone = paceline(&["explain", "smi.csv"]);
    assert!(alone.contains("63.3") && alone.contains("95.0") && alone.contains("33.3"), "{alone}");
    let json: serde_json::Value =
        serde_json::from_str(&paceline(&["explain", "smi.csv", "--json"])).expect("JSON");
    assert_eq!(json["devices"][0]["samples"], 3);

    let log: String = (1..40)
        .map(|step| format!("{{\"name\": \"current_examples_per_sec\", \"value\": 100.0, \"global_step\": {step}, \"timestamp\": \"2018-10-04T09:00:{step:02}Z\"}}\n"))
        .collect();
    fs::write(folder.path().join("metric.log"), log).expect("a file");
    paceline(&["import", "metric.log", "smi.csv", "--out", "study"]);
    for command in ["explain", "report"] {
        let text = paceline(&[command, "study"]);
        assert!(text.contains("device, by nvidia-smi") && text.contains("4.29 GB"), "{text}");
    }
    let page = fs::read_to_string(folder.path().join("study/report.html")).expect("a page");
    assert!(page.contains("device, by nvidia-smi"));
}

#[test]
fn options_that_do_nothing_for_a_file_are_refused_and_a_study_is_only_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let paceline = |arguments: &str| {
        let mut run = Command::new(cargo_bin!("paceline"));
        run.current_dir(folder.path()).args(arguments.split_whitespace()).output().expect("the program runs")
    };
    let log: String = (1..40)
        .map(|step| format!("{{\"name\": \"loss\", \"value\": 1.0, \"global_step\": {step}, \"timestamp\": \"2018-10-04T09:00:{step:02}Z\"}}\n"))
        .collect();
    fs::write(folder.path().join("metric.log"), log).expect("a file");
    printed(&paceline("import metric.log --out study"));
    for (arguments, reason) in [
        ("explain metric.log --steps 5", "--steps is for tables"),
        ("explain metric.log --map a=loss", "--map is for tables"),
        ("explain study --epochs 5", "--epochs is for tables"),
        ("explain study --range x", "--range"),
        ("explain metric.log --from 1", "--from"),
    ] {
        let output = paceline(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(reason) && output.stdout.is_empty(), "{arguments}: {said}");
    }
    let page = folder.path().join("study/report.html");
    fs::remove_file(&page).expect("import wrote it");
    assert!(printed(&paceline("explain study")).contains("TensorFlow metric.log"));
    assert!(!page.exists(), "explain writes nothing");
    printed(&paceline("report study"));
    assert!(page.exists(), "report does");
}

#[test]
fn our_own_report_is_read_back_as_it_was_meant() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let paceline = |arguments: &[&str]| {
        let run = Command::new(cargo_bin!("paceline")).current_dir(folder.path()).args(arguments).output();
        printed(&run.expect("the program runs"))
    };
    let bench = "bench resnet50 mobilenet_v2 --engine simulated --workers 1,2,4,8,16,32 --steps 200 --repeat 2 --out study";
    paceline(&bench.split(' ').collect::<Vec<_>>());
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("study/report.json")).expect("a report"))
            .expect("JSON");
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    for file in ["study/report.md", "study/report.csv"] {
        let found: serde_json::Value =
            serde_json::from_str(&paceline(&["explain", file, "--json"])).expect("JSON");
        let all = found["series"].as_array().expect("series");
        assert_eq!(all.len(), 2, "{file}: one for each model");
        for (series, model) in all.iter().zip(["resnet50", "mobilenet_v2"]) {
            let title = series["understood"]["title"].as_str().expect("a title");
            assert_eq!(title.rsplit(" / ").next(), Some(model), "{file}");
            let cases =
                report["cases"].as_array().expect("cases").iter().filter(|case| case["model"] == model);
            let mut cases: Vec<_> = cases.collect();
            cases.sort_by_key(|case| case["workers"].as_u64());
            let rows = series["rows"].as_array().expect("rows");
            assert_eq!((rows.len(), cases.len()), (6, 6), "{file}, {model}");
            for (row, case) in rows.iter().zip(cases) {
                assert_eq!(row["workers"], case["workers"], "{file}, {model}");
                for (of, expected) in [("by_rate", "speedup_speed"), ("by_clock", "speedup_time")] {
                    let (of, expected) = (number(&row[of]), number(&case[expected]));
                    assert!((of / expected - 1.0).abs() < 0.002, "{file}, {model}: {of} {expected}");
                }
            }
            assert_eq!((&series["work"], &series["doubt"]), (&"per-worker".into(), &().into()), "{file}");
            let related = &series["reconciliation"];
            assert_eq!(
                (&related["kind"], number(&related["examples"])),
                (&"same".into(), 12_800.0),
                "{file}"
            );
            let slips = series["audit"]["slips"].as_array().expect("slips");
            assert!(slips.is_empty(), "{file}, {model}: {slips:?}");
            let follows = series["audit"]["follows"].as_array().expect("names");
            let ratios = follows.iter().filter_map(|name| name.as_str()).filter(|name| {
                name.starts_with("speed-up") || name.starts_with("speedup") || name.starts_with("efficiency")
            });
            assert_eq!(ratios.count(), 5, "{file}, {model}: {follows:?}");
            // Its table has the exchange of a step in one figure; the other file splits it.
            let split =
                "how much of the communication is waiting for the last worker and how much is moving bytes";
            let unknown: &[&str] = if file.ends_with(".md") { &[split] } else { &[] };
            assert_eq!(series["unknown"], serde_json::json!(unknown), "{file}, {model}");
        }
        let text = paceline(&["explain", file]);
        assert!(text.contains("64 workers would give") && !text.contains("32 workers would give"), "{text}");
        assert!(!text.contains("left out") && !text.contains("hidden communication %  comm-share"), "{text}");
    }
}
