use std::path::PathBuf;

use paceline_record::{Bytes, Nanos, Phase, Rank};

use super::super::profile;
use super::super::ranks::{Told, join};
use super::super::split::Part;
use super::super::sqlite::read;
use super::super::sqlite::tests::{file, lines, total, trace};
use super::*;
use crate::trace::Clock;

/// Process 3, its thread 7, and the process alone.
const IDS: (i64, i64) = ((3 << 24) + 7, 3 << 24);

fn with_ids(sql: &str) -> String {
    sql.replace("TID", &IDS.0.to_string()).replace("PID", &IDS.1.to_string())
}

/// Until 2021: no table of export facts, no mangled names, no start time.
fn first() -> String {
    with_ids(
        "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT NOT NULL);
         INSERT INTO StringIds VALUES (1, 'void gemm<float>(float *)'), (2, 'gemm'), (3, 'cudaLaunchKernel_v7000');
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INT NOT NULL, end INT NOT NULL, deviceId INT, contextId INT, streamId INT,
            correlationId INT, globalPid INT, demangledName INT NOT NULL, shortName INT NOT NULL);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 150, 0, 1, 7, 11, PID, 1, 2), (160, 200, 0, 1, 13, 12, PID, 99, 2);
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT);
         INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (90, 95, 0, TID, 11, 3), (96, 99, 0, TID, 12, 3);
         CREATE TABLE NVTX_EVENTS(start INT NOT NULL, end INT, eventType INT, rangeId INT, text TEXT, globalTid INT);
         INSERT INTO NVTX_EVENTS VALUES (80, 210, 59, NULL, 'train_step', TID), (85, NULL, 60, 4, 'forever', TID),
            (86, NULL, 34, NULL, 'a mark', TID);",
    )
}

#[test]
fn the_first_generation_is_read() {
    let trace = trace(&first());
    assert_eq!(trace.clock, Clock::Own);
    assert_eq!(
        lines(&trace),
        [
            "Range train_step 80..210",
            "Range forever 85..210",
            "Call cudaLaunchKernel 90..95",
            "Call cudaLaunchKernel 96..99",
            "Compute void gemm<float>(float *) 100..150",
            "Compute gemm 160..200",
        ]
    );
    let tracks: Vec<_> = trace.tracks.iter().map(|track| (track.name.as_str(), track.device)).collect();
    assert_eq!(tracks, [("thread 7", None), ("stream 7", Some(0)), ("stream 13", Some(0))]);
    assert_eq!(trace.slices[4].correlation, trace.slices[2].correlation);
    assert_eq!(trace.devices, [""; 0]);
    let steps: Vec<_> = trace.steps.iter().map(|step| (step.number, step.begin, step.end)).collect();
    assert_eq!(steps, [(0, Nanos(80), Nanos(210))]);
    assert!(trace.warnings[0].contains("1 ranges were never closed"), "{:?}", trace.warnings);
}

