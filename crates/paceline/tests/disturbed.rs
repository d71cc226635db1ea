//! Real disturbances: busy loops on the workers' cores, and a control group with a quota. The report must say that workers were
//! taken off their cores, and must not blame what they share.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_paceline");

const STUDY: [&str; 10] =
    ["bench", "mobilenet_v2", "--workers", "1,2", "--threads", "1", "--batch", "16", "--steps", "30"];

/// Held by a test while it disturbs the machine: one disturbance at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Processes that do nothing but compute; they end with this.
struct Loops(Vec<Child>);

impl Loops {
    /// On each core that this process may use, two loops.
    fn on_every_core() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let start = |_| {
            Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .spawn()
                .expect("a shell")
        };
        Self((0..2 * cores).map(start).collect())
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().expect("it runs until it is killed");
            child.wait().expect("it has ended");
        }
    }
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn kinds(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().map(|finding| finding["kind"].as_str().expect("a name")).collect()
}

fn text<'a>(report: &'a Value, kind: &str) -> &'a str {
    let findings = report["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}: {findings:?}"))["text"].as_str().expect("text")
}

/// Phases still tile the run, and time off the core is a part of them.
fn assert_numbers_add_up(report: &Value) {
    for case in report["cases"].as_array().expect("cases") {
        let sum = |phases: &Value| -> f64 {
            phases.as_object().expect("phases").values().filter_map(Value::as_f64).sum()
        };
        let time = case["workers"].as_f64().expect("a number") * case["total_s"].as_f64().expect("a number");
        assert!((sum(&case["phases_s"]) - time).abs() < 1e-6, "{case}");
        let off = &case["off_core"];
        assert!((sum(&off["phases_s"]) - off["seconds"].as_f64().expect("a number")).abs() < 1e-6, "{off}");
        for (phase, seconds) in off["phases_s"].as_object().expect("phases") {
            assert!(seconds.as_f64() <= case["phases_s"][phase].as_f64(), "{phase} of {off}");
        }
    }
}

#[test]
fn busy_loops_on_every_core_take_workers_off_them() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let loops = Loops::on_every_core();
    let run = Command::new(PROGRAM)
        .args(STUDY)
        .arg("--json")
        .arg("--out")
        .arg(folder.path().join("study"))
        .output();
    drop(loops);
    let report = report(&run.expect("the program starts"));
    assert_numbers_add_up(&report);
    let kinds = kinds(&report);
    assert!(kinds.contains(&"off_core"), "{kinds:?}");
    // Two loops and a worker on each core: most of the workers' time is lost to the loops, and nothing costs more.
    let off = kinds.iter().position(|&kind| kind == "off_core");
    let blamed = kinds.iter().position(|&kind| kind == "computation");
    assert!(blamed.is_none_or(|place| off < Some(place)), "{kinds:?}");
    let text = text(&report, "off_core");
    assert!(text.contains("kept off") && text.contains("; other threads ran there"), "{text}");
}

#[test]
fn busy_loops_on_every_core_are_warned_of_and_reported() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    let loops = Loops::on_every_core();
    let bench = ["bench", "mobilenet_v2", "--workers", "1", "--batch", "1", "--steps", "2", "--out"];
    let output = Command::new(PROGRAM).args(bench).arg(&out).output().expect("the program starts");
    drop(loops);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("warning: other programs use ").count(), 1, "{said}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        shown.contains("Other programs used ") && shown.contains("its times may include that"),
        "{shown}"
    );
    let report: Value =
        serde_json::from_slice(&fs::read(out.join("report.json")).expect("a report")).expect("JSON");
    assert!(report["cases"][0]["load"]["busy_cores"].as_f64() >= Some(0.5), "{report}");
    for page in ["report.md", "report.html"] {
        let page = fs::read_to_string(out.join(page)).expect("a page");
        assert!(page.contains("Other programs used "), "{page}");
    }
}

/// A control group that grants less than a core; removed with this.
struct Group(PathBuf);

impl Group {
    /// `None` where this system lets nobody make one.
    fn with_quota(percent: u32) -> Option<Self> {
        let name = format!("paceline-test-{}", std::process::id());
        let limits = [
            ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", format!("{}", 1000 * percent)),
            ("/sys/fs/cgroup", "cpu.max", format!("{} 100000", 1000 * percent)),
        ];
        limits.into_iter().find_map(|(mount, file, limit)| {
            let group = Self(Path::new(mount).join(&name));
            fs::create_dir(&group.0).ok()?;
            fs::write(group.0.join(file), limit).ok()?;
            Some(group)
        })
    }

    /// Runs a command within it.
    fn run(&self, command: &str) -> io::Result<Output> {
        let enter = format!("echo $$ > {}/cgroup.procs && exec {command}", self.0.display());
        Command::new("sh").args(["-c", &enter]).stdin(Stdio::null()).output()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It cannot be removed before the system has forgotten its last process.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn a_quota_that_is_used_up_is_named() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(group) = Group::with_quota(60) else {
        eprintln!("skipped: this system lets nobody make a control group with a quota");
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("study");
    let command = format!("{PROGRAM} {} --json --out {}", STUDY.join(" "), out.display());
    let report = report(&group.run(&command).expect("a shell"));
    assert_numbers_add_up(&report);
    // Then others have the cores, too, and the finding says so.
    if report["cases"][0]["load"]["busy_cores"].as_f64() >= Some(0.5) {
        eprintln!("skipped: other programs use the cores");
        return;
    }
    let text = text(&report, "off_core");
    assert!(
        text.contains("kept off") && text.contains("; the quota of a control group was used up"),
        "{text}"
    );
}
