//! Profiles of nvprof and the Visual Profiler: SQLite tables of CUPTI's activity records.
//!
//! Device work does not name its process, so a file is one trace.

mod call;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use super::ImportError;
use super::sqlite::{self, Database, Event, Gather};
use crate::trace::{Kind, Trace};

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
    let strings = database.strings("StringTable", "_id_", "value")?;
    let (mut gather, mut notes) = (Gather::default(), Vec::new());
    sqlite::read_cupti(&mut database, &strings, &mut gather)?;
    let mut processes = BTreeSet::new();
    for table in ["RUNTIME", "DRIVER"] {
        let mut names = call::names(table);
        let columns = ["start", "end", "threadId", "correlationId", "cbid", "processId"];
        database.scan(&format!("CUPTI_ACTIVITY_KIND_{table}"), &columns, |row| {
            processes.extend(row.integer(5).filter(|_| processes.len() < 100));
            // A thread's number is 32 bits wide, and negative where its highest bit is set.
            let thread = row.integer(2).unwrap_or(0) as u64 & 0xffff_ffff;
            let call = Event { correlation: row.count(3), ..Event::on_host(row, Kind::Call, None, thread) };
            let id = row.integer(4).unwrap_or(0);
            let name = names.entry(id).or_insert_with(|| format!("{} call {id}", table.to_lowercase()));
            gather.add(call, Some(name));
        })?;
    }
    read_ranges(&mut database, &strings, &mut gather)?;
    let mut devices = HashMap::new();
    database.scan("CUPTI_ACTIVITY_KIND_DEVICE", &["id", "name"], |row| {
        let name = row.integer(1).and_then(|id| strings.get(&id).cloned());
        let name = name.or_else(|| row.text(1).map(|name| name.into_owned()));
        devices.extend(row.integer(0).zip(name));
    })?;
    database.scan("Version", &["version"], |row| {
        if let Some(version) = row.integer(0).filter(|&version| version > VERSION) {
            notes.push(format!("its tables have version {version}; they are read as version {VERSION}"));
        }
    })?;
    if processes.len() > 1 {
        let why = "nvprof does not say which one its kernels belong to: they are read as one";
        notes.push(format!("calls of {} processes: {why}", processes.len()));
    }
    let (parts, warnings) = gather.finish(database, None, |_, device| devices.get(&device).cloned())?;
    let mut traces: Vec<Trace> = parts.into_iter().map(|(_, trace)| trace).collect();
    traces[0].warnings = [warnings, notes].concat();
    Ok(traces)
}

/// Begin and end of a range are two rows with one number; only the begin has the name.
fn read_ranges(
    database: &mut Database,
    strings: &HashMap<i64, String>,
    gather: &mut Gather,
) -> Result<(), ImportError> {
    let mut begun: Vec<(i64, Event<'_>, Option<i64>)> = Vec::new();
    let mut ends: HashMap<i64, Option<i64>> = HashMap::new();
    let columns = ["timestamp", "timestamp", "flags", "id", "name", "objectKind", "objectId"];
    database.scan("CUPTI_ACTIVITY_KIND_MARKER", &columns, |row| {
        let (Some(flags), Some(id)) = (row.integer(2), row.integer(3)) else { return };
        if flags & BEGIN != 0 {
            let object = row.blob(6).filter(|_| row.integer(5).is_none_or(|kind| kind == THREAD));
            let event =
                Event::on_host(row, Kind::Range, None, object.and_then(thread_of_object).unwrap_or(0));
            begun.push((id, event, row.integer(4)));
        } else if flags & END != 0 {
            ends.insert(id, row.integer(0));
        }
    })?;
    for (id, event, name) in begun {
        let name = name.and_then(|name| strings.get(&name)).map(String::as_str);
        gather.add(Event { end: ends.get(&id).copied().flatten(), ..event }, name);
    }
    Ok(())
}

/// The thread in a marker's object: process as 4 bytes, then thread, little-endian.
fn thread_of_object(object: &[u8]) -> Option<u64> {
    let bytes = object.get(4..8)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?).into())
}
