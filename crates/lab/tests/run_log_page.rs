//! `docs/run-log.md` is what other programs write their logs by: its example is read, and it leaves no field out.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use paceline_lab::{CaseReport, Machine, Planned, Status, Study, StudyFolder};
use paceline_record::{
    ArrivalRecord, BucketRecord, Bytes, Case, ClockReading, EvalRecord, Exit, Expulsion, Faults, Generation,
    Host, HostChange, HostEvent, HostPlace, HostRoster, LauncherEvent, LauncherHeader, Load, Member,
    MemberChange, MemberEvent, MemberHeader, Nanos, Outcome, Phase, PhaseTimes, PorterEvent, PorterHeader,
    Rank, RankEvent, RankHeader, Recovery, RecoveryPhase, Roster, Scheduling, Started, Step, StepRecord,
    Switches, Transfer, Who, Whole,
};
use serde_json::Value;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/run-log.md");
    fs::read_to_string(path).expect("the page")
}

/// The files of the example: blocks that are marked as JSON and carry a name.
fn example() -> Vec<(String, String)> {
    let page = page();
    let blocks = page.split("```json ").skip(1);
    let file = |block: &str| {
        let (name, rest) = block.split_once('\n')?;
        Some((name.to_owned(), rest.split_once("```")?.0.to_owned()))
    };
    blocks.map(|block| file(block).expect("a whole block")).collect()
}

fn report(files: &[(String, String)]) -> CaseReport {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder around it")).expect("a folder");
        fs::write(path, text).expect("room for a file");
    }
    let (study_folder, study) = StudyFolder::open(folder.path()).expect("a study");
    study_folder.analyse(&study).cases.remove(0)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn the_example_is_read_as_the_page_says() {
    let files = example();
    assert_eq!(files.len(), 4);
    let case = report(&files);
    assert_eq!((case.status, case.reason.as_deref()), (Status::Done, None));
    assert!(close(case.total_s.expect("an end"), 0.76) && close(case.init_s.expect("a begin"), 0.5));
    assert!(close(case.images_per_s.expect("a rate").mean, 1280.0));
    assert_eq!(case.straggler.expect("somebody was late").who, Who::Rank(Rank(1)));
    let split = case.comm_wait_split_s.expect("a split");
    assert!(close(split.late_rank, 0.016) && close(split.transfer, 0.008));
    let expected = [
        (Phase::Launch, 0.010),
        (Phase::Init, 0.490),
        (Phase::Load, 0.010),
        (Phase::Forward, 0.060),
        (Phase::Backward, 0.100),
        (Phase::CommWait, 0.020),
        (Phase::Update, 0.008),
        (Phase::Tail, 0.060),
        (Phase::Other, 0.002),
    ];
    let ranks = case.ranks.expect("ranks");
    for (phase, seconds) in expected {
        assert!(close(ranks[0].phases_s[&phase], seconds), "{phase}");
    }
    for rank in &ranks {
        assert!(close(rank.phases_s.values().sum(), 0.76));
    }
}

#[test]
fn what_the_page_calls_a_contradiction_fails_the_case() {
    let changed = |file: usize, from: &str, to: &str| {
        let mut files = example();
        assert!(files[file].1.contains(from), "{from}");
        files[file].1 = files[file].1.replace(from, to);
        let case = report(&files);
        assert_eq!(case.status, Status::Failed, "{from} -> {to}");
        case.reason.expect("a reason")
    };
    assert!(changed(1, "\"spawn\"", "\"reap\"").contains("is damaged"));
    assert!(changed(2, "1010000000", "999000000").contains("outside the run"));
    assert!(changed(1, "\"version\":1", "\"version\":9").contains("version 9"));
    assert!(
        changed(3, "\"rank\":1,\"world\":2", "\"rank\":0,\"world\":2").contains("rank 1 of 2 says rank 0")
    );
    assert!(changed(3, "\"begin\":1600000000", "\"begin\":1599000000").contains("backwards"));
}

#[test]
fn a_torn_last_line_costs_that_line() {
    let mut files = example();
    let whole = files[2].1.len();
    files[2].1.truncate(whole - 5);
    let case = report(&files);
    assert_eq!((case.status, case.steps), (Status::Done, 2));
    assert_eq!(case.peak_memory_bytes, None);
}

