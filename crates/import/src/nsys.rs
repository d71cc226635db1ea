//! Nsight Systems' SQLite exports, in every generation of their schema: without a table of export facts (until 2021),
//! with `EXPORT_META_DATA` (2.x, until 2022), with `META_DATA_EXPORT` and tables of enumerations (3.x).
//!
//! Tables are made only where there is something to put in, and columns come and go, so nothing is asked of the version.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use paceline_record::Rank;

use super::sqlite::{self, Database, Event, Fields, Gather, process};
use super::{ImportError, operations};
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

/// A trace for each process that used a device or took part in exchanges.
pub(super) fn read_tables(mut database: Database) -> Result<Vec<Trace>, ImportError> {
    let said = diagnostics(&mut database)?;
    let strings = database.strings("StringIds", "id", "value")?;
    let mut reader = Reader { strings, gather: Gather::default(), ranks: HashMap::new() };
    for table in ["CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"] {
        reader.calls(&mut database, table)?;
    }
    sqlite::read_cupti(&mut database, &reader.strings, &mut reader.gather)?;
    reader.ranges(&mut database)?;
    reader.mpi(&mut database)?;
    let mut origin = None;
    database.scan("TARGET_INFO_SESSION_START_TIME", &["utcEpochNs"], |row| origin = row.integer(0))?;
    let facts = Facts::read(&mut database)?;
    let name = |process, device| facts.device_name(process, device);
    let (parts, mut warnings) = reader.gather.finish(database, origin, name)?;
    warnings.extend(said);
    let alone = facts.rank_and_world.filter(|_| parts.len() == 1);
    let finish = |(process, mut trace): (u64, Trace)| {
        trace.rank = reader.ranks.get(&process).copied().or(alone.map(|(rank, _)| Rank(rank)));
        trace.world = alone.map(|(_, world)| world);
        trace.host.clone_from(&facts.host);
        trace
    };
    let mut traces: Vec<Trace> = parts.into_iter().map(finish).collect();
    traces.sort_by_key(|trace| trace.rank);
    traces[0].warnings = warnings;
    Ok(traces)
}

struct Reader {
    strings: HashMap<i64, String>,
    gather: Gather,
    ranks: HashMap<u64, Rank>,
}

impl Reader {
    fn calls(&mut self, database: &mut Database, table: &str) -> Result<(), ImportError> {
        database.scan(table, &["start", "end", "globalTid", "correlationId", "nameId"], |row| {
            let name = string(&self.strings, row, 4).map(sqlite::without_version);
            self.gather.add(Event { correlation: row.count(3), ..on_host(row, Kind::Call) }, name);
        })
    }

    /// Ranges; those in the domain `MPI` are MPI calls, which older versions recorded so.
    fn ranges(&mut self, database: &mut Database) -> Result<(), ImportError> {
        let typed = database.has_column("NVTX_EVENTS", "eventType");
        let mut mpi = Vec::new();
        let columns = ["start", "end", "globalTid", "eventType", "text", "textId", "domainId"];
        database.scan("NVTX_EVENTS", &columns, |row| match (row.integer(3), row.text(4)) {
            (Some(DOMAIN), Some(text)) if text == "MPI" => mpi.push((process(row, 2), row.integer(6))),
            (Some(THREAD_NAME), Some(name)) => {
                let rank = name.strip_prefix("MPI Rank ").and_then(|rank| rank.trim().parse().ok());
                self.ranks.extend(process(row, 2).zip(rank.map(Rank)));
            }
            _ => {}
        })?;
        database.scan("NVTX_EVENTS", &columns, |row| {
            let is_range = match row.integer(3) {
                Some(kind) => [PUSHED, STARTED].contains(&kind),
                None => !typed && row.integer(1).is_some(),
            };
            if is_range {
                let text = row.text(4).filter(|text| !text.is_empty());
                let name = text.as_deref().or_else(|| string(&self.strings, row, 5));
                let event = match mpi.contains(&(process(row, 2), row.integer(6))) {
                    true => on_host(row, Kind::Call).exchanging(name.and_then(exchange_of)),
                    false => on_host(row, Kind::Range),
                };
                self.gather.add(event, name);
            }
        })
    }

    /// MPI calls, which later versions record in tables of their own. One call for several requests has a row for each.
    fn mpi(&mut self, database: &mut Database) -> Result<(), ImportError> {
        for table in ["COLLECTIVES", "P2P", "START_WAIT", "OTHER"] {
            let columns = ["start", "end", "globalTid", "textId", "size", "recvSize"];
            let mut seen = BTreeSet::new();
            database.scan(&format!("MPI_{table}_EVENTS"), &columns, |row| {
                if table == "START_WAIT" && !seen.insert([0, 1, 2, 3].map(|at| row.integer(at))) {
                    return;
                }
                let name = string(&self.strings, row, 3);
                let known = name.and_then(exchange_of);
                let operation = known.or(name.filter(|_| table != "OTHER"));
                let event = on_host(row, Kind::Call).exchanging(operation);
                self.gather.add(Event { bytes: row.count(4).max(row.count(5)), ..event }, name);
            })?;
        }
        database.scan("MPI_RANKS", &["globalTid", "rank"], |row| {
            let rank = row.count(1).and_then(|rank| rank.try_into().ok());
            self.ranks.extend(process(row, 0).zip(rank.map(Rank)));
        })
    }
}

