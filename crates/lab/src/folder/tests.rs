use paceline_record::log::LauncherWriter;
use paceline_record::{Case, LauncherEvent, LauncherHeader};

use super::*;
use crate::Status;
use crate::fixture::{Plan, report, study};

fn cases(model: &'static str) -> Vec<Case> {
    [1, 2].map(|workers| Plan::calm(model, workers).case()).into()
}

/// Writes the log of a run that ended like this.
fn log(folder: &StudyFolder, planned: &Planned, outcome: Outcome) -> PathBuf {
    let path = folder.create_case(planned).expect("a folder");
    let header = LauncherHeader::new(planned.case.clone());
    let mut log = LauncherWriter::create(&path, &header).expect("a log");
    log.append(&LauncherEvent::Over { outcome, reason: None }).expect("room");
    path
}

#[test]
fn a_folder_with_something_else_in_it_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("thesis.tex"), "years of work").expect("a file");
    for held in [Held::Resume, Held::Replace] {
        let error = StudyFolder::start(folder.path(), &study(&[]), held).expect_err("not a study");
        assert!(matches!(error, LabError::NotAStudy { .. }), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1);
}

#[test]
fn an_older_study_is_replaced_on_request_and_nothing_else_is() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (old, new) = (study(&cases("resnet50")), study(&cases("vgg_19")));
    let started = StudyFolder::start(folder.path(), &old, Held::Resume).expect("new");
    let logged = log(&started, &old.cases[0], Outcome::Done);
    let notes = folder.path().join("notes");
    fs::create_dir(&notes).expect("something of the user's");
    started.write_report(&report()).expect("a report");
    let busy = StudyFolder::start(folder.path(), &new, Held::Replace).expect_err("somebody works in it");
    assert!(matches!(busy, LabError::Busy { .. }), "{busy}");
    let page = started.report_path();
    drop(started);
    let kept = StudyFolder::start(folder.path(), &new, Held::Resume).expect_err("nobody asked");
    assert!(kept.to_string().contains("--fresh"), "{kept}");
    assert!(logged.exists() && page.exists());
    let replaced = StudyFolder::start(folder.path(), &new, Held::Replace).expect("a study");
    assert!(!logged.exists() && !replaced.report_path().exists());
    assert!(notes.exists());
}

#[test]
fn the_same_study_goes_on_where_it_ended() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let asked = study(&cases("resnet50"));
    let started = StudyFolder::start(folder.path(), &asked, Held::Resume).expect("new");
    log(&started, &asked.cases[0], Outcome::Done);
    log(&started, &asked.cases[1], Outcome::Interrupted);
    drop(started);
    let again = StudyFolder::start(folder.path(), &asked, Held::Resume).expect("the same");
    assert!(again.is_done(&asked.cases[0]) && !again.is_done(&asked.cases[1]));
    drop(again);
    let elsewhere = Study { machine: crate::Machine::default(), ..asked };
    StudyFolder::start(folder.path(), &elsewhere, Held::Resume).expect_err("another machine");
}

#[test]
fn the_last_numbered_study_is_continued_until_it_is_done() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let asked = study(&cases("resnet50"));
    let first = StudyFolder::numbered(parent.path()).expect("room");
    let second = StudyFolder::numbered(parent.path()).expect("room");
    assert!(first.ends_with("study-1") && second.ends_with("study-2"));
    let folder = StudyFolder::start(&second, &asked, Held::Resume).expect("new");
    assert_eq!(StudyFolder::unfinished(parent.path(), &asked), Some(second));
    assert_eq!(StudyFolder::unfinished(parent.path(), &study(&cases("vgg_19"))), None);
    for planned in &asked.cases {
        log(&folder, planned, Outcome::Done);
    }
    assert_eq!(StudyFolder::unfinished(parent.path(), &asked), None);
}

#[test]
fn a_study_of_another_schema_or_with_hostile_names_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join(STUDY), r#"{"schema": 99}"#).expect("a file");
    let error = StudyFolder::open(folder.path()).expect_err("other schema");
    assert!(error.to_string().contains("schema version 99"), "{error}");
    let mut hostile = study(&cases("resnet50"));
    hostile.cases[0].folder = "../elsewhere".into();
    let text = serde_json::to_vec(&hostile).expect("plain data");
    fs::write(folder.path().join(STUDY), text).expect("a file");
    let error = StudyFolder::start(folder.path(), &hostile, Held::Replace).expect_err("hostile");
    assert!(error.to_string().contains("../elsewhere"), "{error}");
}

#[test]
fn a_case_whose_log_is_damaged_has_failed_and_the_others_have_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let asked = study(&cases("resnet50"));
    let started = StudyFolder::start(folder.path(), &asked, Held::Resume).expect("new");
    let path = log(&started, &asked.cases[0], Outcome::Done);
    fs::write(path.join("rank-0.jsonl"), "gibberish\n").expect("a file");
    let report = started.analyse(&asked);
    assert_eq!((report.cases.len(), report.missing), (1, 1));
    assert_eq!(report.cases[0].status, Status::Failed);
    assert!(report.cases[0].reason.as_deref().is_some_and(|why| why.contains("rank-0.jsonl")));
}

