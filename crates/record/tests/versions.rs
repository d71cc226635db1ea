//! Logs of every version are read, from files that are kept as they were written.

use std::path::{Path, PathBuf};

use paceline_record::log::{
    self, LauncherLog, MemberReader, PorterReader, PorterWriter, RankLog, RankWriter, WorkerHeader,
    member_file,
};
use paceline_record::{
    Bytes, ClockReading, Exit, Expulsion, Faults, Generation, Host, HostChange, HostEvent, HostPlace,
    HostRoster, LauncherEvent, Member, MemberChange, MemberEvent, MemberHeader, Nanos, Outcome, Phase,
    PorterEvent, PorterHeader, Rank, RankEvent, Recovery, RecoveryPhase, Roster, Scheduling, Step,
    StepRecord, Switches, Transfer,
};

fn folder(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/logs/version-{version}"))
}

/// A log of version 3 as this program stamps it.
fn newer(text: &str) -> String {
    text.replacen("\"version\":3", &format!("\"version\":{}", log::VERSION), 1)
}

#[test]
fn a_log_of_version_1_is_read() {
    let launcher = LauncherLog::read(&folder(1)).expect("a launcher's log");
    assert_eq!((launcher.outcome(), launcher.header.case.batch_per_worker), (Outcome::Done, Some(64)));
    assert_eq!(
        (launcher.first_spawn, launcher.last_reap),
        (Some(Nanos(1_000_000_000)), Some(Nanos(1_750_000_000)))
    );
    let rank = RankLog::read(&folder(1), Rank(0)).expect("a rank's log");
    assert_eq!((rank.steps.len(), rank.peak_resident), (2, Some(Bytes(430_000_000))));
    assert_eq!(rank.steps[0].buckets.len(), 1);
    assert_eq!((rank.steps[0].generation, &rank.steps[0].scheduling), (Generation(0), &None));
}

#[test]
fn a_log_of_version_2_is_read() {
    let launcher = LauncherLog::read(&folder(2)).expect("a launcher's log");
    let reason = "rank 0 was killed by signal 9 (SIGKILL)".to_owned();
    assert_eq!(launcher.over, Some((Outcome::Failed, Some(reason))));
    assert_eq!(launcher.membership, []);
    let rank = RankLog::read(&folder(2), Rank(0)).expect("a rank's log");
    assert_eq!((rank.steps.len(), rank.evaluations.len(), rank.planned), (1, 1, Some(Bytes(412_000_000))));
    assert_eq!(
        (rank.steps[0].correct, rank.shared, rank.peak_device),
        (Some(1), Some(Bytes(9_000_000)), None)
    );
}

#[test]
fn the_launcher_tells_of_members_in_order_and_nothing_is_lost() {
    let log = LauncherLog::read(&folder(3)).expect("a launcher's log");
    assert_eq!((log.first_spawn, log.last_reap), (Some(Nanos(100)), Some(Nanos(1000))));
    let member = |member, at, change| {
        LauncherEvent::Member(MemberEvent { member: Member(member), at: Nanos(at), change })
    };
    let roster = |generation, at, step, members: &[u32]| {
        let members = members.iter().copied().map(Member).collect();
        LauncherEvent::Roster(Roster {
            generation: Generation(generation),
            at: Nanos(at),
            step: Step(step),
            members,
        })
    };
    let recovery = |phase, begin, end| {
        let (begin, end) = (Nanos(begin), Nanos(end));
        LauncherEvent::Recovery(Recovery { generation: Generation(1), phase, begin, end })
    };
    let unknown = serde_json::json!({"moved": {"host": 1}});
    let why = serde_json::json!({"disliked": {"by": 0}});
    let expected = [
        member(0, 100, MemberChange::Spawned),
        member(1, 110, MemberChange::Spawned),
        member(0, 200, MemberChange::Joined),
        member(1, 210, MemberChange::Joined),
        roster(0, 220, 0, &[0, 1]),
        member(1, 500, MemberChange::Stalled { step: Step(3), since: Nanos(400) }),
        member(1, 510, MemberChange::Expelled(Expulsion::Stalled)),
        member(1, 540, MemberChange::Ended(Exit::Signal(9))),
        roster(1, 550, 3, &[0]),
        recovery(RecoveryPhase::Detect, 400, 510),
        recovery(RecoveryPhase::Fence, 510, 550),
        recovery(RecoveryPhase::Redo, 550, 600),
        LauncherEvent::Scaled { at: Nanos(700), workers: 2 },
        member(2, 710, MemberChange::Spawned),
        member(2, 900, MemberChange::Other(unknown)),
        member(2, 910, MemberChange::Expelled(Expulsion::Other(why))),
        member(2, 950, MemberChange::Ended(Exit::Code(0))),
        member(0, 990, MemberChange::Left),
        member(0, 1000, MemberChange::Ended(Exit::Code(0))),
    ];
    assert_eq!(log.membership, expected);
}

fn read_member(folder: &Path) -> (MemberHeader, Vec<RankEvent>) {
    let mut reader = MemberReader::open(folder, Member(0)).expect("a member's log");
    let mut events = Vec::new();
    while let Some(event) = reader.next_event().expect("whole lines") {
        events.push(event);
    }
    (reader.header().clone(), events)
}

fn steps(events: &[RankEvent]) -> Vec<&StepRecord> {
    events
        .iter()
        .filter_map(|event| match event {
            RankEvent::Step(step) => Some(step),
            _ => None,
        })
        .collect()
}

