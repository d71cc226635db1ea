//! Horovod's timeline: the exchange of each tensor as rank 0 saw it, and when each rank was ready for it.
//!
//! ```text
//! [ {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10, "pid": 1},     a tensor is a process
//!   {"ph": "X", "name": "3", "ts": 12, "pid": 1, "dur": 0},             rank 3 is ready
//!   {"ph": "E", "ts": 20, "pid": 1},                                    all are
//!   {"ph": "B", "name": "ALLREDUCE", ...}, {"ph": "B", "name": "NCCL_ALLREDUCE", ...}, {"ph": "E", ...}, {"ph": "E", ...}
//! ```
//!
//! The file is written during the run: its end may be missing, and events of several threads may be out of order. Fused
//! tensors go through the same activities at the same time, so times are added as the union of intervals.

mod objects;
mod steps;
mod summary;

use std::collections::{HashMap, HashSet};
use std::io::BufReader;
use std::path::Path;

use paceline_record::{Bytes, Nanos, Rank};
use serde::Deserialize;

use self::objects::{Found, Objects};
pub use self::summary::{ActivityTotal, Lateness, Summary};
use super::{ImportError, open};
use crate::trace::{Name, Names};

/// Most exchanges, arrivals and activities that are kept.
const MOST: usize = 8_000_000;

/// Higher rank numbers are treated as damage.
const RANKS: u32 = 1 << 16;

/// One activity in the exchange of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Its name, such as `NCCL_ALLREDUCE` or `MEMCPY_IN_FUSION_BUFFER`.
    pub name: Name,
    /// Begin.
    pub begin: Nanos,
    /// End; `None` if missing.
    pub end: Option<Nanos>,
}

/// One exchange of one tensor. Times missing from the timeline are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exchange {
    /// Index of the tensor, in order of first occurrence.
    pub tensor: usize,
    /// The operation, such as `ALLREDUCE`.
    pub operation: Option<Name>,
    /// When the first rank asked for it.
    pub asked: Option<Nanos>,
    /// When each rank was ready, ordered by rank.
    pub arrivals: Vec<(Rank, Nanos)>,
    /// When all ranks were ready.
    pub negotiated: Option<Nanos>,
    /// When the operation began.
    pub begin: Option<Nanos>,
    /// Its activities.
    pub activities: Vec<Activity>,
    /// When it ended.
    pub end: Option<Nanos>,
    /// Size of the tensor.
    pub bytes: Option<Bytes>,
}

impl Exchange {
    /// Its first known time.
    pub fn first(&self) -> Option<Nanos> {
        let arrived = self.arrivals.iter().map(|&(_, at)| at).min();
        [self.asked, arrived, self.begin].into_iter().flatten().min()
    }

    /// The last rank to arrive, and when.
    pub fn last_arrival(&self) -> Option<(Rank, Nanos)> {
        self.arrivals.iter().copied().max_by_key(|&(rank, at)| (at, std::cmp::Reverse(rank)))
    }
}

/// The contents of a timeline.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Names of the tensors.
    pub tensors: Vec<String>,
    /// Names of operations and activities.
    pub names: Names,
    /// Exchanges in file order.
    pub exchanges: Vec<Exchange>,
    /// Marked cycles of Horovod's loop.
    pub cycles: u64,
    /// Events of all kinds.
    pub events: u64,
    /// What was salvaged, guessed or skipped, one sentence each.
    pub warnings: Vec<String>,
}

/// Whether a file with this beginning is a Horovod timeline.
pub fn recognise(head: &[u8]) -> bool {
    let has = |words: &[u8]| head.windows(words.len()).any(|part| part == words);
    head.trim_ascii_start().first() == Some(&b'[')
        && has(b"\"ph\"")
        && (has(b"\"NEGOTIATE_") || has(b"\"CYCLE_START\"") || has(b"start_time_since_epoch_in_micros"))
}

