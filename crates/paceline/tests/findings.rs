//! Causes planted in simulated runs, alone and in pairs: the findings name those and no others, and the numbers add up.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

/// What each finding's cause looks like to the simulated machine. Sizes are chosen so that each shows beside any other.
const CAUSES: [(&str, &str); 11] = [
    ("start_up", "init=4000"),
    ("warm_up", "warmup=20:8"),
    ("off_core", "off_core=0.4"),
    ("computation", "contention=0.3"),
    ("input", "load=40"),
    ("communication", "bandwidth=0.08"),
    ("stragglers", "straggler=1:2.5"),
    ("update", "update_contention=20"),
    ("evaluation", "eval=2:100"),
    ("tail", "tail=4000"),
    ("other", "other=5"),
];

/// A study in which every case sees the same examples, so that fixed costs weigh more with more workers.
fn study(out: &Path, simulate: &str, options: &str) -> Value {
    let simulate = if simulate.is_empty() { "jitter=0.005" } else { simulate };
    let command = "bench mobilenet_v2 --engine simulated --threads 1 --fresh --json --simulate";
    let output = Command::new(cargo_bin!("paceline"))
        .args(command.split_whitespace())
        .arg(simulate)
        .args(options.split_whitespace())
        .arg("--out")
        .arg(out)
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{simulate}: {said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_numbers_add_up(&report, simulate);
    report
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-3)
}

/// Phases tile the run, the two speed-ups reconcile, and the waterfall's parts sum to the whole.
fn assert_numbers_add_up(report: &Value, what: &str) {
    for case in report["cases"].as_array().expect("a list") {
        let phases: f64 = case["phases_s"].as_object().expect("phases").values().map(number).sum();
        let time = number(&case["workers"]) * number(&case["total_s"]);
        assert!(near(phases, time), "{what}: {phases} is not {time}");
    }
    for group in report["explained"].as_array().expect("a list") {
        for speedup in group["speedups"].as_array().expect("a list") {
            let fractions = number(&speedup["steady_share"]) / number(&speedup["steady_share_one"]);
            let product = number(&speedup["speed"]) * fractions;
            assert!(near(product, number(&speedup["time"])), "{what}: {speedup}");
        }
        let falls = group["waterfalls"].as_array().expect("a list");
        assert!(!falls.is_empty(), "{what}: no waterfall");
        for fall in falls {
            let parts = fall["shares"].as_array().expect("a list");
            let sum: f64 = parts.iter().map(|part| number(&part["seconds"])).sum();
            let whole = number(&fall["to_s"]) - number(&fall["from_s"]);
            assert!(near(sum, whole), "{what}: {sum} is not {whole}");
        }
    }
}

fn found(report: &Value) -> BTreeSet<String> {
    let findings = report["findings"].as_array().expect("a list");
    let lost: Vec<f64> = findings.iter().filter_map(|finding| finding["lost_s"].as_f64()).collect();
    assert!(lost.is_sorted_by(|a, b| a >= b), "the most seconds lost come first: {lost:?}");
    findings.iter().map(|finding| finding["kind"].as_str().expect("a name").to_owned()).collect()
}

fn names(planted: &[&str]) -> BTreeSet<String> {
    planted.iter().map(|&name| name.to_owned()).collect()
}

const DIVIDED: &str = "--workers 1,4 --examples 25600";

#[test]
fn a_calm_machine_has_no_findings() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for options in [DIVIDED, "--workers 1,2,8 --steps 60", "--workers 1,2,4 --global-batch 256 --steps 60"] {
        assert_eq!(found(&study(folder.path(), "", options)), names(&[]), "{options}");
    }
}

#[test]
fn each_cause_is_found_alone_and_no_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, simulate) in CAUSES {
        assert_eq!(found(&study(folder.path(), simulate, DIVIDED)), names(&[name]), "{simulate}");
    }
}

#[test]
fn each_pair_of_causes_is_found_and_no_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (at, (first, one)) in CAUSES.into_iter().enumerate() {
        for (second, other) in &CAUSES[at + 1..] {
            let both = format!("{one},{other}");
            assert_eq!(found(&study(folder.path(), &both, DIVIDED)), names(&[first, second]), "{both}");
        }
    }
}

