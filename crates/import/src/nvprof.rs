//! Profiles of nvprof and the Visual Profiler: SQLite tables of CUPTI's activity records.
//!
//! Device work does not name its process, so a file is one trace.

mod call;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::ImportError;
use super::sqlite::cuda::{self, Copies, Memory, on_device};
use super::sqlite::{self, Database, Event, Gather, Origin, Place};
use crate::trace::{Kind, Trace};

/// The whole file is one process.
const PROCESS: u64 = 0;

/// The supported version of the tables; later ones may use the same columns differently.
const VERSION: i64 = 11;

/// `MARKER.flags`: a range begins.
const BEGIN: i64 = 1 << 1;
/// A range ends.
const END: i64 = 1 << 2;

/// `MARKER.objectKind`: the marker is of a thread.
const THREAD: i64 = 2;

/// What nvprof saw.
pub(super) fn read_tables(mut database: Database) -> Result<Vec<Trace>, ImportError> {
    let mut reader = Reader {
        strings: database.strings("StringTable", "_id_", "value")?,
        gather: Gather::default(),
        unnamed: 0,
        untimed: 0,
    };
    // Only one of the two exists: the latter if kernels were serialised.
    for table in ["CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", "CUPTI_ACTIVITY_KIND_KERNEL"] {
        reader.kernels(&mut database, table)?;
    }
    for table in ["CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMCPY2"] {
        reader.copies(&mut database, table)?;
    }
    reader.fills(&mut database)?;
    let mut processes = Vec::new();
    for (table, name) in [
        ("CUPTI_ACTIVITY_KIND_RUNTIME", call::runtime as fn(i64) -> _),
        ("CUPTI_ACTIVITY_KIND_DRIVER", call::driver as fn(i64) -> _),
    ] {
        reader.calls(&mut database, table, name, &mut processes)?;
    }
    reader.ranges(&mut database)?;
    let mut devices = HashMap::new();
    database.scan("CUPTI_ACTIVITY_KIND_DEVICE", &["id", "name"], |row| {
        let name = row.integer(1).and_then(|id| reader.strings.get(&id).cloned());
        let name = name.or_else(|| row.text(1).map(|name| name.into_owned()));
        devices.extend(row.integer(0).zip(name));
    })?;
    let Reader { gather, unnamed, untimed, .. } = reader;
    let (parts, mut warnings) = gather.finish(Origin::Unknown);
    if unnamed > 0 {
        warnings.push(format!("{unnamed} events have names that are missing from StringTable"));
    }
    let mut version = None;
    database.scan("Version", &["version"], |row| version = row.integer(0))?;
    if let Some(version) = version.filter(|&version| version > VERSION) {
        warnings.push(format!("its tables have version {version}; they are read as version {VERSION}"));
    }
    if untimed > 0 {
        warnings.push(format!("skipped {untimed} events that the profiler could not time"));
    }
    if processes.len() > 1 {
        let why = "nvprof does not say which one its kernels belong to: they are read as one";
        warnings.push(format!("calls of {} processes: {why}", processes.len()));
    }
    let (overhead, count) = database.total("CUPTI_ACTIVITY_KIND_OVERHEAD")?;
    if count > 0 {
        warnings
            .push(format!("the profiler's own work takes {:.3} s in {count} pieces", overhead as f64 * 1e-9));
    }
    let traces = parts.into_iter().map(|(_, mut trace)| {
        trace.devices = cuda::device_names(&trace, |device| devices.get(&i64::from(device)).cloned());
        trace.backend = cuda::backend(&trace);
        trace
    });
    cuda::conclude(database, traces.collect(), warnings)
}

struct Reader {
    strings: HashMap<i64, String>,
    gather: Gather,
    unnamed: u64,
    /// Records with both times 0, which is how CUPTI says that it has none.
    untimed: u64,
}

impl Reader {
    fn add(&mut self, event: Event, name: &str, operation: Option<&str>) {
        match (event.begin, event.end) {
            (Some(0), Some(0)) => self.untimed += 1,
            _ => self.gather.add(PROCESS, event, name, operation),
        }
    }

