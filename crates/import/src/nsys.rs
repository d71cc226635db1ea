//! Nsight Systems' SQLite exports, in every generation of their schema: without a table of export facts (until 2021),
//! with `EXPORT_META_DATA` (2.x, until 2022), with `META_DATA_EXPORT` and tables of enumerations (3.x).
//!
//! Tables are made only where there is something to put in, and columns come and go, so nothing is asked of the version.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use paceline_record::Rank;

use super::ImportError;
use super::sqlite::cuda::{self, Copies, Memory, on_device};
use super::sqlite::{self, Database, Event, Fields, Gather, Origin, Place};
use crate::trace::{Kind, Trace};

/// Further diagnostics are counted, not listed.
const DIAGNOSTICS: usize = 8;

/// `NVTX_EVENTS.eventType`: a thread gets a name.
const THREAD_NAME: i64 = 39;
/// A range pushed and popped by one thread.
const PUSHED: i64 = 59;
/// A range started and ended, perhaps by two threads.
const STARTED: i64 = 60;
/// A domain gets a name.
const DOMAIN: i64 = 75;

/// A trace for each process that used a device or took part in collectives.
pub(super) fn read_tables(mut database: Database) -> Result<Vec<Trace>, ImportError> {
    let mut warnings = diagnostics(&mut database)?;
    let strings = database.strings("StringIds", "id", "value")?;
    let mut reader =
        Reader { strings, gather: Gather::default(), ranks: HashMap::new(), first: None, unnamed: 0 };
    for table in ["CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"] {
        reader.calls(&mut database, table)?;
    }
    reader.kernels(&mut database)?;
    reader.copies(&mut database)?;
    reader.ranges(&mut database)?;
    for table in ["MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS"] {
        reader.mpi(&mut database, table)?;
    }
    if reader.unnamed > 0 {
        warnings.push(format!("{} events have names that are missing from StringIds", reader.unnamed));
    }
    let mut origin = Origin::Unknown;
    database.scan("TARGET_INFO_SESSION_START_TIME", &["utcEpochNs"], |row| {
        if let Some(at) = row.integer(0) {
            origin = Origin::After1970(at);
        }
    })?;
    let facts = Facts::read(&mut database)?;
    let (parts, complaints) = reader.gather.finish(origin);
    warnings.extend(complaints);
    let (overhead, count) = database.total("PROFILER_OVERHEAD")?;
    if count > 0 {
        warnings
            .push(format!("the profiler's own work takes {:.3} s in {count} pieces", overhead as f64 * 1e-9));
    }
    let alone = parts.len() == 1;
    let mut traces: Vec<Trace> = parts
        .into_iter()
        .map(|(process, mut trace)| {
            trace.rank = reader.ranks.get(&process).copied();
            if let (true, Some((rank, world))) = (alone, facts.rank_and_world) {
                trace.rank = trace.rank.or(Some(Rank(rank)));
                trace.world = Some(world);
            }
            trace.host.clone_from(&facts.host);
            trace.devices = facts.device_names(process, &trace);
            trace.backend = cuda::backend(&trace);
            trace
        })
        .collect();
    traces.sort_by_key(|trace| trace.rank);
    cuda::conclude(database, traces, warnings)
}

struct Reader {
    strings: HashMap<i64, String>,
    gather: Gather,
    ranks: HashMap<u64, Rank>,
    /// The process of the first call, used if a row names none.
    first: Option<u64>,
    unnamed: u64,
}

impl Reader {
    fn process(&self, row: &Fields<'_, '_>, at: usize) -> u64 {
        process(row, at).or(self.first).unwrap_or(0)
    }

    fn kernels(&mut self, database: &mut Database) -> Result<(), ImportError> {
        let columns = [
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "demangledName",
            "shortName",
            "mangledName",
        ];
        let mut demangled: HashMap<i64, String> = HashMap::new();
        database.scan("CUPTI_ACTIVITY_KIND_KERNEL", &columns, |row| {
            let string = |at| self.strings.get(&row.integer(at)?).filter(|name| !name.is_empty());
            let name = match string(7).or_else(|| string(8)) {
                Some(name) => name,
                None => match row.integer(9).zip(string(9)) {
                    Some((id, mangled)) => demangled.entry(id).or_insert_with(|| sqlite::demangle(mangled)),
                    None => {
                        self.unnamed += 1;
                        "kernel without a name"
                    }
                },
            };
            let operation = sqlite::nccl_operation(name);
            let kind = operation.map_or(Kind::Compute, |_| Kind::Collective);
            self.gather.add(self.process(row, 6), on_device(row, kind), name, operation);
        })
    }

