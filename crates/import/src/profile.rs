//! A profile on one screen: where the time of devices went, and why they were idle.
//!
//! Works on any trace, split as the steps of a run are ([`super::split`]).

mod gap;
mod render;
#[cfg(test)]
mod tests;
mod window;

use std::collections::BTreeMap;

use paceline_lab::origin::UNKNOWN_RANKS;
use paceline_lab::stats;
use paceline_record::{Bytes, Nanos};
use serde::Serialize;

use super::ranks;
use super::spans::Spans;
use super::split::{Part, Parts, Tiling};
use super::top::{self, Row, Tally};
use crate::trace::Trace;

pub use gap::{CAUSES, Gap, Idle};
pub use render::{percent, render, time};
pub use window::Cut;

/// Rows of each list.
const ROWS: usize = 10;

/// Where the time of a profile went.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// When it was looked at: what was asked for, or the steps that the trace marks, or from its first work to its last.
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
    /// The window, split without overlap: time that fits several shares counts for the first. Devices count as one. Either
    /// idle time or the unknown is `None`.
    pub shares: BTreeMap<Share, Option<Nanos>>,
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

/// A part of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
    /// Number whose bytes are known.
    pub sized: u64,
    /// Bytes per second of those with known bytes; `None` for fills.
    pub bytes_per_s: Option<f64>,
}

/// Where a trace's time went. The error says why there is nothing to look at.
pub fn summarise(trace: &Trace, cut: &Cut<'_>) -> Result<Profile, String> {
    let tiling = Tiling::of(trace);
    let (begin, end) = trace.extent().ok_or("the profile is empty")?;
    let window = cut.find(trace, &tiling)?;
    let (length, stretches) = (window.total(), window.as_slice());
    let parts = stretches.iter().map(|span| tiling.within(*span)).sum::<Parts>();
    let shares = share_out(&parts, tiling.knows_idle);
    let largest = shares.iter().rev().max_by_key(|(_, time)| **time);
    let mut lists = Default::default();
    top::tally(trace, &window, &mut lists);
    let [(kernels, kernels_total), (copies, _), (collectives, _), (mut ranges, _)] = lists.map(list);
    for range in &mut ranges {
        range.fraction = range.total.0 as f64 / length.0.max(1) as f64;
    }
    let lengths = tiling.steps.iter().map(|step| (step.span(), step.end.since(step.begin)));
    let inside = lengths.filter(|(span, length)| window.within(*span) == *length);
    let lengths: Vec<f64> = inside.map(|(_, length)| length.0 as f64).collect();
    let devices = devices(trace, &window);
    let mut warnings = trace.warnings.clone();
    if ranks::has_others(trace) {
        let rank = trace.rank.map_or_else(|| "one rank".into(), |rank| format!("rank {rank}, one"));
        let all = trace.world.map_or_else(|| UNKNOWN_RANKS.into(), |world| world.to_string());
        warnings.push(format!("this is {rank} of {all}: the others may have spent their time otherwise"));
    }
    if *cut == Cut::default() {
        warnings.extend(tiling.notes.iter().cloned());
        if tiling.steps.is_empty() {
            warnings.push("no steps are marked: this is the time from the first work to the last".into());
        }
    }
    if devices.len() > 1 {
        warnings.push(format!("{} devices count as one, which is idle when all of them are", devices.len()));
    }
    Ok(Profile {
        from: stretches.first().map_or(Nanos(0), |first| first.begin.since(begin)),
        length,
        whole: end.since(begin),
        stretches: stretches.len(),
        has_device: trace.has_device(),
        dominant: largest.filter(|(_, time)| **time > Some(Nanos(0))).map(|(share, _)| *share),
        devices,
        shares,
        kernels,
        kernels_total,
        copies,
        collectives,
        ranges,
        idle: tiling.knows_idle.then(|| gap::causes(&parts)),
        gaps: if tiling.knows_idle { gap::longest(trace, &tiling, &window) } else { Vec::new() },
        steps: lengths.len(),
        step_median: stats::median(&lengths).map(|nanos| Nanos(nanos as u64)),
        warnings,
        window,
    })
}

impl Profile {
    /// The time of a share; 0 if it is unknown.
    pub fn time(&self, share: Share) -> Nanos {
        self.shares.get(&share).copied().flatten().unwrap_or_default()
    }
}

fn share_out(parts: &Parts, knows_idle: bool) -> BTreeMap<Share, Option<Nanos>> {
    let rest = CAUSES.map(|(part, _)| part);
    let shares: [(Share, &[Part]); 6] = [
        (Share::Compute, &[Part::Update, Part::Backward, Part::Forward, Part::Compute]),
        (Share::Collective, &[Part::Collective]),
        (Share::HostCopies, &[Part::CopyIn, Part::CopyOut]),
        (Share::DeviceCopies, &[Part::CopyDevice]),
        (Share::Idle, &rest),
        (Share::Unknown, &rest),
    ];
    let other = if knows_idle { Share::Unknown } else { Share::Idle };
    let sum = |of: &[Part]| of.iter().map(|part| parts[*part]).sum();
    shares.into_iter().map(|(share, of)| (share, (share != other).then(|| sum(of)))).collect()
}

/// The rows of a list that took most, and all together.
fn list(tally: Tally<'_>) -> (Vec<Work>, Work) {
    let (rows, all) = tally.rows(ROWS);
    let work = |name: &str, row: Row| Work {
        name: name.into(),
        count: row.count,
        total: row.total,
        mean: Nanos(row.total.0 / row.count.max(1)),
        fraction: if all.total.is_zero() { 0.0 } else { row.total.0 as f64 / all.total.0 as f64 },
        bytes: row.bytes.map(Bytes),
        sized: row.sized,
        bytes_per_s: (row.bytes.filter(|_| row.moving > 0))
            .map(|bytes| bytes as f64 / (row.moving as f64 * 1e-9)),
    };
    (rows.into_iter().map(|(name, row)| work(name, row)).collect(), work("all", all))
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
