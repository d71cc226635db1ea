//! A profile on one screen: where the time of devices went, and why they were idle.
//!
//! Works on any trace, split as the steps of a run are ([`super::split`]).

mod gap;
mod render;
#[cfg(test)]
mod tests;
mod window;

use std::collections::BTreeMap;

use paceline_lab::run::Span;
use paceline_lab::stats;
use paceline_record::{Bytes, Nanos};
use serde::Serialize;

use super::spans::Spans;
use super::split::{Part, Parts, Sight, Tiling};
use super::top::{Row, Tally};
use crate::trace::{Kind, Name, Trace};

pub use gap::{Gap, Idle};
pub use render::{percent, render, time};
pub use window::Cut;

/// Rows of each list.
const ROWS: usize = 10;

/// Where the time of a profile went.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// When it was looked at: the steps, if the trace marks any, or what was asked for.
    #[serde(skip)]
    pub window: Spans,
    /// From the trace's begin to the window's.
    pub from: Nanos,
    /// Total length of the window.
    pub length: Nanos,
    /// Length of the trace.
    pub whole: Nanos,
    /// Number of pieces of the window: more than one if a range is opened repeatedly.
    pub stretches: usize,
    /// Whether there is a device; otherwise everything is about the host.
    pub has_device: bool,
    /// Devices that worked in the window.
    pub devices: Vec<DeviceUse>,
    /// The devices together.
    #[serde(rename = "shares")]
    pub breakdown: Breakdown,
    /// What took the largest part of the window.
    pub dominant: Option<Share>,
    /// Kernels by the time they took, the longest first.
    pub kernels: Vec<Work>,
    /// Kernels in all, those not listed too.
    pub kernels_total: Work,
    /// Copies and fills by the time they took.
    pub copies: Vec<Work>,
    /// Collectives by the time they took, under the names of their operations.
    pub collectives: Vec<Work>,
    /// Named ranges by the time they took; they nest, so times overlap.
    pub ranges: Vec<Work>,
    /// Idle time by cause; `None` if it is unknown.
    pub idle: Option<Idle>,
    /// The longest times in which all devices were idle.
    pub gaps: Vec<Gap>,
    /// Steps that lie in the window.
    pub steps: usize,
    /// Their median length: the first also waits for a device that lags behind.
    pub step_median: Option<Nanos>,
    /// Warnings of the file's reader, and what was left out.
    pub warnings: Vec<String>,
}

/// What one device did.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceUse {
    /// Its number.
    pub device: u32,
    /// Its name, where the trace has it.
    pub name: Option<String>,
    /// Time in which it did anything.
    pub busy: Nanos,
    /// `busy` as a fraction of the window; `None` if not all of its work was read.
    pub utilisation: Option<f64>,
}

/// The window, split without overlap: time that fits several kinds counts for the first in this order. Devices count as
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Breakdown {
    /// A kernel ran.
    pub compute: Nanos,
    /// A collective ran, and no kernel.
    pub collective: Nanos,
    /// A copy between host and device ran, and neither of these.
    pub host_copies: Nanos,
    /// A copy on the device or a fill ran, and none of these.
    pub device_copies: Nanos,
    /// Nothing ran; `None` if that is unknown.
    pub idle: Option<Nanos>,
    /// The rest, where idle time is unknown.
    pub unknown: Option<Nanos>,
}

/// A part of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// Kernels.
    Compute,
    /// Collectives that no kernel hides.
    Collective,
    /// Copies between host and device that nothing hides: input and output.
    HostCopies,
    /// Copies on the device, and fills.
    DeviceCopies,
    /// Nothing.
    Idle,
    /// What the trace does not show.
    Unknown,
}

/// Work of one name.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Work {
    /// The name.
    pub name: String,
    /// Number that overlap the window.
    pub count: u64,
    /// Time within the window, summed; work that runs at the same time counts twice.
    pub total: Nanos,
    /// Mean time within the window.
    pub mean: Nanos,
    /// Fraction of the time of all work in the same list; for ranges, which nest, fraction of the window.
    #[serde(rename = "share")]
    pub fraction: f64,
    /// Bytes moved; `None` where the trace does not say for any.
    pub bytes: Option<Bytes>,
    /// Bytes per second of those with known bytes.
    pub bytes_per_s: Option<f64>,
}

