//! How the program ends: what it prints, and with which status.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use paceline_import::ImportError;
use paceline_lab::{CaseReport, LabError, Report, Status, words};
use paceline_model::ModelError;
use paceline_record::LogError;
use paceline_train::checkpoint::CheckpointError;
use paceline_train::{TrainError, describe};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The user asked for something that cannot be done: exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Usage {
    reason: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Usage {
    /// Bad usage, for a reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), source: None }
    }

    /// Bad usage, with what caused it.
    pub fn because(reason: impl Into<String>, cause: impl Error + Send + Sync + 'static) -> Self {
        Self { reason: reason.into(), source: Some(Box::new(cause)) }
    }
}

/// Some cases did not finish. They have been reported: exit status 1, and nothing more to say.
#[derive(Debug, thiserror::Error)]
#[error("not all cases finished")]
pub struct Unfinished;

/// Whether all cases of a study are done, with all their repeats.
pub fn check_done(report: &Report) -> Result<(), Unfinished> {
    let is_done = |case: &CaseReport| case.status == Status::Done && case.reason.is_none();
    match report.missing == 0 && report.cases.iter().all(is_done) {
        true => Ok(()),
        false => Err(Unfinished),
    }
}

/// The exit status of a result; an error is printed.
pub fn exit(result: Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if error.is::<Unfinished>() {
        return ExitCode::from(1);
    }
    say(&format!("error: {}", describe(&*error)));
    ExitCode::from(if is_usage(&error) { 2 } else { 1 })
}

/// Whether the user must ask for something else: the error's type says so.
fn is_usage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Usage>()
            || cause.is::<ModelError>()
            || cause.downcast_ref().is_some_and(TrainError::is_usage)
            || cause.downcast_ref().is_some_and(CheckpointError::is_usage)
            || cause.downcast_ref().is_some_and(is_usage_of_lab)
            || cause.downcast_ref().is_some_and(is_usage_of_import)
    })
}

fn is_usage_of_lab(error: &LabError) -> bool {
    match error {
        LabError::Io { source, .. } | LabError::Log(LogError::Io { source, .. }) => is_wrong_path(source),
        LabError::Busy { .. } => false,
        _ => true,
    }
}

fn is_usage_of_import(error: &ImportError) -> bool {
    match error {
        ImportError::Io { source, .. } => is_wrong_path(source),
        _ => true,
    }
}

/// Whether the system refused a path, rather than what was done there.
fn is_wrong_path(error: &io::Error) -> bool {
    let is_loop = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    is_loop
        || matches!(
            error.kind(),
            io::ErrorKind::NotFound
                | io::ErrorKind::AlreadyExists
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::InvalidFilename
                | io::ErrorKind::InvalidInput
        )
}

/// Refuses a folder whose name a report could not hold.
pub fn check_name(path: Option<&Path>) -> Result<(), Usage> {
    match path {
        Some(path) if path.to_str().is_none() => {
            Err(Usage::new("the name of --out is not valid UTF-8; choose another"))
        }
        _ => Ok(()),
    }
}

/// This program, which workers are processes of.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}

/// Lets a write beyond the limit on the size of files (`ulimit -f`) fail like any other, instead of ending this program.
pub fn outlive_file_limit() -> Result<()> {
    signal_hook::flag::register(rustix::process::Signal::XFSZ.as_raw(), Arc::default())
        .context("cannot watch for the limit on the size of files")?;
    Ok(())
}

/// What `timeout` and others send twice in a moment is one request.
const ONE_REQUEST: Duration = Duration::from_millis(500);

const NO_SIGNALS: &str = "cannot watch for Ctrl-C";

/// Ctrl-C and a request to end.
const REQUESTS: [i32; 2] = [SIGINT, SIGTERM];

/// Whether the first process of a container ends as soon as it is asked to: until something is there to be saved.
static ENDS_AT_ONCE: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// Lets requests end this program where it is the first process of a container. The system ends no such process by a signal that it does
/// not handle, and its container would be killed when the grace period is over.
pub fn end_as_first_process() -> Result<()> {
    if process::id() == 1 {
        for signal in REQUESTS {
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, ENDS_AT_ONCE.clone())
                .context(NO_SIGNALS)?;
        }
    }
    Ok(())
}

/// Whoever handles requests to end otherwise says so here before.
pub fn outlive_requests() {
    ENDS_AT_ONCE.store(false, Ordering::Relaxed);
}

/// A flag that Ctrl-C and a request to end set. A second request ends this program at once.
pub fn watch_interrupts() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    watch_interrupts_for(&interrupted).context(NO_SIGNALS)?;
    Ok(interrupted)
}

/// The same for a flag that is there already. Until then requests end this program at once.
pub fn watch_interrupts_for(interrupted: &Arc<AtomicBool>) -> io::Result<()> {
    for signal in REQUESTS {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let mut signals = Signals::new(REQUESTS)?;
    outlive_requests();
    let watch = move || {
        let mut first: Option<Instant> = None;
        for _ in signals.forever() {
            if first.get_or_insert_with(Instant::now).elapsed() > ONE_REQUEST {
                say("interrupted again: ended at once");
                process::exit(1);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
}

/// The form of what is printed to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// For people.
    Text,
    /// For programs: JSON and nothing else.
    Json,
}

impl Show {
    /// What `--json` asks for.
    pub fn json(is_given: bool) -> Self {
        if is_given { Self::Json } else { Self::Text }
    }
}

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Prints to standard output. A reader that stops early (`| head`) is not an error.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints a line to standard error, without what others may have put in it to steer a terminal. If even that fails,
/// there is nobody to tell.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", words::plain(line));
}