    fn copies(&mut self, database: &mut Database) -> Result<(), ImportError> {
        let columns = [
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "bytes",
            "copyKind",
            "srcKind",
            "dstKind",
        ];
        let kinds = enumeration(database, "ENUM_CUDA_MEMCPY_OPER")?;
        let mut copies = Copies::new(Memory::Nsys, &kinds);
        database.scan("CUPTI_ACTIVITY_KIND_MEMCPY", &columns, |row| {
            let (kind, name) = copies.describe(row.integer(8), row.integer(9), row.integer(10));
            let event = Event { bytes: row.count(7), ..on_device(row, kind) };
            self.gather.add(self.process(row, 6), event, name, None);
        })?;
        database.scan("CUPTI_ACTIVITY_KIND_MEMSET", &columns[..8], |row| {
            let event = Event { bytes: row.count(7), ..on_device(row, Kind::Fill) };
            self.gather.add(self.process(row, 6), event, "Memset", None);
        })
    }

    fn calls(&mut self, database: &mut Database, table: &str) -> Result<(), ImportError> {
        database.scan(table, &["start", "end", "globalTid", "correlationId", "nameId"], |row| {
            let name =
                row.integer(4).and_then(|id| self.strings.get(&id)).map(|name| sqlite::without_version(name));
            self.unnamed += u64::from(name.is_none());
            let event = Event { correlation: row.count(3), ..on_host(row, Kind::Call) };
            self.first = self.first.or(process(row, 2));
            self.gather.add(self.process(row, 2), event, name.unwrap_or("call without a name"), None);
        })
    }

    /// Ranges; those in the domain `MPI` are MPI calls, which older versions recorded so.
    fn ranges(&mut self, database: &mut Database) -> Result<(), ImportError> {
        let typed = database.has_column("NVTX_EVENTS", "eventType");
        let mut mpi = Vec::new();
        let columns = ["start", "end", "globalTid", "eventType", "text", "textId", "domainId"];
        database.scan("NVTX_EVENTS", &columns, |row| match row.integer(3) {
            Some(DOMAIN) if row.text(4).is_some_and(|text| text == "MPI") => {
                mpi.push((self.process(row, 2), row.integer(6)))
            }
            Some(THREAD_NAME) => {
                let rank = row.text(4).and_then(|name| name.strip_prefix("MPI Rank ")?.trim().parse().ok());
                self.ranks.extend(rank.map(|rank| (self.process(row, 2), Rank(rank))));
            }
            _ => {}
        })?;
        database.scan("NVTX_EVENTS", &columns, |row| {
            let is_range = match row.integer(3) {
                Some(kind) => [PUSHED, STARTED].contains(&kind),
                None => !typed && row.integer(1).is_some(),
            };
            if !is_range {
                return;
            }
            let text = row.text(4).filter(|text| !text.is_empty());
            let name = text.as_deref().or_else(|| self.strings.get(&row.integer(5)?).map(String::as_str));
            self.unnamed += u64::from(name.is_none());
            let name = name.unwrap_or("range without a name");
            let process = self.process(row, 2);
            let (kind, operation) = match mpi.contains(&(process, row.integer(6))) {
                true => mpi_kind(name),
                false => (Kind::Range, None),
            };
            self.gather.add(process, on_host(row, kind), name, operation);
        })
    }

    fn mpi(&mut self, database: &mut Database, table: &str) -> Result<(), ImportError> {
        database.scan(table, &["start", "end", "globalTid", "textId", "size", "recvSize"], |row| {
            let name = row.integer(3).and_then(|id| self.strings.get(&id)).map(String::as_str);
            self.unnamed += u64::from(name.is_none());
            let name = name.unwrap_or("MPI call without a name");
            let (kind, operation) = match (mpi_kind(name), table) {
                ((Kind::Call, _), "MPI_COLLECTIVES_EVENTS") => (Kind::Collective, Some("mpi")),
                (known, _) => known,
            };
            let event = Event { bytes: row.count(4).max(row.count(5)), ..on_host(row, kind) };
            self.gather.add(self.process(row, 2), event, name, operation);
        })?;
        database.scan("MPI_RANKS", &["globalTid", "rank"], |row| {
            let rank = row.count(1).and_then(|rank| rank.try_into().ok());
            self.ranks.extend(rank.map(|rank| (self.process(row, 0), Rank(rank))));
        })
    }
}

fn mpi_kind(call: &str) -> (Kind, Option<&'static str>) {
    let operation = sqlite::mpi_operation(call);
    (operation.map_or(Kind::Call, |_| Kind::Collective), operation)
}

/// The process in a global number of a process or thread.
fn process(row: &Fields<'_, '_>, at: usize) -> Option<u64> {
    row.integer(at).map(|global| (global as u64 >> 24) & 0xff_ffff)
}

/// Columns 0 to 2: start, end, global number of the thread.
fn on_host(row: &Fields<'_, '_>, kind: Kind) -> Event {
    let thread = row.integer(2).map_or(0, |global| global as u64 & 0xff_ffff);
    Event {
        kind,
        begin: row.integer(0),
        end: row.integer(1),
        place: Place::Thread(thread),
        correlation: None,
        bytes: None,
    }
}

