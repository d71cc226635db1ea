//! Records of CUPTI, which all profilers of CUDA store under the same names: kernels, copies, fills.

use std::collections::HashMap;

use super::{Database, Event, Fields, Gather, Place};
use crate::trace::Kind;
use crate::{ImportError, operations};

/// Columns of work on a device. Only one profiler has `globalPid`.
const COLUMNS: [&str; 8] =
    ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes"];

/// Ways to name a kernel, the best first.
const NAMES: [&str; 4] = ["demangledName", "shortName", "name", "mangledName"];

/// Kinds of copies in the order of their numbers, between host (H), device (D), arrays on a device (A) and peers (P). 9 stays on
/// the host, but runs in a stream as the others do; from 11 on, unified memory moves by itself.
const COPIES: [(&str, Kind); 14] = [
    ("unknown", Kind::CopyDevice),
    ("HtoD", Kind::CopyIn),
    ("DtoH", Kind::CopyOut),
    ("HtoA", Kind::CopyIn),
    ("AtoH", Kind::CopyOut),
    ("AtoA", Kind::CopyDevice),
    ("AtoD", Kind::CopyDevice),
    ("DtoA", Kind::CopyDevice),
    ("DtoD", Kind::CopyDevice),
    ("HtoH", Kind::CopyDevice),
    ("PtoP", Kind::Collective),
    ("HtoD", Kind::CopyIn),
    ("DtoH", Kind::CopyOut),
    ("DtoD", Kind::CopyDevice),
];

/// Reads all work on devices. Processes are those in `globalPid`.
pub fn read(
    database: &mut Database,
    strings: &HashMap<i64, String>,
    gather: &mut Gather,
) -> Result<(), ImportError> {
    let with = |more: &[&'static str]| [&COLUMNS[..], more].concat();
    // Only one of the two exists: the former if kernels were serialised, or from Nsight Systems.
    for table in ["KERNEL", "CONCURRENT_KERNEL"] {
        scan(database, table, &with(&NAMES), |row| {
            let name = (8..12).find_map(|at| strings.get(&row.integer(at)?).filter(|name| !name.is_empty()));
            let operation = name.and_then(|name| operations::of_kernel(name));
            gather.add(on_device(row, Kind::Compute).exchanging(operation), name.map(String::as_str));
        })?;
    }
    for table in ["MEMCPY", "MEMCPY2"] {
        scan(database, table, &with(&["copyKind"]), |row| {
            let kind = row.count(8).and_then(|kind| COPIES.get(kind as usize));
            let &(short, kind) = kind.unwrap_or(&COPIES[0]);
            let between = (kind == Kind::Collective).then_some("peer_copy");
            let copy = Event { bytes: row.count(7), ..on_device(row, kind).exchanging(between) };
            gather.add(copy, Some(&format!("Memcpy {short}")));
        })?;
    }
    scan(database, "MEMSET", &COLUMNS, |row| {
        gather.add(Event { bytes: row.count(7), ..on_device(row, Kind::Fill) }, Some("Memset"));
    })
}

fn scan(
    database: &mut Database,
    table: &str,
    columns: &[&str],
    each: impl FnMut(&Fields<'_, '_>),
) -> Result<(), ImportError> {
    database.scan(&format!("CUPTI_ACTIVITY_KIND_{table}"), columns, each)
}

fn on_device<'a>(row: &Fields<'_, '_>, kind: Kind) -> Event<'a> {
    let number = |at| row.count(at).and_then(|number| number.try_into().ok()).unwrap_or(0);
    Event {
        place: Place::Stream { device: number(2), context: number(3), stream: number(4) },
        correlation: row.count(5),
        ..Event::on_host(row, kind, process(row, 6), 0)
    }
}

/// The process in Nsight Systems' global number of a process or thread.
pub fn process(row: &Fields<'_, '_>, at: usize) -> Option<u64> {
    row.integer(at).map(|global| (global as u64 >> 24) & 0xff_ffff)
}
