use std::fmt::Write;

use paceline_lab::Held;
use paceline_record::{Phase, StepRecord};

use super::*;
use crate::Imported;
use crate::ranks::{Told, join};
use crate::sample::{file_of, sample};

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

fn read_text(text: &str) -> Vec<Trace> {
    read(file_of(text).path()).expect("a timeline")
}

fn run(text: &str) -> Imported {
    join(read_text(text), &Told::default()).expect("a run")
}

/// The same without what the response cache saves: no negotiation after the first step.
fn from_cache(text: &str) -> String {
    let mut negotiating = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let begins = line.contains("NEGOTIATE");
        if at < 30 || !(begins || negotiating) {
            lines.push(line);
        }
        negotiating = begins || negotiating && !line.contains(r#""E""#);
    }
    lines.join("\n")
}

fn says(run: &Imported, words: &str) -> bool {
    run.warnings.iter().any(|warning| warning.contains(words))
}

fn lengths(steps: &[StepRecord]) -> Vec<Nanos> {
    steps.iter().map(|step| step.end.since(step.begin)).collect()
}

#[test]
fn exchanges_are_what_moved_the_bytes_with_their_sizes() {
    let traces = read_text(&from_cache(&write(2)));
    let [trace] = traces.as_slice() else { panic!("{} traces", traces.len()) };
    let slice = trace.slices[0];
    assert_eq!(trace.names.text(slice.name), "NCCL_ALLREDUCE");
    assert_eq!((slice.begin, slice.end), (Nanos(140_210_000), Nanos(155_210_000)));
    assert_eq!(slice.bytes, Some(Bytes(2560)));
    let groups: Vec<&str> =
        trace.collectives.iter().filter_map(|one| Some(trace.names.text(one.group?))).collect();
    assert_eq!(groups, ["grad/dense", "grad/conv"], "those of the one step with a begin");
    assert_eq!((trace.backend.as_deref(), trace.world), (Some("nccl"), Some(3)));
}

#[test]
fn steps_are_rounds_of_all_tensors_and_the_late_rank_is_waited_for() {
    let run = run(&write(6));
    assert_eq!((run.case.workers, run.ranks.len()), (3, 3));
    for rank in &run.ranks {
        assert_eq!(rank.steps.len(), 5, "the first has no begin");
        assert!(rank.steps.windows(2).all(|pair| pair[0].end == pair[1].begin));
        assert!(rank.steps.iter().all(|step| step.loss.is_none() && step.buckets.len() == 2));
    }
    let ms = |ms: u64| Nanos(ms * 1_000_000);
    assert_eq!(lengths(&run.ranks[0].steps), [ms(100), ms(100), ms(120), ms(100), ms(100)]);
    let late = &run.ranks[0].steps[2];
    // Ready at 60 ms. The first tensor is exchanged from 60.21 to 75.21 ms; then rank 2 is waited for until 80.002 ms.
    assert_eq!(
        late.late_rank,
        Nanos(2_000 + 4_792_000),
        "not while the first is exchanged, not while bytes are queued"
    );
    assert_eq!(late.phases[Phase::CommWait], late.late_rank + ms(30), "what moved the bytes of both");
    assert_eq!(run.ranks[2].steps[2].late_rank, Nanos(0), "nobody waits for himself");
    let waits: Vec<_> = late.buckets.iter().map(|bucket| (bucket.last_rank, bucket.waited_late)).collect();
    assert_eq!(waits, [(Rank(2), Nanos(2_000)), (Rank(2), Nanos(4_792_000))], "once, not for every tensor");
    let traced = run.traced.expect("a trace");
    let [one] = traced.collectives.as_slice() else { panic!("{:?}", traced.collectives) };
    assert_eq!((one.count, one.bytes), (30, Some(Bytes(30 * 2560))));
    assert!(traced.alignment.to_string().contains("one rank recorded all ranks"));
}