/// One of everything that a log can say, no field left out.
fn everything() -> Vec<Value> {
    let case = Case { settings: BTreeMap::from([("data".into(), "real".into())]), ..Case::default() };
    let mut step = StepRecord::open(Step(0), Nanos(0));
    (step.late_rank, step.comm_busy, step.idle_host, step.idle_queued) =
        (Nanos(1), Nanos(1), Nanos(1), Nanos(1));
    step.idle_empty = Nanos(1);
    step.overlapped = Some(Nanos(1));
    step.covers = 10;
    step.generation = Generation(1);
    step.whole = Some(Whole { examples: 1, loss: None, correct: Some(1) });
    step.redone = 1;
    step.learning_rate = Some(0.1);
    step.scheduling = Some(Box::new(Scheduling {
        cpu: Some(Nanos(1)),
        process_cpu: Some(Nanos(1)),
        queued: Some(Nanos(1)),
        switches: Some(Switches::default()),
        faults: Some(Faults::default()),
        throttled: Some(Nanos(1)),
        steal: Some(Nanos(1)),
        off_core: Some(PhaseTimes::default()),
        mhz: Some(1),
    }));
    let no_time = Nanos(0);
    step.buckets.push(BucketRecord {
        bytes: Bytes(0),
        begun: no_time,
        last_arrival: no_time,
        last_rank: Rank(0),
        ended: no_time,
        waited_late: no_time,
        waited_transfer: no_time,
        cpu: no_time,
        moved: Bytes(0),
    });
    step.sampled = false;
    step.starved = Some(Nanos(1));
    step.arrivals.push(ArrivalRecord { bytes: Bytes(0), begun: no_time, ended: no_time, cpu: no_time });
    step.waits.push((no_time, no_time));
    let planned = Planned { folder: "case".into(), place: 0, repeat: 1, case: case.clone(), steps: 1 };
    let study = Study {
        schema: paceline_lab::SCHEMA,
        program: "test".into(),
        command: Vec::new(),
        date: None,
        host: None,
        machine: Machine::default(),
        cases: vec![planned],
    };
    let done = RankEvent::Done { at: no_time, peak_resident: None, shared: None, peak_device: None };
    let reap = |exit| LauncherEvent::Reap { rank: Rank(0), at: no_time, exit };
    let over = |outcome| LauncherEvent::Over { outcome, reason: None };
    let member = |change| LauncherEvent::Member(MemberEvent { member: Member(0), at: no_time, change });
    let generation = Generation(0);
    let recovery = |phase| Recovery { generation, phase, begin: no_time, end: no_time };
    let peer = Host(1);
    [
        serde_json::to_value(MemberHeader { member: Member(0), seat: 1, host: Some(Host(0)) }),
        serde_json::to_value(PorterHeader {
            host: Host(0),
            name: Some("a".into()),
            wire: Some("tcp".into()),
        }),
        serde_json::to_value([
            PorterEvent::Connected { peer, at: no_time, generation },
            PorterEvent::Moved(Transfer {
                peer,
                generation,
                step: Some(Step(0)),
                begin: no_time,
                end: no_time,
                sent: Bytes(0),
                received: Bytes(0),
            }),
            PorterEvent::Worked {
                step: Step(0),
                begin: no_time,
                end: no_time,
                cpu: no_time,
                waited: no_time,
            },
            PorterEvent::Dropped { peer, at: no_time, generation, bytes: Bytes(0) },
            PorterEvent::Lost { peer, at: no_time },
        ]),
        serde_json::to_value([
            LauncherEvent::Roster(Roster { generation, at: no_time, step: Step(0), members: Vec::new() }),
            LauncherEvent::Scaled { at: no_time, workers: 2 },
            LauncherEvent::Recovery(recovery(RecoveryPhase::Detect)),
            LauncherEvent::Evaluated(EvalRecord {
                at: no_time,
                steps: 1,
                examples: 1,
                loss: None,
                correct: None,
            }),
            LauncherEvent::Saved { at: no_time, steps: 1, bytes: Bytes(0) },
            member(MemberChange::Spawned),
        ]),
        serde_json::to_value([
            LauncherEvent::Host(HostEvent { host: peer, at: no_time, change: HostChange::Left }),
            LauncherEvent::Hosts(HostRoster {
                generation,
                at: no_time,
                step: Step(0),
                hosts: vec![HostPlace { host: peer, first_shard: 0, shards: 1 }],
            }),
            LauncherEvent::Clock(ClockReading { host: peer, at: no_time, offset: 0, within: no_time }),
        ]),
        serde_json::to_value(RankHeader {
            host: Some("a".into()),
            case: Some(Box::new(case.clone())),
            untold: vec![Phase::CopyIn],
            ..RankHeader::new(Rank(0), 1)
        }),
        serde_json::to_value(LauncherHeader {
            window: true,
            started: Some(Started { at: no_time, unix: no_time }),
            load: Some(Load { cores: 1, busy_cores: None, stolen_cores: None, quota_cores: None }),
            host: Some(Host(0)),
            ..LauncherHeader::new(case)
        }),
        serde_json::to_value([
            RankEvent::Main { at: no_time, pid: 0 },
            RankEvent::Compiled { at: no_time, planned: None },
            RankEvent::Step(step),
            RankEvent::Recovery(recovery(RecoveryPhase::Redo)),
            RankEvent::Fault { at: no_time, step: Step(0), fault: "kill=0@0".into() },
            RankEvent::Note { at: no_time, text: "a word".into(), untold: vec![Phase::CommWait] },
            done,
        ]),
        serde_json::to_value([
            LauncherEvent::Spawn { rank: Rank(0), at: no_time },
            reap(Exit::Code(0)),
            reap(Exit::Signal(9)),
            over(Outcome::Done),
            over(Outcome::Failed),
            over(Outcome::Interrupted),
        ]),
        serde_json::to_value(Phase::ALL),
        serde_json::to_value(study),
    ]
    .map(|value| value.expect("plain data"))
    .into()
}

