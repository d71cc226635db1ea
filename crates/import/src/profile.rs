//! A profile on one screen: where the time of a device went, and why it was idle.
//!
//! Works on any trace. Without a device, the host's computation is used instead.

mod gap;
mod render;
#[cfg(test)]
mod tests;
mod window;

use std::collections::{BTreeMap, HashMap};

use paceline_lab::run::Span;
use paceline_record::{Bytes, Nanos};
use serde::Serialize;

use super::idle::Host;
use super::spans::Spans;
use crate::trace::{Kind, Name, Slice, Trace};

pub use gap::{Gap, Idle};
pub use render::render;
pub use window::{cut, whole};

/// Rows of each list.
const ROWS: usize = 10;

/// Where the time of a profile went.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// From the trace's begin to the window's.
    pub from: Nanos,
    /// Total length of the window.
    pub length: Nanos,
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
    pub dominant: Option<Part>,
    /// Kernels by the time they took, the longest first.
    pub kernels: Vec<Work>,
    /// Kernels in all, those not listed too.
    pub kernels_total: Work,
    /// Copies and fills by the time they took.
    pub copies: Vec<Work>,
    /// Collectives by the time they took, under the names of their operations.
    pub collectives: Vec<Work>,
    /// Number of these, and of the ranges, that the window cuts; means are of whole ones.
    pub cut: u64,
    /// Named ranges by the time they took; they nest, so times overlap.
    pub ranges: Vec<Work>,
    /// Idle time by cause, over all devices.
    pub idle: Idle,
    /// The longest times in which a device was idle.
    pub gaps: Vec<Gap>,
    /// Steps that lie in the window.
    pub steps: usize,
    /// Their mean length.
    pub step_mean: Option<Nanos>,
    /// Warnings of the file's reader.
    pub warnings: Vec<String>,
}

/// What one device did.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceUse {
    /// Its number; `None` for the host.
    pub device: Option<u32>,
    /// Its name, where the trace has it.
    pub name: Option<String>,
    /// Time in which it did anything.
    pub busy: Nanos,
    /// `busy` as a fraction of the window.
    pub utilisation: Option<f64>,
}

/// The window of every device, split without overlap: time that fits several kinds counts for the first in this order.
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
    /// Nothing ran.
    pub idle: Nanos,
}

/// A part of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
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
    /// Number of those that the window cuts.
    pub cut: u64,
    /// Their mean length, including parts outside the window.
    pub mean: Nanos,
    /// Fraction of the time of all work in the same list; for ranges, which nest, fraction of the window.
    #[serde(rename = "share")]
    pub fraction: f64,
    /// Bytes moved; `None` where the trace does not say for any.
    pub bytes: Option<Bytes>,
    /// Bytes per second of those with known bytes.
    pub bytes_per_s: Option<f64>,
}

