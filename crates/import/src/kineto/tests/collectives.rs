//! One collective shows in several places; it counts once, where the data moves.

use paceline_record::{Bytes, Phase};

use super::{file_of, read_bytes, read_clean};
use crate::ranks::{Told, join};
use crate::trace::{Kind, Trace};

fn event(category: &str, name: &str, span: (u32, u32), args: &str) -> String {
    let (begin, end) = span;
    let place = if category == "kernel" { r#""pid":0,"tid":40"# } else { r#""pid":9,"tid":9"# };
    let duration = end - begin;
    format!(
        r#"{{"ph":"X","cat":"{category}","name":"{name}",{place},"ts":{begin},"dur":{duration},"args":{{{args}}}}}"#
    )
}

const ARGS: &str = r#""Collective name":"_allgather_base","In msg nelems":1000,"dtype":"BFloat16","Group size":2,"Process Group Name":"3","Seq":17"#;

/// Operation, begin, bytes, group and sequence.
type Shown<'a> = (&'a str, u64, Option<Bytes>, Option<&'a str>, Option<u64>);

fn collectives(trace: &Trace) -> Vec<Shown<'_>> {
    let show = |collective: &crate::trace::Collective| {
        let slice = &trace.slices[collective.slice];
        assert_eq!(slice.kind, Kind::Collective);
        let group = collective.group.map(|group| trace.names.text(group));
        (trace.names.text(collective.operation), slice.begin.0, slice.bytes, group, collective.sequence)
    };
    let marked = trace.slices.iter().filter(|slice| slice.kind == Kind::Collective).count();
    assert_eq!(marked, trace.collectives.len(), "every marked slice has its collective");
    trace.collectives.iter().map(show).collect()
}

#[test]
fn kernels_of_old_and_new_names_are_the_collectives_of_a_device() {
    let events = [
        event("cpu_op", "c10d::_allgather_base_", (1, 9), ""),
        event("cpu_op", "record_param_comms", (2, 8), ARGS),
        event("user_annotation", "nccl:_all_gather_base", (3, 7), ""),
        event("gpu_user_annotation", "nccl:_all_gather_base", (20, 30), ""),
        event("kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", (20, 30), ARGS),
        event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)", (40, 50), ""),
        event("kernel", "void gather_rows<nccl>(float*)", (60, 70), ""),
    ];
    let trace = read_clean(&file_of(&events.each_ref().map(String::as_str)));
    let expected = [
        ("all_gather", 20_000, Some(Bytes(2000)), Some("3"), Some(17)),
        ("all_reduce", 40_000, None, None, None),
    ];
    assert_eq!(collectives(&trace), expected);
    let elsewhere = trace.slices.iter().filter(|slice| slice.kind != Kind::Collective);
    assert!(elsewhere.clone().all(|slice| slice.bytes.is_none()), "what the call knows is not moved twice");
}

#[test]
fn a_gloo_transfer_inside_its_call_counts_once_and_takes_over_what_the_call_knows() {
    let events = [
        event("cpu_op", "c10d::allreduce_", (1, 19), ""),
        event("cpu_op", "record_param_comms", (2, 18), ARGS),
        event("user_annotation", "gloo:all_reduce", (3, 17), ""),
        event("user_annotation", "gloo:all_reduce", (4, 16), ""),
        event(
            "user_annotation",
            "gloo:broadcast",
            (30, 40),
            r#""Input Dims":[[10,2]],"Input type":["float"]"#,
        ),
    ];
    let trace = read_clean(&file_of(&events.each_ref().map(String::as_str)));
    let expected = [
        ("all_reduce", 3000, Some(Bytes(2000)), Some("3"), Some(17)),
        ("broadcast", 30_000, Some(Bytes(80)), None, None),
    ];
    assert_eq!(collectives(&trace), expected);
}

#[test]
fn calls_count_only_where_nothing_else_shows_the_transfer() {
    let call = event("cpu_op", "c10d::allreduce_", (1, 9), "");
    let arguments = event("cpu_op", "record_param_comms", (2, 8), ARGS);
    let wait = event("cpu_op", "record_param_comms", (10, 12), r#""Collective name":"wait""#);
    let with = |events: &[&str]| read_bytes(file_of(events).as_bytes()).unwrap();
    assert_eq!(collectives(&with(&[&call]))[0].0, "all_reduce");
    let known = with(&[&call, &arguments, &wait]);
    assert_eq!(collectives(&known), [("all_gather", 2000, Some(Bytes(2000)), Some("3"), Some(17))]);
    // NCCL is asynchronous: how long its call took says nothing of the transfer.
    let launch = event("user_annotation", "nccl:all_reduce", (3, 7), "");
    let launched = with(&[&call, &arguments, &launch]);
    assert_eq!(collectives(&launched), []);
    assert!(launched.warnings[0].contains("their kernels are not in the trace"), "{:?}", launched.warnings);
    let backend = format!(r#"{{"distributedInfo":{{"backend":"nccl"}},"traceEvents":[{call},{arguments}]}}"#);
    assert_eq!(collectives(&read_bytes(backend.as_bytes()).unwrap()), []);
}

#[test]
fn an_event_off_the_clock_leaves_collectives_in_their_place() {
    let kernel = |begin, args: &str| {
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", (begin, begin + 5), args)
    };
    let far = kernel(10, "").replace(r#""ts":10"#, r#""ts":-2000000000000000"#);
    let events = [far, kernel(30, r#""Seq":2"#), kernel(20, r#""Seq":1"#)].join(",");
    let text = format!(r#"{{"baseTimeNanoseconds":1719853884000000000,"traceEvents":[{events}]}}"#);
    let trace = read_bytes(text.as_bytes()).unwrap();
    let seen: Vec<_> = collectives(&trace).into_iter().map(|(_, _, _, _, number)| number).collect();
    assert_eq!(seen, [Some(1), Some(2)]);
}

#[test]
fn a_transfer_of_the_host_is_not_all_where_the_kernels_that_were_launched_are_not_shown() {
    let events = [
        event("user_annotation", "hccl:all_gather", (1, 2), ""),
        event("user_annotation", "gloo:barrier", (3, 9), ""),
        event("mtia_ccp_events", "a", (20, 90), ""),
        event("cpu_op", "aten::mm", (10, 12), ""),
    ];
    let trace = read_bytes(file_of(&events.each_ref().map(String::as_str)).as_bytes()).expect("a trace");
    assert!(trace.unread && trace.collectives.is_empty());
    assert!(trace.warnings.iter().any(|note| note.contains("their time is unknown")), "{:?}", trace.warnings);
    let run = join(vec![trace], &Told::default()).expect("one rank");
    assert!(!run.origin().knows(Phase::CommWait));
}
