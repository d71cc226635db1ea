//! Small profiles, encoded here.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::super::profile;
use super::message::{Entry, Event, Label, Stat};
use super::*;

#[derive(Clone, PartialEq, Message)]
struct SpaceMessage {
    #[prost(message, repeated, tag = "1")]
    planes: Vec<PlaneMessage>,
    #[prost(string, repeated, tag = "4")]
    hosts: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct PlaneMessage {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    lines: Vec<LineMessage>,
    #[prost(message, repeated, tag = "4")]
    events: Vec<Entry>,
    #[prost(message, repeated, tag = "5")]
    words: Vec<Entry>,
    #[prost(message, repeated, tag = "6")]
    stats: Vec<Stat>,
}

#[derive(Clone, PartialEq, Message)]
struct LineMessage {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(int64, tag = "3")]
    begin_ns: i64,
    #[prost(message, repeated, tag = "4")]
    events: Vec<Event>,
}

/// A plane whose tables grow with what is put on its lines.
fn plane(name: &str) -> PlaneMessage {
    PlaneMessage { name: name.into(), ..PlaneMessage::default() }
}

fn enter(table: &mut Vec<Entry>, name: &str, short: &str) -> i64 {
    let label = Label { name: name.into(), short: short.into() };
    let known = table.iter().find(|entry| entry.value.as_ref() == Some(&label));
    if let Some(entry) = known {
        return entry.key;
    }
    let key = table.len() as i64 + 1;
    table.push(Entry { key, value: Some(label) });
    key
}

impl PlaneMessage {
    fn line(mut self, name: &str) -> Self {
        self.lines.push(LineMessage { name: name.into(), begin_ns: 1000, ..LineMessage::default() });
        self
    }

    /// An event on the last line, from and to microseconds after its time.
    fn event(self, name: &str, from: i64, to: i64, stats: &[(&str, u64)]) -> Self {
        self.labelled((name, ""), from, to, stats)
    }

    fn labelled(mut self, label: (&str, &str), from: i64, to: i64, stats: &[(&str, u64)]) -> Self {
        let stat = |(name, value): &(&str, u64)| Stat {
            what: enter(&mut self.words, name, ""),
            signed: Some(*value as i64),
            ..Stat::default()
        };
        let stats = stats.iter().map(stat).collect();
        let what = enter(&mut self.events, label.0, label.1);
        let (offset_ps, duration_ps) = (Some(from * 1_000_000), (to - from) * 1_000_000);
        let event = Event { what, offset_ps, duration_ps, stats, occurrences: None };
        self.lines.last_mut().expect("a line").events.push(event);
        self
    }

    /// Gives the last event a text that the plane's words hold.
    fn text(mut self, name: &str, text: &str) -> Self {
        let (what, word) = (enter(&mut self.words, name, ""), enter(&mut self.words, text, ""));
        let stat = Stat { what, word: Some(word as u64), ..Stat::default() };
        let line = self.lines.last_mut().expect("a line");
        line.events.last_mut().expect("an event").stats.push(stat);
        self
    }
}

fn encode(planes: Vec<PlaneMessage>) -> Vec<u8> {
    SpaceMessage { planes, hosts: vec!["node7".into()] }.encode_to_vec()
}

fn read_all(bytes: &[u8]) -> Result<Vec<Trace>, ImportError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    read(file.path())
}

/// The trace of the first device.
fn read_bytes(bytes: &[u8]) -> Result<Trace, ImportError> {
    read_all(bytes).map(|mut traces| traces.remove(0))
}

/// Names, kinds, begins and ends in microseconds, of what devices did.
fn work(trace: &Trace) -> Vec<(&str, Kind, u64, u64)> {
    let (first, _) = trace.extent().unwrap();
    let at = |moment: Nanos| moment.since(first).0 / 1000;
    let on_device = |slice: &&Slice| trace.tracks[slice.track as usize].device.is_some();
    let shown = trace.slices.iter().filter(on_device);
    shown.map(|one| (trace.names.text(one.name), one.kind, at(one.begin), at(one.end))).collect()
}

