//! What CUDA profiles of all profilers have in common: kinds of copies, names of devices, the final checks.

use std::collections::HashMap;

use super::super::ImportError;
use super::{Database, Event, Fields, Place};
use crate::trace::{Kind, Trace};

/// Most devices that are listed.
const DEVICES: u32 = 256;

/// How a profiler numbers kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Memory {
    /// As CUPTI does: 1 is pageable.
    Cupti,
    /// As Nsight Systems does: 0 is pageable.
    Nsys,
}

impl Memory {
    fn name(self, number: i64) -> Option<&'static str> {
        const NAMES: [&str; 7] =
            ["Pageable", "Pinned", "Device", "Array", "Managed", "Device static", "Managed static"];
        let first = match self {
            Self::Cupti => 1,
            Self::Nsys => 0,
        };
        NAMES.get(usize::try_from(number.checked_sub(first)?).ok()?).copied()
    }
}

/// Kinds of copies by their numbers.
pub(in super::super) struct Copies {
    memory: Memory,
    kinds: HashMap<i64, (&'static str, Kind)>,
    names: HashMap<[Option<i64>; 3], (Kind, String)>,
}

/// Between host (H), device (D), arrays on a device (A) and peers (P), in the order of CUPTI's numbers; 9 stays on the
/// host, but runs in a stream as the others do.
const KINDS: [(&str, Kind); 11] = [
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
    ("PtoP", Kind::CopyDevice),
];

impl Copies {
    /// Kinds as the file's own enumeration has them, where it has one.
    pub(in super::super) fn new(memory: Memory, enumeration: &HashMap<i64, String>) -> Self {
        let mut kinds: HashMap<i64, _> = (0..).zip(KINDS).collect();
        // Unified memory that moves by itself.
        kinds.extend([(11, KINDS[1]), (12, KINDS[2]), (13, KINDS[8])]);
        for (&number, text) in enumeration {
            let text = text.to_lowercase();
            let said = |(short, _): &&(&str, Kind)| text.contains(&short.to_lowercase());
            kinds.extend(KINDS[1..].iter().find(said).map(|&kind| (number, kind)));
        }
        Self { memory, kinds, names: HashMap::new() }
    }

    /// What a copy is, and its name: `Memcpy HtoD (Pageable -> Device)`.
    pub(in super::super) fn describe(
        &mut self,
        kind: Option<i64>,
        from: Option<i64>,
        to: Option<i64>,
    ) -> (Kind, &str) {
        let (memory, kinds) = (self.memory, &self.kinds);
        let (kind, name) = self.names.entry([kind, from, to]).or_insert_with(|| {
            let (short, kind) = kind.and_then(|kind| kinds.get(&kind)).copied().unwrap_or(KINDS[0]);
            let side = |side: Option<i64>| memory.name(side?);
            let sides = side(from).zip(side(to)).map(|(from, to)| format!(" ({from} -> {to})"));
            (kind, format!("Memcpy {short}{}", sides.unwrap_or_default()))
        });
        (*kind, name)
    }
}

/// Names of devices 0, 1, ... up to the last that a trace uses; empty where none is known.
pub(in super::super) fn device_names(trace: &Trace, name: impl Fn(u32) -> Option<String>) -> Vec<String> {
    let last = trace.tracks.iter().filter_map(|track| track.device).filter(|&device| device < DEVICES).max();
    let names: Vec<Option<String>> = last.map_or_else(Vec::new, |last| (0..=last).map(name).collect());
    match names.iter().any(Option::is_some) {
        true => names.into_iter().map(|name| name.unwrap_or_else(|| "unnamed".into())).collect(),
        false => Vec::new(),
    }
}

/// The collective backend.
pub(in super::super) fn backend(trace: &Trace) -> Option<String> {
    let first = trace.collectives.first()?;
    let name = trace.names.text(trace.slices[first.slice].name);
    Some(if name.starts_with("MPI") { "mpi" } else { "nccl" }.into())
}

/// The traces with warnings about the file; an error if it is damaged and nothing is left.
pub(in super::super) fn conclude(
    database: Database,
    mut traces: Vec<Trace>,
    mut warnings: Vec<String>,
) -> Result<Vec<Trace>, ImportError> {
    if let (true, Some(first)) = (traces.is_empty(), database.warnings.first()) {
        return Err(database.bad(format!("nothing could be read: {first}")));
    }
    warnings.splice(0..0, database.warnings);
    if traces.is_empty() {
        warnings.push("it has no kernels, copies, calls or ranges".into());
        traces.push(Trace::default());
    }
    traces[0].warnings = warnings;
    Ok(traces)
}

/// An event on a device, from columns 0 to 5: start, end, device, context, stream, correlation.
pub(in super::super) fn on_device(row: &Fields<'_, '_>, kind: Kind) -> Event {
    let number = |at| row.count(at).and_then(|number| number.try_into().ok()).unwrap_or(0);
    Event {
        kind,
        begin: row.integer(0),
        end: row.integer(1),
        place: Place::Stream { device: number(2), context: number(3), stream: number(4) },
        correlation: row.count(5),
        bytes: None,
    }
}
