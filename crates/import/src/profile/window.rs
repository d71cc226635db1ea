//! Selects a part of a trace.

use paceline_record::Nanos;

use super::super::spans::Spans;
use crate::trace::{Kind, Name, Slice, Trace};

/// Names that a message lists.
const NAMES: usize = 8;

/// All of a trace.
pub fn whole(trace: &Trace) -> Spans {
    let mut window = Spans::default();
    if let Some((begin, end)) = trace.extent() {
        window.push(begin, end);
    }
    window
}

/// Finds the requested window: seconds since the trace's begin (`from`, `to`), or the time in which a range with
/// this name is open, or the intersection of both. A name must match exactly, or else as a part, ignoring case.
/// The host opens a range; the device's copy counts only if there is no other, because it covers only work
/// that the same thread launched. The error says which names exist.
pub fn cut(trace: &Trace, from: Option<f64>, to: Option<f64>, range: Option<&str>) -> Result<Spans, String> {
    let extent = trace.extent().ok_or("the profile is empty")?;
    let open = match range {
        Some(name) => find(trace, name)?,
        None => whole(trace),
    };
    let length = extent.1.since(extent.0).seconds();
    let moment = |seconds: f64| match seconds.is_finite() && seconds >= 0.0 {
        true => Ok(Nanos(extent.0.0.saturating_add((seconds * 1e9).round() as u64))),
        false => Err(format!("{seconds} s is outside the profile, which lasts {length:.3} s")),
    };
    let begin = from.map(moment).transpose()?.unwrap_or(extent.0);
    let end = to.map(moment).transpose()?.unwrap_or(extent.1);
    let mut asked = Spans::default();
    asked.push(begin, end);
    let window = open.intersect(&asked);
    match window.as_slice().is_empty() {
        true => Err(format!("the window is empty: the profile lasts {length:.3} s")),
        false => Ok(window),
    }
}

fn find(trace: &Trace, name: &str) -> Result<Spans, String> {
    let texts = || (0..trace.names.len()).map(|at| trace.names.text(Name(at as u32)));
    let exact: Vec<bool> = texts().map(|text| text == name).collect();
    let wanted = name.to_lowercase();
    let part: Vec<bool> = texts().map(|text| text.to_lowercase().contains(&wanted)).collect();
    let ranges = || trace.slices.iter().filter(|slice| matches!(slice.kind, Kind::Range | Kind::Operator));
    let on_device =
        |slice: &Slice| trace.tracks.get(slice.track as usize).is_some_and(|track| track.device.is_some());
    let open = |chosen: &[bool]| {
        let (mut device, mut host) = (Spans::default(), Spans::default());
        for slice in ranges().filter(|slice| chosen[slice.name.0 as usize]) {
            if on_device(slice) { &mut device } else { &mut host }.push(slice.begin, slice.end);
        }
        [host, device].into_iter().find(|spans: &Spans| !spans.as_slice().is_empty())
    };
    open(&exact).or_else(|| open(&part)).ok_or_else(|| {
        let mut names: Vec<&str> = Vec::new();
        for slice in ranges().filter(|slice| slice.kind == Kind::Range) {
            let text = trace.names.text(slice.name);
            if names.len() <= NAMES && !names.contains(&text) {
                names.push(text);
            }
        }
        let more = if names.len() > NAMES { ", ..." } else { "" };
        names.truncate(NAMES);
        match names.is_empty() {
            true => format!("no range is named {name:?}: the profile has no ranges"),
            false => format!("no range is named {name:?}; the ranges are {}{more}", names.join(", ")),
        }
    })
}
