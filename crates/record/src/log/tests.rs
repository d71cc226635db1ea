use std::fs;

use super::*;
use crate::{Case, Exit, Load, Phase, Started, Whole};

fn header() -> RankHeader {
    RankHeader::new(Rank(0), 1)
}

fn step(number: u64) -> StepRecord {
    let mut step = StepRecord::open(Step(number), Nanos(1000 + 100 * number));
    step.book(Phase::Forward, Nanos(60));
    step.end = Nanos(1100 + 100 * number);
    step.examples = 64;
    step.loss = Some(2.5);
    step
}

fn evaluation() -> EvalRecord {
    EvalRecord { at: Nanos(1290), steps: 3, examples: 100, loss: Some(1.5), correct: Some(40) }
}

/// A folder with a log of three steps.
fn written() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut log = RankWriter::create(folder.path(), &header()).expect("a new log");
    let events = [
        RankEvent::Main { at: Nanos(900), pid: 7 },
        RankEvent::Compiled { at: Nanos(990), planned: Some(Bytes(4096)) },
        RankEvent::Step(step(0)),
        RankEvent::Step(step(1)),
        RankEvent::Step(step(2)),
        RankEvent::Evaluated(evaluation()),
        RankEvent::Saved { at: Nanos(1300), steps: 3, bytes: Bytes(8192) },
    ];
    for event in &events {
        log.append(event).expect("room for an event");
    }
    folder
}

fn edit(folder: &Path, change: impl FnOnce(String) -> String) {
    let path = folder.join(rank_file(Rank(0)));
    let text = fs::read_to_string(&path).expect("the log");
    fs::write(path, change(text)).expect("the changed log");
}

fn read(folder: &Path) -> Result<RankLog, LogError> {
    RankLog::read(folder, Rank(0))
}

#[test]
fn what_a_rank_writes_is_what_is_read() {
    let folder = written();
    let log = read(folder.path()).expect("a whole log");
    assert_eq!(log.header, WorkerHeader::Rank(header()));
    assert_eq!(log.main, Some(Nanos(900)));
    assert_eq!(log.planned, Some(Bytes(4096)));
    assert_eq!(log.steps, [step(0), step(1), step(2)]);
    assert_eq!(log.evaluations, [evaluation()]);
    assert_eq!(log.peak_resident, None);
}

#[test]
fn what_the_launcher_writes_is_what_is_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let case = Case { model: "resnet50".into(), workers: 2, ..Case::default() };
    let header = LauncherHeader::new(case);
    let mut log = LauncherWriter::create(folder.path(), &header).expect("a new log");
    let spawn = |rank, at| LauncherEvent::Spawn { rank: Rank(rank), at: Nanos(at) };
    let reap = |rank, at| LauncherEvent::Reap { rank: Rank(rank), at: Nanos(at), exit: Exit::Signal(9) };
    let over = LauncherEvent::Over { outcome: Outcome::Failed, reason: Some("rank 1 was killed".into()) };
    for event in [spawn(0, 5), spawn(1, 6), reap(1, 90), reap(0, 80), over] {
        log.append(&event).expect("room for an event");
    }
    let log = LauncherLog::read(folder.path()).expect("a whole log");
    assert_eq!(log.header, header);
    assert_eq!(log.first_spawn, Some(Nanos(5)));
    assert_eq!(log.last_reap, Some(Nanos(90)));
    assert_eq!(log.over, Some((Outcome::Failed, Some("rank 1 was killed".into()))));
}

#[test]
fn a_launcher_holds_its_log_for_as_long_as_it_is_at_work() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert!(!LauncherLog::is_held(folder.path()), "there is none");
    let header = LauncherHeader {
        started: Some(Started { at: Nanos(5), unix: Nanos(1_794_818_014_000_000_000) }),
        load: Some(Load { cores: 2, busy_cores: Some(1.5), stolen_cores: Some(0.0), quota_cores: None }),
        ..LauncherHeader::new(Case::default())
    };
    let writer = LauncherWriter::create(folder.path(), &header).expect("a log");
    assert!(LauncherLog::is_held(folder.path()) && LauncherLog::is_held(folder.path()));
    let log = LauncherLog::read(folder.path()).expect("whole from the first moment on");
    assert_eq!((log.header, log.over), (header, None));
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1, "no draft is left");
    drop(writer);
    assert!(!LauncherLog::is_held(folder.path()));
}

