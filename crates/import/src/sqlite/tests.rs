use std::fs;
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use rusqlite::Connection;
use tempfile::TempDir;

use super::super::profile;
use super::*;
use crate::trace::Kind;

/// A file that these statements make, in a folder of its own.
pub(in super::super) fn file(sql: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a profile?#%.data");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("PRAGMA synchronous = OFF").unwrap();
    connection.execute_batch(sql).unwrap();
    drop(connection);
    (folder, path)
}

/// The only trace in a file that these statements make.
pub(in super::super) fn trace(sql: &str) -> Trace {
    let (_folder, path) = file(sql);
    let mut traces = read(&path).unwrap();
    assert_eq!(traces.len(), 1);
    traces.remove(0)
}

/// Count and summed nanoseconds of a kind.
pub(in super::super) fn total(trace: &Trace, kind: Kind) -> (usize, u64) {
    let slices = || trace.slices.iter().filter(|slice| slice.kind == kind);
    (slices().count(), slices().map(|slice| slice.end.since(slice.begin).0).sum())
}

/// A trace's slices as `kind name begin..end`.
pub(in super::super) fn lines(trace: &Trace) -> Vec<String> {
    let line = |slice: &crate::trace::Slice| {
        let (kind, name) = (slice.kind, trace.names.text(slice.name));
        format!("{kind:?} {name} {}..{}", slice.begin.0, slice.end.0)
    };
    trace.slices.iter().map(line).collect()
}

const SMALL: &str = "
    CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT);
    INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel_v7000'), (3, 'step 1');
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, contextId, streamId, correlationId, globalPid, shortName);
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 20, 0, 1, 7, 5, 16777216, 1), (30, 45, 0, 1, 7, 6, 16777216, 1);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId, nameId);
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 5, 16777217, 5, 2), (6, 9, 16777217, 6, 2);
    CREATE TABLE NVTX_EVENTS(start, end, eventType, text, textId, globalTid);
    INSERT INTO NVTX_EVENTS VALUES (0, 50, 59, NULL, 3, 16777217);";

#[test]
fn a_profile_is_known_by_what_it_holds_and_not_by_its_name() {
    let (folder, path) = file(SMALL);
    assert_eq!(read(&path).unwrap()[0].slices.len(), 5);
    let (_other, nvprof) =
        file("CREATE TABLE StringTable(_id_, value); CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(cbid)");
    assert_eq!(read(&nvprof).unwrap()[0].slices.len(), 0);
    let (_foreign, foreign) = file("CREATE TABLE cookies(host)");
    assert!(read(&foreign).unwrap_err().to_string().contains("not from nvprof or Nsight Systems"));
    let text = folder.path().join("report.sqlite");
    fs::write(&text, "SQLite format 2").unwrap();
    assert!(read(&text).unwrap_err().to_string().contains("not a database"));
    assert!(matches!(read(&folder.path().join("none")), Err(ImportError::Io { .. })));
}

#[test]
fn reading_leaves_no_trace_and_needs_no_right_to_write() {
    let (folder, path) = file(&format!("PRAGMA journal_mode = WAL; {SMALL}"));
    let bytes = fs::read(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let trace = read(&path).unwrap().remove(0);
    assert_eq!(total(&trace, Kind::Compute), (2, 25));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut log = path.clone().into_os_string();
    log.push("-wal");
    fs::write(&log, "changes").unwrap();
    assert!(read(&path).unwrap()[0].warnings[0].contains("-wal"));
}

#[test]
fn views_triggers_and_virtual_tables_are_not_read() {
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT";
    let sql = format!(
        "{SMALL}
         CREATE VIEW CUPTI_ACTIVITY_KIND_MEMCPY AS {endless} x AS start, x AS end FROM n;
         CREATE VIEW TARGET_INFO_GPU AS {endless} x AS id, 'x' AS name FROM n;
         CREATE TRIGGER t AFTER INSERT ON NVTX_EVENTS BEGIN DELETE FROM StringIds; END;
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET(start, end, bytes AS (length(hex(zeroblob(9000000)))));
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (1, 2);"
    );
    let trace = trace(&sql);
    assert_eq!(total(&trace, Kind::Compute), (2, 25));
    let fill = trace.slices.iter().find(|slice| slice.kind == Kind::Fill).unwrap();
    assert_eq!(fill.bytes, None, "a generated column is not evaluated");
    assert_eq!(total(&trace, Kind::CopyDevice).0, 0);
}

#[test]
fn a_view_that_passes_for_a_table_is_refused() {
    let (_folder, path) = file(&format!(
        "{SMALL} CREATE VIEW CUPTI_ACTIVITY_KIND_MEMCPY AS
            WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start, x AS end FROM n;
         PRAGMA writable_schema = ON;
         UPDATE sqlite_master SET type = 'table', rootpage = 2 WHERE name = 'CUPTI_ACTIVITY_KIND_MEMCPY';"
    ));
    let error = read(&path).map(|traces| traces.len()).unwrap_err().to_string();
    assert!(error.contains("list of tables is damaged"), "{error}");
}

#[test]
fn columns_of_any_type_are_taken_as_unknown() {
    let sql = format!(
        "{SMALL}
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
            ('soon', 20, 0, 1, 7, 5, 16777216, 1), (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL), (x'00', 5, 0, 1, 7, 5, 16777216, 1),
            (50, 40, 0, 1, 7, 5, 16777216, 1), (-9223372036854775808, 9223372036854775807, 0, 1, 7, 5, 16777216, 1),
            (9223372036854775806, 9223372036854775807, 0, 1, 7, 5, 16777216, 1), (60.0, 61.0, -1, 'a', 1e99, -5, 16777216, 'gemm'),
            (70, 71, 4294967295, 1, 7, 5, 16777216, 99);
         INSERT INTO StringIds VALUES (4, CAST(x'ff666f6f' AS TEXT)), (5, zeroblob(20000000)), (6, zeroblob(1000000));
         INSERT INTO NVTX_EVENTS VALUES (2, 3, 59, NULL, 4, 16777217), (4, 5, 'x', 'no type', NULL, 16777217),
            (6, 7, 59, zeroblob(20000000), 5, 16777217), (8, 9, 59, NULL, 6, NULL);"
    );
    let (_folder, path) = file(&sql);
    let trace = read(&path).unwrap().remove(0);
    assert_eq!(total(&trace, Kind::Compute), (4, 27));
    let lines = lines(&trace);
    assert!(lines.contains(&"Range \u{fffd}foo 2..3".into()), "{lines:?}");
    assert!(lines.contains(&"Range without a name 6..7".into()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("no type")));
    for said in [
        "3 events have no begin",
        "1 events end before",
        "2 events have impossible times",
        "missing from the file's table of names",
    ] {
        assert!(trace.warnings.iter().any(|warning| warning.contains(said)), "{said}: {:?}", trace.warnings);
    }
}

#[test]
fn damage_in_the_middle_leaves_the_rest() {
    let many: String =
        (0..4000).map(|at| format!(", ({at}, {}, 59, 'range', NULL, 16777217)", at + 1)).collect();
    let (_folder, path) =
        file(&format!("{SMALL} INSERT INTO NVTX_EVENTS VALUES (0, 1, 59, 'range', NULL, 16777217){many}"));
    let whole = read(&path).unwrap().remove(0);
    let mut bytes = fs::read(&path).unwrap();
    let cut = bytes.len() / 2;
    bytes[cut..].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    let half = read(&path).unwrap().remove(0);
    assert!(half.slices.len() > 1000 && half.slices.len() < whole.slices.len(), "{}", half.slices.len());
    assert_eq!(total(&half, Kind::Compute), total(&whole, Kind::Compute));
    assert!(
        half.warnings[0].contains("NVTX_EVENTS: ")
            && half.warnings[0].contains("the rest of the table was skipped")
    );
    bytes[100..4096].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(read(&path), Err(ImportError::Bad { .. })));
}