/// 2.x: `EXPORT_META_DATA`, mangled names, texts in the string table, MPI as ranges of a domain.
#[test]
fn the_second_generation_is_read() {
    let trace = trace(&with_ids(
        "CREATE TABLE EXPORT_META_DATA(name TEXT, value TEXT);
         INSERT INTO EXPORT_META_DATA VALUES ('EXPORT_SCHEMA_VERSION', '2.9.1');
         CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT NOT NULL);
         INSERT INTO StringIds VALUES (1, '_Z5saxpyPdS_S_di'), (2, 'ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm *)'),
            (3, 'MPI_Bcast'), (4, 'MPI_Send'), (5, 'iteration 41');
         CREATE TABLE TARGET_INFO_SESSION_START_TIME(utcEpochNs INTEGER, utcTime TEXT);
         INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1651514235128046600, '2022-05-02T17:57:15');
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName,
            shortName, mangledName);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 150, 1, 1, 7, 11, PID, 99, 99, 1), (-50, 200, 1, 1, 8, 12, PID, 2, 2, 2);
         CREATE TABLE NVTX_EVENTS(start, end, eventType, rangeId, text, globalTid, textId, domainId);
         INSERT INTO NVTX_EVENTS VALUES (1, NULL, 75, NULL, 'MPI', TID, NULL, 1), (2, NULL, 39, NULL, 'MPI Rank 5', TID, NULL, 0),
            (10, 20, 59, NULL, NULL, TID, 3, 1), (20, 25, 59, NULL, NULL, TID, 4, 1), (5, 205, 59, NULL, NULL, TID, 5, 0);
         CREATE TABLE TARGET_INFO_GPU(id, name, cuDevice, smCount);
         INSERT INTO TARGET_INFO_GPU VALUES (0, 'Other', 1, 10), (1, 'Tesla', 0, 80), (2, 'Graphics', 0, 0);
         CREATE TABLE TARGET_INFO_SYSTEM_ENV(name TEXT, value TEXT);
         INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'node7'),
            ('DeviceEnvironment', CAST(x'4D59524C414E4B3D3900504D495F52414E4B3D3500504D495F53495A453D3800' AS TEXT));",
    ));
    assert_eq!(trace.clock, Clock::Epoch);
    let base = 1_651_514_235_128_046_600_u64;
    let named = |kind: &str, begin: i64, end: i64| {
        format!("{kind} {}..{}", base.wrapping_add_signed(begin), base.wrapping_add_signed(end))
    };
    assert_eq!(
        lines(&trace),
        [
            named("Collective ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm *)", -50, 200),
            named("Range iteration 41", 5, 205),
            named("Collective MPI_Bcast", 10, 20),
            named("Collective MPI_Send", 20, 25),
            named("Compute saxpy", 100, 150),
        ]
    );
    let operations: Vec<_> = trace.collectives.iter().map(|one| trace.names.text(one.operation)).collect();
    assert_eq!(operations, ["all_reduce", "broadcast", "send"]);
    assert_eq!((trace.rank, trace.world, trace.host.as_deref()), (Some(Rank(5)), Some(8), Some("node7")));
    assert_eq!(trace.devices, ["Tesla", "Other"]);
    assert_eq!(trace.backend.as_deref(), Some("nccl"));
    assert_eq!(trace.steps[0].number, 41);
}