/// Where a trace's time went within a window, such as [`whole`].
pub fn summarise(trace: &Trace, window: &Spans) -> Profile {
    let origin = trace.extent().unwrap_or_default().0;
    let length = window.total();
    let has_device = trace.has_device();
    let operations: HashMap<usize, Name> =
        trace.collectives.iter().map(|one| (one.slice, one.operation)).collect();
    let device_of = |slice: &Slice| trace.tracks.get(slice.track as usize).and_then(|track| track.device);
    // A range may occur twice: on the host that opened it and on the device that reached it.
    let by_host = trace.slices.iter().any(|slice| slice.kind == Kind::Range && device_of(slice).is_none());
    let mut lists: [Tally<'_>; 4] = Default::default();
    let mut work: BTreeMap<Option<u32>, Vec<Slice>> = BTreeMap::new();
    for (at, slice) in trace.slices.iter().enumerate() {
        let device = device_of(slice);
        if slice.kind.is_device_work() && device.is_some() == has_device {
            work.entry(device).or_default().push(*slice);
        }
        let list = match slice.kind {
            Kind::Compute => 0,
            Kind::CopyIn | Kind::CopyOut | Kind::CopyDevice | Kind::Fill => 1,
            Kind::Collective => 2,
            Kind::Range if device.is_none() || !by_host => 3,
            Kind::Range | Kind::Call | Kind::Operator => continue,
        };
        let name = operations.get(&at).copied().unwrap_or(slice.name);
        lists[list].add(trace.names.text(name), slice, window);
    }
    let host = Host::of(trace);
    let (mut breakdown, mut idle, mut gaps) = (Breakdown::default(), Idle::default(), Vec::new());
    let mut devices = Vec::new();
    for (&device, slices) in &work {
        let (split, busy) = split(slices, window);
        breakdown.add(split);
        let name = device.and_then(|device| trace.devices.get(device as usize).cloned());
        let worked = length.since(split.idle);
        let utilisation = (length.0 > 0).then(|| worked.0 as f64 / length.0 as f64);
        devices.push(DeviceUse { device, name, busy: worked, utilisation });
        let causes = host.explain(slices.iter().rev(), &busy);
        gaps.extend(gap::find(&busy, window, &causes).map(|gap| Gap { device, ..gap }));
    }
    gaps.iter().for_each(|gap| idle.add(gap.idle));
    gaps.sort_by_key(|gap| (std::cmp::Reverse(gap.length), gap.from));
    gaps.truncate(ROWS / 2);
    for gap in &mut gaps {
        gap.host = gap::host_activity(trace, Span { begin: gap.from, end: gap.from + gap.length });
        gap.from = gap.from.since(origin);
    }
    let inside = |begin: Nanos, end: Nanos| window.within(Span { begin, end }) == end.since(begin);
    let steps = trace.steps.iter().filter(|step| step.begin < step.end && inside(step.begin, step.end));
    let lengths: Vec<Nanos> = steps.map(|step| step.end.since(step.begin)).collect();
    let lists = lists.map(Tally::rows);
    let cut = lists.iter().map(|(_, all)| all.cut).sum();
    let [(kernels, kernels_total), (copies, _), (collectives, _), (mut ranges, _)] = lists;
    for range in &mut ranges {
        range.fraction = range.total.0 as f64 / length.0.max(1) as f64;
    }
    Profile {
        from: window.as_slice().first().map_or(Nanos(0), |first| first.begin.since(origin)),
        length,
        stretches: window.as_slice().len(),
        has_device,
        dominant: breakdown.dominant(),
        devices,
        breakdown,
        kernels,
        kernels_total,
        copies,
        collectives,
        cut,
        ranges,
        idle,
        gaps,
        steps: lengths.len(),
        step_mean: (!lengths.is_empty()).then(|| Nanos(sum(&lengths).0 / lengths.len() as u64)),
        warnings: trace.warnings.clone(),
    }
}

impl Breakdown {
    fn add(&mut self, other: Self) {
        let Self { compute, collective, host_copies, device_copies, idle } = other;
        for (all, one) in [
            (&mut self.compute, compute),
            (&mut self.collective, collective),
            (&mut self.host_copies, host_copies),
            (&mut self.device_copies, device_copies),
            (&mut self.idle, idle),
        ] {
            *all = sum(&[*all, one]);
        }
    }

    /// All parts with their time.
    pub fn parts(&self) -> [(Part, Nanos); 5] {
        [
            (Part::Compute, self.compute),
            (Part::Collective, self.collective),
            (Part::HostCopies, self.host_copies),
            (Part::DeviceCopies, self.device_copies),
            (Part::Idle, self.idle),
        ]
    }

    fn dominant(&self) -> Option<Part> {
        let largest = self.parts().into_iter().rev().max_by_key(|(_, time)| *time)?;
        (largest.1.0 > 0).then_some(largest.0)
    }
}

/// Splits a window among the kinds of work that cover it; also returns all time with any work, inside the window or not.
fn split(slices: &[Slice], window: &Spans) -> (Breakdown, Spans) {
    let mut kinds: [Spans; 4] = Default::default();
    for slice in slices {
        let kind = match slice.kind {
            Kind::Compute => 0,
            Kind::Collective => 1,
            Kind::CopyIn | Kind::CopyOut => 2,
            _ => 3,
        };
        kinds[kind].push(slice.begin, slice.end);
    }
    let mut busy = Spans::default();
    let [compute, collective, host_copies, device_copies] = kinds.map(|kind| {
        let own = kind.subtract(&busy);
        busy = busy.union(&own);
        own.intersect(window).total()
    });
    let idle = window.subtract(&busy).total();
    (Breakdown { compute, collective, host_copies, device_copies, idle }, busy)
}

/// Work summed up by name.
#[derive(Default)]
struct Tally<'trace> {
    rows: HashMap<&'trace str, Row>,
}

#[derive(Clone, Copy, Default)]
struct Row {
    count: u64,
    cut: u64,
    inside: u64,
    whole: u64,
    bytes: Option<u64>,
    bytes_time: u64,
}

impl<'trace> Tally<'trace> {
    fn add(&mut self, name: &'trace str, slice: &Slice, window: &Spans) {
        let inside = window.within(Span { begin: slice.begin, end: slice.end });
        if inside.is_zero() && (slice.begin < slice.end || !window.contains(slice.begin)) {
            return;
        }
        let whole = slice.end.since(slice.begin).0;
        let row = self.rows.entry(name).or_default();
        row.count += 1;
        row.cut += u64::from(inside.0 < whole);
        row.inside = row.inside.saturating_add(inside.0);
        row.whole = row.whole.saturating_add(whole);
        if let Some(Bytes(bytes)) = slice.bytes {
            row.bytes = Some(row.bytes.unwrap_or(0).saturating_add(bytes));
            row.bytes_time = row.bytes_time.saturating_add(whole);
        }
    }

    /// The longest, and all together.
    fn rows(self) -> (Vec<Work>, Work) {
        let all = self.rows.values().fold(Row::default(), |all, row| Row {
            count: all.count + row.count,
            cut: all.cut + row.cut,
            inside: all.inside.saturating_add(row.inside),
            whole: all.whole.saturating_add(row.whole),
            bytes: all.bytes.into_iter().chain(row.bytes).reduce(u64::saturating_add),
            bytes_time: all.bytes_time.saturating_add(row.bytes_time),
        });
        let mut rows: Vec<(&str, Row)> = self.rows.into_iter().collect();
        rows.sort_by_key(|&(name, row)| (std::cmp::Reverse(row.inside), name));
        rows.truncate(ROWS);
        (
            rows.into_iter().map(|(name, row)| row.work(name, all.inside)).collect(),
            all.work("all", all.inside),
        )
    }
}

impl Row {
    fn work(self, name: &str, all: u64) -> Work {
        let bandwidth = |bytes| (self.bytes_time > 0).then(|| bytes as f64 / (self.bytes_time as f64 * 1e-9));
        Work {
            name: name.into(),
            count: self.count,
            cut: self.cut,
            total: Nanos(self.inside),
            mean: Nanos(self.whole / self.count.max(1)),
            fraction: if all > 0 { self.inside as f64 / all as f64 } else { 0.0 },
            bytes: self.bytes.map(Bytes),
            bytes_per_s: self.bytes.and_then(bandwidth),
        }
    }
}

/// A sum that damaged times cannot overflow.
fn sum(times: &[Nanos]) -> Nanos {
    Nanos(times.iter().fold(0, |sum, time| sum.saturating_add(time.0)))
}
