//! How the program ends: what it prints, and with which status.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use paceline_lab::words;

/// The user asked for something that cannot be done: exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(String);

impl Usage {
    /// Bad usage, for a reason.
    pub fn new(reason: impl ToString) -> Self {
        Self(reason.to_string())
    }
}

/// Some cases did not finish. They have been reported: exit status 1, and nothing more to say.
#[derive(Debug, thiserror::Error)]
#[error("not all cases finished")]
pub struct Unfinished;

/// The exit status of a result; an error is printed.
pub fn exit(result: Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if error.is::<Unfinished>() {
        return ExitCode::from(1);
    }
    say(&format!("error: {error}"));
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}

/// Prints to standard output. That nobody reads it to its end (`| head`) is no error.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints a line to standard error, without what others may have put in it to steer a terminal. That it cannot be written
/// is nothing that anybody could be told.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", words::plain(line));
}