/// A name by its number in a column.
fn string<'a>(strings: &'a HashMap<i64, String>, row: &Fields<'_, '_>, at: usize) -> Option<&'a str> {
    strings.get(&row.integer(at)?).map(String::as_str)
}

/// What an MPI call exchanges: `all_reduce` for `MPI_Iallreduce`; `None` for calls that only start, end or ask.
fn exchange_of(call: &str) -> Option<&str> {
    operations::operation(call).or(call.starts_with("MPI_Wait").then_some("wait"))
}

/// Columns 0 to 2: start, end, global number of the thread.
fn on_host<'a>(row: &Fields<'_, '_>, kind: Kind) -> Event<'a> {
    let thread = row.integer(2).map_or(0, |global| global as u64 & 0xff_ffff);
    Event::on_host(row, kind, process(row, 2), thread)
}

/// Errors and warnings of the profiler.
fn diagnostics(database: &mut Database) -> Result<Vec<String>, ImportError> {
    let (mut said, mut more) = (Vec::<String>::new(), 0);
    database.scan("DIAGNOSTIC_EVENT", &["severity", "text"], |row| {
        let word = match row.integer(0) {
            Some(2) => "a warning",
            Some(3..) => "an error",
            _ => return,
        };
        let text = row.text(1).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let text: String = text.chars().take(300).collect();
        let sentence = format!("the profiler reported {word}: {text}");
        match (said.contains(&sentence), said.len() < DIAGNOSTICS) {
            (true, _) => {}
            (false, true) => said.push(sentence),
            (false, false) => more += 1,
        }
    })?;
    if more > 0 {
        said.push(format!("the profiler reported {more} more errors and warnings"));
    }
    Ok(said)
}

/// What the file says about the machine.
#[derive(Default)]
struct Facts {
    host: Option<String>,
    rank_and_world: Option<(u32, u32)>,
    /// Name by the number of the GPU.
    gpus: HashMap<i64, String>,
    /// GPU by process and CUDA's number of the device; without a process if it is the same for every one.
    numbers: HashMap<(Option<u64>, i64), i64>,
}

impl Facts {
    fn read(database: &mut Database) -> Result<Self, ImportError> {
        let mut facts = Self::default();
        database.scan("TARGET_INFO_SYSTEM_ENV", &["name", "value"], |row| match row.text(0).as_deref() {
            Some("Hostname") => facts.host = row.text(1).map(|host| host.into_owned()),
            Some("DeviceEnvironment") => {
                facts.rank_and_world = row.text(1).and_then(|all| rank_and_world(&all))
            }
            _ => {}
        })?;
        // Until 2021, CUDA's own numbers are the only ones.
        database.scan("TARGET_INFO_CUDA_GPU", &["deviceId", "name"], |row| {
            facts.gpus.extend(row.integer(0).zip(row.text(1).map(|name| name.into_owned())));
        })?;
        let counted = database.has_column("TARGET_INFO_GPU", "smCount");
        database.scan("TARGET_INFO_GPU", &["id", "name", "cuDevice", "smCount"], |row| {
            let (Some(id), Some(name)) = (row.integer(0), row.text(1)) else { return };
            facts.gpus.insert(id, name.into_owned());
            // Graphics adapters unknown to CUDA are also listed, all of them as device 0.
            let computes = !counted || row.integer(3).is_some_and(|processors| processors > 0);
            facts.numbers.extend(row.integer(2).filter(|_| computes).map(|device| ((None, device), id)));
        })?;
        database.scan("TARGET_INFO_CUDA_DEVICE", &["pid", "cudaId", "gpuId"], |row| {
            if let (Some(pid), Some(device), Some(gpu)) = (row.count(0), row.integer(1), row.integer(2)) {
                facts.numbers.insert((Some(pid), device), gpu);
            }
        })?;
        Ok(facts)
    }

    fn device_name(&self, process: u64, device: i64) -> Option<String> {
        let gpu = [Some(process), None].iter().find_map(|&process| self.numbers.get(&(process, device)));
        self.gpus.get(gpu.unwrap_or(&device)).cloned()
    }
}

/// A launcher's variables for the rank, in the environment that the profiler was started in.
fn rank_and_world(environment: &str) -> Option<(u32, u32)> {
    let value = |name: &str| {
        let mut lines = environment.split(['\0', '\n']);
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?.trim().parse::<u32>().ok()
    };
    let names =
        [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")];
    names.iter().find_map(|(rank, world)| value(rank).zip(value(world))).filter(|(rank, world)| rank < world)
}