fn gpu() -> Vec<PlaneMessage> {
    let mut environment = plane("Task Environment");
    let what = enter(&mut environment.words, "profile_start_time", "");
    environment.stats.push(Stat { what, unsigned: Some(1_700_000_000_000_000_000), ..Stat::default() });
    vec![
        plane("/device:GPU:0")
            .line("Stream #7(Compute)")
            .event("gemm", 10, 30, &[("correlation_id", 5)])
            .event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 30, 40, &[])
            .line("Stream #8(MemcpyH2D,Memset)")
            .event("MemcpyH2D", 2, 8, &[])
            .text("memcpy_details", "kind_src:pageable kind_dst:device size:4096 dest:0 async:1")
            .event("Memset 1", 8, 9, &[])
            .line("XLA Ops")
            .event("gemm", 10, 30, &[]),
        plane("/host:CPU")
            .line("python")
            .event("train", 0, 25, &[("step_num", 3)])
            .event("train", 25, 50, &[("step_num", 4)])
            .event("$train.py:7 step", 0, 50, &[])
            .line("Host Threads/9")
            .event("cuLaunchKernel", 4, 6, &[("correlation_id", 5)]),
        environment,
    ]
}

#[test]
fn a_gpu_is_read_by_its_streams_with_launches_copies_and_steps() {
    let trace = read_bytes(&encode(gpu())).unwrap();
    let collective = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)";
    assert_eq!(
        work(&trace),
        [
            ("MemcpyH2D", Kind::CopyIn, 2, 8),
            ("Memset 1", Kind::Fill, 8, 9),
            ("gemm", Kind::Compute, 10, 30),
            (collective, Kind::Collective, 30, 40),
        ]
    );
    assert_eq!(
        trace.slices.iter().find(|slice| slice.kind == Kind::CopyIn).unwrap().bytes,
        Some(Bytes(4096))
    );
    assert_eq!(trace.names.text(trace.collectives[0].operation), "all_reduce");
    let correlated = |kind| trace.slices.iter().find(|slice| slice.kind == kind).unwrap().correlation;
    assert_eq!((correlated(Kind::Compute), correlated(Kind::Call)), (5, 5));
    let steps: Vec<u64> = trace.steps.iter().map(|step| step.number).collect();
    assert_eq!((steps, trace.clock, trace.host.as_deref()), (vec![3, 4], Clock::Epoch, Some("node7")));
    assert_eq!(trace.slices[0].begin, Nanos(1_700_000_000_000_001_000));
    assert_eq!(trace.warnings, Vec::<String>::new());
}

/// As ROCm's profilers write it: calls on lines of their own, no name of the device.
#[test]
fn copies_of_an_amd_gpu_are_told_from_computation_and_by_where_they_go() {
    let planes = vec![
        plane("/device:GPU:1")
            .line("Stream #8(MemcpyOther)")
            .event("CopyDeviceToDevice", 0, 5, &[])
            .text("memcpy_details", "kind:Unknown size:655360 dest:2 async:1")
            .event("CopyDeviceToDevice", 5, 9, &[])
            .text("memcpy_details", "kind:Unknown size:64 dest:1 async:1")
            .event("CopyHostToDevice", 10, 12, &[])
            .text("memcpy_details", "kind:Unknown size:64 dest:1 async:1")
            .line("Stream #9(Kernel)")
            .event("__amd_rocclr_copyBuffer.kd", 20, 22, &[("correlation_id", 3)])
            .event("__amd_rocclr_fillBufferAligned.kd", 22, 23, &[])
            .event("Cijk_Ailk.kd", 90, 100, &[("correlation_id", 4)]),
        plane("/host:CPU")
            .line("py_xla_execute/1")
            .event("Build buffer allocations", 0, 80, &[])
            .line("Host Threads/9")
            .event("hipMemcpyDtoDAsync", 16, 18, &[("correlation_id", 3)])
            .event("hipModuleLaunchKernel", 84, 86, &[("correlation_id", 4)]),
    ];
    let trace = read_bytes(&encode(planes)).unwrap();
    let kinds: Vec<Kind> = work(&trace).iter().map(|(_, kind, ..)| *kind).collect();
    use Kind::{Collective, Compute, CopyDevice, CopyIn, Fill};
    assert_eq!(kinds, [Collective, CopyDevice, CopyIn, CopyDevice, Fill, Compute]);
    assert_eq!(trace.names.text(trace.collectives[0].operation), "peer_copy");
    assert_eq!(trace.slices[trace.collectives[0].slice].bytes, Some(Bytes(655_360)));
    let screen = profile::render(&profile::summarise(&trace, &profile::Cut::default()).unwrap());
    assert!(!screen.contains("no thread that launches work"), "{screen}");
    assert!(screen.contains("device 1: busy"), "{screen}");
}