#[test]
fn a_member_tells_its_generation_and_how_it_was_scheduled() {
    let (header, events) = read_member(&folder(3));
    assert_eq!(header, MemberHeader { member: Member(0), seat: 0, host: Some(Host(1)) });
    let steps = steps(&events);
    assert_eq!((steps[0].generation, steps[1].generation), (Generation(0), Generation(1)));
    let told = Scheduling {
        cpu: Some(Nanos(90)),
        process_cpu: Some(Nanos(170)),
        queued: Some(Nanos(4)),
        switches: Some(Switches { voluntary: 3, involuntary: 1 }),
        faults: Some(Faults { minor: 5, major: 0 }),
        throttled: Some(Nanos(0)),
        steal: Some(Nanos(10_000_000)),
        off_core: None,
        mhz: None,
    };
    assert_eq!(steps[0].scheduling.as_deref(), Some(&told));
    let little = Scheduling { cpu: Some(Nanos(200)), ..Scheduling::default() };
    assert_eq!(steps[1].scheduling.as_deref(), Some(&little), "what is not told is unknown, not zero");
}

#[test]
fn what_is_read_of_version_3_is_written_to_the_byte_but_for_the_version() {
    let written = tempfile::tempdir().expect("a temporary folder");
    let (header, events) = read_member(&folder(3));
    let mut log = RankWriter::create_of_member(written.path(), &header).expect("a new log");
    events.iter().for_each(|event| log.append(event).expect("room"));
    let text = |folder: &Path| std::fs::read_to_string(folder.join(member_file(Member(0)))).expect("a log");
    assert_eq!(text(written.path()), newer(&text(&folder(3))));
}

#[test]
fn a_porter_tells_what_moved_between_hosts() {
    let mut reader = PorterReader::open(&folder(3)).expect("a porter's log").expect("it is there");
    let header = PorterHeader { host: Host(0), name: Some("node-a".into()), wire: Some("tcp".into()) };
    assert_eq!(reader.header(), &header);
    let (peer, generation) = (Host(1), Generation(0));
    let expected = [
        PorterEvent::Connected { peer, at: Nanos(150), generation },
        PorterEvent::Moved(Transfer {
            peer,
            generation,
            step: Some(Step(2)),
            begin: Nanos(350),
            end: Nanos(390),
            sent: Bytes(4000),
            received: Bytes(8000),
        }),
        PorterEvent::Dropped { peer, at: Nanos(560), generation, bytes: Bytes(64) },
        PorterEvent::Lost { peer, at: Nanos(800) },
    ];
    let written = tempfile::tempdir().expect("a temporary folder");
    let mut log = PorterWriter::create(written.path(), &header).expect("a new log");
    for event in expected {
        log.append(&event).expect("room");
        assert_eq!(reader.next_event().expect("a whole line"), Some(event));
    }
    let text = |folder: &Path| std::fs::read_to_string(folder.join("porter.jsonl")).expect("a log");
    assert_eq!(text(written.path()), newer(&text(&folder(3))));
}

#[test]
fn a_run_on_one_host_has_no_porter() {
    assert!(PorterReader::open(&folder(1)).expect("no file is no error").is_none());
}

#[test]
fn the_first_host_tells_of_hosts_and_clocks_and_a_porter_of_its_work() {
    let log = LauncherLog::read(&folder(4)).expect("a launcher's log");
    assert_eq!(log.header.host, Some(Host(0)));
    let host = |host, at, change| LauncherEvent::Host(HostEvent { host: Host(host), at: Nanos(at), change });
    let place = |host| HostPlace { host: Host(host), first_shard: host, shards: 1 };
    let expected = [
        host(0, 100, HostChange::Joined { name: "node-a".into(), workers: 1 }),
        host(1, 120, HostChange::Joined { name: "node-b".into(), workers: 1 }),
        LauncherEvent::Hosts(HostRoster {
            generation: Generation(1),
            at: Nanos(200),
            step: Step(0),
            hosts: vec![place(0), place(1)],
        }),
        LauncherEvent::Clock(ClockReading {
            host: Host(1),
            at: Nanos(210),
            offset: -3_000_000_000,
            within: Nanos(40_000),
        }),
        host(1, 500, HostChange::Lost { why: "Connection reset by peer".into() }),
        host(1, 510, HostChange::Other(serde_json::json!({"moved": {"to": "node-c"}}))),
    ];
    assert_eq!(log.membership, expected);
    let mut porter = PorterReader::open(&folder(4)).expect("a porter's log").expect("it is there");
    let worked = PorterEvent::Worked {
        step: Step(0),
        begin: Nanos(200),
        end: Nanos(400),
        cpu: Nanos(50),
        waited: Nanos(120),
    };
    assert_eq!(porter.next_event().expect("whole lines"), Some(worked));
    assert_eq!(porter.next_event().expect("whole lines"), None);
}

#[test]
fn a_rank_tells_what_it_trains_what_it_cannot_tell_and_when_it_arrived() {
    let log = RankLog::read(&folder(5), Rank(1)).expect("a rank's log");
    let WorkerHeader::Rank(header) = &log.header else { panic!("a rank's log") };
    let case = header.case.as_ref().expect("it knows");
    assert_eq!((case.model.as_str(), case.workers, header.host.as_deref()), ("ConvNet", 2, Some("5b1c")));
    assert_eq!(header.untold, [Phase::CopyIn, Phase::CommCpu], "the header's and the note's");
    assert_eq!(
        (&log.notes[..], log.done),
        (&["a word of warning".to_owned()][..], Some(Nanos(1_710_000_000)))
    );
    let [measured, other] = &log.steps[..] else { panic!("two steps") };
    assert_eq!((measured.sampled, measured.starved), (true, Some(Nanos(2_000_000))));
    assert_eq!(
        (measured.arrivals[0].begun, measured.waits[0].1),
        (Nanos(1_585_000_000), Nanos(1_595_000_000))
    );
    assert!(!other.sampled && other.phases.total() == Nanos(20_000_000) && other.starved.is_none());
}