proptest::proptest! {
    #[test]
    fn a_log_torn_anywhere_after_its_header_keeps_its_whole_lines(fraction in 0.0f64..1.0) {
        let folder = written();
        let path = folder.path().join(rank_file(Rank(0)));
        let bytes = fs::read(&path).expect("the log");
        let head = bytes.iter().position(|&b| b == b'\n').expect("a header") + 1;
        let cut = head + ((bytes.len() - head) as f64 * fraction) as usize;
        fs::write(&path, &bytes[..cut]).expect("the torn log");
        let log = read(folder.path()).expect("a torn log is still a log");
        let whole = bytes[..cut].iter().filter(|&&b| b == b'\n').count() - 1;
        proptest::prop_assert_eq!(log.steps.len(), whole.saturating_sub(2).min(3));
    }
}

#[test]
fn a_damaged_line_in_the_middle_is_named() {
    let folder = written();
    edit(folder.path(), |text| text.replacen("{\"step\":", "{step:", 1));
    let message = read(folder.path()).expect_err("garbage").to_string();
    assert!(message.contains("rank-0.jsonl line 4 is damaged"), "{message}");
}

#[test]
fn time_that_runs_backwards_is_damage() {
    let folder = written();
    edit(folder.path(), |text| text.replacen("\"end\":1200", "\"end\":12", 1));
    let message = read(folder.path()).expect_err("garbage").to_string();
    assert!(message.contains("line 5"), "{message}");
    assert!(message.contains("backwards"), "{message}");
}

#[test]
fn another_version_is_refused_by_its_number() {
    let folder = written();
    edit(folder.path(), |text| text.replacen("\"version\":5", "\"version\":9", 1));
    let message = read(folder.path()).expect_err("a later version").to_string();
    assert!(message.contains("version 9, and this program reads versions 1 to 5"), "{message}");
}

#[test]
fn a_file_without_a_whole_header_is_no_log() {
    for text in ["", "{\"format\":\"paceline-log\",\"version\":1", "hello\n", "{}\n"] {
        let folder = written();
        edit(folder.path(), |_| text.into());
        let error = read(folder.path()).expect_err("no header");
        assert!(matches!(error, LogError::NoHeader { .. }), "{text:?}: {error}");
    }
}

#[test]
fn a_log_can_be_followed_while_it_is_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut log = RankWriter::create(folder.path(), &header()).expect("a new log");
    let mut reader = RankReader::open(folder.path(), Rank(0)).expect("its header is there");
    for number in 0..3 {
        assert_eq!(reader.next_event().expect("nothing wrong"), None);
        let event = RankEvent::Step(step(number));
        log.append(&event).expect("room for an event");
        assert_eq!(reader.next_event().expect("nothing wrong"), Some(event));
    }
}

#[test]
fn a_collecting_writer_writes_late_and_leaves_the_same_bytes() {
    let (folder, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let create =
        |folder: &tempfile::TempDir| RankWriter::create(folder.path(), &header()).expect("a new log");
    let (mut at_once, mut collecting) = (create(&folder), create(&other).collecting());
    let read = |folder: &tempfile::TempDir| fs::read(folder.path().join(rank_file(Rank(0)))).expect("a log");
    for number in 0..1000 {
        at_once.append(&RankEvent::Step(step(number))).expect("room for an event");
        collecting.append(&RankEvent::Step(step(number))).expect("room for an event");
        if number == 0 {
            assert!(read(&other).len() < read(&folder).len(), "the first event is held back");
        }
    }
    assert!(read(&other).len() > COLLECTED, "it does not collect for ever");
    collecting.flush().expect("room for the rest");
    assert_eq!(read(&other), read(&folder));
}

#[test]
fn a_loss_that_is_not_a_number_is_unknown() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut log = RankWriter::create(folder.path(), &header()).expect("a new log");
    let mut lost = step(0);
    lost.loss = Some(f32::NAN);
    log.append(&RankEvent::Step(lost)).expect("room for an event");
    assert_eq!(read(folder.path()).expect("a whole log").steps[0].loss, None);
}

#[test]
fn a_member_s_log_is_read_like_a_rank_s() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let header = MemberHeader { member: Member(4), seat: 1, host: None };
    let mut log = RankWriter::create_of_member(folder.path(), &header).expect("a new log");
    let whole = Whole { examples: 128, loss: Some(2.0), correct: None };
    let record = StepRecord { whole: Some(whole), redone: 16, ..step(7) };
    for event in [
        RankEvent::Main { at: Nanos(900), pid: 7 },
        RankEvent::Step(record.clone()),
        RankEvent::Fault { at: Nanos(1850), step: Step(8), fault: "kill=4@8".into() },
    ] {
        log.append(&event).expect("room for an event");
    }
    let log = RankLog::read_member(folder.path(), Member(4)).expect("a whole log");
    assert_eq!((log.header.who(), log.header.seat()), (Who::Member(Member(4)), Some(1)));
    assert_eq!(log.steps, [record]);
    assert_eq!(log.faults, [PlantedFault { at: Nanos(1850), step: Step(8), fault: "kill=4@8".into() }]);
}