fn names(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                into.push(name.clone());
                if name != "settings" {
                    names(value, into);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, into)),
        _ => {}
    }
}

/// Every name that is a value and not a field: of changes to members, of reasons, of a recovery's phases.
fn words() -> Vec<String> {
    let changes = [
        MemberChange::Spawned,
        MemberChange::Joined,
        MemberChange::Left,
        MemberChange::Ended(Exit::Code(0)),
        MemberChange::Ended(Exit::Signal(9)),
        MemberChange::Stalled { step: Step(3), since: Nanos(400) },
        MemberChange::Expelled(Expulsion::Stalled),
    ];
    let of_hosts = [
        HostChange::Joined { name: "a".into(), workers: 2 },
        HostChange::Lost { why: "no word for 2 s".into() },
        HostChange::Left,
        HostChange::Gathered,
        HostChange::Planted { step: Step(30), fault: "kill=h1@30".into() },
    ];
    let reasons = [Expulsion::Ended, Expulsion::Stalled, Expulsion::Differs, Expulsion::Surplus];
    let phases = [
        RecoveryPhase::Detect,
        RecoveryPhase::Fence,
        RecoveryPhase::Rebuild,
        RecoveryPhase::State,
        RecoveryPhase::Redo,
    ];
    let write = |text: Result<String, serde_json::Error>| text.expect("plain data");
    let mut words: Vec<String> = changes.iter().map(|it| write(serde_json::to_string(it))).collect();
    words.extend(of_hosts.iter().map(|it| write(serde_json::to_string(it))));
    let named = reasons.iter().map(|it| write(serde_json::to_string(it)));
    let named = named.chain(phases.iter().map(|it| write(serde_json::to_string(it))));
    words.extend(named.map(|word| word.trim_matches('"').to_owned()));
    words
}

#[test]
fn the_page_describes_every_event_field_and_phase() {
    let page = page();
    let mut all = Vec::new();
    everything().iter().for_each(|value| names(value, &mut all));
    all.extend(Phase::ALL.map(|phase| phase.name().into()));
    all.extend(words());
    // Within an example of their own.
    all.retain(|name| name != "code" && name != "signal");
    let missing: Vec<&String> = all.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/run-log.md says nothing of {missing:?}");
}