/// 3.x: `META_DATA_EXPORT`, enumerations, diagnostics, green contexts, MPI in tables of its own.
#[test]
fn the_third_generation_is_read() {
    let trace = trace(&with_ids(
        "CREATE TABLE META_DATA_EXPORT(name TEXT, value TEXT);
         CREATE TABLE DIAGNOSTIC_EVENT(timestamp, timestampType, source, severity, text TEXT, globalPid);
         INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 1, 1, 1, 'Process started', 0), (2, 1, 1, 3, 'Dropped\n events', 0),
            (3, 1, 1, 2, 'No CPU counters', 0), (3, 1, 1, 2, 'No CPU counters', 0);
         CREATE TABLE ENUM_DIAGNOSTIC_SEVERITY_LEVEL(id INTEGER PRIMARY KEY, name TEXT, label TEXT);
         INSERT INTO ENUM_DIAGNOSTIC_SEVERITY_LEVEL VALUES (1, 'Info', 'Info'), (2, 'Warning', 'Warning'), (3, 'Error', 'Error');
         CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT NOT NULL);
         INSERT INTO StringIds VALUES (1, 'ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)'), (2, 'MPI_Allreduce'),
            (3, 'MPI_Wait'), (4, 'MPI_Neighbor_allgather'), (5, 'MPI_Recv'), (6, 'MPI_Init');
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid,
            demangledName, shortName, mangledName, graphNodeId);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 150, 0, 1, NULL, 7, 11, PID, 1, 1, NULL, NULL);
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind,
            srcKind, dstKind);
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (10, 20, 0, 1, 7, 1, PID, 1000, 1, 0, 2), (20, 30, 0, 1, 7, 2, PID, 50, 2, 2, 1),
            (30, 40, 0, 1, 7, 3, PID, -1, 8, 2, 2), (40, 41, 0, 1, 7, 3, PID, 1, NULL, NULL, NULL),
            (42, 45, 0, 1, 7, 3, PID, 9, 10, 2, 2);
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET(start, end, deviceId, contextId, streamId, correlationId, globalPid, value, bytes);
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (50, 52, 0, 1, 7, 4, PID, 0, 64);
         CREATE TABLE MPI_RANKS(globalTid, rank); INSERT INTO MPI_RANKS VALUES (TID, 2);
         CREATE TABLE MPI_COLLECTIVES_EVENTS(start, end, globalTid, textId, commHandle, rootRank, size, recvSize, requestHandle);
         INSERT INTO MPI_COLLECTIVES_EVENTS VALUES (60, 70, TID, 2, 1, 0, 400, 400, 0), (70, 75, TID, 4, 1, 0, 4, 8, 0);
         CREATE TABLE MPI_START_WAIT_EVENTS(start, end, globalTid, textId, requestHandle);
         INSERT INTO MPI_START_WAIT_EVENTS VALUES (80, 90, TID, 3, 1), (80, 90, TID, 3, 2);
         CREATE TABLE MPI_P2P_EVENTS(start, end, globalTid, textId, size); INSERT INTO MPI_P2P_EVENTS VALUES (91, 95, TID, 5, 7);
         CREATE TABLE MPI_OTHER_EVENTS(start, end, globalTid, textId); INSERT INTO MPI_OTHER_EVENTS VALUES (1, 9, TID, 6);
         CREATE TABLE TARGET_INFO_CUDA_DEVICE(gpuId, cudaId, pid); INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (6, 0, 3);
         CREATE TABLE TARGET_INFO_GPU(id, name, cuDevice); INSERT INTO TARGET_INFO_GPU VALUES (0, 'A', 0), (6, 'B', 6);",
    ));
    assert_eq!(
        lines(&trace),
        [
            "Call MPI_Init 1..9",
            "CopyIn Memcpy HtoD 10..20",
            "CopyOut Memcpy DtoH 20..30",
            "CopyDevice Memcpy DtoD 30..40",
            "CopyDevice Memcpy unknown 40..41",
            "Collective Memcpy PtoP 42..45",
            "Fill Memset 50..52",
            "Collective MPI_Allreduce 60..70",
            "Collective MPI_Neighbor_allgather 70..75",
            "Collective MPI_Wait 80..90",
            "Collective MPI_Recv 91..95",
            "Collective ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>) 100..150",
        ]
    );
    let bytes: Vec<_> = trace.slices.iter().map(|slice| slice.bytes.map(|Bytes(bytes)| bytes)).collect();
    let expected =
        [None, Some(1000), Some(50), None, Some(1), Some(9), Some(64), Some(400), Some(8), None, Some(7)];
    assert_eq!(bytes[..11], expected);
    let operations: Vec<_> = trace.collectives.iter().map(|one| trace.names.text(one.operation)).collect();
    assert_eq!(operations, ["peer_copy", "all_reduce", "all_gather", "wait", "recv", "all_gather"]);
    assert_eq!((trace.rank, trace.devices.as_slice()), (Some(Rank(2)), ["B".to_string()].as_slice()));
    assert_eq!(
        trace.warnings,
        [
            "the profiler reported an error: Dropped events",
            "the profiler reported a warning: No CPU counters",
        ]
    );
}

#[test]
fn every_process_that_uses_a_device_is_a_trace() {
    let other = |process: i64| {
        format!("({}, {}, 0, 1, 7, 11, {}, 1, 2)", process * 10, process * 10 + 5, process << 24)
    };
    let sql = format!(
        "{} INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES {}, {};
         INSERT INTO NVTX_EVENTS VALUES (80, 90, 59, NULL, 'worker of a loader', {});
         CREATE TABLE MPI_RANKS(globalTid, rank); INSERT INTO MPI_RANKS VALUES ({}, 1), ({}, 0), ({}, 2);
         CREATE TABLE MPI_P2P_EVENTS(start, end, globalTid, textId);",
        first(),
        other(4),
        other(5),
        6 << 24,
        3 << 24,
        (4 << 24) + 9,
        5 << 24
    );
    let (_folder, path) = file(&sql);
    let traces = read(&path).unwrap();
    let found: Vec<_> = traces.iter().map(|trace| (trace.rank, total(trace, Kind::Compute))).collect();
    assert_eq!(found, [(Some(Rank(0)), (1, 5)), (Some(Rank(1)), (2, 90)), (Some(Rank(2)), (1, 5))]);
    let said =
        |trace: &Trace| trace.warnings.iter().any(|warning| warning.contains("process 6 uses no device"));
    assert!(said(&traces[0]) && !said(&traces[1]));
}