#[test]
fn a_study_is_running_for_as_long_as_somebody_runs_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let asked = study(&cases("resnet50"));
    let started = StudyFolder::start(folder.path(), &asked, Held::Resume).expect("new");
    log(&started, &asked.cases[0], Outcome::Done);
    let read = || {
        let (folder, study) = StudyFolder::open(folder.path()).expect("a study");
        folder.analyse(&study)
    };
    assert!(read().running && read().cases[0].running.is_none(), "between two cases");
    assert!(!started.analyse(&asked).running, "who runs it is not told so");

    let path = started.create_case(&asked.cases[1]).expect("a folder");
    let header = LauncherHeader::new(asked.cases[1].case.clone());
    let launcher = LauncherWriter::create(&path, &header).expect("a log");
    let case = &read().cases[1];
    assert_eq!((case.status, case.reason.as_deref()), (Status::Running, Some("no step of 60 is done yet")));

    drop((launcher, started));
    let mut reporter = StudyFolder::open(folder.path()).expect("a study").0;
    reporter.lock().expect("nobody is there");
    let report = read();
    assert!(!report.running, "who writes a report does not run the study");
    let case = &report.cases[1];
    let gone = Some("its launcher is gone");
    assert_eq!((case.status, case.reason.as_deref()), (Status::Failed, gone));
}

#[test]
fn the_date_and_the_host_do_not_set_studies_apart_and_may_be_missing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let asked = study(&cases("resnet50"));
    drop(StudyFolder::start(folder.path(), &asked, Held::Resume).expect("new"));
    let later = Study { date: Some("2027-01-01T00:00:00Z".into()), host: None, ..asked.clone() };
    drop(StudyFolder::start(folder.path(), &later, Held::Resume).expect("the same study"));
    assert_eq!(StudyFolder::open(folder.path()).expect("a study").1.date, asked.date, "it began then");
    let mut old = serde_json::to_value(&asked).expect("plain data");
    let fields = old.as_object_mut().expect("an object");
    assert!(fields.remove("date").is_some() && fields.remove("host").is_some());
    fs::write(folder.path().join(STUDY), old.to_string()).expect("a file");
    let (_, read) = StudyFolder::open(folder.path()).expect("a study of an older version");
    assert_eq!((read.date, read.host, read.cases), (None, None, asked.cases));
}

#[test]
fn one_repeat_is_told_by_its_own_numbers() {
    let asked = study(&cases("resnet50"));
    let planned: Vec<Planned> = (1..=3).map(|repeat| Planned { repeat, ..asked.cases[0].clone() }).collect();
    let run = |compute: f64| Ok(Plan { compute, ..Plan::calm("resnet50", 1) }.run());
    let begun = vec![(&planned[0], run(90.0)), (&planned[1], run(180.0))];
    let logs = CaseLogs { begun, origin: Ok(None), missing: 1, files: Vec::new(), layers: Ok(Vec::new()) };
    let rate = |case: &CaseReport| case.images_per_s.expect("done").mean;
    let [first, second] = [1, 2].map(|repeat| logs.report_repeat(repeat).expect("it has run"));
    assert_eq!(logs.report_repeat(3), None);
    assert!(rate(&first) > 1.8 * rate(&second), "{} {}", rate(&first), rate(&second));
    assert_eq!((first.repeats, first.reason), (1, None), "of the other repeats nothing is said");
    let pooled = logs.report();
    assert!(rate(&second) < rate(&pooled) && pooled.repeats == 2);
}

#[test]
fn a_written_report_leaves_no_draft() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let started = StudyFolder::start(folder.path(), &study(&[]), Held::Resume).expect("a study");
    started.write_report(&report()).expect("a report");
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["report.json", "study.json"]);
}

#[test]
fn a_file_of_the_users_choice_is_replaced_whole_or_stays_and_nothing_beside_it_changes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("page.html"), "old").expect("a file");
    fs::write(at(".draft"), "somebody's").expect("a file");
    write_whole(&at("page.html"), |out| out.write_all(b"new")).expect("it is written");
    assert_eq!(fs::read_to_string(at("page.html")).expect("a page"), "new");
    // What cannot be written to leaves what was there.
    std::os::unix::fs::symlink("/dev/full", at(".page.html.draft")).expect("a link");
    write_whole(&at("page.html"), |out| out.write_all(b"newer")).expect_err("the disk is full");
    assert_eq!(fs::read_to_string(at("page.html")).expect("a page"), "new");
    assert_eq!(fs::read_to_string(at(".draft")).expect("a file"), "somebody's");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 2, "no draft is left");
}
