use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::fixture;

/// Each case's cells by the names of their columns.
fn read_back(report: &Report) -> Vec<BTreeMap<String, String>> {
    let text = render(report);
    assert!(text.ends_with("\r\n"), "the last line ends");
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let columns = reader.headers().expect("a header").len();
    let named = |row: Result<BTreeMap<String, String>, csv::Error>| {
        let named = row.expect("as many cells as columns");
        assert_eq!(named.len(), columns, "no two columns share a name");
        named
    };
    reader.deserialize().map(named).collect()
}

/// Every scalar in a case's JSON, by the names on the way to it.
fn scalars(path: &str, value: &Value, into: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                scalars(&path, value, into);
            }
        }
        Value::Array(_) | Value::Null => {}
        scalar => into.push((path.into(), scalar.clone())),
    }
}

/// The column of a scalar of `report.json`.
fn column_of(path: &str) -> String {
    let renamed = match path {
        "fixed.seconds" => "fixed_s".into(),
        "off_core.seconds" => "off_core_s".into(),
        "dispersion.slowest.rank" => "slowest_rank".into(),
        "dispersion.slowest.member" => "slowest_member".into(),
        "dispersion.slowest.over_median" => "slowest_over_median".into(),
        _ if path.starts_with("recovery.") => path.replace('.', "_"),
        _ if path.starts_with("learning.") => path["learning.".len()..].replace('.', "_"),
        _ => path.replace("dispersion.", "step_"),
    };
    let (first, last) = renamed.rsplit_once('.').unwrap_or(("", &renamed));
    match first {
        "" => last.into(),
        "phases_s" => format!("phase_{last}_s"),
        "comm_wait_split_s" => format!("comm_wait_{last}_s"),
        "peak_memory_bytes" | "planned_memory_bytes" => first.replace("bytes", last) + "_bytes",
        "settings" => format!("setting_{}", last.replace('-', "_")),
        _ => format!("{first}_{last}"),
    }
}

#[test]
fn every_scalar_of_the_json_comes_back_from_its_column_unchanged() {
    let learned = fixture::report_on(&fixture::learning_plans());
    let elastic = CaseReport::of(&[fixture::elastic::eventful_run()]);
    let elastic = Report::new(&fixture::study(std::slice::from_ref(&elastic.case)), vec![elastic]);
    let hosts = fixture::hosts::Story { third: true, ..Default::default() }.report();
    for (case, cells) in [fixture::report(), learned, elastic, hosts]
        .iter()
        .flat_map(|report| report.cases.iter().zip(read_back(report)))
    {
        let mut json = serde_json::to_value(case).expect("plain data");
        json["step_times"].take();
        json["course"].take();
        // Of this, the sum is enough.
        let sum = json["off_core"]["seconds"].take();
        json["off_core"] = serde_json::json!({ "seconds": sum });
        json["recovery"]["strength"].take();
        let mut expected = Vec::new();
        scalars("", &json, &mut expected);
        assert!(expected.len() > 15, "{json}");
        for (path, value) in expected {
            let cell = cells.get(&column_of(&path)).unwrap_or_else(|| panic!("no column for {path}"));
            match value {
                Value::Number(number) => assert_eq!(cell.parse().ok(), number.as_f64(), "{path}"),
                Value::String(text) => assert_eq!(*cell, text, "{path}"),
                other => assert_eq!(*cell, other.to_string(), "{path}"),
            }
        }
    }
}

#[test]
fn the_costs_of_an_example_sum_to_the_whole() {
    let report = fixture::report();
    let rows = read_back(&report);
    let number = |cells: &BTreeMap<String, String>, name: &str| -> f64 { cells[name].parse().expect(name) };
    for cells in rows.iter().filter(|cells| cells["status"] == "done") {
        let parts = Cause::all().map(|cause| number(cells, &format!("cost_{}_s", column_name(cause))));
        let whole = number(cells, "cost_s");
        assert!((parts.iter().sum::<f64>() / whole - 1.0).abs() < 1e-9, "{parts:?} {whole}");
    }
}

#[test]
fn what_is_not_known_is_an_empty_cell() {
    let rows = read_back(&fixture::report());
    let failed = rows.last().expect("rows");
    assert_eq!(failed["status"], "failed");
    for name in ["images_per_s_mean", "phase_forward_s", "cost_input_s", "loss_last", "steady_verdict"] {
        assert_eq!(failed[name], "", "{name}");
    }
}

#[test]
fn commas_quotes_and_lines_in_a_cell_come_back() {
    let mut report = fixture::report();
    report.cases[0].case.model = "a \"b\", c\r\nd".into();
    report.cases[0].case.settings.insert("bucket-mb".into(), "1,5".into());
    let rows = read_back(&report);
    assert_eq!(rows[0]["model"], "a \"b\", c\r\nd");
    assert_eq!((&*rows[0]["setting_bucket_mb"], &*rows[1]["setting_bucket_mb"]), ("1,5", ""));
    assert_eq!(rows.last().expect("rows")["reason"], "rank 0 died in step 3\nof a cold");
}
