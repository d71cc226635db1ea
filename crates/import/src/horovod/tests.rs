use std::fmt::Write;

use super::*;
use crate::sample::{file_of, sample};
use paceline_record::Phase;

/// Tensors of the timelines made here.
const TENSORS: [&str; 2] = ["grad/dense", "grad/conv"];

/// A timeline of some steps of three ranks, 100 ms a step. Rank 2 is 20 ms late in step 3. Moments in microseconds.
///
/// In a step that begins at 0, ranks arrive for the first tensor at 40 ms, for the second at 60 ms; the second ends at 80 ms.
fn write(steps: u64) -> String {
    let mut text = String::from("[\n");
    for (tensor, pid) in TENSORS.iter().zip(1..) {
        let _ = writeln!(
            text,
            r#"{{"name": "process_name", "ph": "M", "pid": {pid}, "args": {{"name": "{tensor}"}}}},"#
        );
        let _ = writeln!(
            text,
            r#"{{"name": "process_sort_index", "ph": "M", "pid": {pid}, "args": {{"sort_index": {pid}}}}},"#
        );
    }
    let mut event = |ph: &str, pid: u64, name: &str, ts: u64| {
        let name = if ph == "E" { String::new() } else { format!(r#""name": "{name}", "#) };
        let rest = match ph {
            "X" => r#", "dur": 0"#,
            "E" if ts % 1000 == 3 => r#", "args": {"dtype": "float32", "shape": "[64, 10]"}"#,
            _ => "",
        };
        let _ = writeln!(text, r#"{{"ph": "{ph}", {name}"ts": {ts}, "pid": {pid}{rest}}},"#);
    };
    let mut late = 0;
    for step in 0..steps {
        let begin = step * 100_000 + late;
        for (pid, ready) in [(1, 40_000), (2, 60_000)] {
            let delay = if step == 3 { 20_000 } else { 0 };
            late += if pid == 2 { delay } else { 0 };
            let arrive = |rank: u64| begin + ready + rank + if rank == 2 { delay } else { 0 };
            event("B", pid, "NEGOTIATE_ALLREDUCE", arrive(0));
            (0..3).for_each(|rank| event("X", pid, &rank.to_string(), arrive(rank)));
            let all = arrive(2) + 8;
            event("E", pid, "", all);
            event("B", pid, "ALLREDUCE", all + 90);
            event("B", pid, "MEMCPY_IN_FUSION_BUFFER", all + 100);
            event("E", pid, "", all + 200);
            event("B", pid, "NCCL_ALLREDUCE", all + 200);
            event("E", pid, "", all + 15_200);
            let end = (all + 20_000) / 1000 * 1000 + 3;
            event("E", pid, "", end);
        }
    }
    text
}

fn read_text(text: &str) -> Timeline {
    read(file_of(text).path()).expect("a timeline")
}

#[test]
fn exchanges_hold_arrivals_activities_and_sizes() {
    let timeline = read_text(&write(2));
    assert_eq!(timeline.warnings, [""; 0], "a missing end is normal");
    assert_eq!(timeline.tensors, TENSORS);
    assert_eq!(timeline.exchanges.len(), 4);
    let first = &timeline.exchanges[0];
    let at = |micros: u64| Nanos(micros * 1000);
    assert_eq!(first.arrivals, [(Rank(0), at(40_000)), (Rank(1), at(40_001)), (Rank(2), at(40_002))]);
    assert_eq!((first.asked, first.negotiated), (Some(at(40_000)), Some(at(40_010))));
    assert_eq!((first.begin, first.end), (Some(at(40_100)), Some(at(60_003))));
    assert_eq!(first.bytes, Some(Bytes(2560)));
    let names: Vec<&str> =
        first.activities.iter().map(|activity| timeline.names.text(activity.name)).collect();
    assert_eq!(names, ["MEMCPY_IN_FUSION_BUFFER", "NCCL_ALLREDUCE"]);
    assert_eq!(first.activities[1].end, Some(at(55_210)));
}

#[test]
fn the_summary_names_who_came_last_how_often_and_by_how_much() {
    let summary = Summary::of(&read_text(&write(5)));
    assert_eq!((summary.exchanges, summary.ended, summary.complete, summary.world), (10, 10, 10, 3));
    assert_eq!(summary.activities[0].name, "NCCL_ALLREDUCE");
    assert_eq!((summary.activities[0].calls, summary.activities[0].summed), (10, Nanos(150_000_000)));
    let late = summary.ranks[2];
    assert_eq!((late.rank, late.last, late.arrivals), (Rank(2), 10, 10));
    assert_eq!(late.alone, Nanos(40_001_000 + 8 * 1000), "the two tensors wait together for 1 us");
    assert_eq!(late.worst, Nanos(20_002_000));
    assert_eq!(summary.ranks[0].behind, Nanos(0));
    assert_eq!(summary.bytes, Some(Bytes(25_600)));
    let text = summary.render(1);
    assert!(text.contains("10 exchanges of 2 tensors") && text.contains("NCCL_ALLREDUCE"), "{text}");
    assert!(!text.contains("MEMCPY"), "only as many as asked for");
    assert!(text.contains("   2        10    10    40.009"), "{text}");
}

#[test]
fn time_that_tensors_share_counts_once() {
    let text = r#"[{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 0, "pid": 1}, {"ph": "E", "ts": 1, "pid": 1},
        {"ph": "B", "name": "ALLREDUCE", "ts": 1, "pid": 1}, {"ph": "B", "name": "ALLREDUCE", "ts": 1, "pid": 2},
        {"ph": "B", "name": "RING", "ts": 10, "pid": 1}, {"ph": "B", "name": "RING", "ts": 12, "pid": 2},
        {"ph": "E", "ts": 20, "pid": 1}, {"ph": "E", "ts": 22, "pid": 2}]"#;
    let summary = Summary::of(&read_text(text));
    assert_eq!((summary.activities[0].summed, summary.activities[0].busy), (Nanos(20_000), Nanos(12_000)));
    assert_eq!((summary.world, summary.complete), (0, 0));
}

#[test]
fn a_rank_that_keeps_many_tensors_waiting_at_once_is_late_once() {
    let mut text = String::from("[");
    for pid in 1..=50 {
        let _ = write!(
            text,
            r#"{{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 0, "pid": {pid}}},
            {{"ph": "X", "name": "0", "ts": {pid}, "pid": {pid}, "dur": 0}},
            {{"ph": "X", "name": "1", "ts": 80000, "pid": {pid}, "dur": 0}},
            {{"ph": "E", "ts": 80001, "pid": {pid}}},"#
        );
    }
    let late = Summary::of(&read_text(&text)).ranks[1];
    assert_eq!((late.rank, late.last, late.alone), (Rank(1), 50, Nanos(79_999_000)));
}

#[test]
fn steps_are_found_where_tensors_come_again_and_the_late_rank_is_waited_for() {
    let run = read_text(&write(6)).to_run();
    assert_eq!((run.case.workers, run.ranks.len()), (3, 3));
    for rank in &run.ranks {
        assert_eq!(rank.steps.len(), 5, "the first has no begin");
        assert!(rank.steps.windows(2).all(|pair| pair[0].end == pair[1].begin));
        assert!(rank.steps.iter().all(|step| step.loss.is_none() && step.buckets.len() == 2));
    }
    let (calm, late) = (&run.ranks[0].steps[1], &run.ranks[0].steps[2]);
    assert_eq!((calm.end.since(calm.begin), calm.late_rank), (Nanos(100_000_000), Nanos(2_000)));
    assert_eq!((late.end.since(late.begin), late.late_rank), (Nanos(120_000_000), Nanos(20_002_000)));
    assert_eq!(late.phases[Phase::CommWait], Nanos(40_003_000));
    assert_eq!(run.ranks[2].steps[2].late_rank, Nanos(0), "nobody waits for himself");
    let waits: Vec<_> = late.buckets.iter().map(|bucket| (bucket.last_rank, bucket.waited_late)).collect();
    assert_eq!(waits, [(Rank(2), Nanos(0)), (Rank(2), Nanos(20_002_000))], "once, not for every tensor");
    assert!(run.warnings.iter().any(|warning| warning.contains("how many examples")));
}

#[test]
fn a_torn_timeline_gives_what_is_whole() {
    let whole = write(6);
    let torn = read_text(&whole[..whole.len() - 300]);
    assert!(torn.warnings[0].contains("the last event is truncated"), "{:?}", torn.warnings);
    let run = torn.to_run();
    assert_eq!(run.ranks[0].steps.len(), 4);
    assert!(run.warnings.iter().any(|warning| warning.contains("the last step is incomplete")));
}

#[test]
fn start_up_broadcasts_are_no_step() {
    let broadcast = r#"[{"ph": "B", "name": "NEGOTIATE_BROADCAST", "ts": 1, "pid": 9}, {"ph": "X", "name": "0", "ts": 1, "pid": 9},
        {"ph": "E", "ts": 2, "pid": 9}, {"ph": "B", "name": "BROADCAST", "ts": 2, "pid": 9}, {"ph": "E", "ts": 30000, "pid": 9},"#;
    let timeline = read_text(&write(4).replacen('[', broadcast, 1));
    assert_eq!(timeline.exchanges[0].operation.map(|name| timeline.names.text(name)), Some("BROADCAST"));
    assert_eq!(timeline.to_run().ranks[0].steps.len(), 3);
}

#[test]
fn arrivals_answered_from_the_cache_stay_unknown() {
    let text: String =
        write(4).lines().filter(|line| !line.contains(r#""X""#)).map(|line| format!("{line}\n")).collect();
    let timeline = read_text(&text);
    assert!(timeline.warnings[0].contains("HOROVOD_CACHE_CAPACITY"), "{:?}", timeline.warnings);
    let run = timeline.to_run();
    assert_eq!(run.ranks[0].steps.len(), 3);
    assert!(run.ranks[0].steps.iter().all(|step| step.buckets.is_empty() && step.phases.total().is_zero()));
}

#[test]
fn what_is_no_timeline_is_one_clear_error() {
    let why = |text: &str| read(file_of(text).path()).expect_err("no timeline").to_string();
    assert!(why("").ends_with("it is not a JSON array"));
    assert!(why("{}").ends_with("it is not a JSON array"));
    assert!(why("[]").ends_with("it has no events"));
    assert!(why("[1, 2, {\"ph\": 3}]").ends_with("it has no events"));
    assert!(recognise(write(1).as_bytes()));
    assert!(
        !recognise(b"[]")
            && !recognise(b"{\"traceEvents\": [{\"ph\": \"B\", \"name\": \"NEGOTIATE_ALLREDUCE\"}]}")
    );
}

#[test]
fn hostile_events_are_passed_over() {
    let text = r#"[{"ph": "X", "name": "4294967295", "ts": 1, "pid": 1}, {"ph": "E", "ts": 1, "pid": 7}, {"ph": "B", "ts": -5},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1e300, "pid": 1}, {"ph": "Q"}, {"ph": "X", "name": "1", "ts": 5}]"#;
    let timeline = read_text(text);
    assert_eq!(timeline.exchanges.len(), 1);
    assert!(timeline.warnings[0].starts_with("5 events have no begin"), "{:?}", timeline.warnings);
}

#[test]
fn a_real_timeline_holds_what_an_independent_count_finds() {
    let Some(path) = sample("horovod/timeline_small.json") else { return };
    assert!(recognise(&std::fs::read(&path).expect("a real file")[..512]));
    let timeline = read(&path).expect("a real file");
    let summary = Summary::of(&timeline);
    // Printed by peers/totals_logs.py.
    assert_eq!((timeline.events, summary.tensors, summary.cycles), (57, 16, 2));
    let asked = timeline.exchanges.iter().filter(|exchange| exchange.asked.is_some()).count();
    let negotiated = timeline.exchanges.iter().filter(|exchange| exchange.negotiated.is_some()).count();
    assert_eq!((asked, negotiated), (4, 2));
    let late: Vec<_> =
        summary.ranks.iter().map(|one| (one.rank.0, one.arrivals, one.behind.0 / 1000)).collect();
    assert_eq!(late, [(4, 14, 0), (5, 2, 681_799), (7, 3, 640_900)]);
    let run = timeline.to_run();
    assert!(run.ranks.iter().all(|rank| rank.steps.is_empty()));
    assert!(run.warnings.iter().any(|warning| warning.contains("no complete step")));
}

#[test]
fn a_rank_far_beyond_the_others_is_damage() {
    let text = write(4).replacen(r#""name": "1""#, r#""name": "60000""#, 1);
    let timeline = read_text(&text);
    assert!(
        timeline.warnings.iter().any(|warning| warning.starts_with("1 events cannot be read")),
        "{:?}",
        timeline.warnings
    );
    assert_eq!((Summary::of(&timeline).world, timeline.to_run().ranks.len()), (3, 3));
}

#[test]
fn a_packed_timeline_is_read_as_it_is() {
    let text = write(3);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, text.as_bytes()).expect("memory");
    let packed = read(file_of(packed.finish().expect("memory")).path()).expect("a timeline");
    assert_eq!(Summary::of(&packed), Summary::of(&read_text(&text)));
}