/// An enumeration's names, symbol and label together.
fn enumeration(database: &mut Database, table: &str) -> Result<HashMap<i64, String>, ImportError> {
    let mut names = HashMap::new();
    database.scan(table, &["id", "name", "label"], |row| {
        if let Some(id) = row.integer(0)
            && names.len() < 1000
        {
            let text = |at| row.text(at).unwrap_or_default();
            names.insert(id, format!("{} {}", text(1), text(2)));
        }
    })?;
    Ok(names)
}

/// Diagnostics of the profiler.
fn diagnostics(database: &mut Database) -> Result<Vec<String>, ImportError> {
    let levels = enumeration(database, "ENUM_DIAGNOSTIC_SEVERITY_LEVEL")?;
    let (mut said, mut more) = (Vec::<String>::new(), 0);
    database.scan("DIAGNOSTIC_EVENT", &["severity", "text"], |row| {
        let level = row.integer(0).map(|level| match levels.get(&level) {
            Some(name) => name.to_lowercase(),
            None => {
                ["unknown", "info", "warning", "error"].get(level as usize).copied().unwrap_or("error").into()
            }
        });
        let level = level.unwrap_or_default();
        let Some(word) = ["fatal", "error", "warn"].into_iter().find(|word| level.contains(word)) else {
            return;
        };
        let word = if word == "warn" { "a warning" } else { "an error" };
        let text: String = row.text(1).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let text: String = text.chars().take(300).collect();
        let sentence = format!("the profiler reported {word}: {text}");
        if said.contains(&sentence) {
            return;
        }
        match said.len() < DIAGNOSTICS {
            true => said.push(sentence),
            false => more += 1,
        }
    })?;
    if more > 0 {
        said.push(format!("the profiler reported {more} more errors and warnings"));
    }
    Ok(said)
}

/// What the file says about the machine.
struct Facts {
    host: Option<String>,
    rank_and_world: Option<(u32, u32)>,
    /// Name by the number of the GPU.
    gpus: HashMap<i64, String>,
    /// GPU by CUDA device number, if it is the same for every process.
    by_ordinal: HashMap<i64, i64>,
    /// GPU by process and CUDA's number of the device.
    by_process: HashMap<(u64, i64), i64>,
}

impl Facts {
    fn read(database: &mut Database) -> Result<Self, ImportError> {
        let mut facts = Self {
            host: None,
            rank_and_world: None,
            gpus: HashMap::new(),
            by_ordinal: HashMap::new(),
            by_process: HashMap::new(),
        };
        database.scan("TARGET_INFO_SYSTEM_ENV", &["name", "value"], |row| {
            match row.text(0).as_deref() {
                Some("Hostname") => facts.host = row.text(1).map(|host| host.into_owned()),
                Some("DeviceEnvironment") => {
                    facts.rank_and_world = row.text(1).and_then(|all| rank_and_world(&all))
                }
                _ => {}
            };
        })?;
        let counted = database.has_column("TARGET_INFO_GPU", "smCount");
        database.scan("TARGET_INFO_GPU", &["id", "name", "cuDevice", "smCount"], |row| {
            let (Some(id), Some(name)) = (row.integer(0), row.text(1)) else { return };
            facts.gpus.insert(id, name.into_owned());
            // Graphics adapters unknown to CUDA are also listed, all of them as device 0.
            if let Some(ordinal) = row.integer(2)
                && (!counted || row.integer(3).is_some_and(|processors| processors > 0))
            {
                facts.by_ordinal.insert(ordinal, id);
            }
        })?;
        database.scan("TARGET_INFO_CUDA_DEVICE", &["pid", "cudaId", "gpuId"], |row| {
            if let (Some(pid), Some(ordinal), Some(gpu)) = (row.count(0), row.integer(1), row.integer(2)) {
                facts.by_process.insert((pid, ordinal), gpu);
            }
        })?;
        Ok(facts)
    }

    /// Names in order of the device's number, up to the last that the trace uses.
    fn device_names(&self, process: u64, trace: &Trace) -> Vec<String> {
        cuda::device_names(trace, |device| {
            let device = i64::from(device);
            let gpu = self.by_process.get(&(process, device)).or_else(|| self.by_ordinal.get(&device));
            self.gpus.get(gpu.unwrap_or(&device)).cloned()
        })
    }
}

/// A launcher's variables for the rank, in the environment that the profiler was started in.
fn rank_and_world(environment: &str) -> Option<(u32, u32)> {
    let value = |name: &str| {
        let line =
            environment.split(['\0', '\n']).find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line?.trim().parse::<u32>().ok()
    };
    let names =
        [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")];
    names.iter().find_map(|(rank, world)| value(rank).zip(value(world))).filter(|(rank, world)| rank < world)
}