fn tpu(name: &str) -> PlaneMessage {
    let start = "%all-reduce-start.1 = (f32[8]{0:T(8,128)}, f32[8]{0}) all-reduce-start(f32[8]{0} %p)";
    let done = "%all-reduce-done.9 = f32[8]{0} all-reduce-done((f32[8]{0}, f32[8]{0}) %all-reduce-start.1)";
    plane(name)
        .line("Steps")
        .event("12", 0, 50, &[])
        .event("13", 50, 90, &[])
        .line("XLA Ops")
        .labelled(("%while.1 = f32[8]{0} while(f32[8]{0} %p)", "while.1"), 0, 20, &[])
        .labelled(("%fusion.2 = f32[8]{0} fusion(f32[8]{0} %p)", "fusion.2"), 0, 12, &[])
        .labelled(("%psum.4 = f32[8]{0} all-reduce(f32[8]{0} %p)", "psum.4"), 12, 19, &[])
        .labelled((start, "all-reduce-start.1"), 20, 21, &[])
        .labelled(("%fusion.3 = f32[8]{0} fusion(f32[8]{0} %p)", "fusion.3"), 21, 30, &[])
        .labelled((done, "all-reduce-done.9"), 30, 34, &[])
        .labelled(("%infeed.1 = (f32[8]{0}, token[]) infeed(token[] %t)", "infeed.1"), 34, 40, &[])
        .line("Framework Ops")
        .event("MatMul", 0, 40, &[])
}

#[test]
fn a_tpu_is_read_by_its_operations_and_a_loop_counts_by_what_is_in_it() {
    let trace = read_bytes(&encode(vec![tpu("/device:TPU:0")])).unwrap();
    let mut busy = work(&trace);
    busy.retain(|(_, kind, ..)| kind.is_device_work());
    assert_eq!(
        busy,
        [
            ("fusion.2", Kind::Compute, 0, 12),
            ("psum.4", Kind::Collective, 12, 19),
            // From its start to its end, beside a fusion.
            ("all-reduce-done.9", Kind::Collective, 20, 34),
            ("fusion.3", Kind::Compute, 21, 30),
            ("infeed.1", Kind::CopyIn, 34, 40),
        ]
    );
    assert!(trace.collectives.iter().all(|one| trace.names.text(one.operation) == "all_reduce"));
    assert_eq!(trace.steps.iter().map(|step| step.number).collect::<Vec<_>>(), [12, 13]);
    assert!(trace.warnings.is_empty(), "{:?}", trace.warnings);
}

#[test]
fn nothing_is_said_of_copies_that_a_profile_does_not_show() {
    let host = plane("/host:CPU").line("worker").event("dot.1", 0, 9, &[]).text("hlo_op", "dot.1");
    let trace = read_bytes(&encode(vec![host])).unwrap();
    let screen = profile::render(&profile::summarise(&trace, &profile::Cut::default()).unwrap());
    assert!(screen.contains("computation dominates\n"), "{screen}");
}

#[test]
fn transfers_on_a_line_of_their_own_count_once() {
    let with_line = tpu("/device:TPU:0").line("Async XLA Ops").event("all-reduce-start.1", 20, 34, &[]);
    let trace = read_bytes(&encode(vec![with_line])).unwrap();
    let collectives = work(&trace).into_iter().filter(|(_, kind, ..)| *kind == Kind::Collective);
    assert_eq!(collectives.map(|(name, ..)| name).collect::<Vec<_>>(), ["psum.4", "all-reduce-start.1"]);
}

#[test]
fn an_end_without_its_start_is_told() {
    let done = plane("/device:TPU:0").line("XLA Ops").event("all-gather-done.1", 0, 5, &[]);
    let trace = read_bytes(&encode(vec![done])).unwrap();
    assert_eq!(trace.collectives.len(), 1);
    assert!(trace.warnings[0].contains("only the begin or the end is known"), "{:?}", trace.warnings);
}

#[test]
fn each_device_of_a_host_is_a_rank() {
    let other = tpu("/device:TPU:1").line("Async XLA Ops").event("all-reduce-start.1", 20, 34, &[]);
    let ranks = read_all(&encode(vec![tpu("/device:TPU:0"), other])).unwrap();
    assert_eq!(ranks.len(), 2);
    for (device, rank) in ranks.iter().enumerate() {
        assert_eq!(rank.collectives.len(), 2);
        let collectives = rank.collectives.iter().map(|one| rank.slices[one.slice].kind);
        assert!(collectives.clone().all(|kind| kind == Kind::Collective));
        let devices: std::collections::BTreeSet<_> =
            rank.tracks.iter().filter_map(|track| track.device).collect();
        assert_eq!(devices.into_iter().collect::<Vec<_>>(), [device as u32]);
        assert_eq!(rank.steps.len(), 2);
    }
}