#[test]
fn devices_of_the_first_generation_have_names() {
    let trace = trace(&format!(
        "{} CREATE TABLE TARGET_INFO_CUDA_GPU(vmId, deviceId, name); INSERT INTO TARGET_INFO_CUDA_GPU VALUES (0, 0, 'Tesla P100');",
        first()
    ));
    assert_eq!(trace.devices, ["Tesla P100"]);
}

#[test]
fn times_before_the_capture_are_shifted_where_the_clock_is_unknown() {
    let trace =
        trace(&format!("{} UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -1000 WHERE start = 100;", first()));
    assert_eq!(trace.slices[0].begin, Nanos(0));
    assert_eq!(trace.extent(), Some((Nanos(0), Nanos(1210))));
}

/// What `peers/totals_sqlite.py` counts in the samples: kernels, fills, calls, ranges, MPI; copies with bytes.
struct Sample {
    file: &'static str,
    kernels: (usize, u64),
    fills: (usize, u64),
    calls: (usize, u64),
    ranges: (usize, u64),
    copies: [(usize, u64, u64); 2],
    device: &'static str,
}

const SAMPLES: [Sample; 5] = [
    Sample {
        file: "con_kernel_schema2.9.sqlite",
        kernels: (9, 271_711_594),
        fills: (1, 2560),
        calls: (71, 478_574_272),
        ranges: (0, 0),
        copies: [(5, 3_702_147, 40_160_000), (6, 4_364_129, 40_200_000)],
        device: "GeForce GTX 1060 with Max-Q Design",
    },
    Sample {
        file: "concurrent_1.sqlite",
        kernels: (12, 48_000_028),
        fills: (17, 33_342),
        calls: (184, 288_774_078),
        ranges: (76, 1_414_511_735),
        copies: [(15, 5_861_902, 44_160_000), (15, 6_234_346, 44_160_000)],
        device: "GeForce GTX 1060 with Max-Q Design",
    },
    Sample {
        file: "concurrent_2.sqlite",
        kernels: (12, 114_684_175),
        fills: (17, 31_008),
        calls: (184, 341_284_001),
        ranges: (76, 1_573_736_531),
        copies: [(15, 12_448_628, 88_320_000), (15, 12_797_360, 88_320_000)],
        device: "GeForce GTX 1060 with Max-Q Design",
    },
    Sample {
        file: "concurrent_4.sqlite",
        kernels: (12, 230_271_811),
        fills: (17, 48_958),
        calls: (184, 460_751_114),
        ranges: (76, 1_902_602_632),
        copies: [(15, 22_476_795, 176_640_000), (15, 22_528_059, 176_640_000)],
        device: "GeForce GTX 1060 with Max-Q Design",
    },
    Sample {
        file: "saxpy_mpi_rank0.sqlite",
        kernels: (5, 88_573_480),
        fills: (0, 0),
        // 95 of CUDA, and those that start and end MPI.
        calls: (95 + 2, 1_087_784_268 + 652_030_463),
        ranges: (5, 231_248),
        copies: [(10, 186_001_123, 2_621_440_000), (5, 98_698_477, 1_310_720_000)],
        device: "NVIDIA A100-SXM4-40GB",
    },
];

/// Where the samples are, if they are.
fn samples() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let places = ["../../../shared/samples", "../../../../shared/samples"];
    places.iter().map(|place| root.join(place)).find(|place| place.is_dir())
}

#[test]
fn real_files_have_the_totals_that_sql_counts() {
    let Some(samples) = samples() else { return };
    for sample in SAMPLES {
        let traces = read(&samples.join("nsys").join(sample.file)).unwrap();
        let [trace] = traces.as_slice() else { panic!("{}: {} traces", sample.file, traces.len()) };
        let totals = [Kind::Compute, Kind::Fill, Kind::Call, Kind::Range].map(|kind| total(trace, kind));
        assert_eq!(totals, [sample.kernels, sample.fills, sample.calls, sample.ranges], "{}", sample.file);
        let copies = [Kind::CopyIn, Kind::CopyOut].map(|kind| {
            let bytes =
                trace.slices.iter().filter(|slice| slice.kind == kind).filter_map(|slice| slice.bytes);
            let (count, time) = total(trace, kind);
            (count, time, bytes.map(|Bytes(bytes)| bytes).sum::<u64>())
        });
        assert_eq!(copies, sample.copies, "{}", sample.file);
        assert_eq!((trace.clock, trace.devices[0].as_str()), (Clock::Epoch, sample.device));
        if sample.file.starts_with("saxpy") {
            assert_eq!(
                (trace.rank, trace.world, trace.host.as_deref()),
                (Some(Rank(0)), Some(2), Some("nid001608"))
            );
        }
    }
}

