//! Horovod's timeline: the exchange of each tensor as rank 0 saw it, and when each rank was ready for it.
//!
//! ```text
//! [ {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10, "pid": 1},     a tensor is a process
//!   {"ph": "X", "name": "3", "ts": 12, "pid": 1, "dur": 0},             rank 3 is ready
//!   {"ph": "E", "ts": 20, "pid": 1},                                    all are
//!   {"ph": "B", "name": "ALLREDUCE", ...}, {"ph": "B", "name": "NCCL_ALLREDUCE", ...}, {"ph": "E", ...}, {"ph": "E", ...}
//! ```
//!
//! The file is written during the run: its end may be missing, and events of several threads may be out of order. Horovod
//! answers for tensors that it knows from a cache, without a negotiation: then nobody can tell when ranks were ready.

mod rounds;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;

use paceline_record::{Bytes, Nanos, Rank};
use serde::Deserialize;
use serde_json::Value;

use super::kineto::window::{Halt, Window};
use super::{ImportError, open, operations};
use crate::trace::Trace;

/// Most tensors, exchanges and arrivals that are kept.
const MOST: usize = 8_000_000;

/// One exchange of one tensor, from the first rank that is ready to the end of the operation.
#[derive(Clone, Debug, Default, PartialEq)]
struct Exchange {
    /// The tensor's number in the file.
    tensor: u64,
    /// What moved the bytes, such as `NCCL_ALLREDUCE`; the operation itself where that is not shown.
    name: String,
    /// When each rank was ready, ordered by rank.
    arrivals: Vec<(Rank, Nanos)>,
    /// Begin and end of what moved the bytes, or of the operation.
    begin: Nanos,
    end: Nanos,
    bytes: Option<Bytes>,
}

/// Whether a file with this beginning is a Horovod timeline.
pub fn recognise(head: &[u8]) -> bool {
    let says =
        |words: &[&str]| words.iter().any(|word| memchr::memmem::find(head, word.as_bytes()).is_some());
    head.trim_ascii_start().first() == Some(&b'[')
        && says(&["\"ph\""])
        && says(&[
            "\"NEGOTIATE_",
            "\"CYCLE_START\"",
            "Horovod",
            "\"ALLREDUCE\"",
            "\"ALLGATHER\"",
            "\"BROADCAST\"",
        ])
}

/// Reads a timeline: a trace of each rank if it shows when they were ready, otherwise one of what its writer saw. Of a
/// damaged file, what comes before the damage is read, with a warning.
pub fn read(path: &Path) -> Result<Vec<Trace>, ImportError> {
    let mut reader = Reader::default();
    let mut window = Window::new(open::open(path)?);
    let mut warnings = Vec::new();
    match reader.read(&mut window) {
        // The array is closed only at the end of the run.
        Ok(()) | Err(Halt::Ended(None)) => {}
        Err(Halt::Ended(Some(source))) if !open::is_damage(&source) => {
            return Err(ImportError::Io { path: path.into(), source });
        }
        Err(_) => {
            warnings.push(format!("it is damaged after byte {}; what follows was not read", window.offset()))
        }
    }
    if reader.events == 0 {
        return Err(ImportError::bad(path, "not a Horovod timeline: it is no array of events"));
    }
    for (count, what) in [
        (reader.unmatched, "events have no begin, no time or no meaning and were skipped"),
        (reader.left_out, "events exceed the limit and were skipped"),
    ] {
        if count > 0 {
            warnings.push(format!("{count} {what}"));
        }
    }
    if reader.ended.is_empty() {
        let begun = reader.tensors.values().filter(|tensor| tensor.is_begun()).count();
        let why = format!("none of the {begun} exchanges that begin in this Horovod timeline ends");
        return Err(ImportError::bad(path, why));
    }
    let names = reader.tensors.into_iter().map(|(pid, tensor)| (pid, tensor.name)).collect();
    Ok(rounds::make_traces(reader.ended, &names, warnings))
}

/// An event as it is written.
#[derive(Deserialize)]
struct Event {
    ph: String,
    #[serde(default)]
    name: String,
    ts: Option<f64>,
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    args: Value,
}

/// What has begun but not ended.
enum Open {
    Negotiation,
    Operation,
    /// An activity, with its begin; it may move bytes.
    Activity(String, Nanos),
}

#[derive(Default)]
struct Tensor {
    name: String,
    exchange: Exchange,
    /// Whether its times are those of what moved the bytes.
    moved: bool,
    open: Vec<Open>,
}