/// Inner pages of a table whose children are all the same page: a few of them hold more rows than could ever be read.
#[test]
fn pages_that_multiply_rows_come_to_an_end() {
    const PAGE: usize = 512;
    let many: String =
        (0..4000).map(|at| format!(", ({at}, {}, 59, 'range', NULL, 16777217)", at + 1)).collect();
    let (_folder, path) = file(&format!(
        "PRAGMA page_size = {PAGE}; {SMALL} INSERT INTO NVTX_EVENTS VALUES (0, 1, 59, 'range', NULL, 16777217){many}"
    ));
    let root = Connection::open(&path).unwrap();
    let root: u32 = root
        .query_row("SELECT rootpage FROM sqlite_master WHERE name = 'NVTX_EVENTS'", [], |row| row.get(0))
        .unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let page = |number: u32| (number as usize - 1) * PAGE..number as usize * PAGE;
    let inner: Vec<u8> = bytes[page(root)].to_vec();
    assert_eq!(inner[0], 5, "an inner page of a table");
    let cells = usize::from(u16::from_be_bytes([inner[3], inner[4]]));
    let is_leaf = |number: &u32| {
        let page = &bytes[page(*number)];
        page[0] == 13 && page.ends_with(b"range\x01\x00\x00\x01")
    };
    let leaves: Vec<u32> = (1..=(bytes.len() / PAGE) as u32).filter(is_leaf).collect();
    assert!(leaves.len() > 100);
    let chain: Vec<u32> = std::iter::once(root).chain(leaves.into_iter().take(12)).collect();
    for pair in chain.windows(2) {
        let mut copy = inner.clone();
        copy[8..12].copy_from_slice(&pair[1].to_be_bytes());
        for cell in 0..cells {
            let at = usize::from(u16::from_be_bytes([copy[12 + 2 * cell], copy[13 + 2 * cell]]));
            copy[at..at + 4].copy_from_slice(&pair[1].to_be_bytes());
        }
        bytes[page(pair[0])].copy_from_slice(&copy);
    }
    fs::write(&path, &bytes).unwrap();
    let error = read(&path).map(|traces| traces[0].slices.len()).unwrap_err().to_string();
    assert!(error.contains("more rows than the file has room for"), "{error}");
}

#[test]
fn empty_tables_are_no_error() {
    let trace =
        trace("CREATE TABLE StringIds(id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end)");
    assert!(trace.slices.is_empty());
    assert_eq!(trace.warnings, ["it has no kernels, copies, calls or ranges"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_damage_makes_the_reader_panic_or_run_on(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..24),
        low in prop::collection::vec((0_usize..400, any::<u8>()), 0..4),
        keep in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (_folder, path) = file(&format!("PRAGMA page_size = 512; {SMALL}"));
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for (at, value) in low {
            bytes[at] = value;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len()));
        }
        fs::write(&path, &bytes).unwrap();
        match read(&path) {
            Ok(traces) => for trace in traces {
                let profile = profile::summarise(&trace, &profile::Cut::default());
                prop_assert!(profile.is_ok_and(|profile| !profile::render(&profile).is_empty()));
                prop_assert!(trace.slices.is_sorted_by_key(|slice| slice.begin));
                prop_assert!(trace.slices.iter().all(|slice| slice.begin <= slice.end));
                prop_assert!(trace.slices.iter().all(|slice| (slice.track as usize) < trace.tracks.len()));
            },
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        prop_assert_eq!(left, 1);
    }
}