/// Where a trace's time went. The error says why there is nothing to look at.
pub fn summarise(trace: &Trace, cut: &Cut<'_>) -> Result<Profile, String> {
    let tiling = Tiling::of(trace);
    let (begin, end) = trace.extent().ok_or("the profile is empty")?;
    let window = cut.find(trace, &tiling.steps)?;
    let length = window.total();
    let parts = window.as_slice().iter().map(|span| tiling.within(*span)).sum::<Parts>();
    let breakdown = Breakdown::of(&parts, tiling.knows_idle);
    let lists = tally(trace, &window);
    let [(kernels, kernels_total), (copies, _), (collectives, _), (mut ranges, _)] = lists;
    for range in &mut ranges {
        range.fraction = range.total.0 as f64 / length.0.max(1) as f64;
    }
    let inside = |begin: Nanos, end: Nanos| window.within(Span { begin, end }) == end.since(begin);
    let lengths = tiling.steps.iter().filter(|step| inside(step.begin, step.end));
    let lengths: Vec<f64> = lengths.map(|step| step.end.since(step.begin).0 as f64).collect();
    let mut warnings = trace.warnings.clone();
    if *cut == Cut::default() {
        warnings.extend(tiling.notes.iter().cloned());
    }
    let devices = devices(trace, &window);
    if devices.len() > 1 {
        warnings.push(format!("{} devices count as one, which is idle when all of them are", devices.len()));
    }
    Ok(Profile {
        from: window.as_slice().first().map_or(Nanos(0), |first| first.begin.since(begin)),
        length,
        whole: end.since(begin),
        stretches: window.as_slice().len(),
        has_device: trace.has_device(),
        dominant: breakdown.dominant(),
        devices,
        breakdown,
        kernels,
        kernels_total,
        copies,
        collectives,
        ranges,
        idle: tiling.knows_idle.then(|| Idle::of(&parts)),
        gaps: if tiling.knows_idle { gap::longest(trace, &tiling, &window) } else { Vec::new() },
        steps: lengths.len(),
        step_median: stats::median(&lengths).map(|nanos| Nanos(nanos as u64)),
        warnings,
        window,
    })
}

/// Kernels, copies, collectives and ranges, each with their total.
fn tally(trace: &Trace, window: &Spans) -> [(Vec<Work>, Work); 4] {
    let sight = Sight::of(trace);
    let mut operations = trace.collectives.iter().map(|one| (one.slice, one.operation)).peekable();
    // A range may occur twice: on the host that opened it and on the device that reached it.
    let is_range = |kind: Kind| kind == Kind::Range;
    let by_host = trace.slices.iter().any(|slice| is_range(slice.kind) && trace.device_of(slice).is_none());
    let mut lists: [Tally<'_>; 4] = Default::default();
    for (at, slice) in trace.slices.iter().enumerate() {
        let operation: Option<Name> = operations.next_if(|(slice, _)| *slice == at).map(|one| one.1);
        let list = match slice.kind {
            Kind::Range if trace.device_of(slice).is_none() || !by_host => 3,
            Kind::Range | Kind::Call | Kind::Operator => continue,
            _ if !sight.counts(trace, slice) => continue,
            Kind::Compute => 0,
            Kind::Collective => 2,
            Kind::CopyIn | Kind::CopyOut | Kind::CopyDevice | Kind::Fill => 1,
        };
        lists[list].add(trace.names.text(operation.unwrap_or(slice.name)), slice, window);
    }
    lists.map(|list| {
        let (rows, all) = list.rows(ROWS);
        let total = all.total;
        (rows.into_iter().map(|(name, row)| work(name, row, total)).collect(), work("all", all, total))
    })
}

fn work(name: &str, row: Row, all: Nanos) -> Work {
    Work {
        name: name.into(),
        count: row.count,
        total: row.total,
        mean: Nanos(row.total.0 / row.count.max(1)),
        fraction: if all.is_zero() { 0.0 } else { row.total.0 as f64 / all.0 as f64 },
        bytes: row.bytes.map(Bytes),
        bytes_per_s: row
            .bytes
            .filter(|_| row.moving > 0)
            .map(|bytes| bytes as f64 / (row.moving as f64 * 1e-9)),
    }
}

fn devices(trace: &Trace, window: &Spans) -> Vec<DeviceUse> {
    let mut busy: BTreeMap<u32, Spans> = BTreeMap::new();
    for slice in trace.slices.iter().filter(|slice| slice.kind.is_device_work()) {
        if let Some(device) = trace.device_of(slice) {
            busy.entry(device).or_default().push(slice.begin, slice.end);
        }
    }
    let length = window.total().0 as f64;
    let used = |(device, busy): (u32, Spans)| {
        let busy = busy.intersect(window).total();
        let utilisation = (length > 0.0 && !trace.unread).then(|| busy.0 as f64 / length);
        DeviceUse { device, name: trace.devices.get(device as usize).cloned(), busy, utilisation }
    };
    busy.into_iter().map(used).collect()
}

impl Breakdown {
    fn of(parts: &Parts, knows_idle: bool) -> Self {
        let sum = |of: &[Part]| of.iter().map(|part| parts[*part]).sum::<Nanos>();
        let rest = sum(&[
            Part::Loading,
            Part::SetUp,
            Part::HostLate,
            Part::Queued,
            Part::NothingQueued,
            Part::Unknown,
        ]);
        Self {
            compute: sum(&[Part::Update, Part::Backward, Part::Forward, Part::Compute]),
            collective: parts[Part::Collective],
            host_copies: sum(&[Part::CopyIn, Part::CopyOut]),
            device_copies: parts[Part::CopyDevice],
            idle: knows_idle.then_some(rest),
            unknown: (!knows_idle).then_some(rest),
        }
    }

    /// All parts with their time.
    pub fn parts(&self) -> [(Share, Nanos); 6] {
        [
            (Share::Compute, self.compute),
            (Share::Collective, self.collective),
            (Share::HostCopies, self.host_copies),
            (Share::DeviceCopies, self.device_copies),
            (Share::Idle, self.idle.unwrap_or_default()),
            (Share::Unknown, self.unknown.unwrap_or_default()),
        ]
    }

    fn dominant(&self) -> Option<Share> {
        let largest = self.parts().into_iter().rev().max_by_key(|(_, time)| *time)?;
        (largest.1.0 > 0).then_some(largest.0)
    }
}