/// Ranks are ready within 0.1 ms, Horovod's queue takes 50 ms, and the bytes take 10 ms.
#[test]
fn queues_of_horovod_are_no_lateness_of_a_rank() {
    let mut text = String::from("[");
    for (step, pid) in (0..12).flat_map(|step| [(step, 1), (step, 2)]) {
        let at = 200_000 * step + 100_000;
        let _ = write!(text, r#"{{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": {at}, "pid": {pid}}},"#);
        for (rank, at) in [(0, at), (1, at + 100)] {
            let _ = write!(text, r#"{{"ph": "X", "name": "{rank}", "ts": {at}, "dur": 0, "pid": {pid}}},"#);
        }
        for (ph, name, after) in [
            ("E", "", 110),
            ("B", "ALLREDUCE", 500),
            ("B", "QUEUE", 500),
            ("E", "", 50_500),
            ("B", "NCCL_ALLREDUCE", 50_500),
            ("E", "", 60_500),
            ("E", "", 60_700),
        ] {
            let at = at + after;
            let _ = write!(text, r#"{{"ph": "{ph}", "name": "{name}", "ts": {at}, "pid": {pid}}},"#);
        }
    }
    let run = run(&text);
    for (rank, late) in [(0, Nanos(100_000)), (1, Nanos(0))] {
        for step in &run.ranks[rank].steps {
            assert_eq!((step.late_rank, step.comm_busy), (late, late + Nanos(10_000_000)));
        }
    }
}

#[test]
fn what_is_answered_from_the_cache_is_exchanged_and_its_waiting_unknown() {
    let run = run(&from_cache(&write(5)));
    assert_eq!(run.ranks.len(), 1, "nobody knows what the other ranks did");
    let steps = &run.ranks[0].steps;
    assert_eq!(steps.len(), 4);
    assert!(steps.iter().all(|step| step.phases[Phase::CommWait] == Nanos(30_000_000)), "{steps:?}");
    assert!(steps.iter().all(|step| step.buckets.is_empty()));
    let traced = run.traced.as_ref().expect("a trace");
    let [one] = traced.collectives.as_slice() else { panic!("{:?}", traced.collectives) };
    assert_eq!((one.name.as_str(), one.count, one.waited), ("NCCL_ALLREDUCE", 8, None));
    assert_eq!(one.busy, Nanos(120_000_000));
    assert!(says(&run, "waiting for late ranks is unknown") && says(&run, "HOROVOD_CACHE_CAPACITY"));
    let origin = run.origin();
    assert!(origin.knows(Phase::CommWait) && !origin.knows(Phase::Compute) && !origin.knows(Phase::Idle));
}

#[test]
fn exchange_is_not_called_exposed_where_computation_is_not_shown() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runs = [("timeline".into(), run(&from_cache(&write(12))))];
    let written = crate::write::write(&runs, &[], folder.path(), Held::Resume);
    let (folder, study) = written.expect("room for a study");
    let report = folder.analyse(&study);
    let case = &report.cases[0];
    assert_eq!((case.overlap, case.communication_ratio), (None, None), "nobody knows what is hidden");
    let texts: Vec<&str> = report.findings.iter().map(|finding| finding.text.as_str()).collect();
    assert!(
        texts.iter().any(|text| text.contains("in exchanges, hidden behind computation or not")),
        "{texts:?}"
    );
    assert!(!texts.iter().any(|text| text.contains("exposed")), "{texts:?}");
}

#[test]
fn steps_that_cannot_be_told_are_not_guessed() {
    // A third tensor, such as a mean of losses, in some steps.
    let mut text = write(6);
    for step in [0, 1, 2] {
        let at = step * 100_000 + 90_000;
        let _ = write!(
            text,
            r#"{{"ph": "B", "name": "ALLREDUCE", "ts": {at}, "pid": 3}}, {{"ph": "E", "ts": {}, "pid": 3}},"#,
            at + 1000
        );
    }
    let run = run(&text);
    assert_eq!((run.ranks.len(), run.ranks[0].steps.len()), (1, 1));
    assert_eq!(run.ranks[0].steps[0].comm_busy, Nanos(12 * 15_000_000 + 3 * 1_000_000));
    assert!(says(&run, "its steps, and so who waited for whom, are unknown"), "{:?}", run.warnings);
}

#[test]
fn time_that_tensors_share_counts_once_and_copies_do_not_count() {
    let text = r#"[{"ph": "B", "name": "ALLREDUCE", "ts": 1, "pid": 1}, {"ph": "B", "name": "ALLREDUCE", "ts": 1, "pid": 2},
        {"ph": "B", "name": "WAIT_FOR_DATA", "ts": 2, "pid": 1}, {"ph": "E", "ts": 10, "pid": 1},
        {"ph": "B", "name": "MPI_ALLREDUCE", "ts": 10, "pid": 1}, {"ph": "B", "name": "MPI_ALLREDUCE", "ts": 12, "pid": 2},
        {"ph": "E", "ts": 20, "pid": 1}, {"ph": "E", "ts": 22, "pid": 2}, {"ph": "E", "ts": 30, "pid": 1},
        {"ph": "B", "name": "COPY_ALLGATHER_OUTPUT", "ts": 22, "pid": 2}, {"ph": "E", "ts": 29, "pid": 2}, {"ph": "E", "ts": 30, "pid": 2}]"#;
    let run = run(text);
    let collectives = run.traced.expect("a trace").collectives;
    assert_eq!((collectives.len(), collectives[0].count, collectives[0].busy), (1, 2, Nanos(12_000)));
}

#[test]
fn a_torn_timeline_gives_what_is_whole() {
    let whole = write(6);
    let run = run(&whole[..whole.len() - 300]);
    assert_eq!(run.ranks[0].steps.len(), 4);
    let damaged = read_text(&whole.replacen(r#"{"ph": "E", "ts": 36"#, r#"{}} "ts": 36"#, 1));
    assert!(damaged[0].warnings[0].starts_with("it is damaged after byte "), "{:?}", damaged[0].warnings);
    assert_eq!(damaged[0].steps.len(), 2);
    let odd = read_text(&whole.replacen(r#""ts": 340"#, r#""ts": "x""#, 1));
    assert!(odd[0].warnings[0].starts_with("2 events have no begin"), "{:?}", odd[0].warnings);
}

#[test]
fn start_up_broadcasts_are_no_step() {
    let broadcast = r#"[{"ph": "B", "name": "NEGOTIATE_BROADCAST", "ts": 1, "pid": 9}, {"ph": "X", "name": "0", "ts": 1, "pid": 9},
        {"ph": "E", "ts": 2, "pid": 9}, {"ph": "B", "name": "BROADCAST", "ts": 2, "pid": 9}, {"ph": "E", "ts": 30000, "pid": 9},"#;
    let traces = read_text(&write(4).replacen('[', broadcast, 1));
    assert_eq!((traces.len(), traces[0].steps.len()), (3, 3));
    assert!(traces[0].warnings.iter().any(|warning| warning.contains("all 3 exchanges outside")));
}

#[test]
fn what_is_no_timeline_is_one_clear_error() {
    let why = |text: &str| read(file_of(text).path()).expect_err("no timeline").to_string();
    for text in ["", "{}", "[]", "[1, 2, {\"ph\": 3}]"] {
        assert!(why(text).contains("not a Horovod timeline"), "{text}: {}", why(text));
    }
    assert!(recognise(write(1).as_bytes()));
    let other = br#"[{"name":"process_name","ph":"M","pid":0,"args":{"name":"Step","start_time_since_epoch_in_micros":1}},{"ph":"X","name":"a","ts":1}]"#;
    assert!(!recognise(other), "others write their origin like this, too");
    assert!(
        !recognise(b"[]")
            && !recognise(b"{\"traceEvents\": [{\"ph\": \"B\", \"name\": \"NEGOTIATE_ALLREDUCE\"}]}")
    );
}

#[test]
fn hostile_events_are_passed_over() {
    let text = r#"[{"ph": "X", "name": "4294967295", "ts": 1, "pid": 1}, {"ph": "E", "ts": 1, "pid": 7}, {"ph": "B", "ts": -5},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1e300, "pid": 1}, {"ph": "Q"}, {"ph": "X", "name": "one", "ts": 5},
        {"ph": "B", "name": "ALLREDUCE", "ts": 9, "pid": 1}, {"ph": "E", "ts": 3, "pid": 1, "args": {"dtype": 5, "shape": [1]}}]"#;
    let traces = read_text(text);
    assert_eq!((traces.len(), traces[0].slices.len()), (1, 1));
    assert_eq!((traces[0].slices[0].begin, traces[0].slices[0].end), (Nanos(9000), Nanos(9000)));
    assert!(traces[0].warnings[0].starts_with("5 events have no begin"), "{:?}", traces[0].warnings);
}

#[test]
fn a_rank_that_is_not_one_of_all_makes_arrivals_unknown() {
    let traces = read_text(&write(4).replacen(r#""name": "1""#, r#""name": "60000""#, 1));
    assert_eq!((traces.len(), traces[0].world, traces[0].steps.len()), (1, Some(3), 3));
}

#[test]
fn a_real_timeline_in_which_nothing_ends_is_refused() {
    let Some(path) = sample("horovod/timeline_small.json") else { return };
    assert!(recognise(&std::fs::read(&path).expect("a real file")[..512]));
    let why = read(&path).expect_err("nothing ends").to_string();
    assert!(why.ends_with("none of the 15 exchanges that begin in this Horovod timeline ends"), "{why}");
}

#[test]
fn a_packed_timeline_is_read_as_it_is() {
    let text = write(3);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, text.as_bytes()).expect("memory");
    let packed = read(file_of(packed.finish().expect("memory")).path()).expect("a timeline");
    assert_eq!(packed[0].slices, read_text(&text)[0].slices);
}