impl Tensor {
    fn is_begun(&self) -> bool {
        !self.open.is_empty() || !self.exchange.arrivals.is_empty()
    }

    /// Copies, queues and waiting for data are no exchange; what is named after an operation is.
    fn end_activity(&mut self, name: String, begin: Nanos, end: Nanos) {
        if operations::operation(&name).is_none() || name.contains("COPY") {
            return;
        }
        let exchange = &mut self.exchange;
        if self.moved {
            // In a hierarchy of ranks, one follows the other.
            exchange.name = format!("{}, {name}", exchange.name);
            exchange.end = exchange.end.max(end);
        } else {
            (exchange.name, exchange.begin, exchange.end) = (name, begin, end.max(begin));
            self.moved = true;
        }
    }
}

#[derive(Default)]
struct Reader {
    tensors: HashMap<u64, Tensor>,
    ended: Vec<Exchange>,
    events: u64,
    kept: usize,
    unmatched: u64,
    left_out: u64,
}

impl Reader {
    fn read(&mut self, window: &mut Window) -> Result<(), Halt> {
        window.read(|cursor| cursor.expect(b'['))?;
        while let Some(event) = window.read(|cursor| match cursor.element()? {
            true => Ok(Some(serde_json::from_slice::<Event>(cursor.value()?.raw).ok())),
            false => Ok(None),
        })? {
            self.events += u64::from(event.is_some());
            if self.kept >= MOST {
                self.left_out += 1;
            } else if !event.is_some_and(|event| self.take(event)) {
                self.unmatched += 1;
            }
        }
        Ok(())
    }

    /// Takes an event; whether it has a meaning.
    fn take(&mut self, event: Event) -> bool {
        let at = event.ts.filter(|micros| (0.0..1e15).contains(micros));
        let at = at.map(|micros| Nanos((micros * 1e3).round() as u64));
        if matches!(event.ph.as_str(), "i" | "I") || event.ph == "M" && event.name != "process_name" {
            return true;
        }
        self.kept += usize::from(!self.tensors.contains_key(&event.pid));
        let tensor = self.tensors.entry(event.pid).or_default();
        match (event.ph.as_str(), at) {
            ("M", _) => event.args["name"].as_str().unwrap_or_default().clone_into(&mut tensor.name),
            ("B", Some(_)) if event.name.starts_with("NEGOTIATE_") => {
                if !tensor.open.is_empty() {
                    tensor.exchange = Exchange::default();
                }
                tensor.open = vec![Open::Negotiation];
            }
            ("B", Some(at)) if matches!(tensor.open.first(), Some(Open::Operation)) => {
                tensor.open.push(Open::Activity(event.name, at));
            }
            ("B", Some(at)) => {
                // A negotiation without an end must have ended before.
                (tensor.open, tensor.moved) = (vec![Open::Operation], false);
                (tensor.exchange.name, tensor.exchange.begin) = (event.name, at);
            }
            ("X", Some(at)) => {
                let Ok(rank) = event.name.parse().map(Rank) else { return false };
                let arrivals = &mut tensor.exchange.arrivals;
                if let Err(place) = arrivals.binary_search_by_key(&rank, |&(rank, _)| rank) {
                    arrivals.insert(place, (rank, at));
                    self.kept += 1;
                }
            }
            ("E", Some(at)) => match tensor.open.pop() {
                Some(Open::Negotiation) => {}
                Some(Open::Activity(name, begin)) => tensor.end_activity(name, begin, at),
                Some(Open::Operation) => {
                    let mut exchange = std::mem::take(&mut tensor.exchange);
                    if !tensor.moved {
                        exchange.end = at.max(exchange.begin);
                    }
                    (exchange.tensor, exchange.bytes) = (event.pid, size_of(&event.args));
                    self.ended.push(exchange);
                    self.kept += 1;
                }
                None => return false,
            },
            _ => return false,
        }
        true
    }
}

/// Bytes of a tensor from its type and shape, such as `float32` and `[64, 3, 7, 7]`.
fn size_of(args: &Value) -> Option<Bytes> {
    let width = operations::element_size(args["dtype"].as_str()?)?;
    let shape = args["shape"].as_str()?.trim().strip_prefix('[')?.strip_suffix(']')?;
    let dimensions = shape.split(',').map(str::trim).filter(|dimension| !dimension.is_empty());
    let size = dimensions
        .map(str::parse::<u64>)
        .try_fold(width, |size: u64, dimension| size.checked_mul(dimension.ok()?));
    size.map(Bytes)
}