/// A program that sets CUDA up, computes a little, exchanges with another rank and shuts down. Times in milliseconds.
fn small_program() -> String {
    let rows = [
        ("cudaMalloc", 0, 900, 1),
        ("cudaLaunchKernel", 950, 951, 11),
        ("MPI_Recv", 970, 1030, 2),
        ("cudaLaunchKernel", 1040, 1041, 12),
        ("cuModuleUnload", 1060, 1540, 3),
    ];
    let ms = 1_000_000;
    let calls = rows.iter().enumerate().filter(|(_, row)| row.0 != "MPI_Recv");
    let calls = calls.map(|(at, row)| format!("({}, {}, TID, {}, {at})", row.1 * ms, row.2 * ms, row.3));
    let names = rows.iter().enumerate().map(|(at, row)| format!("({at}, '{}')", row.0));
    let list = |rows: Vec<String>| rows.join(", ");
    with_ids(&format!(
        "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT NOT NULL); INSERT INTO StringIds VALUES {}, (9, 'gemm');
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId, nameId);
         INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES {};
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, contextId, streamId, correlationId, globalPid, shortName);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (951000000, 970000000, 0, 1, 7, 11, PID, 9), (1041000000, 1051000000, 0, 1, 7, 12, PID, 9);
         CREATE TABLE MPI_P2P_EVENTS(start, end, globalTid, textId);
         INSERT INTO MPI_P2P_EVENTS VALUES (970000000, 1030000000, TID, 2);
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind);
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1051000000, 1055000000, 0, 1, 7, 0, PID, 4000, 10);",
        list(names.collect()),
        list(calls.collect()),
    ))
}

#[test]
fn start_up_and_shut_down_are_named_and_no_part_of_a_step() {
    let trace = trace(&small_program());
    let ms = |ms: u64| Nanos(ms * 1_000_000);
    let whole = profile::Cut { from: Some(0.0), ..profile::Cut::default() };
    let whole = profile::summarise(&trace, &whole).unwrap();
    let idle = whole.idle.as_ref().unwrap();
    assert_eq!((idle[&Part::SetUp], idle[&Part::NothingQueued]), (ms(900 + 480), ms(50 + 10 + 5)));
    assert!(profile::render(&whole).replace("\n  ", " ").contains("the host sets it up or shuts it down"));
    let profile = profile::summarise(&trace, &profile::Cut::default()).unwrap();
    assert_eq!((profile.length, profile.idle.as_ref().unwrap()[&Part::SetUp]), (ms(104), ms(0)));
    let text = profile::render(&profile).replace("\n  ", " ");
    for said in [
        "start-up of the CUDA context: the host spends 900.00 ms in cudaMalloc before its first work",
        "shut-down: the host spends 480.00 ms in cuModuleUnload after its last work",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let run = join(vec![trace], &Told::default()).unwrap();
    let [step] = run.ranks[0].steps.as_slice() else { panic!("{:?}", run.ranks[0].steps) };
    assert_eq!(step.end.since(step.begin), ms(104), "from the first work to the last");
}

#[test]
fn calls_of_mpi_and_copies_between_devices_are_exchange() {
    let trace = trace(&small_program());
    let profile = profile::summarise(&trace, &profile::Cut::default()).unwrap();
    assert_eq!(profile.time(profile::Share::Collective), Nanos(64_000_000));
    let rows: Vec<_> =
        profile.collectives.iter().map(|row| (row.name.as_str(), row.total.0 / 1_000_000)).collect();
    assert_eq!(rows, [("recv", 60), ("peer_copy", 4)]);
    assert!(profile.copies.is_empty());
    let run = join(vec![trace], &Told::default()).unwrap();
    assert_eq!(run.ranks[0].steps[0].phases[Phase::CommWait], Nanos(64_000_000));
}
