use paceline_record::Bytes;

use super::super::sqlite::tests::{lines, total, trace};
use super::*;
use crate::trace::Clock;

const BASE: i64 = 1_500_000_000_000_000_000;

/// A profile with every table that is read; moments are small and `@` stands for 2017.
fn profile(more: &str) -> String {
    let sql = "CREATE TABLE Version(version INTEGER); INSERT INTO Version VALUES (11);
         CREATE TABLE StringTable(_id_ INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT NOT NULL);
         INSERT INTO StringTable VALUES (1, '_Z5saxpyPdS_S_di'), (2, 'forward'), (3, 'Tesla V100'),
            (4, 'ncclAllReduceRingLLKernel_sum_f32'), (5, 'step 3');
         CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL(_id_ INTEGER PRIMARY KEY, start, end, completed, deviceId, contextId,
            streamId, correlationId, name);
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(_id_ INTEGER PRIMARY KEY, start, end, completed, deviceId, contextId, streamId,
            correlationId, name);
         INSERT INTO CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL VALUES (1, @+100, @+150, 0, 0, 1, 7, 11, 1), (2, @+160, @+260, 0, 0, 1, 8, 12, 4),
            (3, 0, 0, 0, 0, 1, 7, 13, 1);
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(copyKind, srcKind, dstKind, bytes, start, end, deviceId, contextId, streamId, correlationId);
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 1, 3, 4096, @+10, @+20, 0, 1, 7, 1), (2, 3, 2, 512, @+270, @+280, 0, 1, 7, 2),
            (8, 3, 3, 64, @+282, @+283, 0, 1, 7, 3);
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY2(copyKind, srcKind, dstKind, bytes, start, end, deviceId, contextId, streamId, correlationId);
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY2 VALUES (10, 3, 3, 128, @+284, @+286, 0, 1, 9, 4);
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET(value, start, end, deviceId, contextId, streamId, correlationId, bytes);
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (0, @+30, @+31, 0, 1, 7, 5, 256);
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(cbid, start, end, processId, threadId, correlationId, returnValue);
         INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (211, @+90, @+95, 42, -1594468608, 11, 0), (999, @+300, @+301, 42, 5, 20, 0);
         CREATE TABLE CUPTI_ACTIVITY_KIND_DRIVER(cbid, start, end, processId, threadId, correlationId, returnValue);
         INSERT INTO CUPTI_ACTIVITY_KIND_DRIVER VALUES (307, @+96, @+98, 42, -1594468608, 12, 0);
         CREATE TABLE CUPTI_ACTIVITY_KIND_MARKER(_id_ INTEGER PRIMARY KEY, flags, timestamp, id, objectKind, objectId BLOB, name, domain);
         INSERT INTO CUPTI_ACTIVITY_KIND_MARKER VALUES
            (1, 2, @+80, 1, 2, x'2A0000000057F6A000000000', 2, 0), (2, 2, @+85, 2, 2, x'2A0000000057F6A000000000', 5, 0),
            (3, 4, @+290, 2, 2, x'2A0000000057F6A000000000', 0, 0), (4, 4, @+295, 1, 2, x'2A0000000057F6A000000000', 0, 0),
            (5, 1, @+86, 3, 2, x'2A', 2, 0);
         CREATE TABLE CUPTI_ACTIVITY_KIND_DEVICE(id, name); INSERT INTO CUPTI_ACTIVITY_KIND_DEVICE VALUES (0, 3);";
    (sql.to_string() + more).replace('@', &BASE.to_string())
}

#[test]
fn every_table_is_read() {
    let trace = trace(&profile(""));
    assert_eq!(trace.clock, Clock::Epoch);
    let base = BASE.to_string();
    let short: Vec<String> = lines(&trace).iter().map(|line| line.replace(&base[..16], "")).collect();
    assert_eq!(
        short,
        [
            "CopyIn Memcpy HtoD 010..020",
            "Fill Memset 030..031",
            "Range forward 080..295",
            "Range step 3 085..290",
            "Call cudaLaunchKernel 090..095",
            "Call cuLaunchKernel 096..098",
            "Compute saxpy 100..150",
            "Collective ncclAllReduceRingLLKernel_sum_f32 160..260",
            "CopyOut Memcpy DtoH 270..280",
            "CopyDevice Memcpy DtoD 282..283",
            "Collective Memcpy PtoP 284..286",
            "Call runtime call 999 300..301",
        ]
    );
    let bytes: u64 = trace.slices.iter().filter_map(|slice| slice.bytes).map(|Bytes(bytes)| bytes).sum();
    assert_eq!(bytes, 4096 + 512 + 64 + 128 + 256);
    assert_eq!(trace.devices, ["Tesla V100"]);
    assert_eq!(trace.names.text(trace.collectives[0].operation), "all_reduce");
    assert_eq!(trace.steps[0].number, 3);
    assert_eq!(trace.warnings, ["1 events have no begin or no end and were skipped"]);
}

#[test]
fn kernels_are_tied_to_calls_of_the_runtime_and_of_the_driver() {
    let trace = trace(&profile(""));
    for (kernel, call) in
        [("saxpy", "cudaLaunchKernel"), ("ncclAllReduceRingLLKernel_sum_f32", "cuLaunchKernel")]
    {
        let named =
            |name: &str| trace.slices.iter().find(|slice| trace.names.text(slice.name) == name).unwrap();
        assert_eq!(named(kernel).correlation, named(call).correlation);
    }
}

#[test]
fn calls_and_markers_of_a_thread_share_a_track_however_its_number_is_written() {
    let trace = trace(&profile(""));
    let of =
        |name: &str| trace.slices.iter().find(|slice| trace.names.text(slice.name) == name).unwrap().track;
    assert_eq!(of("forward"), of("cudaLaunchKernel"));
    assert_eq!(trace.tracks[of("forward") as usize].name, format!("thread {}", 2_700_498_688_u32));
}

#[test]
fn serialised_kernels_are_kernels() {
    let trace = trace(&profile(
        "DROP TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, @+100, @+150, 0, 0, 1, 7, 11, 1);",
    ));
    assert_eq!(total(&trace, Kind::Compute), (1, 50));
}

#[test]
fn missing_tables_are_named() {
    let trace = trace(&profile(
        "DELETE FROM StringTable WHERE _id_ = 1; DELETE FROM CUPTI_ACTIVITY_KIND_MARKER WHERE flags = 4;
         UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET processId = 43 WHERE cbid = 999; DROP TABLE CUPTI_ACTIVITY_KIND_DEVICE;
         UPDATE Version SET version = 9999;",
    ));
    assert_eq!(trace.devices, [""; 0]);
    assert!(trace.steps.is_empty(), "a step without an end is none");
    for said in ["2 ranges were never closed", "1 events have names", "calls of 2 processes", "version 9999"]
    {
        assert!(trace.warnings.iter().any(|warning| warning.contains(said)), "{said}: {:?}", trace.warnings);
    }
}
