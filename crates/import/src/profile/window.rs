//! Selects a part of a trace.

use paceline_record::Nanos;

use super::super::spans::Spans;
use super::super::split::Tiling;
use crate::trace::{Kind, Trace};

/// Names that a message lists.
const NAMES: usize = 8;

/// What is asked for: seconds since the trace's begin (`from`, `to`), or the time in which a range with this name is open,
/// or the intersection of both. Without any, the steps or, of a trace that marks none, from its first work to its last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cut<'a> {
    /// Seconds at its begin.
    pub from: Option<f64>,
    /// Seconds at its end.
    pub to: Option<f64>,
    /// Name of a range. It must match exactly, or else as a part, ignoring case.
    pub range: Option<&'a str>,
}

impl Cut<'_> {
    /// The window in a trace. The error says which names exist.
    pub(super) fn find(&self, trace: &Trace, tiling: &Tiling) -> Result<Spans, String> {
        let (first, last) = trace.extent().unwrap_or_default();
        let mut open = match self.range {
            Some(name) => find(trace, name)?,
            None if *self == Cut::default() => Spans::of_steps(&tiling.steps),
            None => Spans::default(),
        };
        if open.as_slice().is_empty() {
            let work = tiling.work().filter(|_| *self == Cut::default());
            let (first, last) = work.map_or((first, last), |work| (work.begin, work.end));
            open.push(first, last);
        }
        let length = last.since(first).seconds();
        let moment = |seconds: f64| match seconds.is_finite() && seconds >= 0.0 {
            true => Ok(Nanos(first.0.saturating_add((seconds * 1e9).round() as u64))),
            false => Err(format!("{seconds} s is outside the profile, which lasts {length:.3} s")),
        };
        let mut asked = Spans::default();
        asked.push(
            self.from.map(moment).transpose()?.unwrap_or(Nanos(0)),
            self.to.map(moment).transpose()?.unwrap_or(Nanos(u64::MAX)),
        );
        let window = open.intersect(&asked);
        match window.as_slice().is_empty() {
            true => Err(format!("the window is empty: the profile lasts {length:.3} s")),
            false => Ok(window),
        }
    }
}

/// When a range is open. The host opens it; the device's copy counts only if there is no other, because it covers only
/// work that the same thread launched.
fn find(trace: &Trace, name: &str) -> Result<Spans, String> {
    let wanted = name.to_lowercase();
    let ranges = || trace.slices.iter().filter(|slice| matches!(slice.kind, Kind::Range | Kind::Operator));
    let open = |is_meant: &dyn Fn(&str) -> bool| {
        let chosen: Vec<bool> = trace.names.texts().map(is_meant).collect();
        let (mut device, mut host) = (Spans::default(), Spans::default());
        for slice in ranges().filter(|slice| chosen[slice.name.0 as usize]) {
            let spans = if trace.device_of(slice).is_some() { &mut device } else { &mut host };
            spans.push(slice.begin, slice.end);
        }
        [host, device].into_iter().find(|spans: &Spans| !spans.as_slice().is_empty())
    };
    let part = || open(&|text| text.to_lowercase().contains(&wanted));
    open(&|text| text == name).or_else(part).ok_or_else(|| {
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