/// Reads a timeline. A truncated or damaged file gives what can be read, with a warning.
pub fn read(path: &Path) -> Result<Timeline, ImportError> {
    let failed = |source| ImportError::Io { path: path.into(), source };
    let mut objects = Objects::new(BufReader::new(open::open(path)?));
    if !objects.enter().map_err(failed)? {
        return Err(ImportError::bad(path, "not a Horovod timeline: it is not a JSON array"));
    }
    let mut reader = Reader::default();
    let mut object = Vec::new();
    loop {
        match objects.next(&mut object).map_err(failed)? {
            Found::Object => reader.take(&object),
            Found::TooLong => reader.damaged += 1,
            Found::End => break,
            Found::Torn => {
                reader.timeline.warnings.push("the last event is truncated".into());
                break;
            }
        }
    }
    if reader.timeline.events == 0 {
        return Err(ImportError::bad(path, "not a Horovod timeline: it has no events"));
    }
    Ok(reader.close())
}

/// An event as it is written.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    ph: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    name: std::borrow::Cow<'a, str>,
    #[serde(default)]
    ts: Option<f64>,
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    args: Args,
}

#[derive(Default, Deserialize)]
struct Args {
    name: Option<String>,
    dtype: Option<String>,
    shape: Option<String>,
}

/// What has begun but not ended.
enum Open {
    Negotiation,
    Operation,
    Activity(usize),
}

/// State of a tensor.
#[derive(Default)]
struct Tensor {
    place: usize,
    exchange: Option<usize>,
    open: Vec<Open>,
}

#[derive(Default)]
struct Reader {
    timeline: Timeline,
    tensors: HashMap<u64, Tensor>,
    kept: usize,
    damaged: u64,
    unmatched: u64,
    left_out: u64,
}

impl Reader {
    fn take(&mut self, object: &[u8]) {
        let Ok(event) = serde_json::from_slice::<Event>(object) else {
            self.damaged += 1;
            return;
        };
        self.timeline.events += 1;
        if self.kept >= MOST {
            self.left_out += 1;
            return;
        }
        let at = event.ts.and_then(nanos);
        match (event.ph.as_ref(), at) {
            ("M", _) => {
                if let (true, Some(name)) = (event.name == "process_name", event.args.name) {
                    let place = self.tensor(event.pid).place;
                    self.timeline.tensors[place] = name;
                }
            }
            ("i" | "I", _) => self.timeline.cycles += u64::from(event.name == "CYCLE_START"),
            ("B", Some(at)) => self.begin(event.pid, &event.name, at),
            ("X", Some(at)) => match event.name.parse() {
                Ok(rank) if rank < RANKS => self.arrive(event.pid, Rank(rank), at),
                _ => self.unmatched += 1,
            },
            ("E", Some(at)) => self.end(event.pid, at, &event.args),
            _ => self.unmatched += 1,
        }
    }

    fn tensor(&mut self, pid: u64) -> &mut Tensor {
        let tensors = &mut self.timeline.tensors;
        self.tensors.entry(pid).or_insert_with(|| {
            self.kept += 1;
            tensors.push(format!("tensor {pid}"));
            Tensor { place: tensors.len() - 1, ..Tensor::default() }
        })
    }

    /// The tensor's exchange, or a new one unless `fits` says that the event belongs to it.
    fn exchange(&mut self, pid: u64, fits: impl Fn(&Exchange) -> bool) -> (&mut Exchange, &mut Vec<Open>) {
        self.kept += 1;
        self.tensor(pid);
        let tensor = self.tensors.get_mut(&pid).expect("invariant: it was just entered");
        let exchanges = &mut self.timeline.exchanges;
        let known = tensor.exchange.filter(|&place| fits(&exchanges[place]));
        let place = known.unwrap_or_else(|| {
            exchanges.push(Exchange { tensor: tensor.place, ..Exchange::default() });
            tensor.open.clear();
            exchanges.len() - 1
        });
        tensor.exchange = Some(place);
        (&mut exchanges[place], &mut tensor.open)
    }

    fn begin(&mut self, pid: u64, name: &str, at: Nanos) {
        if let Some(operation) = name.strip_prefix("NEGOTIATE_") {
            let operation = self.timeline.names.enter(operation);
            let (exchange, open) =
                self.exchange(pid, |exchange| exchange.asked.is_none() && exchange.begin.is_none());
            exchange.asked = Some(at);
            exchange.operation = Some(operation);
            open.push(Open::Negotiation);
            return;
        }
        let known = self.timeline.names.enter(name);
        let (exchange, open) = self.exchange(pid, |exchange| exchange.end.is_none());
        if exchange.begin.is_some() {
            open.push(Open::Activity(exchange.activities.len()));
            exchange.activities.push(Activity { name: known, begin: at, end: None });
        } else {
            exchange.begin = Some(at);
            exchange.operation.get_or_insert(known);
            // A negotiation without an end must have ended before.
            open.clear();
            open.push(Open::Operation);
        }
    }