/// Ranks with the noise of a real run do wait for each other; nothing else is so.
#[test]
fn the_noise_of_a_real_run_is_no_cause() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let noise = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers/noise/xeon-4-workers.txt");
    for seed in 0..12 {
        let simulate = format!("jitter=0,noise={}", noise.display());
        let report =
            study(folder.path(), &simulate, &format!("--workers 1,4 --steps 200 --overlap no --seed {seed}"));
        for finding in report["findings"].as_array().expect("a list") {
            let text = finding["text"].as_str().expect("text");
            let is_so = match finding["kind"].as_str() {
                Some("stragglers") => {
                    text.contains("no single rank is to blame")
                        || text.contains("which was the latest in only")
                }
                Some("uncertain" | "noisy") => true,
                _ => false,
            };
            assert!(is_so, "seed {seed}: {text}");
        }
    }
}

#[test]
fn a_few_steps_are_not_judged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for steps in [1, 3, 6, 19] {
        let simulate = "straggler=1:2.5,load=40,contention=0.3,off_core=0.3";
        let report = study(folder.path(), simulate, &format!("--workers 1,2 --steps {steps}"));
        let about_steps = ["off_core", "computation", "input", "communication", "stragglers", "update"];
        let found = found(&report);
        assert!(found.contains("few_steps"), "{steps} steps: {found:?}");
        assert!(about_steps.iter().all(|kind| !found.contains(*kind)), "{steps} steps: {found:?}");
    }
}

#[test]
fn the_case_with_the_widest_interval_is_named_as_uncertain() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let report = study(folder.path(), "hiccup=0.02:900", "--workers 1,2 --steps 60");
    let finding = report["findings"].as_array().expect("a list").iter().find(|f| f["kind"] == "uncertain");
    let named = finding.expect("it is found")["case"].as_u64().expect("a place") as usize;
    let width = |case: &Value| {
        let rate = &case["images_per_s"];
        (number(&rate["hi"]) - number(&rate["lo"])) / number(&rate["mean"])
    };
    let cases = report["cases"].as_array().expect("cases");
    assert!(cases.iter().all(|case| width(case) <= width(&cases[named])), "{finding:?}");
}

#[test]
fn hiccups_are_no_slowdown() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for seed in 0..6 {
        let report =
            study(folder.path(), "hiccup=0.05:200", &format!("--workers 1,2,4 --steps 300 --seed {seed}"));
        let found = found(&report);
        assert!(!found.contains("slowdown") && !found.contains("no_steady_state"), "seed {seed}: {found:?}");
        assert!(found.contains("noisy"), "steps that vary so much are not steady: {found:?}");
    }
}

#[test]
fn a_slowdown_is_found_with_its_step() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let report = study(folder.path(), "slowdown=50:1.5", "--workers 1,2 --steps 120");
    assert_eq!(found(&report), names(&["slowdown"]));
    assert_eq!(report["cases"][1]["steady"]["verdict"], "slowdown");
    assert_eq!(report["cases"][1]["steady"]["from_step"], 50);
    let text = report["findings"][0]["text"].as_str().expect("text");
    assert!(text.contains("steps take 50 % longer from step 50 on than in the 50 steps before"), "{text}");
}

#[test]
fn the_straggler_is_named_and_hiccups_blame_nobody() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = |simulate: &str| {
        let report = study(folder.path(), simulate, "--workers 1,4 --steps 200");
        let findings = report["findings"].as_array().expect("a list");
        let late = findings.iter().find(|finding| finding["kind"] == "stragglers").expect("it is found");
        late["text"].as_str().expect("text").to_owned()
    };
    let named = text("straggler=2:1.5");
    assert!(named.contains("for rank 2"), "{named}");
    let nobody = text("hiccup=0.2:60");
    assert!(nobody.contains("no single rank is to blame (rank "), "{nobody}");
}

#[test]
fn a_run_too_short_for_its_fixed_costs_says_how_long_it_should_be() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let simulate = "init=4000,jitter=0.001";
    let short = study(folder.path(), simulate, "--workers 1,2 --steps 100");
    let advice = short["findings"][0]["advice"].as_str().expect("text");
    let enough = short["cases"][1]["fixed"]["enough_steps"].as_u64().expect("a number");
    assert!(advice.contains(&format!("with at least {enough} steps")), "{advice}");
    let long = study(folder.path(), simulate, &format!("--workers 1,2 --steps {}", enough + enough / 50));
    assert_eq!(found(&long), names(&[]), "with that many steps it is not reported");
}

#[test]
fn reading_the_study_again_gives_the_same_report() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = study(folder.path(), "straggler=1:1.5", "--workers 1,2 --repeat 3 --steps 40");
    assert_eq!(first["cases"][0]["repeats"], 3);
    let before = fs::read(folder.path().join("report.json")).expect("a report");
    let status =
        Command::new(cargo_bin!("paceline")).arg("report").arg(folder.path()).output().expect("it runs");
    assert!(status.status.success());
    assert_eq!(fs::read(folder.path().join("report.json")).expect("a report"), before);
}
