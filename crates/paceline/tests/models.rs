//! `paceline models`, as a user sees it.

use std::process::Command;

use assert_cmd::cargo::cargo_bin;

fn models(arguments: &[&str]) -> (String, String) {
    let output = Command::new(cargo_bin!("paceline"))
        .arg("models")
        .args(arguments)
        .output()
        .expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{err}");
    (out, err)
}

#[test]
fn the_table_lists_every_network_with_its_parameters() {
    let (table, warnings) = models(&[]);
    assert_eq!(table.lines().count(), 8);
    assert!(warnings.is_empty());
    for count in ["143,667,240", "23,817,352", "44,577,896", "42,679,816", "11,238,723"] {
        assert!(table.contains(count), "{count} is missing:\n{table}");
    }
}

#[test]
fn the_json_holds_exact_counts() {
    let (json, _) = models(&["--classes", "10", "--input", "32x32", "--json"]);
    let models: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let find = |name: &str| {
        let all = models.as_array().expect("a list");
        all.iter().find(|model| model["name"] == name).cloned()
    };
    let resnet = find("resnet50").expect("resnet50 admits 32x32");
    assert_eq!(resnet["input"], "32x32");
    assert_eq!(resnet["params_trainable"], 23_555_082);
    assert_eq!(resnet["tensors_trainable"], 214);
    let mobilenet = find("mobilenet_v2").expect("mobilenet_v2 admits 32x32");
    assert_eq!(mobilenet["params_trainable"], 2_236_682);
    assert_eq!(mobilenet["params_total"], 2_236_682 + 34_112);
    for field in ["flops_forward", "flops_backward", "activation_bytes"] {
        assert!(mobilenet[field].as_u64() > Some(0), "{field}");
    }
}

#[test]
fn a_network_that_does_not_admit_the_size_says_so_and_the_others_are_listed() {
    let (table, _) = models(&["--input", "32x32"]);
    let row = table.lines().find(|line| line.starts_with("inception_v3"));
    assert!(row.is_some_and(|row| row.contains("75x75")), "{table}");
    assert_eq!(table.lines().count(), 8);
    let (json, warnings) = models(&["--input", "32x32", "--json"]);
    assert!(!json.contains("inception_v3"));
    assert!(warnings.contains("warning: inception_v3"), "{warnings}");
}