    fn arrive(&mut self, pid: u64, rank: Rank, at: Nanos) {
        // Threads write out of order: an arrival may come after the end of its negotiation.
        let fits = |exchange: &Exchange| exchange.negotiated.or(exchange.begin).is_none_or(|all| at <= all);
        let (exchange, _) = self.exchange(pid, fits);
        if let Err(place) = exchange.arrivals.binary_search_by_key(&rank, |&(rank, _)| rank) {
            exchange.arrivals.insert(place, (rank, at));
        }
    }

    fn end(&mut self, pid: u64, at: Nanos, args: &Args) {
        let tensor = self.tensors.get_mut(&pid);
        let ended = tensor.and_then(|tensor| Some((tensor.open.pop()?, tensor.exchange?)));
        let Some((open, exchange)) = ended else {
            self.unmatched += 1;
            return;
        };
        let exchange = &mut self.timeline.exchanges[exchange];
        match open {
            Open::Negotiation => exchange.negotiated = Some(at),
            Open::Activity(place) => {
                let activity = &mut exchange.activities[place];
                activity.end = Some(at.max(activity.begin));
            }
            Open::Operation => {
                exchange.end = Some(at.max(exchange.begin.unwrap_or_default()));
                exchange.bytes = size_of(args);
            }
        }
    }

    /// Ranks are numbered without large gaps: a number far beyond their count is damage.
    fn drop_strangers(&mut self) {
        let exchanges = &mut self.timeline.exchanges;
        let ranks = || exchanges.iter().flat_map(|exchange| &exchange.arrivals).map(|&(rank, _)| rank);
        let distinct: HashSet<Rank> = ranks().collect();
        let most = 4 * distinct.len() + 64;
        let strangers = ranks().filter(|rank| rank.0 as usize >= most).count();
        if strangers > 0 {
            exchanges
                .iter_mut()
                .for_each(|exchange| exchange.arrivals.retain(|(rank, _)| (rank.0 as usize) < most));
            self.damaged += strangers as u64;
        }
    }

    fn close(mut self) -> Timeline {
        self.drop_strangers();
        let timeline = &mut self.timeline;
        let unknown = timeline.exchanges.iter().filter(|exchange| exchange.arrivals.is_empty()).count();
        for (count, what) in [
            (self.damaged, "events cannot be read and were skipped"),
            (self.unmatched, "events have no begin, no time or no meaning and were skipped"),
            (self.left_out, "events exceed the limit and were skipped"),
            (
                unknown as u64,
                "exchanges have no arrivals: Horovod answers known tensors from a cache (set HOROVOD_CACHE_CAPACITY=0 to record them)",
            ),
        ] {
            if count > 0 {
                timeline.warnings.push(format!("{count} {what}"));
            }
        }
        self.timeline
    }
}

fn nanos(micros: f64) -> Option<Nanos> {
    (0.0..1e15).contains(&micros).then(|| Nanos((micros * 1e3).round() as u64))
}

/// Bytes of a tensor from its type and shape, such as `float32` and `[64, 3, 7, 7]`.
fn size_of(args: &Args) -> Option<Bytes> {
    let width = match args.dtype.as_deref()? {
        "uint8" | "int8" | "bool" | "byte" => 1,
        "uint16" | "int16" | "float16" | "bfloat16" => 2,
        "int32" | "float32" => 4,
        "int64" | "float64" => 8,
        _ => return None,
    };
    let shape = args.shape.as_deref()?.trim().strip_prefix('[')?.strip_suffix(']')?;
    let dimensions = shape.split(',').map(str::trim).filter(|dimension| !dimension.is_empty());
    let size = dimensions
        .map(str::parse::<u64>)
        .try_fold(width, |size: u64, dimension| size.checked_mul(dimension.ok()?));
    size.map(Bytes)
}

#[cfg(test)]
mod tests;