    fn kernels(&mut self, database: &mut Database, table: &str) -> Result<(), ImportError> {
        let columns = ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "name"];
        let mut demangled: HashMap<i64, String> = HashMap::new();
        database.scan(table, &columns, |row| {
            let known = row.integer(6).and_then(|id| Some((id, self.strings.get(&id)?)));
            let name = match known {
                Some((id, mangled)) => {
                    demangled.entry(id).or_insert_with(|| sqlite::demangle(mangled)).as_str()
                }
                None => {
                    self.unnamed += 1;
                    "kernel without a name"
                }
            };
            let operation = sqlite::nccl_operation(name);
            let kind = operation.map_or(Kind::Compute, |_| Kind::Collective);
            self.add(on_device(row, kind), name, operation);
        })
    }

    fn copies(&mut self, database: &mut Database, table: &str) -> Result<(), ImportError> {
        let columns = [
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "bytes",
            "copyKind",
            "srcKind",
            "dstKind",
        ];
        let mut copies = Copies::new(Memory::Cupti, &HashMap::new());
        database.scan(table, &columns, |row| {
            let (kind, name) = copies.describe(row.integer(7), row.integer(8), row.integer(9));
            self.add(Event { bytes: row.count(6), ..on_device(row, kind) }, name, None);
        })
    }

    fn fills(&mut self, database: &mut Database) -> Result<(), ImportError> {
        let columns = ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "bytes"];
        database.scan("CUPTI_ACTIVITY_KIND_MEMSET", &columns, |row| {
            self.add(Event { bytes: row.count(6), ..on_device(row, Kind::Fill) }, "Memset", None);
        })
    }

    fn calls(
        &mut self,
        database: &mut Database,
        table: &str,
        name: impl Fn(i64) -> String,
        processes: &mut Vec<i64>,
    ) -> Result<(), ImportError> {
        let mut names: HashMap<i64, String> = HashMap::new();
        database.scan(table, &["start", "end", "threadId", "correlationId", "cbid", "processId"], |row| {
            let id = row.integer(4).unwrap_or(0);
            let name = names.entry(id).or_insert_with(|| name(id));
            if let Some(process) = row.integer(5)
                && processes.len() < 100
                && !processes.contains(&process)
            {
                processes.push(process);
            }
            let place = Place::Thread(thread(row.integer(2).unwrap_or(0)));
            let (begin, end, correlation) = (row.integer(0), row.integer(1), row.count(3));
            self.add(Event { kind: Kind::Call, begin, end, place, correlation, bytes: None }, name, None);
        })
    }

    /// Begin and end of a range are two rows with one number; only the begin has the name.
    fn ranges(&mut self, database: &mut Database) -> Result<(), ImportError> {
        let mut open: HashMap<i64, Event> = HashMap::new();
        let mut names: HashMap<i64, Option<i64>> = HashMap::new();
        let mut ends: HashMap<i64, Option<i64>> = HashMap::new();
        database.scan(
            "CUPTI_ACTIVITY_KIND_MARKER",
            &["flags", "timestamp", "id", "name", "objectKind", "objectId"],
            |row| {
                let (Some(flags), Some(id)) = (row.integer(0), row.integer(2)) else { return };
                if flags & BEGIN != 0 {
                    let of_thread = row.integer(4).is_none_or(|kind| kind == THREAD);
                    let place = Place::Thread(
                        row.blob(5).filter(|_| of_thread).and_then(thread_of_object).unwrap_or(0),
                    );
                    let begin = row.integer(1);
                    open.insert(
                        id,
                        Event { kind: Kind::Range, begin, end: None, place, correlation: None, bytes: None },
                    );
                    names.insert(id, row.integer(3));
                } else if flags & END != 0 {
                    ends.insert(id, row.integer(1));
                }
            },
        )?;
        let mut begun: Vec<(i64, Event)> = open.into_iter().collect();
        begun.sort_by_key(|&(id, event)| (event.begin, id));
        for (id, event) in begun {
            let name = names.get(&id).copied().flatten().and_then(|name| self.strings.get(&name)).cloned();
            self.unnamed += u64::from(name.is_none());
            let end = ends.get(&id).copied().flatten();
            self.add(Event { end, ..event }, name.as_deref().unwrap_or("range without a name"), None);
        }
        Ok(())
    }
}

/// A thread's number is 32 bits wide, and negative where its highest bit is set.
fn thread(id: i64) -> u64 {
    id as u64 & 0xffff_ffff
}

/// The thread in a marker's object: process as 4 bytes, then thread, little-endian.
fn thread_of_object(object: &[u8]) -> Option<u64> {
    let bytes = object.get(4..8)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?).into())
}
