//! A study from the command to its folder: simulated, so that every byte is known.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

struct Study {
    folder: tempfile::TempDir,
}

impl Study {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `paceline` in the folder.
    fn paceline(&self, arguments: &str) -> Output {
        Command::new(cargo_bin!("paceline"))
            .current_dir(self.folder.path())
            .env_remove("COLUMNS")
            .args(arguments.split_whitespace())
            .output()
            .expect("the program runs")
    }

    fn done(&self, arguments: &str) -> String {
        let output = self.paceline(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {said}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn report(&self) -> Value {
        let text = fs::read(self.path("study/report.json")).expect("a report");
        serde_json::from_slice(&text).expect("JSON")
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const SIMULATED: &str = "bench mobilenet_v2 --engine simulated --threads 1 --out study";

/// The study that the snapshots show.
const SHOWN: &str = "bench mobilenet_v2 resnet50 --engine simulated --threads 1 --out study --workers 1,2,4 --steps 50 \
                     --simulate init=500,warmup=5:3,straggler=1:1.4,bandwidth=3,jitter=0.02";

#[test]
fn the_terminal_shows_the_study() {
    insta::assert_snapshot!("terminal", without_version(&Study::new().done(SHOWN)));
}

#[test]
fn the_markdown_shows_the_study() {
    let study = Study::new();
    study.done(SHOWN);
    let text = fs::read_to_string(study.path("study/report.md")).expect("a report");
    let machine = text.find("## Command").expect("command and machine stand at the end");
    insta::assert_snapshot!("markdown", without_version(&text[..machine]));
}

/// A release changes no snapshot.
fn without_version(text: &str) -> String {
    text.replacen(concat!("Paceline ", env!("CARGO_PKG_VERSION")), "Paceline VERSION", 1)
}

#[test]
fn the_json_holds_the_study() {
    let study = Study::new();
    study.done(SHOWN);
    let mut report = study.report();
    report["machine"] = "not the same everywhere".into();
    report["program"] = "not the same in every version".into();
    for case in report["cases"].as_array_mut().expect("a list") {
        // Long, and shown by the page.
        case["step_times"] = "left out".into();
        case["ranks"] = "left out".into();
    }
    for group in report["explained"].as_array_mut().expect("a list") {
        for law in group["laws"]["throughput"].as_array_mut().expect("a list") {
            law["curve"] = "left out".into();
        }
    }
    round(&mut report);
    insta::assert_snapshot!("json", serde_json::to_string_pretty(&report).expect("JSON"));
}

/// Rounds to eight digits: the last ones depend on the processor's logarithms.
fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let text = format!("{:.7e}", number.as_f64().expect("a number"));
            *value = text.parse::<f64>().expect("a number").into();
        }
        Value::Array(values) => values.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        _ => {}
    }
}

#[test]
fn a_study_leaves_every_form_of_its_report() {
    let study = Study::new();
    study.done(&format!("{SIMULATED} --workers 1,2 --steps 30"));
    for name in [
        "study.json",
        "report.json",
        "report.html",
        "report.md",
        "report.csv",
        "timeline.json",
        "mobilenet_v2-w2/rank-1.jsonl",
        "mobilenet_v2-w2/launcher.jsonl",
        "tensorboard/mobilenet_v2-w2/rank-1",
    ] {
        assert!(study.path("study").join(name).exists(), "{name} is missing");
    }
    let page = fs::read_to_string(study.path("study/report.html")).expect("a page");
    assert!(page.contains("data-figure=\"waterfall\""));
    assert!(!page.contains("http:") && !page.contains("https:"), "one file, no network");
    let timeline = fs::read(study.path("study/timeline.json")).expect("a timeline");
    let timeline: Value = serde_json::from_slice(&timeline).expect("JSON");
    assert!(timeline["traceEvents"].as_array().expect("events").len() > 30 * 3 * 4);
    assert!(!study.path("study/.draft").exists());
}

#[test]
fn the_same_command_does_only_what_is_left() {
    let study = Study::new();
    let command = format!("{SIMULATED} --workers 1,2,4 --steps 30");
    study.done(&command);
    let whole = study.report();
    let log = |name: &str| study.path("study").join(name).join("launcher.jsonl");
    // As a launcher that was killed would have left it.
    let text = fs::read_to_string(log("mobilenet_v2-w2")).expect("a log");
    let torn = text.lines().filter(|line| !line.contains("over")).collect::<Vec<_>>().join("\n");
    fs::write(log("mobilenet_v2-w2"), torn).expect("a torn log");
    fs::remove_dir_all(study.path("study/mobilenet_v2-w4")).expect("a case that has not run");
    let kept = fs::metadata(log("mobilenet_v2-w1")).expect("a log").modified().expect("a time");
    let output = study.paceline(&command);
    assert!(said(&output).contains("1 of 3 runs are done already, 2 are left"), "{}", said(&output));
    assert_eq!(fs::metadata(log("mobilenet_v2-w1")).expect("a log").modified().expect("a time"), kept);
    assert_eq!(study.report(), whole);

    let output = study.paceline(&command);
    assert!(said(&output).contains("all 3 runs are done already"), "{}", said(&output));
    assert!(output.status.success() && !output.stdout.is_empty(), "it is shown again");

    let output = study.paceline(&format!("{SIMULATED} --workers 1,2 --steps 30"));
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--fresh"), "{}", said(&output));
    study.done(&format!("{SIMULATED} --workers 1,2 --steps 30 --fresh"));
    assert!(!study.path("study/mobilenet_v2-w4").exists(), "what was there before is gone");
}

#[test]
fn without_out_an_unfinished_study_goes_on_and_a_finished_one_stays() {
    let study = Study::new();
    let command = "bench mobilenet_v2 --engine simulated --workers 1,2 --steps 20";
    study.done(command);
    fs::remove_dir_all(study.path("study-1/mobilenet_v2-w2")).expect("a case that has not run");
    study.done(command);
    assert!(study.path("study-1/mobilenet_v2-w2").exists() && !study.path("study-2").exists());
    study.done(command);
    assert!(study.path("study-2").exists());
    let shown = study.done("report");
    assert!(shown.contains("study-2/report.html"), "the last one is reported: {shown}");
}

#[test]
fn a_case_that_fails_is_reported_and_the_rest_go_on() {
    let study = Study::new();
    let output = study.paceline(&format!("{SIMULATED} --workers 1,2,4 --steps 20 --simulate fail=2:7"));
    assert_eq!(output.status.code(), Some(1));
    let report = study.report();
    let statuses: Vec<_> =
        report["cases"].as_array().expect("a list").iter().map(|case| &case["status"]).collect();
    assert_eq!(statuses, ["done", "done", "failed"]);
    let reason = report["cases"][2]["reason"].as_str().expect("a reason");
    assert!(reason.contains("rank 2 ended in step 7"), "{reason}");
    let shown = String::from_utf8(output.stdout).expect("text");
    assert!(shown.contains("failed: rank 2 ended in step 7"), "{shown}");
    let page = fs::read_to_string(study.path("study/report.html")).expect("a page");
    assert!(page.contains("rank 2 ended in step 7"));
}

#[test]
fn a_file_says_the_same_as_options_which_win_over_it() {
    let study = Study::new();
    let file = "models = \"mobilenet_v2\"\nengine = \"simulated\"\nworkers = [1, 2]\nsteps = 25\nthreads = 1\n\
                overlap = [true, false]\nsimulate = \"jitter=0.01\"\nrepeat = 2\n";
    fs::write(study.path("study.toml"), file).expect("a file");
    study.done("bench --config study.toml --out study");
    let by_file = study.report();
    assert_eq!(by_file["cases"].as_array().expect("a list").len(), 4);
    let options = "bench mobilenet_v2 --engine simulated --workers 1,2 --steps 25 --threads 1 --overlap yes,no \
                   --simulate jitter=0.01 --repeat 2 --fresh --out study";
    study.done(options);
    assert_eq!(study.report()["cases"], by_file["cases"]);
    study.done("bench --config study.toml --workers 4 --examples 6400 --out other");
    let other = fs::read(study.path("other/report.json")).expect("a report");
    let other: Value = serde_json::from_slice(&other).expect("JSON");
    assert_eq!(other["cases"][0]["workers"], 4);
    assert_eq!((&other["cases"][0]["steps"], &other["cases"][0]["examples"]), (&25.into(), &6400.into()));
}

#[test]
fn keys_of_a_file_have_dashes_or_underscores_and_an_option_replaces_its_alternative() {
    let study = Study::new();
    let file = "models = \"mobilenet_v2\"\nengine = \"simulated\"\nworkers = 2\nsteps = 5\nglobal_batch = 64\n\
                bucket-mb = [1, 2.5]\noptimizer = \"adam\"\n";
    fs::write(study.path("study.toml"), file).expect("a file");
    study.done("bench --config study.toml --out study --threads 1");
    let cases = study.report()["cases"].clone();
    assert_eq!((&cases[1]["scaling"], &cases[1]["settings"]["bucket-mb"]), (&"strong".into(), &"2.5".into()));
    assert_eq!(cases[0]["settings"]["lr"], "0.001", "adam's own");
    study.done("bench --config study.toml --out study --threads 1 --batch 8 --fresh");
    assert_eq!(study.report()["cases"][0]["batch_per_worker"], 8);
}

#[test]
fn a_file_that_makes_no_sense_is_refused_with_its_name() {
    let study = Study::new();
    for (text, expected) in [
        ("workers = [1, 2", "study.toml"),
        ("steps = 5\nwokers = [1, 2]", "study.toml, line 2: unknown key 'wokers'; the keys are models, "),
        ("workers = \"two\"", "'two'"),
        ("\nworkers = [1, 0]", "study.toml, line 2: '0' is not a whole number from 1 to 1024"),
        ("workers = { from = 1 }", "a value or a list of values"),
        ("workers = []", "the list is empty"),
        ("fresh = \"maybe\"", "a boolean"),
        ("steps = 5\nexamples = 640", "cannot be used with"),
        ("config = \"other.toml\"", "unknown key 'config'"),
    ] {
        fs::write(study.path("study.toml"), text).expect("a file");
        let output = study.paceline("bench --config study.toml --out study");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{text}: {said}");
        assert!(said.contains(expected) && said.contains("study.toml"), "{text}: {said}");
        assert!(!study.path("study").exists());
    }
    let output = study.paceline("bench --config nowhere.toml");
    assert!(said(&output).contains("nowhere.toml") && output.status.code() == Some(2));
}

#[test]
fn two_studies_are_compared_and_chance_is_no_difference() {
    let study = Study::new();
    let command = "bench mobilenet_v2 --engine simulated --workers 1,2 --steps 60 --simulate";
    study.done(&format!("{command} jitter=0.02 --out a"));
    study.done(&format!("{command} jitter=0.02 --seed 9 --out b"));
    study.done(&format!("{command} jitter=0.02,straggler=1:1.2 --out c"));
    let same = study.done("report a b");
    assert_eq!(same.matches("no difference seen").count(), 2, "{same}");
    let slower: Value = serde_json::from_str(&study.done("report a c --json")).expect("JSON");
    assert_eq!(slower["cases"][0]["verdict"], "no difference seen", "one worker has no straggler");
    assert_eq!(slower["cases"][1]["verdict"], "slower");
    let ratio = slower["cases"][1]["ratio"].as_f64().expect("a number");
    assert!((ratio - 1.0 / 1.2).abs() < 0.02, "{ratio}");
}

#[test]
fn any_number_of_studies_is_compared_with_the_first_also_on_a_page() {
    let study = Study::new();
    let command = "bench mobilenet_v2 --engine simulated --workers 1,2 --steps 60 --simulate";
    study.done(&format!("{command} jitter=0.02 --out a"));
    study.done(&format!("{command} jitter=0.02 --seed 9 --out b"));
    study.done(&format!("{command} jitter=0.02,straggler=1:1.2 --out c"));
    let before = fs::read(study.path("a/report.html")).expect("a page");
    let shown = study.done("report a b c --html all.html");
    for said in ["a -> b", "a -> c", "no difference seen", "slower", "Page: all.html"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    let page = fs::read_to_string(study.path("all.html")).expect("a page");
    assert!(page.contains("Images/s by case and study") && page.contains("a and 2 others"));
    assert_eq!(fs::read(study.path("a/report.html")).expect("a page"), before, "studies stay as they are");
    let all: Value = serde_json::from_str(&study.done("report a b c --json")).expect("JSON");
    assert_eq!(all.as_array().map(Vec::len), Some(2));
    assert_eq!(all[1]["cases"][1]["verdict"], "slower");
}

#[test]
fn what_is_no_study_is_refused() {
    let study = Study::new();
    study.done(&format!("{SIMULATED} --workers 1 --steps 5"));
    fs::create_dir(study.path("empty")).expect("a folder");
    fs::create_dir(study.path("later")).expect("a folder");
    fs::write(study.path("later/study.json"), r#"{"schema": 99}"#).expect("a file");
    fs::create_dir(study.path("torn")).expect("a folder");
    fs::write(study.path("torn/study.json"), r#"{"schema": 2, "cases": ["#).expect("a file");
    for (arguments, expected) in [
        ("report empty", "is not a study"),
        ("report nowhere", "is not a study"),
        ("report later", "schema version 99"),
        ("report study later", "schema version 99"),
        ("report torn", "torn/study.json"),
        ("report", "there is no study-N here"),
        ("report study empty study", "is not a study"),
        ("report study --html page.html", "name at least two studies"),
        ("bench --out later", "schema version 99"),
    ] {
        let output = study.paceline(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", said(&output));
        assert!(said(&output).contains(expected), "{arguments}: {}", said(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_full_disk_is_an_error_and_the_old_report_stays() {
    let study = Study::new();
    study.done(&format!("{SIMULATED} --workers 1 --steps 5"));
    let before = fs::read(study.path("study/report.json")).expect("a report");
    // Whatever is written aside goes to a device that is always full.
    symlink(Path::new("/dev/full"), study.path("study/.draft")).expect("a link");
    let output = study.paceline("report study");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("No space left on device"), "{}", said(&output));
    assert_eq!(said(&output).matches("error: ").count(), 1);
    assert_eq!(fs::read(study.path("study/report.json")).expect("a report"), before);
    study.done("report study");
}

#[test]
fn a_disk_that_fills_up_is_not_bad_usage_and_the_reason_is_told() {
    let study = Study::new();
    // Files may be 512 bytes long: the system then refuses in the middle of one, as a full disk does.
    let output = Command::new("sh")
        .current_dir(study.folder.path())
        .args(["-c", r#"trap "" XFSZ; ulimit -f 1; exec "$@""#, "sh"])
        .arg(cargo_bin!("paceline"))
        .args(format!("{SIMULATED} --workers 1,2 --steps 50").split_whitespace())
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert_eq!(said(&output).matches("File too large").count(), 1, "{}", said(&output));
    assert!(said(&output).starts_with("error: cannot write "), "{}", said(&output));
}

#[test]
fn repeats_that_are_damaged_or_missing_are_said_and_the_others_count() {
    let study = Study::new();
    study.done(&format!("{SIMULATED} --workers 1 --steps 20 --repeat 3"));
    fs::write(study.path("study/mobilenet_v2-w1-repeat2/rank-0.jsonl"), "gibberish\n").expect("a file");
    let part = |output: &Output| {
        let named = "error: not all of 1 cases are done: mobilenet_v2 on 1 worker (in part)";
        assert!(said(output).contains(named), "{}", said(output));
        assert_eq!(output.status.code(), Some(1), "as `bench` would end");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = part(&study.paceline("report study"));
    assert!(shown.contains("rank-0.jsonl"), "{shown}");
    assert_eq!(
        (&study.report()["cases"][0]["repeats"], &study.report()["cases"][0]["status"]),
        (&2.into(), &"done".into())
    );
    fs::remove_dir_all(study.path("study/mobilenet_v2-w1-repeat2")).expect("a repeat that has not run");
    let shown = part(&study.paceline("report study"));
    assert!(shown.contains("1 of 3 repeats have not run"), "{shown}");
}

#[test]
fn a_report_of_a_study_that_is_not_done_ends_as_the_study_did_and_says_which_case() {
    let study = Study::new();
    let command = format!("{SIMULATED} --workers 1,2 --steps 20 --simulate fail=1:5");
    assert_eq!(study.paceline(&command).status.code(), Some(1));
    let output = study.paceline("report study");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let named = "error: not all of 2 cases are done: mobilenet_v2 on 2 workers (failed)\n";
    assert_eq!(said(&output), named);
    assert!(!output.stdout.is_empty() && study.path("study/report.html").exists());
}

#[test]
fn progress_names_what_sets_each_run_apart() {
    let output = Study::new().paceline(&format!(
        "{SIMULATED} --workers 1,2 --steps 20 --repeat 2 --update allreduce,sharded --batch 8,16"
    ));
    let said = said(&output);
    let names = |marked: bool| {
        let lines = said.lines().filter(|line| line.starts_with('[') == marked);
        let names = lines.map(|line| line.rsplit_once(": ").expect("a name").0);
        names.map(|name| name.split_once("] ").map_or(name, |(_, name)| name)).collect::<BTreeSet<_>>()
    };
    assert_eq!(names(true), names(false), "{said}");
    assert_eq!(names(true).len(), 16, "{said}");
    assert!(names(true).contains("mobilenet_v2, sharded, batch 16 on 2 workers, repeat 2 of 2"), "{said}");
}

#[test]
fn a_simulated_study_has_a_fixed_date_and_no_host() {
    let study = Study::new();
    study.done(&format!("{SIMULATED} --workers 1 --steps 20"));
    let text = fs::read(study.path("study/study.json")).expect("a study");
    let asked: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!((&asked["date"], &asked["host"]), (&"2000-01-01T00:00:00Z".into(), &Value::Null));
    let events =
        study.path("study/tensorboard/mobilenet_v2-w1/rank-0/events.out.tfevents.946684800.paceline");
    assert!(events.exists());
    let log = fs::read_to_string(study.path("study/mobilenet_v2-w1/launcher.jsonl")).expect("a log");
    assert!(!log.contains("\"started\":") && !log.contains("\"load\":"), "{log}");
}

#[test]
fn options_that_do_not_go_together_are_refused_and_not_passed_over() {
    let study = Study::new();
    let many: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
    let many = many.join(",");
    study.done(&format!("{SIMULATED} --workers 1 --steps 5"));
    for (arguments, expected) in [
        ("bench --scaling strong --batch 16", "--global-batch"),
        ("bench --global-batch 64 --batch 16", "--global-batch"),
        ("bench --scaling weak --global-batch 64", "--batch"),
        ("bench --engine simulated --workers 1024 --steps 1000000000", "fill the disk"),
        (&format!("bench --seed {many} --lr {many}"), "at most 10000"),
        ("explain study --timeline out.json", "one profile"),
        ("explain study --from 1", "one profile"),
    ] {
        let output = study.paceline(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:.60}: {}", said(&output));
        assert!(said(&output).contains(expected), "{arguments:.60}: {}", said(&output));
    }
}
