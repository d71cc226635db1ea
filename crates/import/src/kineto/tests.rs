//! Small files for every dialect and quirk; real ones where they are present.

mod collectives;
mod hostile;
mod samples;

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use paceline_record::{Bytes, Rank};

use super::*;
use crate::trace::{Clock, Kind, Slice};

/// Reads a file's bytes.
fn read_bytes(bytes: &[u8]) -> Result<Trace, ImportError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    read(file.path())
}

/// Reads a stream.
fn read_from(source: Box<dyn Read>) -> Result<Trace, ImportError> {
    let mut builder = Builder::default();
    builder.fill(Path::new("stream"), source)?;
    Ok(builder.finish())
}

/// Reads a file that must give a trace without any warning.
fn read_clean(text: &str) -> Trace {
    let trace = read_bytes(text.as_bytes()).unwrap();
    assert!(trace.warnings.is_empty(), "{:?}", trace.warnings);
    trace
}

/// A file with these events.
fn file_of(events: &[&str]) -> String {
    format!(r#"{{"schemaVersion": 1, "traceEvents": [{}]}}"#, events.join(","))
}

/// An operator on thread 7 of process 9.
fn operator(name: &str, begin: &str, duration: &str) -> String {
    format!(r#"{{"ph":"X","cat":"cpu_op","name":"{name}","pid":9,"tid":7,"ts":{begin},"dur":{duration}}}"#)
}

fn pack(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Kind, name, begin and end of every slice.
fn slices(trace: &Trace) -> Vec<(Kind, &str, u64, u64)> {
    let show = |slice: &Slice| (slice.kind, trace.names.text(slice.name), slice.begin.0, slice.end.0);
    trace.slices.iter().map(show).collect()
}

const GPU: &str = r#"{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "H100", "numSms": 132}, {"id": 1, "name": "H100 \"b\""}],
  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
  "host_name": "node7", "displayTimeUnit": "ns", "baseTimeNanoseconds": 1719853884000000000,
  "traceEvents": [
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#12", "pid": 41, "tid": 41, "ts": 10.5, "dur": 100, "args": {}},
  {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#12", "pid": 0, "tid": 7, "ts": 30, "dur": 90},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 41, "tid": 41, "ts": 12.001, "dur": 7.9996,
   "args": {"External id": 5, "Input Dims": [[2, 3], []], "Call stack": "a;\"b]\"", "blocks per SM": NaN, "x": -Infinity}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 41, "tid": 41, "ts": 13, "dur": 2, "args": {"correlation": 77}},
  {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernel", "pid": 41, "tid": 41, "ts": 16, "dur": 1, "args": {"correlation": 78}},
  {"ph": "s", "id": 77, "pid": 41, "tid": 41, "ts": 13, "cat": "ac2g", "name": "ac2g"},
  {"ph": "f", "id": 77, "pid": 0, "tid": 7, "ts": 40, "cat": "async_cpu_to_gpu", "name": "async_cpu_to_gpu", "bp": "e"},
  {"ph": "X", "cat": "kernel", "name": "gemm\u003cfloat\u003e", "pid": 0, "tid": 7, "ts": 40, "dur": 20, "args": {"device": 0, "stream": 7, "correlation": 77}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 8, "ts": 41, "dur": 1, "args": {"bytes": 4096, "correlation": 79}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "pid": 0, "tid": 8, "ts": 42, "dur": 1, "args": {"bytes": "12"}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "pid": 0, "tid": 8, "ts": 43, "dur": 1, "args": {"bytes": 9}},
  {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 8, "ts": 44, "dur": 1, "args": {"bytes": 8}},
  {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": 1},
  {"ph": "X", "cat": "Trace", "ts": 1, "dur": 500, "pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)"},
  {"ph": "X", "cat": "python_function", "name": "train.py(1): main", "pid": 41, "tid": 41, "ts": 1, "dur": 500},
  {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 1, "args": {"labels": "GPU 0"}},
  {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 1, "args": {"name": "stream 7 "}},
  {"ph": "M", "name": "thread_name", "pid": 41, "tid": 41, "ts": 1, "args": {"name": "thread 41 (python3)"}}
]}"#;

#[test]
fn a_trace_of_a_device_is_read_in_all_its_parts() {
    let trace = read_clean(GPU);
    assert_eq!((trace.rank, trace.world), (Some(Rank(3)), Some(8)));
    assert_eq!((trace.backend.as_deref(), trace.host.as_deref()), (Some("nccl"), Some("node7")));
    assert_eq!(trace.devices, ["H100", "H100 \"b\""]);
    assert_eq!(trace.clock, Clock::Epoch);
    let base = 1_719_853_884_000_000_000;
    let shown: Vec<_> = slices(&trace)
        .into_iter()
        .map(|(kind, name, begin, end)| (kind, name, begin - base, end - base))
        .collect();
    let expected = [
        (Kind::Range, "ProfilerStep#12", 10_500, 110_500),
        (Kind::Operator, "aten::mm", 12_001, 20_001),
        (Kind::Call, "cudaLaunchKernel", 13_000, 15_000),
        (Kind::Call, "cuLaunchKernel", 16_000, 17_000),
        (Kind::Range, "ProfilerStep#12", 30_000, 120_000),
        (Kind::Compute, "gemm<float>", 40_000, 60_000),
        (Kind::CopyIn, "Memcpy HtoD (Pinned -> Device)", 41_000, 42_000),
        (Kind::CopyOut, "Memcpy DtoH (Device -> Pageable)", 42_000, 43_000),
        (Kind::CopyDevice, "Memcpy DtoD (Device -> Device)", 43_000, 44_000),
        (Kind::Fill, "Memset (Device)", 44_000, 45_000),
    ];
    assert_eq!(shown, expected);
    let numbers: Vec<_> =
        trace.slices.iter().map(|slice| (slice.correlation, slice.bytes.map(|bytes| bytes.0))).collect();
    let none = (0, None);
    let copies = [(79, Some(4096)), (0, Some(12)), (0, Some(9)), (0, Some(8))];
    assert_eq!(numbers[..6], [none, none, (77, None), (78, None), none, (77, None)]);
    assert_eq!(numbers[6..], copies);
    let tracks: Vec<_> = trace.tracks.iter().map(|track| (track.name.as_str(), track.device)).collect();
    assert_eq!(tracks, [("thread 41 (python3)", None), ("stream 7", Some(0)), ("stream 8", Some(0))]);
    let steps: Vec<_> =
        trace.steps.iter().map(|step| (step.number, step.begin.0 - base, step.end.0 - base)).collect();
    assert_eq!(steps, [(12, 10_500, 110_500)], "the host's count, not the device's");
}

#[test]
fn a_packed_file_gives_the_same_trace() {
    assert_eq!(slices(&read_bytes(&pack(GPU)).unwrap()), slices(&read_clean(GPU)));
}

#[test]
fn keys_come_in_any_order_and_others_are_passed_over() {
    let events = operator("a", "1", "2");
    let text = format!(
        "\u{feff} {{\"INFO\": [\"x]\", {{}}], \"traceEvents\": [{events}], \"n\": NaN, \"t\": \"}}\",
          \"baseTimeNanoseconds\": \"1719853884000000000\", \"distributedInfo\": {{\"world_size\": \"4\", \"rank\": \"2\"}}}}"
    );
    let trace = read_clean(&text);
    assert_eq!((trace.rank, trace.world, trace.clock), (Some(Rank(2)), Some(4), Clock::Epoch));
    assert_eq!(slices(&trace), [(Kind::Operator, "a", 1_719_853_884_000_001_000, 1_719_853_884_000_003_000)]);
}

#[test]
fn what_the_file_does_not_say_is_unknown() {
    let trace = read_clean(&file_of(&[&operator("a", "1", "2")]));
    assert_eq!((trace.rank, trace.world, trace.backend, trace.host), (None, None, None, None));
    assert_eq!(trace.clock, Clock::Own);
    assert!(trace.devices.is_empty() && trace.steps.is_empty() && trace.collectives.is_empty());
}

#[test]
fn a_bare_array_and_old_categories_are_read() {
    let text = r#"[
        {"ph":"X","cat":"Operator","name":"aten::add","pid":1,"tid":"1","ts":1682725898079292,"dur":"5.5"},
        {"ph":"X","cat":"Operator","name":"ProfilerStep#3","pid":1,"tid":1,"ts":"1682725898079290","dur":100},
        {"ph":"X","cat":"Runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":1682725898079293,"dur":1,"args":{"correlation":"4"}},
        {"ph":"X","cat":"Kernel","name":"k","pid":2,"tid":7,"ts":1682725898079299,"dur":1,"args":{"device":"2","correlation":4}},
        {"ph":"X","cat":"Memcpy","name":"CopyHostToDevice","pid":2,"tid":7,"ts":1682725898079310,"dur":1},
        {"ph":"X","cat":"Memset","name":"Memset","pid":2,"tid":7,"ts":1682725898079320,"dur":1}
    ]"#;
    let trace = read_clean(text);
    use Kind::{Call, Compute, CopyIn, Fill, Operator, Range};
    let kinds: Vec<_> = trace.slices.iter().map(|slice| slice.kind).collect();
    assert_eq!(kinds, [Range, Operator, Call, Compute, CopyIn, Fill]);
    assert_eq!(trace.clock, Clock::Epoch, "moments are since 1970 by themselves");
    assert_eq!(trace.slices[1].end.0 - trace.slices[1].begin.0, 5500);
    assert_eq!(trace.slices[2].correlation, trace.slices[3].correlation);
    assert_eq!(trace.tracks.iter().map(|track| track.device).collect::<Vec<_>>(), [None, Some(2)]);
    assert_eq!(trace.steps[0].number, 3);
}

#[test]
fn steps_of_the_device_count_where_the_host_marks_none() {
    let step = |number: u32, stream: u32, begin: u32, duration: u32| {
        format!(
            r#"{{"ph":"X","cat":"gpu_user_annotation","name":"ProfilerStep#{number}","pid":0,"tid":{stream},"ts":{begin},"dur":{duration}}}"#
        )
    };
    let events = [step(2, 7, 100, 50), step(1, 7, 10, 50), step(1, 20, 15, 95), step(2, 20, 110, 60)];
    let trace = read_bytes(file_of(&events.each_ref().map(String::as_str)).as_bytes()).unwrap();
    let steps: Vec<_> = trace.steps.iter().map(|step| (step.number, step.begin.0, step.end.0)).collect();
    assert_eq!(steps, [(1, 10_000, 100_000), (2, 100_000, 170_000)]);
    assert!(trace.warnings[0].contains("on the device only"), "{:?}", trace.warnings);
}

#[test]
fn events_out_of_order_are_put_in_order() {
    let trace = read_clean(&file_of(&[&operator("late", "50", "1"), &operator("early", "2", "1")]));
    assert_eq!(
        slices(&trace),
        [(Kind::Operator, "early", 2000, 3000), (Kind::Operator, "late", 50_000, 51_000)]
    );
}

#[test]
fn a_missing_or_impossible_duration_counts_as_zero_with_a_warning() {
    let missing = r#"{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":5}"#;
    let events =
        [missing, &operator("b", "6", "-1"), &operator("c", "7", "NaN"), &operator("d", "8", "1e300")];
    let trace = read_bytes(file_of(&events).as_bytes()).unwrap();
    assert!(trace.slices.iter().all(|slice| slice.begin == slice.end), "{:?}", trace.slices);
    assert_eq!(trace.slices.len(), 4);
    assert_eq!(trace.warnings, ["4 events have no valid duration: treated as 0"]);
}

#[test]
fn an_event_without_a_time_is_skipped_with_a_warning() {
    let events =
        [r#"{"ph":"X","name":"a"}"#, "null", "[1]", &operator("b", "NaN", "1"), &operator("c", "1", "1")];
    let trace = read_bytes(file_of(&events).as_bytes()).unwrap();
    assert_eq!(slices(&trace), [(Kind::Operator, "c", 1000, 2000)]);
    assert_eq!(trace.warnings, ["4 events have no valid time: skipped"]);
}

#[test]
fn negative_moments_move_a_clock_of_its_own() {
    let trace = read_clean(&file_of(&[&operator("a", "-5.5", "2"), &operator("b", "3", "1")]));
    assert_eq!(slices(&trace), [(Kind::Operator, "a", 0, 2000), (Kind::Operator, "b", 8500, 9500)]);
    assert_eq!(trace.clock, Clock::Own);
}

#[test]
fn one_moment_off_the_clock_does_not_move_the_others() {
    let base = "\"baseTimeNanoseconds\": 1719853884000000000,";
    let events = [operator("a", "-2000000000000000", "2"), operator("b", "3", "1")].join(",");
    let trace = read_bytes(format!("{{{base}\"traceEvents\":[{events}]}}").as_bytes()).unwrap();
    assert_eq!(slices(&trace), [(Kind::Operator, "b", 1_719_853_884_000_003_000, 1_719_853_884_000_004_000)]);
    assert_eq!(trace.warnings, ["1 event has no valid time: skipped"]);
}

#[test]
fn traces_are_recognised_by_what_they_say() {
    assert!(recognise(GPU.as_bytes()));
    assert!(recognise(&GPU.as_bytes()[..200]), "a head is enough");
    assert!(recognise(br#"{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a"}]}"#));
    assert!(recognise(br#" [{"ph":"X","cat": "kernel","name":"a","args":{"External id": 1}}]"#));
    // A Horovod timeline, another program's trace, a run log, and things that are no JSON.
    assert!(!recognise(br#"[{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "grad"}}"#));
    assert!(!recognise(br#"{"traceEvents":[{"ph":"X","name":"a"}]}"#));
    assert!(!recognise(br#"{"begin":{"version":1}}"#));
    assert!(!recognise(b"schemaVersion"));
    assert!(!recognise(b""));
    assert!(!recognise(&[0x1f, 0x8b, 0]));
}

#[test]
fn bytes_of_work_on_the_host_are_not_copies() {
    let call = r#"{"ph":"X","cat":"cuda_runtime","name":"cudaMalloc","pid":1,"tid":1,"ts":5,"dur":1,"args":{"bytes":512}}"#;
    assert_eq!(read_clean(&file_of(&[call])).slices[0].bytes, None);
    let fill = call.replace("cuda_runtime", "gpu_memset");
    assert_eq!(read_clean(&file_of(&[&fill])).slices[0].bytes, Some(Bytes(512)));
}

#[test]
fn work_of_a_kind_that_is_not_known_is_named_and_is_no_idle_time() {
    let place = r#""pid":1,"tid":1,"ts":5,"dur":9"#;
    let unknown = format!(r#"{{"ph":"X","cat":"mtia_ccp_events","name":"a",{place}}}"#);
    let call = format!(r#"{{"ph":"X","cat":"mtia_runtime","name":"b",{place}}}"#);
    let exchange = format!(r#"{{"ph":"X","cat":"cpu_op","name":"c10d::barrier",{place}}}"#);
    let trace = read_bytes(file_of(&[&unknown, &call, &exchange]).as_bytes()).unwrap();
    assert_eq!(trace.slices.iter().map(|slice| slice.kind).collect::<Vec<_>>(), [Kind::Call, Kind::Operator]);
    assert!(trace.unread && trace.collectives.is_empty(), "how long a call took says nothing of the device");
    let profiler = unknown.replace("mtia_ccp_events", "cuda_profiler_range");
    let profiled = read_bytes(file_of(&[&profiler]).as_bytes()).expect("a trace");
    assert!(profiled.unread, "what CUPTI's profiler measures may be work of a device");
    assert!(trace.warnings[0].contains("not read (1 mtia_ccp_events)"), "{:?}", trace.warnings);
}