#[test]
fn without_another_device_the_cpu_is_one_and_programs_tell_what_names_hide() {
    let host = plane("/host:CPU")
        .line("worker")
        .event("psum.7", 0, 10, &[("device_ordinal", 1)])
        .text("hlo_op", "psum.7")
        .event("dot.1", 10, 30, &[("device_ordinal", 0)])
        .text("hlo_op", "dot.1");
    let mut bytes = encode(vec![host]);
    // The table of events with a program in it, which the structures above do not keep.
    let within = |tag: u8, bytes: &[u8]| [&[tag << 3 | 2, bytes.len() as u8], bytes].concat();
    let instruction = [within(1, b"psum.7"), within(2, b"all-reduce")].concat();
    let program = within(1, &within(3, &within(2, &instruction)));
    let table = within(4, &within(2, &within(5, &within(6, &program))));
    bytes.extend(within(1, &[within(2, b"/host:metadata"), table].concat()));
    let ranks = read_all(&bytes).unwrap();
    let work: Vec<_> = ranks.iter().map(work).collect();
    assert_eq!(work, [[("dot.1", Kind::Compute, 0, 20)], [("psum.7", Kind::Collective, 0, 10)]]);
}

#[test]
fn operators_of_tensorflow_are_operators_and_their_exchanges_collectives() {
    let host = plane("/host:CPU")
        .line("tf_Compute/1")
        .labelled(("model/dense/MatMul:MatMul", "MatMul"), 0, 10, &[])
        .labelled(("reduce/c:CollectiveReduceV2", "CollectiveReduceV2"), 10, 15, &[])
        .labelled(("Iterator::Root::Map", "Iterator::Map"), 15, 16, &[]);
    let trace = read_bytes(&encode(vec![host])).unwrap();
    let kinds: Vec<Kind> = trace.slices.iter().map(|slice| slice.kind).collect();
    assert_eq!(kinds, [Kind::Operator, Kind::Collective, Kind::Range]);
}

#[test]
fn a_profile_is_recognised_packed_or_not_and_other_files_are_not() {
    let bytes = encode(gpu());
    assert!(recognise(&bytes) && recognise(&bytes[..40]));
    for other in [&b""[..], b"\n", b"\n\x05hello", b"{\"traceEvents\":[]}", &[0x0a; 64], &[0xff; 64]] {
        assert!(!recognise(other), "{other:?}");
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&bytes).unwrap();
    let packed = packed.finish().unwrap();
    assert_eq!(read_bytes(&packed).unwrap().slices, read_bytes(&bytes).unwrap().slices);
    let torn = read_bytes(&packed[..packed.len() - 9]).unwrap();
    assert!(torn.warnings.iter().any(|warning| warning.contains("truncated")), "{:?}", torn.warnings);
}

#[test]
fn a_file_torn_anywhere_gives_one_error_or_a_note() {
    let bytes = encode(gpu());
    let ends: Vec<usize> = (1..=3).map(|planes| encode(gpu()[..planes].to_vec()).len() - 7).collect();
    for length in 0..bytes.len() {
        match read_bytes(&bytes[..length]) {
            Err(error) => assert!(length < ends[0], "{length}: {error}"),
            Ok(trace) => {
                let told = trace.warnings.iter().any(|warning| warning.contains("truncated"));
                assert_eq!(told, !ends.contains(&length), "{length}: {:?}", trace.warnings);
            }
        }
    }
}

#[test]
fn hostile_numbers_are_left_out_or_refused() {
    let mut odd = gpu();
    odd[0].lines[0].events[0].duration_ps = -1;
    odd[0].lines[0].events[1].offset_ps = Some(i64::MIN);
    odd[0].lines[0].events[1].duration_ps = i64::MIN;
    odd[0].lines[1].begin_ns = i64::MAX;
    odd[0].lines[2].events.clear();
    odd[1].lines[1].events[0].occurrences = Some(9);
    let trace = read_bytes(&encode(odd)).unwrap();
    assert!(work(&trace).is_empty());
    let told = trace.warnings.join("; ");
    assert!(told.contains("5 events without a valid time"), "{told}");
    let empty = encode(vec![plane("/host:CPU").line("python")]);
    assert!(read_bytes(&empty).unwrap_err().to_string().contains("no event has a duration"));
    for bytes in
        [&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..], &[0x0a], &[0xff; 30], b""]
    {
        assert!(read_bytes(bytes).is_err(), "{bytes:?}");
    }
}
