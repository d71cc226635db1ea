//! Commands under `paceline run`, and a shell script that plays a process that is followed.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use tempfile::TempDir;

/// Functions for scripts: `rank R WORLD [STEPS] [EXTRA]` writes the log of a rank whose steps take 10 ms each, as a process would that is
/// followed. Rank 1 arrives 3 ms late at every exchange. EXTRA: `lost` (no end), `tenth` (only every tenth step measured), `note`.
const FOLLOWED: &str = r#"
field() { printf '%s' "$PACELINE_RUN" | sed "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/"; }
rank() {
    out=$(field out)
    [ -e "$out/rank-$1.jsonl" ] && { out="$out/2"; mkdir -p "$out"; }
    awk -v rank="$1" -v world="$2" -v steps="${3:-30}" -v extra="$4" -v spawn="$(field spawn)" -v begin="${BEGIN_MS:-20}" '
    function at(ms) { return sprintf("%.0f", spawn + ms * 1000000) }
    BEGIN {
        printf "{\"format\":\"paceline-log\",\"version\":5,\"rank\":%d,\"world\":%d,\"host\":\"here\",\"untold\":[\"copy_in\"],", rank, world
        printf "\"case\":{\"model\":\"net\",\"engine\":\"pytorch\",\"workers\":%d,\"batch_per_worker\":8,\"threads\":1,", world
        printf "\"settings\":{\"device\":\"cpu\"}}}\n"
        printf "{\"main\":{\"at\":%s,\"pid\":1}}\n", at(begin - 10)
        if (extra == "note") printf "{\"note\":{\"at\":%s,\"text\":\"a word of warning\"}}\n", at(begin)
        for (k = 0; k < steps; k++) {
            b = begin + 10 * k
            late = (rank == 1 || world == 1) ? 3 : 0
            printf "{\"step\":{\"step\":%d,\"begin\":%s,\"end\":%s,\"examples\":8,\"loss\":null,", k, at(b), at(b + 10)
            if (extra == "tenth" && k % 10) { printf "\"sampled\":false,\"phases\":{}}}\n"; continue }
            printf "\"phases\":{\"load\":1000000,\"forward\":%d,\"backward\":2000000,", 1000000 * (2 + late)
            if (world > 1) {
                printf "\"comm_wait\":%d,", 1000000 * (4 - late)
                printf "\"update\":500000},\"comm_busy\":%d,\"overlapped\":0,", 1000000 * (4 - late)
                printf "\"arrivals\":[{\"bytes\":4000,\"begun\":%s,\"ended\":%s,\"cpu\":0}],", at(b + 5 + late), at(b + 9)
                printf "\"waits\":[[%s,%s]],", at(b + 5 + late), at(b + 9)
            } else printf "\"update\":500000},"
            printf "\"scheduling\":{\"off_core\":{}}}}\n"
        }
        if (extra != "lost") printf "{\"done\":{\"at\":%s,\"peak_resident\":1000000}}\n", at(begin + 10 * steps + 5)
    }' > "$out/rank-$1.jsonl"
}
finish() { sleep "${LASTS:-0.5}"; }
"#;

/// A folder with a script in it.
pub struct Place {
    pub folder: TempDir,
}

impl Place {
    /// Waits until a script has made a file.
    pub fn await_file(&self, name: &str) {
        let begun = Instant::now();
        while !self.path(name).exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{name} does not come");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The script is what processes do that are followed.
    pub fn with(script: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("train.sh"), format!("{FOLLOWED}\n{script}\n")).expect("room");
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `paceline run` with these words.
    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(cargo_bin!("paceline"));
        command.current_dir(self.folder.path()).arg("run").args(words.split_whitespace());
        command.env_remove("PYTHONPATH").env("COLUMNS", "100");
        command
    }

    pub fn run(&self, words: &str) -> Output {
        self.command(words).output().expect("the program runs")
    }

    /// What is in a study's report.json.
    pub fn report(&self, study: &str) -> Value {
        let text = fs::read(self.path(study).join("report.json")).expect("a report");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Everything in the folder but the script.
    pub fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("the folder").flatten();
        entries
            .map(|entry| entry.file_name().into_string().expect("a name"))
            .filter(|name| name != "train.sh")
            .collect()
    }
}

pub fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// The same without line breaks.
pub fn flat(output: &Output) -> String {
    said(output).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The one case of a report that has so many workers.
pub fn case(report: &Value, workers: u64) -> &Value {
    let cases = report["cases"].as_array().expect("cases");
    let mut found = cases.iter().filter(|case| case["workers"] == workers);
    let case = found.next().unwrap_or_else(|| panic!("{workers} workers"));
    assert!(found.next().is_none(), "several cases of {workers} workers");
    case
}

/// Asserts that the phases of each rank of a case sum to the time of the run.
pub fn assert_phases_sum(case: &Value) {
    let total = case["total_s"].as_f64().expect("a time");
    for rank in case["ranks"].as_array().expect("ranks") {
        let phases = rank["phases_s"].as_object().expect("phases");
        let sum: f64 = phases.values().filter_map(Value::as_f64).sum();
        assert!((sum - total).abs() < 1e-6, "{sum} and {total}");
    }
}
