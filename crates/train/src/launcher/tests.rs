use paceline_record::log::LauncherLog;

use super::*;
use crate::Engines;
use crate::job::tests::job;

/// Launches a job whose workers are processes of some other program; what came of it, and what the log says.
fn launch_program(program: &str, interrupted: bool) -> (Result<(), TrainError>, LauncherLog) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let job = job(folder.path());
    let prepared = job.prepare(&mut Engines::default()).expect("a job that can run");
    let result = launch(
        &job,
        &prepared,
        Surroundings {
            program: program.into(),
            interrupted: &AtomicBool::new(interrupted),
            load: None,
            meeting: None,
            progress: &mut |_| {},
        },
    );
    let log = LauncherLog::read(folder.path()).expect("a whole log");
    (result, log)
}

#[test]
fn a_worker_that_succeeds_ends_the_job_well() {
    let (result, log) = launch_program("true", false);
    result.expect("nothing can go wrong with `true`");
    assert_eq!(log.over, Some((Outcome::Done, None)));
    assert!(log.first_spawn < log.last_reap);
}

#[test]
fn a_worker_that_fails_is_named_with_its_exit_code() {
    let (result, log) = launch_program("false", false);
    let message = result.expect_err("`false` fails").to_string();
    assert!(message.starts_with("rank 0 ended before its first step with exit code 1"), "{message}");
    assert_eq!(log.over, Some((Outcome::Failed, Some(message))));
}

#[test]
fn a_worker_s_last_words_are_quoted() {
    let (result, _) = launch_program("ls", false);
    let message = result.expect_err("there is no file called worker").to_string();
    assert!(message.contains("exit code 2"), "{message}");
    assert!(message.contains("worker"), "{message}");
}

#[test]
fn an_interruption_ends_workers_that_would_go_on_for_ever() {
    let (result, log) = launch_program("yes", true);
    assert!(matches!(result, Err(TrainError::Interrupted)));
    assert_eq!(log.outcome(), Outcome::Interrupted);
    assert!(log.last_reap.is_some());
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let (result, log) = launch_program("/nowhere/paceline", false);
    let message = result.expect_err("no such program").to_string();
    assert!(message.contains("/nowhere/paceline"), "{message}");
    assert_eq!(log.outcome(), Outcome::Failed);
}
